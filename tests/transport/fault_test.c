/* The data path while system calls fail or do less than asked: this program runs itself again under
 * tests/fault/preload.c. */
#define SUITE "auto"
#include "../unit/test.h"

#include <libgen.h>
#include <limits.h>

#include "base/crc32c.h"
#include "base/log.h"
#include "world.h"

#pragma GCC diagnostic ignored "-Wunused-function"

/* In the child: put and get, over one transport. Exits 0 when every byte was right or an error was
 * reported as one. */
static void child(const char *transport, bool must_work) {
    log_set_level(LOG_LEVEL_NOTHING);
    static struct world w;
    world_init(&w, "tcp", 8u << 20);
    w.idle_timeout_ms = 5000;
    world_start(&w, false);
    struct engine *e = world_engine(&w, transport, 1);
    enum { SIZE = 300000 };
    static uint8_t out[SIZE], in[SIZE];
    int failed = 0;
    for (int i = 0; i < 20; i++) {
        memset(out, i + 1, SIZE);
        for (int write = 1; write >= 0; write--) {
            struct grant_extent x = world_extent(&w, 4096 * (uint64_t)i, SIZE);
            uint8_t grant[GRANT_SIZE];
            world_grant(&w, write ? GRANT_WRITE : GRANT_READ, 1, &x, grant);
            struct engine_part part = {x, grant, 0, SIZE};
            struct iovec iov = {write ? out : in, SIZE};
            struct engine_op op = {.write = write,
                                   .parts = &part,
                                   .n_parts = 1,
                                   .iov = &iov,
                                   .n_iov = 1,
                                   .want_crc = true};
            engine_run(e, &op, 1, clock_boot_ms() + WORLD_PATIENCE_MS);
            if (op.status != TARN_OK) {
                failed++;
                break;
            }
            if (op.crc != crc32c(0, out, SIZE)) _exit(2);
            if (!write && memcmp(in, out, SIZE) != 0) _exit(3);
        }
    }
    engine_destroy(&e);
    world_deinit(&w);
    _exit(must_work && failed > 0 ? 4 : 0);
}

static int run_under(const char *fault, const char *transport, bool must_work) {
    char self[PATH_MAX], dir[PATH_MAX], so[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    CHECK(n > 0);
    self[n] = '\0';
    memcpy(dir, self, sizeof(dir));
    snprintf(so, sizeof(so), "%s/../fault/preload.so", dirname(dir));
    if (access(so, R_OK) != 0) SKIP("no preload.so beside this program");
    pid_t pid = fork();
    if (pid == 0) {
        setenv("LD_PRELOAD", so, 1);
        setenv("TARN_FAULT", fault, 1);
        setenv("TARN_FAULT_CHILD", transport, 1);
        setenv("TARN_FAULT_MUST", must_work ? "1" : "", 1);
        if (freopen("/dev/null", "w", stdout) == NULL) _exit(126);
        execl(self, self, "child_of_the_others", (char *)NULL);
        _exit(127);
    }
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(child_of_the_others) {
    const char *transport = getenv("TARN_FAULT_CHILD");
    if (transport == NULL) SKIP("only runs as a child of the others");
    child(transport, getenv("TARN_FAULT_MUST")[0] != '\0');
}

#ifdef TARN_SANITIZER
#define SANITIZED() SKIP("a sanitizer's runtime does not go with LD_PRELOAD")
#else
#define SANITIZED() (void)0
#endif

TEST(short_reads_and_writes_are_put_together) {
    SANITIZED();
    CHECK_EQ(run_under("recv:short:2", "tcp", true), 0);
    CHECK_EQ(run_under("send:short:2", "tcp", true), 0);
    CHECK_EQ(run_under("recv:short:3,send:short:5", "auto", true), 0);
}

TEST(interrupted_calls_are_made_again) {
    SANITIZED();
    CHECK_EQ(run_under("recv:intr:2,send:intr:3,epoll_wait:intr:2", "tcp", true), 0);
    CHECK_EQ(run_under("recv:intr:2,send:intr:3,epoll_wait:intr:2", "auto", true), 0);
}

TEST(resets_are_survived_or_reported) {
    SANITIZED();
    CHECK_EQ(run_under("recv:reset:40", "tcp", false), 0);
    CHECK_EQ(run_under("send:reset:40", "tcp", false), 0);
    CHECK_EQ(run_under("connect:reset:2", "tcp", true), 0);
    CHECK_EQ(run_under("accept:fail:2", "tcp", true), 0);
}

TEST(shm_that_cannot_be_mapped_becomes_tcp) {
    SANITIZED();
    /* before it: the world's state, the host's own */
    CHECK_EQ(run_under("mmap:once:3", "auto", true), 0);
}

TEST_MAIN()
