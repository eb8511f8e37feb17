/* SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF; the append-only file; loading at start.
 *
 *   snapshot under way: walk in slices ─> all written ─> synced by a thread ─> under its name
 *                        └ what changes meanwhile is written in between
 *
 * There are two of them at most: one for dbfilename (BGSAVE), one for a new append-only file. A
 * walk is a part of the loop's background work; nothing forks. */
#include "ha/persistence.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "ha/books.h"
#include "front/client.h"
#include "config/config.h"
#include "front/core.h"
#include "front/effects.h"
#include "front/families.h"
#include "front/latency.h"
#include "front/module_durable.h"
#include "ha/replication.h"
#include "front/stats.h"
#include "persist/persist.h"
#include "wire/options.h"
#include "front/embedded.h"

#define PENDING_MAX                                                                                \
    (UINT64_C(64) << 20) /* of the append-only file, when its disk does not take it */
#define HOLDER_PATIENCE_MS 2000u
#define RETRY_MS           1000u
#define SYNC_BYTES         (UINT64_C(4) << 20) /* of a file in the making, between two syncs */

struct walk {                 /* a file in the making */
    struct persist_writer *w; /* NULL: none is */
    struct books_snapshot snapshot;
    bool told; /* all of it: what is left is the disk */
    bool syncing;
    bool packed, incremental;   /* rdbcompression; ...-incremental-fsync */
    uint64_t sync_at;           /* bytes from which on the next piece is synced meanwhile */
    uint64_t began_ms, changes; /* books_changes when it began */
    enum latency_event renames;
    void (*over)(bool ok);
};

static struct {
    bool begun, paused, ended;
    struct persist_writer *append; /* NULL: not on */
    uint64_t base;                 /* its size after it was written anew */
    bool rewrite_wanted, save_wanted;
    struct walk rewrite, save;
    struct buf out; /* of a step of a walk */
    uint64_t saved_changes, saved_at_s, save_tried_ms, synced_ms;
    int append_errno; /* of the last write, 0: it worked */
    bool leases_told; /* the books came from an append-only file that lacks nothing */
    bool append_hole; /* a sync of it has failed: only a new file mends that */
    bool save_ok, rewrite_ok;
    uint64_t saves, rewrites, save_took_ms, rewrite_took_ms, loaded_objects, load_took_ms;
} p = {.save_ok = true, .rewrite_ok = true};

/* With those of what modules keep. */
static uint64_t books_changes(void) {
    return store_changes(books) + module_durable_changes();
}

bool persistence_appends(void) {
    return config->appendonly || config->pool_path[0] != '\0';
}

/* appendfilename, in appenddirname where that is given. */
static const char *append_path(void) {
    static char path[2 * PATH_MAX];
    const struct config *c = config;
    snprintf(path, sizeof(path), "%s%s%s", c->appenddirname, c->appenddirname[0] != '\0' ? "/" : "",
             c->appendfilename);
    return path;
}

static bool make_append_directory(void) {
    const char *dir = config->appenddirname;
    if (dir[0] == '\0' || mkdir(dir, 0755) == 0 || errno == EEXIST) return true;
    int error = errno;
    log_warning("%s cannot be made: %s", dir, strerror(error));
    errno = error;
    return false;
}

/* Two that write to one file would damage it. Waits for a process that was killed to be gone. */
static bool append_taken(unsigned patience_ms) {
    const char *holder = persist_holder(append_path(), patience_ms);
    if (holder == NULL) return false;
    log_warning(
        "%s in %s is in use by another process%s. Each server needs a directory of its own: --dir",
        append_path(), config->dir, holder);
    errno = EBUSY;
    return true;
}

/* --- a walk --- */

static void tell_sinks(void);

static void write_step(struct walk *k) {
    struct span records = span_of(p.out.data, p.out.len);
    if (records.len > 0 && k->packed) persist_write_packed(k->w, records);
    if (records.len > 0 && !k->packed) persist_write(k->w, records);
    buf_clear(&p.out);
}

/* k says what is told when it is over, and how it is synced. */
static bool walk_begin(struct walk *k, const char *path) {
    struct persist_header h = {.wall_ms = turn.wall_ms,
                               .master_epoch = server.master_epoch,
                               .packed = config->rdbcompression};
    memcpy(h.cluster_id, cluster_id(), sizeof(h.cluster_id));
    k->changes = books_changes();
    k->packed = h.packed;
    k->sync_at = SYNC_BYTES;
    effects_turn(); /* what was so far is in the walk */
    if (persist_create(path, &h, &k->w) == TARN_OK) {
        books_snapshot_begin(&k->snapshot, &p.out);
        write_step(k);
        tell_sinks();
        return true;
    }
    int error = errno;
    log_warning("%s cannot be written: %s", path, strerror(error));
    errno = error;
    return false;
}

static void file_walk_end(struct walk *k) {
    effects_turn(); /* what was said so far is said to who is told until now */
    persist_close(&k->w);
    tell_sinks();
}

/* true: more to do at once. *failed_p: it has to be given up. */
static bool walk_step(struct walk *k, unsigned *budget, bool *failed_p) {
    if (!k->told && persist_pending(k->w) < EFFECTS_BATCH_MAX) {
        effects_turn(); /* what came before this slice is before it in the file */
        k->told = books_snapshot_step(&k->snapshot, &p.out, budget);
        write_step(k);
    }
    *failed_p = persist_flush(k->w) != TARN_OK;
    if (*failed_p) return false;
    if (!k->told && k->incremental && persist_size(k->w) >= k->sync_at) {
        persist_sync_later(k->w);
        k->sync_at = persist_size(k->w) + SYNC_BYTES;
    }
    if (!k->told) return true;
    /* a piece before the last one is on its way */
    if (k->syncing || persist_syncing(k->w)) return false;
    persist_sync_later(k->w);
    k->syncing = true;
    return false;
}

/* All of it is on the disk but what came since; or not. */
static void walk_over(struct walk *k, bool ok) {
    uint64_t began = latency_begin();
    if (ok) {
        ok = persist_publish(k->w) == TARN_OK;
        latency_end(k->renames, began);
    }
    k->over(ok);
}

/* true: more to do at once. */
static bool walk_turn(struct walk *k, unsigned *budget) {
    bool failed = false;
    if (k->w == NULL) return false;
    bool more = walk_step(k, budget, &failed);
    if (failed || (k->syncing && !persist_syncing(k->w)))
        walk_over(k, !failed && persist_sync_status(k->w) == TARN_OK);
    return more;
}

/* All that is left of it at once, while the loop waits. */
static void walk_all(struct walk *k) {
    bool failed = false;
    struct progress progress;
    progress_log(&progress, "Writing %s", persist_path(k->w));
    while (!k->told && !failed) {
        unsigned budget = 100000;
        walk_step(k, &budget, &failed);
        uint64_t done = k->snapshot.store.objects, all = store_count(books);
        progress_say(&progress, done, all, "%llu of %llu objects", (unsigned long long)done,
                     (unsigned long long)all);
    }
    walk_over(k, !failed);
}

/* --- being told what changes --- */

/* What a slow write was slowed by, as far as that is this process' doing. */
static void append_note(bool always, bool syncing, uint64_t began_ns) {
    bool walking = p.rewrite.w != NULL || p.save.w != NULL;
    if (always) {
        latency_end(LATENCY_AOF_FSYNC_ALWAYS, began_ns);
        return;
    }
    latency_end(LATENCY_AOF_WRITE, began_ns);
    latency_end(syncing   ? LATENCY_AOF_WRITE_PENDING_FSYNC
                : walking ? LATENCY_AOF_WRITE_ACTIVE_CHILD
                          : LATENCY_AOF_WRITE_ALONE,
                began_ns);
}

/* Behind every batch, so that what was acknowledged outlives this process. */
static void append_flush(void) {
    bool always = config->appendfsync == CONFIG_FSYNC_ALWAYS;
    uint64_t began = latency_begin();
    bool syncing = began != 0 && persist_syncing(p.append);
    tarn_status s = always ? persist_sync(p.append) : persist_flush(p.append);
    append_note(always, syncing, began);
    int failed = s == TARN_OK ? 0 : errno;
    if (p.append_hole) failed = EIO;
    if (failed != 0 && p.append_errno != failed)
        log_warning("The append-only file cannot be written: %s. Writes are refused until it can",
                    strerror(failed));
    if (failed == 0 && p.append_errno != 0) log_notice("The append-only file can be written again");
    if (failed != 0) persist_lacks(p.append);
    p.append_errno = failed;
}

static void on_append_batch(void *arg, struct span batch) {
    (void)arg;
    if (p.append != NULL && persist_pending(p.append) < PENDING_MAX) {
        persist_write(p.append, batch);
        append_flush();
    } else if (p.append != NULL) {
        log_warning("The append-only file is given up: its disk took nothing for too long. It is "
                    "written anew when it can be");
        persist_lacks(p.append);
        persist_close(&p.append);
        p.rewrite_wanted = true;
    }
    if (p.rewrite.w != NULL) persist_write(p.rewrite.w, batch);
}

static void on_batch_of_save(void *arg, struct span batch) {
    (void)arg;
    persist_write(p.save.w, batch);
}

static void tell_sinks(void) {
    effects_want(EFFECTS_APPEND, p.append != NULL || p.rewrite.w != NULL ? on_append_batch : NULL,
                 NULL);
    effects_want(EFFECTS_SNAPSHOT, p.save.w != NULL ? on_batch_of_save : NULL, NULL);
}

static bool append_fails(void) {
    return p.append_errno != 0 && !p.paused && persistence_appends();
}

const char *persistence_unwritten(void) {
    if (!append_fails()) return NULL;
    return "MISCONF Errors writing to the AOF file: this is done in memory, and is lost if the "
           "server ends before the file can be written";
}

const char *persistence_refusal(void) {
    if (append_fails())
        return "MISCONF Errors writing to the AOF file: see the log; tarn tries again by itself";
    bool rules = config->save.n > 0;
    if (!p.save_ok && rules && !p.paused && config->stop_writes_on_save_error)
        return "MISCONF The last snapshot could not be written, and save rules ask for one: see "
               "the log, mend it, BGSAVE";
    return NULL;
}

/* --- a new append-only file --- */

/* Without a file, or with one that has a hole, there has to be another: it is tried again, and
 * nothing is written meanwhile. */
static void rewrite_failed(int error) {
    p.rewrite_ok = false;
    if (p.append != NULL && !p.append_hole) return;
    p.rewrite_wanted = true;
    p.append_errno = error != 0 ? error : EIO;
}

static void rewrite_over(bool ok) {
    p.rewrite_took_ms = turn.mono_ms - p.rewrite.began_ms;
    p.rewrite_ok = ok;
    if (!ok) {
        int error = errno;
        log_warning("The append-only file could not be written anew: %s", strerror(error));
        file_walk_end(&p.rewrite);
        rewrite_failed(error);
        return;
    }
    p.rewrites++;
    persist_close(&p.append);
    p.append = p.rewrite.w;
    p.append_errno = 0;
    p.append_hole = false;
    p.base = persist_size(p.append);
    p.rewrite.w = NULL;
    tell_sinks();
    log_notice("The append-only file has %llu bytes, %llu objects; this took %llu ms",
               (unsigned long long)p.base, (unsigned long long)p.rewrite.snapshot.store.objects,
               (unsigned long long)p.rewrite_took_ms);
}

static bool rewrite_begin(void) {
    p.rewrite_wanted = false;
    p.rewrite = (struct walk){.began_ms = turn.mono_ms,
                              .incremental = config->aof_incremental_fsync,
                              .renames = LATENCY_AOF_RENAME,
                              .over = rewrite_over};
    p.rewrite_ok = make_append_directory() && (p.append != NULL || !append_taken(0)) &&
                   walk_begin(&p.rewrite, append_path());
    if (p.rewrite_ok)
        log_notice("The append-only file is written anew");
    else
        rewrite_failed(errno);
    return p.rewrite_ok;
}

/* --- a snapshot --- */

static void save_over(bool ok) {
    p.save_ok = ok;
    p.save_took_ms = turn.mono_ms - p.save.began_ms;
    if (ok) {
        p.saves++;
        p.saved_changes = p.save.changes;
        p.saved_at_s = turn.wall_ms / 1000;
        log_notice("%s is saved: %llu objects, %llu bytes", config->dbfilename,
                   (unsigned long long)p.save.snapshot.store.objects,
                   (unsigned long long)persist_size(p.save.w));
    } else {
        log_warning("%s could not be saved: %s", config->dbfilename, strerror(errno));
    }
    file_walk_end(&p.save);
}

static bool save_begin(void) {
    p.save_wanted = false;
    p.save_tried_ms = turn.mono_ms;
    p.save = (struct walk){.began_ms = turn.mono_ms,
                           .incremental = config->save_incremental_fsync,
                           .renames = LATENCY_RDB_RENAME,
                           .over = save_over};
    p.save_ok = walk_begin(&p.save, config->dbfilename);
    return p.save_ok;
}

/* All at once; the loop waits. */
static bool save_now(void) {
    if (p.save.w != NULL || save_begin()) walk_all(&p.save);
    return p.save_ok;
}

/* --- turns --- */

bool persistence_turn(unsigned *budget) {
    if (!p.begun || p.paused) return false;
    bool more = walk_turn(&p.rewrite, budget);
    return walk_turn(&p.save, budget) || more;
}

static bool save_due(void) {
    const struct config_save *s = &config->save;
    uint64_t changes = books_changes() - p.saved_changes;
    uint64_t seconds = turn.wall_ms / 1000 - min_u64(p.saved_at_s, turn.wall_ms / 1000);
    if (!p.save_ok && turn.mono_ms - p.save_tried_ms < 5000) return false;
    for (size_t i = 0; i < s->n; i++)
        if (changes >= s->rule[i].changes && seconds >= s->rule[i].seconds) return true;
    return false;
}

static bool rewrite_due(void) {
    const struct config *c = config;
    if (p.rewrite_wanted) return true;
    if (p.append == NULL || c->aof_rewrite_percentage == 0) return false;
    uint64_t size = persist_size(p.append);
    if (size < c->aof_rewrite_min_size) return false;
    return size - min_u64(size, p.base) >= p.base / 100 * (uint64_t)c->aof_rewrite_percentage;
}

void persistence_cron(void) {
    if (!p.begun || p.paused) return;
    if (p.append != NULL && !p.append_hole && persist_sync_status(p.append) != TARN_OK) {
        p.append_hole = p.rewrite_wanted = true;
        log_warning("The append-only file could not be synced: %s. It is written anew",
                    strerror(errno));
        append_flush();
    }
    if (p.append != NULL && p.append_errno != 0) append_flush();
    bool second = turn.mono_ms - p.synced_ms >= 1000;
    if (p.append != NULL && second && config->appendfsync == CONFIG_FSYNC_EVERYSEC &&
        !(config->no_fsync_on_rewrite && (p.rewrite.w != NULL || p.save.w != NULL))) {
        p.synced_ms = turn.mono_ms;
        persist_sync_later(p.append);
    }
    bool rest = p.rewrite_ok || turn.mono_ms - p.rewrite.began_ms >= RETRY_MS;
    if (persistence_appends() && p.rewrite.w == NULL && rest && rewrite_due()) rewrite_begin();
    if (p.save.w == NULL && (p.save_wanted || save_due())) save_begin();
}

bool persistence_switch(const char **why_p) {
    if (!p.begun) return true;
    if (persistence_appends()) {
        if (p.append == NULL && p.rewrite.w == NULL && !p.paused && !rewrite_begin()) {
            *why_p = "the append-only file cannot be written: see the log";
            return false;
        }
        return true;
    }
    if (p.rewrite.w != NULL) file_walk_end(&p.rewrite);
    if (p.append != NULL) persist_lacks(p.append);
    persist_close(&p.append);
    p.append_errno = 0;
    p.append_hole = p.rewrite_wanted = false;
    tell_sinks();
    return true;
}

/* A file in the making gets its name in the directory where it was begun. */
bool persistence_chdir(const char *dir, const char **why_p) {
    if (p.rewrite.w != NULL || p.save.w != NULL) {
        *why_p = "a snapshot or a new append-only file is being written: try again when it is done";
        return false;
    }
    if (chdir(dir) == 0) return true;
    *why_p = errno == ENOENT ? "there is no such directory" : "this directory cannot be used";
    return false;
}

void persistence_pause(void) {
    if (p.rewrite.w != NULL) file_walk_end(&p.rewrite);
    if (p.save.w != NULL) file_walk_end(&p.save);
    if (p.append != NULL) (void)persist_sync(p.append);
    persist_close(&p.append);
    p.append_errno = 0;
    p.append_hole = false;
    p.paused = true;
    tell_sinks();
}

void persistence_resume(void) {
    p.paused = false;
    p.saved_changes = books_changes();
    if (p.begun && persistence_appends() && p.append == NULL) p.rewrite_wanted = !rewrite_begin();
}

/* --- start and end --- */

struct loading {
    const char *why; /* NULL: nothing is wrong */
    struct progress progress;
};

static tarn_status load_record(void *arg, unsigned kind, struct span record) {
    const char *why;
    (void)kind;
    tarn_status s = books_apply(record, NULL, &why);
    if (s != TARN_OK) ((struct loading *)arg)->why = why;
    return s;
}

static void load_progress(void *arg, uint64_t bytes, uint64_t of) {
    progress_say(&((struct loading *)arg)->progress, bytes, of, "%llu of %llu MiB, %llu objects",
                 (unsigned long long)(bytes >> 20), (unsigned long long)(of >> 20),
                 (unsigned long long)store_count(books));
}

static bool say_damage(const char *path, const struct persist_found *f, tarn_status s,
                       const char *why) {
    if (s == TARN_EIO)
        log_warning("%s cannot be read: %s", path, strerror(errno));
    else if (why != NULL)
        log_warning("%s, at byte %llu: %s. tarn-check %s says more", path,
                    (unsigned long long)f->whole, why, path);
    else if (s == TARN_EPROTO)
        log_warning("%s cannot be loaded: %s", path, f->damage);
    else
        log_warning("%s is damaged at byte %llu of %llu: %s. Mend it with: tarn-check --fix %s",
                    path, (unsigned long long)f->whole, (unsigned long long)f->size,
                    f->damage != NULL ? f->damage : tarn_status_text(s), path);
    return false;
}

static bool load_file(const char *path, struct persist_found *f) {
    struct loading l = {.why = NULL};
    struct persist_visitor v = {.arg = &l, .record = load_record, .progress = load_progress};
    uint64_t began = clock_mono_ms();
    progress_log(&l.progress, "Loading");
    if (!books_create(true)) return false;
    log_notice("Loading the books from %s", path);
    tarn_status s = persist_read(path, &v, f);
    if (s != TARN_OK) return say_damage(path, f, s, l.why);
    if (f->header.master_epoch > server.master_epoch) server.master_epoch = f->header.master_epoch;
    p.loaded_objects = store_count(books);
    p.load_took_ms = clock_mono_ms() - began;
    log_notice("%llu objects from %s in %llu ms", (unsigned long long)p.loaded_objects, path,
               (unsigned long long)p.load_took_ms);
    return true;
}

static bool append_open(const char *path, const struct persist_found *f) {
    if (persist_open(path, f->whole, &p.append) != TARN_OK)
        return say_damage(path, f, TARN_EIO, NULL);
    p.base = f->whole;
    tell_sinks(); /* to what leading changes */
    return true;
}

bool persistence_leases_told(void) {
    bool told = p.leases_told;
    p.leases_told = false; /* of the books that this process began with */
    return told;
}

static bool file_there(const char *path) {
    return access(path, F_OK) == 0;
}

bool persistence_load(bool *loaded_p) {
    const char *append = append_path(), *dump = config->dbfilename;
    struct persist_found f;
    *loaded_p = false;
    if (persistence_appends() && file_there(append)) {
        if (append_taken(HOLDER_PATIENCE_MS)) return false;
        if (!load_file(append, &f)) return false;
        if (f.torn && !config->aof_load_truncated) {
            log_warning("%s ends in the middle of a record: %llu bytes are too many. "
                        "aof-load-truncated is no, so this is looked at first; yes cuts them off",
                        append, (unsigned long long)(f.size - f.whole));
            return false;
        }
        if (f.torn)
            log_warning("%s ends in the middle of a record, which was not acknowledged: its last "
                        "%llu bytes are cut off",
                        append, (unsigned long long)(f.size - f.whole));
        p.leases_told = !f.lacks;
        return *loaded_p = append_open(append, &f);
    }
    if (!file_there(dump)) return true;
    return *loaded_p = load_file(dump, &f);
}

bool persistence_there(void) {
    return file_there(config->dbfilename);
}

bool persistence_complete(bool append, const char **why_p) {
    effects_turn();
    *why_p = "The books cannot be written: see the log";
    if (p.paused || (append && !persistence_appends())) return false;
    if (!append) return save_now();
    if (p.append == NULL && p.rewrite.w == NULL && !rewrite_begin()) return false;
    if (p.rewrite.w != NULL) walk_all(&p.rewrite);
    return p.append != NULL && !p.append_hole && persist_sync(p.append) == TARN_OK;
}

bool persistence_load_again(bool append) {
    struct persist_found f;
    const char *path = append ? append_path() : config->dbfilename;
    return load_file(path, &f) && (!append || append_open(path, &f));
}

bool persistence_begin(void) {
    p.begun = true;
    p.saved_at_s = turn.wall_ms / 1000;
    p.saved_changes = books_changes();
    if (!persistence_appends() || p.append != NULL) return true;
    /* Nothing is acknowledged before there is a file. */
    if (rewrite_begin()) walk_all(&p.rewrite);
    return p.rewrite_ok;
}

bool persistence_end(enum persistence_last last) {
    bool ok = true;
    if (!p.begun || p.paused || p.ended) return true;
    effects_turn();
    bool save =
        last == PERSISTENCE_SAVE || (last == PERSISTENCE_AS_CONFIGURED && config->save.n > 0);
    if (save) ok = save_now();
    if (p.append == NULL && p.rewrite.w != NULL && persistence_appends()) {
        walk_all(&p.rewrite); /* else there would be none */
        ok &= p.rewrite_ok;
    }
    if (p.append != NULL && persist_sync(p.append) != TARN_OK) {
        log_warning("The end of the append-only file could not be written: %s", strerror(errno));
        ok = false;
    }
    p.ended = ok;
    return ok;
}

void persistence_deinit(void) {
    p.begun = false;
    persist_close(&p.rewrite.w);
    persist_close(&p.save.w);
    persist_close(&p.append);
    effects_want(EFFECTS_APPEND, NULL, NULL);
    effects_want(EFFECTS_SNAPSHOT, NULL, NULL);
    buf_free(&p.out);
}

/* --- commands --- */

static bool refuse_paused(struct client *c) {
    if (!p.paused) return false;
    reply_error(c, "The books are being replaced by another server's: try again when that is done");
    return true;
}

void cmd_save(struct client *c) {
    if (refuse_paused(c)) return;
    if (p.save.w != NULL)
        reply_error(c, "Background save already in progress");
    else if (save_now())
        reply_ok(c);
    else
        reply_error(c, "The snapshot could not be written: see the log");
}

void cmd_bgsave(struct client *c) {
    struct wire_choice schedule = {0};
    if (!arg_bind(c, &schedule) || refuse_paused(c)) return;
    if (p.save.w != NULL && !schedule.which) {
        reply_error(c, "Background save already in progress");
    } else if (p.save.w != NULL) {
        p.save_wanted = true;
        reply_simple(c, "Background saving scheduled");
    } else if (save_begin()) {
        reply_simple(c, "Background saving started");
    } else {
        reply_error(c, "The snapshot cannot be written: see the log");
    }
}

void cmd_bgrewriteaof(struct client *c) {
    if (refuse_paused(c)) return;
    if (!persistence_appends())
        reply_error(c, "There is no append-only file: CONFIG SET appendonly yes begins one");
    else if (p.rewrite.w != NULL)
        reply_error(c, "Background append only file rewriting already in progress");
    else if (rewrite_begin())
        reply_simple(c, "Background append only file rewriting started");
    else
        reply_error(c, "The append-only file cannot be written: see the log");
}

void cmd_lastsave(struct client *c) {
    reply_int(c, (int64_t)p.saved_at_s);
}

void info_write_persistence(struct figure_walk *f) {
    /* A file is loaded before anybody can ask. */
    FIGURE(f, GAUGE, loading, "1: books or memory are being made ready",
           replication_loading() || embedded.populating.on);
    if (embedded.populating.on) {
        uint64_t total = max_u64(embedded.populating.total, 1);
        FIGURE(f, SECONDS, loading_start_time, "the time of day when it began",
               embedded.populating.began_s);
        FIGURE(f, BYTES, loading_total_bytes, "of the pool", total);
        FIGURE(f, BYTES, loading_loaded_bytes, "... ready so far", embedded.populating.done);
        FIGURE(f, POINTS, loading_loaded_perc, "... of all",
               (double)embedded.populating.done * 100 / (double)total);
        FIGURE(f, SECONDS, loading_eta_seconds, "... until all is, about",
               (embedded.populating.left_ms + 999) / 1000);
    }
    FIGURE(f, GAUGE, async_loading, "1: another server's books are coming", p.paused);
    FIGURE(f, GAUGE, rdb_changes_since_last_save, "changes of the books",
           books_changes() - p.saved_changes);
    FIGURE(f, GAUGE, rdb_bgsave_in_progress, "1: a snapshot is being written", p.save.w != NULL);
    FIGURE(f, SECONDS, rdb_last_save_time, "the time of day of the last one", p.saved_at_s);
    FIGURE(f, TEXT, rdb_last_bgsave_status, "ok, err", p.save_ok ? "ok" : "err");
    FIGURE(f, SECONDS, rdb_last_bgsave_time_sec, "that it took, -1: there was none",
           p.saves > 0 ? p.save_took_ms / 1000 : UINT64_MAX);
    FIGURE(f, COUNTER, rdb_saves, "snapshots written", p.saves);
    FIGURE(f, GAUGE, rdb_last_load_keys_loaded, "objects loaded at the start", p.loaded_objects);
    FIGURE(f, MS, rdb_last_load_time_ms, "that it took", p.load_took_ms);
    FIGURE(f, GAUGE, snapshot_objects, "written so far to the file under way",
           p.save.w != NULL      ? p.save.snapshot.store.objects
           : p.rewrite.w != NULL ? p.rewrite.snapshot.store.objects
                                 : 0);
    FIGURE(f, GAUGE, aof_enabled, "1: changes are appended to a file", persistence_appends());
    FIGURE(f, GAUGE, aof_rewrite_in_progress, "1: it is being written anew", p.rewrite.w != NULL);
    FIGURE(f, GAUGE, aof_rewrite_scheduled, "1: it will be", p.rewrite_wanted);
    FIGURE(f, SECONDS, aof_last_rewrite_time_sec, "that it took, -1: it was not",
           p.rewrites > 0 ? p.rewrite_took_ms / 1000 : UINT64_MAX);
    FIGURE(f, TEXT, aof_last_bgrewrite_status, "ok, err", p.rewrite_ok ? "ok" : "err");
    FIGURE(f, COUNTER, aof_rewrites, "times it was written anew", p.rewrites);
    FIGURE(f, TEXT, aof_last_write_status, "ok, err", p.append_errno == 0 ? "ok" : "err");
    FIGURES(f, stats_figures, stats, aof_unwritten_replies, aof_unwritten_replies);
    if (p.append == NULL) return;
    FIGURE(f, BYTES, aof_current_size, "of the file", persist_size(p.append));
    FIGURE(f, BYTES, aof_base_size, "... when it was last written anew", p.base);
    FIGURE(f, BYTES, aof_pending_bytes, "to be written to it", persist_pending(p.append));
}
