#include "inband/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "cluster/cluster.h"
#include "config/config.h"
#include "config/tls.h"
#include "engine/placed.h"
#include "front/client.h"
#include "front/core.h"
#include "front/embedded.h"
#include "front/location.h"
#include "inband/own_memory.h"
#include "pool/tier.h"
#include "transport/transport.h"

#define REQUEST_MS UINT64_C(10000) /* a piece that takes longer has failed */
#define PATIENCE_MS                                                                                \
    UINT64_C(1500) /* with a host, while another one has the bytes or can take them */
#define ATTACH_MS                                                                                  \
    UINT64_C(                                                                                      \
        86400000) /* attach grants do not leave this process, but for the host that they are  \
                          for */
#define GRANT_MS      (REQUEST_MS + 5000)
#define BAD_MS        UINT64_C(5000) /* for so long a segment that did not answer goes last */
#define IDLE_MS       15000          /* a connection that was not used for so long is closed */
#define STALL_LOOK_MS 250
#define CLAIMS_MAX    65536u /* granted at a time */
#define JOBS_MAX      (2 * REMOTE_WINDOW * CLAIMS_MAX)

struct remote_stats remote_stats;
#define ROW(...) FIGURE_ROW(struct remote_stats, __VA_ARGS__)
const struct figure remote_stats_figures[] = {REMOTE_FIGURES(ROW){.name = NULL}};

static struct mover *mover;
static struct net_watch mover_watch;
static uint64_t read_session;
static bool ended; /* remote_deinit: nothing is begun any more */

/* --- the mover --- */

static void on_mover(void *arg, unsigned events) {
    core_stamp();
    mover_poll(mover);
}

static bool mover_ready(void) {
    if (mover != NULL || ended) return !ended;
    struct mover_config with = {.threads = (unsigned)config->inband_threads, .queue = JOBS_MAX};
    engine_config_init(&with.engine);
    with.engine.streams = 1; /* values come in pieces, which spread over threads */
    with.engine.idle_close_ms = IDLE_MS;
    with.engine.tls = config_tls_data_reach();
    if (mover_create(&with, &mover) != TARN_OK) return false;
    net_watch_init(&mover_watch, core_loop(), mover_event_fd(mover), on_mover, NULL);
    if (net_watch_set(&mover_watch, NET_READ) != TARN_OK) {
        mover_destroy(&mover);
        return false;
    }
    read_session = client_next_id();
    return true;
}

/* --- claims --- */

struct remote_claim {
    TAILQ_ENTRY(remote_claim) link;
    uint64_t bytes, client;
    uint64_t stalled_ms; /* since then, 0: it is not */
    unsigned refs;
    bool granted;
    void (*on_granted)(void *arg);
    void *arg;
};
TAILQ_HEAD(claim_list, remote_claim);
static struct claim_list waiting = TAILQ_HEAD_INITIALIZER(waiting),
                         granted = TAILQ_HEAD_INITIALIZER(granted);
static uint64_t claimed;
static size_t claims, claims_waiting;
static struct net_timer stall_timer;
static bool stall_timer_set_up;

uint64_t remote_window(uint64_t size) {
    return max_u64(min_u64(size, REMOTE_WINDOW * REMOTE_PIECE), REMOTE_CLAIM_MIN);
}

static bool claim_fits(const struct remote_claim *c) {
    return claims == 0 || (claims < CLAIMS_MAX && claimed + c->bytes <= config->inband_buffer);
}

static void claim_grant(struct remote_claim *c) {
    c->granted = true;
    claimed += c->bytes;
    claims++;
    TAILQ_INSERT_TAIL(&granted, c, link);
}

/* Somebody waits. A client that does not read what it asked for must not keep the others waiting
 * for ever. */
static void look_for_stalled(void *arg) {
    struct remote_claim *c;
    uint64_t limit_ms = config->inband_stall_timeout_ms;
    if (claims_waiting == 0) return;
    core_stamp();
    CLIENTS_EACH(a)
        if (a->io->away != NULL) client_away_look(a); /* what its thread has sent is given back */
    TAILQ_FOREACH(c, &granted, link) {
        if (c->stalled_ms == 0 || turn.mono_ms - c->stalled_ms < limit_ms) continue;
        struct client *client = client_find(c->client);
        if (client == NULL || client->io->flags & CLIENT_CLOSE_SOON) continue;
        log_warning("Client id=%llu closed: it has read nothing of a value for %llu ms, and others "
                    "wait for the buffers (inband-buffer, inband-stall-timeout)",
                    (unsigned long long)c->client, (unsigned long long)limit_ms);
        remote_stats.inband_stalled_clients++;
        client_close_soon(client);
    }
    net_timer_start(&stall_timer, STALL_LOOK_MS);
}

struct remote_claim *remote_claim_new(uint64_t bytes, uint64_t client,
                                      void (*on_granted)(void *arg), void *arg) {
    struct remote_claim *c = xcalloc(1, sizeof(*c));
    *c = (struct remote_claim){.bytes = max_u64(bytes, REMOTE_CLAIM_MIN),
                               .client = client,
                               .refs = 1,
                               .on_granted = on_granted,
                               .arg = arg};
    if (TAILQ_EMPTY(&waiting) && claim_fits(c)) {
        claim_grant(c);
        return c;
    }
    TAILQ_INSERT_TAIL(&waiting, c, link);
    remote_stats.inband_waits++;
    if (!stall_timer_set_up) net_timer_init(&stall_timer, core_loop(), look_for_stalled, NULL);
    stall_timer_set_up = true;
    if (claims_waiting++ == 0) net_timer_start(&stall_timer, STALL_LOOK_MS);
    return c;
}

bool remote_claim_granted(const struct remote_claim *claim) {
    return claim->granted;
}

struct remote_claim *remote_claim_ref(struct remote_claim *claim) {
    TARN_ASSERT(claim->granted);
    claim->refs++;
    return claim;
}

void remote_claim_unref(struct remote_claim **claim_p) {
    struct remote_claim *c = *claim_p;
    *claim_p = NULL;
    if (c == NULL || --c->refs > 0) return;
    if (c->granted) {
        TAILQ_REMOVE(&granted, c, link);
        claimed -= c->bytes;
        claims--;
    } else {
        TAILQ_REMOVE(&waiting, c, link);
        claims_waiting--;
    }
    free(c);
    while ((c = TAILQ_FIRST(&waiting)) != NULL && claim_fits(c)) {
        TAILQ_REMOVE(&waiting, c, link);
        claims_waiting--;
        claim_grant(c);
        c->on_granted(c->arg);
    }
}

void remote_claim_stalled(struct remote_claim *claim, bool on) {
    claim->stalled_ms = on ? max_u64(turn.mono_ms, 1) : 0;
}

/* --- sessions of writes --- */

static uint64_t idle_sessions[REMOTE_WRITES_MAX];
static size_t n_idle, n_taken;
static TAILQ_HEAD(, remote_session) session_queue = TAILQ_HEAD_INITIALIZER(session_queue);

static void session_begin(struct remote_session *s) {
    n_taken++;
    s->id = n_idle > 0 ? idle_sessions[--n_idle] : client_next_id();
}

bool remote_session_take(struct remote_session *s) {
    TARN_ASSERT(s->id == 0 && !TAILQ_LINKED(s, link));
    if (n_taken < REMOTE_WRITES_MAX)
        session_begin(s);
    else
        TAILQ_INSERT_TAIL(&session_queue, s, link);
    return s->id != 0;
}

void remote_session_give(struct remote_session *s, bool clean) {
    TAILQ_UNLINK(&session_queue, s, link);
    if (s->id == 0) return;
    if (clean) {
        idle_sessions[n_idle++] = s->id;
    } else {
        if (mover != NULL) mover_session_end(mover, s->id);
        store_session_closed(books, s->id);
    }
    s->id = 0;
    n_taken--;
    struct remote_session *next = TAILQ_TAKE(&session_queue, link);
    if (next == NULL) return;
    next->link.tqe_prev = NULL;
    session_begin(next);
    next->ready(next->arg);
}

/* --- ways to a segment --- */

/* All that a job borrows. */
struct remote_route {
    struct mover_job job;
    uint32_t segment_id;
    struct iovec iov;
    struct engine_segment segment;
    const struct engine_segment *segments[STORE_EXTENTS_MAX];
    struct engine_part part[STORE_EXTENTS_MAX];
    uint8_t grant[STORE_EXTENTS_MAX][GRANT_SIZE], attach[2][GRANT_SIZE];
    char *uri[CLUSTER_ENDPOINTS_MAX];
    struct cluster_key *key[CLUSTER_KEYS_MAX]; /* NULL: no more */
    char *file, *directory;                    /* of file replicas, else NULL */
};

static void route_free(struct remote_route *r) {
    for (size_t i = 0; i < CLUSTER_KEYS_MAX; i++) cluster_key_unref(&r->key[i]);
    for (size_t i = 0; i < CLUSTER_ENDPOINTS_MAX; i++) free(r->uri[i]);
    free(r->directory);
    free(r->file);
    free(r);
}

/* Anything but memory is read by its host, who asks for a grant each time. */
static struct engine_way *add_way(struct remote_route *r, const char *uri, bool memory) {
    const struct transport_ops *t = transport_find(uri);
    bool may = t != NULL && (memory || (t->flags & TRANSPORT_GRANTED) != 0);
    return may ? engine_segment_way(&r->segment, uri) : NULL;
}

/* Endpoints may change while a job is under way. Keys never do, so that it may look at them as long
 * as it has a reference. */
static bool set_ways(struct remote_route *r, const struct cluster_segment *cs, bool memory) {
    const struct cluster_key *keys[CLUSTER_KEYS_MAX];
    bool any = false;
    r->segment.same_host = strcmp(cs->machine, core_machine()) == 0;
    for (size_t i = 0; i < cs->n_endpoints; i++) {
        r->uri[i] = xstrdup(cs->endpoints[i]);
        any |= add_way(r, r->uri[i], memory) != NULL;
    }
    size_t n = memory ? cluster_segment_keys(r->segment.id, keys) : 0;
    for (size_t i = 0; i < n; i++) {
        struct engine_way *way = add_way(r, keys[i]->uri, memory);
        if (way == NULL) continue;
        r->key[i] = cluster_key_ref(keys[i]);
        for (int w = 0; w < 2; w++) way->key[w] = keys[i]->key[w];
        any = true;
    }
    return any;
}

static void set_attach(struct remote_route *r, uint64_t session) {
    struct grant_extent whole = {r->segment.id, r->segment.epoch, 0, r->segment.size};
    uint64_t end_ms = turn.mono_ms + ATTACH_MS;
    static const enum grant_op ops[] = {GRANT_ATTACH_READ, GRANT_ATTACH_WRITE};
    for (int w = 0; w < 2; w++)
        if (location_seal(ops[w], session, end_ms, &whole, r->attach[w]))
            r->segment.attach[w] = r->attach[w];
}

/* The parts of the replica's extents that hold [from, from + len), with a grant for each. */
static size_t set_parts(struct remote_route *r, const struct remote_op *op, uint64_t session,
                        uint64_t end_ms) {
    struct engine_part all[STORE_EXTENTS_MAX];
    for (uint32_t i = 0; i < op->replica->extents; i++) {
        const struct store_extent *x = &op->replica->extent[i];
        all[i].extent = (struct grant_extent){x->segment, x->segment_epoch, x->offset, x->length};
    }
    size_t n = placed_parts(all, op->replica->extents, op->from, op->len, r->part);
    for (size_t i = 0; i < n; i++) {
        r->segments[i] = &r->segment;
        r->part[i].grant = r->grant[i];
        if (!location_seal(op->write ? GRANT_WRITE : GRANT_READ, session, end_ms,
                           &r->part[i].extent, r->grant[i]))
            return 0;
    }
    return n;
}

static tarn_status route_to_file(struct remote_route *r, const struct remote_op *op,
                                 const struct cluster_segment *cs) {
    char name[160];
    if (cs->directory == NULL || op->write) return TARN_ENOSEGMENT;
    tier_file_path(op->key, op->version, name, sizeof(name));
    r->directory = xstrdup(cs->directory);
    size_t room = strlen(cs->directory) + sizeof(name) + 1;
    r->file = xmalloc(room);
    snprintf(r->file, room, "%s/%s", cs->directory, name);
    r->job.file_path = r->file;
    r->job.file_root = r->directory;
    r->job.file_offset = op->from;
    return TARN_OK;
}

static tarn_status route_set(struct remote_route *r, const struct remote_op *op) {
    const struct store_extent *first = &op->replica->extent[0];
    struct cluster_segment cs;
    struct store_segment_info info;
    if (!cluster_segment_get(first->segment, &cs) ||
        !store_segment_get(books, first->segment, &info) || info.epoch != first->segment_epoch)
        return TARN_ENOSEGMENT;
    if (op->replica->tier == STORE_TIER_FILE) return route_to_file(r, op, &cs);
    uint64_t session = op->write ? op->session : read_session;
    r->segment = (struct engine_segment){.id = info.id, .epoch = info.epoch, .size = info.size};
    bool memory = op->replica->tier == STORE_TIER_MEMORY;
    if (!set_ways(r, &cs, memory)) return TARN_ENOSEGMENT;
    if (memory) set_attach(r, session);
    r->job.session = session;
    r->job.segments = r->segments;
    r->job.op.parts = r->part;
    r->job.op.n_parts =
        set_parts(r, op, session, op->write ? op->grant_end_ms : turn.mono_ms + GRANT_MS);
    return r->job.op.n_parts > 0 ? TARN_OK : TARN_ENOSEGMENT;
}

/* --- segments that did not answer --- */

static uint64_t *bad_until; /* by id */
static uint32_t n_bad;

static void set_bad(uint32_t id, uint64_t until_ms) {
    if (id >= n_bad) {
        if (until_ms == 0) return;
        uint32_t n = (uint32_t)max_u64(id + 1, store_segment_limit(books));
        bad_until = xrealloc(bad_until, n * sizeof(*bad_until));
        memset(bad_until + n_bad, 0, (n - n_bad) * sizeof(*bad_until));
        n_bad = n;
    }
    bad_until[id] = until_ms;
}

/* A host that does not answer for one of its segments will not for the others. */
static void host_is_silent(uint32_t id) {
    uint64_t until_ms = turn.mono_ms + BAD_MS;
    struct cluster_segment cs;
    struct cluster_node *node = NULL;
    set_bad(id, until_ms);
    if (cluster_segment_get(id, &cs)) node = cluster_node_find(span_str(cs.node));
    if (node == NULL) return;
    struct cluster_node_info info;
    cluster_node_get(node, &info);
    for (size_t i = 0; i < info.n_segments; i++) set_bad(info.segments[i], until_ms);
}

bool remote_is_silent(uint32_t segment) {
    return segment < n_bad && bad_until[segment] > turn.mono_ms;
}

size_t remote_avoid(struct span names[REMOTE_AVOID_MAX]) {
    static char text[REMOTE_AVOID_MAX][64];
    struct store_segment_info info;
    size_t n = 0;
    for (uint32_t id = 0; id < n_bad && n < REMOTE_AVOID_MAX; id++) {
        if (!remote_is_silent(id) || !store_segment_get(books, id, &info)) continue;
        if (info.tier != STORE_TIER_MEMORY || info.state != SEGMENT_UP) continue;
        memcpy(text[n], info.name, sizeof(text[n]));
        names[n] = span_str(text[n]);
        n++;
    }
    return n;
}

void remote_order(struct store_layout *layout) {
    if (layout->replicas < 2) return;
    cluster_order(layout, 0, span_of(NULL, 0));
    for (uint32_t i = 1; i < layout->replicas && embedded.host != NULL; i++) {
        if (!replica_is_local(&layout->replica[i])) continue;
        struct store_replica local = layout->replica[i];
        memmove(&layout->replica[1], &layout->replica[0], i * sizeof(local));
        layout->replica[0] = local;
    }
}

/* --- transfers --- */

/* It says something about the host, not about the bytes or the right to them. */
static bool is_silence(tarn_status s) {
    return s == TARN_ECLOSED || s == TARN_ETIMEOUT || s == TARN_EPROTO || s == TARN_ELEASE;
}

static void on_moved(struct mover_job *job) {
    struct remote_op *op = job->arg;
    struct remote_route *r = op->route;
    tarn_status status = job->op.status;
    op->route = NULL;
    op->crc = job->op.crc;
    op->settled = job->op.settled;
    if (status == TARN_OK) {
        set_bad(r->segment_id, 0);
        hist_add(op->write ? &remote_stats.write : &remote_stats.read,
                 clock_mono_ns() - op->began_ns);
        if (job->file_path == NULL) remote_stats.bytes_by[job->op.used] += op->len;
        op->write ? (remote_stats.inband_writes++, remote_stats.inband_write_bytes += op->len)
                  : (remote_stats.inband_reads++, remote_stats.inband_read_bytes += op->len);
    } else if (status != TARN_ECANCELED) {
        remote_stats.inband_failures++;
        if (is_silence(status)) host_is_silent(r->segment_id);
        log_verbose("A transfer of %llu bytes %s segment %u: %s", (unsigned long long)op->len,
                    op->write ? "to" : "from", r->segment_id, tarn_status_text(status));
    }
    route_free(r);
    op->done(op, status);
}

/* Hosts wait max-lease before they use the space of a far replica again that they have announced to
 * be gone. Memory is held. */
static uint64_t lease_end_boot_ms(const struct remote_op *op) {
    if (op->replica->tier == STORE_TIER_MEMORY) return 0;
    uint64_t ms = store_config(books)->max_lease_ms;
    return clock_boot_ms() + ms - ms / 1000 - 1;
}

tarn_status remote_start(struct remote_op *op) {
    TARN_ASSERT(op->route == NULL && op->len > 0 && op->replica->extents > 0);
    if (!mover_ready()) return TARN_ENOMEM;
    struct remote_route *r = xcalloc(1, sizeof(*r));
    tarn_status status = route_set(r, op);
    if (status == TARN_OK) {
        r->segment_id = op->replica->extent[0].segment;
        r->iov = (struct iovec){op->memory, op->len};
        r->job.op.write = op->write;
        r->job.op.iov = op->memory != NULL ? &r->iov : op->iov;
        r->job.op.n_iov = op->memory != NULL ? 1 : op->n_iov;
        r->job.op.want_crc = op->sum;
        r->job.op.patience_ms = op->hurry ? PATIENCE_MS : 0;
        r->job.op.lease_end_boot_ms = op->write ? 0 : lease_end_boot_ms(op);
        r->job.op.settled = true;
        r->job.deadline_boot_ms = clock_boot_ms() + REQUEST_MS;
        r->job.done = on_moved;
        r->job.arg = op;
        op->route = r;
        op->settled = true;
        op->began_ns = clock_mono_ns();
        status = mover_submit(mover, &r->job);
    }
    if (status != TARN_OK) {
        op->route = NULL;
        route_free(r);
    }
    return status;
}

void remote_cancel(struct remote_op *op) {
    if (op->route != NULL) mover_cancel(mover, &op->route->job);
}

/* --- the end --- */

void remote_deinit(void) {
    ended = true;
    if (mover != NULL) net_watch_set(&mover_watch, 0);
    mover_destroy(&mover);
    if (stall_timer_set_up) net_timer_stop(&stall_timer);
    stall_timer_set_up = false;
    TARN_ASSERT(claims == 0 && claims_waiting == 0 && n_taken == 0);
    n_idle = 0;
    free(bad_until);
    bad_until = NULL;
    n_bad = 0;
    ended = false;
}

void remote_get_figures(struct remote_figures *f) {
    *f = (struct remote_figures){.claimed = claimed,
                                 .claims = claims,
                                 .claims_waiting = claims_waiting,
                                 .sessions = n_taken};
    if (mover != NULL) mover_get_stats(mover, &f->mover);
}
