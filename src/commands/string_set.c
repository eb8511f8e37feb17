/* SET and those that are SET with options in other places: SETNX SETEX PSETEX GETSET; MSET and
 * MSETNX. */
#include "front/families.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "front/client.h"
#include "front/notify.h"
#include "inband/string_write.h"

bool expire_time(struct client *c, size_t at, enum wire_expiry kind, uint64_t *wall_ms_p) {
    int64_t v, unit = kind == WIRE_EX || kind == WIRE_EXAT ? 1000 : 1;
    int64_t base = kind == WIRE_EXAT || kind == WIRE_PXAT ? 0 : (int64_t)turn.wall_ms;
    if (!arg_i64(c, at, &v)) return false;
    if (v <= 0 || v > INT64_MAX / unit || v * unit > INT64_MAX - base) {
        reply_error(c, "invalid expire time in '%s' command", c->cmd->name);
        return false;
    }
    *wall_ms_p = (uint64_t)(v * unit + base);
    return true;
}

/* --- SET --- */

static bool set_plan(struct client *c, struct string_write *w) {
    if (w->flags & (STRING_NX | STRING_XX | STRING_GET)) {
        struct object *o = store_find(books, c->argv[w->key_arg]);
        w->base_version = o ? store_object_version(o) : 0;
        w->flags |= STRING_CHECK;
        bool refused = ((w->flags & STRING_NX) && o) || ((w->flags & STRING_XX) && !o);
        if (w->flags & STRING_GET) {
            o = string_read(c->argv[w->key_arg]); /* an access, as GET's */
            if (!o) notify_key(NOTIFY_MISS, "keymiss", c->argv[w->key_arg]);
            if (!string_write_keep_old(w, o)) return true;
        }
        if (refused) {
            if (w->flags & STRING_GET)
                string_write_reply_old(c, w);
            else
                reply_null(c);
            return false;
        }
    }
    string_write_whole(c, w);
    return true;
}

static void set_answer(struct client *c, struct string_write *w) {
    if (w->flags & STRING_GET)
        string_write_reply_old(c, w);
    else
        reply_ok(c);
}

/* The common case in one step: a small value and no options. */
static bool set_small(struct client *c) {
    struct span key = c->argv[1], value = c->argv[2];
    if (c->big || value.len > STORE_INLINE_MAX) return false;
    struct store_put_options options = value_write_options(value.len, 0);
    struct store_batch batch;
    unsigned budget = job_quota();
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status = store_set_inline(books, &batch, key, value,
                                          crc32c(0, value.data, value.len), &options, &budget);
    if (status == TARN_EAGAIN) return false;
    if (status == TARN_EOOM) dispatch_turned_away(c);
    if (status != TARN_OK) {
        string_write_failed(c, status, key, value.len);
        return true;
    }
    notify_key(NOTIFY_STRING, "set", key);
    reply_ok(c);
    return true;
}

static void set_run(struct client *c, size_t value_arg, unsigned flags, uint64_t expire_wall_ms) {
    struct string_write w = {.plan = set_plan,
                             .event = "set",
                             .answer = set_answer,
                             .key_arg = 1,
                             .value_arg = value_arg,
                             .flags = flags,
                             .expire_wall_ms = expire_wall_ms};
    string_write_run(c, &w);
}

void cmd_set(struct client *c) {
    static const unsigned conditions[] = {0, [WIRE_NX] = STRING_NX, [WIRE_XX] = STRING_XX};
    struct wire_set args = {0};
    uint64_t wall_ms = 0;
    if (!arg_key(c, 1) || (c->argc == 3 && set_small(c)) || !arg_bind(c, &args)) return;
    if (args.time > 0 && !expire_time(c, args.time, args.expiry, &wall_ms)) return;
    set_run(c, 2,
            conditions[args.condition] | (args.get ? STRING_GET : 0) |
                (args.expiry == WIRE_EXPIRY_OTHER ? STRING_KEEPTTL : 0),
            wall_ms);
}

void cmd_getset(struct client *c) {
    if (arg_key(c, 1)) set_run(c, 2, STRING_GET, 0);
}

static void set_timed(struct client *c, enum wire_expiry kind) {
    uint64_t wall_ms;
    if (arg_key(c, 1) && expire_time(c, 2, kind, &wall_ms)) set_run(c, 3, 0, wall_ms);
}

void cmd_setex(struct client *c) {
    set_timed(c, WIRE_EX);
}
void cmd_psetex(struct client *c) {
    set_timed(c, WIRE_PX);
}

static bool setnx_plan(struct client *c, struct string_write *w) {
    if (store_find(books, c->argv[w->key_arg])) {
        reply_int(c, 0);
        return false;
    }
    w->flags |= STRING_CHECK;
    string_write_whole(c, w);
    return true;
}

static void answer_one(struct client *c, struct string_write *w) {
    reply_int(c, 1);
}

void cmd_setnx(struct client *c) {
    if (!arg_key(c, 1)) return;
    struct string_write w = {
        .plan = setnx_plan, .event = "set", .answer = answer_one, .key_arg = 1, .value_arg = 2};
    string_write_run(c, &w);
}

/* --- MSET: one write after the other, each atomic --- */

struct mset_job {
    struct job job;
    bool nx, checked, failed;
    size_t pos;
    struct string_write write; /* of the key at pos; plan NULL: not begun */
};

/* The one answer comes at the end, so that of a single write is none. */
static void mset_answer(struct client *c, struct string_write *w) {}

/* MSETNX looks at all keys before it writes the first. As everywhere, each key is atomic, not the
 * whole. */
static bool mset_check(struct client *c, struct mset_job *m, unsigned *budget) {
    for (; m->pos < (c->argc - 1) / 2; m->pos++) {
        if (*budget == 0) return false;
        spend(budget, 1);
        if (!store_find(books, c->argv[1 + m->pos * 2])) continue;
        reply_int(c, 0);
        m->failed = true;
        return true;
    }
    m->checked = true;
    m->pos = 0;
    return true;
}

static bool mset_plan(struct client *c, struct string_write *w) {
    string_write_whole(c, w);
    return true;
}

/* true: the write of this key is over. A refusal has been answered: the rest is not tried. */
static bool mset_one(struct client *c, struct mset_job *m, unsigned *budget) {
    struct string_write *w = &m->write;
    if (!w->plan)
        *w = (struct string_write){.plan = mset_plan,
                                   /* one bound for the whole command */
                                   .later.until_ms = w->later.until_ms,
                                   .event = "set",
                                   .answer = mset_answer,
                                   .owner = &m->job,
                                   .key_arg = 1 + m->pos * 2,
                                   .value_arg = 2 + m->pos * 2};
    if (!string_write_step(c, w, budget)) return false;
    m->failed = w->failed;
    string_write_clean(c, w);
    w->plan = NULL;
    return true;
}

static bool mset_step(struct client *c, struct job *job, unsigned *budget) {
    struct mset_job *m = CONTAINER_OF(job, struct mset_job, job);
    if (!m->checked && !mset_check(c, m, budget)) return false;
    for (; !m->failed && m->pos < (c->argc - 1) / 2; m->pos++) {
        if (*budget == 0) return false;
        if (!mset_one(c, m, budget)) {
            job->runnable = !m->write.waits;
            return false;
        }
    }
    if (m->failed) return true;
    if (m->nx)
        reply_int(c, 1);
    else
        reply_ok(c);
    return true;
}

static void mset_close(struct client *c, struct job *job) {
    struct mset_job *m = CONTAINER_OF(job, struct mset_job, job);
    if (m->write.plan) string_write_clean(c, &m->write);
}

static void mset_run(struct client *c, bool nx) {
    if (c->argc % 2 == 0) {
        reply_arity(c);
        return;
    }
    for (size_t i = 1; i < c->argc; i += 2)
        if (!arg_key(c, i)) return;
    struct mset_job *m = xcalloc(1, sizeof(*m));
    m->job = (struct job){.step = mset_step, .close = mset_close, .runnable = true};
    m->nx = nx;
    m->checked = !nx;
    job_start(c, &m->job);
}

void cmd_mset(struct client *c) {
    mset_run(c, false);
}
void cmd_msetnx(struct client *c) {
    mset_run(c, true);
}
