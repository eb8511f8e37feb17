/* Replies: errors and how they are counted, headers that come later, bytes that are lent, and the
 * arguments that they complain of. */
#include "front.h"
#include "front/reply.h"

static void (*answer)(struct client *c);
static void run_answer(struct client *c) {
    answer(c);
}

static struct client *c;
static int fd;

static void begin(void) {
    front_functions[WIRE_echo] = run_answer;
    front_begin();
    fd = call(&c);
}

static void end(void) {
    close(fd);
    front_end();
}

static const char *answered(void (*fn)(struct client *c)) {
    answer = fn;
    return say(fd, "ECHO word");
}

/* --- errors --- */

static void say_status(struct client *client) {
    reply_array(client, 4);
    reply_status(client, TARN_ENOSPACE, NULL);
    reply_status(client, TARN_ESTALE, "which");
    reply_status(client, TARN_EIO, NULL); /* has no code: it never leaves a process */
    reply_status(client, TARN_ELATER, "why");
}
static void say_later(struct client *client) {
    reply_array(client, 2);
    reply_later(client, 0, "%s", "soon");
    reply_later(client, UINT64_MAX, "late");
}
static void say_codes(struct client *client) {
    reply_array(client, 100);
    for (int i = 0; i < 100; i++) reply_error(client, "-CODE%d text", i);
}
static void say_long_code(struct client *client) {
    reply_error(client, "-ACODETHATISLONGERTHANTHEREISROOM text");
}

struct codes {
    size_t n;
    uint64_t sum;
};
static void count_code(void *arg, const char *code, uint64_t count) {
    struct codes *k = arg;
    CHECK(strlen(code) < 24);
    k->n++;
    k->sum += count;
}

TEST(errors_have_a_code_and_are_counted_by_it) {
    begin();
    reply_errorstats_reset();
    CHECK_STR(answered(say_status),
              "*4 -NOSPACE no room, and nothing that may be evicted makes any -STALE the epoch is "
              "over: which -ERR input/output error -TRYAGAIN 100 not now: again in a moment: why");
    CHECK_STR(answered(say_later), "*2 -TRYAGAIN 1 soon -TRYAGAIN 60000 late");
    struct codes k = {0};
    reply_errorstats(count_code, &k);
    CHECK(k.n == 4 && k.sum == 6 && reply_errors() == 6);
    CHECK(strncmp(answered(say_codes), "*100 -CODE0 text", 16) == 0);
    CHECK_STR(answered(say_long_code), "-ACODETHATISLONGERTHANTHEREISROOM text");
    k = (struct codes){0};
    reply_errorstats(count_code, &k);
    CHECK_EQ(k.n, 64);             /* of a server there are fewer */
    CHECK_EQ(reply_errors(), 107); /* all the same */
    reply_errorstats_reset();
    CHECK_EQ(reply_errors(), 0);
    end();
}

/* --- lengths that are known later --- */

static void say_nested(struct client *client) {
    void *outer = reply_deferred(client);
    reply_int(client, 1);
    void *inner = reply_deferred(client);
    reply_deferred_set(client, inner, 0);
    void *map = reply_deferred(client);
    reply_bulk_str(client, "a");
    reply_null(client);
    reply_deferred_map(client, map, 1);
    reply_deferred_array(client, outer, 3);
}

TEST(headers_that_come_later) {
    begin();
    CHECK_STR(answered(say_nested), "*3 :1 *0 *2 $1 a $-1");
    c->proto = 3;
    CHECK_STR(answered(say_nested), "*3 :1 ~0 %1 $1 a _");
    CHECK_STR(answered(say_nested), "*3 :1 ~0 %1 $1 a _"); /* cookies go on counting */
    end();
}

/* --- lent bytes --- */

static char bytes[40000];
static unsigned released;
static void release(void *owner) {
    released += owner == bytes;
}
static void lend_little(struct client *client) {
    reply_bulk_header(client, 5);
    reply_lent(client, span_of(bytes, 5), release, bytes);
    CHECK_EQ(released, 1); /* they were copied */
    reply_raw(client, "\r\n", 2);
}
static void lend_much(struct client *client) {
    reply_bulk_header(client, sizeof(bytes));
    reply_lent(client, span_of(bytes, sizeof(bytes)), release, bytes);
    CHECK_EQ(released, 0);
    reply_raw(client, "\r\n", 2);
}

TEST(lent_bytes_come_back_once) {
    begin();
    memset(bytes, 'b', sizeof(bytes));
    released = 0;
    CHECK_STR(answered(lend_little), "$5 bbbbb");
    released = 0;
    CHECK_EQ(strlen(answered(lend_much)), sizeof(bytes) + 7);
    CHECK_EQ(released, 1);
    released = 0; /* a client that goes before it has read them */
    int small = 4096;
    CHECK_EQ(setsockopt(c->io->watch.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    CHECK(write(fd, "ECHO x\r\nECHO x\r\nECHO x\r\n", 24) == 24);
    turns(4);
    CHECK(client_unsent(c) > 0);
    client_close_soon(c);
    turns(1);
    CHECK_EQ(released, 3);
    end();
}

TEST(no_reply_is_wanted) {
    begin();
    released = 0;
    c->io->flags |= CLIENT_REPLY_OFF;
    CHECK_STR(answered(lend_much), "");
    CHECK_EQ(released, 1);
    CHECK_STR(answered(say_nested), "");
    c->io->flags &= ~(unsigned)CLIENT_REPLY_OFF;
    CHECK_STR(answered(say_nested), "*3 :1 *0 *2 $1 a $-1");
    end();
}

/* --- arguments --- */

static void take_arguments(struct client *client) {
    static struct span argv[] = {SPAN("x"), SPAN("12"), SPAN("twelve"), SPAN("")};
    static char long_key[STORE_KEY_MAX + 1];
    int64_t i = 7;
    uint64_t u = 7;
    struct span *kept = client->argv;
    client->argv = argv;
    reply_array(client, 6);
    CHECK(arg_i64(client, 1, &i) && i == 12);
    CHECK(!arg_i64(client, 2, &i) && i == 12);
    CHECK(arg_range(client, 1, "LEASE", 1, 12, &u) && u == 12);
    CHECK(!arg_range(client, 1, "LEASE", 1, 11, &u) && u == 12);
    CHECK(!arg_range(client, 2, "WAIT", 0, 5, &u));
    CHECK(arg_is(client, 2, "TWELVE") && !arg_is(client, 2, "TWELV"));
    CHECK(arg_key(client, 1) && !arg_key(client, 3));
    CHECK(key_valid(client, span_of(long_key, STORE_KEY_MAX)));
    CHECK(!key_valid(client, span_of(long_key, STORE_KEY_MAX + 1)));
    reply_syntax(client);
    client->argv = kept;
}

TEST(what_is_wrong_with_arguments) {
    begin();
    CHECK_STR(answered(take_arguments),
              "*6 -ERR value is not an integer or out of range -ERR LEASE must be a number from 1 "
              "to 11 -ERR WAIT must be a number from 0 to 5 -ERR key must be 1 to 1024 bytes -ERR "
              "key must be 1 to 1024 bytes -ERR syntax error");
    end();
}

TEST_MAIN()
