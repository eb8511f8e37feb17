/* Calls that fail: each of them, when the follower is made, when an engine is added, and in the
 * thread at any time. The functions here stand before those of libzmq and the C library. */
#include "../test.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "base/rng.h"
#include "engine.h"

enum call {
    EVENTFD,
    CTX_NEW,
    CTX_SET,
    THREAD,
    SOCKET,
    SETSOCKOPT,
    MONITOR,
    CONNECT,
    POLL,
    RECV,
    SEND
};

static struct {
    enum call call;
    unsigned every; /* one in so many; once: the nth. 0: nothing fails */
    bool once;
    int error;
    bool here; /* calls of the test's thread count, else those of others */
} plan;
static unsigned calls, failed;
static struct rng chance;
static pthread_mutex_t plan_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t test_thread;

__attribute__((constructor)) static void test_thread_is(void) {
    test_thread = pthread_self();
}

static void plan_set(enum call call, unsigned every, bool once, int error, bool here) {
    pthread_mutex_lock(&plan_lock);
    plan.call = call;
    plan.every = every;
    plan.once = once;
    plan.error = error;
    plan.here = here;
    calls = failed = 0;
    rng_seed(&chance, 1);
    pthread_mutex_unlock(&plan_lock);
}

/* How often it failed. */
static unsigned plan_failed(void) {
    pthread_mutex_lock(&plan_lock);
    unsigned n = failed;
    pthread_mutex_unlock(&plan_lock);
    return n;
}

/* Likewise; nothing fails any more. */
static unsigned plan_end(void) {
    pthread_mutex_lock(&plan_lock);
    plan.every = 0;
    unsigned n = failed;
    pthread_mutex_unlock(&plan_lock);
    return n;
}

/* It is time for this one to fail: errno is set. */
static bool fails(enum call call) {
    bool here = pthread_equal(pthread_self(), test_thread);
    pthread_mutex_lock(&plan_lock);
    bool now = plan.every > 0 && plan.call == call && plan.here == here;
    if (now && plan.once) now = ++calls == plan.every;
    /* By chance, as some calls come in fixed numbers. */
    else if (now)
        now = rng_below(&chance, plan.every) == 0;
    int error = plan.error;
    failed += now;
    pthread_mutex_unlock(&plan_lock);
    if (now) errno = error;
    return now;
}

/* From any thread. */
#define REAL(name)                                                                                 \
    static __typeof__(&name) found;                                                                \
    __typeof__(&name) real = __atomic_load_n(&found, __ATOMIC_RELAXED);                            \
    if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                           \
    __atomic_store_n(&found, real, __ATOMIC_RELAXED)

int eventfd(unsigned count, int flags) {
    REAL(eventfd);
    return fails(EVENTFD) ? -1 : real(count, flags);
}
void *zmq_ctx_new(void) {
    REAL(zmq_ctx_new);
    return fails(CTX_NEW) ? NULL : real();
}
int zmq_ctx_set(void *context, int option, int value) {
    REAL(zmq_ctx_set);
    return fails(CTX_SET) ? -1 : real(context, option, value);
}
#ifndef TARN_SANITIZER /* they have their own */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    REAL(pthread_create);
    return fails(THREAD) ? errno : real(thread, attr, run, arg);
}
#endif
void *zmq_socket(void *context, int type) {
    REAL(zmq_socket);
    return fails(SOCKET) ? NULL : real(context, type);
}
int zmq_setsockopt(void *socket, int option, const void *value, size_t len) {
    REAL(zmq_setsockopt);
    return fails(SETSOCKOPT) ? -1 : real(socket, option, value, len);
}
int zmq_socket_monitor(void *socket, const char *endpoint, int events) {
    REAL(zmq_socket_monitor);
    return endpoint != NULL && fails(MONITOR) ? -1 : real(socket, endpoint, events);
}
int zmq_connect(void *socket, const char *endpoint) {
    REAL(zmq_connect);
    return fails(CONNECT) ? -1 : real(socket, endpoint);
}
int zmq_poll(zmq_pollitem_t *items, int n, long timeout) {
    REAL(zmq_poll);
    return fails(POLL) ? -1 : real(items, n, timeout);
}
int zmq_msg_recv(zmq_msg_t *message, void *socket, int flags) {
    REAL(zmq_msg_recv);
    return fails(RECV) ? -1 : real(message, socket, flags);
}
int zmq_send(void *socket, const void *data, size_t len, int flags) {
    REAL(zmq_send);
    return fails(SEND) ? -1 : real(socket, data, len, flags);
}

static struct engine e;
static struct kvevents_follow *f;
static struct seen seen;

TEST(made) {
    static const enum call made[] = {EVENTFD, EVENTFD, CTX_NEW, CTX_SET, THREAD};
    struct kvevents_follow_config c;
    kvevents_follow_defaults(&c);
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
#ifdef TARN_SANITIZER
        if (made[i] == THREAD) continue;
#endif
        struct kvevents_follow *none = NULL;
        plan_set(made[i], i == 1 ? 2 : 1, true, ENOMEM, true);
        tarn_status rc = kvevents_follow_create(&c, &none);
        CHECK_EQ(plan_end(), 1);
        CHECK_EQ(rc, made[i] == THREAD ? TARN_ENOMEM : TARN_EIO);
        CHECK(none == NULL);
    }
}

/* The nth call of each kind, until there is none: then it is added. */
TEST(added) {
    static const enum call added[] = {SOCKET, SETSOCKOPT, MONITOR, CONNECT};
    engine_start(&e, REPLAY_TWO);
    f = follow_start(NULL);
    for (size_t i = 0; i < sizeof(added) / sizeof(added[0]); i++) {
        for (unsigned nth = 1;; nth++) {
            struct kvevents_source source = {.endpoint = e.endpoint, .replay = e.replay};
            uint32_t id = 0;
            plan_set(added[i], nth, true, EMFILE, true);
            tarn_status rc = kvevents_follow_add(f, &source, &id);
            if (plan_end() == 0) {
                CHECK_EQ(rc, TARN_OK);
                CHECK(nth > 1);
                kvevents_follow_remove(f, id);
                break;
            }
            CHECK_EQ(rc, TARN_ELIMIT);
            CHECK_EQ(id, 0);
        }
    }
    seen = (struct seen){.id = follow_engine(f, &e, true)};
    engine_make(&e);
    FOLLOW_UNTIL(f, &e, &seen, seen.batches == 1);
    kvevents_follow_destroy(&f);
    engine_free(&e);
}

/* History, a gap, a new connection; while calls of the thread fail. */
static void lives_with(enum call call, unsigned every, bool once, int error) {
    struct kvevents_follow_config c;
    kvevents_follow_defaults(&c);
    c.replay_timeout_ms = 30;
    c.replay_pause_ms = 1;
    c.broken_ms = 5;
    c.verify_ms = 20;
    c.reconnect_max_ms = 20;
    engine_start(&e, REPLAY_THREE);
    for (int i = 0; i < 3; i++) engine_make(&e);
    f = follow_start(&c);
    seen = (struct seen){.id = follow_engine(f, &e, true)};
    plan_set(call, every, once, error, false);
    uint64_t until = clock_mono_ms() + TEST_PATIENCE_MS;
    for (int i = 0; i < 20 || plan_failed() == 0; i++) {
        CHECK(clock_mono_ms() < until);
        engine_pump(&e);
        seen_take(f, &seen, 1);
        engine_publish(&e);
        if (i % 5 == 0) engine_make(&e); /* nobody hears of it */
        if (i % 20 == 10) engine_stop(&e), engine_again(&e, false);
        usleep(1000);
    }
    FOLLOW_UNTIL(f, &e, &seen, once ? (bool)i.begun : i.figures.kvevents_connects > 0);
    CHECK(plan_end() > 0);
    FOLLOW_HEARD(f, &e, &seen);
    engine_publish(&e);
    FOLLOW_UNTIL(f, &e, &seen, seen.last_block == BLOCK_OF(&e, e.next - 1));
    kvevents_follow_destroy(&f);
    engine_free(&e);
}

TEST(in_the_thread) {
    static const struct {
        enum call call;
        unsigned every;
        bool once;
        int error;
    } faults[] = {
        {POLL, 3, false, EINTR},    {POLL, 5, true, ENOMEM},       {RECV, 3, false, EINTR},
        {RECV, 7, false, ENOTSOCK}, {RECV, 5, false, EAGAIN},      {SOCKET, 3, false, EMFILE},
        {SOCKET, 1, true, ENOMEM},  {SETSOCKOPT, 5, true, ENOMEM}, {SETSOCKOPT, 11, false, ENOMEM},
        {CONNECT, 1, true, EMFILE}, {CONNECT, 3, false, EMFILE},   {SEND, 2, false, EAGAIN},
        {SEND, 1, true, EAGAIN},    {MONITOR, 1, true, EMFILE},
    };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        lives_with(faults[i].call, faults[i].every, faults[i].once, faults[i].error);
    }
}

TEST_MAIN()
