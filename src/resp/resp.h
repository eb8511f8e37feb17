/* RESP2 and RESP3 on byte spans: the request parser of the server and the reply writer. No sockets,
 * no copies: argument spans point into the caller's buffer.
 *
 * The protocol is Redis' (redis.io/docs/reference/protocol-spec); error texts are Redis 7.0's,
 * because its clients and its test suite compare them. */
#ifndef TARN_RESP_RESP_H
#define TARN_RESP_RESP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

/* --- requests --- */

enum resp_result {
    /* one whole request: argc, argv are set, *used_p bytes were taken. argc 0: an empty line, skip
       it */
    RESP_REQUEST,
    RESP_MORE, /* not whole yet */
    RESP_BIG,  /* an argument of >= big_min bytes begins: see below */
    /* protocol error: error is the text after "-ERR "; answer it and close the connection */
    RESP_ERROR,
};

struct resp_limits {
    /* Redis: 1024 * 1024 (INT_MAX/…); a request that announces more is an error */
    size_t max_args;
    size_t max_bulk;   /* proto-max-bulk-len */
    size_t max_inline; /* 64 KiB; also of every "*n" and "$n" line */
    size_t big_min;    /* from this length on RESP_BIG is reported, SIZE_MAX: never */
    /* Before AUTH: Redis allows 10 arguments of 16384 bytes. Set the two limits above accordingly
     * and these texts follow. */
    bool unauthenticated;
};

/* State of one connection's request in the making. Zero-initialised is ready. resp_parser_free when
 * the connection goes.
 *
 * While a request is incomplete the parser remembers how far it got (offsets, not pointers), so a
 * client that sends a byte at a time costs linear time. The caller passes the same unconsumed bytes
 * again, possibly at another address, followed by what arrived since. argv is valid until the next
 * call and points into data (or into inline_copy for inline requests).
 *
 * RESP_BIG: the bulk of big_len bytes at argument index big_index begins right after *used_p... the
 * arguments before it are in argv[0 .. big_index), pointing into data, and argv[big_index] is a
 * NULL span. The caller must now take *used_p bytes of data as consumed AND keep the earlier
 * arguments itself if it needs them (it moves them to its own memory), read big_len bytes plus
 * "\r\n" into memory of its own, and then call resp_parser_big_done with the span where the bytes
 * lie. Parsing then goes on with the bytes after the "\r\n"; call resp_parse even if there are none
 * yet, the request may be complete. When it is, argv[i] of the earlier arguments are those handed
 * to resp_parser_set_arg (or NULL spans if the caller did not). An argument of big_min bytes is
 * reported even if all of it is in data already.
 *
 * *used_p is 0 with RESP_MORE and RESP_ERROR. After an error the parser has forgotten the
 * request. */
struct resp_parser {
    struct span *argv; /* capacity argv_cap, owned */
    size_t argc;       /* complete so far, or final */
    size_t argv_cap;
    char error[128];
    size_t big_index, big_len;
    /* private */
    int64_t remaining; /* arguments still to come, 0: between requests */
    size_t pos;        /* parsed so far of the bytes on offer */
    size_t searched;   /* bytes after pos that hold no line end */
    int64_t bulk_len;  /* of the argument being read, -1: its header is not read yet */
    size_t absolute;   /* arguments before this one lie in the caller's memory, argv points there */
    bool in_big;       /* between RESP_BIG and resp_parser_big_done */
    /* capacity argv_cap or NULL: of the arguments kept over calls, from the start of the bytes on
     * offer */
    size_t *offsets;
    struct buf inline_copy;
};

enum resp_result resp_parse(struct resp_parser *p, const struct resp_limits *limits,
                            const char *data, size_t len, size_t *used_p);
void resp_parser_set_arg(struct resp_parser *p, size_t index,
                         struct span value); /* absolute, caller's memory */
void resp_parser_big_done(struct resp_parser *p, struct span value);
/* After RESP_MORE: data, the bytes that were passed, will stay where they are until the request is
 * done. The arguments found so far stay in them, and the next call is passed what follows the bytes
 * that they take, whose number is returned. 0: none is whole yet. */
size_t resp_parser_settle(struct resp_parser *p, const char *data);
/* The first argument of requests that has min to max bytes; one of none: there is none among the
 * first few. A guess, for bytes that may change meanwhile; what is whole and plain is looked at. */
struct span resp_first_of_size(struct span in, size_t min, size_t max);
/* Forgets a request in the making, and memory that a giant one took. */
void resp_parser_reset(struct resp_parser *p);
void resp_parser_free(struct resp_parser *p);

/* Splits one line as redis-cli and redis.conf do: blanks, "double quotes" with \n \r \t \b \a \\ \"
 * \xHH, 'single quotes' with \'. Appends decoded bytes to store and spans to *argv_p (malloc'ed
 * array, caller frees). -1: unbalanced quotes. The spans point into store->data, so store must not
 * be changed while they are used. */
int resp_split_line(const char *line, size_t len, struct buf *store, struct span **argv_p,
                    size_t *argc_p);

/* --- replies: append to a buf. proto is 2 or 3 --- */

void resp_write_simple(struct buf *out, const char *s); /* +s */
void resp_write_error(struct buf *out, const char *s);  /* -s ; CR and LF become blanks */
void resp_write_int(struct buf *out, int64_t v);        /* :v */
void resp_write_bulk(struct buf *out, const void *data, size_t len);
void resp_write_bulk_header(struct buf *out,
                            /* "$len\r\n": the bytes and CRLF follow separately */
                            size_t len);
void resp_write_null(struct buf *out, int proto);              /* $-1 or _ */
void resp_write_null_array(struct buf *out, int proto);        /* *-1 or _ */
void resp_write_array(struct buf *out, size_t n);              /* *n */
void resp_write_map(struct buf *out, int proto, size_t pairs); /* %pairs, in RESP2 *2n */
void resp_write_set(struct buf *out, int proto, size_t n);     /* ~n, in RESP2 *n */
void resp_write_bool(struct buf *out, int proto, bool v);      /* #t, in RESP2 :1 */
void resp_write_double(struct buf *out, int proto, double v);  /* ,v in RESP2 a bulk string */
void resp_write_verbatim(struct buf *out, int proto, const char *ext3, const void *data,
                         size_t len);                       /* =, in RESP2 bulk */
void resp_write_push(struct buf *out, int proto, size_t n); /* >n, in RESP2 *n */

#endif
