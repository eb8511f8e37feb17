/* Signals arrive as bytes of a descriptor in the loop, so that no handler runs in the middle of the
 * books. A crash is the exception: base/crash.h. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "base/log.h"
#include "ha/shutdown.h"
#include "server/server.h"
#include "config/config.h"

static struct net_watch watch;
static int fd = -1;

static void handled(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
}

void signals_block(void) {
    sigset_t set;
    handled(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* write says so, too */
}

static void rotate_log(void) {
    const char *path = config->logfile;
    if (path[0] == '\0')
        log_notice("Received SIGHUP: there is no log file to open again");
    else if (log_open(path))
        log_notice("Received SIGHUP: the log file was opened again");
    else
        log_warning("Received SIGHUP: the log file %s cannot be opened: %s; this one stays", path,
                    strerror(errno));
}

static void on_signal(void *arg, unsigned events) {
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGHUP)
            rotate_log();
        else
            shutdown_by_signal((int)info.ssi_signo);
    }
}

void signals_open(struct net_loop *loop) {
    sigset_t set;
    handled(&set);
    fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0) return;
    net_watch_init(&watch, loop, fd, on_signal, NULL);
    net_watch_set(&watch, NET_READ);
}

void signals_close(void) {
    if (fd < 0) return;
    net_watch_set(&watch, 0);
    close(fd);
    fd = -1;
}
