#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <syslog.h>
#include <unistd.h>

#include "../test.h"
#include "base/buf.h"
#include "base/clock.h"

static char path[256], rotated[300];

static void choose_paths(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof(path), "%s/tarn-log-test-%d", tmp != NULL ? tmp : "/tmp", (int)getpid());
    snprintf(rotated, sizeof(rotated), "%s.1", path);
    unlink(path);
    unlink(rotated);
}

static struct buf slurp(const char *file) {
    struct buf b = {0};
    FILE *f = fopen(file, "rb");
    CHECK(f != NULL);
    int c;
    while ((c = getc(f)) != EOF) buf_append_char(&b, (char)c);
    fclose(f);
    buf_append_char(&b, '\0');
    return b;
}

/* Instead of those of the C library: what would have gone to the system's log. */
static char said[3][64];
static int priorities[3], facility, n_said;

void openlog(const char *ident, int option, int f) {
    facility = f;
    CHECK_STR(ident, "a-name");
}
static void note(int priority, const char *format, va_list ap) {
    CHECK(n_said < 3);
    vsnprintf(said[n_said], sizeof(said[0]), format, ap);
    priorities[n_said++] = priority;
}
void syslog(int priority, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    note(priority, format, ap);
    va_end(ap);
}
/* What syslog is called with -D_FORTIFY_SOURCE. */
void __syslog_chk(int priority, int flag, const char *format, ...);
void __syslog_chk(int priority, int flag, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    note(priority, format, ap);
    va_end(ap);
}

TEST(last_lines_are_kept) {
    struct log_line got[8];
    choose_paths();
    CHECK(log_open(path));
    log_notice("before");
    CHECK(log_kept(0, got, 8) == 0);
    log_keep(4);
    log_set_level(LOG_LEVEL_WARNING); /* what the file does not get is kept, too */
    log_verbose("too little");
    log_notice("one");
    log_warning("two\nlines");
    CHECK(log_kept(0, got, 8) == 2);
    CHECK(got[0].number == 1 && got[0].level == LOG_LEVEL_NOTICE && got[0].times == 1);
    CHECK_STR(got[0].text, "one");
    CHECK_STR(got[0].from, "base/log_test");
    CHECK(got[1].number == 2 && got[1].level == LOG_LEVEL_WARNING &&
          got[1].wall_ms > 1500000000000);
    CHECK_STR(got[1].text, "two lines");
    /* said again in a row: one line, with a new number */
    log_warning("two\nlines");
    CHECK(log_kept(2, got, 8) == 1 && got[0].number == 3 && got[0].times == 2);
    CHECK(log_kept(0, got, 8) == 2);
    /* however often: it takes the place of no other */
    for (int i = 0; i < 9; i++) log_warning("two\nlines");
    CHECK(log_kept(0, got, 8) == 2 && got[1].number == 12 && got[1].times == 11);
    CHECK_STR(got[0].text, "one");
    for (int i = 0; i < 6; i++) log_notice("line %d", i);
    CHECK(log_kept(0, got, 8) == 4);
    CHECK_STR(got[0].text, "line 2");
    CHECK(log_kept(16, got, 1) == 1 && got[0].number == 17); /* the oldest first */
    CHECK(log_kept(18, got, 8) == 0);
    CHECK(log_kept(19, got, 8) == 4 && log_kept(UINT64_MAX, got, 8) == 4);
    log_keep(0);
    log_notice("nobody");
    CHECK(log_kept(0, got, 8) == 0);
    log_set_level(LOG_LEVEL_NOTICE);
    CHECK(log_open(NULL));
    unlink(path);
}

TEST(log_lines_look_like_those_of_redis) {
    choose_paths();
    CHECK(log_open(path));
    log_set_role('S');
    log_notice("ready on %d", 6479);
    log_debug("not at this level");
    log_warning("two\nlines\tand a \x1b[31m color");
    CHECK(log_open(NULL));
    log_set_role('M');
    struct buf b = slurp(path);
    int pid, day, year, h, m, s, ms, end = 0;
    char month[4];
    CHECK_EQ(sscanf(b.data, "%d:S %2d %3s %4d %2d:%2d:%2d.%3d * ready on 6479\n%n", &pid, &day,
                    month, &year, &h, &m, &s, &ms, &end),
             8);
    CHECK_EQ(pid, (int)getpid());
    CHECK(end > 0);
    CHECK(strstr(b.data, "not at this level") == NULL);
    CHECK(strstr(b.data, " # two lines\tand a  [31m color\n") != NULL);
    CHECK_EQ(strchr(strchr(b.data, '\n') + 1, '\n')[1], '\0');
    buf_free(&b);
    unlink(path);
}

TEST(log_open_again_follows_rotation) {
    choose_paths();
    CHECK(log_open(path));
    log_notice("first");
    CHECK(rename(path, rotated) == 0);
    log_notice("second");
    CHECK(log_open(path));
    log_notice("third");
    CHECK(!log_open("/nonexistent/file") && errno == ENOENT);
    log_notice("fourth");
    CHECK(log_open(""));
    struct buf old = slurp(rotated), new = slurp(path);
    CHECK(strstr(old.data, "first") && strstr(old.data, "second") && !strstr(old.data, "third"));
    CHECK(strstr(new.data, "third") && strstr(new.data, "fourth") && !strstr(new.data, "second"));
    buf_free(&old);
    buf_free(&new);
    unlink(path);
    unlink(rotated);
}

static void *write_lines(void *arg) {
    for (int i = 0; i < 500; i++) log_notice("thread %d line %d end", *(int *)arg, i);
    return NULL;
}

TEST(log_lines_of_threads_stay_whole) {
    choose_paths();
    CHECK(log_open(path));
    pthread_t threads[3];
    int ids[3] = {0, 1, 2};
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, write_lines, &ids[i]) == 0);
    for (int i = 0; i < 5; i++) log_open(path);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    CHECK(log_open(NULL));
    struct buf b = slurp(path);
    unsigned lines = 0;
    for (char *s = b.data, *lf; (lf = strchr(s, '\n')) != NULL; s = lf + 1, lines++)
        CHECK(lf - s > 4 && memcmp(lf - 4, " end", 4) == 0);
    CHECK_EQ(lines, 1500u);
    buf_free(&b);
    unlink(path);
}

static char sunk[8192];
static enum log_level sunk_level;
static void sink(void *arg, enum log_level level, const char *message) {
    CHECK(arg == sunk);
    sunk_level = level;
    snprintf(sunk, sizeof(sunk), "%s", message);
}

TEST(log_sink_gets_bare_messages) {
    log_set_sink(sink, sunk);
    log_set_level(LOG_LEVEL_DEBUG);
    CHECK_EQ(log_get_level(), LOG_LEVEL_DEBUG);
    errno = 77;
    log_debug("hello %s", "host");
    CHECK_EQ(errno, 77);
    CHECK_STR(sunk, "hello host");
    CHECK_EQ(sunk_level, LOG_LEVEL_DEBUG);
    char big[10000];
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    log_warning("%s", big);
    CHECK(strlen(sunk) > 4000 && strlen(sunk) < 4096);
    log_set_level(LOG_LEVEL_NOTHING);
    log_warning("silence");
    CHECK(strlen(sunk) > 4000);
    log_set_level(LOG_LEVEL_NOTICE);
    log_set_sink(NULL, NULL);
}

TEST(clocks_run_forward) {
    uint64_t mono = clock_mono_ns(), boot = clock_boot_ns(), wall = clock_wall_ms();
    CHECK(wall > 1600000000000);
    CHECK(clock_mono_ns() >= mono && clock_boot_ns() >= boot);
    CHECK(boot + 1000000 >= mono); /* BOOTTIME is MONOTONIC plus what the machine slept */
    CHECK(clock_mono_ms() >= mono / 1000000 && clock_mono_us() >= mono / 1000);
}

/* The last one: there is no way back. */
TEST(lines_go_to_syslog_too) {
    choose_paths();
    CHECK(log_open(path));
    log_syslog("a-name", LOG_LOCAL3);
    log_notice("one %d%%", 1);
    log_debug("not at this level");
    log_warning("two\nlines");
    CHECK(log_open(NULL));
    CHECK_EQ(facility, LOG_LOCAL3);
    CHECK_EQ(n_said, 2);
    CHECK_STR(said[0], "one 1%");
    CHECK_STR(said[1], "two lines");
    CHECK_EQ(priorities[0], LOG_NOTICE);
    CHECK_EQ(priorities[1], LOG_WARNING);
    struct buf b = slurp(path);
    CHECK(strstr(b.data, "* one 1%\n") != NULL);
    buf_free(&b);
    unlink(path);
}

TEST_MAIN()
