#include "base/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 2000

static int ready_fd = -1; /* of the child; its end is the end of it */

/* true: the child is ready. false: it ended. */
static bool daemon_await(int fd, const char *log) {
    char c;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (log != NULL && log[0] != '\0' && poll(&p, 1, PATIENCE_MS) == 0)
        fprintf(stderr, "%s: not ready yet: see %s\n", program_invocation_short_name, log);
    ssize_t n;
    do n = read(fd, &c, 1);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

static _Noreturn void daemon_parent(pid_t child, int fd, const char *log) {
    int status = 0;
    if (daemon_await(fd, log)) _exit(0);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (log != NULL && log[0] != '\0')
        fprintf(stderr, "%s: ended before it was ready: see %s\n", program_invocation_short_name,
                log);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

bool daemon_begin(const char *log) {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return false;
    pid_t pid = fork();
    if (pid > 0) {
        close(fds[1]);
        daemon_parent(pid, fds[0], log);
    }
    close(fds[0]);
    if (pid < 0) {
        int saved = errno;
        close(fds[1]);
        errno = saved;
        return false;
    }
    ready_fd = fds[1];
    return true;
}

void daemon_ready(void) {
    if (ready_fd < 0) return;
    setsid();
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = STDIN_FILENO; null >= 0 && fd <= STDERR_FILENO; fd++) dup2(null, fd);
    if (null > STDERR_FILENO) close(null);
    if (write(ready_fd, "r", 1) < 0) errno = 0; /* who waited has gone */
    close(ready_fd);
    ready_fd = -1;
}
