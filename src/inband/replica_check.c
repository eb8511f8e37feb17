/* One replica after the other, each read to its end without keeping the bytes:
 *
 *   start ─> [timer] read the next replica ─┬─ right, or not to be reached ─┬─> ... ─> done
 *                 ^                         └─ wrong: dropped ──────────────┤
 *                 └─────────────────────────────────────────────────────────┘
 *
 * One wrong reading is no proof: a node may have given us what it had read for the reader who
 * reported it. It gives nobody one reading twice, so the second one counts.
 *
 * Which replicas there are is asked anew each time: they come and go while bytes are read. */
#include "inband/replica_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/client.h"
#include "front/core.h"
#include "front/stats.h"
#include "inband/value_read.h"

enum { BACKGROUND_MAX = 16 }; /* that nobody waits for */
enum { SEEN_MAX = 2 * STORE_REPLICAS_MAX };

struct replica_check {
    LIST_ENTRY(replica_check) link;
    struct span key;
    uint64_t version, size;
    struct value_read *read; /* of the replica in segment */
    uint32_t segment;
    uint32_t doubted; /* a segment that was wrong once */
    uint32_t seen[SEEN_MAX];
    unsigned n_seen, dropped;
    struct net_timer timer;
    void (*done)(void *arg, unsigned dropped);
    void *arg;
};
static LIST_HEAD(check_list, replica_check) checks = LIST_HEAD_INITIALIZER(checks);
static unsigned background;

static void check_free(struct replica_check *k) {
    net_timer_stop(&k->timer);
    value_read_close(&k->read);
    LIST_REMOVE(k, link);
    if (!k->done) background--;
    free((char *)(uintptr_t)k->key.data);
    free(k);
}

static struct object *checked_object(const struct replica_check *k) {
    struct object *o = store_find(books, k->key);
    return o && store_object_version(o) == k->version ? o : NULL;
}

static bool was_seen(const struct replica_check *k, uint32_t segment) {
    for (unsigned i = 0; i < k->n_seen; i++)
        if (k->seen[i] == segment) return true;
    return false;
}

static void check_soon(void *arg) {
    struct replica_check *k = arg;
    if (!k->timer.pending) net_timer_start(&k->timer, 0);
}

/* A file that is not there is as bad as one with other bytes in it; a host that does not answer
 * says nothing. */
static void on_read(void *arg, tarn_status status) {
    struct replica_check *k = arg;
    struct object *o = checked_object(k);
    value_read_close(&k->read);
    check_soon(k);
    if (status == TARN_ECORRUPT && k->doubted != k->segment) {
        k->doubted = k->segment;
        k->n_seen--; /* again */
        return;
    }
    if ((status != TARN_ECORRUPT && status != TARN_ENOTFOUND) || !o) return;
    /* it went by itself */
    if (store_replica_drop(books, o, k->segment, true) != TARN_OK) return;
    log_warning("The replica of version %" PRIu64 " in segment %u was bad: dropped", k->version,
                k->segment);
    k->dropped++;
    stats.replicas_bad++;
}

/* The next one; the end, when all were looked at or the object is gone. */
static void check_turn(void *arg) {
    struct replica_check *k = arg;
    struct object *o = checked_object(k);
    struct store_layout layout = {0};
    core_stamp();
    if (o) store_object_layout(books, o, &layout);
    for (uint32_t i = 0; i < layout.replicas && k->n_seen < SEEN_MAX; i++) {
        const struct store_replica *r = &layout.replica[i];
        if (r->extents == 0 || was_seen(k, r->extent[0].segment)) continue;
        k->segment = k->seen[k->n_seen++] = r->extent[0].segment;
        struct value_read_options options = {
            .len = k->size, .only = k->segment, .sum = true, .done = on_read, .arg = k};
        k->read = value_read_open(o, &options);
        return;
    }
    if (k->done) k->done(k->arg, k->dropped);
    check_free(k);
}

struct replica_check *replica_check_start(struct object *o,
                                          void (*done)(void *arg, unsigned dropped), void *arg) {
    struct span key = store_object_key(o);
    struct replica_check *k = xcalloc(1, sizeof(*k));
    k->key = span_of(xmemdup(key.data, key.len), key.len);
    k->version = store_object_version(o);
    k->size = store_object_size(books, o);
    k->doubted = STORE_SEGMENT_ANY;
    k->done = done;
    k->arg = arg;
    if (!done) background++;
    net_timer_init(&k->timer, core_loop(), check_turn, k);
    LIST_INSERT_HEAD(&checks, k, link);
    check_soon(k);
    return k;
}

void replica_check_forget(struct replica_check **check_p) {
    struct replica_check *k = *check_p;
    *check_p = NULL;
    if (k) check_free(k);
}

void replica_suspect(struct span key, uint64_t version) {
    struct replica_check *k;
    struct object *o = store_find(books, key);
    uint32_t crc;
    if (!o || store_object_version(o) != version || !store_object_crc(o, &crc)) return;
    LIST_FOREACH(k, &checks, link) {
        if (k->version == version) return;
    }
    if (background == BACKGROUND_MAX) return; /* the next reader finds it, too */
    stats.replica_reports++;
    replica_check_start(o, NULL, NULL);
}

void replica_check_deinit(void) {
    while (!LIST_EMPTY(&checks)) check_free(LIST_FIRST(&checks));
}
