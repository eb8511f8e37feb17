#include "transport/tcp/frame.h"

#include <string.h>

static const char *common_check(const struct tcp_header *h, bool hello_done) {
    if (h->magic != TCP_MAGIC) return "not a tarn data frame";
    if (hello_done && h->version != TCP_VERSION) return "frame of another version";
    return NULL;
}

const char *tcp_request_check(const struct tcp_header *h, bool hello_done) {
    const char *wrong = common_check(h, hello_done);
    if (wrong != NULL) return wrong;
    if (h->flags != 0 && (h->type != TCP_WRITE || h->flags != TCP_FLAG_SEAL))
        return "unknown flags";
    if (h->status != 0) return "status in a request";
    if (!hello_done) {
        if (h->type != TCP_HELLO) return "the first frame is not HELLO";
        /* A later version may say more; what we know is at the start. */
        if (h->meta_length < sizeof(struct tcp_hello) || h->meta_length > 1024 ||
            h->payload_length != 0) {
            return "HELLO of a wrong length";
        }
        return NULL;
    }
    if (h->type != TCP_READ && h->type != TCP_WRITE) return "unknown request";
    if (h->meta_length == 0 || h->meta_length % sizeof(struct tcp_part) != 0 ||
        h->meta_length / sizeof(struct tcp_part) > TCP_PARTS_MAX) {
        return "wrong number of parts";
    }
    if (h->flags != 0 && h->meta_length / sizeof(struct tcp_part) > TCP_SEAL_PARTS_MAX)
        return "too many parts to be sealed";
    if (h->payload_length > (h->type == TCP_WRITE ? TCP_PAYLOAD_MAX : 0)) return "payload too long";
    return NULL;
}

const char *tcp_reply_check(const struct tcp_header *h, bool hello_done) {
    const char *wrong = common_check(h, hello_done);
    if (wrong != NULL) return wrong;
    if (h->type != (hello_done ? TCP_REPLY : TCP_HELLO)) return "unexpected frame";
    if (h->meta_length > (hello_done ? TCP_SEAL_PARTS_MAX * GRANT_RECEIPT_SIZE
                                     : sizeof(struct tcp_hello) + TCP_TEXT_MAX))
        return "text too long";
    if (!hello_done && (h->meta_length < sizeof(struct tcp_hello) || h->payload_length != 0)) {
        return "HELLO of a wrong length";
    }
    if (h->payload_length > TCP_PAYLOAD_MAX) return "payload too long";
    if (h->status != TCP_OK && h->payload_length != 0) return "payload in a refusal";
    if (h->flags != 0 && (h->flags != TCP_FLAG_MORE || !hello_done)) return "unknown flags";
    if (h->flags != 0 && h->payload_length == 0) return "a piece of nothing";
    return NULL;
}

const char *tcp_parts_check(const struct tcp_header *h, const void *meta, uint64_t *bytes_p) {
    uint64_t sum = 0;
    for (uint32_t at = 0; at < h->meta_length; at += (uint32_t)sizeof(struct tcp_part)) {
        struct tcp_part part; /* the buffer has no alignment */
        memcpy(&part, (const char *)meta + at, sizeof(part));
        if (part.sub_length > TCP_PAYLOAD_MAX) return "part too long";
        sum += part.sub_length; /* at most 2^12 times 2^30 */
    }
    if (sum > TCP_PAYLOAD_MAX) return "request too long";
    if (h->type == TCP_WRITE && sum != h->payload_length) return "payload and parts disagree";
    *bytes_p = sum;
    return NULL;
}
