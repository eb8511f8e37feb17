/* The processes under test: a master that only keeps books, and nodes of all kinds. */
#include "chaos.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "tarn.h"

#define ARGS_MAX  32
#define LOG_SHOWN 6000 /* bytes of the log of a process that ended as it should not */

/* --- processes --- */

static const char *binary(const char *variable, const char *fallback) {
    const char *path = getenv(variable);
    return path != NULL ? path : fallback;
}

/* The kernel kills it when we die. */
static pid_t start(const struct chaos_pool *p, const char *log_name, const char *const *argv) {
    char log[400];
    snprintf(log, sizeof(log), "%s/%s.log", p->dir, log_name);
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int fd = open(log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) dup2(fd, 1), dup2(fd, 2);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    fprintf(stderr, "cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return -1;
    close(fd);
    return ntohs(a.sin_port);
}

static int wait_end(pid_t pid, uint64_t ms) {
    uint64_t until = clock_mono_ms() + ms;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > until) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        chaos_sleep_ms(5);
    }
    return status;
}

void chaos_show_log(const struct chaos_pool *p, const char *name) {
    char path[400], end[LOG_SHOWN + 1];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s.log", p->dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;
    if (fd >= 0 && fstat(fd, &st) == 0)
        n = pread(fd, end, LOG_SHOWN, st.st_size > LOG_SHOWN ? st.st_size - LOG_SHOWN : 0);
    if (fd >= 0) close(fd);
    if (n < 0) return;
    end[n] = '\0';
    const char *line = n == LOG_SHOWN ? strchr(end, '\n') : NULL;
    fprintf(stderr, "--- the end of %s:\n%s---\n", path, line != NULL ? line + 1 : end);
}

/* --- the master --- */

void chaos_master_start(struct chaos_pool *p) {
    char port[16];
    snprintf(port, sizeof(port), "%d", p->port);
    const char *argv[] = {binary("TARN_SERVER", "src/tarn-server"),
                          "--bind",
                          "127.0.0.1",
                          "--port",
                          port,
                          "--data-port",
                          "0",
                          "--pool-size",
                          "0",
                          "--dir",
                          p->dir,
                          "--cluster-id",
                          "00112233445566778899aabbccddeeff",
                          "--put-timeout",
                          "500ms",
                          "--put-release-timeout",
                          "2s",
                          "--max-lease",
                          "2s",
                          "--node-timeout",
                          "1s",
                          "--node-heartbeat",
                          "100ms",
                          "--hot-replicas",
                          "3",
                          "--hot-threshold",
                          "40",
                          "--hot-window",
                          "500ms",
                          NULL};
    p->master = start(p, "master", argv);
    __atomic_store_n(&chaos->master_started_ns, clock_mono_ns(), __ATOMIC_RELEASE);
}

bool chaos_master_answers(const struct chaos_pool *p, uint64_t ms) {
    uint64_t until = clock_mono_ms() + ms;
    tarn_client *c;
    while (clock_mono_ms() < until) {
        if (tarn_connect(p->url, NULL, &c) == TARN_OK) {
            tarn_close(&c);
            return true;
        }
        chaos_sleep_ms(20);
    }
    fprintf(stderr, "the master does not answer: %s\n", tarn_last_error());
    return false;
}

bool chaos_ask(const struct chaos_pool *p, char *reply, size_t cap, const char *fmt, ...) {
    char text[600], *got = NULL, *rest = NULL;
    const char *argv[32];
    size_t argc = 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (char *w = strtok_r(text, " ", &rest); w != NULL && argc < ARRAY_LEN(argv);
         w = strtok_r(NULL, " ", &rest))
        argv[argc++] = w;
    tarn_client *c;
    tarn_status status = tarn_connect(p->url, NULL, &c);
    if (status == TARN_OK) {
        status = tarn_command(c, argc, argv, NULL, &got, NULL);
        snprintf(reply, cap, "%s", status == TARN_OK ? got : tarn_last_error());
        tarn_close(&c);
    } else {
        snprintf(reply, cap, "%s", tarn_last_error());
    }
    tarn_free(got);
    return status == TARN_OK;
}

/* --- nodes --- */

/* One of each kind; %s is the directory. Two of them are on one machine. */
static const struct kind {
    const char *name, *machine, *rack;
    const char *options[4][2]; /* name, value */
    const char *disk;          /* what can be damaged */
} kinds[CHAOS_NODES] = {
    {"n0", "m0", "r0", {{"--segment", "8mb"}}, NULL},
    {"n1", "m1", "r0", {{"--segment", "8mb,path=%s/n1.pool"}}, NULL},
    {"n2", "m2", "r1", {{"--segment", "8mb"}, {"--ssd", "%s/n2.ssd:64mb,create"}}, "n2.ssd"},
    {"n3",
     "m3",
     "r1",
     {{"--segment", "4mb,path=%s/n3.pool"}, {"--segment", "4mb"}, {"--file", "%s/shared:64mb"}},
     NULL},
    {"n4",
     "m0",
     "r0",
     {{"--segment", "4mb,path=%s/n4.pool"}, {"--ssd", "%s/n4.ssd:64mb,create"}},
     "n4.ssd"},
};

const char *chaos_node_name(unsigned i) {
    return kinds[i].name;
}

void chaos_node_start(struct chaos_pool *p, unsigned i) {
    const struct kind *k = &kinds[i];
    const char *argv[ARGS_MAX] = {binary("TARN_NODE", "src/tarn-node"),
                                  "--master",
                                  p->url,
                                  "--name",
                                  k->name,
                                  "--host-name",
                                  k->machine,
                                  "--rack",
                                  k->rack,
                                  "--bind",
                                  "127.0.0.1",
                                  "--exit-timeout",
                                  "3",
                                  "--queue",
                                  "4mb"};
    char values[4][400], shm[400];
    size_t n = 0;
    while (argv[n] != NULL) n++;
    snprintf(shm, sizeof(shm), "%s/%s.sock", p->dir, k->name);
    argv[n++] = "--shm-socket";
    argv[n++] = shm;
    for (size_t o = 0; o < ARRAY_LEN(k->options) && k->options[o][0] != NULL; o++) {
        const char *value = k->options[o][1], *at = strstr(value, "%s");
        if (at == NULL) {
            snprintf(values[o], sizeof(values[o]), "%s", value);
        } else {
            snprintf(values[o], sizeof(values[o]), "%.*s%s%s", (int)(at - value), value, p->dir,
                     at + 2);
        }
        argv[n++] = k->options[o][0];
        argv[n++] = values[o];
    }
    p->node[i] =
        (struct chaos_node){.pid = start(p, k->name, argv), .draining = p->node[i].draining};
}

int chaos_node_end(struct chaos_pool *p, unsigned i, int signo) {
    struct chaos_node *n = &p->node[i];
    if (n->pid == 0) return 0;
    kill(n->pid, SIGCONT);
    kill(n->pid, signo);
    int status = wait_end(n->pid, 30000);
    *n = (struct chaos_node){.draining = n->draining};
    return status;
}

bool chaos_node_damage(struct chaos_pool *p, unsigned i, struct rng *rng) {
    if (kinds[i].disk == NULL) return false;
    char path[400], noise[512];
    snprintf(path, sizeof(path), "%s/%s", p->dir, kinds[i].disk);
    struct stat st;
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof(noise)) {
        if (fd >= 0) close(fd);
        return false;
    }
    for (int k = 0; k < 20; k++) {
        for (size_t b = 0; b < sizeof(noise); b++) noise[b] = (char)rng_next(rng);
        off_t at = (off_t)rng_below(rng, (uint64_t)st.st_size - sizeof(noise));
        if (pwrite(fd, noise, 1 + rng_below(rng, sizeof(noise)), at) < 0) break;
    }
    close(fd);
    return true;
}

/* --- all of it --- */

bool chaos_pool_open(struct chaos_pool *p) {
    const char *tmp = getenv("TMPDIR");
    snprintf(p->dir, sizeof(p->dir), "%s/chaos-%d", tmp != NULL ? tmp : "/tmp", (int)getpid());
    char path[400];
    snprintf(path, sizeof(path), "%s/shared", p->dir);
    if (mkdir(p->dir, 0755) != 0 || mkdir(path, 0755) != 0) {
        fprintf(stderr, "%s: %s\n", p->dir, strerror(errno));
        return false;
    }
    p->port = free_port();
    snprintf(p->url, sizeof(p->url), "tarn://127.0.0.1:%d", p->port);
    chaos_master_start(p);
    return chaos_master_answers(p, 20000);
}

static bool ended_well(const struct chaos_pool *p, const char *name, int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    chaos_show_log(p, name);
    if (status == -1) {
        fprintf(stderr, "%s does not end\n", name);
    } else if (WIFEXITED(status)) {
        fprintf(stderr, "%s ended with status %d\n", name, WEXITSTATUS(status));
    } else {
        fprintf(stderr, "%s ended by signal %d\n", name, WTERMSIG(status));
    }
    return false;
}

bool chaos_pool_close(struct chaos_pool *p, bool ok) {
    for (unsigned i = 0; i < CHAOS_NODES; i++)
        ok &= ended_well(p, kinds[i].name, chaos_node_end(p, i, SIGTERM));
    if (p->master > 0) {
        kill(p->master, SIGTERM);
        ok &= ended_well(p, "master", wait_end(p->master, 30000));
    }
    if (!ok) {
        fprintf(stderr, "logs are in %s\n", p->dir);
        return false;
    }
    char command[400];
    snprintf(command, sizeof(command), "rm -rf '%s'", p->dir);
    return system(command) == 0;
}
