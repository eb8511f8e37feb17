/* The life of a stream:
 *
 *     CONNECTING --connected--> REPLAYING --its end--> LIVE --gap, or quiet--> REPLAYING
 *          ^                                             |
 *          +----------------- disconnected --------------+
 *
 * without a replay endpoint CONNECTING and LIVE alone. While it is REPLAYING nothing is read from
 * SUB, but for the message that showed the gap, which is held; libzmq and the publisher keep the
 * rest. A replay that fails is tried again, and in the end the held message is where the stream
 * goes on from, and the engine is not asked for a while.
 *
 * Each connection has a socket of its own: where libzmq itself connects again, the messages of two
 * lives of an engine follow each other without a mark. What is known is of the life before, unless
 * a replay proves that it is the same; so without a replay a new connection is a loss.
 *
 * A replay connects later than SUB did, and may reach a later life. One that began with no batch
 * that was known leaves that in doubt, until a message of SUB is found among a replay's batches. */
#include "kvevents/stream.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "kvevents/frames.h"

#define MESSAGES_A_TURN 64
#define SETTLE_MS       1000 /* after a connection: subscribing takes a moment */

static void why_print(char why[KVEVENTS_WHY], const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void why_print(char why[KVEVENTS_WHY], const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(why, KVEVENTS_WHY, format, ap);
    va_end(ap);
}

/* --- sockets --- */

static bool socket_number(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof(value)) == 0;
}

/* Of either kind. */
static bool socket_bound(void *socket, const struct kvevents_follow_config *c) {
    int64_t message_max = (int64_t)c->message_max_bytes;
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &message_max, sizeof(message_max)) == 0 &&
           socket_number(socket, ZMQ_RCVHWM, KVEVENTS_HWM) &&
           socket_number(socket, ZMQ_LINGER, 0) && socket_number(socket, ZMQ_IPV6, 1) &&
           socket_number(socket, ZMQ_RECONNECT_IVL, -1) &&
           /* a machine that is gone without a word */
           socket_number(socket, ZMQ_HEARTBEAT_IVL, 5000) &&
           socket_number(socket, ZMQ_HEARTBEAT_TIMEOUT, 15000);
}

static bool stream_monitor(struct kvevents_stream *s) {
    char name[48];
    snprintf(name, sizeof(name), "inproc://connection-%u-%u", s->id, s->subscribed++);
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;
    if (zmq_socket_monitor(s->sub, name, events) != 0) return false;
    s->monitor = zmq_socket(follow_context(s->follow), ZMQ_PAIR);
    return s->monitor != NULL && zmq_connect(s->monitor, name) == 0;
}

static bool stream_subscribe(struct kvevents_stream *s) {
    s->sub = zmq_socket(follow_context(s->follow), ZMQ_SUB);
    return s->sub != NULL && socket_bound(s->sub, follow_config(s->follow)) &&
           zmq_setsockopt(s->sub, ZMQ_SUBSCRIBE, s->topic, strlen(s->topic)) == 0 &&
           stream_monitor(s) && zmq_connect(s->sub, s->endpoint) == 0;
}

static void stream_unsubscribe(struct kvevents_stream *s) {
    if (s->sub != NULL) zmq_socket_monitor(s->sub, NULL, 0);
    if (s->monitor != NULL) zmq_close(s->monitor);
    if (s->sub != NULL) zmq_close(s->sub);
    s->monitor = s->sub = NULL;
}

/* The next try to connect. */
static void stream_remake_later(struct kvevents_stream *s, uint64_t now_ms) {
    uint64_t most = follow_config(s->follow)->reconnect_max_ms;
    s->pause_ms = s->pause_ms == 0 ? max_u64(most / 10, 1) : min_u64(2 * s->pause_ms, most);
    s->remake_ms = now_ms + s->pause_ms;
}

/* inproc has no connections that a monitor tells of, and no engine on the other side. libzmq looks
 * at hosts and ports only when it connects, and says nothing then. */
bool kvevents_endpoint_valid(const char *endpoint) {
    struct span e = span_str(endpoint), host;
    uint16_t port;
    if (e.len >= KVEVENTS_ENDPOINT) return false;
    if (span_starts(e, SPAN("ipc://"))) return e.len > 6;
    if (!span_starts(e, SPAN("tcp://"))) return false;
    struct span address = span_of(e.data + 6, e.len - 6);
    return span_to_address(address, &host, &port) && port != 0 && !span_eq(host, SPAN("*"));
}

struct kvevents_stream *stream_create(struct kvevents_follow *f, uint32_t id,
                                      const struct kvevents_source *source, tarn_status *rc_p) {
    bool has_replay = source->replay != NULL && source->replay[0] != '\0';
    if (!kvevents_endpoint_valid(source->endpoint) ||
        (has_replay && !kvevents_endpoint_valid(source->replay)) ||
        (source->topic != NULL && strlen(source->topic) >= KVEVENTS_ENDPOINT)) {
        *rc_p = TARN_EINVAL;
        return NULL;
    }
    struct kvevents_stream *s = xcalloc(1, sizeof(*s));
    s->id = id;
    s->follow = f;
    s->endpoint = xstrdup(source->endpoint);
    s->replay = has_replay ? xstrdup(source->replay) : NULL;
    s->topic = xstrdup(source->topic != NULL ? source->topic : "");
    STAILQ_INIT(&s->items);
    stream_remake_later(s, clock_mono_ms());
    if (stream_subscribe(s)) return s;
    /* What is wrong with the endpoint shows last. */
    *rc_p = s->monitor != NULL && zmq_errno() == EINVAL ? TARN_EINVAL : TARN_ELIMIT;
    stream_destroy(&s);
    return NULL;
}

static void replay_close(struct kvevents_stream *s) {
    if (s->dealer != NULL) zmq_close(s->dealer);
    s->dealer = NULL;
    s->ask_ms = 0;
}

static void held_drop(struct kvevents_stream *s) {
    s->held = false;
    free(s->held_batch);
    s->held_batch = NULL;
}

void stream_destroy(struct kvevents_stream **s_p) {
    struct kvevents_stream *s = *s_p;
    *s_p = NULL;
    TARN_ASSERT(STAILQ_EMPTY(&s->items));
    stream_unsubscribe(s);
    replay_close(s);
    held_drop(s);
    free(s->endpoint);
    free(s->replay);
    free(s->topic);
    free(s);
}

/* --- what is known, and what is lost --- */

static uint64_t batch_print(struct span payload) {
    return XXH3_64bits(payload.data, payload.len);
}

static void stream_partial(struct kvevents_stream *s, const char *why) {
    s->sequence.whole = false;
    if (why != s->info.why_partial) why_print(s->info.why_partial, "%s", why);
}

static void stream_lose(struct kvevents_stream *s, const char *why) {
    stream_partial(s, why);
    if (!s->handed_over) return;
    s->handed_over = false;
    s->info.figures.kvevents_lost++;
    follow_lost(s, s->info.why_partial);
}

static void stream_restarted(struct kvevents_stream *s, const char *why) {
    s->info.figures.kvevents_restarts++;
    stream_lose(s, why);
    sequence_forget(&s->sequence);
    s->unproven = s->doubted = false;
}

/* What is known may be of another life of the engine. */
static void stream_unproven(struct kvevents_stream *s, const char *why) {
    if (!s->unproven) return;
    s->unproven = false;
    stream_lose(s, why);
    sequence_forget(&s->sequence);
}

static void batch_count(struct kvevents_stream *s, uint64_t number,
                        const struct kvevents_batch *b) {
    struct kvevents_figures *figures = &s->info.figures;
    figures->kvevents_batches++;
    figures->kvevents_events += b->n;
    figures->kvevents_blocks += b->blocks;
    figures->kvevents_unknown += b->unknown;
    figures->kvevents_left_out += b->left_out;
    if (b->left_out > 0)
        why_print(s->info.why_left_out, "batch %llu: %s", (unsigned long long)number,
                  b->why_left_out);
    /* Who has nothing any more has nothing that is not known. */
    for (size_t i = 0; i < b->n; i++)
        if (b->events[i].kind == KVEVENTS_CLEARED) s->sequence.whole = true;
}

/* Wherever it belongs: what it does not follow upon is lost already. */
static void stream_apply(struct kvevents_stream *s, uint64_t number, struct span payload) {
    struct kvevents_batch *b;
    const char *why;
    sequence_apply(&s->sequence, number, batch_print(payload));
    if (follow_decode(s, payload, &b, &why) != TARN_OK) {
        s->info.figures.kvevents_decode_errors++;
        why_print(s->info.why_decode, "batch %llu: %s", (unsigned long long)number, why);
        stream_lose(s, s->info.why_decode);
        return;
    }
    batch_count(s, number, b);
    s->handed_over = true;
    if (s->sequence.whole) s->info.why_partial[0] = '\0';
    follow_hand_over(s, number, b);
}

/* After a number that nothing leads to. */
static void stream_jump(struct kvevents_stream *s, uint64_t number, const char *why) {
    char text[KVEVENTS_WHY];
    unsigned long long at = number, last = s->sequence.last;
    if (s->sequence.begun && number - last > 1)
        why_print(text, "batches %llu to %llu are missing: %s", last + 1, at - 1, why);
    else
        why_print(text, "nothing is known of what was before batch %llu: %s", at, why);
    stream_lose(s, text);
}

/* --- replays --- */

/* One is due; what was under way is given up. */
static void replay_begin(struct kvevents_stream *s, uint64_t now_ms) {
    uint64_t pause = follow_config(s->follow)->replay_pause_ms;
    replay_close(s);
    s->info.state = KVEVENTS_REPLAYING;
    s->tries = 0;
    s->verify_ms = 0;
    s->ask_ms = s->asked_ms != 0 ? max_u64(now_ms, s->asked_ms + pause) : now_ms;
}

/* What a replay brought may be of a later life than this message of SUB. */
static bool stream_doubts(const struct kvevents_stream *s, uint64_t number) {
    return s->doubted && s->sequence.begun && number > s->sequence.last;
}

/* Over: the message that waited for it, and then live. */
static void replay_over(struct kvevents_stream *s, uint64_t now_ms, const char *why) {
    replay_close(s);
    s->info.state = KVEVENTS_LIVE;
    s->asked_ms = now_ms;
    if (s->settles) s->verify_ms = now_ms + min_u64(SETTLE_MS, follow_config(s->follow)->verify_ms);
    s->settles = false;
    if (s->held && stream_doubts(s, s->held_number)) { /* it stands alone */
        stream_lose(s, why);
        sequence_forget(&s->sequence);
    }
    s->doubted = s->doubted && s->sequence.begun;
    if (!s->held) return;
    struct span payload = span_of(s->held_batch, s->held_len);
    switch (sequence_place(&s->sequence, s->held_number)) {
    case SEQUENCE_GAP: stream_jump(s, s->held_number, why); /* fallthrough */
    case SEQUENCE_NEXT: stream_apply(s, s->held_number, payload); break;
    case SEQUENCE_KNOWN: s->info.figures.kvevents_known++; break;
    }
    held_drop(s);
}

static void replay_failed(struct kvevents_stream *s, uint64_t now_ms, const char *why) {
    const struct kvevents_follow_config *c = follow_config(s->follow);
    replay_close(s);
    s->info.figures.kvevents_replay_errors++;
    why_print(s->info.why_replay, "%s", why);
    if (++s->tries < c->replay_tries) {
        s->ask_ms = now_ms + ((uint64_t)c->replay_pause_ms << min_u64(s->tries, 10));
        return;
    }
    s->broken_ms = now_ms + c->broken_ms;
    /* Of the same connection what is known stays: what is missing, the next number tells. */
    stream_unproven(s, why);
    if (!s->sequence.begun && !s->sequence.whole) stream_partial(s, why);
    replay_over(s, now_ms, why);
    s->verify_ms = s->broken_ms;
}

static void replay_ask(struct kvevents_stream *s, uint64_t now_ms) {
    const struct kvevents_follow_config *c = follow_config(s->follow);
    s->ask_ms = 0;
    s->proving = s->sequence.begun;
    s->asked_last = s->sequence.begun ? s->sequence.last : 0;
    if (!s->proving) s->doubted = true;
    s->answered = false;
    s->patience_ms = now_ms + c->replay_timeout_ms;
    s->info.figures.kvevents_replays++;
    s->dealer = zmq_socket(follow_context(s->follow), ZMQ_DEALER);
    if (s->dealer == NULL || !socket_bound(s->dealer, c) ||
        zmq_connect(s->dealer, s->replay) != 0 ||
        frames_ask(s->dealer, s->proving ? s->sequence.last : 0) != 0) {
        char why[KVEVENTS_WHY];
        why_print(why, "a replay cannot be asked for: %s", zmq_strerror(zmq_errno()));
        replay_failed(s, now_ms, why);
    }
}

/* What was known is of an earlier life, and so may be what waits in the socket and is held: it is
 * followed from a new connection on. */
static void replay_restarted(struct kvevents_stream *s, uint64_t now_ms, const char *why) {
    stream_restarted(s, why);
    s->sequence.wire_seen = false;
    replay_close(s);
    held_drop(s);
    s->info.state = KVEVENTS_CONNECTING;
    s->info.connected = false;
    s->remake_ms = now_ms;
}

/* A hole in the midst of a replay: the engine's socket drops what is too far ahead of who reads,
 * and still has it. It is asked for the rest, as long as each answer brings something. */
static bool replay_goes_on(struct kvevents_stream *s, uint64_t now_ms) {
    if (!s->sequence.begun || s->sequence.last < s->asked_last + KVEVENTS_HWM) return false;
    replay_close(s);
    s->tries = 0;
    s->ask_ms = now_ms;
    return true;
}

static void replay_batch(struct kvevents_stream *s, uint64_t now_ms, uint64_t number,
                         struct span payload) {
    bool first = !s->answered, proves = s->proving && first;
    s->answered = true;
    s->forgetful = false;
    if (proves) {
        switch (sequence_prove(&s->sequence, number, batch_print(payload))) {
        case SEQUENCE_SAME: s->unproven = false; return;
        case SEQUENCE_ANOTHER:
            replay_restarted(s, now_ms, "the engine has started anew: other batches");
            return;
        case SEQUENCE_EARLIER:
            replay_failed(s, now_ms, "a replay begins before what was asked for");
            return;
        case SEQUENCE_LATER: /* the next one would fit, but perhaps of another life */
            stream_jump(s, number, "the engine keeps no more");
            sequence_forget(&s->sequence);
            s->unproven = false;
            s->doubted = true;
            break;
        }
    } else {
        switch (sequence_place(&s->sequence, number)) {
        case SEQUENCE_NEXT: break;
        case SEQUENCE_KNOWN: replay_failed(s, now_ms, "a replay goes back"); return;
        case SEQUENCE_GAP:
            if (!first && replay_goes_on(s, now_ms)) return;
            stream_jump(s, number, "the engine keeps no more");
            break;
        }
    }
    if (s->doubted && s->held && number == s->held_number) {
        if (batch_print(payload) != batch_print(span_of(s->held_batch, s->held_len))) {
            replay_restarted(s, now_ms, "the engine has started anew: another batch was heard");
            return;
        }
        s->doubted = false;
    }
    s->info.figures.kvevents_replayed++;
    stream_apply(s, number, payload);
}

static void replay_end(struct kvevents_stream *s, uint64_t now_ms) {
    bool none = !s->answered; /* from the last one on, or of all */
    if (s->proving && none) {
        s->forgetful = s->forgetful || !s->unproven;
        replay_restarted(s, now_ms, "the engine has started anew: it knows no batch so late");
        return;
    }
    if (s->held && stream_doubts(s, s->held_number)) {
        replay_restarted(s, now_ms,
                         "the engine has started anew: it knows no batch that was heard");
        return;
    }
    if (none && !s->held && !s->forgetful) {
        sequence_none(&s->sequence);
        s->info.why_partial[0] = '\0';
    }
    replay_over(s, now_ms, "a replay did not bring them");
}

static void replay_receive(struct kvevents_stream *s, uint64_t now_ms) {
    struct frames f;
    for (int i = 0; i < MESSAGES_A_TURN && s->dealer != NULL && !follow_full(s); i++) {
        int error = frames_receive(s->dealer, &f);
        if (error == EAGAIN) return;
        if (error != 0) {
            replay_failed(s, now_ms, zmq_strerror(error));
            return;
        }
        uint64_t number;
        struct span payload;
        s->patience_ms = now_ms + follow_config(s->follow)->replay_timeout_ms;
        s->info.figures.kvevents_bytes += f.bytes;
        switch (frames_what(&f, &number, &payload)) {
        case FRAMES_BATCH: replay_batch(s, now_ms, number, payload); break;
        case FRAMES_END: replay_end(s, now_ms); break;
        case FRAMES_BAD: replay_failed(s, now_ms, "a replay of another form"); break;
        }
        frames_close(&f);
    }
}

/* --- live --- */

static bool stream_may_ask(const struct kvevents_stream *s, uint64_t now_ms) {
    return s->replay != NULL && now_ms >= s->broken_ms;
}

static void stream_message(struct kvevents_stream *s, uint64_t now_ms, uint64_t number,
                           struct span payload) {
    struct kvevents_figures *figures = &s->info.figures;
    if (sequence_wire(&s->sequence, number, batch_print(payload)))
        stream_restarted(s, "the engine has started anew: numbers begin again");
    enum sequence_place place = sequence_place(&s->sequence, number);
    if (place == SEQUENCE_GAP) {
        figures->kvevents_gaps++;
        figures->kvevents_missed += number - (s->sequence.begun ? s->sequence.last + 1 : 0);
    }
    /* A replay may be due already: the connection is another. */
    bool waits = s->info.state == KVEVENTS_REPLAYING;
    /* A doubt is worth asking who did not answer well: it is over then, one way or the other. */
    bool asks = stream_doubts(s, number) || (place == SEQUENCE_GAP && stream_may_ask(s, now_ms));
    if (!waits && asks) {
        replay_begin(s, now_ms);
        waits = true;
    }
    if (waits) {
        TARN_ASSERT(!s->held);
        s->held = true;
        s->held_number = number;
        s->held_batch = xmemdup(payload.data, payload.len);
        s->held_len = payload.len;
        return;
    }
    if (place == SEQUENCE_KNOWN) {
        figures->kvevents_known++;
        return;
    }
    if (place == SEQUENCE_GAP)
        stream_jump(s, number,
                    s->replay == NULL ? "the engine has no replay endpoint" : s->info.why_replay);
    stream_apply(s, number, payload);
}

static void stream_remake(struct kvevents_stream *s, uint64_t now_ms) {
    stream_unsubscribe(s);
    if (!stream_subscribe(s)) stream_unsubscribe(s);
    stream_remake_later(s, now_ms);
}

static void stream_connected(struct kvevents_stream *s, uint64_t now_ms) {
    s->info.figures.kvevents_connects++;
    s->remake_ms = s->pause_ms = s->broken_ms = 0;
    s->settles = true;
    s->unproven = s->sequence.begun;
    s->sequence.whole = s->sequence.whole && s->sequence.begun; /* an empty one proves nothing */
    s->doubted = false;
    held_drop(s); /* it is of the connection before */
    if (s->replay != NULL) {
        replay_begin(s, now_ms);
        return;
    }
    s->info.state = KVEVENTS_LIVE;
    stream_unproven(s, "a new connection, and no replay endpoint to prove what is known");
}

/* false: there is nothing, or the sockets are of no use any more. */
static bool stream_take(struct kvevents_stream *s, uint64_t now_ms, void *socket,
                        struct frames *f) {
    int error = frames_receive(socket, f);
    if (error != 0 && error != EAGAIN) {
        s->info.connected = false;
        if (s->remake_ms == 0) stream_remake_later(s, now_ms);
    }
    return error == 0;
}

/* Connections that came and went. */
static void stream_connections(struct kvevents_stream *s, uint64_t now_ms) {
    struct frames f;
    while (s->monitor != NULL && stream_take(s, now_ms, s->monitor, &f)) {
        uint16_t event = 0;
        if (zmq_msg_size(&f.frame[0]) >= sizeof(event))
            memcpy(&event, zmq_msg_data(&f.frame[0]), sizeof(event));
        frames_close(&f);
        if (event != ZMQ_EVENT_HANDSHAKE_SUCCEEDED && event != ZMQ_EVENT_DISCONNECTED) continue;
        s->info.connected = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        if (s->info.connected)
            stream_connected(s, now_ms);
        else
            stream_remake_later(s, now_ms);
    }
}

static void stream_receive(struct kvevents_stream *s, uint64_t now_ms) {
    struct frames f;
    for (int i = 0; i < MESSAGES_A_TURN && s->info.state == KVEVENTS_LIVE; i++) {
        if (follow_full(s) || s->sub == NULL) return;
        if (!stream_take(s, now_ms, s->sub, &f)) return;
        /* It may be the first of a new connection: that is told before. */
        stream_connections(s, now_ms);
        uint64_t number;
        struct span payload;
        s->info.message_ms = now_ms;
        s->info.figures.kvevents_messages++;
        s->info.figures.kvevents_bytes += f.bytes;
        s->verify_ms = now_ms + follow_config(s->follow)->verify_ms;
        if (frames_what(&f, &number, &payload) == FRAMES_BATCH)
            stream_message(s, now_ms, number, payload);
        else
            s->info.figures.kvevents_bad_messages++;
        frames_close(&f);
    }
}

void stream_serve(struct kvevents_stream *s, uint64_t now_ms) {
    stream_connections(s, now_ms);
    if (s->info.state == KVEVENTS_REPLAYING) {
        if (s->ask_ms != 0 && now_ms >= s->ask_ms) replay_ask(s, now_ms);
        if (s->dealer != NULL) replay_receive(s, now_ms);
        /* While nothing is read, the engine is not to blame. */
        bool full = follow_full(s);
        if (full || s->was_full)
            s->patience_ms = now_ms + follow_config(s->follow)->replay_timeout_ms;
        s->was_full = full;
        if (s->dealer != NULL && now_ms >= s->patience_ms)
            replay_failed(s, now_ms, "the engine does not answer at its replay endpoint");
    } else if (s->info.state == KVEVENTS_LIVE) {
        stream_receive(s, now_ms);
    }
    if (s->info.state == KVEVENTS_LIVE && s->verify_ms != 0 && now_ms >= s->verify_ms) {
        s->verify_ms = now_ms < s->broken_ms ? s->broken_ms : 0;
        if (s->info.connected && stream_may_ask(s, now_ms)) replay_begin(s, now_ms);
    }
    if (s->remake_ms != 0 && now_ms >= s->remake_ms) stream_remake(s, now_ms);
}

uint64_t stream_due(const struct kvevents_stream *s) {
    uint64_t due = s->remake_ms != 0 ? s->remake_ms : UINT64_MAX;
    if (s->info.state == KVEVENTS_LIVE && s->verify_ms != 0) due = min_u64(due, s->verify_ms);
    if (s->info.state != KVEVENTS_REPLAYING) return due;
    if (s->ask_ms != 0) return min_u64(due, s->ask_ms);
    return follow_full(s) ? due : min_u64(due, s->patience_ms);
}

void *stream_socket(const struct kvevents_stream *s) {
    if (follow_full(s)) return NULL;
    if (s->info.state == KVEVENTS_REPLAYING) return s->dealer;
    return s->info.state == KVEVENTS_LIVE ? s->sub : NULL;
}

struct kvevents_info stream_info(const struct kvevents_stream *s) {
    struct kvevents_info info = s->info;
    if (!info.connected && info.state == KVEVENTS_LIVE) info.state = KVEVENTS_CONNECTING;
    info.begun = s->sequence.begun;
    info.last = s->sequence.begun ? s->sequence.last : 0;
    info.whole = s->sequence.whole;
    return info;
}
