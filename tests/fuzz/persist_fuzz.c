/* Files of the books and the records in them, as a damaged disk or a false master would have them:
 * read, applied to books and a cluster that follow, told again to others, and led. The first byte
 * of the input says how:
 *
 *   1: the slab allocator                2, 4: one of four policies
 *   8: a file, else bare records         16: with its checksums mended
 *   32: objects without a CRC stay       64: time goes by meanwhile
 *   128: the first refusal is the end
 *
 * What was taken can be told: books made of a snapshot of these have the same digest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "module/durable.h"
#include "persist/format.h"
#include "persist/persist.h"
#include "store/effect.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    SLAB = 1,
    POLICY = 6,
    FILE_OF_BOOKS = 8,
    MENDED = 16,
    UNVERIFIED = 32,
    TIME = 64,
    STRICT = 128
};
#define WALL_MS UINT64_C(1770000000000)
#define KEYS    64u

static struct {
    unsigned mode;
    struct store *store;
    struct durable *durable;
    uint64_t now;
    bool led;
    struct buf told;                /* by who leads; to be read, not kept */
    char keys[KEYS][STORE_KEY_MAX]; /* of objects that came */
    size_t lens[KEYS], n_keys;
    char node[CLUSTER_NODE_NAME_MAX + 1], machine[CLUSTER_LABEL_MAX + 1];
} w;

/* --- books --- */

static void on_fence(void *arg, uint64_t session) {
    (void)arg;
    cluster_on_fence(session);
}
static void on_awaits(void *arg, uint32_t far) {
    (void)arg;
    cluster_on_awaits(far);
}
static uint64_t disk_wait(void *arg, uint32_t far, uint64_t hash, uint64_t bytes) {
    (void)arg;
    return cluster_disk_wait(far, hash, bytes);
}
static void on_far_gone(void *arg, struct span key, uint64_t version, uint32_t segment,
                        uint64_t offset) {
    (void)arg;
    cluster_on_far_gone(key, version, segment, offset);
}
static void on_segment_gone(void *arg, uint32_t id) {
    (void)arg;
    cluster_on_segment_gone(id);
}
static void on_effect(void *arg, const void *record, size_t len) {
    enum effect_kind kind;
    struct span whole;
    (void)arg;
    TARN_ASSERT(w.led); /* who follows decides nothing */
    TARN_ASSERT(effect_next(span_of(record, len), &kind, &whole) == TARN_OK && whole.len == len);
}

static void books_begin(unsigned mode) {
    static const char *const policies[] = {"lru", "lfu", "s3fifo", "fifo", "chain"};
    static const struct store_events events = {.fence = on_fence,
                                               .far_gone = on_far_gone,
                                               .awaits = on_awaits,
                                               .disk_wait = disk_wait,
                                               .segment_gone = on_segment_gone,
                                               .effect = on_effect};
    struct store_config sc;
    struct cluster_config cc;
    store_config_init(&sc);
    cluster_config_init(&cc);
    w.now = 1000;
    w.led = false;
    w.store = store_create(&sc, &events, policies[(mode & POLICY) / 2],
                           mode & SLAB ? "slab" : "offset", w.now, WALL_MS);
    TARN_ASSERT(w.store != NULL);
    store_follow(w.store);
    w.durable = durable_create();
    struct cluster_options o = {.store = w.store,
                                .master_epoch = 1,
                                .machine = "fuzz",
                                .mono_ms = w.now,
                                .following = true,
                                .effect = on_effect};
    cluster_init(&o, &cc);
    store_tell(w.store, true);
    cluster_tell(true);
}

static void books_end(void) {
    store_tell(w.store, false); /* what goes with the process is no change */
    cluster_tell(false);
    cluster_deinit();
    store_destroy(&w.store);
    durable_destroy(&w.durable);
}

static void run(uint64_t ms) {
    w.now += ms;
    store_tick(w.store, w.now, WALL_MS + w.now);
    cluster_tick(w.now);
    bool more = true;
    for (unsigned i = 0; i < 100 && more; i++) {
        unsigned a = 100, b = 100;
        more = store_background(w.store, &a);
        more |= cluster_background(&b);
    }
}

/* --- being told --- */

static void remember(unsigned kind, struct span record) {
    uint32_t len;
    if (kind != EFFECT_OBJECT || w.n_keys == KEYS) return;
    memcpy(&len, record.data + 5 + 21, sizeof(len)); /* it was taken, so it is there */
    memcpy(w.keys[w.n_keys], record.data + 5 + 25, len);
    w.lens[w.n_keys++] = len;
}

static tarn_status apply(void *arg, unsigned kind, struct span record) {
    const char *why = NULL;
    tarn_status s = TARN_OK;
    (void)arg;
    if (kind < EFFECT_OTHERS)
        s = store_effect_apply(w.store, record, &why);
    else if (kind < PERSIST_END_KIND)
        s = cluster_effect_apply(record, &why);
    else if (kind == DURABLE_RECORD)
        s = durable_apply(w.durable, record, &(struct durable_change){0}, &why);
    if (s == TARN_OK) remember(kind, record);
    TARN_ASSERT(s == TARN_OK || why != NULL);
    if (w.mode & TIME) run(7);
    return w.mode & STRICT ? s : TARN_OK; /* the books are as if it had not come */
}

static void apply_records(struct span data) {
    enum effect_kind kind;
    struct span record;
    while (effect_next(data, &kind, &record) == TARN_OK && apply(NULL, kind, record) == TARN_OK)
        data = span_of(data.data + record.len, data.len - record.len);
}

/* So that what lies behind the checksums is reached. */
static void mend(char *file, size_t size) {
    struct persist_disk_header *h = (struct persist_disk_header *)(void *)file;
    if (size < sizeof(*h)) return;
    h->crc = crc32c(0, h, offsetof(struct persist_disk_header, crc));
    for (uint64_t at = sizeof(*h); size - at > sizeof(struct persist_frame);) {
        struct persist_frame f;
        memcpy(&f, file + at, sizeof(f));
        uint32_t length = f.length & ~PERSIST_PACKED;
        if (length > size - at - sizeof(f)) break;
        f.crc = persist_frame_crc(at, span_of(file + at + sizeof(f), length));
        memcpy(file + at, &f, sizeof(f));
        at += sizeof(f) + length;
    }
}

static void apply_file(struct span data) {
    char path[64], *file = xmemdup(data.data, data.len);
    if (w.mode & MENDED) mend(file, data.len);
    int fd = memfd_create("books", MFD_CLOEXEC);
    if (fd < 0 || write(fd, file, data.len) != (ssize_t)data.len) abort();
    free(file);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct persist_visitor v = {.record = apply};
    struct persist_found f = {.whole = UINT64_MAX}, again = {0};
    tarn_status s = persist_read(path, &v, &f);
    TARN_ASSERT(f.size == data.len && f.whole <= f.size);
    TARN_ASSERT(s != TARN_OK ||
                (f.snapshot_whole && f.damage == NULL && f.torn == (f.whole < f.size)));
    /* What is cut behind the last whole frame is whole. */
    if (f.snapshot_whole && f.damage == NULL && s == TARN_OK) {
        struct persist_writer *writer;
        struct persist_visitor look = {0};
        if (persist_open(path, f.whole, &writer) != TARN_OK) abort();
        persist_close(&writer);
        TARN_ASSERT(persist_read(path, &look, &again) == TARN_OK && !again.torn);
        TARN_ASSERT(again.records == f.records && again.size == f.whole);
    }
    close(fd);
}

/* --- telling --- */

static void keep(void *arg, const void *record, size_t len) {
    buf_append(arg, record, len);
}

static void tell_all(struct buf *out) {
    struct store_snapshot x = {0};
    unsigned budget = 1;
    /* segments, before what belongs to them */
    (void)store_snapshot_step(w.store, &x, keep, out, &budget);
    cluster_snapshot(keep, out);
    struct durable_walk modules = {0};
    for (budget = 10; !durable_walk_step(w.durable, &modules, out, &budget);) budget = 10;
    for (budget = 10; !store_snapshot_step(w.store, &x, keep, out, &budget);) budget = 10;
}

static void digest(struct store_digest *d) {
    unsigned budget = 10;
    uint8_t modules[sizeof(d->sum)];
    *d = (struct store_digest){0};
    while (!store_digest_step(w.store, d, &budget)) budget = 10;
    durable_digest(w.durable, modules);
    for (unsigned i = 0; i < sizeof(modules); i++) d->sum[i] ^= modules[i];
}

/* Others that follow these have what these have. */
static void pass_on(struct span data, const struct store_digest *d) {
    struct store_digest other;
    books_begin(w.mode);
    while (data.len > 0) {
        enum effect_kind kind;
        struct span record;
        const char *why = "";
        TARN_ASSERT(effect_next(data, &kind, &record) == TARN_OK);
        tarn_status s = kind < EFFECT_OTHERS ? store_effect_apply(w.store, record, &why)
                        : kind == (enum effect_kind)DURABLE_RECORD
                            ? durable_apply(w.durable, record, &(struct durable_change){0}, &why)
                            : cluster_effect_apply(record, &why);
        if (s != TARN_OK) fprintf(stderr, "kind %u: %s\n", (unsigned)kind, why);
        TARN_ASSERT(s == TARN_OK);
        data = span_of(data.data + record.len, data.len - record.len);
    }
    store_check(w.store);
    digest(&other);
    TARN_ASSERT(other.objects == d->objects && memcmp(other.sum, d->sum, sizeof(d->sum)) == 0);
    books_end();
}

/* --- using --- */

static void look_up(void) {
    struct store_layout l;
    struct span value;
    uint32_t crc;
    uint64_t granted;
    struct store_segment_info info;
    for (uint32_t id = 0; id < store_segment_limit(w.store); id++)
        for (size_t i = 0; store_segment_get(w.store, id, &info) && info.name[i] != '\0'; i++)
            TARN_ASSERT(info.name[i] > ' ' && info.name[i] <= '~'); /* INFO shows it */
    for (size_t i = 0; i < w.n_keys; i++) {
        struct object *o = store_find(w.store, span_of(w.keys[i], w.lens[i]));
        if (o == NULL) continue;
        TARN_ASSERT(store_object_size(w.store, o) <= STORE_SIZE_MAX);
        if (!store_object_inline(o, &value)) store_object_replicas(w.store, o, &l);
        (void)store_object_crc(o, &crc);
        (void)store_object_expire(w.store, o);
        (void)store_object_suspect(w.store, o);
        if (w.led) (void)store_lease(w.store, o, 3, 50, &granted);
    }
}

static void put(const char *key, uint64_t size) {
    struct store_batch b;
    struct store_put *p;
    unsigned budget = 1000;
    struct store_put_options o = {.replicas = 1, .host = STORE_HOST_NONE};
    store_batch_begin(w.store, &b, NULL, STORE_BATCH_PUT, 1);
    if (store_put_start(w.store, &b, span_str(key), size, &o, 77, &budget, &p) != TARN_OK) return;
    tarn_status s = store_put_end(w.store, span_str(key), store_put_token(p), 5, 0, NULL, 0, NULL);
    /* TARN_EINVAL: it was small enough to be inline */
    TARN_ASSERT(s == TARN_OK || s == TARN_EINVAL);
}

/* A node under a name that the records may know, with memory that they do not. */
static void join(const char *name, uint64_t session) {
    struct cluster_node *n;
    struct cluster_mounted mounted;
    const char *why = "";
    static const struct span endpoint = {"tcp://*:7000", 12};
    struct cluster_join j = {.name = span_str(name),
                             .machine = SPAN("m1"),
                             .rack = SPAN("r1"),
                             .address = "10.0.0.1",
                             .session = session,
                             .instance = {1}};
    if (cluster_node_join(&j, &n, &why) != TARN_OK) return;
    struct cluster_mount m = {.name = SPAN("n1.0"),
                              .size = 64 << 12,
                              .content = {9},
                              .backing = SPAN("memfd"),
                              .numa_node = -1,
                              .endpoints = &endpoint,
                              .n_endpoints = 1};
    (void)cluster_segment_mount(n, &m, &mounted, &why);
    (void)cluster_node_up(n);
}

static void lead(void) {
    struct store_lead_stats stats;
    uint32_t epoch = 4000000000u; /* later than any of the seeds */
    struct store_lead_options o = {.first_version = (uint64_t)epoch << 14,
                                   .alive = STORE_SEGMENT_ANY,
                                   .keep_unverifiable = (w.mode & UNVERIFIED) != 0};
    w.led = true;
    store_lead(w.store, &o, &stats);
    cluster_lead(epoch, STORE_SEGMENT_ANY);
    store_check(w.store);
    cluster_check();
}

static void use(void) {
    look_up();
    join("n1", 11);
    put("new", 9000);
    put("new", 70);
    run(1);
    for (size_t i = 0; i < w.n_keys; i += 3)
        (void)store_remove(w.store, span_of(w.keys[i], w.lens[i]));
    store_check(w.store);
    look_up();
    store_session_closed(w.store, 3);
    for (unsigned i = 0; i < 8; i++) {
        (void)cluster_node_alive(SPAN("n1"), (const uint8_t[16]){1});
        run(2000);
        put("later", 5000);
    }
    store_check(w.store);
    cluster_check();
    store_flush(w.store);
    for (unsigned i = 0; i < 4; i++)
        run(3600 * 1000); /* nodes are forgotten, segments leave, quarantines end */
    store_check(w.store);
    cluster_check();
    TARN_ASSERT(store_segment_count(w.store) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    log_set_level(LOG_LEVEL_NOTHING);
    if (size == 0) return 0;
    w.mode = data[0];
    w.n_keys = 0;
    books_begin(w.mode);
    struct span rest = span_of((const char *)data + 1, size - 1);
    if (w.mode & FILE_OF_BOOKS)
        apply_file(rest);
    else
        apply_records(rest);
    store_check(w.store);
    look_up();
    run(1);
    struct buf told = {0};
    struct store_digest d;
    tell_all(&told);
    digest(&d);
    lead();
    use();
    books_end();
    pass_on(span_of(told.data, told.len), &d);
    buf_free(&told);
    return 0;
}
