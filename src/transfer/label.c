/* Labels: who waits for which blocks, who was told that they are there, and who is done with them.
 * All in the end that has the blocks; the chart is in transfer.h. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/error.h"
#include "transfer/transfer.h"

#define FORGET_MS 60000u /* who asks for an aborted label within this time learns why */

static bool label_eq(const struct htab_node *node, const void *key) {
    return strcmp(CONTAINER_OF(node, const struct transfer_label, node)->name, key) == 0;
}

static struct transfer_label *label_find(struct tarn_transfer *t, const char *name) {
    struct htab_node *node = htab_find(&t->labels, hash_bytes(name, strlen(name)), label_eq, name);
    return node != NULL ? CONTAINER_OF(node, struct transfer_label, node) : NULL;
}

/* NULL: there are too many. */
static struct transfer_label *label_find_or_add(struct tarn_transfer *t, const char *name) {
    struct transfer_label *l = label_find(t, name);
    if (l != NULL || t->labels.count >= TRANSFER_LABELS_MAX) return l;
    l = xcalloc(1, sizeof(*l));
    l->end = t;
    snprintf(l->name, sizeof(l->name), "%s", name);
    LIST_INIT(&l->waits);
    htab_insert(&t->labels, &l->node, hash_bytes(name, strlen(name)));
    return l;
}

static void label_set_info(struct transfer_label *l, const void *info, size_t len) {
    free(l->info);
    l->info = len > 0 ? xmemdup(info, len) : NULL;
    l->info_len = len;
}

static void wait_remove(struct transfer_wait *w) {
    transfer_timer_stop(w->conn->end, &w->due);
    LIST_REMOVE(w, link);
    w->conn->n_waits--;
    free(w);
}

static void holders_free(struct transfer_label *l) {
    struct transfer_holder *h;
    while ((h = SLIST_TAKE(&l->holders, link)) != NULL) free(h);
}

static void label_free(struct transfer_label *l) {
    TARN_ASSERT(LIST_EMPTY(&l->waits));
    transfer_timer_stop(l->end, &l->due);
    htab_remove(&l->end->labels, &l->node);
    holders_free(l);
    free(l->info);
    free(l);
}

static void label_drop_unwanted(struct transfer_label *l) {
    if (l->state == LABEL_WANTED && LIST_EMPTY(&l->waits)) label_free(l);
}

/* --- holders --- */

static struct transfer_holder *holder_find(const struct transfer_label *l, uint64_t session) {
    struct transfer_holder *h;
    SLIST_FOREACH(h, &l->holders, link) {
        if (h->session == session) break;
    }
    return h;
}

static void holder_add(struct transfer_label *l, const struct transfer_conn *c) {
    struct transfer_holder *h = holder_find(l, c->session);
    if (h != NULL) {
        h->told++;
        return;
    }
    h = xcalloc(1, sizeof(*h));
    h->told = 1;
    h->session = c->session;
    snprintf(h->peer, sizeof(h->peer), "%s", transfer_conn_name(c));
    SLIST_INSERT_HEAD(&l->holders, h, link);
}

static void holder_remove(struct transfer_label *l, struct transfer_holder *h) {
    SLIST_REMOVE(&l->holders, h, transfer_holder, link);
    free(h);
}

/* So many of those who were to come are done with it. Nobody waits for a label that is ready. */
static void label_fewer_peers(struct transfer_label *l, unsigned n) {
    if (l->state != LABEL_READY) return;
    l->peers_left -= n < l->peers_left ? n : l->peers_left;
    if (l->peers_left == 0) label_free(l);
}

/* --- answers to those who wait --- */

static void wait_tell(struct transfer_label *l, struct transfer_conn *c, uint64_t id) {
    if (l->state == LABEL_READY) {
        holder_add(l, c);
        transfer_answer(c, id, TARN_OK, l->info, l->info_len);
    } else {
        transfer_answer(c, id, TARN_ECANCELED, l->info, l->info_len);
    }
}

static void waits_tell(struct transfer_label *l) {
    struct transfer_wait *w;
    while ((w = LIST_FIRST(&l->waits)) != NULL) {
        wait_tell(l, w->conn, w->id);
        wait_remove(w);
    }
    transfer_wake(l->end);
}

static void wait_over(struct transfer_timer *timer) {
    struct transfer_wait *w = CONTAINER_OF(timer, struct transfer_wait, due);
    struct transfer_label *l = w->label;
    transfer_answer(w->conn, w->id, TARN_ETIMEOUT, NULL, 0);
    wait_remove(w);
    label_drop_unwanted(l);
}

void transfer_label_wait(struct transfer_conn *c, uint64_t id, const char *name,
                         uint64_t timeout_ms) {
    struct tarn_transfer *t = c->end;
    struct transfer_label *l = c->n_waits < TRANSFER_WAITS_MAX ? label_find_or_add(t, name) : NULL;
    if (l == NULL) {
        transfer_answer(c, id, TARN_ELIMIT, NULL, 0);
        return;
    }
    if (l->state != LABEL_WANTED) {
        wait_tell(l, c, id);
        return;
    }
    struct transfer_wait *w = xcalloc(1, sizeof(*w));
    w->label = l;
    w->conn = c;
    w->id = id;
    c->n_waits++;
    LIST_INSERT_HEAD(&l->waits, w, link);
    transfer_timer_set(t, &w->due, add_sat(now_ms(), timeout_ms), wait_over);
}

tarn_status transfer_label_done(struct transfer_conn *c, const char *name, bool gave_up,
                                const void *data, size_t len) {
    struct tarn_transfer *t = c->end;
    struct transfer_label *l = label_find(t, name);
    if (l == NULL || l->state == LABEL_WANTED) return TARN_ENOTFOUND;
    if (transfer_events_full(t)) return TARN_EAGAIN;
    struct transfer_holder *h = holder_find(l, c->session);
    bool told = h != NULL;
    if (told && --h->told == 0) holder_remove(l, h);
    /* Who was not told of these blocks cannot be done with them: it means others, of the same name
     * and aborted. */
    if (l->state == LABEL_ABORTED || (!told && !gave_up)) return TARN_ECANCELED;
    transfer_event_add(t, gave_up ? TARN_TRANSFER_GAVE_UP : TARN_TRANSFER_DONE,
                       transfer_conn_name(c), name, data, len);
    label_fewer_peers(l, 1);
    return TARN_OK;
}

/* --- the owner --- */

static void label_forget(struct transfer_timer *timer) {
    struct transfer_label *l = CONTAINER_OF(timer, struct transfer_label, due);
    if (l->event_due)
        transfer_timer_set(l->end, timer, now_ms() + FORGET_MS, label_forget);
    else
        label_free(l);
}

static void label_report_abort(struct transfer_label *l) {
    l->event_due = false;
    transfer_event_add(l->end, TARN_TRANSFER_ABORTED, "", l->name, l->info, l->info_len);
}

/* Cuts off those who may still write. Their connections end with this turn, and their fences report
 * to transfer_labels_fenced. */
static void cut_holders(struct transfer_label *l) {
    const struct transfer_holder *h;
    SLIST_FOREACH(h, &l->holders, link) {
        struct transfer_conn *c;
        LIST_FOREACH(c, &l->end->conns, link) {
            if (c->session == h->session) c->doomed = true;
        }
    }
    transfer_wake(l->end);
}

static void label_abort(struct transfer_label *l, const char *reason) {
    bool was_ready = l->state == LABEL_READY;
    l->state = LABEL_ABORTED;
    label_set_info(l, reason, strlen(reason));
    transfer_timer_set(l->end, &l->due, now_ms() + FORGET_MS, label_forget);
    waits_tell(l);
    if (!was_ready) return;
    if (l->cut && !SLIST_EMPTY(&l->holders)) {
        l->event_due = true;
        cut_holders(l);
        return;
    }
    holders_free(l);
    label_report_abort(l);
}

static void label_keep_over(struct transfer_timer *timer) {
    label_abort(CONTAINER_OF(timer, struct transfer_label, due),
                "they were kept as long as was agreed on");
}

tarn_status transfer_label_check(const char *label) {
    if (label != NULL && label[0] != '\0' && strlen(label) <= TARN_TRANSFER_LABEL_MAX)
        return TARN_OK;
    return fail(TARN_EINVAL, "a label has 1 to %d bytes", TARN_TRANSFER_LABEL_MAX);
}

void tarn_transfer_ready_options_init(tarn_transfer_ready_options *o) {
    *o = (tarn_transfer_ready_options){.size = sizeof(*o), .peers = 1};
}

static tarn_status label_make_ready(struct tarn_transfer *t, const char *label,
                                    const tarn_transfer_ready_options *o) {
    struct transfer_label *l = label_find_or_add(t, label);
    if (l == NULL) return fail(TARN_ELIMIT, "there are %u labels already", TRANSFER_LABELS_MAX);
    if (l->state == LABEL_READY) return fail(TARN_EEXISTS, "\"%s\" is ready already", label);
    if (l->event_due)
        return fail(TARN_EBUSY, "\"%s\" was aborted, and peers are still being cut off", label);
    l->state = LABEL_READY;
    l->peers_left = o->peers;
    l->cut = o->cut != 0;
    label_set_info(l, o->info, o->info_len);
    transfer_timer_stop(t, &l->due);
    if (o->keep_ms != 0)
        transfer_timer_set(t, &l->due, add_sat(now_ms(), o->keep_ms), label_keep_over);
    waits_tell(l);
    return TARN_OK;
}

tarn_status tarn_transfer_ready(tarn_transfer *t, const char *label,
                                const tarn_transfer_ready_options *options) {
    tarn_status status = transfer_usable(t);
    if (status == TARN_OK) status = transfer_label_check(label);
    if (status != TARN_OK) return status;
    tarn_transfer_ready_options o;
    tarn_transfer_ready_options_init(&o);
    if (options != NULL) memcpy(&o, options, min_u64(options->size, sizeof(o)));
    if (o.peers == 0 || o.info_len > TARN_TRANSFER_MESSAGE_MAX ||
        (o.info == NULL && o.info_len > 0))
        return fail(TARN_EINVAL, "at least one peer, and at most %d bytes go with a label",
                    TARN_TRANSFER_MESSAGE_MAX);
    pthread_mutex_lock(&t->mutex);
    status = label_make_ready(t, label, &o);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

tarn_status tarn_transfer_abort(tarn_transfer *t, const char *label, const char *reason) {
    tarn_status status = transfer_usable(t);
    if (status == TARN_OK) status = transfer_label_check(label);
    if (status != TARN_OK) return status;
    if (reason == NULL) reason = "";
    if (strlen(reason) > TARN_TRANSFER_MESSAGE_MAX)
        return fail(TARN_EINVAL, "the reason is too long");
    pthread_mutex_lock(&t->mutex);
    struct transfer_label *l = label_find_or_add(t, label);
    if (l == NULL)
        status = fail(TARN_ELIMIT, "there are %u labels already", TRANSFER_LABELS_MAX);
    else if (l->state != LABEL_ABORTED)
        label_abort(l, reason);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

/* --- sessions that end --- */

struct label_walk {
    struct transfer_conn *conn;
    uint64_t session;
};

static void collect_waits(void *arg, struct htab_node *node) {
    struct label_walk *w = arg;
    struct transfer_label *l = CONTAINER_OF(node, struct transfer_label, node);
    struct transfer_wait *wait, *next;
    LIST_FOREACH_SAFE(wait, &l->waits, link, next) {
        if (wait->conn == w->conn) wait_remove(wait);
    }
    label_drop_unwanted(l);
}

static void collect_held(void *arg, struct htab_node *node) {
    struct label_walk *w = arg;
    struct transfer_label *l = CONTAINER_OF(node, struct transfer_label, node);
    struct transfer_holder *h = holder_find(l, w->session);
    if (h == NULL) return;
    static const char why[] = "the peer went away";
    for (unsigned i = 0; i < h->told && i < l->peers_left && l->state == LABEL_READY; i++)
        transfer_event_add(l->end, TARN_TRANSFER_GAVE_UP, h->peer, l->name, why, sizeof(why) - 1);
    unsigned told = h->told;
    holder_remove(l, h);
    if (l->event_due && SLIST_EMPTY(&l->holders)) label_report_abort(l);
    label_fewer_peers(l, told);
}

void transfer_labels_conn_ended(struct transfer_conn *c, bool fence) {
    struct label_walk w = {.conn = c, .session = c->session};
    if (c->n_waits > 0) htab_each(&c->end->labels, collect_waits, &w);
    if (!fence) htab_each(&c->end->labels, collect_held, &w);
}

void transfer_labels_fenced(struct tarn_transfer *t, uint64_t session) {
    htab_each(&t->labels, collect_held, &(struct label_walk){.session = session});
}

static void collect_all(void *arg, struct htab_node *node) {
    (void)arg;
    struct transfer_label *l = CONTAINER_OF(node, struct transfer_label, node);
    while (!LIST_EMPTY(&l->waits)) wait_remove(LIST_FIRST(&l->waits));
    label_free(l);
}

void transfer_labels_free(struct tarn_transfer *t) {
    htab_each(&t->labels, collect_all, NULL);
    TARN_ASSERT(t->labels.count == 0);
    htab_free(&t->labels);
}
