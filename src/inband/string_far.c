/* What string_write does when bytes of the old or the new value are not in this process' memory:
 * fetching the one, sending the other, with claims on buffers and a session for the write. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/htab.h"
#include "front/keys.h"
#include "inband/string_write.h"

static void wake(struct string_far *f) {
    job_wake(f->write->owner);
}

static void on_ready(void *arg) {
    wake(arg);
}

static enum string_flow sleep_on(struct string_write *w) {
    w->waits = true;
    return STRING_WAIT;
}

/* The new value gets space that may be on another machine. */
static bool sends_new(const struct string_write *w) {
    return w->elsewhere && !(w->flags & STRING_SINK) && w->size > STORE_INLINE_MAX;
}

bool string_far_needed(const struct string_write *w) {
    return w->old.wanted || sends_new(w);
}

/* --- turns --- */

struct key_turn { /* of a key that is being written elsewhere */
    struct htab_node node;
    struct span key;
    TAILQ_HEAD(, string_far) queue; /* the first has its turn */
};
static struct htab turns;
static bool turns_ready;

static bool same_key(const struct htab_node *node, const void *key) {
    return span_eq(CONTAINER_OF(node, const struct key_turn, node)->key, *(const struct span *)key);
}

static struct key_turn *turn_get(struct span key) {
    uint64_t hash = store_hash(key);
    if (!turns_ready) htab_init(&turns);
    turns_ready = true;
    struct htab_node *n = htab_find(&turns, hash, same_key, &key);
    if (n) return CONTAINER_OF(n, struct key_turn, node);
    struct key_turn *t = xcalloc(1, sizeof(*t));
    t->key = span_of(xmemdup(key.data, key.len), key.len);
    TAILQ_INIT(&t->queue);
    htab_insert(&turns, &t->node, hash);
    return t;
}

static enum string_flow turn_take(const struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    bool waited = f->turn != NULL && f->turn_waits;
    if (!f->turn) {
        f->turn = turn_get(c->argv[w->key_arg]);
        TAILQ_INSERT_TAIL(&f->turn->queue, f, turn_link);
    }
    f->turn_waits = TAILQ_FIRST(&f->turn->queue) != f;
    if (f->turn_waits) return sleep_on(w);
    return waited ? STRING_AGAIN : STRING_GO_ON;
}

static void turn_leave(struct string_far *f) {
    struct key_turn *t = f->turn;
    f->turn = NULL;
    if (!t) return;
    bool was_first = TAILQ_FIRST(&t->queue) == f;
    TAILQ_REMOVE(&t->queue, f, turn_link);
    if (TAILQ_EMPTY(&t->queue)) {
        htab_remove(&turns, &t->node);
        free((char *)(uintptr_t)t->key.data);
        free(t);
        if (turns.count == 0) htab_free(&turns);
        turns_ready = turns.count > 0;
    } else if (was_first) {
        wake(TAILQ_FIRST(&t->queue));
    }
}

/* --- claim and session --- */

/* One claim serves the old value and then the new, whose size is not known yet. */
static enum string_flow claim_take(struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    if (!f->claim) {
        uint64_t bytes = w->old.wanted
                             ? w->old.size + remote_window(w->old.size) + remote_window(UINT64_MAX)
                             : remote_window(w->size);
        f->claim = remote_claim_new(bytes, c->id, on_ready, f);
    }
    return remote_claim_granted(f->claim) ? STRING_GO_ON : sleep_on(w);
}

static enum string_flow session_take(struct string_write *w) {
    struct string_far *f = w->far;
    if (!sends_new(w) || f->session.id != 0) return STRING_GO_ON;
    if (f->session.waiting) return sleep_on(w);
    f->session = (struct remote_session){.ready = on_ready, .arg = f};
    return remote_session_take(&f->session) ? STRING_GO_ON : sleep_on(w);
}

static bool too_large(const struct string_write *w) {
    return w->old.wanted && w->old.size > STRING_FETCH_MAX;
}

enum string_flow string_far_ready(struct client *c, struct string_write *w) {
    if (too_large(w)) {
        reply_error(c,
                    "the value has %" PRIu64 " bytes on another machine: up to %" PRIu64
                    " are taken from there to make a new value or to be the answer. Read it with "
                    "GET, write it with SET",
                    w->old.size, STRING_FETCH_MAX);
        return STRING_FAILED;
    }
    enum string_flow flow = turn_take(c, w);
    if (flow == STRING_GO_ON) flow = claim_take(c, w);
    if (flow == STRING_GO_ON) flow = session_take(w);
    return flow;
}

/* --- the old value --- */

bool string_far_knows(const struct string_write *w, uint64_t version) {
    const struct string_far *f = w->far;
    return f && f->version == version && (f->lost || f->fetched == f->old_size);
}

/* The object that the plan saw. */
static struct object *old_object(const struct client *c, const struct string_write *w) {
    struct object *o = store_find(books, c->argv[w->old_arg ? w->old_arg : w->key_arg]);
    return o && store_object_version(o) == w->old.version ? o : NULL;
}

static bool fetch_open(struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    struct object *o = old_object(c, w);
    if (!o) return false;
    struct value_read_options options = {.len = w->old.size,
                                         .only = STORE_SEGMENT_ANY,
                                         .claim = f->claim,
                                         .client = c->id,
                                         .ready = on_ready,
                                         .arg = f};
    f->old = xmalloc(w->old.size);
    f->old_size = w->old.size;
    f->version = w->old.version;
    f->read = value_read_open(o, &options);
    return true;
}

/* As an answer a value that cannot be had is none; nothing can be made of it. */
static enum string_flow fetch_failed(struct client *c, struct string_write *w, tarn_status status) {
    remote_stats.inband_misses++;
    value_read_close(&w->far->read);
    w->far->lost = true;
    if (w->flags & STRING_GET) return STRING_GO_ON;
    reply_later(c, REPLY_LATER_MS, "the value of the key cannot be read: %s",
                tarn_status_text(status));
    return STRING_FAILED;
}

enum string_flow string_far_fetch(struct client *c, struct string_write *w, unsigned *budget) {
    struct string_far *f = w->far;
    struct value_piece piece;
    if (!f->read && !fetch_open(c, w)) return STRING_AGAIN;
    while (f->fetched < f->old_size) {
        if (*budget == 0) return STRING_WAIT;
        tarn_status status = value_read_next(f->read, &piece);
        if (status == TARN_EAGAIN) return sleep_on(w);
        if (status != TARN_OK) return fetch_failed(c, w, status);
        TARN_ASSERT(piece.bytes.len > 0 && piece.bytes.len <= f->old_size - f->fetched);
        memcpy(f->old + f->fetched, piece.bytes.data, piece.bytes.len);
        f->fetched += piece.bytes.len;
        spend(budget, piece.bytes.len / STRING_BYTES_PER_UNIT + 1);
        value_read_give_back(piece.token);
    }
    value_read_close(&f->read);
    return STRING_GO_ON;
}

/* --- the new value --- */

struct store_put_options string_far_options(const struct string_write *w, uint64_t wall_ms,
                                            struct span avoid[STRING_AVOID_MAX]) {
    struct store_put_options options = pool_writer_options(wall_ms);
    pool_writer_prefer(&options);
    if (!w->elsewhere) return options;
    options.local = false;
    size_t n = remote_avoid(avoid);
    if (w->far->avoid[0] != '\0') avoid[n++] = span_str(w->far->avoid);
    options.avoid = avoid;
    options.avoids = n;
    return options;
}

void string_far_open(struct client *c, struct string_write *w, const struct store_put *put) {
    struct string_far *f = w->far;
    bool hurry = f->tries == 0 && store_segment_count(books) > 1;
    f->out = remote_write_open(put, c->argv[w->key_arg], w->size, &f->session, f->claim, hurry,
                               on_ready, f);
}

static enum string_flow host_failed(struct client *c, struct string_write *w, tarn_status status) {
    struct string_far *f = w->far;
    if (f->tries++ == 0) {
        remote_stats.inband_write_retries++;
        return STRING_AGAIN;
    }
    reply_later(c, REPLY_LATER_MS, "the value could not be written to its storage node: %s",
                tarn_status_text(status));
    return STRING_FAILED;
}

enum string_flow string_far_sent(struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    struct store_segment_info info;
    tarn_status status = remote_write_status(f->out);
    if (status == TARN_OK) return STRING_GO_ON;
    if (status == TARN_EAGAIN) return sleep_on(w);
    if (store_segment_get(books, remote_write_segment(f->out), &info))
        snprintf(f->avoid, sizeof(f->avoid), "%s", info.name);
    remote_write_abort(&f->out);
    return host_failed(c, w, status);
}

enum string_flow string_far_end(struct client *c, struct string_write *w, tarn_status *status_p) {
    *status_p = remote_write_end(&w->far->out);
    return *status_p == TARN_EIO ? host_failed(c, w, TARN_EIO)
                                 : STRING_GO_ON; /* its segment left meanwhile */
}

/* --- life --- */

struct string_far *string_far_get(struct string_write *w) {
    TARN_ASSERT(w->owner);
    if (!w->far) {
        w->far = xcalloc(1, sizeof(*w->far));
        w->far->write = w;
    }
    return w->far;
}

void string_far_reset(struct string_write *w) {
    if (!w->far) return;
    remote_write_abort(&w->far->out);
    /* what was opened in it is over, or has taken it over */
    remote_session_give(&w->far->session, true);
}

void string_far_forget_old(struct string_write *w) {
    struct string_far *f = w->far;
    if (!f) return;
    value_read_close(&f->read);
    remote_claim_unref(&f->claim);
    free(f->old);
    f->old = NULL;
    f->version = f->old_size = f->fetched = 0;
    f->lost = false;
}

void string_far_free(struct string_write *w) {
    string_far_reset(w);
    string_far_forget_old(w);
    if (w->far) turn_leave(w->far);
    free(w->far);
    w->far = NULL;
}
