#include "engine.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zmq.h>

#include "base/assert.h"
#include "base/clock.h"
#include "kvevents/sequence.h"

static void socket_set(void *socket, int option, int value) {
    TARN_ASSERT(zmq_setsockopt(socket, option, &value, sizeof(value)) == 0);
}

/* On a free port, or on the one that it had: of an address of this process alone, so that no other
 * takes the port while nobody is there, or connects to whom it has not meant. */
static void *socket_bind(struct engine *e, int type, char endpoint[64]) {
    unsigned pid = (unsigned)getpid();
    char any[64];
    snprintf(any, sizeof(any), "tcp://127.%u.%u.%u:*", 1 + pid / 65536 % 200, pid / 256 % 256,
             pid % 256);
    void *s = zmq_socket(e->context, type);
    TARN_ASSERT(s != NULL);
    socket_set(s, ZMQ_LINGER, 0);
    /* Who is slow misses batches, but has replays whole. */
    socket_set(s, ZMQ_SNDHWM, type == ZMQ_ROUTER ? 0 : 64);
    size_t len = 64;
    while (zmq_bind(s, endpoint[0] != '\0' ? endpoint : any) != 0) {
        TARN_ASSERT(zmq_errno() == EADDRINUSE); /* of a moment ago */
        zmq_poll(NULL, 0, 1);
    }
    TARN_ASSERT(zmq_getsockopt(s, ZMQ_LAST_ENDPOINT, endpoint, &len) == 0);
    return s;
}

static void engine_open(struct engine *e) {
    e->context = zmq_ctx_new();
    e->pub = socket_bind(e, ZMQ_XPUB, e->endpoint);
    e->router = socket_bind(e, ZMQ_ROUTER, e->replay);
    e->subscribers = 0;
}

void engine_start(struct engine *e, enum engine_replay how) {
    memset(e, 0, sizeof(*e));
    e->how = how;
    e->life = 1;
    engine_open(e);
}

void engine_stop(struct engine *e) {
    zmq_close(e->pub);
    zmq_close(e->router);
    zmq_ctx_term(e->context);
}

void engine_again(struct engine *e, bool anew) {
    if (anew) {
        e->life++;
        e->first = e->next = 0;
    }
    engine_open(e);
}

void engine_free(struct engine *e) {
    engine_stop(e);
    for (int i = 0; i < ENGINE_KEPT; i++) buf_free(&e->batch[i]);
}

/* --- batches --- */

static struct buf *batch_next(struct engine *e) {
    struct buf *b = &e->batch[e->next++ % ENGINE_KEPT];
    if (e->next - e->first > ENGINE_KEPT) e->first = e->next - ENGINE_KEPT;
    buf_clear(b);
    return b;
}

uint64_t engine_make_long(struct engine *e, size_t bytes) {
    static const uint32_t tokens[4] = {1, 2, 3, 4};
    struct buf *b = batch_next(e);
    uint64_t number = e->next - 1, block = BLOCK_OF(e, number);
    pack_array(b, bytes > 0 ? 4 : 3);
    pack_float(b, 1.5), pack_array(b, 1);
    pack_stored(b, NULL, &block, 1, tokens, 4);
    pack_uint(b, 0);
    if (bytes == 0) return number;
    char *pad = xcalloc(1, bytes);
    pack_bin(b, pad, bytes);
    free(pad);
    return number;
}

uint64_t engine_make(struct engine *e) {
    return engine_make_long(e, 0);
}

uint64_t engine_make_blocks(struct engine *e, size_t n) {
    struct buf *b = batch_next(e);
    uint64_t *block = xcalloc(n, sizeof(*block));
    uint32_t *token = xcalloc(n, 4 * sizeof(*token));
    for (size_t i = 0; i < n; i++) block[i] = BLOCK_OF(e, e->next - 1) + i;
    pack_batch(b, 1.5, 1, false);
    pack_stored(b, NULL, block, n, token, 4);
    free(block);
    free(token);
    return e->next - 1;
}

uint64_t engine_make_cleared(struct engine *e) {
    struct buf *b = batch_next(e);
    pack_batch(b, 1.5, 1, false);
    pack_cleared(b);
    return e->next - 1;
}

uint64_t engine_make_garbage(struct engine *e) {
    buf_append_str(batch_next(e), "what is this?");
    return e->next - 1;
}

static void frame_say(void *socket, const void *data, size_t len, bool more) {
    zmq_send(socket, data, len, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
}

static void batch_say(void *socket, const struct buf *b, uint64_t number) {
    uint64_t wire = htobe64(number);
    frame_say(socket, &wire, sizeof(wire), true);
    frame_say(socket, b->data, b->len, false);
}

void engine_say(struct engine *e, uint64_t kept, uint64_t number) {
    frame_say(e->pub, "kv@engine", 9, true);
    batch_say(e->pub, &e->batch[kept % ENGINE_KEPT], number);
}

uint64_t engine_publish(struct engine *e) {
    uint64_t number = engine_make(e);
    engine_say(e, number, number);
    return number;
}

void engine_greet(struct engine *e) {
    frame_say(e->pub, "kv@", 3, false);
}

/* --- replays --- */

static void answer_head(struct engine *e, const void *who, size_t who_len) {
    frame_say(e->router, who, who_len, true);
    if (e->how != REPLAY_BARE) frame_say(e->router, "", 0, true);
    if (e->how == REPLAY_THREE) frame_say(e->router, "kv@engine", 9, true);
}

/* Room enough for all of it: the test's thread does not wait. */
static void engine_answer(struct engine *e, const void *who, size_t who_len, uint64_t from) {
    struct buf none = {0};
    e->asked++;
    e->asked_from = from;
    if (e->how == REPLAY_MUTE) return;
    if (e->how == REPLAY_ODD) {
        answer_head(e, who, who_len);
        frame_say(e->router, "odd", 3, false);
        return;
    }
    if (e->how == REPLAY_OTHERS) from = 0;
    uint64_t begin = from > e->first ? from : e->first;
    for (uint64_t i = begin; i < e->next; i++) {
        if (e->how == REPLAY_CUT && i >= begin + 200 && i + 1 < e->next) continue;
        uint64_t number = e->how == REPLAY_BACK ? from : i;
        answer_head(e, who, who_len);
        batch_say(e->router, &e->batch[i % ENGINE_KEPT], number);
    }
    if (e->how == REPLAY_ENDLESS) return;
    answer_head(e, who, who_len);
    if (e->how == REPLAY_OLDEST)
        frame_say(e->router, "", 0, false);
    else
        batch_say(e->router, &none, SEQUENCE_END);
}

void engine_pump(struct engine *e) {
    char who[256], frame[256];
    int len;
    while ((len = zmq_recv(e->pub, frame, sizeof(frame), ZMQ_DONTWAIT)) > 0)
        e->subscribers += frame[0] == 1 ? 1 : -1;
    while ((len = zmq_recv(e->router, who, sizeof(who), ZMQ_DONTWAIT)) >= 0) {
        uint64_t from;
        /* what vLLM insists on: who, an empty frame, eight bytes */
        TARN_ASSERT(zmq_recv(e->router, frame, sizeof(frame), 0) == 0);
        TARN_ASSERT(zmq_recv(e->router, &from, sizeof(from), 0) == sizeof(from));
        int more;
        size_t more_len = sizeof(more);
        TARN_ASSERT(zmq_getsockopt(e->router, ZMQ_RCVMORE, &more, &more_len) == 0 && more == 0);
        engine_answer(e, who, (size_t)len, be64toh(from));
    }
}

/* --- the other side --- */

static void seen_batch(struct seen *s, const struct kvevents_item *item) {
    TARN_ASSERT(!s->any || item->number == s->expected);
    s->any = true;
    s->expected = item->number + 1;
    s->batches++;
    for (size_t i = 0; i < item->batch->n; i++) {
        const struct kvevents_event *e = &item->batch->events[i];
        s->cleared += e->kind == KVEVENTS_CLEARED;
        s->blocks += e->n;
        if (e->n == 0) continue;
        s->last_block = e->own[e->n - 1];
        TARN_ASSERT(s->life == 0 || s->life == s->last_block / 1000000);
        s->life = s->last_block / 1000000;
    }
}

void seen_take(struct kvevents_follow *f, struct seen *seen, size_t n) {
    struct kvevents_item item;
    while (kvevents_follow_take(f, &item)) {
        struct seen *s = seen;
        while (s < seen + n && s->id != item.id) s++;
        TARN_ASSERT(s < seen + n);
        if (item.batch == NULL) {
            s->lost++;
            s->any = false;
            s->batches = 0;
            s->blocks = 0;
            s->life = 0;
            snprintf(s->why, sizeof(s->why), "%s", item.why);
            continue;
        }
        seen_batch(s, &item);
        kvevents_batch_destroy(&item.batch);
    }
}

struct kvevents_follow *follow_start(struct kvevents_follow_config *c) {
    struct kvevents_follow_config config;
    struct kvevents_follow *f = NULL;
    if (c == NULL) {
        c = &config;
        kvevents_follow_defaults(c);
        c->replay_pause_ms = 1;
        c->verify_ms = 30;
        c->reconnect_max_ms = 20;
    }
    TARN_ASSERT(kvevents_follow_create(c, &f) == TARN_OK);
    return f;
}

uint32_t follow_engine(struct kvevents_follow *f, const struct engine *e, bool replay) {
    struct kvevents_source source = {.endpoint = e->endpoint, .replay = replay ? e->replay : NULL};
    uint32_t id;
    TARN_ASSERT(kvevents_follow_add(f, &source, &id) == TARN_OK);
    return id;
}

struct kvevents_info follow_info(struct kvevents_follow *f, uint32_t id) {
    struct kvevents_info info;
    TARN_ASSERT(kvevents_follow_info(f, id, &info));
    return info;
}

/* One greeting at a time, so that they do not fill the queue: the one before is lost. */
#define GREETING_MS 50

bool follow_heard(struct engine *e, const struct kvevents_info *i, uint64_t heard,
                  uint64_t *greeted_ms) {
    bool live = i->connected && i->state == KVEVENTS_LIVE && e->subscribers > 0;
    if (live && i->figures.kvevents_bad_messages > heard) return true;
    if (live && clock_mono_ms() - *greeted_ms >= GREETING_MS) {
        engine_greet(e);
        *greeted_ms = clock_mono_ms();
    }
    return false;
}
