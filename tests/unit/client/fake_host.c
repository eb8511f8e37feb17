/* The fake hosts: their data port, well or in one of their moods. */
#include <string.h>
#include <sys/socket.h>

#include "fake_internal.h"
#include "base/assert.h"
#include "client/client.h"
#include "transport/tcp/frame.h"

static void hello(struct fake_conn *c) {
    struct tcp_header h = {
        .magic = TCP_MAGIC, .type = TCP_HELLO, .meta_length = sizeof(struct tcp_hello)};
    struct tcp_hello hello = {.version_min = TCP_VERSION,
                              .version_max = TCP_VERSION,
                              .parts_max = TCP_PARTS_MAX,
                              .payload_max = TCP_PAYLOAD_MAX};
    buf_append(&c->out, &h, sizeof(h));
    buf_append(&c->out, &hello, sizeof(hello));
    c->hello_done = true;
}

static void copy_parts(struct fake_host *h, const struct tcp_header *rq, const char *frame,
                       char *data, uint64_t max) {
    bool write = rq->type == TCP_WRITE;
    const struct tcp_part *part = (const void *)(frame + sizeof(*rq));
    for (uint32_t left = rq->meta_length / sizeof(*part); left > 0 && max > 0; left--, part++) {
        struct tcp_part p;
        memcpy(&p, part, sizeof(p));
        uint64_t len = min_u64(p.sub_length, max);
        uint8_t *at = h->memory + p.extent.offset + p.sub_offset;
        TARN_ASSERT(p.extent.offset + p.extent.length <= FAKE_BYTES);
        memcpy(write ? (char *)at : data, write ? data : (const char *)at, len);
        data += len;
        max -= len;
    }
}

static void check_session(struct fake_conn *c, const char *frame) {
    struct tcp_part p;
    memcpy(&p, frame + sizeof(struct tcp_header), sizeof(p));
    uint64_t session;
    memcpy(&session, p.grant, sizeof(session));
    if (c->session == 0) c->session = session;
    if (c->session != session) fake.violations++;
}

static void reply(struct fake_conn *c, const struct tcp_header *rq, uint32_t status,
                  const char *frame, uint64_t bytes, bool half) {
    bool read = rq->type == TCP_READ && status == TCP_OK;
    struct tcp_header h = {.magic = TCP_MAGIC,
                           .version = TCP_VERSION,
                           .type = TCP_REPLY,
                           .request_id = rq->request_id,
                           .status = status,
                           .payload_length = read ? bytes : 0};
    buf_append(&c->out, &h, sizeof(h));
    if (!read) return;
    char *data = xmalloc(bytes);
    copy_parts(&fake.host[c->host], rq, frame, data, bytes);
    buf_append(&c->out, data, half ? bytes / 2 : bytes);
    free(data);
}

/* A whole request is at frame. false: the connection is closed. */
static bool request(struct fake_conn *c, const struct tcp_header *rq, char *frame, uint64_t bytes) {
    struct fake_host *h = &fake.host[c->host];
    char *payload = frame + sizeof(*rq) + rq->meta_length;
    enum fake_mood mood = h->mood;
    if (mood != FAKE_WELL && h->after > 0) {
        h->after--;
        mood = FAKE_WELL;
    }
    check_session(c, frame);
    bool write = rq->type == TCP_WRITE;
    write ? h->writes++ : h->reads++;
    switch (mood) {
    case FAKE_RESET: fake_close(c, true); return false;
    case FAKE_NONSENSE:
        fake_say(c, "This is not what you think it is, whatever it may be.");
        return true;
    case FAKE_STALE: reply(c, rq, GRANT_BAD_EPOCH, frame, bytes, false); return true;
    case FAKE_FENCED:
        if (c->session > 1) break;
        reply(c, rq, GRANT_FENCED, frame, bytes, false);
        return true;
    case FAKE_HALF:
        if (write) copy_parts(h, rq, frame, payload, bytes / 2);
        if (!write) reply(c, rq, TCP_OK, frame, bytes, true);
        c->close_when_sent = true;
        return true;
    default: break;
    }
    if (write) copy_parts(h, rq, frame, payload, bytes);
    reply(c, rq, TCP_OK, frame, bytes, false);
    return true;
}

bool fake_data_input(struct fake_conn *c) {
    while (!c->close_when_sent) {
        struct fake_host *h = &fake.host[c->host];
        struct tcp_header rq;
        if (c->in.len < sizeof(rq)) return true;
        memcpy(&rq, c->in.data, sizeof(rq));
        uint64_t whole = sizeof(rq) + rq.meta_length + rq.payload_length;
        c->silent = h->mood == FAKE_SILENT && h->after == 0;
        if (c->silent || c->in.len < whole) return true;
        if (rq.type == TCP_HELLO) {
            hello(c);
        } else {
            uint64_t bytes = 0;
            TARN_ASSERT(tcp_parts_check(&rq, c->in.data + sizeof(rq), &bytes) == NULL);
            if (!request(c, &rq, c->in.data, bytes)) return false;
        }
        buf_consume(&c->in, whole);
    }
    return true;
}
