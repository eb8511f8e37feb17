#include "cmd/string_write.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "cmd/families.h"
#include "cmd/keys.h"

/* About a microsecond of copying and summing. */
#define BYTES_PER_UNIT UINT64_C(8192)

/* --- what a plan says -------------------------------------------------------------------------------------------------- */

uint64_t string_arg_len(const struct client *c, const struct string_write *w, size_t i) {
    return w->sink && i == w->value_arg ? big_sink_size(w->sink) : c->argv[i].len;
}

void string_write_part(struct string_write *w, struct string_part part) {
    if (part.len == 0) return;
    TARN_ASSERT(w->parts < STRING_PARTS);
    w->part[w->parts++] = part;
    w->size += part.len;
}

void string_write_whole(struct client *c, struct string_write *w) {
    if (w->sink) {
        w->flags |= STRING_SINK;
        w->size = big_sink_size(w->sink);
        return;
    }
    string_write_part(
        w, (struct string_part){.from = PART_ARG, .index = w->value_arg, .len = c->argv[w->value_arg].len});
}

void string_write_keep_old(struct string_write *w, const struct object *o) {
    struct span value;
    w->old_there = true;
    w->old_size = store_object_size(server.store, o);
    if (store_object_inline(o, &value)) {
        TARN_ASSERT(value.len <= sizeof(w->old_small));
        memcpy(w->old_small, value.data, value.len);
        w->old_in_small = true;
        w->old_pieces = 1;
        w->old_piece[0] = span_of(NULL, value.len);
        return;
    }
    w->old_pieces = pool_pieces(o, 0, w->old_size, w->old_piece);
    w->old = store_hold(server.store, (struct object *)o);
}

void string_write_reply_old(struct client *c, struct string_write *w) {
    if (!w->old_there) {
        reply_null(c);
    } else if (w->old_in_small) {
        reply_bulk(c, span_of(w->old_small, w->old_size));
    } else {
        struct store_hold *hold = w->old;
        w->old = NULL; /* goes with the reply */
        reply_pool(c, w->old_piece, w->old_pieces, hold);
    }
}

static void forget_plan(struct string_write *w) {
    if (w->old) store_unhold(server.store, &w->old);
    w->old_there = w->old_in_small = false;
    w->old_pieces = w->parts = 0;
    w->size = w->base_version = 0;
    w->flags &= ~(unsigned)STRING_SINK;
    w->phase = STRING_PLAN;
}

/* --- the bytes of its parts ------------------------------------------------------------------------------------------------ */

static struct span part_bytes(const struct client *c, const struct string_write *w,
                              const struct string_part *p) {
    switch (p->from) {
    case PART_ARG: return span_of(c->argv[p->index].data + p->offset, p->len);
    case PART_OLD:
        return span_of((w->old_in_small ? w->old_small : w->old_piece[p->index].data) + p->offset, p->len);
    case PART_SMALL: return span_of(w->small + p->offset, p->len);
    case PART_ZERO: break;
    }
    return span_of(NULL, p->len);
}

static void gather(const struct client *c, const struct string_write *w, char *to) {
    for (size_t i = 0; i < w->parts; i++) {
        struct span s = part_bytes(c, w, &w->part[i]);
        if (s.data)
            memcpy(to, s.data, s.len);
        else
            memset(to, 0, s.len);
        to += s.len;
    }
}

/* true: all of it is written. */
static bool copy_parts(struct client *c, struct string_write *w, unsigned *budget) {
    while (w->part_at < w->parts) {
        if (*budget == 0) return false;
        struct span s = part_bytes(c, w, &w->part[w->part_at]);
        size_t n = min_u64(s.len - w->part_done, *budget * BYTES_PER_UNIT);
        if (s.data)
            pool_writer_copy(&w->writer, s.data + w->part_done, n);
        else
            pool_writer_zero(&w->writer, n);
        spend(budget, (n + BYTES_PER_UNIT - 1) / BYTES_PER_UNIT);
        w->part_done += n;
        if (w->part_done == s.len) {
            w->part_at++;
            w->part_done = 0;
        }
    }
    return true;
}

/* --- the steps --------------------------------------------------------------------------------------------------------------- */

void string_write_failed(struct client *c, tarn_status status, uint64_t size) {
    switch (status) {
    case TARN_ENOSPACE:
        if (!server.host)
            reply_error(c, "-OOM no pool for values of more than %u bytes: pool-size is 0", STORE_INLINE_MAX);
        else
            reply_error(c,
                        "-OOM no room for %" PRIu64
                        " bytes: all that may be evicted does not make enough of it. Wait "
                        "for leases to end, unpin keys, or raise pool-size",
                        size);
        break;
    case TARN_EOOM: reply_error(c, "-OOM command not allowed when used memory > 'maxmemory'."); break;
    default: reply_status(c, status, NULL); break;
    }
}

static struct span key_of(const struct client *c, const struct string_write *w) {
    return c->argv[w->key_arg];
}

static bool version_is_current(const struct string_write *w, struct span key) {
    struct object *o = store_find(server.store, key);
    return (o ? store_object_version(o) : 0) == w->base_version;
}

/* The time of the value that is replaced now, not of the one that the plan saw. */
static uint64_t expiry_to_keep(const struct string_write *w, struct span key) {
    if (!(w->flags & STRING_KEEPTTL)) return w->expire_wall_ms;
    struct object *o = store_find(server.store, key);
    return o ? store_object_expire(server.store, o) : 0;
}

static bool finish(struct client *c, struct string_write *w, tarn_status status) {
    w->failed = status != TARN_OK;
    if (w->failed)
        string_write_failed(c, status, w->size);
    else
        w->answer(c, w);
    return true;
}

/* After a commit. The put was opened with another time, or with none. */
static void set_expiry(struct string_write *w, struct span key, uint64_t wall_ms) {
    struct object *o = store_find(server.store, key);
    if (o && store_object_expire(server.store, o) != wall_ms) store_expire(server.store, o, wall_ms);
}

static bool commit_sink(struct client *c, struct string_write *w) {
    struct span key = key_of(c, w);
    uint64_t wall_ms = expiry_to_keep(w, key);
    tarn_status status = big_sink_commit(&w->sink, key);
    if (status == TARN_OK) set_expiry(w, key, wall_ms);
    /* Another SET of the key came after this one had begun, and won: as if this one had been a moment earlier. */
    if (status == TARN_ETOKEN) status = TARN_OK;
    return finish(c, w, status);
}

static bool write_small(struct client *c, struct string_write *w, unsigned *budget) {
    char value[STORE_INLINE_MAX];
    struct span key = key_of(c, w);
    struct store_put_options options = pool_writer_options(expiry_to_keep(w, key));
    struct store_batch batch;
    gather(c, w, value);
    store_batch_begin(server.store, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status = store_set_inline(server.store, &batch, key, span_of(value, w->size),
                                          crc32c(0, value, w->size), &options, budget);
    if (status == TARN_EAGAIN)
        return false; /* room in the books: plans again, the key may change meanwhile */
    return finish(c, w, status);
}

/* A plan that lost its race is made again; a key that is written all the time must not keep a client for ever. */
static bool again(struct client *c, struct string_write *w) {
    forget_plan(w);
    if (++w->tries < 64) return false;
    w->failed = true;
    reply_error(c, "-TRYAGAIN the key was written by others each time");
    return true;
}

static bool opened(struct client *c, struct string_write *w, tarn_status status) {
    if (status == TARN_EAGAIN) {
        w->phase = STRING_ROOM;
        return false;
    }
    struct store_put *put = w->put;
    w->put = NULL;
    if (status == TARN_EBUSY) return again(c, w); /* superseded while room was being made */
    if (status != TARN_OK) return finish(c, w, status);
    pool_writer_open(&w->writer, put, w->size);
    w->part_at = w->part_done = 0;
    w->phase = STRING_COPY;
    return false;
}

static bool open_put(struct client *c, struct string_write *w, unsigned *budget) {
    struct store_put_options options = pool_writer_options(w->expire_wall_ms);
    struct store_batch batch;
    store_batch_begin(server.store, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status =
        store_put_start(server.store, &batch, key_of(c, w), w->size, &options, c->id, budget, &w->put);
    return opened(c, w, status);
}

static bool copy_and_commit(struct client *c, struct string_write *w, unsigned *budget) {
    struct span key = key_of(c, w);
    if (!copy_parts(c, w, budget)) return false;
    if ((w->flags & STRING_CHECK) && !version_is_current(w, key)) {
        pool_writer_abort(&w->writer, key);
        return again(c, w);
    }
    uint64_t wall_ms = expiry_to_keep(w, key);
    tarn_status status = pool_writer_end(&w->writer, key);
    w->phase = STRING_PLAN;                        /* the writer is over */
    if (status == TARN_ETOKEN) return again(c, w); /* superseded: ours is the later one now */
    if (status == TARN_OK) set_expiry(w, key, wall_ms);
    return finish(c, w, status);
}

static bool plan_and_open(struct client *c, struct string_write *w, unsigned *budget) {
    forget_plan(w);
    if (!w->plan(c, w)) return true;
    if (w->flags & STRING_SINK) return commit_sink(c, w);
    if (w->size <= STORE_INLINE_MAX) return write_small(c, w, budget);
    if (!server.host) return finish(c, w, TARN_ENOSPACE);
    return open_put(c, w, budget);
}

bool string_write_step(struct client *c, struct string_write *w, unsigned *budget) {
    for (;;) {
        bool done;
        int before = (int)w->phase;
        switch (w->phase) {
        case STRING_PLAN: done = plan_and_open(c, w, budget); break;
        case STRING_ROOM: done = opened(c, w, store_put_continue(server.store, w->put, budget)); break;
        case STRING_COPY: done = copy_and_commit(c, w, budget); break;
        default: TARN_ASSERT(0); return true;
        }
        if (done) {
            spend(budget, 1);
            return true;
        }
        if (*budget == 0 || (int)w->phase == before) return false;
    }
}

void string_write_clean(struct client *c, struct string_write *w) {
    if (w->put) store_put_abandon(server.store, &w->put);
    if (w->phase == STRING_COPY) pool_writer_abort(&w->writer, key_of(c, w));
    if (w->sink) {
        cmd_big_abort(w->sink);
        w->sink = NULL;
    }
    forget_plan(w);
}

static bool job_step(struct client *c, struct job *job, unsigned *budget) {
    return string_write_step(c, CONTAINER_OF(job, struct string_write, job), budget);
}

static void job_destroy(struct client *c, struct job *job) {
    struct string_write *w = CONTAINER_OF(job, struct string_write, job);
    string_write_clean(c, w);
    free(w);
}

void string_write_run(struct client *c, struct string_write *w) {
    unsigned budget = job_quota();
    w->sink = c->big;
    c->big = NULL;
    if (string_write_step(c, w, &budget)) {
        string_write_clean(c, w);
        return;
    }
    struct string_write *kept = xmemdup(w, sizeof(*w));
    kept->job = (struct job){.step = job_step, .destroy = job_destroy, .runnable = true};
    job_start(c, &kept->job);
}
