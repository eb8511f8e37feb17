/* The session with the master: joins, stays, is dropped, joins again. See the chart in hosting.h.
 *
 * A session ends in one place, session_drop(), and only between turns: what fails notes it with
 * session_broken. Whatever the master had asked for is void then. Copies that run are awaited
 * before the next NODE JOIN, because to join is to say that nothing is being written here. Stores
 * are not: they only read memory, against a CRC. */
#include <hiredis/read.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/master.h"
#include "hosting/hosting.h"

#define IDLE_BEAT_MS   10u                 /* the least between heartbeats that bring nothing */
#define FAILOVER_MS    10u                 /* between attempts where Sentinels are followed */
#define LOOK_MS        1000u               /* between questions to the Sentinels */
#define CLOCK_MAX_MS   (UINT64_C(1) << 52) /* of a master's clock; more is no clock */
#define FRESH_EVERY_MS 30000u              /* a heartbeat that does not wait, for the clock */

void session_broken(struct tarn_host *h, tarn_status status) {
    struct hosting_session *s = &h->session;
    TARN_ASSERT(status != TARN_OK);
    if (s->broken != TARN_OK) return; /* what came first is the cause */
    s->broken = status;
    snprintf(s->why, sizeof(s->why), "%s", tarn_last_error());
    h->next_wake_ms = 0;
}

void session_fail(struct tarn_host *h, tarn_status status, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    session_broken(h, fail(status, "%s", text));
}

bool session_accepts(struct tarn_host *h, const struct answer *a, const char *what) {
    if (a == NULL) return false;
    if (a->type != ANSWER_ERROR) return true;
    if (strncmp(a->str, "STALE", 5) == 0) {
        session_fail(h, TARN_ESTALE, "the master does not know this node any more: %s", a->str);
    } else {
        session_broken(h, answer_check(a, what));
    }
    return false;
}

/* --- the end of a session --- */

static void session_tell_once(struct hosting_session *s, const char *name) {
    if (strcmp(s->told, s->why) == 0) return;
    snprintf(s->told, sizeof(s->told), "%s", s->why);
    log_warning("Node %s is not connected to its master, and tries again: %s", name, s->why);
}

bool session_is_fatal(const struct tarn_host *h, tarn_status status) {
    if (status == TARN_EREADONLY && master_may_change(&h->master))
        return false; /* a failover is under way */
    switch (status) {
    case TARN_EPERM:
    case TARN_EBUSY:
    case TARN_EPROTO:
    case TARN_EINVAL:
    case TARN_ERR:
    case TARN_EREADONLY: return true;
    default: return false;
    }
}

static uint64_t session_pause_ms(struct tarn_host *h) {
    const tarn_options *o = &h->options;
    struct hosting_session *s = &h->session;
    if (master_may_change(&h->master)) return FAILOVER_MS; /* dialling waits for who leads next */
    unsigned shift = s->failures < 16 ? s->failures : 16;
    uint64_t ms = min_u64(o->backoff_min_ms << shift, o->backoff_max_ms);
    return ms / 2 + rng_below(&h->rng, ms / 2 + 1);
}

static void session_drop(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    tarn_status status = s->broken;
    link_close(h, &h->beats);
    link_close(h, &h->reports);
    s->broken = TARN_OK;
    s->generation++;
    s->beating = s->asking_up = s->drain_sent = s->leave_sent = false;
    s->draining = s->maintenance = false;
    s->lend_until = 0;
    s->lend_unmounting = false;
    s->mounting = 0;
    if (s->phase == PHASE_LEFT) return;
    tasks_cancel(h, NULL);
    for (unsigned i = 0; i < h->n_fars; i++) offer_stop(&h->fars[i]);
    reports_forget(h);
    keys_forget(h);
    for (unsigned i = 0; i < h->n_segments; i++) h->segments[i].mounted = false;
    h->figures.heartbeat_failures++;
    s->phase = PHASE_AWAY;
    s->retry_at = now_ms() + session_pause_ms(h);
    s->failures++;
    if (s->mounted_once && !session_is_fatal(h, status)) { /* which is what was promised */
        hosting_opened(h, TARN_OK);
    } else if (session_is_fatal(h, status) ||
               (!h->patient &&
                ((!master_may_change(&h->master) && s->failures > h->options.retries) ||
                 now_ms() >= h->open_deadline))) { /* a failover takes longer than a few tries */
        if (hosting_opened(h, fail(status, "%s", s->why))) return; /* the caller says it */
    }
    session_tell_once(s, h->name);
}

/* --- joining --- */

static void set_clock(struct tarn_host *h, uint64_t now) {
    int64_t mono_behind = (int64_t)(clock_boot_ms() - clock_mono_ms());
    host_set_clock_offset(h->host, hosting_clock_bound(&h->clock, now) + mono_behind);
}

static void open_tiers(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    s->phase = PHASE_OPENING;
    for (unsigned i = 0; i < h->n_fars; i++) s->opening += far_reopen(&h->fars[i], s->cluster);
    if (s->opening > 0) return;
    s->phase = PHASE_MOUNTING;
    mount_all(h);
}

void session_far_opened(struct tarn_host *h, struct hosting_far *f, tarn_status status,
                        const char *why) {
    struct hosting_session *s = &h->session;
    const char *tier = hosted_tiers[f->segment->kind];
    bool refused = false;
    if (status != TARN_OK) {
        log_warning("The %s tier at %s cannot be used: %s", tier, f->path, why);
        if (status != TARN_ECANCELED)
            refused = hosting_opened(h, fail(status, "the %s tier at %s: %s", tier, f->path, why));
    }
    TARN_ASSERT(s->opening > 0);
    if (--s->opening > 0 || s->phase != PHASE_OPENING) return;
    /* Who waits for it to open ends the host, which is not to join meanwhile. One of many serves
     * what it has. */
    if (!refused || h->one_of_many) open_tiers(h);
}

void session_fenced_before(struct tarn_host *h, uint32_t master_epoch) {
    struct hosting_session *s = &h->session;
    /* of a session that is over */
    if (s->phase != PHASE_FENCING || master_epoch != s->epoch) return;
    s->served_epoch = master_epoch;
    open_tiers(h);
}

static uint64_t session_patience_until(const struct hosting_session *s) {
    return add_sat(now_ms(), 3 * min_u64(s->node_timeout_ms, UINT32_MAX));
}

/* The key is not left lying about in the memory of answers. */
static void wipe_key(struct tarn_host *h, const struct answer *key) {
    redisReader *r = h->beats.ctl.reader;
    explicit_bzero((void *)(uintptr_t)key->str, key->len);
    if (r->buf != NULL) explicit_bzero(r->buf, r->pos); /* what it has parsed */
}

static bool decode_join(struct tarn_host *h, const struct answer *a, uint64_t sent_ms) {
    struct hosting_session *s = &h->session;
    const struct answer *key = answer_field(a, "grant-key");
    uint64_t epoch, clock;
    if (!answer_u64(answer_field(a, "master-epoch"), &epoch) || epoch == 0 || epoch > UINT32_MAX ||
        !answer_u64(answer_field(a, "clock"), &clock) || clock > CLOCK_MAX_MS ||
        !answer_u64(answer_field(a, "heartbeat"), &s->heartbeat_ms) || s->heartbeat_ms == 0 ||
        !answer_u64(answer_field(a, "node-timeout"), &s->node_timeout_ms) ||
        !answer_u64(answer_field(a, "max-lease"), &s->max_lease_ms) ||
        !answer_hex(answer_field(a, "cluster-id"), s->cluster, sizeof(s->cluster)) || key == NULL ||
        key->type != ANSWER_STRING || key->len != GRANT_KEY_SIZE) {
        session_fail(h, TARN_EPROTO, "NODE JOIN: the answer of the master makes no sense");
        return false;
    }
    s->epoch = (uint32_t)epoch;
    if (s->epoch < s->served_epoch) {
        /* Sessions of a later master cannot be told from those of this one's future. */
        session_fail(h, TARN_ESTALE,
                     "the master at %s:%s has epoch %u, and this node has served epoch %u: is it "
                     "an old one? (to join "
                     "it anyway, start this node anew)",
                     h->beats.ctl.host, h->beats.ctl.port, s->epoch, s->served_epoch);
        wipe_key(h, key);
        return false;
    }
    (void)master_check_epoch(&h->master, s->epoch, h->beats.ctl.host, h->beats.ctl.port);
    h->clock = (struct hosting_clock){0}; /* of another machine, maybe */
    uint64_t now = now_ms();
    hosting_clock_feed(&h->clock, clock, sent_ms, now);
    set_clock(h, now);
    host_set_authority(h->host, (const uint8_t *)key->str, s->epoch);
    wipe_key(h, key);
    return true;
}

static void join_answered(struct tarn_host *h, const struct answer *a, void *arg,
                          uint64_t sent_ms) {
    struct hosting_session *s = &h->session;
    if (!session_accepts(h, a, "NODE JOIN") || !decode_join(h, a, sent_ms)) return;
    h->figures.joins++;
    if (h->patient) /* what follows has the time that opening may take */
        h->open_deadline =
            max_u64(h->open_deadline, add_sat(now_ms(), h->options.connect_timeout_ms));
    s->phase = PHASE_FENCING;
    s->next_beat_ms = s->last_fresh_ms = 0;
    if (s->epoch == s->served_epoch) {
        open_tiers(h);
    } else {
        s->patient_until = session_patience_until(s);
        host_fence_before(h->host, s->epoch);
    }
}

/* Waiting was in vain, and took the time that opening may take: what follows has its own. New
 * memory is nobody's, so this happens once for each segment. */
void session_new_memory(struct tarn_host *h, const struct hosted *seg) {
    host_segment_retire(h->host, seg->slot, true);
    h->open_deadline = max_u64(h->open_deadline, add_sat(now_ms(), h->options.connect_timeout_ms));
}

/* A process that has our memory mapped and is stopped keeps us out of the pool: no fence of it ends
 * as long as it may write. After a while the memory is given up; then it writes to what was.
 * strangers: those that an earlier master let in only. */
static bool give_up_lent(struct tarn_host *h, bool strangers) {
    bool any = false;
    for (unsigned i = 0; i < h->n_segments; i++) {
        const struct hosted *seg = &h->segments[i];
        struct host_segment_info info;
        if (seg->kind != HOSTED_MEMORY || seg->gone || !host_slot_get(h->host, seg->slot, &info))
            continue;
        if (strangers ? !info.strangers : !info.lent) continue;
        log_warning("Segment %s: a process that has it mapped does not let go of it; what is in it "
                    "is given up",
                    seg->name);
        session_new_memory(h, seg);
        any = true;
    }
    return any;
}

static void fence_turn(struct tarn_host *h, uint64_t now) {
    struct hosting_session *s = &h->session;
    hosting_wake_at(h, s->patient_until);
    if (now < s->patient_until) return;
    s->patient_until = session_patience_until(s);
    give_up_lent(h, true);
}

void session_dialled(struct tarn_host *h, tarn_status status, const char *why, struct ctl ctl[2]) {
    struct hosting_session *s = &h->session;
    if (s->phase != PHASE_DIALING) return;
    if (status != TARN_OK) {
        session_fail(h, status, "%s", why);
        return;
    }
    link_take(&h->beats, &ctl[0]);
    link_take(&h->reports, &ctl[1]);
    s->phase = PHASE_JOINING;
    struct wire_join join = {.node = link_node(h, &h->beats)};
    struct ctl_request *r = &h->beats.request;
    join.machine = request_str(r, h->machine);
    if (h->rack != NULL) join.rack = request_str(r, h->rack);
    join.version = request_str(r, tarn_version());
    link_send(h, &h->beats, WIRE_node_join, &join, join_answered, NULL);
}

/* --- up --- */

static void up_answered(struct tarn_host *h, const struct answer *a, void *arg, uint64_t sent_ms) {
    struct hosting_session *s = &h->session;
    s->asking_up = false;
    if (answer_is(a, TARN_ELATER)) {
        s->next_up_ms = now_ms() + answer_later_ms(a); /* fences are still to be confirmed */
        if (now_ms() < s->patient_until) return;
        s->patient_until = session_patience_until(s);
        if (give_up_lent(h, false))
            session_fail(h, TARN_ESTALE, "a segment has got new memory, and is mounted anew");
        return;
    }
    if (!session_accepts(h, a, "NODE UP")) return;
    s->phase = PHASE_UP;
    s->failures = 0;
    s->why[0] = s->told[0] = '\0';
    log_notice("Node %s is up at the master %s:%s: %u segments, data port %u", h->name,
               h->beats.ctl.host, h->beats.ctl.port, h->n_segments, host_data_port(h->host));
    hosting_opened(h, TARN_OK);
}

void session_mounted(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    s->phase = PHASE_MOUNTED;
    s->next_up_ms = 0;
    s->patient_until = session_patience_until(s);
    s->mounted_once = true;
}

static void up_ask(struct tarn_host *h, uint64_t now) {
    struct hosting_session *s = &h->session;
    if (now >= h->open_deadline) hosting_opened(h, TARN_OK); /* mounted is what was promised */
    if (s->asking_up || link_room(&h->reports) == 0) return;
    if (now < s->next_up_ms) {
        hosting_wake_at(h, s->next_up_ms);
        return;
    }
    s->asking_up = true;
    struct wire_node node = link_node(h, &h->reports);
    link_send(h, &h->reports, WIRE_node_up, &node, up_answered, NULL);
}

/* --- heartbeats --- */

/* How the master sees this node. */
static void take_standing(struct hosting_session *s, const struct answer *a) {
    uint64_t draining = 0, maintenance = 0;
    const struct answer *idle = answer_field(a, "evicted-idle");
    s->has_standing = a != NULL;
    s->evicted_idle_ms = idle != NULL && idle->type == ANSWER_INTEGER ? idle->integer : -1;
    s->map_epoch = 0;
    answer_u64(answer_field(a, "map-epoch"), &s->map_epoch);
    answer_u64(answer_field(a, "draining"), &draining);
    answer_u64(answer_field(a, "maintenance"), &maintenance);
    answer_u64(answer_field(a, "used"), &s->used);
    s->draining = draining != 0;
    s->maintenance = maintenance != 0;
}

/* It has a map, which it had not when this host was opened. */
static void tell_map(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    if (h->one_of_many || s->map_epoch == 0 || s->map_told) return;
    s->map_told = true;
    log_warning("The master of node %s has a slot map now: the node lends its memory to this "
                "master alone until it is started anew; NODE DRAIN %s before that saves what only "
                "this node has",
                h->name, h->name);
}

static void heartbeat_answered(struct tarn_host *h, const struct answer *a, void *arg,
                               uint64_t sent_ms) {
    struct hosting_session *s = &h->session;
    uint64_t master_ms, now = now_ms();
    s->beating = false;
    if (s->leave_sent && a != NULL && a->type == ANSWER_ERROR) {
        s->let_go = true;
        return;
    }
    if (!session_accepts(h, a, "NODE HEARTBEAT")) return;
    const struct answer *items = answer_at(a, 1);
    if (!answer_u64(answer_at(a, 0), &master_ms) || master_ms > CLOCK_MAX_MS || items == NULL ||
        items->type != ANSWER_ARRAY) {
        session_fail(h, TARN_EPROTO, "NODE HEARTBEAT: the answer of the master makes no sense");
        return;
    }
    /* it may have been changed; older masters do not tell */
    answer_u64(answer_at(a, 2), &s->max_lease_ms);
    take_standing(s, answer_at(a, 3));
    tell_map(h);
    h->figures.heartbeats++;
    hosting_clock_feed(&h->clock, master_ms, sent_ms, now);
    set_clock(h, now);
    s->next_beat_ms = items->len == 0 && now - sent_ms < IDLE_BEAT_MS ? sent_ms + IDLE_BEAT_MS : 0;
    for (size_t i = 0; i < items->len && s->phase != PHASE_LEFT; i++)
        work_item(h, &items->element[i]);
}

static void heartbeat_send(struct tarn_host *h, uint64_t now) {
    struct hosting_session *s = &h->session;
    if (s->beating || link_room(&h->beats) == 0) return;
    if (now < s->next_beat_ms) {
        hosting_wake_at(h, s->next_beat_ms);
        return;
    }
    struct wire_beat beat = {.node = link_node(h, &h->beats), .wait_ms = s->heartbeat_ms};
    if (s->last_fresh_ms == 0 || now - s->last_fresh_ms >= FRESH_EVERY_MS) {
        s->last_fresh_ms = now;
        beat.wait_ms = 0;
    }
    s->beating = true;
    if (s->last_stats_ms == 0 || now - s->last_stats_ms >= s->heartbeat_ms / 2) {
        s->last_stats_ms = now;
        beat.stats = stats_put(h, &h->beats);
        keys_report(h, &h->beats, &beat);
    }
    link_send_waiting(h, &h->beats, WIRE_node_heartbeat, &beat, beat.wait_ms, heartbeat_answered,
                      NULL);
}

/* --- leaving --- */

void session_left(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    if (s->leave_sent) { /* we wanted it */
        s->let_go = true;
        h->next_wake_ms = 0;
        return;
    }
    log_notice("Node %s has left the pool", h->name);
    s->phase = PHASE_LEFT;
    s->why[0] = '\0';
    /* closes the connections at the next turn */
    session_fail(h, TARN_ECLOSED, "the node has left the pool");
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct hosted *seg = &h->segments[i];
        if (seg->kind != HOSTED_FILE && seg->mounted)
            host_segment_retire(h->host, seg->slot, false);
        seg->mounted = false;
        seg->gone = true;
    }
    tasks_cancel(h, NULL);
    for (unsigned i = 0; i < h->n_fars; i++) offer_stop(&h->fars[i]);
    reports_forget(h);
    hosting_opened(h, fail(TARN_ECLOSED, "the master let the node go at once"));
}

/* That it was heard is all that matters; errors mean that there is nothing to drain or to leave. */
static void leave_answered(struct tarn_host *h, const struct answer *a, void *arg,
                           uint64_t sent_ms) {
    const char *what = arg;
    if (a != NULL && a->type == ANSWER_ERROR)
        log_warning("%s of node %s: the master says: %s", what, h->name, a->str);
}

static void leave_ask(struct tarn_host *h, enum wire_id id, const char *what) {
    struct wire_drain drain = {.name = link_node(h, &h->reports).name};
    link_send(h, &h->reports, id, &drain, leave_answered, (void *)(uintptr_t)what);
}

/* What callers of the public functions want; true: the thread may end. */
static bool session_obey(struct tarn_host *h, uint64_t now) {
    struct hosting_session *s = &h->session;
    pthread_mutex_lock(&h->mutex);
    bool wants_drain = h->drain_wanted;
    s->closing = h->closing;
    uint64_t deadline = h->close_deadline;
    pthread_mutex_unlock(&h->mutex);
    if (wants_drain && s->phase == PHASE_UP && !s->drain_sent && link_room(&h->reports) > 0) {
        s->drain_sent = true;
        leave_ask(h, WIRE_node_drain, "NODE DRAIN");
    }
    if (s->closing == CLOSE_NO) return false;
    if (s->closing == CLOSE_KEEP || !session_joined(s) || s->let_go || now >= deadline) return true;
    if (!s->leave_sent && link_room(&h->reports) > 0) {
        s->leave_sent = true; /* "leave" follows when the last lease on our segments is over */
        leave_ask(h, WIRE_node_leave, "NODE LEAVE");
    }
    hosting_wake_at(h, deadline);
    return false;
}

/* --- a turn --- */

/* Sentinels tell nobody; they have to be asked. */
static void look_turn(struct tarn_host *h, uint64_t now) {
    struct hosting_session *s = &h->session;
    if (!master_may_change(&h->master) || s->looking) return;
    if (now >= s->look_at) {
        s->looking = true;
        look_start(h, h->beats.ctl.host, h->beats.ctl.port);
    } else {
        hosting_wake_at(h, s->look_at);
    }
}

void session_looked(struct tarn_host *h, bool moved, const char *host, const char *port) {
    struct hosting_session *s = &h->session;
    s->looking = false;
    s->look_at = add_sat(now_ms(), LOOK_MS);
    if (moved && session_joined(s) && strcmp(h->beats.ctl.host, host) == 0 &&
        strcmp(h->beats.ctl.port, port) == 0)
        session_fail(h, TARN_ECLOSED, "the Sentinels say that %s:%s is not the master any more",
                     host, port);
}

bool session_turn(struct tarn_host *h) {
    struct hosting_session *s = &h->session;
    uint64_t now = now_ms();
    if (s->broken != TARN_OK) session_drop(h);
    if (session_obey(h, now)) return false;
    if (s->phase == PHASE_AWAY) {
        if (now < s->retry_at) {
            hosting_wake_at(h, s->retry_at);
        } else if (h->copies_out == 0 && s->opening == 0) { /* else their end wakes us */
            s->phase = PHASE_DIALING;
            dial_start(h);
        }
    }
    if (s->phase == PHASE_FENCING) fence_turn(h, now);
    if (s->phase == PHASE_MOUNTING) mount_turn(h);
    if (s->phase == PHASE_MOUNTED) up_ask(h, now);
    if (session_joined(s)) heartbeat_send(h, now);
    if (session_joined(s)) look_turn(h, now);
    if (s->broken != TARN_OK) h->next_wake_ms = 0;
    return true;
}
