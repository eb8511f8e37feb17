/* LD_PRELOAD: system calls that fail, or do less than asked, on schedule.
 *
 *     TARN_FAULT="recv:short:7,send:again:5,mmap:fail:3"
 *
 * Every 7th recv is short, every 5th send says EAGAIN, every 3rd mmap fails.
 *
 * Calls: recv (and recvmsg), send (and sendmsg), mmap (of files), memfd_create, epoll_wait,
 * epoll_ctl (that adds), connect, accept, write (of files), fdatasync, rename, madvise (that
 * populates), crypto_hash_sha256 (of passwords; crash only). Kinds: short (moves one byte of a
 * stream; recv and send), intr (EINTR), again (EAGAIN), reset (ECONNRESET), fail (ENOMEM), once
 * (ENOMEM, the Nth call only), slow (takes 20 ms longer; write, fdatasync, rename and madvise),
 * crash (a fault in the middle of it; send: killed right after it). Careful with "again" on an
 * edge-triggered socket: it is a lie that no later edge makes up for.
 *
 *     TARN_FAULT_FROM=FILE    nothing fails before there is that file
 *     TARN_FAULT_HOLD=FILE    a slow madvise takes as long as there is that file
 *     TARN_FAULT_WALL=FILE    wall time is off by the number of seconds (an int64_t) that the file
 *                             begins with, and changes with it */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum {
    RECV,
    SEND,
    MMAP,
    MEMFD,
    EPOLL,
    EPOLLADD,
    CONNECT,
    ACCEPT,
    WRITE,
    FDATASYNC,
    RENAME,
    MADVISE,
    HASH,
    CALLS
};
static const char *const names[CALLS] = {
    "recv",   "send",  "mmap",      "memfd_create", "epoll_wait", "epoll_ctl",         "connect",
    "accept", "write", "fdatasync", "rename",       "madvise",    "crypto_hash_sha256"};
enum kind { NONE, SHORT, AGAIN, INTR, RESET, FAIL, ONCE, SLOW, CRASH };
static const char *const kinds[] = {"",     "short", "again", "intr", "reset",
                                    "fail", "once",  "slow",  "crash"};

static struct {
    enum kind kind;
    unsigned long every, count;
} plan[CALLS];

__attribute__((constructor)) static void read_plan(void) {
    const char *env = getenv("TARN_FAULT");
    char text[512];
    snprintf(text, sizeof(text), "%s", env != NULL ? env : "");
    for (char *save, *item = strtok_r(text, ",", &save); item != NULL;
         item = strtok_r(NULL, ",", &save)) {
        char call[32], kind[32];
        unsigned long every;
        if (sscanf(item, "%31[^:]:%31[^:]:%lu", call, kind, &every) != 3 || every == 0) continue;
        for (int c = 0; c < CALLS; c++) {
            for (int k = SHORT; k <= CRASH; k++) {
                if (strcmp(call, names[c]) != 0 || strcmp(kind, kinds[k]) != 0) continue;
                plan[c].kind = (enum kind)k;
                plan[c].every = every;
            }
        }
    }
}

/* Is it this call's turn? */
static enum kind turn(int call) {
    const char *from = getenv("TARN_FAULT_FROM");
    if (plan[call].kind == NONE || (from != NULL && access(from, F_OK) != 0)) return NONE;
    unsigned long n = __atomic_add_fetch(&plan[call].count, 1, __ATOMIC_RELAXED);
    if (plan[call].kind == ONCE) return n == plan[call].every ? FAIL : NONE;
    return n % plan[call].every == 0 ? plan[call].kind : NONE;
}

static bool fails(enum kind k) {
    switch (k) {
    case AGAIN: errno = EAGAIN; return true;
    case INTR: errno = EINTR; return true;
    case RESET: errno = ECONNRESET; return true;
    case FAIL: errno = ENOMEM; return true;
    default: return false;
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((visibility("default"))) ssize_t recv(int fd, void *data, size_t len, int flags) {
    enum kind k = turn(RECV);
    if (fails(k)) return -1;
    return REAL(recv)(fd, data, k == SHORT && len > 1 ? 1 : len, flags);
}

__attribute__((visibility("default"))) ssize_t send(int fd, const void *data, size_t len,
                                                    int flags) {
    int type = 0;
    socklen_t size = sizeof(type);
    bool stream = getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
    enum kind k = turn(SEND);
    if (fails(k)) return -1;
    ssize_t n = REAL(send)(fd, data, k == SHORT && stream && len > 1 ? 1 : len, flags);
    if (k == CRASH) raise(SIGKILL);
    return n;
}

/* A message cut to its first byte. Packets are not cut: no kernel does that. */
static ssize_t shortened(int fd, struct msghdr *msg, int flags,
                         ssize_t (*real)(int, struct msghdr *, int)) {
    int type = 0;
    socklen_t size = sizeof(type);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM ||
        msg->msg_iovlen == 0 || msg->msg_iov[0].iov_len == 0) {
        return real(fd, msg, flags);
    }
    struct iovec one = {msg->msg_iov[0].iov_base, 1};
    struct msghdr copy = *msg;
    copy.msg_iov = &one;
    copy.msg_iovlen = 1;
    return real(fd, &copy, flags);
}

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, struct msghdr *msg, int flags) {
    enum kind k = turn(RECV);
    if (fails(k)) return -1;
    return k == SHORT ? shortened(fd, msg, flags, REAL(recvmsg)) : REAL(recvmsg)(fd, msg, flags);
}

static ssize_t real_sendmsg(int fd, struct msghdr *msg, int flags) {
    return REAL(sendmsg)(fd, msg, flags);
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *msg,
                                                       int flags) {
    enum kind k = turn(SEND);
    if (fails(k)) return -1;
    if (k != SHORT) {
        ssize_t n = REAL(sendmsg)(fd, msg, flags);
        if (k == CRASH) raise(SIGKILL);
        return n;
    }
    struct msghdr copy = *msg;
    return shortened(fd, &copy, flags, real_sendmsg);
}

__attribute__((visibility("default"))) void *mmap(void *addr, size_t len, int prot, int flags,
                                                  int fd, off_t offset) {
    if (fd >= 0 && fails(turn(MMAP))) return MAP_FAILED;
    return REAL(mmap)(addr, len, prot, flags, fd, offset);
}

__attribute__((visibility("default"))) int memfd_create(const char *name, unsigned flags) {
    return fails(turn(MEMFD)) ? -1 : REAL(memfd_create)(name, flags);
}

__attribute__((visibility("default"))) int epoll_ctl(int fd, int what, int of,
                                                     struct epoll_event *event) {
    if (what == EPOLL_CTL_ADD && fails(turn(EPOLLADD))) return -1;
    return REAL(epoll_ctl)(fd, what, of, event);
}

__attribute__((visibility("default"))) int epoll_wait(int fd, struct epoll_event *events, int max,
                                                      int timeout) {
    return fails(turn(EPOLL)) ? -1 : REAL(epoll_wait)(fd, events, max, timeout);
}

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *addr,
                                                   socklen_t len) {
    return fails(turn(CONNECT)) ? -1 : REAL(connect)(fd, addr, len);
}

__attribute__((visibility("default"))) int accept4(int fd, struct sockaddr *addr, socklen_t *len,
                                                   int flags) {
    return fails(turn(ACCEPT)) ? -1 : REAL(accept4)(fd, addr, len, flags);
}

static void wait_if_slow(enum kind k) {
    struct timespec t = {.tv_nsec = 20 * 1000 * 1000};
    if (k == SLOW) nanosleep(&t, NULL);
}

__attribute__((visibility("default"))) ssize_t write(int fd, const void *data, size_t len) {
    struct stat st;
    if (plan[WRITE].kind == SLOW && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        wait_if_slow(turn(WRITE));
    return REAL(write)(fd, data, len);
}

__attribute__((visibility("default"))) int fdatasync(int fd) {
    enum kind k = turn(FDATASYNC);
    if (fails(k)) return -1;
    wait_if_slow(k);
    return REAL(fdatasync)(fd);
}

__attribute__((visibility("default"))) int rename(const char *from, const char *to) {
    int rc = REAL(rename)(from, to);
    wait_if_slow(turn(RENAME)); /* who waits for the new name sees what was done before it */
    return rc;
}

__attribute__((visibility("default"))) int madvise(void *addr, size_t len, int advice) {
    const int populate_read = 22, populate_write = 23;
    if (advice == populate_read || advice == populate_write) {
        enum kind k = turn(MADVISE);
        const char *hold = getenv("TARN_FAULT_HOLD");
        wait_if_slow(k);
        while (k == SLOW && hold != NULL && access(hold, F_OK) == 0) wait_if_slow(k);
        if (fails(k)) return -1;
    }
    return REAL(madvise)(addr, len, advice);
}

/* libsodium's, whose headers are not needed here. What a server crashes in the middle of is a
 * client's password. */
int crypto_hash_sha256(unsigned char *out, const unsigned char *in, unsigned long long len);
__attribute__((visibility("default"))) int
crypto_hash_sha256(unsigned char *out, const unsigned char *in, unsigned long long len) {
    if (turn(HASH) == CRASH) raise(SIGSEGV);
    int (*real)(unsigned char *, const unsigned char *, unsigned long long) =
        (__typeof__(real))dlsym(RTLD_NEXT, "crypto_hash_sha256");
    return real(out, in, len);
}

/* What clients are sent goes this way. */
__attribute__((visibility("default"))) long syscall(long number, ...) {
    long a[6];
    va_list ap;
    va_start(ap, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(ap, long);
    va_end(ap);
    bool last = number == SYS_sendto && plan[SEND].kind == CRASH && turn(SEND) == CRASH;
    long n = REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (last) raise(SIGKILL);
    return n;
}

/* --- wall time --- */

static const volatile int64_t *wall_offset_s; /* NULL: it is right */

__attribute__((constructor)) static void open_wall(void) {
    const char *path = getenv("TARN_FAULT_WALL");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *p = REAL(mmap)(NULL, sizeof(*wall_offset_s), PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) wall_offset_s = p;
    close(fd);
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *t) {
    static __typeof__(&clock_gettime) real;
    if (__atomic_load_n(&real, __ATOMIC_RELAXED) == NULL)
        __atomic_store_n(&real, REAL(clock_gettime), __ATOMIC_RELAXED);
    int rc = real(clock, t);
    if (rc == 0 && wall_offset_s != NULL &&
        (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += *wall_offset_s;
    return rc;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict t,
                                                        void *restrict zone) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

__attribute__((visibility("default"))) time_t time(time_t *t) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (t != NULL) *t = now.tv_sec;
    return now.tv_sec;
}
