/* What string_write does when bytes of the old or the new value are not in this process' memory:
 * fetching the one, sending the other, with claims on buffers and a session for the write. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "front/cmd.h"
#include "inband/string_write.h"

static void on_far_ready(void *arg) {
    struct string_write *w = arg;
    job_wake(w->owner);
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

/* Those who write to keys elsewhere, by hash of the key, in the order they came. The first of a key
 * has its turn. */
TAILQ_HEAD(turn_list, string_write);
static struct turn_list turns[256];

static struct turn_list *turns_of(const struct string_write *w) {
    struct turn_list *list = &turns[w->far.hash % ARRAY_LEN(turns)];
    if (list->tqh_last == NULL) TAILQ_INIT(list);
    return list;
}

static bool turn_is_taken(const struct string_write *w) {
    const struct string_write *before = w;
    while ((before = TAILQ_PREV(before, turn_list, far.turn_link)) != NULL)
        if (before->far.hash == w->far.hash) return true;
    return false;
}

static enum string_flow turn_take(const struct client *c, struct string_write *w) {
    struct string_far *f = &w->far;
    bool waited = f->turn_waits;
    if (!TAILQ_LINKED(w, far.turn_link)) {
        f->hash = store_hash(c->argv[w->key_arg]);
        TAILQ_INSERT_TAIL(turns_of(w), w, far.turn_link);
    }
    f->turn_waits = turn_is_taken(w);
    if (f->turn_waits) return sleep_on(w);
    return waited ? STRING_AGAIN : STRING_GO_ON;
}

static void turn_leave(struct string_write *w) {
    struct string_write *next = w;
    if (!TAILQ_LINKED(w, far.turn_link)) return;
    do next = TAILQ_NEXT(next, far.turn_link);
    while (next != NULL && next->far.hash != w->far.hash);
    TAILQ_UNLINK(turns_of(w), w, far.turn_link);
    if (next != NULL) job_wake(next->owner);
}

/* --- claim and session --- */

/* One claim serves the old value and then the new, whose size is not known yet. */
static enum string_flow claim_take(struct client *c, struct string_write *w) {
    struct string_far *f = &w->far;
    if (!f->claim) {
        uint64_t bytes = w->old.wanted
                             ? w->old.size + remote_window(w->old.size) + remote_window(UINT64_MAX)
                             : remote_window(w->size);
        f->claim = remote_claim_new(bytes, c->id, on_far_ready, w);
    }
    return remote_claim_granted(f->claim) ? STRING_GO_ON : sleep_on(w);
}

static enum string_flow session_take(struct string_write *w) {
    struct remote_session *s = &w->far.session;
    if (!sends_new(w) || s->id != 0) return STRING_GO_ON;
    if (TAILQ_LINKED(s, link)) return sleep_on(w);
    *s = (struct remote_session){.ready = on_far_ready, .arg = w};
    return remote_session_take(s) ? STRING_GO_ON : sleep_on(w);
}

enum string_flow string_far_ready(struct client *c, struct string_write *w) {
    if (w->old.wanted && w->old.size > STRING_FETCH_MAX) {
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
    const struct string_far *f = &w->far;
    return f->version == version && (f->lost || f->fetched == f->old_size);
}

/* The object that the plan saw. */
static struct object *old_object(const struct client *c, const struct string_write *w) {
    struct object *o = store_find(books, c->argv[w->old_arg ? w->old_arg : w->key_arg]);
    return o && store_object_version(o) == w->old.version ? o : NULL;
}

static bool fetch_open(struct client *c, struct string_write *w) {
    struct string_far *f = &w->far;
    struct object *o = old_object(c, w);
    if (!o) return false;
    struct value_read_options options = {.len = w->old.size,
                                         .only = STORE_SEGMENT_ANY,
                                         .claim = f->claim,
                                         .client = c->id,
                                         .ready = on_far_ready,
                                         .arg = w};
    f->old = xmalloc(w->old.size);
    f->old_size = w->old.size;
    f->version = w->old.version;
    f->read = value_read_open(o, &options);
    return true;
}

/* As an answer a value that cannot be had is none; nothing can be made of it. */
static enum string_flow fetch_failed(struct client *c, struct string_write *w, tarn_status status) {
    remote_stats.inband_misses++;
    value_read_close(&w->far.read);
    w->far.lost = true;
    if (w->flags & STRING_GET) return STRING_GO_ON;
    reply_later(c, REPLY_LATER_MS, "the value of the key cannot be read: %s",
                tarn_status_text(status));
    return STRING_FAILED;
}

enum string_flow string_far_fetch(struct client *c, struct string_write *w, unsigned *budget) {
    struct string_far *f = &w->far;
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

void string_far_options(const struct string_write *w, struct store_put_options *options,
                        struct span avoid[STRING_AVOID_MAX]) {
    size_t n = remote_avoid(avoid);
    if (w->far.avoid[0] != '\0') avoid[n++] = span_str(w->far.avoid);
    options->local = false;
    options->avoid = avoid;
    options->avoids = n;
}

struct value_way string_far_way(struct string_write *w) {
    return (struct value_way){.session = &w->far.session,
                              .claim = w->far.claim,
                              .hurry = w->far.tries == 0 && store_segment_count(books) > 1,
                              .ready = on_far_ready,
                              .arg = w};
}

enum string_flow string_far_failed(struct client *c, struct string_write *w, tarn_status status) {
    if (w->far.tries++ == 0) {
        remote_stats.inband_write_retries++;
        return STRING_AGAIN;
    }
    reply_later(c, REPLY_LATER_MS, "the value could not be written to its storage node: %s",
                tarn_status_text(status));
    return STRING_FAILED;
}

enum string_flow string_far_sent(struct client *c, struct string_write *w) {
    struct store_segment_info info;
    tarn_status status = value_write_status(w->out);
    if (status == TARN_OK) return STRING_GO_ON;
    if (status == TARN_EAGAIN) return sleep_on(w);
    if (store_segment_get(books, value_write_segment(w->out), &info))
        snprintf(w->far.avoid, sizeof(w->far.avoid), "%s", info.name);
    value_write_abort(&w->out);
    return string_far_failed(c, w, status);
}

/* --- life --- */

void string_far_forget_old(struct string_write *w) {
    struct string_far *f = &w->far;
    value_read_close(&f->read);
    remote_claim_unref(&f->claim);
    free(f->old);
    f->old = NULL;
    f->version = f->old_size = f->fetched = 0;
    f->lost = false;
}

void string_far_end(struct string_write *w) {
    string_far_forget_old(w);
    turn_leave(w);
}
