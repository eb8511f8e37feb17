/* Part of the suite: segments that get another name, another epoch or another host, and who still
 * looks at the old ones. */
#include "fixture.h"

#define NEXT_SEGMENT 17u
static tarn_status served;
static void serve_next(struct world *world) {
    served = host_segment_serve(world->host, world->slot, NEXT_SEGMENT, world->segment_epoch + 1);
}
static void discard(struct world *world) {
    host_segment_retire(world->host, world->slot, true);
}

static bool is_served(void) {
    world_call(&w, serve_next);
    return served != TARN_EAGAIN;
}

/* o under the segment's next name. */
static void object_renamed(struct object *o) {
    for (size_t i = 0; i < o->n; i++) {
        o->x[i].segment = NEXT_SEGMENT;
        o->x[i].segment_epoch = w.segment_epoch + 1;
        world_grant(&w, GRANT_READ, 1, &o->x[i], o->grant[0][i]);
        world_grant(&w, GRANT_WRITE, 1, &o->x[i], o->grant[1][i]);
    }
}

TEST(a_segment_gets_another_name) {
    begin(4u << 20, false);
    uint8_t data[4096], in[4096];
    memset(data, 7, sizeof(data));
    struct object o, next;
    object_init(&o, 0, 4096, 1, 1);
    next = o;
    object_renamed(&next);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    bool now = is_served(); /* not while this process may write to it */
    CHECK(!now || (suite_flags() & TRANSPORT_GRANTED) != 0);
    CHECK_EQ(move(engine, &o, false, in, NULL), TARN_ESTALE);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_ESTALE);
    CHECK(!engine_segment_known(engine, WORLD_SEGMENT, w.segment_epoch));
    CHECK(WORLD_WAIT(is_served())); /* it has let go */
    CHECK_EQ(served, TARN_OK);
    CHECK(world_ready(&w, NEXT_SEGMENT, w.segment_epoch + 1));
    world_tell_of(&w, engine, 1, NEXT_SEGMENT, w.segment_epoch + 1);
    memset(in, 0, sizeof(in));
    CHECK_EQ(move(engine, &next, false, in, NULL), TARN_OK);
    CHECK(memcmp(in, data, sizeof(in)) == 0); /* what it holds is the same */
    CHECK_EQ(move(engine, &next, true, data, NULL), TARN_OK);
    world_tell(&w, engine, 1); /* by its old name nobody finds it */
    CHECK_EQ(move(engine, &o, false, in, NULL), TARN_ESTALE);
    CHECK_EQ(move(engine, &o, true, in, NULL), TARN_ESTALE);
    end();
}

TEST(a_fence_does_not_wait_for_what_is_nobodys) {
    NEEDS(TRANSPORT_MAP);
    begin(4u << 20, false);
    volatile uint8_t *map = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 0, 4096, true);
    CHECK(map != NULL);
    fence(1);
    usleep(50000);
    CHECK(!fenced(1));
    world_call(&w, discard);
    CHECK(WORLD_WAIT(fenced(1)));
    map[0] = 1; /* it still leads somewhere */
    end();
}

/* A pointer is good as long as what it leads to is what it was, whatever became of the segment
 * since. */
TEST(views_of_what_was_replaced) {
    NEEDS(TRANSPORT_MAP);
    begin(1u << 20, false);
    void *view = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 4096, 4096, false);
    CHECK(view != NULL);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, view), TARN_OK);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, &view), TARN_ESTALE);
    engine_session_changed(engine); /* a view is none of the session's */
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, view), TARN_OK);
    uint32_t next = w.master_epoch + 1;
    __atomic_store_n(&w.state->authority_wanted, next, __ATOMIC_RELEASE);
    CHECK(WORLD_WAIT(__atomic_load_n(&w.state->authority_wanted, __ATOMIC_ACQUIRE) == 0));
    uint8_t data[4096];
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    /* its mapping was put aside */
    CHECK(WORLD_WAIT(move(engine, &o, false, data, NULL) == TARN_ESTALE));
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, view), TARN_ESTALE);
    w.master_epoch = next;
    world_tell(&w, engine, 1);
    void *again = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 4096, 4096, false);
    CHECK(again != NULL && again != view);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, again), TARN_OK);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, view), TARN_ESTALE);
    CHECK_EQ(*(volatile uint8_t *)view, 0); /* who still looks does not fault */
    engine_views_left(engine, NULL, NULL);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, view), TARN_ESTALE);
    CHECK_EQ(engine_check(engine, WORLD_SEGMENT, w.segment_epoch, again), TARN_OK);
    end();
}

/* How many mappings of segment memory has this process? */
static int mappings(void) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;
    while (fgets(line, sizeof(line), f) != NULL) n += strstr(line, "tarn-pool") != NULL;
    fclose(f);
    return n;
}

TEST(memory_of_dead_hosts_is_let_go) {
    NEEDS(TRANSPORT_MAP);
    begin(1u << 20, true);
    uint8_t data[4096] = {1};
    struct object o;
    for (int i = 0; i < 4; i++) {
        object_init(&o, 0, 4096, 1, 1);
        CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
        CHECK_EQ(move(engine, &o, false, data, NULL), TARN_OK);
        CHECK(engine_attach(engine, WORLD_SEGMENT, w.segment_epoch, false));
        if (i % 2 == 1)
            CHECK(engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 0, 1, false) != NULL);
        CHECK_EQ(mappings(), 2);
        world_kill(&w);
        w.segment_epoch++;
        world_start(&w, true);
        world_tell(&w, engine, 1);   /* as its owner learns from the master */
        CHECK_EQ(mappings(), i % 2); /* one that somebody may look at */
        engine_views_left(engine, NULL, NULL);
        CHECK_EQ(mappings(), 0);
    }
    end();
}

/* Killed, and back with the same bytes under the same name, while a client has them mapped. */
TEST(a_pool_file_outlives_its_host) {
    char path[] = "/tmp/tarn-pool-XXXXXX";
    close(mkstemp(path));
    begin_pool = path;
    begin(1u << 20, true);
    begin_pool = NULL;
    bool mapped = (suite_flags() & TRANSPORT_MAP) != 0;
    uint8_t data[4096], in[4096];
    memset(data, 7, sizeof(data));
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    world_kill(&w);
    world_start(&w, true);
    CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
    fence(1); /* whoever has it from the host that died may be of this session */
    if (mapped) CHECK_EQ(move(engine, &o, false, in, NULL), TARN_ESTALE);
    engine_session_changed(engine);
    object_init(&o, 0, 4096, 1, 2);
    world_tell(&w, engine, 2);
    CHECK_EQ(move(engine, &o, false, in, NULL), TARN_OK);
    CHECK(memcmp(in, data, sizeof(in)) == 0);
    CHECK(WORLD_WAIT(fenced(1)));
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    unlink(path);
    end();
}

/* A child that the program forks holds its sockets, too, and does not know. */
TEST(a_child_with_our_sockets) {
    begin(1u << 20, true);
    uint8_t data[4096] = {1};
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    CHECK(peers() >= 1);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    engine_session_changed(engine);
    fence(1); /* what we have ended is ended */
    CHECK(WORLD_WAIT(fenced(1)));
    if ((suite_flags() & TRANSPORT_GRANTED) != 0)
        CHECK(WORLD_WAIT(world_stats(&w).connections == 0));
    world_kill(&w); /* the end of the connection is an event */
    w.segment_epoch++;
    world_start(&w, true);
    CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
    object_init(&o, 0, 4096, 1, 2);
    world_tell(&w, engine, 2);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    CHECK_EQ(move(engine, &o, false, data, NULL), TARN_OK);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    end();
}

/* A host that answers too late, and a client that has given up by then: nothing is lent, and no
 * fence waits. */
TEST(an_attach_that_comes_too_late) {
    NEEDS(TRANSPORT_MAP);
    for (int gone = 0; gone < 2; gone++) {
        begin_connect_ms = 2000;
        begin(1u << 20, true);
        begin_connect_ms = 0;
        world_pause(&w);
        CHECK(engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 0, 4096, true) == NULL);
        if (gone) engine_destroy(&engine); /* it has not even read the answer */
        kill(w.pid, SIGCONT);
        CHECK(WORLD_WAIT(world_stats(&w).shm_attaches == 1));
        if (!gone) {
            world_tell(&w, engine, 1);
            CHECK(engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 0, 4096, false) != NULL);
        }
        fence(1);
        CHECK(WORLD_WAIT(fenced(1)));
        end();
    }
}

static bool has_strangers;
static void look_for_strangers(struct world *world) {
    struct host_segment_info info;
    has_strangers = host_slot_get(world->host, world->slot, &info) && info.strangers;
}

TEST(an_idle_client_of_the_old_master_may_be_left_behind) {
    NEEDS(TRANSPORT_MAP);
    begin(4u << 20, false);
    CHECK(engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 0, 4096, true) != NULL);
    world_call(&w, look_for_strangers);
    CHECK(!has_strangers);
    uint32_t next = w.master_epoch + 1;
    __atomic_store_n(&w.state->authority_wanted, next, __ATOMIC_RELEASE);
    CHECK(WORLD_WAIT(__atomic_load_n(&w.state->authority_wanted, __ATOMIC_ACQUIRE) == 0));
    world_call(&w, look_for_strangers); /* after the authority has changed */
    CHECK(has_strangers);
    __atomic_store_n(&w.state->fence_before_wanted, next, __ATOMIC_RELEASE);
    usleep(50000);
    CHECK(__atomic_load_n(&w.state->fenced_before, __ATOMIC_ACQUIRE) != next);
    world_call(&w, discard);
    CHECK(WORLD_WAIT(__atomic_load_n(&w.state->fenced_before, __ATOMIC_ACQUIRE) == next));
    world_call(&w, look_for_strangers);
    CHECK(!has_strangers);
    end();
}

TEST(a_segment_without_its_content_need_not_wait) {
    begin(4u << 20, false);
    uint8_t data[4096];
    memset(data, 7, sizeof(data));
    struct object o, next;
    object_init(&o, 0, 4096, 1, 1);
    next = o;
    object_renamed(&next);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    volatile uint8_t *map = engine_map(engine, WORLD_SEGMENT, w.segment_epoch, 0, 4096, true);
    CHECK_EQ(map != NULL, (suite_flags() & TRANSPORT_MAP) != 0);
    world_call(&w, discard);
    CHECK(WORLD_WAIT(is_served()));
    CHECK_EQ(served, TARN_OK);
    CHECK(world_ready(&w, NEXT_SEGMENT, w.segment_epoch + 1));
    if (map != NULL) map[5] = 99; /* too late, and it leads nowhere */
    struct engine *e = world_engine(&w, SUITE, 1);
    world_tell_of(&w, e, 1, NEXT_SEGMENT, w.segment_epoch + 1);
    CHECK_EQ(move(e, &next, false, data, NULL), TARN_OK);
    for (size_t i = 0; i < sizeof(data); i++) CHECK_EQ(data[i], 0);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_ESTALE);
    CHECK_EQ(move(e, &next, false, data, NULL), TARN_OK);
    CHECK_EQ(data[0], 0);
    engine_destroy(&e);
    end();
}

static struct {
    bool stop; /* atomic */
    bool failed;
} renaming;

static void *reader_of_both(void *arg) {
    (void)arg;
    struct engine *e = world_engine(&w, SUITE, 1);
    world_tell_of(&w, e, 1, NEXT_SEGMENT, w.segment_epoch + 1);
    uint8_t in[4096];
    struct object o[2];
    object_init(&o[0], 0, 4096, 1, 1);
    o[1] = o[0];
    object_renamed(&o[1]);
    for (unsigned i = 0; !__atomic_load_n(&renaming.stop, __ATOMIC_ACQUIRE); i++) {
        struct engine_part parts[8];
        struct iovec iov;
        struct engine_op op = whole_op(&o[i % 2], false, parts, &iov, in);
        engine_run(e, &op, 1, clock_boot_ms() + WORLD_PATIENCE_MS);
        bool right = op.status == TARN_OK && in[0] == 7 && in[4095] == 7;
        /* they are being made */
        bool no_keys = op.status == TARN_ECLOSED && (suite_flags() & TRANSPORT_ANNOUNCES) != 0;
        if (op.status == TARN_ESTALE || no_keys) { /* what libtarn does then */
            world_tell(&w, e, 1);
            world_tell_of(&w, e, 1, NEXT_SEGMENT, w.segment_epoch + 1);
        } else if (!right) {
            renaming.failed = true;
        }
    }
    engine_destroy(&e);
    return NULL;
}

static void serve_first(struct world *world) {
    served = host_segment_serve(world->host, world->slot, WORLD_SEGMENT, world->segment_epoch);
}

TEST(names_change_while_many_read) {
    begin(4u << 20, false);
    uint8_t data[4096];
    memset(data, 7, sizeof(data));
    struct object o;
    object_init(&o, 0, 4096, 1, 1);
    CHECK_EQ(move(engine, &o, true, data, NULL), TARN_OK);
    engine_session_changed(engine);
    renaming.stop = renaming.failed = false;
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, reader_of_both, NULL), 0);
    unsigned wrong = 0;
    for (int i = 0; i < 40; i++) {
        void (*to)(struct world *) = i % 2 == 0 ? serve_next : serve_first;
        for (served = TARN_EAGAIN; served == TARN_EAGAIN;) world_call(&w, to);
        CHECK(world_ready(&w, i % 2 == 0 ? NEXT_SEGMENT : WORLD_SEGMENT,
                          w.segment_epoch + (i % 2 == 0)));
        wrong += served != TARN_OK;
        usleep(2000);
    }
    __atomic_store_n(&renaming.stop, true, __ATOMIC_RELEASE);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(wrong, 0);
    CHECK(!renaming.failed);
    end();
}

/* One of many finds out that the epoch has changed; the others are on the same mapping, and under
 * way. */
TEST(a_batch_in_which_the_epoch_ends) {
    enum { OPS = 64 };
    begin(1u << 20, false);
    static struct object o[OPS];
    static struct engine_part parts[OPS][8];
    static struct iovec iov[OPS];
    static struct engine_op ops[OPS];
    static uint8_t data[4096];
    for (int write = 1; write >= 0; write--) {
        object_init(&o[0], 0, 4096, 1, 1);
        CHECK_EQ(move(engine, &o[0], true, data, NULL), TARN_OK); /* attached for writing */
        uint32_t next = w.master_epoch + 1;
        __atomic_store_n(&w.state->authority_wanted, next, __ATOMIC_RELEASE);
        CHECK(WORLD_WAIT(__atomic_load_n(&w.state->authority_wanted, __ATOMIC_ACQUIRE) == 0));
        for (int i = 0; i < OPS; i++) {
            object_init(&o[i], (uint64_t)i * 4096, 4096, 1, 1);
            ops[i] = whole_op(&o[i], write, parts[i], &iov[i], data);
        }
        CHECK_EQ(engine_run(engine, ops, OPS, 0), TARN_OK);
        for (int i = 0; i < OPS; i++) CHECK_EQ(ops[i].status, TARN_ESTALE);
        w.master_epoch = next;
        engine_session_changed(engine);
        CHECK(world_ready(&w, WORLD_SEGMENT, w.segment_epoch));
        world_tell(&w, engine, 1);
    }
    end();
}
