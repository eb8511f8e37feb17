#include "inband/string_write.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "cluster/cluster.h"
#include "front/client.h"
#include "front/families.h"
#include "front/keys.h"
#include "inband/later.h"
#include "front/notify.h"
#include "front/refusal.h"
#include "front/embedded.h"
#include "config/config.h"

/* Where the last new value went: not here. Only a guess, which saves opening the next put twice. */
static bool likely_elsewhere;

/* --- what a plan says --- */

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
    string_write_part(w, (struct string_part){.from = PART_ARG,
                                              .index = w->value_arg,
                                              .len = c->argv[w->value_arg].len});
}

bool string_write_keep_old(struct string_write *w, struct object *o) {
    struct span value;
    w->old = (struct string_old){0};
    if (!o) return true;
    uint64_t size = store_object_size(books, o), version = store_object_version(o);
    w->old = (struct string_old){.there = true, .size = size, .version = version};
    if (store_object_inline(o, &value)) {
        TARN_ASSERT(value.len <= sizeof(w->old.small));
        memcpy(w->old.small, value.data, value.len);
        w->old.pieces = 1;
        w->old.piece[0] = span_of(NULL, value.len); /* small moves with w */
        return true;
    }
    w->old.pieces = pool_pieces(o, 0, size, w->old.piece);
    if (w->old.pieces > 0) {
        w->old.hold = store_hold(books, o);
        return true;
    }
    w->old.wanted = !string_far_knows(w, version);
    if (w->old.wanted) return false;
    w->old.there = !w->far->lost;
    w->old.pieces = w->old.there;
    w->old.piece[0] = span_of(w->far->old, size);
    return true;
}

struct span string_old_bytes(const struct string_write *w, size_t piece) {
    struct span s = w->old.piece[piece];
    return s.data ? s : span_of(w->old.small, s.len);
}

bool string_write_old_text(const struct string_write *w, char text[STRING_TEXT_MAX],
                           size_t *len_p) {
    size_t at = 0;
    if (w->old.size >= STRING_TEXT_MAX) return false;
    for (size_t i = 0; i < w->old.pieces; i++) {
        struct span s = string_old_bytes(w, i);
        memcpy(text + at, s.data, s.len);
        at += s.len;
    }
    text[at] = 0;
    *len_p = at;
    return true;
}

void string_write_take_old(struct string_write *w, uint64_t from, uint64_t to) {
    uint64_t at = 0;
    for (size_t i = 0; i < w->old.pieces; i++) {
        uint64_t end = at + w->old.piece[i].len;
        uint64_t first = max_u64(from, at), last = min_u64(to, end);
        if (first < last)
            string_write_part(
                w, (struct string_part){
                       .from = PART_OLD, .index = i, .offset = first - at, .len = last - first});
        at = end;
    }
}

struct object *string_write_edit(struct client *c, struct string_write *w) {
    struct object *o = string_read(c->argv[w->key_arg]);
    w->base_version = o ? store_object_version(o) : 0;
    w->flags |= STRING_CHECK | STRING_KEEPTTL;
    return o;
}

bool string_size_allowed(struct client *c, uint64_t size) {
    if (size <= config->proto_max_bulk_len) return true;
    reply_error(c, "string exceeds maximum allowed size (proto-max-bulk-len)");
    return false;
}

void string_write_reply_old(struct client *c, struct string_write *w) {
    struct store_hold *hold = w->old.hold;
    w->old.hold = NULL; /* goes with the reply */
    if (!w->old.there)
        reply_null(c);
    else if (hold)
        reply_pool(c, w->old.piece, w->old.pieces, hold);
    else
        reply_bulk(c, string_old_bytes(w, 0));
}

static struct span key_of(const struct client *c, const struct string_write *w) {
    return c->argv[w->key_arg];
}

/* What it has made so far, but for an old value that was fetched. */
static void forget_plan(const struct client *c, struct string_write *w) {
    if (w->put) store_put_abandon(books, &w->put);
    if (w->local_out) pool_writer_abort(&w->writer, key_of(c, w));
    string_far_reset(w);
    if (w->old.hold) store_unhold(books, &w->old.hold);
    w->old = (struct string_old){0};
    w->local_out = false;
    w->parts = 0;
    w->size = w->base_version = 0;
    w->flags &= ~(unsigned)STRING_SINK;
    w->phase = STRING_PLAN;
}

static void plan_again(const struct client *c, struct string_write *w) {
    forget_plan(c, w);
    string_far_forget_old(w);
}

/* --- the steps --- */

void string_write_failed(struct client *c, tarn_status status, struct span key, uint64_t size) {
    switch (status) {
    case TARN_ENOSPACE: refusal_no_room(c, "OOM", size); break;
    case TARN_EOOM:
        reply_error(c, "-OOM command not allowed when used memory > 'maxmemory'.");
        break;
    case TARN_EQUOTA:
        refusal_quota(c, &(struct refusal_put){.key = key, .size = size, .replicas = 1});
        break;
    case TARN_ELATER:
    case TARN_ELOADING: later_reply(c, status); break;
    default: reply_status(c, status, NULL); break;
    }
}

static bool has_version(struct span key, uint64_t version) {
    struct object *o = store_find(books, key);
    return (o ? store_object_version(o) : 0) == version;
}

static bool version_is_current(const struct client *c, const struct string_write *w) {
    return has_version(key_of(c, w), w->base_version) &&
           (w->old_arg == 0 || has_version(c->argv[w->old_arg], w->old.version));
}

/* The time of the value that is replaced now (or of the one that is copied), not of the one that
 * the plan saw. */
static uint64_t expiry_to_keep(const struct client *c, const struct string_write *w,
                               struct span key) {
    if (!(w->flags & (STRING_KEEPTTL | STRING_TAKETTL))) return w->expire_wall_ms;
    struct object *o = store_find(books, w->flags & STRING_TAKETTL ? c->argv[w->old_arg] : key);
    return o ? store_object_expire(books, o) : 0;
}

static void over(struct string_write *w) {
    w->phase = STRING_OVER;
}

/* Sleeps until there may be room, and plans again. What runs for the first time must have its place
 * in memory before. */
static void later(struct client *c, struct string_write *w) {
    if (!w->owner) return;
    if (w->later.job) {
        later_end(&w->later);
        w->phase = STRING_PLAN;
    } else {
        w->waits = true;
        later_sleep(&w->later, c, w->owner);
    }
}

static void finish(struct client *c, struct string_write *w, tarn_status status) {
    status = room_status(status);
    if (UNLIKELY(later_is(status)) && later_waits()) {
        plan_again(c, w);
        w->phase = STRING_LATER;
        return;
    }
    w->failed = status != TARN_OK;
    over(w);
    if (w->failed && status == TARN_EOOM && (!w->owner || w->owner == &w->job))
        dispatch_turned_away(c); /* MSET may have written other keys */
    if (w->failed) {
        string_write_failed(c, status, key_of(c, w), w->size);
        return;
    }
    if (w->event) notify_key(NOTIFY_STRING, w->event, key_of(c, w));
    if (w->event && w->expire_wall_ms) notify_key(NOTIFY_GENERIC, "expire", key_of(c, w));
    w->answer(c, w);
}

/* A plan that lost its race is made again; a key that is written all the time must not keep a
 * client for ever. */
static void again(struct client *c, struct string_write *w) {
    plan_again(c, w);
    if (++w->tries < 64) return;
    w->failed = true;
    over(w);
    reply_later(c, REPLY_LATER_MS, "the key was written by others each time");
}

static void follow(struct client *c, struct string_write *w, enum string_flow flow,
                   enum string_phase next) {
    switch (flow) {
    case STRING_GO_ON: w->phase = next; break;
    case STRING_WAIT: break;
    case STRING_AGAIN: again(c, w); break;
    case STRING_FAILED:
        w->failed = true;
        over(w);
        break;
    }
}

/* After a commit. The put was opened with another time, or with none. */
static void set_expiry(struct string_write *w, struct span key, uint64_t wall_ms) {
    struct object *o = store_find(books, key);
    if (o && store_object_expire(books, o) != wall_ms) store_expire(books, o, wall_ms);
}

static void commit_sink(struct client *c, struct string_write *w) {
    struct span key = key_of(c, w);
    uint64_t wall_ms = expiry_to_keep(c, w, key);
    tarn_status status = big_sink_commit(&w->sink, key);
    if (status == TARN_OK) set_expiry(w, key, wall_ms);
    /* Another SET of the key came after this one had begun, and won: as if this one had been a
     * moment earlier. */
    if (status == TARN_ETOKEN) status = TARN_OK;
    finish(c, w, status);
}

static void write_small(struct client *c, struct string_write *w, unsigned *budget) {
    char value[STORE_INLINE_MAX];
    struct span key = key_of(c, w);
    struct store_put_options options = pool_writer_options(expiry_to_keep(c, w, key));
    struct store_batch batch;
    string_gather(c, w, value);
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status = store_set_inline(books, &batch, key, span_of(value, w->size),
                                          crc32c(0, value, w->size), &options, budget);
    if (status == TARN_EAGAIN) /* room in the books: plans again, the key may change meanwhile */
        forget_plan(c, w);
    else
        finish(c, w, status);
}

/* There is space. Where it is not as expected the put is opened anew: one whose writer is this
 * process' memory alone has other rights than one whose bytes travel. */
static void opened(struct client *c, struct string_write *w, tarn_status status) {
    if (status == TARN_EAGAIN) return;
    struct store_put *put = w->put;
    w->put = NULL;
    if (status == TARN_EBUSY) { /* superseded while room was being made */
        again(c, w);
        return;
    }
    if (status != TARN_OK) {
        finish(c, w, status);
        return;
    }
    w->part_at = w->part_done = 0;
    w->local_out = pool_writer_open(&w->writer, put, w->size);
    likely_elsewhere = !w->local_out;
    if (!w->local_out && w->elsewhere) {
        string_far_open(c, w, put);
    } else if (!w->local_out) {
        w->elsewhere = true;
        store_put_revoke(books, key_of(c, w), store_put_token(put));
        forget_plan(c, w); /* plans again, and knows better */
        return;
    }
    w->phase = STRING_COPY;
}

static void open_put(struct client *c, struct string_write *w, unsigned *budget) {
    struct span avoid[STRING_AVOID_MAX];
    struct store_put_options options = string_far_options(w, w->expire_wall_ms, avoid);
    uint64_t session = w->elsewhere ? w->far->session.id : c->id;
    struct store_batch batch;
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status =
        store_put_start(books, &batch, key_of(c, w), w->size, &options, session, budget, &w->put);
    opened(c, w, status);
}

static void open_or_commit(struct client *c, struct string_write *w, unsigned *budget) {
    w->phase = STRING_OPEN;
    if (w->put)
        opened(c, w, store_put_continue(books, w->put, budget));
    else if (w->flags & STRING_SINK)
        commit_sink(c, w);
    else if (w->size <= STORE_INLINE_MAX)
        write_small(c, w, budget);
    else if (!embedded.host && store_segment_count(books) == 0)
        finish(c, w, TARN_ENOSPACE);
    else
        open_put(c, w, budget);
}

/* All bytes are where they belong. */
static void commit(struct client *c, struct string_write *w) {
    struct span key = key_of(c, w);
    tarn_status status;
    if ((w->flags & STRING_CHECK) && !version_is_current(c, w)) {
        again(c, w);
        return;
    }
    uint64_t wall_ms = expiry_to_keep(c, w, key);
    if (w->local_out) {
        w->local_out = false; /* the writer is over */
        status = pool_writer_end(&w->writer, key);
    } else {
        enum string_flow flow = string_far_end(c, w, &status);
        if (flow != STRING_GO_ON) {
            follow(c, w, flow, STRING_OVER);
            return;
        }
    }
    if (status == TARN_ETOKEN) { /* superseded: ours is the later one now */
        again(c, w);
        return;
    }
    if (status == TARN_OK) set_expiry(w, key, wall_ms);
    finish(c, w, status);
}

static void copy(struct client *c, struct string_write *w, unsigned *budget) {
    enum string_flow flow = string_copy_parts(c, w, budget);
    if (!w->local_out && (flow == STRING_GO_ON || w->waits)) flow = string_far_sent(c, w);
    if (flow == STRING_GO_ON)
        commit(c, w);
    else
        follow(c, w, flow, STRING_OVER);
}

static void plan(struct client *c, struct string_write *w, unsigned *budget) {
    forget_plan(c, w);
    if (!w->plan(c, w)) {
        over(w);
        return;
    }
    bool elsewhere = !w->old.wanted && !(w->flags & STRING_SINK) && w->size > STORE_INLINE_MAX &&
                     (w->elsewhere || !embedded.host || likely_elsewhere);
    if (LIKELY(!elsewhere && !string_far_needed(w))) {
        open_or_commit(c, w, budget);
        return;
    }
    if (!w->owner) return; /* not before it has its place in memory */
    string_far_get(w);
    w->elsewhere |= elsewhere;
    w->phase = STRING_READY;
}

/* Others wrote to the key meanwhile, in good order: that is no lost race. */
static void ready(struct client *c, struct string_write *w) {
    enum string_flow flow = string_far_ready(c, w);
    if (flow == STRING_AGAIN)
        plan_again(c, w);
    else
        follow(c, w, flow, w->old.wanted ? STRING_FETCH : STRING_OPEN);
}

bool string_write_elsewhere(void) {
    return likely_elsewhere;
}

bool string_write_step(struct client *c, struct string_write *w, unsigned *budget) {
    for (;;) {
        enum string_phase before = w->phase;
        w->waits = false;
        switch (w->phase) {
        case STRING_PLAN: plan(c, w, budget); break;
        case STRING_READY: ready(c, w); break;
        case STRING_FETCH: follow(c, w, string_far_fetch(c, w, budget), STRING_PLAN); break;
        case STRING_OPEN: open_or_commit(c, w, budget); break;
        case STRING_COPY: copy(c, w, budget); break;
        case STRING_LATER: later(c, w); break;
        case STRING_OVER: break;
        }
        if (w->phase == STRING_OVER) {
            spend(budget, 1);
            return true;
        }
        if (*budget == 0 || w->phase == before) return false;
    }
}

void string_write_clean(struct client *c, struct string_write *w) {
    later_end(&w->later);
    if (w->sink) {
        big_sink_abort(w->sink);
        w->sink = NULL;
    }
    forget_plan(c, w);
    string_far_free(w);
}

static bool job_step(struct client *c, struct job *job, unsigned *budget) {
    struct string_write *w = CONTAINER_OF(job, struct string_write, job);
    bool done = string_write_step(c, w, budget);
    job->runnable = !w->waits;
    return done;
}

static void job_close(struct client *c, struct job *job) {
    struct string_write *w = CONTAINER_OF(job, struct string_write, job);
    string_write_clean(c, w);
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
    kept->job = (struct job){.step = job_step, .close = job_close, .runnable = true};
    kept->owner = &kept->job;
    job_start(c, &kept->job);
}

/* --- reading --- */

struct object *string_read(struct span key) {
    struct store_batch batch;
    store_batch_begin(books, &batch, NULL, STORE_BATCH_READ, 1);
    uint64_t hash = store_hash(key);
    struct object *o = store_find_hashed(books, key, hash);
    if (o) {
        store_batch_hit(books, &batch, o);
        cluster_hit(o, false);
    } else {
        store_batch_miss(books, &batch, hash);
    }
    return o;
}
