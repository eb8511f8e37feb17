/* Lanes: a control connection and an engine that one thread uses at a time; their pool; how they
 * connect, reconnect and back off.
 *
 *   lane_create ─> (lane_take ─> lane_ready ─> requests ... ─> lane_give)* ─> lane_destroy */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/errors.h"
#include "base/log.h"
#include "client/client.h"
#include "client/lane.h"

/* --- its engine --- */

static struct tls_context *tls_context_of(void *arg) {
    const struct lane *lane = arg;
    return secure_take(&lane->client->master.secure.context);
}

static void tls_failed(void *arg, const char *uri, const char *why) {
    struct lane *lane = arg;
    snprintf(lane->no_tls, sizeof(lane->no_tls), " (TLS with %.150s: %s)", uri, why);
}

static tarn_status open_engine(struct lane *lane) {
    const struct tarn_client *client = lane->client;
    struct engine_config config;
    engine_config_init(&config);
    config.transport = client->only;
    config.streams = client->options.streams;
    config.busy_poll_us = client->options.busy_poll_us;
    config.connect_timeout_ms = client->options.connect_timeout_ms;
    config.attach_timeout_ms = client->options.failover_ms;
    lane->tls =
        (struct transport_tls){.arg = lane, .context = tls_context_of, .failed = tls_failed};
    if (client->master.secure.on) config.tls = &lane->tls;
    struct engine *engine;
    tarn_status status = engine_create(&config, &engine);
    if (status != TARN_OK)
        return fail(status, "cannot set up the data engine: %s", tarn_status_text(status));
    lane->ref = xcalloc(1, sizeof(*lane->ref));
    *lane->ref = (struct engine_ref){.engine = engine, .users = 1};
    lane->engine = engine;
    lane->n_registered = 0;
    lane->registered_seen = 0;
    return TARN_OK;
}

void engine_ref_drop(struct engine_ref **ref_p) {
    struct engine_ref *ref = *ref_p;
    *ref_p = NULL;
    if (ref == NULL || --ref->users > 0) return;
    engine_destroy(&ref->engine);
    free(ref);
}

struct lane *lane_create(struct tarn_client *client, tarn_status *status_p) {
    struct lane *lane = xcalloc(1, sizeof(*lane));
    request_init(&lane->request, &lane->ctl, &lane->arena);
    lane->client = client;
    lane->registered = xcalloc(REGISTER_MAX, sizeof(*lane->registered));
    ctl_init(&lane->ctl);
    spin_set(&lane->ctl.spin, client->options.busy_poll_us);
    rng_seed(&lane->rng, clock_mono_ns() ^ (uint64_t)(uintptr_t)lane);
    lane->window = client->options.piece_bytes;
    *status_p = open_engine(lane);
    if (*status_p == TARN_OK) return lane;
    free(lane->registered);
    free(lane);
    return NULL;
}

void lane_destroy(struct lane **lane_p) {
    struct lane *lane = *lane_p;
    if (lane == NULL) return;
    engine_ref_drop(&lane->ref);
    if (lane->ctl.fd >= 0 && lane->client->pid == getpid())
        ctl_flush(&lane->ctl); /* leases that were left; not of a forked child */
    ctl_close(&lane->ctl);
    arena_free(&lane->arena);
    segment_free_all(lane);
    free(lane->registered);
    request_deinit(&lane->request);
    free(lane);
    *lane_p = NULL;
}

/* --- the pool --- */

/* The lane this thread used last, else any. */
static struct lane *free_lane(struct tarn_client *client) {
    struct lane *any = NULL;
    pthread_t self = pthread_self();
    for (size_t i = 0; i < client->n_lanes; i++) {
        struct lane *lane = client->lanes[i];
        if (lane->busy) continue;
        if (pthread_equal(lane->last_user, self)) return lane;
        if (any == NULL) any = lane;
    }
    return any;
}

static tarn_status wait_for_lane(struct tarn_client *client, struct call_trace *trace,
                                 uint64_t deadline) {
    uint64_t now = now_ms();
    if (now >= deadline) {
        return fail(TARN_ETIMEOUT, "all %u lanes are busy (raise max_lanes)",
                    client->options.max_lanes);
    }
    uint64_t began_ns = trace != NULL && trace->spans ? clock_mono_ns() : 0;
    (void)thread_cond_wait(&client->freed, &client->mutex, deadline - now);
    if (began_ns != 0) trace_stage_of(trace, "lane", began_ns);
    return TARN_OK;
}

static bool registered_has(const struct engine_buffer *list, size_t n, uint64_t identity) {
    for (size_t i = 0; i < n; i++) {
        if (list[i].identity == identity) return true;
    }
    return false;
}

/* Tells the lane's engine what was registered and unregistered since it was last used. Under the
 * client's mutex. */
void lane_sync_registered(struct lane *lane) {
    struct tarn_client *client = lane->client;
    if (lane->registered_seen == client->registered_gen) return;
    for (size_t i = 0; i < lane->n_registered;) {
        if (registered_has(client->registered, client->n_registered,
                           lane->registered[i].identity)) {
            i++;
            continue;
        }
        engine_unregister(lane->engine, lane->registered[i].address);
        lane->registered[i] = lane->registered[--lane->n_registered];
    }
    for (size_t i = 0; i < client->n_registered; i++) {
        const struct engine_buffer *r = &client->registered[i];
        if (registered_has(lane->registered, lane->n_registered, r->identity)) continue;
        /* Slower without, not wrong; and of a device's the engine knows all the same that nobody
         * but a NIC may touch it. */
        tarn_status status = engine_register(lane->engine, r);
        if (status != TARN_OK && status != TARN_ENOTSUP) continue;
        lane->registered[lane->n_registered++] = *r;
    }
    lane->registered_seen = client->registered_gen;
}

tarn_status lane_take(struct tarn_client *client, struct call_trace *trace, uint64_t deadline,
                      struct lane **lane_p) {
    tarn_status status = TARN_OK;
    if (trace != NULL && !trace->on) trace = NULL;
    pthread_mutex_lock(&client->mutex);
    struct lane *lane;
    while ((lane = free_lane(client)) == NULL && status == TARN_OK) {
        if (client->n_lanes < client->options.max_lanes) {
            lane = lane_create(client, &status);
            if (lane == NULL) break;
            client->lanes[client->n_lanes++] = lane;
            break;
        }
        status = wait_for_lane(client, trace, deadline);
    }
    if (lane != NULL) {
        status = TARN_OK;
        lane->busy = true;
        lane->trace = trace;
        lane->no_tls[0] = '\0';
        lane->last_user = pthread_self();
        lane_sync_registered(lane);
    }
    pthread_mutex_unlock(&client->mutex);
    if (lane != NULL) *lane_p = lane;
    return status;
}

/* --- grants --- */

/* A place that had to be asked for twice costs a turn: not more often than this. */
#define GRANTS_MS 60000u

void lane_needs_grants(struct lane *lane) {
    lane->no_grant = false;
    lane->grants_until_ms = now_ms() + GRANTS_MS;
}

static bool slot_is_granted(unsigned slot) {
    const char *scheme = transport_name(slot);
    const struct transport_ops *t = scheme != NULL ? transport_find(scheme) : NULL;
    return t == NULL || (t->flags & TRANSPORT_GRANTED) != 0;
}

/* By the transports that its call has moved bytes by (bits, by slot), though it had grants. */
static void lane_learn_ways(struct lane *lane, uint32_t used) {
    bool granted = false;
    for (unsigned i = 0; i < TRANSPORTS_MAX; i++) granted |= used >> i & 1 && slot_is_granted(i);
    if (granted)
        lane_needs_grants(lane);
    else
        lane->no_grant = now_ms() >= lane->grants_until_ms;
}

static void copy_engine_stats(struct lane *lane) {
    struct engine_stats s;
    uint32_t used = 0;
    _Static_assert(TRANSPORTS_MAX <= 32, "a bit for each");
    engine_get_stats(lane->engine, &s);
    for (unsigned i = 0; i < TRANSPORTS_MAX; i++) {
        uint64_t before =
            lane->counters.transport[i].bytes_read + lane->counters.transport[i].bytes_written;
        if (s.bytes_read[i] + s.bytes_written[i] != before) used |= UINT32_C(1) << i;
        COUNT(lane, transport[i].bytes_read,
              s.bytes_read[i] - lane->counters.transport[i].bytes_read);
        COUNT(lane, transport[i].bytes_written,
              s.bytes_written[i] - lane->counters.transport[i].bytes_written);
    }
    if (used != 0 && !lane->no_grant && lane->numbers.no_grant) lane_learn_ways(lane, used);
}

void lane_give(struct lane *lane) {
    struct tarn_client *client = lane->client;
    arena_reset(&lane->arena);
    lane->trace = NULL;
    lane->asking = lane->ctl.asking = false;
    copy_engine_stats(lane);
    pthread_mutex_lock(&client->mutex);
    if (lane->n_registered > 0) lane_sync_registered(lane);
    lane->busy = false;
    pthread_cond_signal(&client->freed);
    pthread_mutex_unlock(&client->mutex);
}

/* --- requests --- */

#define CHUNK_MIN_KEYS 128u
#define CHUNK_MAX_KEYS 512u

size_t lane_chunk_keys(const struct lane *lane, size_t n) {
    size_t share = n / 4 + 1;
    if (share < CHUNK_MIN_KEYS) share = CHUNK_MIN_KEYS;
    if (share > CHUNK_MAX_KEYS) share = CHUNK_MAX_KEYS;
    return share < lane->client->options.batch_keys ? share : lane->client->options.batch_keys;
}

tarn_status lane_send(struct lane *lane, bool skip) {
    if (UNLIKELY(lane->trace != NULL)) trace_sends(lane);
    tarn_status status = ctl_commit(&lane->ctl, skip);
    if (status == TARN_OK) COUNT(lane, requests, 1);
    return status;
}

void lane_leave(struct lane *lane) {
    if (UNLIKELY(lane->trace != NULL)) trace_sends(lane);
    if (ctl_leave(&lane->ctl) == TARN_OK) COUNT(lane, requests, 1);
}

#define SILENT_MS 1000u

/* A master that is silent may be paused, or cut off, while another one is the master. */
static tarn_status answer_await(struct lane *lane, struct answer **answer_p, uint64_t deadline) {
    struct ctl *c = &lane->ctl;
    while (master_may_change(&lane->client->master)) {
        uint64_t until = add_sat(now_ms(), SILENT_MS);
        if (until >= deadline) break;
        tarn_status status = ctl_await(c, &lane->arena, answer_p, until);
        if (status != TARN_ETIMEOUT) return status;
        if (!master_moved(&lane->client->master, &lane->at)) continue;
        status = fail(TARN_ECLOSED, "%s does not answer, and is not the master any more", c->what);
        ctl_close(c);
        return status;
    }
    return ctl_receive(c, &lane->arena, answer_p, deadline);
}

tarn_status lane_receive(struct lane *lane, struct answer **answer_p, uint64_t deadline) {
    uint64_t started = clock_mono_us(), began_ns = trace_moment(lane);
    tarn_status status = answer_await(lane, answer_p, deadline);
    trace_answered(lane, began_ns, status);
    COUNT(lane, round_trips, 1);
    if (status == TARN_ETIMEOUT) COUNT(lane, timeouts, 1);
    if (status == TARN_OK) hist_add(&lane->hist[TARN_HIST_REQUEST], clock_mono_us() - started);
    return status;
}

tarn_status lane_check(struct lane *lane, const struct answer *a, const char *what) {
    lane->later_ms = answer_later_ms(a);
    return answer_check(a, what);
}

tarn_status lane_call(struct lane *lane, struct answer **answer_p, uint64_t deadline) {
    const char *what = lane->ctl.begun;
    struct answer *a;
    tarn_status status = lane_send(lane, false);
    if (status == TARN_OK) status = lane_receive(lane, &a, deadline);
    if (status == TARN_OK) status = lane_check(lane, a, what);
    if (status == TARN_OK) *answer_p = a;
    return status;
}

tarn_status lane_ping(struct lane *lane, uint64_t deadline) {
    struct answer *a;
    ctl_words(&lane->ctl, "PING", 1, (const char *[]){"PING"}, NULL);
    return lane_call(lane, &a, deadline);
}

void lane_report(struct lane *lane, const void *key, size_t key_len, uint64_t version) {
    if (lane->ctl.fd < 0) return;
    request_begin(&lane->request);
    struct wire_report report = {.key = request_word(&lane->request, key, key_len),
                                 .version = version};
    request_build(&lane->request, WIRE_replica_report, &report);
    if (lane_send(lane, true) == TARN_OK) COUNT(lane, replica_reports, 1);
}

/* --- connecting --- */

/* One round trip: who we are, and whether this is a tarn server. */
static tarn_status lane_greet(struct lane *lane, uint64_t deadline) {
    const struct tarn_client *client = lane->client;
    const struct greeting g = {.info = {{"tarn-host", client->own_host},
                                        {"tarn-rack", client->options.rack},
                                        {"LIB-NAME", "libtarn"},
                                        {"LIB-VER", tarn_version()},
                                        {"tarn-node", client->node}},
                               .n_info = 5,
                               .map_epoch = master_map_epoch(&client->master),
                               .name = client->options.name,
                               .role = master_may_change(&client->master),
                               .last = {"INFO", "server"},
                               .whom = "server"};
    struct answer *a;
    tarn_status status = ctl_greet(&lane->ctl, &lane->arena, &client->options, &g, deadline, &a);
    if (status != TARN_OK) return status;
    if (a->type == ANSWER_STRING && strstr(a->str, "tarn_version:") == NULL) {
        return fail(TARN_EPROTO, "%s:%s is not a tarn server (check host and port)", lane->ctl.host,
                    lane->ctl.port);
    }
    lane->numbers = server_numbers(a);
    if (master_may_change(&lane->client->master))
        status = master_check_epoch(&lane->client->master, master_epoch_of(a), lane->ctl.host,
                                    lane->ctl.port);
    return status == TARN_OK && lane->numbers.near ? ctl_go_near(&lane->ctl, &lane->arena, deadline)
                                                   : status;
}

/* Grants belong to the session of a connection: those of the old one, and its data connections, are
 * over. Its writable mappings go too, so while somebody writes in place the lane leaves him the
 * engine and gets a new one. */
static tarn_status change_session(struct lane *lane) {
    tarn_status status = TARN_OK;
    if (lane->ref->writers > 0) {
        struct engine_ref *old = lane->ref;
        status = open_engine(lane);
        if (status != TARN_OK) return status;
        engine_ref_drop(&old);
    } else if (lane->connected_before) {
        engine_session_changed(lane->engine);
    }
    segment_forget_all(lane);
    return status;
}

static tarn_status lane_connect(struct lane *lane, uint64_t deadline) {
    struct tarn_client *client = lane->client;
    uint64_t limit = min_u64(deadline, add_sat(now_ms(), client->options.connect_timeout_ms));
    struct address *at = &lane->at;
    *at = (struct address){.host = ""};
    tarn_status status = master_find(&client->master, limit, at);
    if (status == TARN_OK)
        status = ctl_open(&lane->ctl, &client->master.secure, at->host, at->port, limit);
    if (status != TARN_OK) {
        master_asked(&client->master, at);
        return status;
    }
    status = change_session(lane);
    if (status != TARN_OK) {
        ctl_close(&lane->ctl);
        return status;
    }
    COUNT(lane, connects, 1);
    if (lane->connected_before) COUNT(lane, reconnects, 1);
    lane->connected_before = true;
    status = lane_greet(lane, limit);
    if (status == TARN_OK) {
        lane->master_number = master_met(&client->master, at);
        if (master_may_change(&client->master)) scout_rest(client->master.scouts);
        return TARN_OK;
    }
    master_asked(&client->master, at);
    ctl_close(&lane->ctl);
    return status;
}

void lane_tell_trace(struct lane *lane) {
    const char *said = lane->trace != NULL ? lane->trace->told.text : "";
    if (UNLIKELY(lane->trace != NULL || lane->ctl.trace.text[0] != '\0'))
        ctl_tell_trace(&lane->ctl, said);
}

tarn_status lane_ready(struct lane *lane, uint64_t deadline) {
    const struct whereabouts *master = &lane->client->master;
    if (lane->ctl.fd >= 0 && master_may_change(master) &&
        master_is_other(master, lane->master_number))
        ctl_close(&lane->ctl);
    if (lane->ctl.fd < 0) {
        uint64_t began_ns = trace_moment(lane);
        tarn_status status = lane_connect(lane, deadline);
        trace_connected(lane, began_ns, status);
        if (status != TARN_OK) return status;
    }
    lane_tell_trace(lane);
    lane->ctl.asking = lane->asking;
    return TARN_OK;
}

#define FAILOVER_TRIES    1000u
#define FAILOVER_PAUSE_MS 100u
#define QUICK_MS          15u
#define QUICK_TRIES       6u
#define LATER_MS          500u /* the longest pause where the server does not say how long */

/* --- retries --- */

/* scouts: or until they have found who leads. */
static void lane_sleep(struct lane *lane, uint64_t ms, bool scouts) {
    struct tarn_client *client = lane->client;
    struct call_trace *trace = lane->trace;
    uint64_t began_ns = trace_moment(lane);
    lane->trace = NULL; /* others may have the lane meanwhile */
    if (lane->held != NULL) pthread_mutex_unlock(lane->held);
    if (scouts)
        scout_wait(&client->master, &client->options, now_ms() + ms);
    else
        poll(NULL, 0, (int)ms);
    if (lane->held != NULL) pthread_mutex_lock(lane->held);
    lane->trace = trace;
    trace_stage_add(lane, "pause", began_ns);
}

bool lane_pause(struct lane *lane, unsigned made, uint64_t deadline) {
    const tarn_options *o = &lane->client->options;
    uint64_t pause = min_u64(o->backoff_min_ms << (made < 16 ? made : 16), o->backoff_max_ms);
    bool follows = master_may_change(&lane->client->master);
    if (follows) pause = min_u64(pause, FAILOVER_PAUSE_MS);
    pause = pause / 2 + rng_below(&lane->rng, pause / 2 + 1);
    if (now_ms() + pause >= deadline) return false;
    lane_sleep(lane, pause, follows && lane->ctl.fd < 0);
    return true;
}

bool lane_later(struct lane *lane, unsigned made, uint64_t ms, uint64_t deadline) {
    const tarn_options *o = &lane->client->options;
    if (o->retries == 0) return false;
    COUNT(lane, retries, 1);
    if (ms == 0 && master_may_change(&lane->client->master)) {
        /* A failover: nodes come one after the other, most of them at once. */
        unsigned shift = made < QUICK_TRIES ? 0 : made - QUICK_TRIES;
        ms = min_u64((uint64_t)QUICK_MS << (shift < 16 ? shift : 16), FAILOVER_PAUSE_MS);
    } else if (ms == 0) {
        ms = min_u64(o->backoff_min_ms << (made < 16 ? made : 16), LATER_MS);
    }
    ms += rng_below(&lane->rng, ms / 4 + 1); /* or all who were told so come at once */
    if (deadline != DEADLINE_NONE && now_ms() + ms >= deadline) return false;
    lane_sleep(lane, ms, false);
    return true;
}

bool lane_retry(struct lane *lane, struct attempts *attempts, tarn_status status,
                uint64_t deadline) {
    const tarn_options *o = &lane->client->options;
    bool follows = master_may_change(&lane->client->master);
    uint64_t later_ms = lane->later_ms;
    unsigned limit = o->retries;
    lane->later_ms = 0;
    if (status == TARN_EREADONLY) ctl_close(&lane->ctl);
    switch (error_act(status)) {
    case ERROR_FINAL:
    case ERROR_TURN: return false;
    case ERROR_LATER: return lane_later(lane, attempts->later++, later_ms, deadline);
    case ERROR_ONCE:
        if (attempts->made >= min_u64(limit, 1)) return false;
        break;
    case ERROR_ELSEWHERE:
        if (!follows) return false;
        /* fall through */
    case ERROR_PAUSE:
        /* A failover takes longer than a few tries; the call's deadline bounds it. */
        if (follows && limit > 0) limit = FAILOVER_TRIES;
        if (attempts->made >= limit || !lane_pause(lane, attempts->made, deadline)) return false;
    }
    attempts->made++;
    COUNT(lane, retries, 1);
    return true;
}

tarn_status lane_run(struct lane *lane, uint64_t deadline, lane_fn fn, void *arg) {
    struct attempts attempts = {0};
    char before[256] = "";
    for (;;) {
        tarn_status status = lane_ready(lane, deadline);
        if (status == TARN_OK && fn != NULL) status = fn(lane, arg, deadline);
        if (status == TARN_OK) return status;
        /* A try that the deadline cuts off knows less than the one before it. */
        if (now_ms() >= deadline && before[0] != '\0')
            return fail(status, "%s; the try before said: %s", tarn_last_error(), before);
        snprintf(before, sizeof(before), "%s", tarn_last_error());
        if (!lane_retry(lane, &attempts, status, deadline)) return status;
    }
}
