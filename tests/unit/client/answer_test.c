/* Answers to batches: parsed without hiredis' reader, in whatever pieces they come, and beside what
 * is left to it. That both say the same, client_answer_fuzz.c. */
#include "../test.h"

#include <hiredis/read.h>

#include "base/buf.h"
#include "client/answer.h"

static struct redisReader *reader;
static struct answer_scan scan;
static struct arena arena;

static void begin(void) {
    reader = answer_reader_create();
    scan = (struct answer_scan){.root = NULL};
    answer_reader_set_arena(reader, &arena);
}

static void end(void) {
    redisReaderFree(reader);
    arena_free(&arena);
}

static void feed(const char *bytes, size_t n) {
    CHECK_EQ(redisReaderFeed(reader, bytes, n), REDIS_OK);
}

static struct answer *next(void) {
    void *a = NULL;
    CHECK_EQ(answer_reader_next(&reader, &scan, &a), REDIS_OK);
    return a;
}

/* A batch of n places, every seventh nil, and its number; places are of 48 bytes that may be
 * anything. */
static void say_batch(struct buf *b, size_t n) {
    buf_printf(b, "*%zu\r\n", n + 1);
    for (size_t i = 0; i < n; i++) {
        char place[48] = "\r\n$48\r\n";
        memcpy(place + 10, &i, sizeof(i));
        buf_append_str(b, i % 7 == 3 ? "$-1\r\n" : "$48\r\n");
        if (i % 7 == 3) continue;
        buf_append(b, place, sizeof(place));
        buf_append_str(b, "\r\n");
    }
    buf_printf(b, ":%zu\r\n", 1000 + n);
}

static void check_batch(const struct answer *a, size_t n) {
    CHECK(a != NULL && a->type == ANSWER_ARRAY && a->len == n + 1);
    for (size_t i = 0; i < n; i++) {
        const struct answer *e = &a->element[i];
        size_t said;
        CHECK_EQ(e->type, i % 7 == 3 ? ANSWER_NIL : ANSWER_STRING);
        if (i % 7 == 3) continue;
        memcpy(&said, e->str + 10, sizeof(said));
        CHECK(e->len == 48 && e->str[48] == '\0' && said == i);
    }
    CHECK(a->element[n].type == ANSWER_INTEGER && a->element[n].integer == (int64_t)(1000 + n));
}

TEST(cut_anywhere) {
    struct buf b = {0};
    say_batch(&b, 9);
    for (size_t cut = 1; cut < b.len; cut++) {
        begin();
        feed(b.data, cut);
        CHECK(next() == NULL);
        feed(b.data + cut, b.len - cut);
        check_batch(next(), 9);
        CHECK(next() == NULL);
        end();
    }
    begin();
    for (size_t at = 0; at < b.len; at++) {
        CHECK(next() == NULL);
        feed(b.data + at, 1);
    }
    check_batch(next(), 9);
    end();
    buf_free(&b);
}

/* What is of another form is the reader's, and what comes behind it is not. */
TEST(beside_others) {
    static const char others[] = "*2\r\n*1\r\n:7\r\n-ERR no\r\n+OK\r\n:512\r\n$3\r\nabc\r\n";
    struct buf b = {0};
    say_batch(&b, 20);
    size_t first = b.len;
    buf_append_str(&b, others);
    say_batch(&b, 5000); /* longer than those that are scanned */
    say_batch(&b, 3);
    for (size_t piece = 1; piece < 2 * first; piece += 13) {
        struct answer *a[7];
        size_t n = 0;
        begin();
        for (size_t at = 0; at < b.len; at += piece) {
            feed(b.data + at, piece < b.len - at ? piece : b.len - at);
            for (struct answer *x; (x = next()) != NULL;) a[n++] = x;
        }
        CHECK_EQ(n, 7);
        check_batch(a[0], 20);
        CHECK(a[1]->len == 2 && a[1]->element[0].element[0].integer == 7);
        CHECK(a[1]->element[1].type == ANSWER_ERROR && strcmp(a[1]->element[1].str, "ERR no") == 0);
        CHECK(a[2]->type == ANSWER_SIMPLE && strcmp(a[2]->str, "OK") == 0);
        CHECK(a[3]->type == ANSWER_INTEGER && a[3]->integer == 512);
        CHECK(a[4]->type == ANSWER_STRING && strcmp(a[4]->str, "abc") == 0);
        check_batch(a[5], 5000);
        check_batch(a[6], 3);
        end();
    }
    buf_free(&b);
}

/* Where each read ends in the middle of an answer, what was parsed does not pile up. */
TEST(parsed_bytes_go) {
    struct buf b = {0};
    say_batch(&b, 300);
    begin();
    feed(b.data, b.len / 2);
    for (int i = 0; i < 200; i++) {
        feed(b.data + b.len / 2, b.len - b.len / 2);
        feed(b.data, b.len / 2);
        check_batch(next(), 300);
        CHECK(next() == NULL);
        CHECK(reader->len < 1u << 20);
    }
    end();
    buf_free(&b);
}

/* Nothing of a later answer goes where an earlier one went. */
TEST(another_arena) {
    struct buf b = {0};
    struct arena other = {0};
    say_batch(&b, 30);
    begin();
    for (int i = 0; i < 30; i++) { /* with a reader anew once in a while */
        answer_reader_set_arena(reader, &arena);
        feed(b.data, b.len);
        check_batch(next(), 30);
        CHECK(next() == NULL);
        arena_free(&arena);
        answer_reader_set_arena(reader, &other);
        feed("*1\r\n*1\r\n:7\r\n", 12);
        CHECK_EQ(next()->element[0].element[0].integer, 7);
        CHECK(arena.head == NULL && next() == NULL);
        arena_free(&other);
    }
    end();
    buf_free(&b);
}

TEST(a_refusal) {
    begin();
    static const char bytes[] = "*2\r\n$4\r\nabcd\r\n!";
    feed(bytes, sizeof(bytes) - 1);
    void *a = NULL;
    CHECK_EQ(answer_reader_next(&reader, &scan, &a), REDIS_ERR);
    CHECK(a == NULL);
    end();
}

TEST_MAIN()
