#include "cmd/location.h"

#include <string.h>
#include "base/assert.h"
#include "cmd/reply.h"

static_assert(LOCATION_TEXT_MAX + 512 <= sizeof(((struct text *)0)->data), "a whole element fits");

static void text_char(struct text *t, char c) {
    *t->at++ = c;
}

static void text_crlf(struct text *t) {
    *t->at++ = '\r';
    *t->at++ = '\n';
}

void text_array(struct text *t, size_t n) {
    text_char(t, '*');
    t->at += u64_to_dec(n, t->at);
    text_crlf(t);
}

void text_int(struct text *t, int64_t v) {
    text_char(t, ':');
    t->at += i64_to_dec(v, t->at);
    text_crlf(t);
}

void text_bulk(struct text *t, const void *data, size_t len) {
    TARN_ASSERT((size_t)(t->data + sizeof(t->data) - t->at) >= len + 32);
    text_char(t, '$');
    t->at += u64_to_dec(len, t->at);
    text_crlf(t);
    if (len) memcpy(t->at, data, len);
    t->at += len;
    text_crlf(t);
}

void text_null(struct text *t, int proto) {
    memcpy(t->at, proto == 3 ? "_\r\n" : "$-1\r\n", proto == 3 ? 3 : 5);
    t->at += proto == 3 ? 3 : 5;
}

void text_send(struct client *c, struct text *t) {
    TARN_ASSERT(t->at <= t->data + sizeof(t->data));
    reply_raw(c, t->data, (size_t)(t->at - t->data));
}

void location_seal(enum grant_op op, uint64_t session, uint64_t expiry_ms, const struct grant_extent *e,
                   uint8_t out[GRANT_SIZE]) {
    struct grant g = {
        .op = op, .master_epoch = server.master_epoch, .session = session, .expiry_ms = expiry_ms};
    grant_seal(server.grant_key, &g, e, out);
}

static void text_extent(struct text *t, const struct store_extent *x, enum grant_op op, uint64_t session,
                        uint64_t expiry_ms) {
    memcpy(t->at, "*5\r\n", 4);
    t->at += 4;
    text_int(t, x->segment);
    text_int(t, x->segment_epoch);
    text_int(t, (int64_t)x->offset);
    text_int(t, (int64_t)x->length);
    uint8_t sealed[GRANT_SIZE];
    if (expiry_ms) {
        struct grant_extent e = {x->segment, x->segment_epoch, x->offset, x->length};
        location_seal(op, session, expiry_ms, &e, sealed);
    }
    text_bulk(t, sealed, expiry_ms ? GRANT_SIZE : 0);
}

void text_replicas(struct text *t, const struct store_layout *layout, enum grant_op op, uint64_t session,
                   uint64_t expiry_ms) {
    size_t outside = 0; /* a value in the books has no replica to fetch */
    for (uint32_t i = 0; i < layout->replicas; i++) outside += layout->replica[i].extents > 0;
    text_array(t, outside);
    for (uint32_t i = 0; i < layout->replicas; i++) {
        const struct store_replica *r = &layout->replica[i];
        if (r->extents == 0) continue;
        static const char head[] = "*2\r\n$6\r\nmemory\r\n";
        memcpy(t->at, head, sizeof(head) - 1);
        t->at += sizeof(head) - 1;
        text_array(t, r->extents);
        for (uint32_t j = 0; j < r->extents; j++) text_extent(t, &r->extent[j], op, session, expiry_ms);
    }
}
