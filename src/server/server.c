/* Set-up, in this order, because each needs what is before it; tear-down is the other way round.
 *
 *   log, daemon, signals ─> listening sockets (bound, so that a busy port fails before a pool is mapped) ─> loop, commands
 *   ─> books ─> host: segment memory, data port ─> clients are accepted */
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/log.h"
#include "cmd/client.h"
#include "cmd/stats.h"
#include "cmd/waiters.h"
#include "host/host.h"

static struct net_loop *loop;
static struct net_watch host_watch;
static char shm_path[PATH_MAX], executable_path[PATH_MAX];

/* --- news between books and host ------------------------------------------------------------------------------------------------ */

/* Sessions to be told as fenced at once, because there is no host that they could write to. */
static struct {
    uint64_t *session;
    size_t n, cap;
} unhosted;

/* The session is over for good, so the client that holds it must come back with a new one. */
static void on_fence(void *arg, uint64_t session) {
    struct client *c = client_find(session);
    if (c != NULL) {
        log_notice("Client id=%llu is cut off: a put of it was not ended in time",
                   (unsigned long long)session);
        client_close_soon(c);
    }
    if (server.host != NULL) {
        host_fence(server.host, session);
        return;
    }
    if (unhosted.n == unhosted.cap) {
        unhosted.cap = unhosted.cap == 0 ? 16 : unhosted.cap * 2;
        unhosted.session = xrealloc(unhosted.session, unhosted.cap * sizeof(uint64_t));
    }
    unhosted.session[unhosted.n++] = session;
}

static void on_fenced(void *arg, uint64_t session) {
    store_session_fenced(server.store, session);
}

static void on_host_event(void *arg, unsigned events) {
    host_poll(server.host);
}

static uint64_t turn(void *arg) {
    for (size_t i = 0; i < unhosted.n; i++) store_session_fenced(server.store, unhosted.session[i]);
    unhosted.n = 0;
    uint64_t ms = core_turn(arg);
    return unhosted.n > 0 ? 0 : ms;
}

/* --- steps ---------------------------------------------------------------------------------------------------------------------- */

static bool daemonize(void) {
    pid_t pid = fork();
    if (pid < 0) return false;
    if (pid > 0) _exit(0);
    setsid();
    int null = open("/dev/null", O_RDWR);
    if (null < 0) return false;
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    if (null > STDERR_FILENO) close(null);
    return true;
}

static bool write_number(const char *path, long number) {
    char *tmp = xmalloc(strlen(path) + 32);
    sprintf(tmp, "%s.%ld.tmp", path, (long)getpid());
    FILE *f = fopen(tmp, "we");
    bool ok = f != NULL && fprintf(f, "%ld\n", number) > 0;
    if (f != NULL && fclose(f) != 0) ok = false;
    ok = ok && rename(tmp, path) == 0;
    if (!ok) {
        log_warning("Failed to write %s: %s", path, strerror(errno));
        unlink(tmp);
    }
    free(tmp);
    return ok;
}

static bool set_up_process(struct config *c, const char *executable) {
    if (realpath("/proc/self/exe", executable_path) == NULL)
        snprintf(executable_path, sizeof(executable_path), "%s", executable);
    core_endpoints.executable = executable_path;
    log_set_level((enum log_level)c->loglevel);
    if (chdir(c->dir) != 0) {
        log_warning("Can't chdir to '%s': %s", c->dir, strerror(errno));
        return false;
    }
    if (!log_open(c->logfile)) {
        fprintf(stderr, "tarn-server: can't open the log file %s: %s\n", c->logfile, strerror(errno));
        return false;
    }
    log_set_role('M');
    if (c->daemonize && !daemonize()) {
        log_warning("Could not become a daemon: %s", strerror(errno));
        return false;
    }
    if (c->pidfile[0] != '\0') write_number(c->pidfile, (long)getpid());
    signals_block();
    signals_catch_crashes();
    if (sodium_init() < 0) {
        log_warning("libsodium cannot be used");
        return false;
    }
    return core_adjust_descriptors(c, NULL);
}

/* Grants and cached endpoints of an earlier process must not be valid here: an epoch that grows with time, in tenths of a
 * second since 2025, lasts until 2038. */
static uint32_t cold_epoch(void) {
    uint64_t wall = clock_wall_ms(), birth = UINT64_C(1735689600000);
    return wall > birth ? (uint32_t)((wall - birth) / 100) + 1 : 1;
}

static void set_up_identity(void) {
    uint8_t random[20];
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(server.run_id, sizeof(server.run_id), random, sizeof(random));
    randombytes_buf(server.grant_key, sizeof(server.grant_key));
    server.master_epoch = cold_epoch();
}

static bool set_up_books(const struct config *c) {
    static const struct store_events events = {NULL, waiters_notify, on_fence};
    struct store_config sc;
    store_config_init(&sc);
    core_store_config(c, &sc);
    server.store = store_create(&sc, &events, config_policy_name(c), config_allocator_name(c), server.mono_ms,
                                server.wall_ms);
    if (server.store == NULL) log_warning("The books could not be set up");
    return server.store != NULL;
}

static const char *choose_shm_path(const struct config *c) {
    const char *dir = getenv("XDG_RUNTIME_DIR");
    if (strcmp(c->shm_socket, "auto") != 0) return c->shm_socket;
    snprintf(shm_path, sizeof(shm_path), "%s/tarn-%u.sock", dir != NULL && dir[0] == '/' ? dir : "/tmp",
             core_endpoints.port);
    return shm_path;
}

static uint16_t choose_data_port(const struct config *c) {
    if (c->data_port >= 0) return (uint16_t)c->data_port;
    return c->port == 0 || core_endpoints.port > 55535 ? 0 : (uint16_t)(core_endpoints.port + 10000);
}

static bool set_up_segment(const struct config *c) {
    const char *why = "";
    uint32_t id;
    uint64_t size = c->pool_size / 4096 * 4096;
    struct host_segment_config segment = {.name = "local",
                                          .size = size,
                                          .numa_node = (int)c->numa_node,
                                          .huge = c->huge_pages ? HOST_HUGE_TRY : HOST_HUGE_NO,
                                          .populate = c->pool_populate,
                                          .pool_path = c->pool_path[0] != '\0' ? c->pool_path : NULL};
    tarn_status status = store_segment_add(server.store, segment.name, server.master_epoch, size, &id);
    if (status == TARN_OK) status = host_segment_add(server.host, &segment, id, server.master_epoch, &why);
    if (status != TARN_OK)
        log_warning("The pool of %llu bytes could not be set up: %s%s%s", (unsigned long long)size,
                    tarn_status_text(status), why != NULL && why[0] != '\0' ? ": " : "",
                    why != NULL ? why : "");
    return status == TARN_OK;
}

static bool set_up_host(const struct config *c) {
    if (c->pool_size < 4096) return true;
    const char *addresses[LISTENERS_MAX];
    struct host_config hc = {.bind = addresses,
                             .binds = listeners_addresses(addresses),
                             .data_port = choose_data_port(c),
                             .threads = (unsigned)c->data_threads,
                             .max_connections = (unsigned)c->data_maxclients,
                             .idle_timeout_ms = c->data_timeout_ms,
                             .shm_path = choose_shm_path(c),
                             .shm_mode = (unsigned)c->shm_socket_perm,
                             .fenced = on_fenced};
    if (host_create(&hc, &server.host) != TARN_OK) {
        log_warning("The data port %u could not be set up", hc.data_port);
        return false;
    }
    host_set_authority(server.host, server.grant_key, server.master_epoch);
    if (!set_up_segment(c)) return false;
    if (host_start(server.host) != TARN_OK) {
        log_warning("Failed listening on port %u (data), aborting.", hc.data_port);
        return false;
    }
    core_endpoints.data_port = host_data_port(server.host);
    core_endpoints.shm_path = hc.shm_path;
    net_watch_init(&host_watch, loop, host_event_fd(server.host), on_host_event, NULL);
    return net_watch_set(&host_watch, NET_READ) == TARN_OK;
}

static void announce(const struct config *c) {
    const char *shm = core_endpoints.shm_path[0] != '\0' ? core_endpoints.shm_path : "none";
    log_notice("Pool: %llu bytes, data port=%u, shm socket=%s", (unsigned long long)c->pool_size,
               core_endpoints.data_port, shm);
    log_notice("Ready to accept connections, port=%u", core_endpoints.port);
    if (c->port_file[0] != '\0') write_number(c->port_file, core_endpoints.port);
    welcome(c);
}

/* Unless another process has written its own by now. */
static void unlink_number(const char *path, long number) {
    long there = -1;
    FILE *f = fopen(path, "re");
    if (f == NULL) return;
    if (fscanf(f, "%ld", &there) == 1 && there == number) unlink(path);
    fclose(f);
}

static void tear_down(const struct config *c, bool announced) {
    listeners_close();
    signals_close();
    if (server.store != NULL) core_deinit();
    if (server.host != NULL) net_watch_set(&host_watch, 0);
    host_destroy(&server.host);
    store_destroy(&server.store);
    net_loop_destroy(&loop);
    free(unhosted.session);
    if (c->pidfile[0] != '\0') unlink_number(c->pidfile, (long)getpid());
    if (announced && c->port_file[0] != '\0') unlink_number(c->port_file, core_endpoints.port);
}

int server_run(struct config *c, const char *executable) {
    server.config = c;
    if (!set_up_process(c, executable)) return 1;
    log_notice("tarn " TARN_VERSION " starting, PID: %ld, configuration: %s", (long)getpid(),
               config_file()[0] != '\0' ? config_file() : "defaults and command line");
    if (!listeners_bind(c)) return 1;
    struct net_hooks hooks = {NULL, core_woke, turn};
    loop = net_loop_create(&hooks);
    if (loop == NULL) {
        log_warning("The event loop could not be set up");
        return 1;
    }
    set_up_identity();
    core_init(loop);
    core_endpoints.rebind = listeners_rebind;
    bool ok = set_up_books(c) && set_up_host(c);
    if (ok) {
        signals_open(loop);
        core_endpoints.startup_memory = stats_used_memory();
        listeners_open(loop);
        announce(c);
        net_loop_run(loop);
        log_notice("tarn is now ready to exit, bye bye...");
    }
    tear_down(c, ok);
    return ok ? 0 : 1;
}
