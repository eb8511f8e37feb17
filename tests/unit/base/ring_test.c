/* Two rings in shared memory: bytes come as they were sent, nobody sleeps for ever, and a peer that
 * writes what it likes is found, or harms nobody but itself. */
#include "base/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../test.h"
#include "base/rng.h"

static struct ring server, client;

static void open_both(void) {
    int fd = -1;
    CHECK(ring_create(&server, &fd));
    CHECK(ring_open(&client, fd));
    close(fd);
}

static void close_both(void) {
    ring_close(&server);
    ring_close(&client);
    CHECK(server.memory == NULL && client.memory == NULL);
}

static ssize_t put(struct ring *r, const void *data, size_t len) {
    return ring_write(r, &(struct iovec){(void *)(uintptr_t)data, len}, 1);
}

static ssize_t take(struct ring *r, void *to, size_t len) {
    return ring_read(r, &(struct iovec){to, len}, 1);
}

static bool refused(ssize_t n, int err) {
    return n == -1 && errno == err;
}

TEST(bytes_come_as_they_were_sent) {
    static char sent[3 * RING_BYTES], came[3 * RING_BYTES];
    struct rng random;
    rng_seed(&random, 1);
    for (size_t i = 0; i < sizeof(sent); i++) sent[i] = (char)rng_next(&random);
    open_both();
    CHECK(refused(take(&client, came, 10), EAGAIN));
    CHECK(refused(put(&client, sent, 0), EAGAIN));
    for (unsigned round = 0; round < 20; round++) {
        for (size_t put_to = 0, taken = 0; taken < sizeof(sent);) {
            size_t third = rng_below(&random, RING_BYTES), rest = sizeof(sent) - put_to;
            size_t first = third < rest ? third : rest;
            struct iovec out[] = {{sent + put_to, first}, {sent + put_to + first, rest - first}};
            ssize_t n = ring_write(&server, out, 2);
            if (n > 0) put_to += (size_t)n;
            CHECK(n > 0 || put_to - taken == RING_BYTES || put_to == sizeof(sent));
            size_t want = 1 + rng_below(&random, 2000);
            if (want > sizeof(came) - taken) want = sizeof(came) - taken;
            struct iovec in[] = {{came + taken, want / 2},
                                 {came + taken + want / 2, want - want / 2}};
            n = ring_read(&client, in, 2);
            CHECK(n > 0);
            taken += (size_t)n;
        }
        CHECK(memcmp(sent, came, sizeof(sent)) == 0);
        memset(came, 0, sizeof(came));
    }
    close_both();
}

TEST(positions_wrap) {
    char byte;
    open_both();
    server.in_at = server.out_at = server.out_tail = client.in_at = client.out_at =
        client.out_tail = UINT32_MAX - 1;
    struct ring_way *ways[] = {server.in, server.out};
    for (int i = 0; i < 2; i++) ways[i]->head = ways[i]->tail = UINT32_MAX - 1;
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(put(&client, &(char){(char)i}, 1), 1);
        CHECK_EQ(take(&server, &byte, 1), 1);
        CHECK_EQ(byte, i);
    }
    CHECK(refused(take(&server, &byte, 1), EAGAIN));
    close_both();
}

TEST(who_sleeps_is_called_once) {
    char bytes[RING_BYTES] = "";
    open_both();
    /* the server sleeps in the beginning, the client does not */
    CHECK_EQ(put(&client, "a", 1), 1);
    CHECK(ring_calls(&client, RING_WRITE));
    CHECK(!ring_calls(&client, RING_WRITE));
    CHECK_EQ(ring_sleep(&server, RING_READ), RING_READ); /* there is something: it does not */
    CHECK(!ring_calls(&client, RING_WRITE));
    CHECK_EQ(take(&server, bytes, 1), 1);
    CHECK_EQ(ring_sleep(&server, RING_READ), 0u);
    CHECK(!ring_calls(&client, RING_READ)); /* reading is not what it waits for */
    CHECK(ring_calls(&client, RING_WRITE));
    /* for room: only when half a ring is free */
    CHECK_EQ(put(&server, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
    CHECK(!ring_calls(&server, RING_WRITE));
    CHECK(refused(put(&server, "b", 1), EAGAIN));
    CHECK_EQ(ring_possible(&server), 0u);
    CHECK_EQ(ring_sleep(&server, RING_WRITE), 0u);
    CHECK_EQ(take(&client, bytes, RING_BYTES / 2 - 1), RING_BYTES / 2 - 1);
    CHECK(!ring_calls(&client, RING_READ));
    CHECK_EQ(ring_possible(&server), 0u);
    CHECK_EQ(take(&client, bytes, 1), 1);
    CHECK(ring_calls(&client, RING_READ));
    CHECK(!ring_calls(&client, RING_READ));
    CHECK_EQ(ring_possible(&server), (unsigned)RING_WRITE);
    CHECK_EQ(ring_sleep(&server, RING_WRITE | RING_READ), (unsigned)RING_WRITE);
    CHECK(!ring_calls(&client, RING_READ) && !ring_calls(&client, RING_WRITE));
    /* who wakes by himself is not called */
    CHECK_EQ(ring_sleep(&server, RING_READ), 0u);
    ring_wake(&server);
    CHECK(!ring_calls(&client, RING_WRITE));
    close_both();
}

/* --- two sides at once --- */

#define TOTAL    (test_rounds(64u) << 20)
#define TALK_MAX 50000u

struct side {
    struct ring *ring;
    int fd;
    uint64_t seed;
    uint64_t sent, came;
    bool wrong;
};

/* Sends and reads pseudo-random bytes until both are through, and sleeps whenever it can. */
static void *talk(void *arg) {
    struct side *s = arg;
    char *bytes = malloc(TALK_MAX);
    struct rng random;
    char calls[64];
    uint64_t total = TOTAL;
    rng_seed(&random, s->seed);
    while ((s->sent < total || s->came < total) && !s->wrong) {
        size_t n = 1 + rng_below(&random, rng_below(&random, 2) ? TALK_MAX : 64);
        if (n > total - s->sent) n = total - s->sent;
        for (size_t i = 0; i < n; i++) bytes[i] = (char)((s->sent + i) * 7 >> 3);
        ssize_t put_n = n > 0 ? put(s->ring, bytes, n) : -1;
        if (put_n > 0) {
            s->sent += (uint64_t)put_n;
            if (ring_calls(s->ring, RING_WRITE)) (void)send(s->fd, "", 1, MSG_DONTWAIT);
        }
        ssize_t got = take(s->ring, bytes, 1 + rng_below(&random, TALK_MAX));
        for (ssize_t i = 0; i < got; i++)
            s->wrong |= bytes[i] != (char)((s->came + (uint64_t)i) * 7 >> 3);
        if (got > 0) {
            s->came += (uint64_t)got;
            if (ring_calls(s->ring, RING_READ)) (void)send(s->fd, "", 1, MSG_DONTWAIT);
        }
        if (put_n > 0 || got > 0) continue;
        unsigned wanted = (s->came < total ? RING_READ : 0u) | (s->sent < total ? RING_WRITE : 0u);
        if (wanted == 0 || ring_sleep(s->ring, wanted) != 0) continue;
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        s->wrong |= poll(&p, 1, (int)TEST_PATIENCE_MS) != 1; /* nobody calls */
        ring_wake(s->ring);
        (void)recv(s->fd, calls, sizeof(calls), MSG_DONTWAIT);
    }
    free(bytes);
    return NULL;
}

TEST(nobody_sleeps_for_ever) {
    int fds[2];
    pthread_t thread;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    open_both();
    struct side a = {&server, fds[0], 1, 0, 0, false}, b = {&client, fds[1], 2, 0, 0, false};
    CHECK_EQ(pthread_create(&thread, NULL, talk, &b), 0);
    talk(&a);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(!a.wrong && !b.wrong);
    CHECK_EQ(a.came, (uint64_t)TOTAL);
    CHECK_EQ(b.came, (uint64_t)TOTAL);
    close_both();
    close(fds[0]);
    close(fds[1]);
}

/* --- a peer that lies --- */

TEST(positions_that_make_no_sense_are_found) {
    static char bytes[2 * RING_BYTES];
    const uint32_t lies[] = {RING_BYTES + 1, 2 * RING_BYTES, 1u << 31, UINT32_MAX};
    open_both();
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        server.in->head = server.in_at + lies[i];
        CHECK(refused(take(&server, bytes, sizeof(bytes)), EPROTO));
        CHECK(ring_possible(&server) & RING_READ); /* so that somebody reads */
        CHECK_EQ(ring_sleep(&server, RING_READ), (unsigned)RING_READ);
    }
    server.in->head = server.in_at;
    CHECK_EQ(put(&server, bytes, sizeof(bytes)), RING_BYTES);
    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
        server.out->tail = server.out_at - lies[i];
        CHECK(refused(put(&server, bytes, 1), EPROTO));
        CHECK(ring_possible(&server) & RING_WRITE);
    }
    close_both();
}

static int memory_of(size_t size, unsigned seals) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    CHECK(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static bool opens(int fd) {
    struct ring r = {0};
    bool ok = ring_open(&r, fd);
    CHECK(ok == (r.memory != NULL));
    ring_close(&r);
    close(fd);
    return ok;
}

TEST(what_comes_is_seen_before_it_is_read) {
    static char some[RING_BYTES];
    open_both();
    CHECK_EQ(ring_peek(&server).len, 0u);
    CHECK_EQ(put(&client, "hello", 5), 5);
    CHECK(span_eq(ring_peek(&server), SPAN("hello")));
    CHECK_EQ(take(&server, some, 2), 2);
    CHECK(span_eq(ring_peek(&server), SPAN("llo")));
    CHECK_EQ(put(&client, some, RING_BYTES - 3), (ssize_t)RING_BYTES - 3);
    CHECK_EQ(ring_peek(&server).len, RING_BYTES - 2u); /* to the end of the memory */
    CHECK_EQ(take(&server, some, RING_BYTES - 2), (ssize_t)RING_BYTES - 2);
    CHECK_EQ(ring_peek(&server).len, 2u);
    client.out->head += RING_BYTES; /* nonsense */
    CHECK_EQ(ring_peek(&server).len, 0u);
    close_both();
}

TEST(memory_that_is_no_ring_is_refused) {
    size_t size = ring_size();
    struct ring r = {0};
    int fd = -1, pipes[2];
    CHECK(ring_create(&r, &fd));
    CHECK_EQ(ftruncate(fd, 0), -1); /* it cannot shrink, nor can it be allowed to */
    CHECK_EQ(ftruncate(fd, (off_t)size * 2), -1);
    CHECK(fcntl(fd, F_GET_SEALS) & F_SEAL_SEAL);
    uint64_t magic = r.memory->magic;
    CHECK(opens(fd));
    ring_close(&r);
    for (unsigned seal = 0; seal < 2; seal++) { /* the same, not sealed */
        fd = memory_of(size, seal == 0 ? 0 : F_SEAL_SHRINK);
        CHECK_EQ(pwrite(fd, &magic, sizeof(magic), 0), (ssize_t)sizeof(magic));
        CHECK(opens(fd) == (seal == 1));
    }
    CHECK(!opens(memory_of(size, F_SEAL_SHRINK))); /* of another layout */
    CHECK(!opens(memory_of(size - 1, F_SEAL_SHRINK)));
    CHECK(!opens(memory_of(size + 1, F_SEAL_SHRINK)));
    CHECK(!opens(memory_of(0, F_SEAL_SHRINK)));
    fd = memory_of(size, 0);
    CHECK_EQ(pwrite(fd, &magic, sizeof(magic), 0), (ssize_t)sizeof(magic));
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE) == 0); /* cannot be written */
    CHECK(!opens(fd));
    CHECK_EQ(pipe(pipes), 0);
    CHECK(!opens(pipes[0]));
    close(pipes[1]);
    CHECK(!opens(open("/dev/zero", O_RDWR)));
}

TEST_MAIN()
