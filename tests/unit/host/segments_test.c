/* Segments that come, change their name and go while data threads ask for them. */
#include "../test.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "host/host_internal.h"

#define SIZE (UINT64_C(1) << 20)

static const uint8_t key[GRANT_KEY_SIZE] = {1};

static struct {
    uint64_t session;
    uint32_t before;
} fenced;
static void on_fenced(void *arg, uint64_t session) {
    (void)arg;
    fenced.session = session;
}
static void on_fenced_before(void *arg, uint32_t epoch) {
    (void)arg;
    fenced.before = epoch;
}

static struct host *make(void) {
    log_set_level(LOG_LEVEL_NOTHING);
    static const char *const bind[] = {"127.0.0.1"};
    struct host_config config = {.bind = bind,
                                 .binds = 1,
                                 .threads = 2,
                                 .fenced = on_fenced,
                                 .fenced_before = on_fenced_before};
    memset(&fenced, 0, sizeof(fenced));
    struct host *h;
    CHECK_EQ(host_create(&config, &h), TARN_OK);
    host_set_authority(h, key, 3);
    return h;
}

static unsigned open_segment(struct host *h, const char *path) {
    struct host_segment_config s = {
        .name = "n1.0", .size = SIZE, .numa_node = -1, .pool_path = path};
    unsigned slot;
    const char *why;
    CHECK_EQ(host_segment_open(h, &s, &slot, &why), TARN_OK);
    return slot;
}

static enum grant_verdict ask(struct host *h, enum grant_op op, uint32_t id, uint32_t epoch,
                              void **addr_p) {
    uint8_t wire[GRANT_SIZE];
    struct grant g = {op, 3, 8, clock_mono_ms() + 60000, 0};
    struct grant_extent x = {id, epoch, 4096, 8192};
    grant_seal(key, &g, &x, wire);
    return host_gate_check(&h->gate, wire, &x, op, 100, 50, &g, addr_p);
}

static void wait_a_little(struct host *h) {
    struct pollfd p = {.fd = host_event_fd(h), .events = POLLIN};
    poll(&p, 1, 10);
    host_poll(h);
}

static tarn_status serve(struct host *h, unsigned slot, uint32_t id, uint32_t epoch) {
    tarn_status s;
    for (int i = 0; i < 500 && (s = host_segment_serve(h, slot, id, epoch)) == TARN_EAGAIN; i++)
        wait_a_little(h);
    return s;
}

static struct host_segment_info info_of(struct host *h, unsigned slot) {
    struct host_segment_info info;
    CHECK(host_slot_get(h, slot, &info));
    return info;
}

static const struct segment_header *header_of(struct host *h, unsigned slot) {
    return pool_header(h->gate.slots[slot].pool);
}

/* --- one thread --- */

static void life(struct host *h) {
    void *addr;
    unsigned slot = open_segment(h, NULL);
    char *base = pool_base(h->gate.slots[slot].pool);
    CHECK_EQ(ask(h, GRANT_READ, 7, 5, &addr), GRANT_BAD_EPOCH);
    CHECK_EQ(info_of(h, slot).segment_epoch, 0);
    CHECK_EQ(info_of(h, slot).old_segment_epoch, 0);
    struct host_segment_info info;
    CHECK(!host_segment_get(h, 7, &info) && host_segment_base(h, 7) == NULL);

    CHECK_EQ(host_segment_serve(h, slot, 7, 0), TARN_EINVAL);
    CHECK_EQ(host_segment_serve(h, slot, 7, 5), TARN_OK); /* the first time at once */
    CHECK_EQ(ask(h, GRANT_READ, 7, 5, &addr), GRANT_OK);
    CHECK(addr == base + 4096 + 100);
    CHECK(host_segment_get(h, 7, &info) && host_segment_base(h, 7) == base);
    CHECK(info.id == 7 && info.segment_epoch == 5 && info.old_id == 7 &&
          info.old_segment_epoch == 5);
    CHECK(segment_header_valid(header_of(h, slot)));
    CHECK(segment_header_unchanged(header_of(h, slot), 3, 5));
    CHECK_EQ(host_segment_serve(h, slot, 7, 5), TARN_OK);

    unsigned other = open_segment(h, NULL);
    CHECK_EQ(host_segment_serve(h, other, 7, 6), TARN_EINVAL);
    memset(base, 9, SIZE);
    uint8_t content[16];
    memcpy(content, info.content, sizeof(content));
    CHECK(memcmp(content, info_of(h, other).content, sizeof(content)) != 0);

    CHECK_EQ(serve(h, slot, 9, 6), TARN_OK); /* the same bytes by another name */
    CHECK_EQ(ask(h, GRANT_READ, 7, 5, &addr), GRANT_BAD_EPOCH);
    CHECK_EQ(ask(h, GRANT_READ, 9, 5, &addr), GRANT_BAD_EPOCH);
    CHECK_EQ(ask(h, GRANT_WRITE, 9, 6, &addr), GRANT_OK);
    CHECK(segment_header_valid(header_of(h, slot)) && header_of(h, slot)->segment_id == 9);
    CHECK(segment_header_unchanged(header_of(h, slot), 3, 6));
    CHECK(memcmp(content, info_of(h, slot).content, sizeof(content)) == 0);
    CHECK_EQ(base[SIZE - 1], 9);
    CHECK_EQ(serve(h, other, 7, 6), TARN_OK); /* the name is free */

    host_segment_retire(h, slot, false);
    host_segment_retire(h, slot, false);
    CHECK_EQ(ask(h, GRANT_WRITE, 9, 6, &addr), GRANT_BAD_EPOCH);
    CHECK_EQ(segment_header_segment_epoch(header_of(h, slot)), 0);
    CHECK_EQ(host_segment_serve(h, slot, 9, 6), TARN_OK); /* whoever it was, it still is */
    CHECK_EQ(base[0], 9);

    host_segment_retire(h, slot, true);
    CHECK(memcmp(content, info_of(h, slot).content, sizeof(content)) != 0);
    memcpy(content, info_of(h, slot).content, sizeof(content));
    CHECK_EQ(info_of(h, slot).old_segment_epoch, 0);
    CHECK_EQ(base[0], 0); /* still there for the slow */
    CHECK_EQ(serve(h, slot, 9, 6), TARN_OK);
    CHECK(memcmp(content, info_of(h, slot).content, sizeof(content)) == 0);
    CHECK_EQ(ask(h, GRANT_WRITE, 9, 6, &addr), GRANT_OK);
    CHECK(addr == base + 4096 + 100 && base[0] == 0);
    host_set_authority(h, key, 4);
    CHECK_EQ(segment_header_master_epoch(header_of(h, slot)), 4);
    host_set_authority(h, key, 3);
}

TEST(a_segments_life) {
    struct host *h = make();
    life(h); /* before anybody listens */
    host_destroy(&h);
    h = make();
    CHECK_EQ(host_start(h), TARN_OK);
    life(h);
    host_destroy(&h);
}

TEST(places_are_bounded) {
    struct host *h = make();
    struct host_segment_config s = {.name = "n1.0", .size = 4096, .numa_node = -1};
    unsigned slot = 0;
    const char *why = NULL;
    for (unsigned i = 0; i < HOST_SLOTS_MAX; i++)
        CHECK_EQ(host_segment_open(h, &s, &slot, &why), TARN_OK);
    CHECK_EQ(slot, HOST_SLOTS_MAX - 1);
    CHECK_EQ(host_segment_open(h, &s, &slot, &why), TARN_EINVAL);
    CHECK(why != NULL);
    struct host_segment_info info;
    CHECK(!host_slot_get(h, HOST_SLOTS_MAX, &info));
    host_destroy(&h);
}

static void close_slot(struct host *h, unsigned slot) {
    for (int i = 0; host_slot_close(h, slot) == TARN_EAGAIN; i++) {
        CHECK(i < 1000);
        wait_a_little(h);
    }
}

TEST(memory_of_others_comes_and_goes) {
    struct host *h = make();
    static char memory[2][16384];
    unsigned slot, second;
    void *addr;
    CHECK_EQ(host_memory_open(h, NULL, 4096, -1, 0, &slot), TARN_EINVAL);
    CHECK_EQ(host_memory_open(h, memory[0], 0, -1, 0, &slot), TARN_EINVAL);
    CHECK_EQ(host_memory_open(h, memory[0], sizeof(memory[0]), -1, 0, &slot), TARN_OK);
    CHECK_EQ(host_start(h), TARN_OK);
    CHECK_EQ(ask(h, GRANT_WRITE, 4, 1, &addr), GRANT_BAD_EPOCH);
    CHECK_EQ(host_segment_serve(h, slot, 4, 1), TARN_OK);
    CHECK_EQ(ask(h, GRANT_WRITE, 4, 1, &addr), GRANT_OK);
    CHECK(addr == memory[0] + 4096 + 100);
    CHECK_STR(info_of(h, slot).backing, "memory");
    close_slot(h, slot);
    CHECK_EQ(ask(h, GRANT_READ, 4, 1, &addr), GRANT_BAD_EPOCH);
    /* Of a device: attached by who can, but never touched by a data thread. */
    int fd = memfd_create("device", MFD_CLOEXEC);
    CHECK_EQ(host_memory_open(h, memory[0], sizeof(memory[0]), fd, 0, &slot), TARN_OK);
    close(fd);
    CHECK_EQ(host_memory_open(h, memory[0], sizeof(memory[0]), fd, 0, &second), TARN_EINVAL);
    CHECK_EQ(host_segment_serve(h, slot, 4, 2), TARN_OK);
    CHECK_EQ(ask(h, GRANT_READ, 4, 2, &addr), GRANT_BAD_OP);
    CHECK_EQ(ask(h, GRANT_WRITE, 4, 2, &addr), GRANT_BAD_OP);
    close_slot(h, slot);
    /* Its number goes to the next one, of either kind, and as often as one likes. */
    for (uint32_t i = 0; i < 2 * HOST_SLOTS_MAX; i++) {
        struct host_segment_config s = {.size = 65536, .numa_node = -1};
        const char *why;
        if (i % 16 == 0)
            CHECK_EQ(host_segment_open(h, &s, &second, &why), TARN_OK);
        else
            CHECK_EQ(host_memory_open(h, memory[1], sizeof(memory[1]), -1, 0, &second), TARN_OK);
        CHECK_EQ(second, slot);
        CHECK_EQ(host_segment_serve(h, second, 5 + i, 1), TARN_OK);
        CHECK_EQ(ask(h, GRANT_WRITE, 5 + i, 1, &addr), GRANT_OK);
        if (i % 16 != 0) CHECK(addr == memory[1] + 4096 + 100);
        close_slot(h, second);
    }
    host_destroy(&h);
}

static tarn_status read_nothing(void *arg, uint64_t offset, uint64_t length, void *buffer,
                                void (*done)(void *done_arg, tarn_status status), void *done_arg) {
    (void)length, (void)buffer, (void)done, (void)done_arg;
    *(uint64_t *)arg = offset;
    return TARN_EBUSY;
}

TEST(a_reader_is_for_reading) {
    struct host *h = make();
    uint64_t asked = 0;
    struct host_reader r = {.arg = &asked, .read = read_nothing};
    unsigned slot;
    CHECK_EQ(host_reader_open(h, 0, &r, &slot), TARN_EINVAL);
    CHECK_EQ(host_reader_open(h, SIZE, &r, &slot), TARN_OK);
    void *addr = h;
    struct grant_extent x = {8, 5, 4096, 8192};
    CHECK_EQ(host_gate_stage(&h->gate, &x, 0, 1, NULL, NULL, NULL), TARN_ENOTFOUND);
    CHECK_EQ(host_segment_serve(h, slot, 8, 5), TARN_OK);
    CHECK_EQ(ask(h, GRANT_READ, 8, 5, &addr), GRANT_OK);
    CHECK(addr == NULL);
    CHECK_EQ(ask(h, GRANT_WRITE, 8, 5, &addr), GRANT_BAD_OP);
    CHECK_EQ(ask(h, GRANT_ATTACH_READ, 8, 5, &addr), GRANT_BAD_OP);
    CHECK_EQ(host_gate_stage(&h->gate, &x, 100, 50, NULL, NULL, NULL), TARN_EBUSY);
    CHECK_EQ(asked, 4196);
    CHECK(host_segment_base(h, 8) == NULL);
    CHECK_STR(info_of(h, slot).backing, "reader");
    host_segment_retire(h, slot, true);
    CHECK_EQ(ask(h, GRANT_READ, 8, 5, &addr), GRANT_BAD_EPOCH);
    CHECK_EQ(host_gate_stage(&h->gate, &x, 0, 1, NULL, NULL, NULL), TARN_ENOTFOUND);
    CHECK_EQ(serve(h, slot, 8, 6), TARN_OK);
    CHECK_EQ(host_gate_stage(&h->gate, &x, 0, 1, NULL, NULL, NULL), TARN_ENOTFOUND);
    host_destroy(&h);
}

TEST(a_reader_gets_another_size) {
    struct host *h = make();
    uint64_t asked = 0;
    struct host_reader r = {.arg = &asked, .read = read_nothing};
    unsigned slot;
    CHECK_EQ(host_reader_open(h, SIZE, &r, &slot), TARN_OK);
    CHECK_EQ(serve(h, slot, 8, 5), TARN_OK);
    host_segment_retire(h, slot, false);
    tarn_status status;
    while ((status = host_reader_resize(h, slot, SIZE / 2)) == TARN_EAGAIN) host_poll(h);
    CHECK_EQ(status, TARN_OK);
    CHECK_EQ(info_of(h, slot).size, SIZE / 2);
    CHECK_EQ(serve(h, slot, 8, 5), TARN_OK);
    host_destroy(&h);
}

/* --- pool files --- */

struct file {
    char dir[32], path[64];
};

static void file_init(struct file *f) {
    strcpy(f->dir, "/tmp/tarn-host-XXXXXX");
    CHECK(mkdtemp(f->dir) != NULL);
    snprintf(f->path, sizeof(f->path), "%s/pool", f->dir);
}
static void file_deinit(struct file *f) {
    unlink(f->path);
    rmdir(f->dir);
}

TEST(a_pool_file_comes_back_as_what_it_was) {
    struct file f;
    file_init(&f);
    struct host *h = make();
    unsigned slot = open_segment(h, f.path);
    CHECK_EQ(host_segment_serve(h, slot, 7, 5), TARN_OK);
    memset(host_segment_base(h, 7), 9, SIZE);
    struct host_segment_info before = info_of(h, slot);
    host_destroy(&h);

    h = make();
    slot = open_segment(h, f.path);
    struct host_segment_info now = info_of(h, slot);
    CHECK(now.warm && now.same_boot && !now.strangers);
    CHECK(now.old_id == 7 && now.old_segment_epoch == 5 && now.old_master_epoch == 3);
    CHECK(memcmp(now.content, before.content, 16) == 0);
    CHECK_EQ(host_segment_serve(h, slot, 7, 5), TARN_OK);
    CHECK_EQ(((char *)host_segment_base(h, 7))[0], 9);
    host_destroy(&h);
    file_deinit(&f);
}

/* Somebody who was given the file by a host process that is no more. Gone: munmap. */
static void *stranger(const struct file *f) {
    struct pool_config c = {.name = "n1.0", .size = SIZE, .numa_node = -1, .path = f->path};
    struct pool *p;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    pool_set_peers_epoch(p, 3);
    pool_serve(p, 7, 5, 3);
    void *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd(p, true), 0);
    CHECK(map != MAP_FAILED);
    pool_close(&p);
    return map;
}

TEST(strangers_delay_fences_and_other_names) {
    struct file f;
    file_init(&f);
    void *map = stranger(&f);
    struct host *h = make();
    unsigned slot = open_segment(h, f.path);
    CHECK(!info_of(h, slot).strangers); /* they were let in by this master */
    host_set_authority(h, key, 4);
    CHECK(info_of(h, slot).strangers);
    host_set_authority(h, key, 3);
    CHECK_EQ(host_start(h), TARN_OK);
    host_fence_before(h, 3);
    for (int i = 0; i < 500 && fenced.before != 3; i++) wait_a_little(h);
    CHECK_EQ(fenced.before, 3);
    CHECK_EQ(host_segment_serve(h, slot, 9, 6), TARN_EAGAIN);
    CHECK_EQ(host_segment_serve(h, slot, 7, 5), TARN_OK); /* as what they know it */
    host_fence(h, 8, HOST_FENCE_FOR_EVER);                /* it may be one of them */
    host_fence_before(h, 4);
    for (int i = 0; i < 30; i++) wait_a_little(h);
    struct host_stats st;
    host_get_stats(h, &st);
    CHECK_EQ(st.fences_pending, 2);
    CHECK(fenced.session == 0 && fenced.before == 3);
    CHECK_EQ(host_segment_serve(h, slot, 9, 6), TARN_EAGAIN);
    munmap(map, 8192);
    for (int i = 0; i < 500 && (fenced.session != 8 || fenced.before != 4); i++)
        wait_a_little(h); /* nothing tells us but time */
    CHECK(fenced.session == 8 && fenced.before == 4);
    CHECK_EQ(serve(h, slot, 9, 6), TARN_OK);
    host_destroy(&h);
    file_deinit(&f);
}

TEST(strangers_are_left_behind_with_the_content) {
    struct file f;
    file_init(&f);
    char *map = stranger(&f);
    struct host *h = make();
    unsigned slot = open_segment(h, f.path);
    CHECK_EQ(host_start(h), TARN_OK);
    host_fence(h, 8, HOST_FENCE_FOR_EVER);
    CHECK_EQ(host_segment_serve(h, slot, 9, 6), TARN_EAGAIN);
    host_set_authority(h, key, 4);
    CHECK(info_of(h, slot).strangers);
    host_segment_retire(h, slot, true);
    CHECK(!info_of(h, slot).strangers);
    host_set_authority(h, key, 3);
    CHECK_EQ(serve(h, slot, 9, 6), TARN_OK);
    for (int i = 0; i < 500 && fenced.session != 8; i++) wait_a_little(h);
    CHECK_EQ(fenced.session, 8);
    map[4096] = 1;
    CHECK_EQ(((char *)host_segment_base(h, 9))[0], 0);
    host_destroy(&h);
    munmap(map, 8192);
    file_deinit(&f);
}

/* --- many threads --- */

enum { ASKERS = 3, NAMES = 4 };

static struct {
    struct host *host;
    bool stop; /* atomic */
    bool wrong;
    uint64_t ok, refused; /* atomics */
    char *base[2];
    uint8_t grant[NAMES][GRANT_SIZE];
    struct grant_extent x[NAMES];
} race;

/* A segment under each of its names, or not at all, and never a fault. */
static void *asker(void *arg) {
    (void)arg;
    unsigned sum = 0;
    for (unsigned i = 0; !__atomic_load_n(&race.stop, __ATOMIC_ACQUIRE); i++) {
        unsigned n = i % NAMES;
        struct grant g;
        void *addr = NULL;
        enum grant_verdict v = host_gate_check(&race.host->gate, race.grant[n], &race.x[n],
                                               GRANT_WRITE, 0, 64, &g, &addr);
        if (v == GRANT_OK) {
            sum += *(volatile uint8_t *)addr;
            v = host_gate_recheck(&race.host->gate, &g, &race.x[n]);
            if (addr != race.base[n % 2] + 4096)
                __atomic_store_n(&race.wrong, true, __ATOMIC_RELAXED);
        }
        if (v != GRANT_OK && v != GRANT_BAD_EPOCH)
            __atomic_store_n(&race.wrong, true, __ATOMIC_RELAXED);
        __atomic_fetch_add(v == GRANT_OK ? &race.ok : &race.refused, 1, __ATOMIC_RELAXED);
    }
    return (void *)(uintptr_t)sum;
}

static void *authority(void *arg) {
    (void)arg;
    for (uint32_t i = 0; !__atomic_load_n(&race.stop, __ATOMIC_ACQUIRE); i++) {
        host_set_authority(race.host, key, 3); /* from any thread */
        usleep(100);
    }
    return NULL;
}

TEST(names_change_while_data_threads_ask) {
    race.host = make();
    CHECK_EQ(host_start(race.host), TARN_OK);
    unsigned slot[2];
    for (uint32_t i = 0; i < 2; i++) {
        slot[i] = open_segment(race.host, NULL);
        race.base[i] = pool_base(race.host->gate.slots[slot[i]].pool);
    }
    for (uint32_t n = 0; n < NAMES; n++) { /* segment n % 2 under the ids 7 and 8, and 17 and 18 */
        struct grant g = {GRANT_WRITE, 3, 8, clock_mono_ms() + 600000, 0};
        race.x[n] = (struct grant_extent){7 + n % 2 + n / 2 * 10, 5 + n, 4096, 8192};
        grant_seal(key, &g, &race.x[n], race.grant[n]);
    }
    pthread_t threads[ASKERS + 1];
    for (int i = 0; i < ASKERS; i++) CHECK_EQ(pthread_create(&threads[i], NULL, asker, NULL), 0);
    CHECK_EQ(pthread_create(&threads[ASKERS], NULL, authority, NULL), 0);
    tarn_status worst = TARN_OK;
    for (int i = 0; i < 200 && worst == TARN_OK; i++) {
        for (unsigned n = 0; n < NAMES && worst == TARN_OK; n++) {
            worst = serve(race.host, slot[n % 2], race.x[n].segment, race.x[n].segment_epoch);
            if (i % 10 == 9 && n >= 2) host_segment_retire(race.host, slot[n % 2], i % 20 == 19);
        }
    }
    if (worst == TARN_OK)
        worst = serve(race.host, slot[0], race.x[0].segment, race.x[0].segment_epoch);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && __atomic_load_n(&race.ok, __ATOMIC_RELAXED) == 0;
         i++)
        usleep(1000);
    __atomic_store_n(&race.stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i <= ASKERS; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(worst, TARN_OK);
    CHECK(!race.wrong);
    CHECK(race.ok > 0 && race.refused > 0);
    host_destroy(&race.host);
}

TEST_MAIN()
