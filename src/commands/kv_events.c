/* KVEVENTS READ, WALK, INFO: the events of kv_events.h for a router that wants the state of the
 * pool and everything that changes it.
 *
 * READ answers a part of what is there and sleeps when there is nothing; WALK is SCAN with sizes
 * and places, of everything that the books know, also of what cannot be read at present. Nobody
 * sees keys that his user may not read. */
#include "front/families.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "acl/acl.h"
#include "base/assert.h"
#include "base/clock.h"
#include "front/client.h"
#include "config/config.h"
#include "front/each.h"
#include "ha/kv_events.h"
#include "front/reply.h"
#include "wire/options.h"

enum { COUNT_DEFAULT = 1000 };
#define REPLY_MAX (UINT32_C(1) << 20) /* bytes of one reply of READ, about */
#define ADVICE    "Take a walk (KVEVENTS WALK from 0) and read on from a seq noted before it"

/* --- what both need --- */

/* One selector of the user must allow the command and the key. Users may have many patterns, so
 * what it took is counted as work. */
static bool may_see(const struct client *c, struct span key, size_t *work_p) {
    if (c->unrestricted) return true;
    uint64_t began = clock_mono_ns();
    bool may = false;
    for (size_t i = 0; i < acl_selectors(c->user) && !may; i++)
        may = acl_allows_command(c->user, i, c->cmd->stat_index, c->argv[1]) &&
              (acl_allows_all_keys(c->user, i) || acl_allows_key(c->user, i, key, ACL_READ));
    *work_p += (clock_mono_ns() - began) / 1000;
    return may;
}

static bool begins_with(struct span key, struct span prefix) {
    return key.len >= prefix.len &&
           (prefix.len == 0 || memcmp(key.data, prefix.data, prefix.len) == 0);
}

/* prefix_at: of the argument, 0: none. */
static bool key_wanted(const struct client *c, size_t prefix_at, struct span key, size_t *work_p) {
    ++*work_p;
    return (prefix_at == 0 || begins_with(key, c->argv[prefix_at])) && may_see(c, key, work_p);
}

/* [tier, node, segment, epoch] */
static void write_place(struct buf *out, const struct kv_place *p) {
    resp_write_array(out, 4);
    resp_write_bulk(out, p->tier, strlen(p->tier));
    resp_write_bulk(out, p->node.data, p->node.len);
    resp_write_bulk(out, p->segment.data, p->segment.len);
    resp_write_int(out, p->epoch);
}

static bool events_on(struct client *c) {
    if (kv_events_ring() != NULL) return true;
    reply_error(c, "KV events are off: set kv-events-size");
    return false;
}

/* --- READ --- */

struct kv_read {
    struct job job;
    struct kv_sleeper sleeper;
    struct wire_events args;
    char epoch[KV_EPOCH_LEN + 1];
    uint64_t seq; /* of the last event that is dealt with */
    size_t found;
    struct buf events; /* the reply in the making */
};

/* Whether the reader's place is one of this history. false: answered. */
static bool place_valid(struct client *c, const struct kv_read *r) {
    const struct event_ring *ring = kv_events_ring();
    if (!events_on(c)) return false;
    uint64_t first = event_ring_first(ring), last = event_ring_last(ring);
    if (strcmp(r->epoch, kv_events_epoch()) != 0)
        reply_error(c, "-EPOCH the epoch is %s, its events are %" PRIu64 " to %" PRIu64 ". " ADVICE,
                    kv_events_epoch(), first, last);
    else if (r->seq > last)
        reply_error(c, "seq %" PRIu64 " was not given out yet, the last event is %" PRIu64, r->seq,
                    last);
    else if (r->seq + 1 < first)
        reply_error(c,
                    "-GAP the events behind seq %" PRIu64 " are gone, the oldest is %" PRIu64
                    ". " ADVICE,
                    r->seq, first);
    else
        return true;
    return false;
}

/* [seq, milliseconds, kind, key or nil, size, [place, ...]] */
static void write_event(struct client *c, struct buf *out, uint64_t seq, struct kv_event *e) {
    resp_write_array(out, 6);
    resp_write_int(out, (int64_t)seq);
    resp_write_int(out, (int64_t)e->wall_ms);
    resp_write_bulk(out, e->kind, strlen(e->kind));
    if (e->key.len > 0)
        resp_write_bulk(out, e->key.data, e->key.len);
    else
        resp_write_null(out, c->proto);
    resp_write_int(out, (int64_t)e->size);
    resp_write_array(out, e->places);
    for (unsigned i = 0; i < e->places; i++) {
        struct kv_place p;
        kv_event_place(e, &p);
        write_place(out, &p);
    }
}

/* As many events as the budget, COUNT and the size of a reply allow. */
static void events_gather(struct client *c, struct kv_read *r, unsigned *budget) {
    const struct event_ring *ring = kv_events_ring();
    struct event_cursor at;
    struct span bytes;
    bool there = event_ring_seek(ring, r->seq + 1, &at);
    TARN_ASSERT(there);
    while (*budget > 0 && r->found < r->args.count && r->events.len < REPLY_MAX &&
           event_ring_next(ring, &at, &bytes)) {
        struct kv_event e;
        size_t work = 0;
        kv_event_read(bytes, &e);
        r->seq = at.seq - 1;
        bool tell = e.key.len == 0 || key_wanted(c, r->args.prefix, e.key, &work);
        spend(budget, max_u64(work, 1));
        if (!tell) continue;
        write_event(c, &r->events, r->seq, &e);
        r->found++;
    }
}

static bool events_step(struct client *c, struct job *job, unsigned *budget) {
    struct kv_read *r = CONTAINER_OF(job, struct kv_read, job);
    kv_events_unlist(&r->sleeper);
    if (!place_valid(c, r)) return true;
    events_gather(c, r, budget);
    bool all = r->seq == event_ring_last(kv_events_ring());
    bool over = job->deadline_ms == 0 || turn.mono_ms >= job->deadline_ms;
    if (r->found == 0 && !(all && over)) {
        job->runnable = !all;
        if (all) kv_events_sleep(&r->sleeper);
        return false;
    }
    reply_array(c, 2);
    reply_int(c, (int64_t)r->seq);
    reply_array(c, r->found);
    reply_raw(c, r->events.data, r->events.len);
    return true;
}

static void events_close(struct client *c, struct job *job) {
    struct kv_read *r = CONTAINER_OF(job, struct kv_read, job);
    kv_events_unlist(&r->sleeper);
    buf_free(&r->events);
}

static bool read_arguments(struct client *c, struct kv_read *r) {
    if (!events_on(c) || !arg_bind(c, &r->args)) return false;
    struct span epoch = c->argv[r->args.epoch];
    if (r->args.count == 0) r->args.count = COUNT_DEFAULT;
    if (epoch.len > KV_EPOCH_LEN) epoch.len = KV_EPOCH_LEN; /* one that is wrong, too */
    if (epoch.len > 0) memcpy(r->epoch, epoch.data, epoch.len);
    if (c->argv[r->args.epoch].len != KV_EPOCH_LEN) r->epoch[0] = '\0';
    r->seq = r->args.seq;
    return true;
}

void cmd_kvevents_read(struct client *c) {
    struct kv_read *r = xcalloc(1, sizeof(*r));
    r->job = (struct job){.step = events_step, .close = events_close, .runnable = true};
    r->sleeper.job = &r->job;
    if (!read_arguments(c, r)) {
        free(r);
        return;
    }
    int64_t block_ms = r->args.block_ms;
    uint64_t wait_ms = block_ms > 0 ? (uint64_t)block_ms : config->max_wait_ms;
    if (block_ms >= 0 && !(c->io->flags & CLIENT_EXEC)) r->job.deadline_ms = turn.mono_ms + wait_ms;
    job_start(c, &r->job);
}

/* --- WALK --- */

struct kv_walk {
    struct each each;
    struct client *client;
    struct wire_events args;
    uint64_t cursor;
    size_t found, work; /* work: of one step */
    struct buf objects;
};

static void write_places(struct buf *out, const struct object *o) {
    struct store_layout layout;
    struct span value;
    struct kv_place p;
    bool up;
    if (store_object_inline(o, &value)) {
        resp_write_array(out, 1);
        write_place(out, &(struct kv_place){KV_TIER_BOOKS, SPAN(""), SPAN(""), 0});
        return;
    }
    store_object_replicas(books, o, &layout);
    resp_write_array(out, layout.replicas);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        bool there = kv_place_of(layout.replica[i].extent[0].segment, &p, &up);
        TARN_ASSERT(there);
        write_place(out, &p);
    }
}

/* [key, size, [place, ...]] */
static void walk_see(void *arg, struct object *o) {
    struct kv_walk *w = arg;
    struct span key = store_object_key(o);
    if (store_object_flushed(books, o) || !key_wanted(w->client, w->args.prefix, key, &w->work))
        return;
    resp_write_array(&w->objects, 3);
    resp_write_bulk(&w->objects, key.data, key.len);
    resp_write_int(&w->objects, (int64_t)store_object_size(books, o));
    write_places(&w->objects, o);
    w->found++;
}

static enum each_next walk_one(struct client *c, struct each *each, unsigned *budget) {
    struct kv_walk *w = CONTAINER_OF(each, struct kv_walk, each);
    w->work = 0;
    w->cursor = store_scan_all(books, w->cursor, walk_see, w);
    spend(budget, w->work);
    bool full = w->found >= w->args.count || w->objects.len >= REPLY_MAX;
    /* What a slice has found is told. */
    return w->cursor == 0 || full || (w->found > 0 && *budget <= 1) ? EACH_OVER : EACH_ON;
}

static void objects_walk_end(struct client *c, struct each *each) {
    struct kv_walk *w = CONTAINER_OF(each, struct kv_walk, each);
    char cursor[24];
    reply_array(c, 2);
    reply_bulk(c, span_of(cursor, u64_to_dec(w->cursor, cursor)));
    reply_array(c, w->found);
    reply_raw(c, w->objects.data, w->objects.len);
}

static void walk_close(struct client *c, struct job *job) {
    buf_free(&CONTAINER_OF(job, struct kv_walk, each.job)->objects);
}

void cmd_kvevents_walk(struct client *c) {
    struct kv_walk w = {.each = {.job.close = walk_close,
                                 .one = walk_one,
                                 .end = objects_walk_end,
                                 .n = EACH_ENDLESS},
                        .client = c};
    if (!arg_bind(c, &w.args)) return;
    if (w.args.count == 0) w.args.count = COUNT_DEFAULT;
    w.cursor = w.args.cursor;
    each_run(c, &w.each, sizeof(w));
}

/* --- INFO --- */

struct kv_info {
    struct each each; /* over segments */
    /* as it was when the first segment was looked at: what came later is an event */
    char epoch[KV_EPOCH_LEN + 1];
    uint64_t first, last;
    size_t found;
    struct buf down;
};

static void reply_events_info(struct client *c, const struct kv_info *i) {
    const struct event_ring *r = kv_events_ring();
    reply_map(c, 7);
    reply_bulk_str(c, "epoch");
    reply_bulk_str(c, i->epoch);
    reply_bulk_str(c, "first");
    reply_int(c, (int64_t)i->first);
    reply_bulk_str(c, "last");
    reply_int(c, (int64_t)i->last);
    reply_bulk_str(c, "bytes");
    reply_int(c, (int64_t)event_ring_bytes(r));
    reply_bulk_str(c, "size");
    reply_int(c, (int64_t)config->kv_events_size);
    reply_bulk_str(c, "waiting");
    reply_int(c, (int64_t)kv_events_sleepers());
    reply_bulk_str(c, "down");
    reply_array(c, i->found);
    reply_raw(c, i->down.data, i->down.len);
}

static enum each_next info_one(struct client *c, struct each *each, unsigned *budget) {
    struct kv_info *i = CONTAINER_OF(each, struct kv_info, each);
    struct kv_place p;
    bool up;
    if (each->at >= store_segment_limit(books)) return EACH_OVER;
    if (!kv_place_of((uint32_t)each->at, &p, &up) || up) return EACH_ON;
    write_place(&i->down, &p);
    i->found++;
    return EACH_ON;
}

static void info_end(struct client *c, struct each *each) {
    if (events_on(c)) reply_events_info(c, CONTAINER_OF(each, struct kv_info, each));
}

static void info_close(struct client *c, struct job *job) {
    buf_free(&CONTAINER_OF(job, struct kv_info, each.job)->down);
}

void cmd_kvevents_info(struct client *c) {
    if (!events_on(c)) return;
    struct kv_info i = {
        .each = {.job.close = info_close, .one = info_one, .end = info_end, .n = EACH_ENDLESS},
        .first = event_ring_first(kv_events_ring()),
        .last = event_ring_last(kv_events_ring())};
    memcpy(i.epoch, kv_events_epoch(), sizeof(i.epoch));
    each_run(c, &i.each, sizeof(i));
}
