/* The request parser: however the bytes are cut, wherever they lie, and with big arguments taken
 * out or not, the requests and the error must be the same. What was parsed, written again with the
 * reply writer, must parse as itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/rng.h"
#include "resp/resp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum cut { CUT_NONE, CUT_BYTES, CUT_RANDOM, CUT_SETTLED };

/* A client whose memory moves with every read. */
struct feed {
    struct resp_parser parser;
    const struct resp_limits *limits;
    const char *input; /* all of it */
    size_t size, fed, taken;
    char *window; /* a copy of input[taken, fed), as long as that and no longer */
    struct buf transcript;
    char *kept[256]; /* arguments rescued from RESP_BIG */
    size_t kept_count;
    char *settled[64]; /* windows that stay until the request is done */
    size_t settled_count;
    bool over;
};

static void move_window(struct feed *f) {
    char *moved = xmemdup(f->input + f->taken, f->fed - f->taken);
    free(f->window);
    f->window = moved;
}

static struct span keep(struct feed *f, const char *data, size_t len) {
    if (f->kept_count == 256)
        return (struct span){NULL, 0}; /* what the caller does not keep is gone: also a case */
    char *copy = xmemdup(data, len);
    f->kept[f->kept_count++] = copy;
    return span_of(copy, len);
}

static void drop_kept(struct feed *f) {
    while (f->kept_count > 0) free(f->kept[--f->kept_count]);
    while (f->settled_count > 0) free(f->settled[--f->settled_count]);
}

/* The window stays where it is, and the request goes on in another. */
static void settle(struct feed *f) {
    if (f->settled_count == 64) return;
    size_t taken = resp_parser_settle(&f->parser, f->window);
    TARN_ASSERT(taken <= f->fed - f->taken);
    if (taken == 0) return;
    f->settled[f->settled_count++] = f->window;
    f->window = NULL;
    f->taken += taken;
}

static void note_request(struct feed *f) {
    buf_printf(&f->transcript, "request %zu:", f->parser.argc);
    for (size_t i = 0; i < f->parser.argc; i++) {
        struct span a = f->parser.argv[i];
        buf_printf(&f->transcript, " %zu ", a.len);
        buf_append(&f->transcript, a.data, a.len);
    }
    buf_append_char(&f->transcript, '\n');
}

static void note_error(struct feed *f, const char *text) {
    buf_printf(&f->transcript, "error: %s\n", text);
    f->over = true;
}

/* Plays the caller's part after RESP_BIG: reads the bytes straight from the "socket". */
static void take_big(struct feed *f) {
    struct resp_parser *p = &f->parser;
    size_t index = p->big_index, len = p->big_len;
    for (size_t i = 0; i < index; i++) {
        struct span a = p->argv[i];
        bool ours = false; /* rescued before, from an earlier big argument of this request */
        for (size_t k = 0; k < f->kept_count; k++) ours |= a.data == f->kept[k];
        ours |= i < p->absolute; /* or lies in a window that stays */
        if (!ours && a.data != NULL) resp_parser_set_arg(p, i, keep(f, a.data, a.len));
    }
    if (f->size - f->taken < 2 || f->size - f->taken - 2 < len) {
        f->over = true;
        return;
    }
    const char *body = f->input + f->taken;
    if (memcmp(body + len, "\r\n", 2) != 0) {
        note_error(f, "Protocol error: invalid bulk length");
        return;
    }
    resp_parser_big_done(p, keep(f, body, len));
    f->taken += len + 2;
    if (f->fed < f->taken) f->fed = f->taken;
}

/* Everything that can be parsed of what was fed. */
static void parse_fed(struct feed *f) {
    while (!f->over) {
        size_t used, offered = f->fed - f->taken;
        move_window(f);
        switch (resp_parse(&f->parser, f->limits, f->window, offered, &used)) {
        case RESP_REQUEST:
            note_request(f);
            drop_kept(f);
            TARN_ASSERT(used <= offered);
            f->taken += used;
            continue;
        case RESP_BIG:
            TARN_ASSERT(used <= offered && f->parser.big_len >= f->limits->big_min);
            f->taken += used;
            take_big(f);
            continue;
        case RESP_ERROR:
            TARN_ASSERT(used == 0);
            note_error(f, f->parser.error);
            return;
        case RESP_MORE: TARN_ASSERT(used == 0); return;
        }
    }
}

static struct buf run(const uint8_t *data, size_t size, const struct resp_limits *limits,
                      enum cut cut) {
    struct feed f = {.limits = limits, .input = (const char *)data, .size = size};
    struct rng r;
    rng_seed(&r, size);
    while (f.fed < size && !f.over) {
        size_t rest = size - f.fed, n = rest;
        if (cut == CUT_BYTES) n = 1;
        if (cut >= CUT_RANDOM)
            n = 1 + rng_below(&r, rng_below(&r, 8) == 0 ? rest : (rest < 5 ? rest : 5));
        f.fed += n;
        parse_fed(&f);
        if (cut == CUT_SETTLED && !f.over && f.window != NULL && rng_below(&r, 2) == 0) settle(&f);
    }
    resp_parser_free(&f.parser);
    drop_kept(&f);
    free(f.window);
    return f.transcript;
}

static void check_same(const struct buf *a, const struct buf *b) {
    TARN_ASSERT(a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0));
}

static void check_written_again(const uint8_t *data, size_t size,
                                const struct resp_limits *limits) {
    struct resp_parser p = {0}, q = {0};
    struct buf again = {0};
    size_t used, at = 0;
    const char *s = (const char *)data;
    while (resp_parse(&p, limits, s + at, size - at, &used) == RESP_REQUEST) {
        at += used;
        buf_clear(&again);
        resp_write_array(&again, p.argc);
        for (size_t i = 0; i < p.argc; i++) resp_write_bulk(&again, p.argv[i].data, p.argv[i].len);
        TARN_ASSERT(resp_parse(&q, limits, again.data, again.len, &used) == RESP_REQUEST);
        TARN_ASSERT(used == again.len && q.argc == p.argc);
        for (size_t i = 0; i < p.argc; i++) TARN_ASSERT(span_eq(p.argv[i], q.argv[i]));
    }
    resp_parser_free(&p);
    resp_parser_free(&q);
    buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > 4096) size = 4096; /* one byte at a time, each in a new window */
    static const struct resp_limits wide = {1024 * 1024, 512 << 20, 65536, SIZE_MAX, false};
    static const struct resp_limits tight = {10, 64, 48, SIZE_MAX, true};
    const struct resp_limits *const sets[] = {&wide, &tight};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        struct resp_limits big = *sets[i];
        big.big_min = 4;
        struct buf whole = run(data, size, sets[i], CUT_NONE);
        struct {
            const struct resp_limits *limits;
            enum cut cut;
        } ways[] = {{sets[i], CUT_BYTES}, {sets[i], CUT_RANDOM}, {sets[i], CUT_SETTLED},
                    {&big, CUT_NONE},     {&big, CUT_SETTLED},   {&big, CUT_BYTES},
                    {&big, CUT_RANDOM}};
        for (size_t k = 0; k < ARRAY_LEN(ways); k++) {
            struct buf other = run(data, size, ways[k].limits, ways[k].cut);
            check_same(&whole, &other);
            buf_free(&other);
        }
        buf_free(&whole);
    }
    check_written_again(data, size, &wide);
    return 0;
}
