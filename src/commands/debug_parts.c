/* DEBUG PROTOCOL, ERROR and POPULATE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "commands/debug.h"
#include "front/families.h"
#include "front/each.h"
#include "inband/value_write.h"
#include "front/refusal.h"
#include "ha/replication.h"
#include "front/reply.h"
#include "inband/string_write.h"

/* --- PROTOCOL, ERROR --- */

static void reply_raw_str(struct client *c, const char *text) {
    reply_raw(c, text, strlen(text));
}

/* What is said with every reply of RESP3 may be left out in RESP2. */
static void reply_attribute(struct client *c) {
    if (c->proto == 3)
        reply_raw_str(c, "|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n");
    reply_bulk_str(c, "Some real reply following the attribute");
}

/* Whoever waits for the reply of the command gets one behind the push, too. */
static void reply_push(struct client *c) {
    reply_raw_str(c, c->proto == 3 ? ">2\r\n" : "*2\r\n");
    reply_bulk_str(c, "server-cpu-usage");
    reply_int(c, 42);
    if (c->proto == 3) reply_bulk_str(c, "Some real reply following the push reply");
}

static void reply_big_number(struct client *c) {
    static const char digits[] = "1234567999999999999999999999999999999";
    if (c->proto != 3) {
        reply_bulk_str(c, digits);
        return;
    }
    reply_raw_str(c, "(");
    reply_raw_str(c, digits);
    reply_raw_str(c, "\r\n");
}

static void reply_numbers(struct client *c) {
    for (int i = 0; i < 3; i++) reply_int(c, i);
}

void debug_protocol(struct client *c) {
    if (arg_is(c, 2, "string")) {
        reply_bulk_str(c, "Hello World");
    } else if (arg_is(c, 2, "integer")) {
        reply_int(c, 12345);
    } else if (arg_is(c, 2, "double")) {
        reply_double(c, 3.141);
    } else if (arg_is(c, 2, "null")) {
        reply_null(c);
    } else if (arg_is(c, 2, "array")) {
        reply_array(c, 3);
        reply_numbers(c);
    } else if (arg_is(c, 2, "set")) {
        reply_set(c, 3);
        reply_numbers(c);
    } else if (arg_is(c, 2, "map")) {
        reply_map(c, 3);
        for (int i = 0; i < 3; i++) {
            reply_int(c, i);
            reply_bool(c, i == 1);
        }
    } else if (arg_is(c, 2, "attrib")) {
        reply_attribute(c);
    } else if (arg_is(c, 2, "push")) {
        reply_push(c);
    } else if (arg_is(c, 2, "verbatim")) {
        reply_verbatim(c, "txt", SPAN("This is a verbatim\nstring"));
    } else if (arg_is(c, 2, "true") || arg_is(c, 2, "false")) {
        reply_bool(c, arg_is(c, 2, "true"));
    } else if (arg_is(c, 2, "bignum")) {
        reply_big_number(c);
    } else {
        reply_error(
            c, "Wrong protocol type name. Please use one of the following: "
               "string|integer|double|null|array|set|map|attrib|push|verbatim|true|false|bignum");
    }
}

/* A line of its own, whatever the message holds. */
void debug_error(struct client *c) {
    char text[512];
    struct span s = c->argv[2];
    size_t n = s.data != NULL ? min_u64(s.len, sizeof(text) - 1) : 0;
    for (size_t i = 0; i < n; i++)
        text[i] = s.data[i] == '\r' || s.data[i] == '\n' ? ' ' : s.data[i];
    text[n] = '\0';
    reply_error(c, "-%s", text);
}

/* --- POPULATE --- */

#define VALUE_MAX (UINT64_C(512) << 20)

struct populate {
    struct each each;
    uint64_t size;           /* 0: as long as "value:N" is */
    struct store_put *put;   /* of the key it is at, room for which is being made; NULL: none */
    struct value_write *out; /* the value of the key it is at */
    bool failed;
};

/* The error has been answered. */
static enum each_next populate_failed(struct populate *p) {
    p->failed = true;
    return EACH_OVER;
}

/* Room is there: for a text with zeroes behind it, written in slices. */
static enum each_next write_begin(struct client *c, struct populate *p, struct span key,
                                  struct span text) {
    struct store_put *put = p->put;
    p->put = NULL;
    p->out = value_write_open(put, key, p->size, NULL);
    if (p->out) {
        value_write_add(p->out, text.data, text.len);
        return EACH_ON;
    }
    store_put_revoke(books, key, store_put_token(put));
    reply_error(
        c, "-NOSPACE POPULATE writes to this server's own memory only, and there is no room in it");
    return populate_failed(p);
}

static enum each_next write_on(struct client *c, struct populate *p, unsigned *budget) {
    enum { SLICE = 1 << 20, UNIT_BYTES = 1 << 14 };
    for (uint64_t left; (left = value_write_left(p->out)) > 0;) {
        if (*budget == 0) return EACH_AGAIN;
        size_t n = value_write_add(p->out, NULL, min_u64(left, SLICE));
        spend(budget, n / UNIT_BYTES + 1);
    }
    tarn_status s = value_write_end(&p->out);
    if (s == TARN_OK || s == TARN_ETOKEN) return EACH_ON; /* somebody else wrote it meanwhile */
    reply_status(c, s, "POPULATE");
    return populate_failed(p);
}

static tarn_status populate_open(struct client *c, struct populate *p, struct span key,
                                 unsigned *budget) {
    if (p->put != NULL) return store_put_continue(books, p->put, budget);
    struct store_put_options options = value_write_options(p->size, 0);
    struct store_batch batch;
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    return store_put_start(books, &batch, key, p->size, &options, c->id, budget, &p->put);
}

static tarn_status populate_inline(struct span key, struct span value, unsigned *budget) {
    struct store_put_options options = value_write_options(value.len, 0);
    struct store_batch batch;
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    return store_set_inline(books, &batch, key, value, crc32c(0, value.data, value.len), &options,
                            budget);
}

static struct span populate_key(const struct client *c, const struct populate *p,
                                char name[STORE_KEY_MAX + 1]) {
    struct span prefix = c->argc > 3 ? c->argv[3] : SPAN("key");
    int n = snprintf(name, STORE_KEY_MAX + 1, "%.*s:%llu", (int)prefix.len, prefix.data,
                     (unsigned long long)p->each.at);
    return span_of(name, (size_t)n);
}

/* One key, or a part of its value. */
static enum each_next populate_one(struct client *c, struct each *each, unsigned *budget) {
    struct populate *p = CONTAINER_OF(each, struct populate, each);
    char text[STORE_INLINE_MAX] = {0}, name[STORE_KEY_MAX + 1];
    struct span key = populate_key(c, p, name);
    if (p->out) return write_on(c, p, budget);
    if (p->put == NULL && store_find(books, key) != NULL) return EACH_ON;
    bool small = p->size <= STORE_INLINE_MAX;
    size_t len = (size_t)snprintf(text, sizeof(text), "value:%llu", (unsigned long long)p->each.at);
    if (small && p->size > 0) len = p->size;
    tarn_status s =
        small ? populate_inline(key, span_of(text, len), budget) : populate_open(c, p, key, budget);
    if (s == TARN_EAGAIN) return EACH_AGAIN;
    if (s != TARN_OK) {
        p->put = NULL;
        if (s == TARN_ENOSPACE)
            refusal_no_room(c, "NOSPACE", p->size);
        else
            reply_status(c, s, "POPULATE");
        return populate_failed(p);
    }
    if (small) return EACH_ON;
    enum each_next next = write_begin(c, p, key, span_of(text, len));
    return next == EACH_ON ? write_on(c, p, budget) : next;
}

static void populate_end(struct client *c, struct each *each) {
    if (!CONTAINER_OF(each, struct populate, each)->failed) reply_ok(c);
}

static void populate_close(struct client *c, struct job *job) {
    struct populate *p = CONTAINER_OF(job, struct populate, each.job);
    if (p->put != NULL) store_put_abandon(books, &p->put);
    value_write_abort(&p->out);
}

void debug_populate(struct client *c) {
    uint64_t count, size = 0;
    if (replication_is_replica()) {
        reply_error(c, "-READONLY You can't write against a read only replica.");
        return;
    }
    if (!arg_range(c, 2, "count", 0, UINT32_MAX, &count)) return;
    if (c->argc > 4 && !arg_range(c, 4, "size", 0, VALUE_MAX, &size)) return;
    if (c->argc > 3 && (c->argv[3].data == NULL || c->argv[3].len > STORE_KEY_MAX - 11)) {
        reply_error(c, "prefix must be up to %u bytes", STORE_KEY_MAX - 11);
        return;
    }
    struct populate p = {
        .each = {.job.close = populate_close, .one = populate_one, .end = populate_end, .n = count},
        .size = size};
    each_run(c, &p.each, sizeof(p));
}
