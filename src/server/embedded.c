/* The embedded segment at start. With pool-path its bytes outlive the process; with the books of
 * the append-only file they are a pool again (docs/REPLICATION.md). What the books say is not
 * believed before it was looked at: the content id of the pool file, then CRCs. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/thread.h"
#include "ha/books.h"
#include "inband/local_copy.h"
#include "front/location.h"
#include "ha/persistence.h"
#include "host/host.h"
#include "pool/pool.h"
#include "server/server.h"
#include "front/embedded.h"

#define SAMPLE_EVERY   1000u
#define VERIFY_THREADS 8u
#define BATCH          4096u
#define SERVE_MS       5000u

static unsigned own_slot; /* in embedded.host */

static void fence_local(void *arg, uint64_t session) {
    host_fence(embedded.host, session, location_session_grants_ms(session));
}

static const struct cluster_local_ops local_ops = {
    .start_copy = local_copy_start, .cancel = local_copy_cancel, .fence = fence_local};

/* --- are the bytes what they were? --- */

struct verify_one {
    struct object *o;
    struct store_extent extent[STORE_EXTENTS_MAX];
    uint32_t extents, crc;
    bool wrong;
};

struct verify {
    const char *base;
    uint32_t segment;
    unsigned every;
    uint64_t seen, looked, wrong, bytes;
    struct verify_one *batch;
    size_t n, taken; /* taken: atomic, by threads */
};

static void verify_extents(struct verify *v, struct verify_one *x) {
    uint32_t crc = 0;
    for (uint32_t i = 0; i < x->extents; i++)
        crc = crc32c(crc, v->base + x->extent[i].offset, x->extent[i].length);
    x->wrong = crc != x->crc;
}

static void *verify_thread(void *arg) {
    struct verify *v = arg;
    for (size_t i; (i = __atomic_fetch_add(&v->taken, 1, __ATOMIC_RELAXED)) < v->n;)
        verify_extents(v, &v->batch[i]);
    return NULL;
}

static void verify_note(void *arg, struct object *o) {
    struct verify *v = arg;
    struct store_layout l;
    uint32_t crc;
    if (v->n == BATCH || !store_object_crc(o, &crc)) return;
    store_object_replicas(books, o, &l);
    for (uint32_t i = 0; i < l.replicas; i++) {
        const struct store_replica *r = &l.replica[i];
        if (r->extents == 0 || r->extent[0].segment != v->segment) continue;
        if (v->seen++ % v->every != 0) continue;
        struct verify_one *x = &v->batch[v->n++];
        *x = (struct verify_one){.o = o, .extents = r->extents, .crc = crc};
        memcpy(x->extent, r->extent, r->extents * sizeof(x->extent[0]));
        v->looked++;
        v->bytes += store_object_size(books, o);
    }
}

static void verify_batch(struct verify *v, unsigned threads) {
    v->taken = 0;
    thread_run_together(threads, "tarn-verify", verify_thread, v);
    for (size_t i = 0; i < v->n; i++) {
        if (!v->batch[i].wrong) continue;
        v->wrong++;
        if (store_replica_drop(books, v->batch[i].o, v->segment, true) != TARN_OK)
            store_remove_object(books, v->batch[i].o);
    }
    v->n = 0;
}

/* Objects that the books say are in the segment, compared with their CRCs: one in `every`. */
static void verify_segment(uint32_t segment, unsigned every) {
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned threads = cpus < 1 ? 1 : cpus > (long)VERIFY_THREADS ? VERIFY_THREADS : (unsigned)cpus;
    struct verify v = {
        .base = host_segment_base(embedded.host, segment), .segment = segment, .every = every};
    uint64_t began = clock_mono_ms(), cursor = 0;
    v.batch = xcalloc(BATCH, sizeof(*v.batch));
    struct progress progress;
    progress_log(&progress, "Verifying the pool");
    do {
        size_t before = v.n;
        uint64_t at = cursor;
        cursor = store_scan_all(books, cursor, verify_note, &v);
        if (v.n == BATCH && before > 0) { /* that step may not have fitted: once more, with room */
            v.looked -= v.n - before;
            v.n = before;
            cursor = at;
        }
        if (v.n == 0 || (v.n < BATCH / 2 && cursor != 0 && cursor != at)) continue;
        verify_batch(&v, threads);
        progress_say(&progress, v.seen, store_count(books), "%llu objects, %llu MiB",
                     (unsigned long long)v.looked, (unsigned long long)(v.bytes >> 20));
    } while (cursor != 0);
    if (v.n > 0) verify_batch(&v, threads);
    free(v.batch);
    log_notice("%llu objects, %llu MiB of the pool were compared with their CRCs in %llu ms: %llu "
               "did not match and were dropped",
               (unsigned long long)v.looked, (unsigned long long)(v.bytes >> 20),
               (unsigned long long)(clock_mono_ms() - began), (unsigned long long)v.wrong);
}

static void verify(const struct config *c, uint32_t segment) {
    switch (c->pool_verify) {
    case CONFIG_VERIFY_NONE: break;
    case CONFIG_VERIFY_SAMPLE: verify_segment(segment, SAMPLE_EVERY); break;
    default:
        verify_segment(segment, 1);
        store_trust(books);
        break;
    }
}

/* --- opening --- */

/* Somebody may still have the memory of an earlier life. */
static tarn_status serve_new(unsigned slot, uint32_t id, uint32_t epoch) {
    uint64_t until = clock_mono_ms() + SERVE_MS;
    tarn_status s = host_segment_serve(embedded.host, slot, id, epoch);
    if (s == TARN_EAGAIN) host_segment_retire(embedded.host, slot, true);
    while (s == TARN_EAGAIN && clock_mono_ms() < until) {
        host_poll(embedded.host);
        usleep(5000);
        s = host_segment_serve(embedded.host, slot, id, epoch);
    }
    return s;
}

static tarn_status open_new(unsigned slot, uint64_t size, uint32_t *id_p) {
    struct store_segment_config segment = {
        .name = "local", .epoch = server.master_epoch, .size = size};
    tarn_status s = store_segment_add(books, &segment, id_p);
    return s == TARN_OK ? serve_new(slot, *id_p, server.master_epoch) : s;
}

static tarn_status open_known(unsigned slot, uint32_t id) {
    struct store_segment_info info;
    bool known = store_segment_get(books, id, &info);
    TARN_ASSERT(known);
    return host_segment_serve(embedded.host, slot, id, info.epoch);
}

/* A pool file that holds a larger pool is cut if nothing is missed, or with pool-path-shrink: the
 * books first, the file when it is opened. Until then it holds all that the books know, whatever
 * ends this process. false: neither, and that was logged. */
static bool may_shrink(const struct config *c, uint64_t size) {
    uint8_t content[SEGMENT_CONTENT_SIZE];
    uint64_t there, known, objects;
    if (!pool_file_look(c->pool_path, &there, content) || there <= size) return true;
    uint32_t id = cluster_local_known(content, &known);
    if (id == STORE_SEGMENT_ANY || known <= size) return true;
    tarn_status s = cluster_segment_resize(id, size, c->pool_path_shrink, &objects);
    if (s == TARN_OK && objects > 0)
        log_warning("%s is cut from %llu to %llu bytes (pool-path-shrink): %llu objects that lay "
                    "beyond are gone",
                    c->pool_path, (unsigned long long)there, (unsigned long long)size,
                    (unsigned long long)objects);
    if (s == TARN_OK) return true;
    log_warning(
        "%s holds a pool of %llu bytes, pool-size is %llu, and %llu objects lie beyond that. Start "
        "with the former size to keep them, or with pool-path-shrink yes to give them up",
        c->pool_path, (unsigned long long)there, (unsigned long long)size,
        (unsigned long long)objects);
    return false;
}

/* The embedded segment whose content that is, in the books with this size. */
static uint32_t find_known(const uint8_t *content, uint64_t size) {
    uint64_t known, objects;
    uint32_t id = cluster_local_known(content, &known);
    bool ok = id != STORE_SEGMENT_ANY &&
              (known == size || cluster_segment_resize(id, size, false, &objects) == TARN_OK);
    return ok ? id : STORE_SEGMENT_ANY;
}

bool embedded_open(const struct config *c, bool loaded) {
    const char *why = "";
    uint32_t id = STORE_SEGMENT_ANY, alive = STORE_SEGMENT_ANY;
    unsigned slot = 0;
    uint64_t size = c->pool_size / 4096 * 4096;
    struct host_segment_config segment = {.name = "local",
                                          .size = size,
                                          .numa_node = (int)c->numa_node,
                                          .huge = c->huge_pages ? HOST_HUGE_TRY : HOST_HUGE_NO,
                                          .populate = c->pool_populate,
                                          .later = true,
                                          .shrink = true,
                                          .pool_path =
                                              c->pool_path[0] != '\0' ? c->pool_path : NULL};
    struct host_segment_info info;
    if (loaded && segment.pool_path != NULL && !may_shrink(c, size)) return false;
    tarn_status s = host_segment_open(embedded.host, &segment, &slot, &why);
    if (s == TARN_OK) {
        own_slot = slot;
        host_slot_get(embedded.host, slot, &info);
        if (loaded && info.warm) alive = find_known(info.content, size);
        if (loaded) books_lead(alive, false);
        if (loaded && alive == STORE_SEGMENT_ANY && segment.pool_path != NULL)
            log_warning("%s holds nothing that the books know: the pool starts empty",
                        segment.pool_path);
        host_set_authority(embedded.host, embedded.grant_key, server.master_epoch);
        s = alive != STORE_SEGMENT_ANY ? open_known(slot, id = alive) : open_new(slot, size, &id);
    }
    if (s != TARN_OK) {
        log_warning("The pool of %llu bytes could not be set up: %s%s", (unsigned long long)size,
                    why[0] != '\0' ? why : tarn_status_text(s),
                    segment.pool_path != NULL && s == TARN_EBUSY
                        ? ". Each server needs a file of its own: --pool-path"
                    : segment.pool_path != NULL ? " (--pool-path)"
                                                : "");
        return false;
    }
    host_slot_get(embedded.host, slot, &info); /* serve_new may have made new content */
    cluster_local_segment(id, embedded.grant_key, &local_ops);
    cluster_local_content(id, info.content);
    if (alive != STORE_SEGMENT_ANY) verify(c, alive);
    host_slot_get(embedded.host, slot, &info);
    if (alive != STORE_SEGMENT_ANY && info.strangers) {
        log_notice("Processes still have the pool of before in their hands: it takes nothing new "
                   "until they have let go");
        cluster_local_hold(true);
        host_fence_before(embedded.host, server.master_epoch);
    }
    return true;
}

void embedded_populate(void) {
    pool_populate_start(host_segment_pool(embedded.host, own_slot));
    embedded.populating.on = true;
    embedded.populating.began_s = turn.wall_ms / 1000;
}

bool embedded_populated(tarn_status *status_p) {
    struct pool_progress progress = {.done = embedded.populating.done,
                                     .total = embedded.populating.total};
    embedded.populating.on =
        !pool_populate_look(host_segment_pool(embedded.host, own_slot), &progress, status_p);
    embedded.populating.done = progress.done;
    embedded.populating.total = progress.total;
    embedded.populating.left_ms = progress.left_ms;
    return !embedded.populating.on;
}

bool embedded_reload(void) {
    struct host_segment_info info;
    uint32_t id;
    host_slot_get(embedded.host, own_slot, &info);
    uint32_t alive = find_known(info.content, info.size);
    books_lead(alive, false);
    host_set_authority(embedded.host, embedded.grant_key, server.master_epoch);
    tarn_status s = alive != STORE_SEGMENT_ANY ? open_known(own_slot, id = alive)
                                               : open_new(own_slot, info.size, &id);
    if (s != TARN_OK) {
        log_warning("The pool could not be put into the books: %s", tarn_status_text(s));
        return false;
    }
    host_slot_get(embedded.host, own_slot, &info);
    cluster_local_segment(id, embedded.grant_key, &local_ops);
    cluster_local_content(id, info.content);
    if (alive != STORE_SEGMENT_ANY) verify(config, alive);
    cluster_local_hold(true); /* those who had grants may still be writing */
    host_fence_before(embedded.host, server.master_epoch);
    return true;
}

void embedded_fenced(uint32_t master_epoch) {
    if (master_epoch == server.master_epoch) cluster_local_hold(false);
}
