#include "inband/string_write.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "cluster/cluster.h"
#include "config/config.h"
#include "front/client.h"
#include "front/embedded.h"
#include "front/families.h"
#include "front/notify.h"
#include "front/refusal.h"
#include "front/shard.h"
#include "inband/later.h"
#include "inband/own_memory.h"

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
        w->size = value_write_size(w->sink);
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
    w->old.there = !w->far.lost;
    w->old.pieces = w->old.there;
    w->old.piece[0] = span_of(w->far.old, size);
    return true;
}

static struct span old_bytes(const struct string_write *w, size_t piece) {
    struct span s = w->old.piece[piece];
    return s.data ? s : span_of(w->old.small, s.len);
}

bool string_write_old_text(const struct string_write *w, char text[STRING_TEXT_MAX],
                           size_t *len_p) {
    size_t at = 0;
    if (w->old.size >= STRING_TEXT_MAX) return false;
    for (size_t i = 0; i < w->old.pieces; i++) {
        struct span s = old_bytes(w, i);
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

static struct span part_bytes(const struct client *c, const struct string_write *w,
                              const struct string_part *p) {
    switch (p->from) {
    case PART_ARG: return span_of(c->argv[p->index].data + p->offset, p->len);
    case PART_OLD: return span_of(old_bytes(w, p->index).data + p->offset, p->len);
    case PART_SMALL: return span_of(w->small + p->offset, p->len);
    case PART_ZERO: break;
    }
    return span_of(NULL, p->len);
}

/* All parts of a short value. */
static void gather_parts(const struct client *c, const struct string_write *w, char *to) {
    for (size_t i = 0; i < w->parts; i++) {
        struct span s = part_bytes(c, w, &w->part[i]);
        if (s.data)
            memcpy(to, s.data, s.len);
        else
            memset(to, 0, s.len);
        to += s.len;
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
        reply_bulk(c, old_bytes(w, 0));
}

static struct span key_of(const struct client *c, const struct string_write *w) {
    return c->argv[w->key_arg];
}

/* What it has made so far, but for an old value that was fetched. */
static void forget_plan(struct string_write *w) {
    if (w->put) store_put_abandon(books, &w->put);
    value_write_abort(&w->out);
    remote_session_give(&w->far.session, true); /* what was opened in it is over, or has taken it */
    if (w->old.hold) store_unhold(books, &w->old.hold);
    w->old = (struct string_old){0};
    w->parts = 0;
    w->size = w->base_version = 0;
    w->flags &= ~(unsigned)STRING_SINK;
    w->phase = STRING_PLAN;
}

static void plan_again(struct string_write *w) {
    forget_plan(w);
    string_far_forget_old(w);
}

/* --- the steps --- */

void string_write_failed(struct client *c, tarn_status status, struct span key, uint64_t size) {
    switch (status) {
    case TARN_ENOSPACE: refusal_no_room(c, "OOM", size); break;
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

static void write_over(struct string_write *w) {
    w->phase = STRING_OVER;
}

/* Sleeps until there may be room, and plans again. What runs for the first time must have its place
 * in memory before. */
static void write_later(struct client *c, struct string_write *w) {
    if (!w->owner) return;
    if (w->later.job) {
        later_end(&w->later);
        w->phase = STRING_PLAN;
    } else {
        w->waits = true;
        later_sleep(&w->later, c, w->owner);
    }
}

static void write_finish(struct client *c, struct string_write *w, tarn_status status) {
    status = room_status(status);
    if (UNLIKELY(later_is(status)) && later_waits()) {
        plan_again(w);
        w->phase = STRING_LATER;
        return;
    }
    w->failed = status != TARN_OK;
    write_over(w);
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
static void write_retry(struct client *c, struct string_write *w) {
    plan_again(w);
    if (++w->tries < 64) return;
    w->failed = true;
    write_over(w);
    reply_later(c, REPLY_LATER_MS, "the key was written by others each time");
}

/* Since it was admitted the key has gone to another master, or new ones of its slot go there, or
 * another server leads this shard. */
static bool write_lost(struct client *c, struct string_write *w) {
    if (LIKELY(!shard_lost(key_of(c, w)))) return false;
    w->failed = true;
    write_over(w);
    reply_later(c, 1, "the key goes to another master");
    return true;
}

static void write_follow(struct client *c, struct string_write *w, enum string_flow flow,
                         enum string_phase next) {
    switch (flow) {
    case STRING_GO_ON: w->phase = next; break;
    case STRING_WAIT: break;
    case STRING_AGAIN: write_retry(c, w); break;
    case STRING_FAILED:
        w->failed = true;
        write_over(w);
        break;
    }
}

/* After a commit. The put was opened with another time, or with none. */
static void set_expiry(struct string_write *w, struct span key, uint64_t wall_ms) {
    struct object *o = store_find(books, key);
    if (o && store_object_expire(books, o) != wall_ms) store_expire(books, o, wall_ms);
}

static void write_inline(struct client *c, struct string_write *w, unsigned *budget) {
    char value[STORE_INLINE_MAX];
    struct span key = key_of(c, w);
    if (write_lost(c, w)) return;
    struct store_put_options options = value_write_options(w->size, expiry_to_keep(c, w, key));
    struct store_batch batch;
    gather_parts(c, w, value);
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status = store_set_inline(books, &batch, key, span_of(value, w->size),
                                          crc32c(0, value, w->size), &options, budget);
    if (status == TARN_EAGAIN) /* room in the books: plans again, the key may change meanwhile */
        forget_plan(w);
    else
        write_finish(c, w, status);
}

/* There is space. Where it is not as expected the put is opened anew: one whose writer is this
 * process' memory alone has other rights than one whose bytes travel. */
static void write_opened(struct client *c, struct string_write *w, tarn_status status) {
    if (status == TARN_EAGAIN) return;
    struct store_put *put = w->put;
    w->put = NULL;
    if (status == TARN_EBUSY) { /* superseded while room was being made */
        write_retry(c, w);
        return;
    }
    if (status != TARN_OK) {
        write_finish(c, w, status);
        return;
    }
    struct value_way way;
    if (w->elsewhere) way = string_far_way(w);
    w->part_at = w->part_done = 0;
    w->out = value_write_open(put, key_of(c, w), w->size, w->elsewhere ? &way : NULL);
    likely_elsewhere = !w->out || !value_write_is_local(w->out);
    if (!w->out) {
        w->elsewhere = true;
        store_put_revoke(books, key_of(c, w), store_put_token(put));
        forget_plan(w); /* plans again, and knows better */
        return;
    }
    w->phase = STRING_COPY;
}

static void write_open_put(struct client *c, struct string_write *w, unsigned *budget) {
    struct span avoid[STRING_AVOID_MAX];
    struct store_put_options options = value_write_options(w->size, w->expire_wall_ms);
    uint64_t session = w->elsewhere ? w->far.session.id : c->id;
    struct store_batch batch;
    if (w->elsewhere) string_far_options(w, &options, avoid);
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status =
        store_put_start(books, &batch, key_of(c, w), w->size, &options, session, budget, &w->put);
    write_opened(c, w, status);
}

/* All bytes are where they belong. */
static void write_commit(struct client *c, struct string_write *w, struct value_write **out_p) {
    struct span key = key_of(c, w);
    if (write_lost(c, w)) return;
    if ((w->flags & STRING_CHECK) && !version_is_current(c, w)) {
        write_retry(c, w);
        return;
    }
    uint64_t wall_ms = expiry_to_keep(c, w, key);
    tarn_status status = value_write_end(out_p);
    if (status == TARN_EIO && w->elsewhere) { /* its segment left meanwhile */
        write_follow(c, w, string_far_failed(c, w, status), STRING_OVER);
        return;
    }
    if (status == TARN_ETOKEN &&
        !(w->flags & STRING_SINK)) { /* superseded: ours is the later now */
        write_retry(c, w);
        return;
    }
    if (status == TARN_OK) set_expiry(w, key, wall_ms);
    /* Another SET of the key came after this one had begun, and won: as if this one had been a
     * moment earlier. */
    if (status == TARN_ETOKEN) status = TARN_OK;
    write_finish(c, w, status);
}

static void open_or_commit(struct client *c, struct string_write *w, unsigned *budget) {
    w->phase = STRING_OPEN;
    if (w->put)
        write_opened(c, w, store_put_continue(books, w->put, budget));
    else if (w->flags & STRING_SINK)
        write_commit(c, w, &w->sink);
    else if (w->size <= STORE_INLINE_MAX)
        write_inline(c, w, budget);
    else if (!embedded.host && store_segment_count(books) == 0)
        write_finish(c, w, TARN_ENOSPACE);
    else
        write_open_put(c, w, budget);
}

/* The bytes of the parts, to wherever they go. GO_ON: all are on their way. WAIT: also when the
 * budget is used up. */
static enum string_flow copy_parts(struct client *c, struct string_write *w, unsigned *budget) {
    for (; w->part_at < w->parts; w->part_at++, w->part_done = 0) {
        struct span s = part_bytes(c, w, &w->part[w->part_at]); /* data NULL: zeroes */
        while (w->part_done < s.len) {
            if (*budget == 0) return STRING_WAIT;
            size_t n =
                value_write_add(w->out, s.data ? s.data + w->part_done : NULL,
                                min_u64(s.len - w->part_done, *budget * STRING_BYTES_PER_UNIT));
            w->waits = n == 0;
            if (w->waits) return STRING_WAIT;
            spend(budget, (n + STRING_BYTES_PER_UNIT - 1) / STRING_BYTES_PER_UNIT);
            w->part_done += n;
        }
    }
    return STRING_GO_ON;
}

static void write_copy(struct client *c, struct string_write *w, unsigned *budget) {
    enum string_flow flow = copy_parts(c, w, budget);
    if (flow == STRING_GO_ON || w->waits) flow = string_far_sent(c, w);
    if (flow == STRING_GO_ON)
        write_commit(c, w, &w->out);
    else
        write_follow(c, w, flow, STRING_OVER);
}

static void write_plan(struct client *c, struct string_write *w, unsigned *budget) {
    forget_plan(w);
    if (!w->plan(c, w)) {
        write_over(w);
        return;
    }
    bool elsewhere = !w->old.wanted && !(w->flags & STRING_SINK) && w->size > STORE_INLINE_MAX &&
                     (w->elsewhere || !embedded.host || likely_elsewhere);
    if (LIKELY(!elsewhere && !string_far_needed(w))) {
        open_or_commit(c, w, budget);
        return;
    }
    if (!w->owner) return; /* not before it has its place in memory */
    w->elsewhere |= elsewhere;
    w->phase = STRING_READY;
}

/* Others wrote to the key meanwhile, in good order: that is no lost race. */
static void write_ready(struct client *c, struct string_write *w) {
    enum string_flow flow = string_far_ready(c, w);
    if (flow == STRING_AGAIN)
        plan_again(w);
    else
        write_follow(c, w, flow, w->old.wanted ? STRING_FETCH : STRING_OPEN);
}

bool string_write_elsewhere(void) {
    return likely_elsewhere;
}

bool string_write_step(struct client *c, struct string_write *w, unsigned *budget) {
    for (;;) {
        enum string_phase before = w->phase;
        w->waits = false;
        switch (w->phase) {
        case STRING_PLAN: write_plan(c, w, budget); break;
        case STRING_READY: write_ready(c, w); break;
        case STRING_FETCH: write_follow(c, w, string_far_fetch(c, w, budget), STRING_PLAN); break;
        case STRING_OPEN: open_or_commit(c, w, budget); break;
        case STRING_COPY: write_copy(c, w, budget); break;
        case STRING_LATER: write_later(c, w); break;
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
    value_write_abort(&w->sink);
    forget_plan(w);
    string_far_end(w);
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
        store_batch_hit(books, &batch, o, hash);
        cluster_hit(o, false);
    } else {
        store_batch_miss(books, &batch, key, hash);
    }
    return o;
}
