#include "ha/books.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "front/client.h"
#include "config/config.h"
#include "front/core.h"
#include "front/effects.h"
#include "ha/kv_events.h"
#include "front/location.h"
#include "front/module_durable.h"
#include "front/notify.h"
#include "ha/persistence.h"
#include "front/pubsub.h"
#include "front/tracking.h"
#include "front/waiters.h"
#include "front/watch.h"
#include "host/host.h"
#include "front/embedded.h"

static bool leading; /* these books, since books_create or books_lead */

/* --- news from the books --- */

/* The session is over for good, so the client that holds it must come back with a new one. */
static void on_fence(void *arg, uint64_t session) {
    struct client *c = client_find(session);
    if (c != NULL) {
        log_notice("Client id=%llu is cut off: a put of it was not ended in time",
                   (unsigned long long)session);
        client_close_soon(c);
    }
    cluster_on_fence(session);
}

static void on_complete(void *arg, struct span key) {
    waiters_notify(arg, key);
    watch_touch(key);
}

static void on_awaits(void *arg, uint32_t far) {
    cluster_on_awaits(far);
}

static uint64_t disk_wait(void *arg, uint32_t far, uint64_t hash, uint64_t bytes) {
    return cluster_disk_wait(far, hash, bytes);
}

static void on_far_gone(void *arg, struct span key, uint64_t version, uint32_t segment,
                        uint64_t offset) {
    cluster_on_far_gone(key, version, segment, offset);
}

static void on_segment_gone(void *arg, uint32_t id) {
    cluster_on_segment_gone(id);
}

static void on_news(void *arg, const struct store_news *news) {
    kv_events_news(news);
    if (notify_listens()) notify_news(news);
    if (tracking_listens()) tracking_news(news);
}

static void on_node(const char *name, enum cluster_node_state state) {
    const char *event = state == CLUSTER_NODE_UP     ? "node-up"
                        : state == CLUSTER_NODE_DOWN ? "node-down"
                        : state == CLUSTER_NODE_LEFT ? "node-left"
                                                     : NULL;
    if (event == NULL || !leading) return;
    kv_events_node(event, name);
    notify_node(event, name);
}

void books_relisten(void) {
    if (leading) store_listen(books, kv_events_listens() || notify_listens() || tracking_listens());
}

/* They decide from now on what there is. */
static void news_begin(void) {
    leading = true;
    kv_events_begin();
    notify_apply();
    module_durable_whole();
    module_durable_lead(true);
}

/* What goes with the books is no news. */
static void news_end(void) {
    leading = false;
    module_durable_lead(false);
    store_listen(books, false);
    kv_events_end();
    tracking_end();
}

/* --- coming and going --- */

#define PROMOTED_AHEAD 100u /* tenths of a second */

/* Grants and cached endpoints of an earlier lead must not be valid here: an epoch that grows with
 * time, in tenths of a second since 2025, lasts until 2038. A former master may be started again
 * before everybody knows that it was replaced, and by a clock that is ahead of ours; nodes that
 * came back to it refuse who has an older epoch than it. So who is promoted is ahead. */
static uint32_t new_epoch(uint32_t known, bool promoted) {
    uint64_t wall = clock_wall_ms(), birth = UINT64_C(1735689600000);
    uint32_t epoch = wall > birth ? (uint32_t)((wall - birth) / 100) + 1 : 1;
    if (promoted) epoch += PROMOTED_AHEAD;
    epoch = epoch > server.master_epoch ? epoch : server.master_epoch + 1;
    /* the clock of a former master may have been ahead of ours */
    return epoch > known ? epoch : known;
}

static uint64_t first_version(void) {
    return (uint64_t)server.master_epoch << 14; /* above what an earlier lead gave out */
}

/* CLOCK_MONOTONIC of this start of the machine, and of this namespace of times. */
static uint64_t clock_id(void) {
    char text[128] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f == NULL) return 0;
    size_t n = fread(text, 1, 64, f);
    fclose(f);
    if (n == 0) return 0;
    ssize_t more = readlink("/proc/self/ns/time", text + n, sizeof(text) - n);
    return XXH3_64bits(text, n + (more > 0 ? (size_t)more : 0)) | 1;
}

/* Only the host in this process can be asked and answers at once. */
static bool on_put_close(void *arg, const struct store_put *put, const struct store_extent *x) {
    (void)arg;
    struct cluster_segment at;
    if (embedded.host == NULL || !cluster_segment_get(x->segment, &at) || !at.embedded)
        return false;
    struct location_grant grant = location_put_grant(put);
    struct grant g = location_grant_of(&grant);
    return host_put_close(
        embedded.host, &g,
        &(struct grant_extent){x->segment, x->segment_epoch, x->offset, x->length});
}

static uint64_t on_clock_ns(void *arg) {
    return clock_mono_ns();
}

bool books_create(bool following) {
    static const struct store_events events = {.complete = on_complete,
                                               .fence = on_fence,
                                               .put_close = on_put_close,
                                               .far_gone = on_far_gone,
                                               .awaits = on_awaits,
                                               .disk_wait = disk_wait,
                                               .segment_gone = on_segment_gone,
                                               .effect = effects_note,
                                               .clock_ns = on_clock_ns,
                                               .news = on_news};
    const struct config *c = config;
    struct store_config sc;
    store_config_init(&sc);
    core_store_config(c, &sc);
    sc.clock_id = clock_id();
    if (!following) {
        server.master_epoch = new_epoch(0, false);
        sc.first_version = first_version();
    }
    books = store_create(&sc, &events, config_policy_name(c), config_allocator_name(c),
                         turn.mono_ms, turn.wall_ms);
    if (books == NULL || store_set_placement(books, config_placement_name(c)) != TARN_OK) {
        log_warning("The books could not be set up");
        return false;
    }
    if (following) store_follow(books);
    uint8_t id[16];
    struct cluster_config cc;
    cluster_config_init(&cc);
    core_cluster_config(c, &cc);
    struct cluster_options options = {.store = books,
                                      .master_epoch = server.master_epoch,
                                      .machine = core_machine(),
                                      .cluster_id = config_cluster_id(c, id) ? id : NULL,
                                      .mono_ms = turn.mono_ms,
                                      .following = following,
                                      .effect = effects_note,
                                      .node_changed = on_node};
    cluster_init(&options, &cc);
    effects_retell();
    if (!following) news_begin();
    return true;
}

void books_destroy(void) {
    if (books != NULL) news_end();
    cluster_deinit();
    store_destroy(&books);
    module_durable_clear();
}

void books_forget(void) {
    effects_turn();
    store_tell(books, false); /* what goes now is no change of anything that stays */
    cluster_tell(false);
    books_destroy();
    bool made = books_create(true);
    TARN_ASSERT(made);
}

void books_step_down(void) {
    effects_turn();
    news_end();
    cluster_step_down();
    store_step_down(books);
    server.awaits_nodes = false;
}

/* --- being told --- */

static tarn_status publish_apply(struct span record, const char **why_p) {
    uint32_t name;
    struct span rest = span_of(record.data + 5, record.len - 5);
    *why_p = "the record of a publication makes no sense";
    if (rest.len < sizeof(name)) return TARN_EPROTO;
    memcpy(&name, rest.data, sizeof(name));
    rest = span_of(rest.data + sizeof(name), rest.len - sizeof(name));
    if (name > rest.len) return TARN_EPROTO;
    pubsub_publish(span_of(rest.data, name), span_of(rest.data + name, rest.len - name));
    return TARN_OK;
}

tarn_status books_apply(struct span records, bool *end_p, const char **why_p) {
    for (size_t ahead = 0; records.len > 0; ahead--) {
        enum effect_kind kind;
        struct span record;
        if (ahead == 0) ahead = max_u64(store_effects_prefetch(books, records), 1);
        tarn_status s = effect_next(records, &kind, &record);
        *why_p = "a record is not whole";
        if (s == TARN_OK && kind < EFFECT_OTHERS)
            s = store_effect_apply(books, record, why_p);
        else if (s == TARN_OK && kind < (enum effect_kind)EFFECT_END)
            s = cluster_effect_apply(record, why_p);
        else if (s == TARN_OK && kind == (enum effect_kind)EFFECT_PUBLISH)
            s = publish_apply(record, why_p);
        else if (s == TARN_OK && kind == (enum effect_kind)EFFECT_MODULE)
            s = module_durable_apply(record, why_p);
        else if (s == TARN_OK && kind != (enum effect_kind)EFFECT_END)
            s = TARN_EPROTO, *why_p = "a record is of an unknown kind";
        if (s != TARN_OK) return s == TARN_EAGAIN ? TARN_EPROTO : s;
        if (kind == (enum effect_kind)EFFECT_END && end_p != NULL) *end_p = true;
        records = span_of(records.data + record.len, records.len - record.len);
    }
    return TARN_OK;
}

/* --- leading --- */

#define MANY_OBJECTS 1000000u /* from here on it takes long enough for a line */

static void books_begin_lead(uint32_t alive, bool promoted, struct store_lead_options *o) {
    struct store_lead_stats stats;
    server.master_epoch = new_epoch(cluster_next_epoch(), promoted);
    /* Of a server with memory of its own, which follows nobody, all that was told is in its
     * file. */
    bool told = persistence_leases_told() && !promoted && alive != STORE_SEGMENT_ANY;
    o->first_version = first_version();
    o->alive = alive;
    o->leases_told = told;
    uint64_t began = clock_mono_ms();
    if (store_count(books) >= MANY_OBJECTS)
        log_notice("Looking for the free space between %llu objects",
                   (unsigned long long)store_count(books));
    store_lead(books, o, &stats);
    cluster_lead(server.master_epoch, alive);
    server.awaits_nodes = cluster_awaits_nodes();
    log_notice("%llu objects are in the books, %llu without a CRC were dropped, %llu lay in "
               "others' places; this took %llu ms",
               (unsigned long long)stats.objects, (unsigned long long)stats.unverifiable,
               (unsigned long long)stats.overlapping,
               (unsigned long long)(clock_mono_ms() - began));
    news_begin();
}

void books_lead(uint32_t alive, bool promoted) {
    struct store_lead_options o = {0};
    books_begin_lead(alive, promoted, &o);
}

void books_take_over(uint64_t suspect_below) {
    struct store_lead_options o = {.handed_over = true, .suspect_below = suspect_below};
    books_begin_lead(STORE_SEGMENT_ANY, true, &o);
}

/* --- telling --- */

static void snapshot_append(void *arg, const void *record, size_t len) {
    buf_append(arg, record, len);
}

static void append_end(struct buf *out, uint64_t objects) {
    uint32_t len = 9;
    buf_append(out, &len, sizeof(len));
    buf_append_char(out, (char)EFFECT_END);
    buf_append(out, &objects, sizeof(objects));
}

void books_snapshot_begin(struct books_snapshot *x, struct buf *out) {
    unsigned one = 1;
    *x = (struct books_snapshot){0};
    (void)store_snapshot_step(books, &x->store, snapshot_append, out, &one);
    cluster_snapshot(snapshot_append, out);
}

bool books_snapshot_step(struct books_snapshot *x, struct buf *out, unsigned *budget) {
    size_t before = out->len;
    while (!x->over && *budget > 0 && out->len - before < EFFECTS_BATCH_MAX) {
        unsigned some = *budget < 64 ? *budget : 64, left = some;
        if (!module_durable_walk(&x->modules, out, &left)) {
            *budget -= some - left < *budget ? some - left : *budget;
            continue;
        }
        if (store_snapshot_step(books, &x->store, snapshot_append, out, &left)) {
            append_end(out, x->store.objects);
            x->over = true;
        }
        *budget -= some - left < *budget ? some - left : *budget;
    }
    return x->over;
}
