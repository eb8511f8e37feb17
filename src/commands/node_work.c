/* NODE HEARTBEAT, FENCED, DONE, EVICTED, OFFER: what the master asks of nodes, and what they
 * answer. */
#include "front/families.h"
#include "front/location.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "config/config.h"
#include "front/each.h"
#include "front/shard.h"
#include "commands/alarms.h"
#include "commands/nodes.h"
#include "wire/options.h"

static_assert(WIRE_STATS_MAX == CLUSTER_NODE_STATS_MAX, "what is bound fits");
enum { ITEMS_MAX = 64 }; /* of one answer */

/* --- HEARTBEAT: work items --- */

static void reply_extents(struct client *c, const struct store_replica *r) {
    reply_array(c, r->extents);
    for (uint32_t i = 0; i < r->extents; i++) {
        reply_array(c, 2);
        reply_int(c, (int64_t)r->extent[i].offset);
        reply_int(c, (int64_t)r->extent[i].length);
    }
}

static void reply_crcs(struct client *c, const struct cluster_work *w) {
    if (w->n_crcs == 0) {
        reply_null(c);
        return;
    }
    unsigned char *packed = xmalloc(w->n_crcs * sizeof(uint32_t));
    for (size_t i = 0; i < w->n_crcs; i++)
        for (unsigned b = 0; b < 4; b++) packed[i * 4 + b] = (unsigned char)(w->crcs[i] >> (8 * b));
    reply_bulk(c, span_of(packed, w->n_crcs * sizeof(uint32_t)));
    free(packed);
}

static void reply_object(struct client *c, const struct cluster_work *w) {
    reply_int(c, (int64_t)w->task);
    reply_bulk(c, w->key);
    reply_int(c, (int64_t)w->version);
    reply_int(c, (int64_t)w->size);
}

static void reply_work(struct client *c, const struct cluster_work *w) {
    switch (w->kind) {
    case CLUSTER_WORK_FENCE:
        reply_array(c, 3);
        reply_bulk_str(c, "fence");
        reply_int(c, (int64_t)w->session);
        reply_int(c, (int64_t)location_session_grants_ms(w->session));
        break;
    case CLUSTER_WORK_COPY:
        reply_array(c, 7);
        reply_bulk_str(c, "copy");
        reply_object(c, w);
        reply_int(c, w->at.extent[0].segment);
        reply_extents(c, &w->at);
        break;
    case CLUSTER_WORK_STORE:
        reply_array(c, 12);
        reply_bulk_str(c, "store");
        reply_object(c, w);
        reply_int(c, w->crc);
        reply_crcs(c, w);
        reply_int(c, w->at.extent[0].segment);
        reply_int(c, w->at.extent[0].segment_epoch);
        reply_extents(c, &w->at);
        reply_int(c, w->far);
        reply_int(c, w->prompt);
        break;
    case CLUSTER_WORK_DROP:
        reply_array(c, 3 + 2 * w->n_drops);
        reply_bulk_str(c, "drop");
        reply_int(c, w->far);
        reply_int(c, (int64_t)w->n_drops);
        for (size_t i = 0; i < w->n_drops; i++) {
            reply_int(c, (int64_t)w->drops[i].version);
            reply_int(c, (int64_t)w->drops[i].offset);
        }
        break;
    case CLUSTER_WORK_UNMOUNT:
        reply_array(c, 3);
        reply_bulk_str(c, "unmount");
        reply_int(c, w->segment);
        reply_int(c, w->epoch);
        break;
    case CLUSTER_WORK_LEAVE:
        reply_array(c, 1);
        reply_bulk_str(c, "leave");
        break;
    case CLUSTER_WORK_CANCEL:
        reply_array(c, 2);
        reply_bulk_str(c, "cancel");
        reply_int(c, (int64_t)w->task);
        break;
    }
}

/* --- HEARTBEAT: the job --- */

struct beat_job {
    struct job job;
    struct cluster_waiter waiter;
};

static void beat_woken(struct cluster_waiter *waiter) {
    job_wake(&CONTAINER_OF(waiter, struct beat_job, waiter)->job);
}

/* How the master sees it: {draining, maintenance, used, evicted-idle, map-epoch}. The last two are
 * what a node of many masters goes by: who of them needs memory most, and whether there are
 * others. */
static void reply_standing(struct client *c, const struct cluster_node *n) {
    struct cluster_node_info info;
    struct store_segment_info s;
    uint64_t used = 0;
    cluster_node_get(n, &info);
    for (size_t i = 0; i < info.n_segments; i++)
        if (store_segment_get(books, info.segments[i], &s) && s.tier == STORE_TIER_MEMORY)
            used += s.used;
    reply_map(c, 5);
    reply_bulk_str(c, "draining");
    reply_int(c, info.draining);
    reply_bulk_str(c, "maintenance");
    reply_int(c, info.maintenance);
    reply_bulk_str(c, "used");
    reply_int(c, (int64_t)used);
    reply_bulk_str(c, "evicted-idle");
    reply_int(c, alarms_evicted_idle_ms());
    reply_bulk_str(c, "map-epoch");
    reply_int(c, shard_map != NULL ? (int64_t)shard_map->epoch : 0);
}

/* [clock, [item, ...], max-lease, standing] */
static bool beat_step(struct client *c, struct job *job, unsigned *budget) {
    struct beat_job *b = CONTAINER_OF(job, struct beat_job, job);
    struct cluster_work w;
    cluster_unwait(&b->waiter);
    job->runnable = true;
    struct cluster_node *n = node_still(c);
    if (n == NULL) {
        reply_error(c, "-STALE this node is not in the pool, or is down: NODE JOIN");
        return true;
    }
    bool any = cluster_work_next(n, &w, budget);
    if (!any && *budget == 0) return false;
    if (!any && turn.mono_ms < job->deadline_ms) {
        job->runnable = false;
        cluster_wait(n, &b->waiter);
        return false;
    }
    reply_array(c, 4);
    reply_int(c, (int64_t)clock_mono_ms()); /* fresh, as in JOIN */
    void *cookie = reply_deferred(c);
    size_t items = 0;
    for (; any; any = items < ITEMS_MAX && cluster_work_next(n, &w, budget)) {
        reply_work(c, &w);
        spend(budget, w.n_drops / 8);
        items++;
    }
    reply_deferred_array(c, cookie, items);
    reply_int(c, (int64_t)config->max_lease_ms);
    reply_standing(c, n);
    return true;
}

static void beat_close(struct client *c, struct job *job) {
    struct beat_job *b = CONTAINER_OF(job, struct beat_job, job);
    cluster_unwait(&b->waiter);
}

/* Names as in INFO: they are shown beside others. */
static bool stat_name(struct span s, char out[32]) {
    if (s.len == 0 || s.len > 31 || s.data == NULL) return false;
    for (size_t i = 0; i < s.len; i++) {
        char ch = s.data[i];
        if (!((ch >= 'a' && ch <= 'z') || (ch >= '0' && ch <= '9') || ch == '_' || ch == '-'))
            return false;
        out[i] = ch;
    }
    out[s.len] = '\0';
    return true;
}

static bool beat_stats(struct client *c, struct cluster_node *n, struct wire_list list) {
    struct cluster_stat stats[CLUSTER_NODE_STATS_MAX];
    for (size_t i = 0; i < list.n; i++) {
        struct wire_stat s;
        if (!arg_bind_block(c, list.at + 2 * i, &s)) return false;
        stats[i].value = s.value;
        if (stat_name(c->argv[s.field], stats[i].name)) continue;
        reply_error(c, "STATS: field %zu must be 1 to 31 of a-z 0-9 _ -", i + 1);
        return false;
    }
    if (list.at != 0) cluster_node_stats(n, stats, list.n);
    return true;
}

static bool beat_reports(struct client *c, struct cluster_node *n, const struct wire_beat *args) {
    const char *why = "";
    tarn_status status = TARN_OK;
    for (size_t i = 0; i < args->reports.n && status == TARN_OK; i++) {
        const struct span *report = &c->argv[args->reports.at[i]];
        status = cluster_node_report(n, report[0], report[1], &why);
    }
    if (status != TARN_OK) reply_why(c, status, why);
    return status == TARN_OK;
}

void cmd_node_heartbeat(struct client *c) {
    struct wire_beat args = {0};
    struct cluster_node *n = arg_bind(c, &args) ? node_arg(c) : NULL;
    if (n == NULL || !beat_stats(c, n, args.stats) || !beat_reports(c, n, &args)) return;
    /* or its silence would be ours */
    uint64_t wait_ms = min_u64(args.wait_ms, config->node_timeout_ms / 2);
    struct beat_job *b = xcalloc(1, sizeof(*b));
    b->job = (struct job){.step = beat_step, .close = beat_close, .runnable = true};
    b->job.deadline_ms = wait_ms > 0 ? turn.mono_ms + wait_ms : 0;
    b->waiter.wake = beat_woken;
    job_start(c, &b->job);
}

/* --- reports, in slices --- */

enum report_kind { REPORT_DONE, REPORT_EVICTED, REPORT_WEIGH, REPORT_OFFER };

struct report {
    struct each each;
    enum report_kind kind;
    uint32_t segment;
    uint64_t known; /* EVICTED */
};

/* The block at argv[at]. What is malformed is as unknown as what is not there. */
static bool report_read(const struct client *c, size_t at, void *element) {
    char error[WIRE_ERROR_SIZE];
    return wire_bind_block(c->cmd->block, c->argv, at, element, error);
}

static bool report_done(struct client *c, struct cluster_node *n, size_t at) {
    struct wire_done d;
    return report_read(c, at, &d) &&
           cluster_task_done(n, d.task, (tarn_status)d.status, d.offset, d.crc);
}

static bool report_evicted(struct client *c, struct cluster_node *n, uint32_t segment, size_t at) {
    struct wire_far f;
    return report_read(c, at, &f) && cluster_far_evicted(n, segment, c->argv[f.key], f.version);
}

static int64_t report_weigh(struct client *c, struct cluster_node *n, uint32_t segment, size_t at) {
    struct wire_far f;
    return report_read(c, at, &f) ? cluster_far_worth(n, segment, c->argv[f.key], f.version) : 0;
}

static uint64_t report_offer(struct client *c, struct cluster_node *n, uint32_t segment,
                             size_t at) {
    struct wire_far f;
    /* what another master has, or may have, would be old here */
    if (!report_read(c, at, &f) || !shard_owns(c->argv[f.key])) return 0;
    struct cluster_offer o = {.key = c->argv[f.key],
                              .version = f.version,
                              .size = f.size,
                              .crc = f.crc,
                              .offset = f.offset};
    struct span packed = c->argv[f.crcs];
    uint32_t small[64], *crcs = small;
    if (packed.len % sizeof(uint32_t) != 0) return 0;
    o.n_crcs = packed.len / sizeof(uint32_t);
    if (o.n_crcs > ARRAY_LEN(small)) crcs = xmalloc(packed.len);
    for (size_t i = 0; i < o.n_crcs; i++) {
        const unsigned char *b = (const unsigned char *)packed.data + i * sizeof(uint32_t);
        crcs[i] =
            (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    o.crcs = o.n_crcs > 0 ? crcs : NULL;
    uint64_t version = cluster_far_offered(n, segment, &o);
    if (crcs != small) free(crcs);
    return version;
}

/* A node that is taken over in the middle hears that nothing was accepted. */
static enum each_next report_one(struct client *c, struct each *each, unsigned *budget) {
    struct report *r = CONTAINER_OF(each, struct report, each);
    struct cluster_node *n = node_still(c);
    size_t at = each_index(each);
    spend(budget, 1);
    switch (r->kind) {
    case REPORT_DONE: reply_int(c, n != NULL && report_done(c, n, at)); break;
    case REPORT_EVICTED: r->known += n != NULL && report_evicted(c, n, r->segment, at); break;
    case REPORT_WEIGH: reply_int(c, n != NULL ? report_weigh(c, n, r->segment, at) : -1); break;
    case REPORT_OFFER:
        reply_int(c, n != NULL ? (int64_t)report_offer(c, n, r->segment, at) : 0);
        break;
    }
    return EACH_ON;
}

static void report_end(struct client *c, struct each *each) {
    reply_int(c, (int64_t)CONTAINER_OF(each, struct report, each)->known);
}

static void report_run(struct client *c, enum report_kind kind) {
    struct wire_node args = {0};
    struct cluster_node *n = arg_bind(c, &args) ? node_arg(c) : NULL;
    if (n == NULL) return;
    if (kind != REPORT_DONE && !cluster_far_of(n, args.segment)) {
        reply_error(c, "-NOSEGMENT this is not an ssd or file segment of the node: SEGMENT MOUNT "
                       "tells its id");
        return;
    }
    struct report r = {.each.one = report_one, .kind = kind, .segment = args.segment};
    each_keys(&r.each, args.keys, wire_block_words(c->cmd->block));
    if (kind == REPORT_EVICTED)
        r.each.end = report_end;
    else
        reply_array(c, args.keys.n);
    each_run(c, &r.each, sizeof(r));
}

void cmd_node_done(struct client *c) {
    report_run(c, REPORT_DONE);
}
void cmd_node_evicted(struct client *c) {
    report_run(c, REPORT_EVICTED);
}
void cmd_node_weigh(struct client *c) {
    report_run(c, REPORT_WEIGH);
}
void cmd_node_offer(struct client *c) {
    report_run(c, REPORT_OFFER);
}

void cmd_node_fenced(struct client *c) {
    struct wire_node args = {0};
    struct cluster_node *n = arg_bind(c, &args) ? node_arg(c) : NULL;
    if (n == NULL) return;
    cluster_node_fenced(n, args.session);
    reply_ok(c);
}
