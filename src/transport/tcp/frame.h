/* The frames of the data port: their bytes, and the checks that need nothing but the bytes.
 * docs/DATA-PROTOCOL.md is the same in words. All little-endian.
 *
 *   client                              server
 *   HELLO  ------------------------------->
 *          <------------------------------- HELLO (or a refusal with a text, and the end)
 *   READ/WRITE [parts] [payload] --------->          any number, without waiting
 *          <------------------------------- REPLY [payload]      one for each, in the same order */
#ifndef TARN_TRANSPORT_TCP_FRAME_H
#define TARN_TRANSPORT_TCP_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "transport/grant.h"

#define TCP_MAGIC       0x44524e54u /* "TNRD" on the wire */
#define TCP_VERSION     1u
#define TCP_PARTS_MAX   4096u
#define TCP_PAYLOAD_MAX (1ull << 30)

enum tcp_type { TCP_HELLO = 1, TCP_READ = 2, TCP_WRITE = 3, TCP_REPLY = 4 };

/* In REPLY and in the server's HELLO. 1 to 15 are enum grant_verdict. */
enum tcp_wire_status {
    TCP_OK = 0,
    TCP_OTHER_SESSION = 16, /* the connection belongs to another session */
    TCP_BAD_VERSION = 17,
    TCP_TOO_MANY = 18,  /* connections */
    TCP_GONE = 19,      /* what was to be read is not there any more */
    TCP_FAILED = 20,    /* it cannot be read */
    TCP_NO_PIECES = 21, /* it can be read by clients with TCP_FEATURE_PIECES only */
    TCP_WANTS_TLS = 22, /* the answer, in plain text, to a HELLO in plain text */
};

/* Bits of hello.features. */
#define TCP_FEATURE_PIECES 1u /* a READ may be answered in several frames */

/* Bits of header.flags, in WRITE: behind its bytes (or none: parts of length 0) the grants of its
 * parts are sealed, and the REPLY has a receipt for each part as its meta, GRANT_RECEIPT_SIZE
 * bytes; zeroes for a grant that is not WRITE_ONCE. */
#define TCP_FLAG_SEAL      2u
#define TCP_SEAL_PARTS_MAX 512u
/* In REPLY. */
#define TCP_FLAG_MORE                                                                              \
    1u /* another REPLY to the same request follows, with the bytes behind these, or a refusal */

struct tcp_header {
    uint32_t magic;
    uint8_t version; /* 0 in HELLO, whose layout never changes */
    uint8_t type;
    uint16_t flags;
    uint64_t request_id;
    uint32_t status;      /* 0 in requests */
    uint32_t meta_length; /* bytes behind the header: the parts, the hello, a text */
    uint64_t payload_length;
};
_Static_assert(sizeof(struct tcp_header) == 32, "frame header");

struct tcp_hello {
    uint16_t version_min, version_max; /* the server's answer: both the one it chose */
    uint32_t features;                 /* offered; in the answer: in use */
    uint32_t parts_max;
    uint32_t program; /* program.h */
    uint64_t payload_max;
};
_Static_assert(sizeof(struct tcp_hello) == 24, "hello");

struct tcp_part {
    struct grant_extent extent;
    uint64_t sub_offset, sub_length;
    uint8_t grant[GRANT_SIZE];
};
_Static_assert(sizeof(struct tcp_part) == 80, "part");

#define TCP_TEXT_MAX 256u /* of a refusal */

/* What the data port calls itself in the RESP error that it has for requests; clients know it by
 * that. */
#define TCP_DATA_PORT "a data port of tarn"

/* Does data start with a header that this side of a connection may receive? NULL: it does. Else
 * what is wrong with it. */
const char *tcp_request_check(const struct tcp_header *h, bool hello_done);
const char *tcp_reply_check(const struct tcp_header *h, bool hello_done);
/* The parts behind a checked request header: does their sum agree with it? */
const char *tcp_parts_check(const struct tcp_header *h, const void *meta, uint64_t *bytes_p);

#endif
