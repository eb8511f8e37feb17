#include "node/life.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/daemon.h"
#include "base/file.h"
#include "base/thread.h"
#include "node/tls.h"

/* --- signals --- */

static int pipe_fd[2] = {-1, -1};
static volatile sig_atomic_t endings;

/* 't': end, 'h': open the log again, and read the files of TLS. */
static void note_signal(int signo) {
    int saved = errno;
    if (signo != SIGHUP && ++endings > 1) _exit(128 + signo);
    if (write(pipe_fd[1], signo == SIGHUP ? "h" : "t", 1) < 0) errno = 0; /* full: it knows */
    errno = saved;
}

static void catch_signal(int signo) {
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(signo, &action, NULL);
}

/* Nothing is lost with a node that is not up. */
static void end_at_once(int signo) {
    _exit(128 + signo);
}

/* What came within ms: 't', 'h' or 0. */
static char next_signal(int ms) {
    char c = 0;
    struct pollfd p = {.fd = pipe_fd[0], .events = POLLIN};
    if (poll(&p, 1, ms) > 0 && read(pipe_fd[0], &c, 1) != 1) c = 0;
    return c;
}

/* --- opening --- */

/* A node may be started before its master, which may also go while the node joins, or not want it
 * yet. why NULL: the host's view and its log tell of that. */
static void life_waits_on(void *arg, const char *why) {
    struct node_life *l = arg;
    char text[sizeof(l->waiting)] = "";
    if (why != NULL) snprintf(text, sizeof(text), "waiting for the master: %s", why);
    pthread_mutex_lock(&l->mutex);
    snprintf(l->waiting, sizeof(l->waiting), "%s", text);
    pthread_mutex_unlock(&l->mutex);
    if (why != NULL && !l->told) log_warning("Waiting for the master: %s", why);
    l->told = why != NULL;
    if (next_signal(why != NULL ? 500 : 0) == 'h' && l->o->log_file != NULL)
        log_open(l->o->log_file); /* certificates are read when the host is up */
}

static int node_failed(tarn_status status) {
    const char *advice = "";
    if (status == TARN_EBUSY) advice = " (--name)";
    if (status == TARN_EEXISTS)
        advice = " (--shrink; NODE DRAIN first moves to others what is only there)";
    if (status == TARN_EPERM) advice = " (--user, --password-file)";
    fprintf(stderr, "tarn-node: %s%s\n", tarn_last_error(), advice);
    return status == TARN_EBUSY   ? EXIT_NAME_TAKEN
           : status == TARN_EPERM ? EXIT_PASSWORD
                                  : EXIT_FAILED;
}

/* --- life --- */

static void say_up(const struct node_options *o, tarn_host *host) {
    tarn_host_info info = {.size = sizeof(info)};
    if (tarn_host_get_info(host, &info) != TARN_OK) return;
    printf("tarn-node %s is up: %llu segments of memory, %llu MiB%s%s, data port %u\n",
           o->host.name != NULL ? o->host.name : "(named by machine and pid)",
           (unsigned long long)info.segments, (unsigned long long)(info.bytes >> 20),
           o->host.ssd_path != NULL ? ", ssd" : "", o->host.file_path != NULL ? ", file" : "",
           info.data_port);
    fflush(stdout);
    if (o->port_file != NULL) file_write_number(o->port_file, info.data_port);
    if (o->pid_file != NULL) file_write_number(o->pid_file, (long)getpid());
}

/* What it says of TLS is in the log. */
static void read_files_again(const struct node_options *o, tarn_host *host) {
    if (o->log_file != NULL) log_open(o->log_file);
    node_tls_renew();
    (void)tarn_host_reload_tls(host);
}

/* Until it is to end: by a signal, or because it has left. */
static int node_live(const struct node_options *o, tarn_host **host_p) {
    bool leaving = false;
    for (;;) {
        char c = next_signal(200);
        if (c == 'h') read_files_again(o, *host_p);
        if (tarn_host_wait(*host_p, 0) == TARN_OK) {
            log_notice("The node has left the pool, bye bye...");
            return tarn_host_close(host_p, 0, 0) == TARN_OK ? EXIT_DONE : EXIT_FAILED;
        }
        if (c != 't' || leaving) continue;
        leaving = true;
        if (!o->drain_on_exit) break;
        log_notice("Received a signal: what is only here is moved to other nodes; a second signal "
                   "ends at once");
        tarn_host_drain(*host_p);
    }
    log_notice(o->keeps ? "Received a signal: going away, a restart finds everything again"
                        : "Received a signal: leaving the pool");
    return tarn_host_close(host_p, o->keeps, o->exit_timeout_ms) == TARN_OK ? EXIT_DONE
                                                                            : EXIT_FAILED;
}

static int life_code(struct node_life *l) {
    const struct node_options *o = l->o;
    struct hosting_plan plan = {.url = o->master,
                                .options = &o->client,
                                .host = &o->host,
                                .view = l->view,
                                .meanwhile = life_waits_on,
                                .arg = l};
    tarn_host *host = NULL;
    tarn_status status = hosting_open(&plan, &host);
    if (status == TARN_ECLOSED) { /* it was asked to leave before it was started anew */
        log_notice("The node has left the pool, bye bye...");
        return EXIT_DONE;
    }
    if (status != TARN_OK) return node_failed(status);
    /* Until now these end the process, with which nothing is lost. */
    catch_signal(SIGTERM);
    catch_signal(SIGINT);
    say_up(o, host);
    daemon_ready();
    int code = node_live(o, &host);
    if (o->port_file != NULL) unlink(o->port_file);
    if (o->pid_file != NULL) file_unlink_number(o->pid_file, (long)getpid());
    return code;
}

static void *life_main(void *arg) {
    struct node_life *l = arg;
    l->code = life_code(l);
    eventfd_write(l->over_fd, 1);
    return NULL;
}

bool life_init(struct node_life *l, const struct node_options *o, struct hosting_view *view) {
    *l = (struct node_life){.o = o,
                            .view = view,
                            .over_fd = eventfd(0, EFD_CLOEXEC),
                            .code = EXIT_FAILED,
                            .waiting = "it is starting"};
    pthread_mutex_init(&l->mutex, NULL);
    return l->over_fd >= 0 && pipe2(pipe_fd, O_CLOEXEC | O_NONBLOCK) == 0;
}

bool life_start(struct node_life *l) {
    catch_signal(SIGHUP);
    if (getpid() == 1) { /* in a container: the kernel drops signals of the first process that have
                          * no handler */
        signal(SIGTERM, end_at_once);
        signal(SIGINT, end_at_once);
    }
    errno = thread_start(&l->thread, "tarn-life", life_main, l);
    l->runs = errno == 0;
    return l->runs;
}

int life_end(struct node_life *l) {
    if (l->runs) pthread_join(l->thread, NULL);
    if (l->over_fd >= 0) close(l->over_fd);
    pthread_mutex_destroy(&l->mutex);
    return l->code;
}

bool life_waits(struct node_life *l, char *text, size_t cap) {
    pthread_mutex_lock(&l->mutex);
    bool waits = l->waiting[0] != '\0';
    if (waits) snprintf(text, cap, "%s", l->waiting);
    pthread_mutex_unlock(&l->mutex);
    return waits;
}
