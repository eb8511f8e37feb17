/* Where a socket goes that nobody gave a place: folders that others can write to, or put a link in
 * the place of, are not used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../test.h"
#include "base/log.h"
#include "host/place.h"

static char top[256], got[HOST_SOCKET_MAX];
static unsigned warnings;
static char last[512];

static void on_line(void *arg, enum log_level level, const char *message) {
    (void)arg;
    warnings += level == LOG_LEVEL_WARNING;
    snprintf(last, sizeof(last), "%s", message);
}

static const char *in(const char *name) {
    static char paths[4][300];
    static unsigned turn;
    char *p = paths[turn++ % 4];
    snprintf(p, 300, "%s/%s", top, name);
    return p;
}

/* What `body` finds as somebody else than root, for whom /run/tarn would be there. */
static int apart(int (*body)(void)) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
        _exit(body());
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void setup(void) {
    static char before[64];
    const char *tmp = getenv("TMPDIR");
    if (before[0] == '\0')
        snprintf(before, sizeof(before), "%s", tmp != NULL && strlen(tmp) < 30 ? tmp : "/tmp");
    warnings = 0;
    log_set_sink(on_line, NULL);
    if (top[0] == '\0') {
        snprintf(top, sizeof(top), "%s/place-XXXXXX", before);
        CHECK(mkdtemp(top) != NULL && chmod(top, 01777) == 0);
    }
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("XDG_RUNTIME_DIR");
    setenv("TMPDIR", top, 1);
}

static void clean(void) {
    char command[300];
    snprintf(command, sizeof(command), "rm -rf %s", top);
    CHECK_EQ(system(command), 0);
    top[0] = '\0';
    log_set_sink(NULL, NULL);
}

static bool found(const char *dir, const char *name) {
    char want[400];
    snprintf(want, sizeof(want), "%s/%s", dir, name);
    return host_socket_path(name, got) && strcmp(got, want) == 0;
}

TEST(a_service_has_a_folder) {
    setup();
    CHECK_EQ(mkdir(in("run"), 0755), 0);
    char two[700];
    snprintf(two, sizeof(two), "%s:%s", in("run"), in("other"));
    setenv("RUNTIME_DIRECTORY", two, 1);
    CHECK(found(in("run"), "tarn-6479.sock"));
    /* A name that is too long for a socket becomes a short one, the same every time. */
    char long_name[120], again[HOST_SOCKET_MAX];
    memset(long_name, 'n', sizeof(long_name));
    long_name[sizeof(long_name) - 1] = '\0';
    CHECK(host_socket_path(long_name, got) && strlen(got) < HOST_SOCKET_MAX);
    CHECK(host_socket_path(long_name, again) && strcmp(got, again) == 0);
    long_name[0] = 'm';
    CHECK(host_socket_path(long_name, again) && strcmp(got, again) != 0);
    clean();
}

static int xdg_then_own(void) {
    char own[300];
    snprintf(own, sizeof(own), "%s/tarn-%u", top, (unsigned)geteuid());
    struct stat st;
    if (mkdir(in("xdg"), 0700) != 0) return 1;
    setenv("XDG_RUNTIME_DIR", in("xdg"), 1);
    if (!found(in("xdg"), "a.sock")) return 2;
    /* the group may write there */
    if (chmod(in("xdg"), 0770) != 0 || found(in("xdg"), "a.sock")) return 3;
    if (!found(own, "a.sock") || lstat(own, &st) != 0 || (st.st_mode & 07777) != 0700) return 4;
    unsetenv("XDG_RUNTIME_DIR");
    umask(0777);
    if (rmdir(own) != 0 || !found(own, "a.sock") || lstat(own, &st) != 0) return 5;
    if ((st.st_mode & 07777) != 0700) return 6;
    /* it was not ours alone */
    if (chmod(own, 0710) != 0 || host_socket_path("a.sock", got)) return 7;
    return rmdir(own) == 0 && warnings == 1 && strstr(last, "open to other users") != NULL ? 0 : 8;
}

TEST(who_is_logged_in_has_one_and_else_it_is_made) {
    setup();
    CHECK_EQ(apart(xdg_then_own), 0);
    clean();
}

static int taken(void) {
    return !host_socket_path("a.sock", got) && warnings == 1 && strstr(last, "shm-socket") != NULL
               ? 0
               : 1;
}

TEST(guarantee_6_a_folder_that_another_user_has_put_there_is_not_used) {
    setup();
    if (geteuid() != 0) { /* there is nobody else to be */
        clean();
        return;
    }
    CHECK_EQ(mkdir(in("tarn-65534"), 0777), 0);
    CHECK_EQ(apart(taken), 0);
    CHECK_EQ(rmdir(in("tarn-65534")), 0);
    /* A link of another user, to a folder of ours. */
    CHECK(mkdir(in("mine"), 0700) == 0 && chown(in("mine"), 65534, 65534) == 0);
    CHECK_EQ(symlink(in("mine"), in("tarn-65534")), 0);
    CHECK_EQ(apart(taken), 0);
    CHECK_EQ(unlink(in("tarn-65534")), 0);
    /* Everybody could rename ours and put his own there. */
    CHECK_EQ(chmod(top, 0777), 0);
    CHECK_EQ(apart(taken), 0);
    clean();
}

TEST_MAIN()
