/* MULTI, EXEC, DISCARD, WATCH, UNWATCH. */
#include "front/multi.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/clock.h"
#include "front/families.h"
#include "front/introspect.h"
#include "front/shard.h"
#include "front/table.h"
#include "config/config.h"

#define CHUNK_MIN 1024u
#define CHUNK_MAX (64u * 1024)

struct queued {
    struct queued *next;
    const struct cmd *cmd;
    unsigned changes;    /* of the table, when it was looked up */
    struct big_arg *big; /* memory of its large arguments */
    size_t argc;
    struct span argv[];
};

struct multi_chunk {
    struct multi_chunk *older;
    size_t used, cap;
    max_align_t data[];
};

/* --- memory --- */

static struct multi *multi_of(struct client *c) {
    if (c->io->multi == NULL) c->io->multi = xcalloc(1, sizeof(struct multi));
    return c->io->multi;
}

static void *queue_alloc(struct multi *m, size_t size) {
    size = (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    struct multi_chunk *k = m->chunk;
    if (k == NULL || k->cap - k->used < size) {
        size_t cap = k == NULL ? CHUNK_MIN : min_u64(k->cap * 2, CHUNK_MAX);
        if (cap < size) cap = size;
        k = xmalloc(sizeof(*k) + cap);
        *k = (struct multi_chunk){.older = m->chunk, .cap = cap};
        m->chunk = k;
    }
    void *p = (char *)k->data + k->used;
    k->used += size;
    return p;
}

static void free_queue(struct multi *m) {
    for (struct queued *q = m->first; q != NULL; q = q->next) client_big_free(&q->big);
    while (m->chunk != NULL) {
        struct multi_chunk *older = m->chunk->older;
        free(m->chunk);
        m->chunk = older;
    }
    m->first = m->last = NULL;
    m->bytes = 0;
}

void multi_reset(struct client *c) {
    struct multi *m = c->io->multi;
    if (m == NULL) return;
    watch_clear(&m->watcher);
    free_queue(m);
    free(m);
    c->io->multi = NULL;
    c->io->flags &= ~CLIENT_MULTI;
}

size_t multi_memory(const struct client *c) {
    const struct multi *m = c->io->multi;
    return m != NULL ? sizeof(*m) + m->bytes + m->watcher.bytes : 0;
}

unsigned multi_flags(const struct client *c) {
    return c->io->multi != NULL ? c->io->multi->flags : 0;
}

size_t multi_keys_most(const struct client *c) {
    return c->io->multi != NULL ? c->io->multi->keys : 0;
}

unsigned multi_common(const struct client *c) {
    return c->io->multi != NULL ? ~c->io->multi->lacks : ~0u;
}

/* --- queueing --- */

bool multi_over(const struct client *c, size_t len) {
    const struct multi *m = c->io->multi;
    uint64_t limit = config->client_query_buffer_limit, held = c->io->heap_bytes + m->bytes;
    return m->failed || held > limit || len > limit - held;
}

/* What was queued is of no use any more. */
void multi_fail(struct client *c) {
    c->io->multi->failed = true;
    free_queue(c->io->multi);
}

/* Large arguments lie in memory of their own, which is handed over; the newest comes first. */
static bool is_big(const struct big_arg **at, struct span arg) {
    if (*at == NULL || arg.data != (*at)->heap) return false;
    *at = (*at)->next;
    return true;
}

/* Copies the request behind the others. */
static void queue_append(struct client *c, const struct cmd *cmd, size_t bytes) {
    struct multi *m = c->io->multi;
    struct big_arg *big = client_big_take(c);
    const struct big_arg *at = big;
    size_t small = 0;
    for (size_t i = c->argc; i-- > 0;)
        if (!is_big(&at, c->argv[i])) small += c->argv[i].len;
    struct queued *q = queue_alloc(m, sizeof(*q) + c->argc * sizeof(struct span) + small);
    *q = (struct queued){.cmd = cmd, .changes = table_changes, .big = big, .argc = c->argc};
    char *end = (char *)&q->argv[c->argc] + small;
    at = big;
    for (size_t i = c->argc; i-- > 0;) {
        q->argv[i] = c->argv[i];
        if (is_big(&at, c->argv[i])) continue;
        end -= c->argv[i].len;
        if (c->argv[i].len > 0) memcpy(end, c->argv[i].data, c->argv[i].len);
        q->argv[i].data = end;
    }
    if (m->last != NULL)
        m->last->next = q;
    else
        m->first = q;
    m->last = q;
    m->count++;
    m->bytes += bytes;
    m->keys += shard_keys_most(cmd, c->argv, c->argc);
    m->flags |= cmd->flags;
    m->lacks |= ~cmd->flags;
}

static bool runs_at_once(const struct cmd *cmd) {
    return cmd->id == WIRE_exec || cmd->id == WIRE_discard || cmd->id == WIRE_multi ||
           cmd->id == WIRE_watch || cmd->id == WIRE_quit || cmd->id == WIRE_reset;
}

#define NO_MEMORY "OOM command not allowed when used memory > 'maxmemory'."

static bool lacks_memory(unsigned flags) {
    return flags & CMD_DENYOOM && store_takes_nothing(books);
}

bool multi_take(struct client *c, const struct cmd *cmd) {
    struct multi *m = c->io->multi;
    if (runs_at_once(cmd)) return false;
    if (UNLIKELY(lacks_memory(cmd->flags))) {
        reply_error(c, "-" NO_MEMORY);
        table_stat(cmd)->rejected++;
        multi_fail(c);
        return true;
    }
    size_t bytes = sizeof(struct queued) + c->argc * sizeof(struct span);
    bool whole = true; /* false: a large argument was not read in */
    for (size_t i = 0; i < c->argc; i++) {
        bytes += c->argv[i].len;
        whole = whole && (c->argv[i].data != NULL || c->argv[i].len == 0);
    }
    if (!m->failed && (!whole || m->bytes + bytes > config->client_query_buffer_limit)) {
        reply_error(c, "The transaction is larger than client-query-buffer-limit");
        multi_fail(c);
        return true;
    }
    /* What cannot be executed any more is not kept: the client may not have noticed yet. */
    if (!m->failed && !m->watcher.touched) queue_append(c, cmd, bytes);
    reply_simple(c, "QUEUED");
    return true;
}

bool multi_next(const struct client *c, const struct queued **at_p, const struct cmd **cmd_p,
                const struct span **argv_p, size_t *argc_p) {
    const struct multi *m = c->io->multi;
    const struct queued *q = *at_p != NULL ? (*at_p)->next : m != NULL ? m->first : NULL;
    if (q == NULL) return false;
    *at_p = q;
    *cmd_p = q->cmd;
    *argv_p = q->argv;
    *argc_p = q->argc;
    return true;
}

/* --- EXEC --- */

struct exec {
    struct job job;
    const struct cmd *cmd; /* EXEC itself, with its arguments */
    struct span *argv;
    size_t argc;
    struct queued *next; /* to run */
    bool within;         /* the one before next is a job under way */
    bool suspended;      /* others may have run meanwhile */
    /* what this took in earlier slices; of the job within, what is counted already */
    uint64_t ns, job_ns;
};

/* The first step runs within dispatch(), where EXEC's arguments still are where they were; later
 * they have moved. */
static void exec_restore(struct client *c, const struct exec *x) {
    const struct resp_parser *p = c->io->parser;
    c->cmd = x->cmd;
    c->argv = x->suspended && p != NULL ? p->argv : x->argv;
    c->argc = x->suspended && p != NULL ? p->argc : x->argc;
    c->io->flags &= ~(unsigned)CLIENT_FAILED;
}

static void run_queued(struct client *c, struct queued *q) {
    c->argv = q->argv;
    c->argc = q->argc;
    dispatch_queued(c, q->changes == table_changes ? q->cmd : NULL);
}

static bool exec_step(struct client *c, struct job *job, unsigned *budget) {
    struct exec *x = CONTAINER_OF(job, struct exec, job);
    uint64_t start = clock_mono_ns();
    if (x->within) {
        x->within = false;
        x->ns += c->io->job_ns - x->job_ns;
    }
    while (x->next != NULL) {
        job->runnable = true;
        if (*budget == 0 || client_unsent(c) > config->output_pause) break;
        struct queued *q = x->next;
        x->next = q->next;
        --*budget;
        run_queued(c, q);
        if (c->job != job) {
            x->within = true;
            x->job_ns = c->io->job_ns;
            job->runnable = false; /* its end wakes this one */
            break;
        }
        client_big_free(&q->big);
    }
    if (x->next != NULL || x->within) {
        x->suspended = true;
        x->ns += clock_mono_ns() - start;
        return false;
    }
    exec_restore(c, x);
    c->io->job_ns = x->ns;
    if (x->suspended && monitor_n > 0) monitor_feed(c); /* behind what it executed */
    return true;
}

static void exec_close(struct client *c, struct job *job) {
    c->io->flags &= ~CLIENT_EXEC;
    multi_reset(c);
}

/* 0: not there. */
static uint64_t version_of(struct span key) {
    const struct object *o = store_find(books, key);
    return o != NULL ? store_object_version(o) : 0;
}

void cmd_exec(struct client *c) {
    struct multi *m = c->io->multi;
    if (!(c->io->flags & CLIENT_MULTI)) {
        reply_error(c, "EXEC without MULTI");
        return;
    }
    if (m->failed) {
        multi_reset(c);
        reply_error(c, "-EXECABORT Transaction discarded because of previous errors.");
        return;
    }
    if (m->watcher.touched || watch_differs(&m->watcher, version_of)) {
        multi_reset(c);
        reply_null_array(c);
        return;
    }
    if (UNLIKELY(lacks_memory(m->flags))) {
        multi_abort(c, NO_MEMORY);
        return;
    }
    watch_clear(&m->watcher);
    c->io->flags = (c->io->flags & ~CLIENT_MULTI) | CLIENT_EXEC;
    reply_array(c, m->count);
    struct exec *x = xcalloc(1, sizeof(*x));
    x->job = (struct job){.step = exec_step, .close = exec_close, .runnable = true};
    x->cmd = c->cmd;
    x->argv = c->argv;
    x->argc = c->argc;
    x->next = m->first;
    job_start(c, &x->job);
}

void multi_abort(struct client *c, const char *why) {
    multi_reset(c);
    reply_error(c, "-EXECABORT Transaction discarded because of: %s", why);
}

/* --- the others --- */

void cmd_multi(struct client *c) {
    if (c->io->flags & CLIENT_MULTI) {
        reply_error(c, "MULTI calls can not be nested");
        return;
    }
    multi_of(c);
    c->io->flags |= CLIENT_MULTI;
    reply_ok(c);
}

void cmd_discard(struct client *c) {
    if (!(c->io->flags & CLIENT_MULTI)) {
        reply_error(c, "DISCARD without MULTI");
        return;
    }
    multi_reset(c);
    reply_ok(c);
}

void cmd_watch(struct client *c) {
    if (c->io->flags & CLIENT_MULTI) {
        reply_error(c, "WATCH inside MULTI is not allowed");
        return;
    }
    struct multi *m = multi_of(c);
    for (size_t i = 1; i < c->argc && !m->watcher.touched; i++) {
        if (watch_add(&m->watcher, c->argv[i], version_of(c->argv[i])) != WATCH_FULL) continue;
        reply_error(c, "One client may watch %u keys", WATCHES_MAX);
        return;
    }
    reply_ok(c);
}

/* Inside of EXEC nothing is watched any more. */
void cmd_unwatch(struct client *c) {
    struct multi *m = c->io->multi;
    if (m != NULL && !(c->io->flags & CLIENT_EXEC)) multi_reset(c);
    reply_ok(c);
}
