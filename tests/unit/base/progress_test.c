/* Progress: a bar on a terminal and nowhere else, lines in a log at its pace, no control characters
 * in files. */
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../test.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"

static char said[65536];

static bool has(const char *text) {
    return strstr(said, text) != NULL;
}

/* What run() writes to standard output and standard error, which are fd meanwhile. */
static void hear(int fd, void (*run)(void)) {
    fflush(NULL);
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    run();
    fflush(NULL);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
}

static void hear_terminal(void (*run)(void)) {
    int master, slave;
    size_t n = 0;
    CHECK(openpty(&master, &slave, NULL, NULL, NULL) == 0);
    hear(slave, run);
    CHECK(write(slave, "$", 1) == 1);
    while (n == 0 || said[n - 1] != '$') {
        ssize_t got = read(master, said + n, sizeof(said) - n);
        CHECK(got > 0);
        n += (size_t)got;
    }
    said[n - 1] = '\0';
    close(slave);
    close(master);
}

static void hear_file(void (*run)(void)) {
    FILE *f = tmpfile();
    CHECK(f != NULL);
    hear(fileno(f), run);
    rewind(f);
    said[fread(said, 1, sizeof(said) - 1, f)] = '\0';
    fclose(f);
}

/* Until it has said something, and for a file as long as that would have taken. */
static void run_bar(void) {
    struct progress p;
    progress_bar(&p, false);
    uint64_t until = clock_mono_ms() + 300;
    while (p.silent ? clock_mono_ms() < until : !p.shown)
        progress_say(&p, 1, 4, "%s", "some of it");
    progress_end(&p);
}

static void run_silent_bar(void) {
    struct progress p;
    progress_bar(&p, true);
    uint64_t until = clock_mono_ms() + 300;
    while (clock_mono_ms() < until) progress_say(&p, 1, 4, "some of it");
    progress_end(&p);
}

static void log_twice(bool known) {
    struct progress p;
    progress_log(&p, "Counting %s", "sheep");
    uint64_t first = p.next_ms;
    for (uint64_t next = first; next == first; next = p.next_ms)
        progress_say(&p, 3, known ? 4 : 0, "3 of them");
    CHECK(clock_mono_ms() >= first); /* not before it has taken a while */
    progress_say(&p, 4, 4, "too soon");
    progress_end(&p);
}

static void run_log(void) {
    log_twice(true);
}

static void run_log_unknown(void) {
    log_twice(false);
}

static void run_log_begin(void) {
    struct progress p;
    progress_log(&p, "Counting sheep");
    for (uint64_t first = p.next_ms; p.next_ms == first;) progress_say(&p, 0, 4, "none yet");
    progress_end(&p);
}

TEST(a_bar_is_for_terminals) {
    hear_terminal(run_bar);
    CHECK(has("\r[#######.......................]  25 %  some of it"));
    CHECK(strlen(said) >= 4 && strcmp(said + strlen(said) - 4, "\r\033[K") == 0);
    hear_file(run_bar);
    CHECK(said[0] == '\0');
    hear_terminal(run_silent_bar);
    CHECK(said[0] == '\0');
}

TEST(a_log_has_lines) {
    hear_file(run_log);
    CHECK(has("Counting sheep: 3 of them (75 %), about "));
    CHECK(!has("too soon") && !has("\r") && !has("\033"));
    hear_file(run_log_begin);
    CHECK(has("Counting sheep: none yet (0 %)\n")); /* nobody can tell how long that takes */
    hear_terminal(run_log_unknown);
    CHECK(has("Counting sheep: 3 of them\r\n")); /* the terminal's own return */
    CHECK(!has("too soon") && !has("\033"));
}

TEST_MAIN()
