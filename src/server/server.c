/* Set-up, in this order, because each needs what is before it; tear-down is the other way round.
 *
 *   log, daemon, signals
 *   ─> listening sockets (bound, so that a busy port fails before a pool is mapped)
 *   ─> loop, commands ─> books ─> the cluster's plans ─> modules
 *   ─> host: segment memory, data port
 *   ─> clients are accepted, and told LOADING
 *   ─> the pool is populated, by threads: ready */
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/crash.h"
#include "base/daemon.h"
#include "base/file.h"
#include "base/log.h"
#include "base/spin.h"
#include "cluster/cluster.h"
#include "front/acl_users.h"
#include "ha/books.h"
#include "front/client.h"
#include "config/table.h"
#include "config/tls.h"
#include "front/descriptors.h"
#include "base/heap.h"
#include "ha/persistence.h"
#include "front/modules.h"
#include "front/process.h"
#include "ha/replication.h"
#include "front/stats.h"
#include "front/table.h"
#include "host/host.h"
#include "host/place.h"
#include "module/events.h"
#include "server/turn.h"
#include "front/embedded.h"
#include "config/config.h"

static struct net_loop *loop;
static struct net_watch host_watch;
static char shm_path[HOST_SOCKET_MAX], executable_path[PATH_MAX];

/* --- news between books and host --- */

static void on_fenced(void *arg, uint64_t session) {
    cluster_local_fenced(session);
}

static void on_fenced_before(void *arg, uint32_t master_epoch) {
    embedded_fenced(master_epoch);
}

static void on_host_event(void *arg, unsigned events) {
    host_poll(embedded.host);
}

/* --- steps --- */

/* CONFIG GET dir tells where that is, whatever the file said. */
static bool enter_directory(struct config *c) {
    char path[PATH_MAX];
    if (chdir(c->dir) != 0 || getcwd(path, sizeof(path)) == NULL) {
        log_warning("Can't chdir to '%s': %s", c->dir, strerror(errno));
        return false;
    }
    free(c->dir);
    c->dir = xstrdup(path);
    return true;
}

/* The log is named as whoever started this finds it. */
static bool become_daemon(const struct config *c) {
    struct buf log = {NULL, 0, 0};
    if (c->logfile[0] != '\0' && c->logfile[0] != '/') buf_printf(&log, "%s/", c->dir);
    buf_append_str(&log, c->logfile);
    buf_append_char(&log, '\0');
    bool ok = daemon_begin(log.data);
    int error = errno;
    buf_free(&log);
    if (!ok) log_warning("Could not become a daemon: %s", strerror(error));
    return ok;
}

static bool set_up_process(struct config *c, const char *executable) {
    if (realpath("/proc/self/exe", executable_path) == NULL)
        snprintf(executable_path, sizeof(executable_path), "%s", executable);
    core_endpoints.executable = executable_path;
    log_set_level((enum log_level)c->loglevel);
    log_keep(MODULE_EVENTS_KEPT);
    if (!enter_directory(c)) return false;
    if (!log_open(c->logfile)) {
        fprintf(stderr, "tarn-server: can't open the log file %s: %s\n", c->logfile,
                strerror(errno));
        return false;
    }
    log_set_role('M');
    if (c->syslog_enabled)
        log_syslog(c->syslog_ident, c->syslog_facility == 0
                                        ? LOG_USER
                                        : LOG_LOCAL0 + ((c->syslog_facility - 1) << 3));
    /* who stays in the foreground then */
    process_supervisor_find();
    if (c->daemonize && !process_supervised() && !become_daemon(c)) return false;
    if (c->pidfile[0] != '\0') file_write_number(c->pidfile, (long)getpid());
    signals_block();
    crash_catch(c->crash_log_enabled);
    crash_tell(process_crash_lines);
    process_disable_thp();
    (void)process_oom_score(NULL); /* what is refused is logged */
    (void)process_loop_priority(NULL);
    if (c->jemalloc_bg_thread && !heap_background(true))
        log_warning("jemalloc-bg-thread: this program's allocator has no background thread");
    if (sodium_init() < 0) {
        log_warning("libsodium cannot be used");
        return false;
    }
    return descriptors_share(c);
}

static void set_up_identity(void) {
    uint8_t random[20];
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(server.run_id, sizeof(server.run_id), random, sizeof(random));
    randombytes_buf(embedded.grant_key, sizeof(embedded.grant_key));
}

static const char *choose_shm_path(const struct config *c) {
    char name[40];
    if (strcmp(c->shm_socket, "auto") != 0) return c->shm_socket;
    if (core_endpoints.port != 0)
        snprintf(name, sizeof(name), "tarn-%u.sock", core_endpoints.port);
    else
        snprintf(name, sizeof(name), "tarn-pid-%ld.sock", (long)getpid());
    return host_socket_path(name, shm_path) ? shm_path : "";
}

static uint16_t choose_data_port(const struct config *c) {
    if (c->data_port >= 0) return (uint16_t)c->data_port;
    bool any = c->port < 0 || (c->port == 0 && c->tls_port <= 0);
    return any || core_endpoints.port > 55535 ? 0 : (uint16_t)(core_endpoints.port + 10000);
}

/* Where commands come over the unix socket only, data stays on this machine, too. */
static size_t data_addresses(const char *out[LISTENERS_MAX]) {
    size_t n = listeners_addresses(out);
    if (n == 0) out[n++] = "127.0.0.1";
    return n;
}

/* loaded: the books are those of an earlier process, and wait for who leads them. */
static bool set_up_host(const struct config *c, bool loaded) {
    if (c->pool_size < 4096) {
        if (loaded && !replication_is_replica()) books_lead(STORE_SEGMENT_ANY, false);
        return true;
    }
    const char *addresses[LISTENERS_MAX];
    struct host_config hc = {.bind = addresses,
                             .binds = data_addresses(addresses),
                             .data_port = choose_data_port(c),
                             .threads = (unsigned)c->data_threads,
                             .max_connections = (unsigned)c->data_maxclients,
                             .idle_timeout_ms = c->data_timeout_ms,
                             .busy_poll_us = (uint64_t)c->busy_poll_us,
                             .shm_path = choose_shm_path(c),
                             .shm_mode = (unsigned)c->shm_socket_perm,
                             .shm_optional = strcmp(c->shm_socket, "auto") == 0,
                             .tls = config_tls_data_port(c),
                             .fenced = on_fenced,
                             .fenced_before = on_fenced_before};
    if (host_create(&hc, &embedded.host) != TARN_OK) {
        log_warning("The data port %u could not be set up", hc.data_port);
        return false;
    }
    if (!embedded_open(c, loaded)) return false;
    core_endpoints.reload = embedded_reload;
    if (host_start(embedded.host) != TARN_OK) {
        log_warning(
            "Failed listening on port %u (data-port%s) or on the socket \"%s\" (shm-socket), "
            "aborting. The line above says why; --data-port and --shm-socket name others",
            hc.data_port, c->data_port < 0 && hc.data_port != 0 ? ": port + 10000" : "",
            hc.shm_path);
        return false;
    }
    core_endpoints.data_port = host_data_port(embedded.host);
    core_endpoints.shm_path = host_shm_path(embedded.host);
    net_watch_init(&host_watch, loop, host_event_fd(embedded.host), on_host_event, NULL);
    return net_watch_set(&host_watch, NET_READ) == TARN_OK;
}

static void announce(const struct config *c) {
    const char *shm = core_endpoints.shm_path[0] != '\0' ? core_endpoints.shm_path : "none";
    log_notice("Pool: %llu bytes, data port=%u, shm socket=%s", (unsigned long long)c->pool_size,
               core_endpoints.data_port, shm);
    log_notice("Ready to accept connections, port=%u", core_endpoints.port);
    if (core_endpoints.tls_port != 0) log_notice("TLS port=%u", core_endpoints.tls_port);
    if (c->unixsocket[0] != '\0') log_notice("Unix socket=%s", c->unixsocket);
    process_title_update();
    welcome();
    /* Whoever waits for one of these finds all that is above done. */
    if (c->port_file[0] != '\0') file_write_number(c->port_file, core_endpoints.port);
    process_notify("READY=1\nSTATUS=%s on port %u",
                   replication_is_replica() ? "Replica: follows its master"
                                            : "Ready to accept connections",
                   core_endpoints.port);
    daemon_ready();
}

/* --- populating the pool --- */

/* The loop serves meanwhile, as far as that is possible: LOADING, INFO, the end. */
#define POPULATED_MS 5u

static struct net_timer populating;
static bool announced, populating_failed;

static void on_populating(void *arg) {
    tarn_status s = TARN_OK;
    if (embedded.host != NULL && !embedded_populated(&s)) {
        net_timer_start(&populating, POPULATED_MS);
        return;
    }
    populating_failed = s != TARN_OK;
    if (populating_failed) {
        log_warning(
            "The pool of %llu bytes could not be populated: %s. pool-populate no starts without",
            (unsigned long long)config->pool_size, tarn_status_text(s));
        core_shutdown("There is not enough memory for the pool");
        return;
    }
    announced = true;
    announce(config);
}

static void begin_populating(void) {
    net_timer_init(&populating, loop, on_populating, NULL);
    if (embedded.host != NULL) embedded_populate();
    on_populating(NULL);
}

static void tear_down(const struct config *c) {
    net_timer_stop(&populating);
    listeners_close();
    signals_close();
    if (books != NULL) turn_deinit();
    if (embedded.host != NULL) net_watch_set(&host_watch, 0);
    cluster_deinit(); /* before the host that it may ask for something */
    host_destroy(&embedded.host);
    modules_deinit();
    books_destroy();
    modules_free();
    config_tls_free();
    net_loop_destroy(&loop);
    if (c->pidfile[0] != '\0') file_unlink_number(c->pidfile, (long)getpid());
    if (announced && c->port_file[0] != '\0') file_unlink_number(c->port_file, core_endpoints.port);
}

static bool rename_all(const struct config *c, char **why_p) {
    struct config_faults faults = {.n = 0};
    for (size_t i = 0; i < c->renames.n; i++) {
        const char *from = c->renames.line[i].word[0], *to = c->renames.line[i].word[1];
        char many[64];
        const char *why = NULL;
        snprintf(many, sizeof(many), "more than %u commands are renamed", TABLE_RENAMED_MAX);
        switch (table_rename(span_str(from), span_str(to))) {
        case TARN_OK: break;
        case TARN_ENOTFOUND: why = "No such command in rename-command"; break;
        case TARN_EEXISTS: why = "Target command name already exists"; break;
        default: why = many; break;
        }
        if (why != NULL) config_fault(&faults, "rename-command %s \"%s\": %s", from, to, why);
    }
    return config_faults_tell(&faults, why_p);
}

static bool rename_commands(const struct config *c) {
    char *why = NULL;
    if (rename_all(c, &why)) return true;
    log_warning("Configuration error: %s", why);
    free(why);
    return false;
}

int server_run(struct config *c, const char *executable) {
    config = c;
    config_told = server_told;
    config_users = &acl_users_rewrite;
    if (!set_up_process(c, executable)) return 1;
    net_set_mark((uint32_t)c->socket_mark_id);
    if (!net_set_source(c->bind_source_addr)) {
        log_warning("bind-source-addr %s is no IPv4 or IPv6 address", c->bind_source_addr);
        return 1;
    }
    /* Whoever waits for the process id or for "Failed listening" finds out which of them it is. */
    const char *why;
    if (!config_tls_load(c, &why)) {
        log_warning("Failed to configure TLS: %s", why);
        return 1;
    }
    if (!listeners_bind()) return 1;
    log_notice("tarn " TARN_VERSION " starting, PID: %ld, configuration: %s", (long)getpid(),
               config_file()[0] != '\0' ? config_file() : "defaults and command line");
    if (c->n_ignored > 0)
        log_notice("Ignored: %zu options of Redis that change nothing here (docs/CONFIG.md says "
                   "why): %.*s",
                   c->n_ignored, (int)c->ignored.len, c->ignored.data);
    if (c->databases > 1)
        log_warning("databases %lld: SELECT takes that many numbers, and all of them name the one "
                    "keyspace there is",
                    (long long)c->databases);
    struct net_hooks hooks = {.woke = turn_woke, .turn = turn_run, .ahead = clients_ahead};
    loop = net_loop_create(&hooks);
    if (loop == NULL) {
        log_warning("The event loop could not be set up");
        return 1;
    }
    spin_set(net_loop_spin(loop), (uint64_t)c->busy_poll_us);
    set_up_identity();
    turn_init(loop);
    if (!rename_commands(c)) return 1;
    core_endpoints.rebind = listeners_rebind;
    replication_init();
    bool loaded,
        ok = persistence_load(&loaded) && (loaded || books_create(replication_is_replica()));
    modules_init();
    ok = ok && modules_load() && acl_users_load() && set_up_host(c, loaded) && persistence_begin();
    if (ok) {
        signals_open(loop);
        core_begin();
        core_endpoints.startup_memory = stats_used_memory();
        listeners_open(loop);
        replication_start();
        begin_populating();
        net_loop_run(loop);
        (void)persistence_end(PERSISTENCE_AS_CONFIGURED); /* after a signal; SHUTDOWN has done so */
        log_notice("tarn is now ready to exit, bye bye...");
    }
    tear_down(c);
    return ok && !populating_failed ? 0 : 1;
}
