#include "inband/value_reply.h"

#include <inttypes.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/client.h"
#include "front/reply.h"

static void on_piece_ready(void *arg) {
    struct value_reply *v = arg;
    job_wake(v->job);
}

void value_reply_open(struct client *c, struct value_reply *v, struct object *o, uint64_t from,
                      uint64_t len, struct remote_claim *claim, struct job *job) {
    struct value_read_options options = {.from = from,
                                         .len = len,
                                         .only = STORE_SEGMENT_ANY,
                                         .claim = claim,
                                         .client = c->id,
                                         .ready = on_piece_ready,
                                         .arg = v};
    *v = (struct value_reply){.job = job, .len = len};
    v->read = value_read_open(o, &options);
}

static enum value_reply_state reply_failed(struct client *c, const struct value_reply *v,
                                           tarn_status status) {
    if (!v->begun) {
        remote_stats.inband_misses++;
        log_verbose("A value of %" PRIu64 " bytes is a miss: %s", v->len, tarn_status_text(status));
        return VALUE_REPLY_MISS;
    }
    char peer[80];
    client_peer(c, peer, sizeof(peer));
    log_warning("Client id=%llu addr=%s closed: a value of %" PRIu64
                " bytes broke off after %" PRIu64 ", no replica gives the rest: %s",
                (unsigned long long)c->id, peer, v->len, v->sent, tarn_status_text(status));
    remote_stats.inband_broken++;
    client_close_soon(c);
    return VALUE_REPLY_BROKEN;
}

enum value_reply_state value_reply_step(struct client *c, struct value_reply *v) {
    for (;;) {
        struct value_piece piece;
        if (c->io->flags & CLIENT_CLOSE_SOON) return VALUE_REPLY_BROKEN;
        tarn_status status = value_read_next(v->read, &piece);
        if (status == TARN_EAGAIN) return VALUE_REPLY_WAIT;
        if (status != TARN_OK) return reply_failed(c, v, status);
        if (!v->begun) reply_bulk_header(c, v->len);
        v->begun = true;
        if (piece.bytes.len == 0) break;
        v->sent += piece.bytes.len;
        reply_lent(c, piece.bytes, value_read_give_back, piece.token);
    }
    TARN_ASSERT(v->sent == v->len);
    reply_raw(c, "\r\n", 2);
    return VALUE_REPLY_DONE;
}

bool value_reply_known(struct value_reply *v) {
    return value_read_peek(v->read) != TARN_EAGAIN;
}

void value_reply_close(struct value_reply *v) {
    value_read_close(&v->read);
}
