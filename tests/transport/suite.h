/* The suite every transport has to pass. A program defines SUITE and includes this file; what a
 * transport's flags say does not apply is skipped. Everything goes through engine and host, the way
 * it is used. */
#include "fixture.h"

/* --- bytes --- */

TEST(round_trips) {
    static const uint64_t sizes[] = {1,     63,      64,          4095,           4096,     4097,
                                     65536, 1048575, 1048576 + 1, 8388608 + 4099, 64u << 20};
    static const size_t extents[] = {1, 3, 8};
    begin(96u << 20, false);
    uint8_t *out = malloc(64u << 20), *in = malloc(64u << 20);
    fill(out, 64u << 20, 1);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (size_t k = 0; k < ARRAY_LEN(extents); k++) {
            struct object o;
            object_init(&o, 8192 * k, sizes[i], extents[k], 1);
            uint32_t crc, expected = crc32c(0, out + k, sizes[i] - (sizes[i] > k ? k : 0));
            o.size = 0;
            for (size_t x = 0; x < o.n; x++) o.size += o.x[x].length;
            expected = crc32c(0, out, o.size);
            CHECK_EQ(move(engine, &o, true, out, &crc), TARN_OK);
            CHECK_EQ(crc, expected);
            memset(in, 0, o.size);
            CHECK_EQ(move(engine, &o, false, in, &crc), TARN_OK);
            CHECK_EQ(crc, expected);
            CHECK(memcmp(in, out, o.size) == 0);
            const char *base = host_segment_base(w.host, WORLD_SEGMENT);
            CHECK(memcmp(base + o.x[0].offset, out, o.x[0].length) == 0);
        }
    }
    free(out);
    free(in);
    end();
}

TEST(ranges_and_block_crcs) {
    begin(32u << 20, false);
    const uint64_t size = (5u << 20) + 12345, block = 1u << 20;
    uint8_t *out = malloc(size), *in = malloc(size);
    fill(out, size, 2);
    struct object o;
    object_init(&o, 0, size, 5, 1);
    CHECK_EQ(move(engine, &o, true, out, NULL), TARN_OK);
    struct rng r;
    rng_seed(&r, 3);
    for (int i = 0; i < 200; i++) {
        uint64_t from = rng_below(&r, size),
                 len = 1 + rng_below(&r, i % 2 ? size - from : min_u64(size - from, 9000));
        struct engine_part parts[8];
        uint32_t crcs[8];
        struct iovec iov[16]; /* odd pieces, an empty one among them */
        size_t n_iov = 0;
        for (uint64_t at = 0; at < len;) {
            uint64_t n =
                n_iov == 15 ? len - at : min_u64(len - at, n_iov == 3 ? 0 : 1 + rng_below(&r, len));
            iov[n_iov++] = (struct iovec){in + at, n};
            at += n;
        }
        struct engine_op op = {.parts = parts,
                               .n_parts = object_parts(&o, false, from, len, parts),
                               .iov = iov,
                               .n_iov = n_iov,
                               .want_crc = true,
                               .crcs = crcs,
                               .crc_block = block};
        memset(in, 0, len);
        CHECK_EQ(engine_run(engine, &op, 1, 0), TARN_OK);
        CHECK_EQ(op.status, TARN_OK);
        CHECK(memcmp(in, out + from, len) == 0);
        CHECK_EQ(op.crc, crc32c(0, out + from, len));
        for (uint64_t at = 0; at < len; at += block) {
            CHECK_EQ(crcs[at / block], crc32c(0, out + from + at, min_u64(block, len - at)));
        }
    }
    free(out);
    free(in);
    end();
}

TEST(thousands_of_operations_in_a_batch) {
    enum { OPS = 4000 };
    begin(64u << 20, false);
    static struct object o[OPS];
    static struct engine_part parts[OPS][8];
    static struct iovec iov[OPS];
    static struct engine_op ops[OPS];
    static uint8_t out[OPS][5000], in[OPS][5000];
    struct rng r;
    rng_seed(&r, 4);
    fill(&out[0][0], sizeof(out), 5);
    for (int write = 1; write >= 0; write--) {
        for (int i = 0; i < OPS; i++) {
            if (write)
                object_init(&o[i], (uint64_t)i * 16384, 1 + rng_below(&r, 5000), 1 + (i % 2), 1);
            ops[i] = whole_op(&o[i], write, parts[i], &iov[i], write ? out[i] : in[i]);
        }
        CHECK_EQ(engine_run(engine, ops, OPS, 0), TARN_OK);
        for (int i = 0; i < OPS; i++) {
            CHECK_EQ(ops[i].status, TARN_OK);
            CHECK_EQ(ops[i].crc, crc32c(0, out[i], o[i].size));
            if (!write) CHECK(memcmp(in[i], out[i], o[i].size) == 0);
        }
    }
    end();
}

/* Small ones of a length share requests; each has an answer of its own all the same. */
TEST(what_shares_a_request_fails_by_itself) {
    enum { OPS = 600 };
    begin(64u << 20, false);
    static struct object o[OPS];
    static struct engine_part parts[OPS][8];
    static struct iovec iov[OPS][2];
    static struct engine_op ops[OPS];
    static uint8_t out[OPS][6000], in[OPS][6000];
    fill(&out[0][0], sizeof(out), 6);
    for (int write = 1; write >= 0; write--) {
        for (int i = 0; i < OPS; i++) {
            uint64_t size = i % 3 == 0 ? 6000 : i % 7 == 0 ? 1 : 4096;
            if (write) object_init(&o[i], (uint64_t)i * 16384, size, 1, 1);
            ops[i] = whole_op(&o[i], write, parts[i], &iov[i][0], write ? out[i] : in[i]);
            ops[i].want_crc = i % 5 != 0;
            if (i % 2 == 1 && size > 1) { /* in two pieces, with an empty one between */
                iov[i][1] = (struct iovec){(char *)iov[i][0].iov_base + 100, size - 100};
                iov[i][0].iov_len = 100;
                ops[i].n_iov = 2;
            }
            if (!write) ops[i].lease_end_boot_ms = i % 50 == 7 ? 1 : clock_boot_ms() + 60000;
            if (i % 40 == 3)
                parts[i][0].extent.offset += 4096; /* not what the grant says, where there is one */
            if (i % 60 == 11) parts[i][0].extent.segment_epoch++;
            if (i % 60 == 13) parts[i][0].sub_length++;
        }
        CHECK_EQ(engine_run(engine, ops, OPS, 0), TARN_OK);
        for (int i = 0; i < OPS; i++) {
            bool moved = i % 40 == 3, granted = (suite_flags() & TRANSPORT_GRANTED) != 0;
            tarn_status want = i % 60 == 13            ? TARN_EINVAL
                               : !write && i % 50 == 7 ? TARN_ELEASE
                               : i % 60 == 11          ? TARN_ESTALE
                               : moved && granted      ? TARN_EPERM
                                                       : TARN_OK;
            CHECK_EQ(ops[i].status, want);
            if (want != TARN_OK) continue;
            if (ops[i].want_crc) CHECK_EQ(ops[i].crc, crc32c(0, write ? out[i] : in[i], o[i].size));
            if (!write && !moved) CHECK(memcmp(in[i], out[i], o[i].size) == 0);
        }
    }
    end();
}

struct worker {
    pthread_t thread;
    unsigned number;
    bool failed;
};

static void *work(void *arg) {
    struct worker *me = arg;
    struct engine *e = world_engine(&w, SUITE, 100 + me->number);
    const uint64_t size = 300000, mine = (uint64_t)me->number << 22;
    uint8_t *out = malloc(size), *in = malloc(size);
    for (unsigned i = 0; i < 60 / SCALE && !me->failed; i++) {
        struct object o;
        object_init(&o, mine + (i % 3) * 4096, size, 1 + i % 4, 100 + me->number);
        fill(out, size, me->number * 1000 + i);
        struct engine_part parts[8];
        struct iovec iov;
        for (int write = 1; write >= 0; write--) {
            struct engine_op op = whole_op(&o, write, parts, &iov, write ? out : in);
            engine_run(e, &op, 1, clock_boot_ms() + WORLD_PATIENCE_MS);
            if (op.status != TARN_OK || op.crc != crc32c(0, out, size)) me->failed = true;
        }
        if (memcmp(in, out, size) != 0) me->failed = true;
    }
    free(out);
    free(in);
    engine_destroy(&e);
    return NULL;
}

TEST(many_engines_at_once) {
    begin(64u << 20, false);
    struct worker workers[8] = {0};
    for (unsigned i = 0; i < 8; i++) {
        workers[i].number = i;
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 8; i++) pthread_join(workers[i].thread, NULL);
    for (unsigned i = 0; i < 8; i++) CHECK(!workers[i].failed);
    end();
}

/* --- rights --- */

/* Moves with the object's grants as they are now, a fresh connection each time. */
static tarn_status try_fresh(const struct object *o, bool write) {
    uint8_t data[4096];
    memset(data, 0xee, sizeof(data));
    struct engine *e = world_engine(&w, SUITE, 1);
    tarn_status s = move(e, o, write, data, NULL);
    engine_destroy(&e);
    return s;
}

static bool untouched(void) {
    const uint8_t *p = host_segment_base(w.host, WORLD_SEGMENT);
    for (size_t i = 0; i < 65536; i++) {
        if (p[i] != 0) return false;
    }
    return true;
}

TEST(grants_are_checked_bit_by_bit) {
    NEEDS(TRANSPORT_GRANTED);
    begin(1u << 20, false);
    uint8_t data[4096];
    for (int write = 0; write < 2; write++) {
        for (unsigned bit = 0; bit < 8 * GRANT_SIZE; bit++) {
            struct object o;
            object_init(&o, 0, 4096, 1, 1);
            o.grant[write][0][bit / 8] ^= (uint8_t)(1u << bit % 8);
            memset(data, 0xee, sizeof(data));
            CHECK(move(engine, &o, write, data, NULL) != TARN_OK);
        }
    }
    CHECK(untouched());
    struct host_stats s = world_stats(&w);
    CHECK_EQ(s.refused[GRANT_BAD_MAC] + s.refused[GRANT_BAD_EPOCH], 2 * 8 * GRANT_SIZE);
    CHECK_EQ(s.refused[GRANT_BAD_EPOCH], 2 * 32); /* those that only claim another epoch */
    CHECK_EQ(s.connections_total, 1);             /* a refusal costs nobody the connection */
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    end();
}

TEST(grants_for_something_else_are_refused) {
    NEEDS(TRANSPORT_GRANTED);
    begin(1u << 20, false);
    struct object o;
    object_init(&o, 0, 4096, 1, 1); /* a read grant does not write, nor the other way round */
    memcpy(o.grant[1][0], o.grant[0][0], GRANT_SIZE);
    CHECK_EQ(try_fresh(&o, true), TARN_EPERM);
    object_init(&o, 0, 4096, 1, 1);
    memcpy(o.grant[0][0], o.grant[1][0], GRANT_SIZE);
    CHECK_EQ(try_fresh(&o, false), TARN_EPERM);

    object_init(&o, 0, 4096, 1, 1); /* another range, a longer one */
    o.x[0].offset = 4096;
    CHECK_EQ(try_fresh(&o, true), TARN_EPERM);
    object_init(&o, 0, 2048, 1, 1);
    o.x[0].length = o.size = 4096;
    CHECK_EQ(try_fresh(&o, true), TARN_EPERM);
    object_init(&o, (1u << 20) - 4096, 8192, 1, 1); /* signed, but not inside the segment */
    o.x[0].length = 8192;
    CHECK(try_fresh(&o, false) != TARN_OK || o.size == 0);

    struct grant g = {GRANT_WRITE, w.master_epoch, 1, clock_mono_ms() - 1, 0}; /* too late */
    object_init(&o, 0, 4096, 1, 1);
    grant_seal(w.key, &g, &o.x[0], o.grant[1][0]);
    CHECK_EQ(try_fresh(&o, true), TARN_EGRANT_EXPIRED);

    g = (struct grant){GRANT_WRITE, w.master_epoch - 1, 1, clock_mono_ms() + 1000,
                       0}; /* of an older master */
    grant_seal(w.key, &g, &o.x[0], o.grant[1][0]);
    CHECK_EQ(try_fresh(&o, true), TARN_ESTALE);
    g.master_epoch = w.master_epoch;
    uint8_t other_key[GRANT_KEY_SIZE] = {9}; /* of another host */
    grant_seal(other_key, &g, &o.x[0], o.grant[1][0]);
    CHECK_EQ(try_fresh(&o, true), TARN_EPERM);
    CHECK(untouched());
    struct host_stats s = world_stats(&w);
    CHECK_EQ(s.refused[GRANT_EXPIRED], 1);
    CHECK(s.refused[GRANT_BAD_OP] >= 2);
    end();
}

TEST(a_connection_belongs_to_one_session) {
    NEEDS(TRANSPORT_GRANTED);
    begin(1u << 20, false);
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    object_init(&o, 0, 4096, 1, 2);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_EPERM);
    engine_session_changed(engine);
    world_tell(&w, engine, 2);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    end();
}

TEST(attach_grants_are_checked) {
    NEEDS(TRANSPORT_MAP);
    begin(1u << 20, false);
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    struct grant_extent whole = world_extent(&w, 0, w.size);
    uint8_t attach[GRANT_SIZE];
    struct engine_segment seg = {.id = WORLD_SEGMENT,
                                 .epoch = w.segment_epoch,
                                 .size = w.size,
                                 .attach = {attach, attach},
                                 .same_host = true};
    struct world_uris uris = {.data = ""};
    world_ways(&w, &seg, &uris);
    struct engine_config config;
    engine_config_init(&config);
    config.transport = "shm";
    for (unsigned bit = 0; bit <= 8 * GRANT_SIZE; bit++) {
        world_grant(&w, GRANT_ATTACH_WRITE, 1, &whole, attach);
        if (bit < 8 * GRANT_SIZE) attach[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct engine *e;
        CHECK_EQ(engine_create(&config, &e), TARN_OK);
        CHECK_EQ(engine_segment_set(e, &seg), TARN_OK);
        CHECK(engine_map(e, WORLD_SEGMENT, w.segment_epoch, 0, 4096, false) == NULL); /* wrong op */
        /* a clean slate */
        if (bit == 8 * GRANT_SIZE) engine_segment_set(e, &seg);
        tarn_status s = move(e, &o, true, data, NULL);
        CHECK_EQ(s == TARN_OK, bit == 8 * GRANT_SIZE);
        engine_destroy(&e);
    }
    struct host_stats s = world_stats(&w);
    CHECK_EQ(s.shm_attaches, 1);
    CHECK(s.refused[GRANT_BAD_MAC] > 0);
    end();
}

TEST(read_only_descriptors_are_read_only) {
    NEEDS(TRANSPORT_MAP);
    begin(1u << 20, false);
    volatile uint8_t *p = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 4096, 4096, false);
    CHECK(p != NULL && p[0] == 0);
    pid_t pid = fork(); /* DONTFORK: the child has no such memory */
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        close(2);
        _exit(p[0]);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    volatile uint8_t *q = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 4096, 4096, true);
    CHECK(q != NULL && q != p);
    q[17] = 99;
    CHECK_EQ(p[17], 99);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, (void *)(uintptr_t)q), TARN_OK);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, (void *)(uintptr_t)p), TARN_OK);
    CHECK(engine_map(engine, WORLD_SEGMENT, w.segment_epoch, w.size - 4096, 8192, false) == NULL);
    CHECK(engine_map(engine, WORLD_SEGMENT, w.segment_epoch + 1, 0, 1, false) == NULL);
    end();
}

/* --- fences --- */

TEST(a_fenced_session_is_refused) {
    begin(1u << 20, false);
    uint8_t data[4096] = {1};
    struct object o;
    fence(77); /* never seen: at once */
    CHECK(WORLD_WAIT(fenced(77)));
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    fence(1);
    if ((suite_flags() & TRANSPORT_MAP) != 0) {
        usleep(100000);
        CHECK(!fenced(1)); /* this process has it writable */
        engine_session_changed(engine);
    }
    CHECK(WORLD_WAIT(fenced(1)));
    engine_session_changed(engine);
    world_tell(&w, engine, 1);
    memset(data, 2, sizeof(data));
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_EPERM);
    const uint8_t *base = host_segment_base(w.host, WORLD_SEGMENT);
    CHECK_EQ(base[1], 0);
    CHECK_EQ(base[0], 1);
    world_tell(&w, engine, 2); /* life goes on under another */
    object_init(&o, 0, 4096, 1, 2);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    CHECK(world_stats(&w).refused[GRANT_FENCED] > 0);
    end();
}

TEST(a_stopped_process_delays_the_fence) {
    NEEDS(TRANSPORT_MAP);
    begin(1u << 20, true); /* the host in a child: this process has no threads and may fork */
    bool *ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[2];
    for (int writable = 0; writable < 2; writable++) {
        pids[writable] = fork();
        if (pids[writable] == 0) {
            struct engine *e = world_engine(&w, "shm", 50 + (unsigned)writable);
            volatile char *p = engine_map(e, WORLD_SEGMENT, w.segment_epoch, 0, 4096, writable);
            if (p == NULL) _exit(1);
            if (writable) p[0] = 1;
            __atomic_store_n(&ready[writable], true, __ATOMIC_RELEASE);
            for (;;) pause();
        }
    }
    CHECK(WORLD_WAIT(__atomic_load_n(&ready[0], __ATOMIC_ACQUIRE) &&
                     __atomic_load_n(&ready[1], __ATOMIC_ACQUIRE)));
    CHECK_EQ(world_stats(&w).shm_peers, 2);
    kill(pids[0], SIGSTOP);
    kill(pids[1], SIGSTOP);
    fence(50); /* a reader does not delay it */
    CHECK(WORLD_WAIT(fenced(50)));
    fence(51);
    CHECK(WORLD_WAIT(world_stats(&w).fences_pending == 1));
    usleep(200000);
    CHECK(!fenced(51));
    CHECK_EQ(world_stats(&w).fences_pending, 1);
    kill(pids[1], SIGKILL);
    CHECK(WORLD_WAIT(fenced(51)));
    kill(pids[0], SIGKILL);
    waitpid(pids[0], NULL, 0);
    waitpid(pids[1], NULL, 0);
    CHECK(WORLD_WAIT(world_stats(&w).shm_peers == 0));
    munmap(ready, 4096);
    end();
}

TEST(a_new_master_epoch_ends_the_old) {
    begin(1u << 20, false);
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    CHECK_EQ(move(engine, &o, false, data, NULL), TARN_OK);
    CHECK(engine_segment_known(engine, WORLD_SEGMENT, w.segment_epoch));
    uint32_t next = w.master_epoch + 1;
    __atomic_store_n(&w.state->authority_wanted, next, __ATOMIC_RELEASE);
    CHECK(WORLD_WAIT(__atomic_load_n(&w.state->authority_wanted, __ATOMIC_ACQUIRE) == 0));
    CHECK_EQ(move(engine, &o, false, data, NULL), TARN_ESTALE);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_ESTALE);
    CHECK(!engine_segment_known(engine, WORLD_SEGMENT, w.segment_epoch));
    __atomic_store_n(&w.state->fence_before_wanted, next, __ATOMIC_RELEASE);
    engine_session_changed(engine);
    CHECK(WORLD_WAIT(__atomic_load_n(&w.state->fenced_before, __ATOMIC_ACQUIRE) == next));
    w.master_epoch = next;
    CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
    world_tell(&w, engine, 2);
    object_init(&o, 0, 4096, 1, 2);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    CHECK_EQ(move(engine, &o, false, data, NULL), TARN_OK);
    end();
}

#include "suite_names.h"
#include "suite_trouble.h"
