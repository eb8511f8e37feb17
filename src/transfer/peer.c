/* Other ends, as seen from ours: requests by any thread, answers through the control thread.
 *
 *   connect ─> up ─(connection lost)─> broken ─> disconnect          up ─> disconnect
 *
 * What is broken stays so: its session was fenced over there, and who was about to move blocks has
 * to begin anew anyhow. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/thread.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/lane.h"
#include "transfer/transfer.h"

tarn_status transfer_peer_usable(const struct tarn_transfer_peer *p) {
    if (p == NULL || p->magic != TRANSFER_PEER_MAGIC)
        return fail(TARN_EINVAL, "this is not a connected peer");
    return transfer_usable(p->end);
}

void transfer_peer_free(struct tarn_transfer_peer *p) {
    while (!LIST_EMPTY(&p->lanes)) transfer_lane_free(LIST_FIRST(&p->lanes));
    transfer_map_put(&p->map);
    ctl_close(&p->ctl);
    arena_free(&p->arena);
    free(p->host);
    free(p->port);
    p->magic = 0;
    free(p);
}

/* --- answers, in the control thread --- */

static void pending_end(struct transfer_pending *r, tarn_status status, struct span text) {
    LIST_REMOVE(r, link);
    r->over = true;
    r->status = status;
    r->text = (struct buf){span_dup(text), text.len, text.len + 1};
    pthread_cond_signal(&r->changed);
}

void transfer_peer_break(struct tarn_transfer_peer *p, tarn_status status, const char *why) {
    if (p->broken != TARN_OK) return;
    p->broken = status;
    snprintf(p->why, sizeof(p->why), "%s", why);
    ctl_close(&p->ctl);
    /* What it lent us goes back at once: it may wait for that. Busy ones follow when they have
     * stopped. */
    struct transfer_lane *lane, *next;
    LIST_FOREACH_SAFE(lane, &p->lanes, link, next) {
        if (!lane->busy) transfer_lane_free(lane);
    }
    while (!LIST_EMPTY(&p->pending))
        pending_end(LIST_FIRST(&p->pending), TARN_ECLOSED, span_str(p->why));
    transfer_batches_stop(p, TARN_ECLOSED, p->why);
}

static tarn_status take_answer(struct tarn_transfer_peer *p, const struct answer *a) {
    static const char nonsense[] = "the peer makes no sense";
    uint64_t id;
    const struct answer *result = answer_at(a, 1), *payload = answer_at(a, 2);
    if (a->type == ANSWER_ERROR) return fail(TARN_ECLOSED, "%s", a->str);
    if (a->type != ANSWER_ARRAY || a->len != 3 || !answer_u64(answer_at(a, 0), &id) ||
        result->type != ANSWER_INTEGER || result->integer > 0 || result->integer < TARN_ENOTSUP)
        return fail(TARN_EPROTO, "%s", nonsense);
    if (id == 0) { /* its regions have changed */
        transfer_map_put(&p->map);
        return TARN_OK;
    }
    struct transfer_pending *r;
    LIST_FOREACH(r, &p->pending, link) {
        if (r->id == id) break;
    }
    if (r == NULL) return TARN_OK; /* nobody waits for it any more */
    tarn_status status = (tarn_status)result->integer;
    if (payload->type == ANSWER_STRING && payload->len <= TARN_TRANSFER_MESSAGE_MAX) {
        pending_end(r, status, span_of(payload->str, payload->len));
        return TARN_OK;
    }
    if (payload->type != ANSWER_ARRAY || status != TARN_OK)
        return fail(TARN_EPROTO, "%s", nonsense);
    struct transfer_map *map;
    status = transfer_map_parse(payload, p->end->host_id, p->host, &map);
    if (status != TARN_OK) return status;
    transfer_map_put(&p->map);
    p->map = map;
    pending_end(r, TARN_OK, SPAN(""));
    return TARN_OK;
}

void transfer_peer_turn(struct tarn_transfer_peer *p) {
    for (;;) {
        struct answer *a;
        tarn_status status = ctl_try_receive(&p->ctl, &p->arena, &a);
        if (status == TARN_EAGAIN) return;
        status = status == TARN_OK       ? take_answer(p, a)
                 : status == TARN_EPROTO ? fail(status, "the peer makes no sense")
                                         : fail(status, "the connection to the peer is lost");
        arena_reset(&p->arena);
        if (status == TARN_OK) continue;
        transfer_peer_break(p, TARN_ECLOSED, tarn_last_error());
        return;
    }
}

/* --- requests, from any thread --- */

tarn_status transfer_request(struct ctl *c, const char *name, uint64_t id, const struct span *args,
                             size_t n) {
    ctl_begin(c, name);
    ctl_arg_str(c, name);
    ctl_arg_i64(c, (int64_t)id);
    for (size_t i = 0; i < n; i++) ctl_arg(c, args[i].data, args[i].len);
    return ctl_commit(c, false);
}

tarn_status transfer_peer_call(struct tarn_transfer_peer *p, const char *name,
                               const struct span *args, size_t n, uint64_t deadline,
                               const bool *stop, struct buf *answer) {
    struct tarn_transfer *t = p->end;
    if (p->broken != TARN_OK) return fail(TARN_ECLOSED, "the peer is gone: %s", p->why);
    if (ctl_unsent(&p->ctl) > TRANSFER_OUT_MAX)
        return fail(TARN_EAGAIN, "the peer takes no requests");
    struct transfer_pending r = {.id = ++p->last_id};
    if (transfer_request(&p->ctl, name, r.id, args, n) != TARN_OK) {
        transfer_peer_break(p, TARN_ECLOSED, tarn_last_error());
        return fail(TARN_ECLOSED, "the peer is gone: %s", p->why);
    }
    if (ctl_wants_to_send(&p->ctl)) transfer_wake(t); /* the rest goes when the socket takes it */
    thread_cond_init(&r.changed);
    LIST_INSERT_HEAD(&p->pending, &r, link);
    while (!r.over && !(stop != NULL && *stop) && transfer_cond_wait(t, &r.changed, deadline))
        continue;
    if (!r.over) {
        LIST_REMOVE(&r, link);
        r.status = stop != NULL && *stop
                       ? fail(TARN_ECANCELED, "cancelled")
                       : fail(TARN_ETIMEOUT, "%s: the peer did not answer in time", name);
    } else if (r.status != TARN_OK) {
        fail(r.status, "%s: %s%s%s", name, tarn_status_text(r.status), r.text.len > 0 ? ": " : "",
             r.text.data);
    }
    pthread_cond_destroy(&r.changed);
    if (answer != NULL && r.status == TARN_OK)
        *answer = r.text;
    else
        buf_free(&r.text);
    return r.status;
}

void transfer_peer_nudge(struct tarn_transfer_peer *p) {
    struct transfer_pending *r;
    LIST_FOREACH(r, &p->pending, link) pthread_cond_signal(&r->changed);
}

tarn_status transfer_peer_map(struct tarn_transfer_peer *p, uint64_t deadline, const bool *stop,
                              struct transfer_map **map_p) {
    for (int tries = 0; p->map == NULL; tries++) {
        /* It may have changed again at once; but not for ever. */
        if (tries == 8) return fail(TARN_EAGAIN, "the peer's regions change too fast");
        tarn_status status = transfer_peer_call(p, "REGIONS", NULL, 0, deadline, stop, NULL);
        if (status != TARN_OK) return status;
    }
    p->map->refs++;
    *map_p = p->map;
    return TARN_OK;
}

/* Locks and calls. */
static tarn_status peer_ask(struct tarn_transfer_peer *p, const char *name, const struct span *args,
                            size_t n, uint64_t deadline, struct buf *answer) {
    pthread_mutex_lock(&p->end->mutex);
    tarn_status status = transfer_peer_call(p, name, args, n, deadline, NULL, answer);
    pthread_mutex_unlock(&p->end->mutex);
    return status;
}

static tarn_status check_message(const void *message, size_t len) {
    if (len <= TARN_TRANSFER_MESSAGE_MAX && (message != NULL || len == 0)) return TARN_OK;
    return fail(TARN_EINVAL, "a message has at most %d bytes", TARN_TRANSFER_MESSAGE_MAX);
}

#define ANSWER_MS 1000u /* for the answer that says that the time was over */

tarn_status tarn_transfer_wait_ready(tarn_transfer_peer *p, const char *label, uint64_t timeout_ms,
                                     void *info, size_t cap, size_t *info_len_p) {
    tarn_status status = transfer_peer_usable(p);
    if (status == TARN_OK) status = transfer_label_check(label);
    if (status != TARN_OK) return status;
    if (timeout_ms == 0) timeout_ms = p->end->options.timeout_ms;
    char number[24];
    struct buf text = {0};
    const struct span args[] = {
        span_str(label), span_of(number, u64_to_dec(min_u64(timeout_ms, INT64_MAX), number))};
    uint64_t deadline = timeout_ms == TARN_NO_TIMEOUT
                            ? DEADLINE_NONE
                            : add_sat(now_ms(), add_sat(timeout_ms, ANSWER_MS));
    status = peer_ask(p, "WAIT", args, 2, deadline, &text);
    if (status != TARN_OK) return status;
    if (info != NULL) memcpy(info, text.data, min_u64(text.len, cap));
    if (info_len_p != NULL) *info_len_p = text.len;
    buf_free(&text);
    return TARN_OK;
}

/* label NULL: it is about none. */
static tarn_status peer_tell(struct tarn_transfer_peer *p, const char *name, const char *label,
                             const void *message, size_t len, uint64_t timeout_ms) {
    tarn_status status = transfer_peer_usable(p);
    if (status == TARN_OK && label != NULL) status = transfer_label_check(label);
    if (status == TARN_OK) status = check_message(message, len);
    if (status != TARN_OK) return status;
    const struct span args[] = {span_str(label != NULL ? label : ""), span_of(message, len)};
    size_t first = label != NULL ? 0 : 1;
    return peer_ask(p, name, &args[first], 2 - first, transfer_deadline(p->end, timeout_ms, 0),
                    NULL);
}

tarn_status tarn_transfer_done(tarn_transfer_peer *p, const char *label, const void *message,
                               size_t len, uint64_t timeout_ms) {
    return peer_tell(p, "DONE", label != NULL ? label : "", message, len, timeout_ms);
}

tarn_status tarn_transfer_give_up(tarn_transfer_peer *p, const char *label, const char *reason,
                                  uint64_t timeout_ms) {
    return peer_tell(p, "GIVEUP", label != NULL ? label : "", reason,
                     reason != NULL ? strlen(reason) : 0, timeout_ms);
}

tarn_status tarn_transfer_notify(tarn_transfer_peer *p, const void *message, size_t len,
                                 uint64_t timeout_ms) {
    return peer_tell(p, "NOTIFY", NULL, message, len, timeout_ms);
}

tarn_status tarn_transfer_peer_regions(tarn_transfer_peer *p, tarn_transfer_region *regions,
                                       size_t max, size_t *n_p) {
    tarn_status status = transfer_peer_usable(p);
    if (status != TARN_OK) return status;
    if (regions == NULL && max > 0) return fail(TARN_EINVAL, "there is no place for the regions");
    struct transfer_map *map;
    pthread_mutex_lock(&p->end->mutex);
    transfer_map_put(&p->map);
    status = transfer_peer_map(p, transfer_deadline(p->end, 0, 0), NULL, &map);
    if (status == TARN_OK) {
        for (size_t i = 0; i < map->n && i < max; i++) {
            const struct transfer_far *f = &map->regions[i];
            regions[i] = (tarn_transfer_region){
                .id = f->id, .rights = f->rights, .address = f->address, .length = f->length};
            memcpy(regions[i].name, f->name, sizeof(regions[i].name));
        }
        if (n_p != NULL) *n_p = map->n;
        transfer_map_put(&map);
    }
    pthread_mutex_unlock(&p->end->mutex);
    return status;
}

const char *tarn_transfer_peer_name(const tarn_transfer_peer *p) {
    return transfer_peer_usable(p) == TARN_OK ? p->name : "";
}

/* --- connecting --- */

static tarn_status find_address(struct tarn_transfer *t, struct tarn_transfer_peer *p,
                                const char *where, uint64_t deadline) {
    static const char scheme[] = "tarn-transfer://";
    if (strncmp(where, scheme, sizeof(scheme) - 1) == 0) {
        struct span address = span_str(where + sizeof(scheme) - 1);
        if (transfer_split_address(address, &p->host, &p->port)) return TARN_OK;
        return fail(TARN_EINVAL, "an endpoint looks like tarn-transfer://host:port");
    }
    if (!span_is_name(span_str(where), TARN_TRANSFER_NAME_MAX))
        return fail(TARN_EINVAL,
                    "\"%s\" is neither tarn-transfer://host:port nor the name of an end", where);
    return transfer_name_find(t, where, deadline, &p->host, &p->port);
}

tarn_status tarn_transfer_connect(tarn_transfer *t, const char *where, uint64_t timeout_ms,
                                  tarn_transfer_peer **peer_p) {
    tarn_status status = transfer_usable(t);
    if (status != TARN_OK) return status;
    if (where == NULL || peer_p == NULL)
        return fail(TARN_EINVAL, "a peer needs an endpoint or a name");
    if (timeout_ms == 0) timeout_ms = t->options.connect_timeout_ms;
    uint64_t deadline =
        timeout_ms == TARN_NO_TIMEOUT ? DEADLINE_NONE : add_sat(now_ms(), timeout_ms);
    struct tarn_transfer_peer *p = xcalloc(1, sizeof(*p));
    p->magic = TRANSFER_PEER_MAGIC;
    p->end = t;
    ctl_init(&p->ctl);
    LIST_INIT(&p->pending);
    LIST_INIT(&p->lanes);
    status = find_address(t, p, where, deadline);
    if (status == TARN_OK) status = transfer_dial(t, p, deadline);
    bool by_name = strstr(where, "://") == NULL;
    if (status == TARN_OK && by_name && strcmp(p->name, where) != 0)
        status = fail(TARN_EPERM, "who answers at %s:%s is not \"%s\"", p->host, p->port, where);
    if (status == TARN_OK) {
        pthread_mutex_lock(&t->mutex);
        if (t->n_peers >= TRANSFER_PEERS_MAX) {
            status = fail(TARN_ELIMIT, "this end has %u peers already", TRANSFER_PEERS_MAX);
        } else {
            LIST_INSERT_HEAD(&t->peers, p, link);
            t->n_peers++;
            transfer_wake(t);
        }
        pthread_mutex_unlock(&t->mutex);
    }
    if (status != TARN_OK) {
        transfer_peer_free(p);
        return status;
    }
    *peer_p = p;
    return TARN_OK;
}

void tarn_transfer_disconnect(tarn_transfer_peer **peer_p) {
    if (peer_p == NULL || *peer_p == NULL) return;
    struct tarn_transfer_peer *p = *peer_p;
    *peer_p = NULL;
    if (p->magic != TRANSFER_PEER_MAGIC || p->end->pid != getpid()) return;
    struct tarn_transfer *t = p->end;
    pthread_mutex_lock(&t->mutex);
    TARN_ASSERT(p->batches == 0);
    p->closing = true;
    transfer_wake(t);
    while (!p->closed) pthread_cond_wait(&t->changed, &t->mutex);
    pthread_mutex_unlock(&t->mutex);
    transfer_peer_free(p);
}
