/* tarn-check [--fix | --for 0.1] FILE: what is in a file of the books, and whether it is whole. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "check/down.h"
#include "module/durable.h"
#include "persist/persist.h"

static const char *const kinds[256] = {
    [1] = "objects",    [2] = "removals",           [3] = "flushes",
    [4] = "segments",   [5] = "segments gone",      [6] = "quotas",
    [7] = "superseded", [8] = "promises of leases", [32] = "cluster",
    [33] = "nodes",     [34] = "nodes gone",        [35] = "segments of nodes",
    [65] = "messages",  [66] = "state of modules",
};

struct counts {
    uint64_t of[256];
    struct durable *modules; /* what they keep */
    uint64_t strange;        /* records of these that cannot be applied, */
    const char *why;         /* and why the first cannot */
    struct progress bar;
};

static tarn_status record_count(void *arg, unsigned kind, struct span record) {
    struct counts *c = arg;
    struct durable_change change;
    const char *why;
    c->of[kind & 0xff]++;
    if (kind != DURABLE_RECORD || durable_apply(c->modules, record, &change, &why) == TARN_OK)
        return TARN_OK;
    if (c->strange++ == 0) c->why = why;
    return TARN_OK;
}

static void check_progress(void *arg, uint64_t bytes, uint64_t of) {
    progress_say(&((struct counts *)arg)->bar, bytes, of, "%llu of %llu MiB",
                 (unsigned long long)bytes >> 20, (unsigned long long)of >> 20);
}

static void found_print(const char *path, const struct persist_found *f, const struct counts *c) {
    char when[64] = "";
    time_t t = (time_t)(f->header.wall_ms / 1000);
    struct tm tm;
    if (localtime_r(&t, &tm) != NULL) strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
    printf("%s: %llu bytes, begun %s, master epoch %u\n", path, (unsigned long long)f->size, when,
           f->header.master_epoch);
    if (f->snapshot_whole)
        printf("  a whole snapshot of %llu objects, and %llu frames behind it\n",
               (unsigned long long)f->objects, (unsigned long long)f->appended);
    printf("  %llu records in %llu frames:", (unsigned long long)f->records,
           (unsigned long long)f->frames);
    for (unsigned k = 0; k < 256; k++)
        if (c->of[k] > 0)
            printf(" %s=%llu", kinds[k] != NULL ? kinds[k] : "unknown",
                   (unsigned long long)c->of[k]);
    printf("\n");
    const struct durable_space *m;
    for (size_t i = 0; (m = durable_space_at(c->modules, i)) != NULL; i++) {
        struct span name = durable_space_module(m);
        printf("  module %.*s keeps %llu names, %llu bytes\n", (int)name.len, name.data,
               (unsigned long long)durable_entries(m), (unsigned long long)durable_bytes(m));
    }
    if (c->strange > 0)
        printf(
            "  %llu records of what modules keep cannot be read: %s. tarn-server of this version "
            "does not load the file\n",
            (unsigned long long)c->strange, c->why);
}

/* Behind the last whole frame. */
static int file_cut(const char *path, const struct persist_found *f) {
    if (!f->snapshot_whole) {
        printf(
            "It cannot be repaired: the snapshot at its start is not whole. Use another copy, or "
            "start without it\n");
        return 1;
    }
    if (truncate(path, (off_t)f->whole) != 0) {
        fprintf(stderr, "tarn-check: %s cannot be cut: %s\n", path, strerror(errno));
        return 1;
    }
    printf("%llu bytes from %llu on were cut off: what was written there is lost\n",
           (unsigned long long)(f->size - f->whole), (unsigned long long)f->whole);
    return 0;
}

/* What was found, in words, and what is done about it. */
static int found_judge(const char *path, const struct persist_found *f, const struct counts *c,
                       tarn_status s, bool fix) {
    found_print(path, f, c);
    if (s == TARN_OK && !f->torn) {
        if (c->strange == 0) printf("It is whole\n");
        return c->strange == 0 ? 0 : 1;
    }
    if (s == TARN_OK)
        printf(
            "It ends in the middle of a frame, at byte %llu: tarn-server cuts that off by itself\n",
            (unsigned long long)f->whole);
    else
        printf("It is damaged at byte %llu: %s\n", (unsigned long long)f->whole,
               f->damage != NULL ? f->damage : tarn_status_text(s));
    if (fix) return file_cut(path, f);
    if (s != TARN_OK)
        printf("tarn-check --fix cuts off everything from there on. Keep a copy first\n");
    return s == TARN_OK && c->strange == 0 ? 0 : 1;
}

/* Of a file that is to be changed. */
static bool file_in_use(const char *path) {
    const char *holder = persist_holder(path, 0);
    if (holder == NULL) return false;
    fprintf(stderr, "tarn-check: %s is in use by another process%s: stop that server first\n", path,
            holder);
    return true;
}

static int file_check(const char *path, bool fix) {
    struct counts c = {.modules = durable_create()};
    struct persist_found f;
    struct persist_visitor v = {.arg = &c, .record = record_count, .progress = check_progress};
    int answer = 2;
    progress_bar(&c.bar, false);
    tarn_status s = persist_read(path, &v, &f);
    int e = errno;
    progress_end(&c.bar);
    if (s == TARN_ENOTFOUND || s == TARN_EIO)
        fprintf(stderr, "tarn-check: %s cannot be read: %s\n", path, strerror(e));
    else if (s == TARN_EPROTO)
        fprintf(stderr, "tarn-check: %s: %s\n", path, f.damage);
    else
        answer = found_judge(path, &f, &c, s, fix);
    durable_destroy(&c.modules);
    return answer;
}

static const char usage[] =
    "tarn-check [--fix | --for 0.1] FILE\n"
    "\n"
    "Checks a snapshot or an append-only file of tarn-server.\n"
    "\n"
    "  --fix      cuts off everything after the last whole record; stop the server first, and keep "
    "a copy\n"
    "  --for 0.1  writes it as tarn 0.1 reads it, without what modules keep; stop the server "
    "first. "
    "The file as it was stays beside it, as FILE.0.2\n"
    "  --help, --version\n"
    "\n"
    "Exit status: 0 whole, or only its end is torn; 1 damaged; 2 unreadable, or not such a file.\n";

int main(int argc, char **argv) {
    bool fix = false, down = false;
    const char *path = NULL;
    file_fill_standard();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(usage, stdout);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("tarn-check v=%s\n", TARN_VERSION);
            return 0;
        }
        if (strcmp(argv[i], "--fix") == 0) {
            fix = true;
        } else if (strcmp(argv[i], "--for") == 0) {
            if (i + 1 == argc || strcmp(argv[++i], "0.1") != 0) {
                fprintf(stderr, "tarn-check: --for needs a version, and 0.1 is the only one\n");
                return 2;
            }
            down = true;
        } else if (argv[i][0] == '-' && argv[i][1] != '\0') {
            fprintf(stderr,
                    "tarn-check: there is no option %s; there are --fix, --for, --help and "
                    "--version\n",
                    argv[i]);
            return 2;
        } else if (path != NULL) {
            fprintf(stderr, "tarn-check: one file at a time, not also %s\n", argv[i]);
            return 2;
        } else {
            path = argv[i];
        }
    }
    if (path == NULL) {
        fprintf(stderr, "tarn-check: which file? As in dir/appendonly.tarn\n%s", usage);
        return 2;
    }
    if (fix && down) {
        fprintf(stderr, "tarn-check: --fix first, then --for\n");
        return 2;
    }
    log_set_level(LOG_LEVEL_WARNING);
    if ((fix || down) && file_in_use(path)) return 2;
    return down ? file_down(path) : file_check(path, fix);
}
