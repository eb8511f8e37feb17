/* Signals arrive as bytes of a descriptor in the loop, so that no handler runs in the middle of the books. A crash is the
 * exception: its handler writes what it can and lets the process die of the same signal. */
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "base/log.h"
#include "server/server.h"

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
}

static void on_signal(void *arg, unsigned events) {
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGHUP) { /* log rotation */
            log_open(server.config->logfile);
            log_notice("Received SIGHUP: the log file was opened again");
        } else {
            core_shutdown(info.ssi_signo == SIGTERM ? "Received SIGTERM scheduling shutdown..."
                                                    : "Received SIGINT scheduling shutdown...");
        }
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

/* --- crashes ------------------------------------------------------------------------------------------------------------------ */

#ifdef TARN_SANITIZER
void signals_catch_crashes(void) {} /* the sanitizer reports better */
#else

static void on_crash(int signo, siginfo_t *info, void *context) {
    void *frames[64];
    log_warning("=== tarn " TARN_VERSION " crashed by signal: %d (%s), address %p ===", signo,
                sigdescr_np(signo), info->si_addr);
    int n = backtrace(frames, 64);
    for (int i = 0; i < n; i++) {
        Dl_info where;
        if (dladdr(frames[i], &where) != 0 && where.dli_fname != NULL)
            log_warning("#%d %s(%s+0x%zx)", i, where.dli_fname,
                        where.dli_sname != NULL ? where.dli_sname : "",
                        (size_t)((char *)frames[i] -
                                 (char *)(where.dli_sname != NULL ? where.dli_saddr : where.dli_fbase)));
        else
            log_warning("#%d %p", i, frames[i]);
    }
    signal(signo, SIG_DFL);
    raise(signo);
}

void signals_catch_crashes(void) {
    static char stack[64 * 1024];
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    void *warm[1];
    backtrace(warm, 1); /* loads what it needs now, not in a crash */
    stack_t alt = {.ss_sp = stack, .ss_size = sizeof(stack)};
    sigaltstack(&alt, NULL);
    struct sigaction action = {.sa_flags = (int)(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER)};
    action.sa_sigaction = on_crash;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) sigaction(signals[i], &action, NULL);
}
#endif
