/* Transfers between two ends: in one process, in forked ones, by every transport that is there.
 * Names, which need a master, are tested in tests/integration/transfer_test.tcl; peers that lie or
 * do not know the secret in transfer_peers_test.c. */
#include "pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "client/client.h"
#include "client/error.h"
#include "engine/engine.h"

/* --- merging --- */

TEST(neighbouring_blocks_become_one_task) {
    static const uint64_t from[] = {5, 6, 7, 12, 13}, to[] = {2, 3, 4, 8, 9};
    tarn_transfer_task tasks[5];
    char *local = (char *)4096;
    CHECK_EQ(tarn_transfer_merge(TARN_TRANSFER_READ, local, to, 3, 1000, from, 5, 100, tasks, 5),
             2);
    CHECK(tasks[0].local == local + 200 && tasks[0].remote == 1500 && tasks[0].length == 300);
    CHECK(tasks[1].local == local + 800 && tasks[1].remote == 2200 && tasks[1].length == 200);
    CHECK(tasks[0].op == TARN_TRANSFER_READ && tasks[0].region == 3);
    /* Neighbours on one side only are none; an end of the list is an end. */
    static const uint64_t apart[] = {2, 3, 5, 6, 7};
    CHECK_EQ(tarn_transfer_merge(TARN_TRANSFER_WRITE, local, apart, 3, 0, from, 5, 100, tasks, 5),
             3);
    static const uint64_t down[] = {9, 8, 7, 6, 5};
    CHECK_EQ(tarn_transfer_merge(TARN_TRANSFER_WRITE, local, down, 3, 0, down, 5, 100, tasks, 5),
             5);
    CHECK_EQ(tarn_transfer_merge(TARN_TRANSFER_WRITE, local, from, 3, 0, from, 0, 100, tasks, 5),
             0);
    tasks[1].length = 77;
    CHECK_EQ(tarn_transfer_merge(TARN_TRANSFER_READ, local, to, 3, 0, from, 5, 100, tasks, 1), 2);
    CHECK_EQ(tasks[1].length, 77); /* beyond max nothing is written */
}

/* --- moving --- */

static void moves(const char *transport, bool made_by_us, const char *expected) {
    struct pair p = pair_open(transport, made_by_us, TARN_TRANSFER_READ | TARN_TRANSFER_WRITE);
    static char local[3 * MIB];
    static const uint64_t from[] = {5, 6, 7, 12, 13}, to[] = {2, 3, 4, 8, 9};
    const uint64_t block = 65536;
    tarn_transfer_task tasks[6];
    memset(local, 0, sizeof(local));
    CHECK_EQ(tarn_transfer_register(p.user, local, sizeof(local), 0, NULL, NULL), TARN_OK);
    size_t n =
        tarn_transfer_merge(TARN_TRANSFER_READ, local, to, p.region, 0, from, 5, block, tasks, 6);
    tarn_transfer_batch *batch;
    CHECK_EQ(tarn_transfer_submit(p.peer, tasks, n, NULL, &batch), TARN_OK);
    CHECK_EQ(tarn_transfer_wait(batch, 10000), TARN_OK);
    tarn_transfer_batch_info info = {.size = sizeof(info)};
    CHECK_EQ(tarn_transfer_get_batch(batch, &info), TARN_OK);
    CHECK_EQ(info.state, TARN_TRANSFER_OVER);
    CHECK_EQ(info.operations, 2);
    CHECK_EQ(info.bytes, 5 * block);
    if (expected != NULL) CHECK_STR(info.transport, expected);
    tarn_transfer_release(&batch);
    CHECK(batch == NULL);
    for (int i = 0; i < 5; i++)
        CHECK(memcmp(local + to[i] * block, p.memory + from[i] * block, block) == 0);
    CHECK(local[0] == 0 && local[5 * block] == 0 && local[10 * block] == 0);

    /* Written by address; single blocks that are neighbours are merged, too. */
    fill(local, sizeof(local), 7);
    for (size_t i = 0; i < 6; i++) {
        tasks[i] = (tarn_transfer_task){.op = TARN_TRANSFER_WRITE,
                                        .local = local + i * 4096,
                                        .remote = (uintptr_t)p.memory + 100 + i * 4096 + (i >= 3),
                                        .length = 4096};
    }
    CHECK_EQ(tarn_transfer_submit(p.peer, tasks, 6, NULL, &batch), TARN_OK);
    CHECK_EQ(tarn_transfer_wait(batch, 10000), TARN_OK);
    CHECK_EQ(tarn_transfer_get_batch(batch, &info), TARN_OK);
    CHECK_EQ(info.operations, 2);
    tarn_transfer_release(&batch);
    CHECK(memcmp(p.memory + 100, local, 3 * 4096) == 0);
    CHECK(memcmp(p.memory + 101 + 3 * 4096, local + 3 * 4096, 3 * 4096) == 0);
    for (size_t i = 0; i < 6; i++)
        CHECK(tasks[i].status == TARN_OK && tasks[i].done == 4096 && tasks[i].settled == 1);

    tarn_transfer_stats s = {.size = sizeof(s)};
    CHECK_EQ(tarn_transfer_get_stats(p.user, &s), TARN_OK);
    CHECK_EQ(s.bytes_read, 5 * block);
    CHECK_EQ(s.bytes_written, 6 * 4096);
    CHECK_EQ(s.operations, 4);
    CHECK_EQ(s.peers_out, 1);
    CHECK_EQ(tarn_transfer_unregister(p.user, local), TARN_OK);
    pair_close(&p, made_by_us);
}

TEST(by_tcp) {
    moves("tcp", false, "tcp");
    moves("tcp", true, "tcp");
}
TEST(by_shm) {
    moves("shm", true, "shm");
}
TEST(by_what_there_is) {
    moves("auto", true, "shm");
    moves("auto", false, NULL); /* no file that shm could map */
}
TEST(rights_and_bounds) {
    struct pair p = pair_open("tcp", true, TARN_TRANSFER_READ);
    static char local[8192];
    char other[100];
    tarn_transfer_task good = {
        .op = TARN_TRANSFER_READ, .region = p.region, .local = local, .remote = 10, .length = 10};
    tarn_transfer_task tasks[7] = {good, good, good, good, good, good, good};
    tasks[1].op = TARN_TRANSFER_WRITE; /* not allowed */
    tasks[2].remote = p.size - 9;      /* past the end */
    tasks[3].remote = UINT64_MAX - 4;  /* overflows */
    tasks[4].region = p.region + 1;    /* nobody's */
    tasks[5].region = 0;               /* an address in no region */
    tasks[5].remote = (uintptr_t)other;
    tasks[6].length = 0;
    CHECK_EQ(tarn_transfer_run(p.peer, tasks, 7, NULL), TARN_EPERM); /* the first that failed */
    static const tarn_status expected[] = {TARN_OK,        TARN_EPERM,     TARN_EINVAL, TARN_EINVAL,
                                           TARN_ENOTFOUND, TARN_ENOTFOUND, TARN_OK};
    for (int i = 0; i < 7; i++) CHECK_EQ(tasks[i].status, expected[i]);
    CHECK(memcmp(local, p.memory + 10, 10) == 0);
    tasks[0].op = 3;
    CHECK_EQ(tarn_transfer_run(p.peer, tasks, 1, NULL), TARN_EINVAL);
    CHECK_EQ(tarn_transfer_run(p.peer, tasks, 0, NULL), TARN_EINVAL);

    tarn_transfer_region regions[2];
    size_t n;
    CHECK_EQ(tarn_transfer_peer_regions(p.peer, regions, 2, &n), TARN_OK);
    CHECK_EQ(n, 1);
    CHECK(regions[0].id == p.region && regions[0].address == (uintptr_t)p.memory &&
          regions[0].length == p.size);
    CHECK_EQ(regions[0].rights, TARN_TRANSFER_READ);
    CHECK_STR(regions[0].name, "kv");
    pair_close(&p, true);
}

TEST(regions_come_and_go) {
    struct pair p = pair_open("auto", true, TARN_TRANSFER_READ);
    char local[64], *memory = p.memory;
    CHECK_EQ(tarn_transfer_register(p.owner, memory + 4096, 10, TARN_TRANSFER_READ, NULL, NULL),
             TARN_EEXISTS);
    CHECK_EQ(tarn_transfer_register(p.owner, NULL, 10, TARN_TRANSFER_READ, NULL, NULL),
             TARN_EINVAL);
    CHECK_EQ(tarn_transfer_register(p.owner, local, 0, TARN_TRANSFER_READ, NULL, NULL),
             TARN_EINVAL);
    CHECK_EQ(tarn_transfer_register(p.owner, local, 10, 4, NULL, NULL), TARN_EINVAL);
    CHECK_EQ(tarn_transfer_unregister(p.owner, memory + 1), TARN_ENOTFOUND);
    uint32_t last = p.region;
    for (int i = 0; i < 300;
         i++) { /* more than there may be at a time, and than an engine remembers */
        tarn_transfer_task task = {
            .op = TARN_TRANSFER_READ, .region = last, .local = local, .remote = 5, .length = 64};
        CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, NULL), TARN_OK);
        CHECK(memcmp(local, memory + 5, 64) == 0);
        CHECK_EQ(tarn_transfer_unregister(p.owner, memory), TARN_OK);
        CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, NULL), TARN_ENOTFOUND);
        uint32_t region;
        CHECK_EQ(tarn_transfer_alloc(p.owner, 4096, TARN_TRANSFER_READ, NULL, 0, (void **)&memory,
                                     &region),
                 TARN_OK);
        CHECK(region != last);
        last = region;
        fill(memory, 4096, (unsigned)i);
    }
    pair_close(&p, true);
}

/* A peer that knows of a region which is no more, and goes on regardless, gets nothing. */
TEST(old_grants_are_worthless) {
    struct pair p = pair_open("tcp", false, TARN_TRANSFER_READ | TARN_TRANSFER_WRITE);
    char local[64];
    tarn_transfer_task task = {
        .op = TARN_TRANSFER_READ, .region = p.region, .local = local, .length = 64};
    CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, NULL), TARN_OK);
    pthread_mutex_lock(&p.user->mutex);
    struct transfer_map *old = p.peer->map;
    old->refs++;
    pthread_mutex_unlock(&p.user->mutex);
    CHECK_EQ(tarn_transfer_unregister(p.owner, p.memory), TARN_OK);
    struct engine_config config;
    engine_config_init(&config);
    struct engine *e;
    CHECK_EQ(engine_create(&config, &e), TARN_OK);
    const struct transfer_far *f = &old->regions[0];
    struct engine_segment s = {.id = f->id, .epoch = f->epoch, .size = f->length};
    CHECK(engine_segment_way(&s, old->data_uri) != NULL);
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    struct iovec iov = {local, 64};
    struct engine_part part = {{f->id, f->epoch, 0, f->length}, f->grant[1], 0, 64};
    struct engine_op op = {.write = true, .parts = &part, .n_parts = 1, .iov = &iov, .n_iov = 1};
    memset(local, 'x', 64);
    CHECK_EQ(engine_run(e, &op, 1, now_ms() + 60000), TARN_OK);
    CHECK_EQ(op.status, TARN_ESTALE);
    engine_destroy(&e);
    pthread_mutex_lock(&p.user->mutex);
    transfer_map_put(&old);
    pthread_mutex_unlock(&p.user->mutex);
    CHECK(p.memory[0] != 'x');
    CHECK_EQ(tarn_transfer_register(p.owner, p.memory, p.size, 0, NULL, NULL), TARN_OK);
    pair_close(&p, false);
}

/* --- labels and events --- */

struct waiter {
    struct pair *pair;
    const char *label;
    tarn_status status;
    char info[32];
    size_t len;
    char error[200];
};

static void *wait_for_label(void *arg) {
    struct waiter *w = arg;
    w->status =
        tarn_transfer_wait_ready(w->pair->peer, w->label, 60000, w->info, sizeof(w->info), &w->len);
    snprintf(w->error, sizeof(w->error), "%s", tarn_last_error());
    return NULL;
}

static bool wait_until_wanted(struct pair *p, unsigned n) {
    for (int i = 0; i < 3000; i++) {
        unsigned waits = 0;
        struct transfer_conn *c;
        pthread_mutex_lock(&p->owner->mutex);
        LIST_FOREACH(c, &p->owner->conns, link) waits += c->n_waits;
        pthread_mutex_unlock(&p->owner->mutex);
        if (waits == n) return true;
        usleep(10000);
    }
    return false;
}

TEST(who_waits_is_told) {
    struct pair p = pair_open("tcp", true, TARN_TRANSFER_READ);
    pthread_t thread[2];
    struct waiter w[2] = {{.pair = &p, .label = "request 7"}, {.pair = &p, .label = "request 8"}};
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, wait_for_label, &w[i]);
    CHECK(wait_until_wanted(&p, 2));
    tarn_transfer_ready_options o;
    tarn_transfer_ready_options_init(&o);
    o.info = "5 6 7";
    o.info_len = 5;
    CHECK_EQ(tarn_transfer_ready(p.owner, "request 7", &o), TARN_OK);
    pthread_join(thread[0], NULL);
    CHECK_EQ(w[0].status, TARN_OK);
    CHECK_EQ(w[0].len, 5);
    CHECK(memcmp(w[0].info, "5 6 7", 5) == 0);
    CHECK_EQ(tarn_transfer_ready(p.owner, "request 7", &o), TARN_EEXISTS);
    CHECK_EQ(tarn_transfer_abort(p.owner, "request 8", "out of memory"), TARN_OK);
    pthread_join(thread[1], NULL);
    CHECK_EQ(w[1].status, TARN_ECANCELED);
    CHECK(strstr(w[1].error, "out of memory") != NULL);
    no_event(p.owner); /* it never was ready */

    size_t len;
    char small[2];
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "request 7", 1000, small, sizeof(small), &len),
             TARN_OK);
    CHECK_EQ(len, 5);
    CHECK_EQ(tarn_transfer_done(p.peer, "request 7", "thanks", 6, 0), TARN_OK);
    next_event(p.owner, TARN_TRANSFER_DONE, "request 7", "thanks");
    CHECK_EQ(tarn_transfer_done(p.peer, "request 7", NULL, 0, 0), TARN_ENOTFOUND);
    uint64_t start = clock_mono_ms();
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "request 7", 150, NULL, 0, NULL), TARN_ETIMEOUT);
    CHECK(clock_mono_ms() - start >= 140);
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "", 150, NULL, 0, NULL), TARN_EINVAL);
    tarn_transfer_stats s = {.size = sizeof(s)};
    CHECK_EQ(tarn_transfer_get_stats(p.owner, &s), TARN_OK);
    CHECK_EQ(s.labels, 1); /* the aborted one, for those who come late */
    pair_close(&p, true);
}

TEST(labels_end) {
    struct pair p = pair_open("tcp", true, TARN_TRANSFER_READ);
    tarn_transfer_ready_options o;
    tarn_transfer_ready_options_init(&o);
    o.peers = 2;
    CHECK_EQ(tarn_transfer_ready(p.owner, "two", &o), TARN_OK);
    /* it does not know what for */
    CHECK_EQ(tarn_transfer_done(p.peer, "two", NULL, 0, 0), TARN_ECANCELED);
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "two", 1000, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(tarn_transfer_done(p.peer, "two", NULL, 0, 0), TARN_OK);
    next_event(p.owner, TARN_TRANSFER_DONE, "two", "");
    CHECK_EQ(tarn_transfer_give_up(p.peer, "two", "no use for it", 0), TARN_OK);
    next_event(p.owner, TARN_TRANSFER_GAVE_UP, "two", "no use for it");
    CHECK_EQ(tarn_transfer_done(p.peer, "two", NULL, 0, 0), TARN_ENOTFOUND);

    tarn_transfer_ready_options_init(&o);
    o.keep_ms = 100;
    CHECK_EQ(tarn_transfer_ready(p.owner, "short", &o), TARN_OK);
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "short", 1000, NULL, 0, NULL), TARN_OK);
    tarn_transfer_event e = {.size = sizeof(e)};
    CHECK_EQ(tarn_transfer_next_event(p.owner, 5000, &e), TARN_OK);
    CHECK_EQ(e.kind, TARN_TRANSFER_ABORTED);
    tarn_free(e.data);
    /* What was read in between is not what was meant. */
    CHECK_EQ(tarn_transfer_done(p.peer, "short", NULL, 0, 0), TARN_ECANCELED);
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "short", 1000, NULL, 0, NULL), TARN_ECANCELED);
    /* the same name, other blocks */
    CHECK_EQ(tarn_transfer_ready(p.owner, "short", NULL), TARN_OK);
    CHECK_EQ(tarn_transfer_done(p.peer, "short", NULL, 0, 0), TARN_ECANCELED);
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "short", 1000, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(tarn_transfer_done(p.peer, "short", NULL, 0, 0), TARN_OK);
    next_event(p.owner, TARN_TRANSFER_DONE, "short", "");

    /* A peer that is told and goes away has given it up, as often as it was told. */
    o.peers = 3;
    o.keep_ms = 0;
    CHECK_EQ(tarn_transfer_ready(p.owner, "left", &o), TARN_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(tarn_transfer_wait_ready(p.peer, "left", 1000, NULL, 0, NULL), TARN_OK);
    tarn_transfer_disconnect(&p.peer);
    for (int i = 0; i < 2; i++)
        next_event(p.owner, TARN_TRANSFER_GAVE_UP, "left", "the peer went away");
    no_event(p.owner);
    CHECK_EQ(tarn_transfer_connect(p.user, tarn_transfer_endpoint(p.owner), 0, &p.peer), TARN_OK);
    pair_close(&p, true);
}

TEST(aborting_cuts_writers_off) {
    struct pair p = pair_open("auto", true, TARN_TRANSFER_WRITE);
    char local[64] = "bytes";
    tarn_transfer_task task = {
        .op = TARN_TRANSFER_WRITE, .region = p.region, .local = local, .length = 64};
    tarn_transfer_ready_options o;
    tarn_transfer_ready_options_init(&o);
    o.cut = 1;
    CHECK_EQ(tarn_transfer_ready(p.owner, "in", &o), TARN_OK);
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "in", 1000, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, NULL), TARN_OK);
    CHECK_EQ(tarn_transfer_abort(p.owner, "in", "enough"), TARN_OK);
    /* Its mapping of our memory has gone before we are told. */
    next_event(p.owner, TARN_TRANSFER_ABORTED, "in", "enough");
    CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, NULL), TARN_ECLOSED);
    CHECK_EQ(tarn_transfer_notify(p.peer, "x", 1, 0), TARN_ECLOSED);
    tarn_transfer_disconnect(&p.peer);
    CHECK_EQ(tarn_transfer_connect(p.user, tarn_transfer_endpoint(p.owner), 0, &p.peer), TARN_OK);
    CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, NULL), TARN_OK);
    pair_close(&p, true);
}

TEST(messages) {
    struct pair p = pair_open("tcp", true, TARN_TRANSFER_READ);
    struct pollfd fd = {.fd = tarn_transfer_fd(p.owner), .events = POLLIN};
    CHECK_EQ(poll(&fd, 1, 0), 0);
    no_event(p.owner);
    CHECK_EQ(tarn_transfer_notify(p.peer, "hello", 5, 0), TARN_OK);
    CHECK_EQ(tarn_transfer_notify(p.peer, NULL, 0, 0), TARN_OK);
    static char big[TARN_TRANSFER_MESSAGE_MAX + 1];
    memset(big, 'm', sizeof(big));
    CHECK_EQ(tarn_transfer_notify(p.peer, big, sizeof(big), 0), TARN_EINVAL);
    CHECK_EQ(tarn_transfer_notify(p.peer, big, sizeof(big) - 1, 0), TARN_OK);
    CHECK_EQ(poll(&fd, 1, 0), 1);
    next_event(p.owner, TARN_TRANSFER_MESSAGE, "", "hello");
    next_event(p.owner, TARN_TRANSFER_MESSAGE, "", "");
    tarn_transfer_event e = {.size = sizeof(e)};
    CHECK_EQ(tarn_transfer_next_event(p.owner, 0, &e), TARN_OK);
    CHECK_EQ(e.len, TARN_TRANSFER_MESSAGE_MAX);
    tarn_free(e.data);
    CHECK_EQ(poll(&fd, 1, 0), 0);
    /* Nobody takes them out: there is a bound. */
    tarn_status status;
    int n = 0;
    while ((status = tarn_transfer_notify(p.peer, big, sizeof(big) - 1, 0)) == TARN_OK)
        CHECK(++n <= 1024);
    CHECK_EQ(status, TARN_EAGAIN);
    CHECK_EQ(n, 1024);
    for (; n > 0; n--) {
        CHECK_EQ(tarn_transfer_next_event(p.owner, 0, &e), TARN_OK);
        tarn_free(e.data);
    }
    no_event(p.owner);
    /* With the batch. */
    char local[64];
    tarn_transfer_task task = {
        .op = TARN_TRANSFER_READ, .region = p.region, .local = local, .length = 64};
    tarn_transfer_call call;
    tarn_transfer_call_init(&call);
    call.done = "r";
    call.message = "got it";
    call.message_len = 6;
    CHECK_EQ(tarn_transfer_ready(p.owner, "r", NULL), TARN_OK);
    /* nobody has waited for it */
    CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, &call), TARN_ECANCELED);
    CHECK_EQ(tarn_transfer_wait_ready(p.peer, "r", 1000, NULL, 0, NULL), TARN_OK);
    CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, &call), TARN_OK);
    next_event(p.owner, TARN_TRANSFER_DONE, "r", "got it");
    CHECK_EQ(tarn_transfer_run(p.peer, &task, 1, &call), TARN_ENOTFOUND);
    CHECK_EQ(task.status, TARN_OK); /* the bytes are there, but nobody stands by them */
    pair_close(&p, true);
}

/* --- other processes --- */

struct child {
    pid_t pid;
    char endpoint[128];
    uint32_t region;
    int go;
};

/* An end with 8 MiB that may be read and written, until it is killed. Forked while this process has
 * one thread. */
static struct child child_start(const char *transport) {
    int out[2], in[2];
    struct child c;
    CHECK(pipe(out) == 0 && pipe(in) == 0);
    fflush(stdout);
    c.pid = fork();
    CHECK(c.pid >= 0);
    if (c.pid == 0) {
        tarn_transfer *t = end_open(transport, NULL);
        char *memory;
        if (tarn_transfer_alloc(t, 8 * MIB, 3, NULL, 0, (void **)&memory, &c.region) != TARN_OK)
            _exit(1);
        fill(memory, 8 * MIB, 3);
        /* ThreadSanitizer does not see that the other process orders our stores before what data
         * threads send: this does. */
        static char unused[64];
        if (tarn_transfer_register(t, unused, sizeof(unused), TARN_TRANSFER_READ, NULL, NULL) !=
            TARN_OK)
            _exit(1);
        snprintf(c.endpoint, sizeof(c.endpoint), "%s", tarn_transfer_endpoint(t));
        if (write(out[1], &c, sizeof(c)) != sizeof(c)) _exit(1);
        char byte;
        close(in[1]);
        (void)!read(in[0], &byte, 1);
        _exit(0);
    }
    close(out[1]);
    close(in[0]);
    pid_t pid = c.pid;
    CHECK(read(out[0], &c, sizeof(c)) == sizeof(c));
    close(out[0]);
    c.pid = pid;
    c.go = in[1];
    return c;
}

static void child_end(struct child *c, int signal) {
    kill(c->pid, SIGCONT);
    if (signal != 0) kill(c->pid, signal);
    close(c->go);
    waitpid(c->pid, NULL, 0);
}

static void other_process(const char *transport) {
    struct child c = child_start(transport);
    tarn_transfer *t = end_open(transport, NULL);
    tarn_transfer_peer *peer;
    CHECK_EQ(tarn_transfer_connect(t, c.endpoint, 0, &peer), TARN_OK);
    char *local = malloc(8 * MIB), *expected = malloc(8 * MIB);
    fill(expected, 8 * MIB, 3);
    tarn_transfer_task task = {
        .op = TARN_TRANSFER_READ, .region = c.region, .local = local, .length = 8 * MIB};
    CHECK_EQ(tarn_transfer_run(peer, &task, 1, NULL), TARN_OK);
    CHECK(memcmp(local, expected, 8 * MIB) == 0);
    fill(expected, 8 * MIB, 9);
    memcpy(local, expected, 8 * MIB);
    task.op = TARN_TRANSFER_WRITE;
    CHECK_EQ(tarn_transfer_run(peer, &task, 1, NULL), TARN_OK);
    memset(local, 0, 8 * MIB);
    task.op = TARN_TRANSFER_READ;
    CHECK_EQ(tarn_transfer_run(peer, &task, 1, NULL), TARN_OK);
    CHECK(memcmp(local, expected, 8 * MIB) == 0);

    /* It dies in the middle: everything ends, and says so. */
    tarn_transfer_batch *batch[8];
    static tarn_transfer_task tasks[8][64];
    char *each = calloc(8, 8 * MIB); /* batches run side by side */
    for (int b = 0; b < 8; b++) {
        for (int i = 0; i < 64; i++) {
            tasks[b][i] = task;
            tasks[b][i].local = each + (uint64_t)b * 8 * MIB;
            tasks[b][i].op = b % 2 == 0 ? TARN_TRANSFER_READ : TARN_TRANSFER_WRITE;
        }
        CHECK_EQ(tarn_transfer_submit(peer, tasks[b], 64, NULL, &batch[b]), TARN_OK);
    }
    while (tarn_transfer_wait(batch[0], 1) == TARN_EAGAIN &&
           tarn_transfer_wait(batch[1], 1) == TARN_EAGAIN)
        break;
    uint64_t start = clock_mono_ms();
    child_end(&c, SIGKILL);
    for (int b = 0; b < 8; b++) {
        tarn_status status = tarn_transfer_wait(batch[b], 20000);
        CHECK(status == TARN_OK || status == TARN_ECLOSED);
        if (b == 7) CHECK_EQ(status, TARN_ECLOSED);
        tarn_transfer_release(&batch[b]);
    }
    CHECK(clock_mono_ms() - start < 60000);
    CHECK_EQ(tarn_transfer_run(peer, &task, 1, NULL), TARN_ECLOSED);
    CHECK_EQ(tarn_transfer_wait_ready(peer, "x", 1000, NULL, 0, NULL), TARN_ECLOSED);
    tarn_transfer_disconnect(&peer);
    CHECK(tarn_transfer_connect(t, c.endpoint, 1000, &peer) != TARN_OK);
    tarn_transfer_close(&t);
    free(each);
    free(local);
    free(expected);
}

TEST(another_process_by_tcp) {
    other_process("tcp");
}
TEST(another_process_by_shm) {
    other_process("shm");
}
TEST(another_process_by_what_there_is) {
    other_process("auto");
}

/* A peer that stops: deadlines hold, cancelling gives the memory back, and other peers go on. */
TEST(a_peer_that_stops) {
    struct child c = child_start("tcp"), well = child_start("tcp");
    tarn_transfer *t = end_open("tcp", NULL);
    tarn_transfer_peer *peer;
    CHECK_EQ(tarn_transfer_connect(t, c.endpoint, 0, &peer), TARN_OK);
    char *local = malloc(8 * MIB);
    tarn_transfer_task task = {.op = TARN_TRANSFER_READ,
                               .region = c.region,
                               .local = local,
                               .length = 8 * MIB},
                       again = task;
    CHECK_EQ(tarn_transfer_run(peer, &task, 1, NULL), TARN_OK);
    kill(c.pid, SIGSTOP);
    int stopped;
    CHECK(waitpid(c.pid, &stopped, WUNTRACED) == c.pid && WIFSTOPPED(stopped));
    tarn_transfer_call call;
    tarn_transfer_call_init(&call);
    call.timeout_ms = 300;
    uint64_t start = clock_mono_ms();
    CHECK_EQ(tarn_transfer_run(peer, &task, 1, &call), TARN_ETIMEOUT);
    CHECK_EQ(task.status, TARN_ETIMEOUT);
    CHECK(clock_mono_ms() - start < 20000);
    CHECK_EQ(tarn_transfer_notify(peer, "x", 1, 200), TARN_ETIMEOUT);
    /* Ten of them, more than there are workers: some run, some are queued. */
    tarn_transfer_batch *batch[10];
    tarn_transfer_task tasks[10];
    for (int i = 0; i < 10; i++) {
        tasks[i] = again;
        tasks[i].op = i % 2 == 0 ? TARN_TRANSFER_READ : TARN_TRANSFER_WRITE;
        CHECK_EQ(tarn_transfer_submit(peer, &tasks[i], 1, NULL, &batch[i]), TARN_OK);
    }
    CHECK_EQ(tarn_transfer_wait(batch[0], 100), TARN_EAGAIN);
    tarn_transfer_peer *other;
    char byte[2];
    CHECK_EQ(tarn_transfer_connect(t, well.endpoint, 0, &other), TARN_OK);
    for (int i = 0; i < 5; i++) {
        tarn_transfer_task small = {
            .op = TARN_TRANSFER_READ, .region = well.region, .local = byte, .length = 2};
        CHECK_EQ(tarn_transfer_run(other, &small, 1, NULL), TARN_OK);
    }
    tarn_transfer_disconnect(&other);
    child_end(&well, 0);
    start = clock_mono_ms();
    for (int i = 9; i >= 0; i--) {
        tarn_transfer_cancel(batch[i]);
        CHECK_EQ(tarn_transfer_wait(batch[i], 0), TARN_ECANCELED);
        CHECK_EQ(tasks[i].status, TARN_ECANCELED);
        tarn_transfer_release(&batch[i]);
    }
    CHECK(clock_mono_ms() - start < 60000);
    free(local); /* nobody writes there any more, which AddressSanitizer would see */
    kill(c.pid, SIGCONT);
    char one;
    task = (tarn_transfer_task){
        .op = TARN_TRANSFER_READ, .region = c.region, .local = &one, .length = 1};
    CHECK_EQ(tarn_transfer_run(peer, &task, 1, NULL), TARN_OK);
    tarn_transfer_disconnect(&peer);
    tarn_transfer_close(&t);
    child_end(&c, 0);
}

/* Another process that is told of "blocks" by the end whose endpoint it reads, writes there, and
 * says so with a byte. */
static pid_t writer_start(int *to_p, int *from_p) {
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char endpoint[128], bytes[4096] = "written";
        tarn_transfer_peer *peer;
        tarn_transfer_region r;
        size_t n;
        if (read(to[0], endpoint, sizeof(endpoint)) <= 0) _exit(1);
        tarn_transfer *t = end_open("auto", NULL);
        if (tarn_transfer_connect(t, endpoint, 0, &peer) != TARN_OK ||
            tarn_transfer_wait_ready(peer, "blocks", 10000, NULL, 0, NULL) != TARN_OK ||
            tarn_transfer_peer_regions(peer, &r, 1, &n) != TARN_OK)
            _exit(2);
        tarn_transfer_task task = {
            .op = TARN_TRANSFER_WRITE, .region = r.id, .local = bytes, .length = sizeof(bytes)};
        if (tarn_transfer_run(peer, &task, 1, NULL) != TARN_OK || write(from[1], "x", 1) != 1)
            _exit(3);
        for (;;) pause();
    }
    close(to[0]);
    close(from[1]);
    *to_p = to[1];
    *from_p = from[0];
    return pid;
}

/* Nobody hears that the blocks are free before their last writer is known to be unable to write. */
TEST(writers_that_stop_and_die) {
    for (int stop = 0; stop < 2; stop++) {
        int to, from, status;
        char byte;
        pid_t pid = writer_start(&to, &from);
        tarn_transfer *t = end_open("auto", NULL);
        char *memory;
        CHECK_EQ(
            tarn_transfer_alloc(t, 65536, TARN_TRANSFER_WRITE, NULL, 0, (void **)&memory, NULL),
            TARN_OK);
        tarn_transfer_ready_options o;
        tarn_transfer_ready_options_init(&o);
        o.cut = 1;
        CHECK_EQ(tarn_transfer_ready(t, "blocks", &o), TARN_OK);
        const char *endpoint = tarn_transfer_endpoint(t);
        CHECK(write(to, endpoint, strlen(endpoint) + 1) > 0);
        CHECK(read(from, &byte, 1) == 1);
        CHECK_STR(memory, "written");
        if (stop) {
            kill(pid, SIGSTOP);
            CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
            CHECK_EQ(tarn_transfer_abort(t, "blocks", "too late"), TARN_OK);
            tarn_transfer_event e = {.size = sizeof(e)};
            /* it has our memory mapped */
            CHECK_EQ(tarn_transfer_next_event(t, 300, &e), TARN_EAGAIN);
            CHECK_EQ(tarn_transfer_ready(t, "blocks", &o), TARN_EBUSY);
        }
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        if (stop)
            next_event(t, TARN_TRANSFER_ABORTED, "blocks", "too late");
        else
            next_event(t, TARN_TRANSFER_GAVE_UP, "blocks", "the peer went away");
        tarn_transfer_close(&t);
        close(to);
        close(from);
    }
}

TEST(a_child_has_no_end) {
    struct pair p = pair_open("tcp", true, TARN_TRANSFER_READ);
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        tarn_transfer_stats s = {.size = sizeof(s)};
        bool ok = tarn_transfer_get_stats(p.owner, &s) == TARN_ECLOSED &&
                  tarn_transfer_notify(p.peer, "x", 1, 0) == TARN_ECLOSED;
        tarn_transfer_disconnect(&p.peer);
        tarn_transfer_close(&p.owner);
        _exit(ok ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    CHECK_EQ(tarn_transfer_notify(p.peer, "x", 1, 0), TARN_OK);
    pair_close(&p, true);
}

/* --- many at once --- */

struct hammer {
    struct pair *pair;
    unsigned seed;
    int failed;
};

static void *hammer(void *arg) {
    struct hammer *h = arg;
    char *local = malloc(64 * 4096);
    for (int round = 0; round < 40; round++) {
        tarn_transfer_task tasks[64];
        for (unsigned i = 0; i < 64; i++) {
            tasks[i] = (tarn_transfer_task){.op = TARN_TRANSFER_READ,
                                            .region = h->pair->region,
                                            .local = local + i * 4096,
                                            .remote = (i * 37 + h->seed * 11 + (unsigned)round) %
                                                      900 * 4096,
                                            .length = 4096};
        }
        h->failed += tarn_transfer_run(h->pair->peer, tasks, 64, NULL) != TARN_OK;
        for (unsigned i = 0; i < 64; i++)
            h->failed += memcmp(tasks[i].local, h->pair->memory + tasks[i].remote, 4096) != 0;
        h->failed += tarn_transfer_notify(h->pair->peer, "x", 1, 0) != TARN_OK;
        /* And one that is called back, at whatever moment. */
        tarn_transfer_batch *batch;
        h->failed += tarn_transfer_submit(h->pair->peer, tasks, 64, NULL, &batch) != TARN_OK;
        usleep((h->seed * 7 + (unsigned)round * 13) % 300);
        tarn_transfer_cancel(batch);
        tarn_status status = tarn_transfer_wait(batch, 0);
        h->failed += status != TARN_OK && status != TARN_ECANCELED;
        for (unsigned i = 0; i < 64; i++)
            h->failed += tasks[i].status != TARN_OK && tasks[i].status != TARN_ECANCELED;
        tarn_transfer_release(&batch);
        /* Memory that comes and goes under the lanes. */
        h->failed +=
            tarn_transfer_register(h->pair->user, local, 64 * 4096, 0, NULL, NULL) != TARN_OK;
        h->failed += tarn_transfer_unregister(h->pair->user, local) != TARN_OK;
    }
    free(local);
    return NULL;
}

TEST(threads) {
    struct pair p = pair_open("tcp", true, TARN_TRANSFER_READ);
    struct hammer h[8];
    pthread_t thread[8];
    for (unsigned i = 0; i < 8; i++) {
        h[i] = (struct hammer){&p, i, 0};
        pthread_create(&thread[i], NULL, hammer, &h[i]);
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(h[i].failed, 0);
    }
    for (int i = 0; i < 320; i++) next_event(p.owner, TARN_TRANSFER_MESSAGE, "", "x");
    no_event(p.owner);
    pair_close(&p, true);
}

/* --- by RDMA: last, because the module has threads that stay, and nobody may fork after that
 * --- */

TEST(by_rdma) {
    const char *fake = getenv("TARN_RDMA_FAKE");
    if (fake == NULL || access(fake, R_OK) != 0) SKIP("no RDMA module for tests (TARN_RDMA_FAKE)");
    char path[4096];
    snprintf(path, sizeof(path), "%s", fake);
    setenv("TARN_MODULE_PATH", dirname(path), 1);
    moves("rdma", true, "rdma");
    moves("rdma", false, "rdma");
}

/* A memfd stands for the memory of a GPU; its address leads nowhere, so that whoever touches it is
 * found out. */
static void *make_device(int *fd_p, char **content_p, uint64_t size) {
    *fd_p = memfd_create("device", MFD_CLOEXEC);
    CHECK(*fd_p >= 0 && ftruncate(*fd_p, (off_t)size) == 0);
    *content_p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd_p, 0);
    void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(*content_p != MAP_FAILED && at != MAP_FAILED);
    return at;
}

TEST(memory_of_devices) {
    const char *fake = getenv("TARN_RDMA_FAKE");
    bool rdma = fake != NULL && access(fake, R_OK) == 0;
    char path[4096];
    snprintf(path, sizeof(path), "%s", rdma ? fake : "/nowhere/rdma.so");
    setenv("TARN_MODULE_PATH", dirname(path), 1);
    const uint64_t size = MIB;
    int fd[2];
    char *content[2], *at[2], host[4096];
    for (int i = 0; i < 2; i++) at[i] = make_device(&fd[i], &content[i], size);
    struct pair p = pair_open("auto", true, TARN_TRANSFER_READ | TARN_TRANSFER_WRITE);
    uint32_t region;
    CHECK_EQ(tarn_transfer_register_dmabuf(p.owner, at[0], size, fd[0], 0, 3, "gpu", &region),
             TARN_OK);
    CHECK_EQ(tarn_transfer_register_dmabuf(p.user, at[1], size, fd[1], 0, 0, NULL, NULL), TARN_OK);
    for (int i = 0; i < 2; i++) close(fd[i]);
    fill(content[0], size, 5);
    tarn_transfer_task tasks[3] = {
        {.op = TARN_TRANSFER_READ,
         .region = region,
         .local = at[1] + 4096,
         .remote = 8192,
         .length = 65536},
        {.op = TARN_TRANSFER_READ,
         .region = p.region,
         .local = at[1] + 500000,
         .remote = 100,
         .length = 4096},
        {.op = TARN_TRANSFER_READ,
         .region = region,
         .local = host,
         .remote = 0,
         .length = sizeof(host)},
    };
    tarn_status status = tarn_transfer_run(p.peer, tasks, 3, NULL);
    if (rdma) {
        CHECK_EQ(status, TARN_OK);
        CHECK(memcmp(content[1] + 4096, content[0] + 8192, 65536) == 0);
        CHECK(memcmp(content[1] + 500000, p.memory + 100, 4096) == 0);
        CHECK(memcmp(host, content[0], sizeof(host)) == 0);
        fill(content[1], size, 6);
        tasks[0].op = TARN_TRANSFER_WRITE;
        CHECK_EQ(tarn_transfer_run(p.peer, tasks, 1, NULL), TARN_OK);
        CHECK(memcmp(content[1] + 4096, content[0] + 8192, 65536) == 0);
    } else { /* nothing else reaches it, and nobody tries */
        CHECK_EQ(status, TARN_ENOTSUP);
        for (int i = 0; i < 3; i++) CHECK_EQ(tasks[i].status, TARN_ENOTSUP);
    }
    CHECK_EQ(tarn_transfer_unregister(p.owner, at[0]), TARN_OK);
    CHECK_EQ(tarn_transfer_unregister(p.user, at[1]), TARN_OK);
    pair_close(&p, true);
    for (int i = 0; i < 2; i++) {
        munmap(at[i], size);
        munmap(content[i], size);
    }
}

TEST_MAIN()
