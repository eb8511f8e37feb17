/* What string_write does when bytes of the old or the new value are not in this process' memory: fetching the one, sending the
 * other, with claims on buffers and a session for the write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/htab.h"
#include "cmd/string_write.h"

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

static enum string_flow old_is_lost(struct client *c, tarn_status status) {
    remote_stats.misses++;
    reply_later(c, REPLY_LATER_MS, "the value of the key cannot be read: %s", tarn_status_text(status));
    return STRING_FAILED;
}

/* The object that the plan saw. */
static struct object *old_object(const struct client *c, const struct string_write *w) {
    struct object *o = store_find(server.store, c->argv[w->old_arg ? w->old_arg : w->key_arg]);
    return o && store_object_version(o) == (w->old_arg ? w->old_version : w->base_version) ? o : NULL;
}

/* --- what a plan needs ----------------------------------------------------------------------------------------------------------- */

static bool streams_old(const struct string_write *w) {
    return w->old_far;
}

/* The new value gets space that may be on another machine. */
static bool sends_new(const struct string_write *w) {
    return w->elsewhere && !w->only_old && !(w->flags & STRING_SINK) && w->size > STORE_INLINE_MAX;
}

bool string_far_needed(const struct string_write *w) {
    return w->wants_text || w->only_old || streams_old(w) || sends_new(w);
}

/* --- turns ------------------------------------------------------------------------------------------------------------------------- */

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

enum string_flow string_far_turn(const struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    if (!sends_new(w)) return STRING_GO_ON;
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

/* --- claim and session ---------------------------------------------------------------------------------------------------------------- */

enum string_flow string_far_claim(struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    uint64_t bytes =
        (streams_old(w) ? remote_window(w->old_size) : 0) + (sends_new(w) ? remote_window(w->size) : 0);
    if (!f->claim) {
        if (bytes == 0) return STRING_GO_ON;
        f->claim = remote_claim_new(bytes, c->id, on_ready, f);
    }
    return remote_claim_granted(f->claim) ? STRING_GO_ON : sleep_on(w);
}

enum string_flow string_far_session(struct string_write *w) {
    struct string_far *f = w->far;
    if (!sends_new(w) || f->session.id != 0) return STRING_GO_ON;
    if (f->session.waiting) return sleep_on(w);
    f->session = (struct remote_session){.ready = on_ready, .arg = f};
    return remote_session_take(&f->session) ? STRING_GO_ON : sleep_on(w);
}

/* --- the old value ----------------------------------------------------------------------------------------------------------------- */

static void read_old(const struct client *c, struct string_write *w, struct object *o, uint64_t from,
                     uint64_t len) {
    struct string_far *f = w->far;
    struct value_read_options options = {.from = from,
                                         .len = len,
                                         .only = STORE_SEGMENT_ANY,
                                         .claim = f->claim,
                                         .client = c->id,
                                         .ready = on_ready,
                                         .arg = f};
    f->read = value_read_open(o, &options);
}

enum string_flow string_far_text(struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    struct value_piece piece;
    if (!f->read) {
        struct object *o = old_object(c, w);
        if (!o) return STRING_AGAIN;
        read_old(c, w, o, w->text_from, w->text_len);
        f->text_len = f->text_version = 0;
    }
    while (f->text_len < w->text_len) { /* what lies across the border of two blocks comes in two */
        tarn_status status = value_read_next(f->read, &piece);
        if (status == TARN_EAGAIN) return sleep_on(w);
        if (status != TARN_OK) return old_is_lost(c, status);
        TARN_ASSERT(piece.bytes.len > 0 && piece.bytes.len <= w->text_len - f->text_len);
        memcpy(f->text + f->text_len, piece.bytes.data, piece.bytes.len);
        f->text_len += piece.bytes.len;
        value_read_give_back(piece.token);
    }
    f->text_from = w->text_from;
    f->text_version = w->base_version;
    return STRING_GO_ON;
}

/* The old value is the answer once the new one is in place; so it has to be certain before that it can be had. */
enum string_flow string_far_probe(struct client *c, struct string_write *w) {
    struct string_far *f = w->far;
    if (!w->old_far || !(w->flags & STRING_GET)) return STRING_GO_ON;
    if (!f->reply.read) {
        struct object *o = old_object(c, w);
        if (!o) return STRING_AGAIN;
        value_reply_open(c, &f->reply, o, 0, w->old_size, f->claim, w->owner);
    }
    if (!value_reply_known(&f->reply)) return sleep_on(w);
    f->probed = true;
    return STRING_GO_ON;
}

enum string_flow string_far_reply(struct client *c, struct string_write *w) {
    switch (value_reply_step(c, &w->far->reply)) {
    case VALUE_REPLY_MISS: reply_null(c); return STRING_GO_ON;
    case VALUE_REPLY_DONE: return STRING_GO_ON;
    case VALUE_REPLY_WAIT:
    case VALUE_REPLY_BROKEN: break;
    }
    return sleep_on(w);
}

static void drop_piece(struct string_far *f) {
    if (f->piece.token) value_read_give_back(f->piece.token);
    f->piece = (struct value_piece){.bytes = span_of(NULL, 0)};
    f->piece_at = 0;
}

enum string_flow string_far_old(struct client *c, struct string_write *w, struct span *bytes_p) {
    struct string_far *f = w->far;
    const struct string_part *p = &w->part[w->part_at];
    if (!f->read || f->read_part != w->part_at) {
        struct object *o = old_object(c, w);
        if (!o) return STRING_AGAIN;
        value_read_close(&f->read);
        read_old(c, w, o, p->offset, p->len);
        f->read_part = w->part_at;
    }
    if (!f->piece.token) {
        tarn_status status = value_read_next(f->read, &f->piece);
        if (status == TARN_EAGAIN) return sleep_on(w);
        if (status != TARN_OK) return old_is_lost(c, status);
        TARN_ASSERT(f->piece.token);
    }
    *bytes_p = span_of(f->piece.bytes.data + f->piece_at, f->piece.bytes.len - f->piece_at);
    return STRING_GO_ON;
}

void string_far_old_used(struct string_write *w, size_t n) {
    struct string_far *f = w->far;
    f->piece_at += n;
    if (f->piece_at == f->piece.bytes.len) drop_piece(f);
}

/* --- the new value ------------------------------------------------------------------------------------------------------------------ */

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
    bool hurry = f->tries == 0 && store_segment_count(server.store) > 1;
    f->out = remote_write_open(put, c->argv[w->key_arg], w->size, &f->session, f->claim, hurry, on_ready, f);
}

static enum string_flow host_failed(struct client *c, struct string_write *w, tarn_status status) {
    struct string_far *f = w->far;
    if (f->tries++ == 0) {
        remote_stats.write_retries++;
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
    if (store_segment_get(server.store, remote_write_segment(f->out), &info))
        snprintf(f->avoid, sizeof(f->avoid), "%s", info.name);
    remote_write_abort(&f->out);
    return host_failed(c, w, status);
}

enum string_flow string_far_end(struct client *c, struct string_write *w, tarn_status *status_p) {
    *status_p = remote_write_end(&w->far->out);
    return *status_p == TARN_EIO ? host_failed(c, w, TARN_EIO)
                                 : STRING_GO_ON; /* its segment left meanwhile */
}

/* --- life --------------------------------------------------------------------------------------------------------------------------- */

struct string_far *string_far_get(struct string_write *w) {
    TARN_ASSERT(w->owner);
    if (!w->far) {
        w->far = xcalloc(1, sizeof(*w->far));
        w->far->write = w;
    }
    return w->far;
}

void string_far_reset(struct string_write *w) {
    struct string_far *f = w->far;
    if (!f) return;
    drop_piece(f);
    value_read_close(&f->read);
    value_reply_close(&f->reply);
    remote_write_abort(&f->out);
    remote_session_give(&f->session, true); /* what was opened in it is over, or has taken it over */
    remote_claim_unref(&f->claim);
    f->probed = false;
}

void string_far_free(struct string_write *w) {
    string_far_reset(w);
    if (w->far) turn_leave(w->far);
    free(w->far);
    w->far = NULL;
}
