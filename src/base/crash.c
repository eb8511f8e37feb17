/* The report comes in an order in which a second fault costs least: signal and stack first, then
 * what has to follow pointers. */
#include "base/crash.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/log.h"

#ifdef TARN_SANITIZER
void crash_catch(bool on) {}
void crash_tell(void (*fn)(void)) {}
#else

#define FRAMES_MAX 64

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static void (*tell)(void);

void crash_tell(void (*fn)(void)) {
    tell = fn;
}

static void write_frame(int i, void *frame) {
    Dl_info where;
    if (dladdr(frame, &where) == 0 || where.dli_fname == NULL) {
        log_warning("#%d %p", i, frame);
        return;
    }
    bool named = where.dli_sname != NULL;
    log_warning("#%d %s(%s+0x%zx)", i, where.dli_fname, named ? where.dli_sname : "",
                (size_t)((char *)frame - (char *)(named ? where.dli_saddr : where.dli_fbase)));
}

static void write_machine(void) {
    struct utsname u;
    struct rusage r;
    if (uname(&u) == 0)
        log_warning("System: %s %s %s %s", u.sysname, u.release, u.version, u.machine);
    if (getrusage(RUSAGE_SELF, &r) == 0)
        log_warning("Memory: at most %ld KiB were resident; CPU: %lld.%03ld s of it, %lld.%03ld s "
                    "of the system's",
                    r.ru_maxrss, (long long)r.ru_utime.tv_sec, (long)r.ru_utime.tv_usec / 1000,
                    (long long)r.ru_stime.tv_sec, (long)r.ru_stime.tv_usec / 1000);
}

static void on_crash(int signo, siginfo_t *info, void *context) {
    void *frames[FRAMES_MAX];
    char thread[17] = "?";
    alarm(10); /* whatever else is broken, it ends */
    prctl(PR_GET_NAME, thread);
    log_warning("=== TARN BUG REPORT START: cut here, up to the end ===");
    log_warning("=== tarn " TARN_VERSION " crashed by signal: %d (%s), address %p, thread %s ===",
                signo, sigdescr_np(signo), info->si_addr, thread);
    if (info->si_code <= 0) log_warning("It was sent by process %ld", (long)info->si_pid);
    log_warning("------ STACK TRACE ------");
    int n = backtrace(frames, FRAMES_MAX);
    for (int i = 0; i < n; i++) write_frame(i, frames[i]);
    log_warning("addr2line -f -e FILE 0xOFFSET names the lines of frames without a name");
    log_warning("------ PROCESS ------");
    write_machine();
    void (*fn)(void) = tell;
    tell = NULL;
    if (fn != NULL) fn();
    log_warning("=== TARN BUG REPORT END: please send it, with how it came about ===");
    signal(signo, SIG_DFL);
    raise(signo);
}

void crash_catch(bool on) {
    static char stack[64 * 1024];
    void *warm[1];
    backtrace(warm, 1); /* loads what it needs now, not in a crash */
    stack_t alt = {.ss_sp = stack, .ss_size = sizeof(stack)};
    if (on) sigaltstack(&alt, NULL);
    struct sigaction action = {.sa_flags =
                                   (int)(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER)};
    action.sa_sigaction = on_crash;
    if (!on) action = (struct sigaction){.sa_handler = SIG_DFL};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaction(signals[i], &action, NULL);
}
#endif
