/* The link to a master, against a master in the same loop that says what it is told to, and hangs
 * up where it is told to. */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../test.h"
#include "base/clock.h"
#include "base/log.h"
#include "net/net.h"
#include "repl/link.h"
#include "resp/resp.h"

#define ID "0123456789abcdef0123456789abcdef01234567"

/* --- the replica --- */

static struct {
    struct repl_link *link;
    struct buf seen; /* all records, in order */
    bool synced;
    uint64_t offset;
    unsigned fulls, resumes, damages;
    struct buf passed;
} replica;

static bool on_wanted(void *arg, char id[REPL_ID_LEN + 1], uint64_t *next_p) {
    strcpy(id, ID);
    *next_p = replica.offset + 1;
    return replica.synced;
}
static void on_full(void *arg, const char *id, uint64_t offset) {
    CHECK(strcmp(id, ID) == 0);
    replica.synced = false;
    replica.fulls++;
    buf_clear(&replica.seen);
}
/* The payload of a record is one letter; 'x' is refused. */
static tarn_status on_records(void *arg, struct span records, bool *end_p, const char **why_p) {
    enum effect_kind kind;
    struct span record;
    while (records.len > 0) {
        CHECK_EQ(effect_next(records, &kind, &record), TARN_OK); /* only whole ones are handed up */
        records = span_of(records.data + record.len, records.len - record.len);
        if (kind == (enum effect_kind)64) {
            if (end_p == NULL) return *why_p = "an end in the stream", TARN_EPROTO;
            *end_p = true;
            continue;
        }
        if (record.len != 6 || record.data[5] == 'x') return *why_p = "no letter", TARN_EPROTO;
        buf_append_char(&replica.seen, record.data[5]);
    }
    return TARN_OK;
}
static void on_synced(void *arg, uint64_t offset) {
    replica.synced = true;
    replica.offset = offset;
}
static void on_resumed(void *arg, const char *id) {
    replica.resumes++;
}
static void on_passed(void *arg, struct span bytes) {
    replica.offset += bytes.len;
    buf_append(&replica.passed, bytes.data, bytes.len);
}
static uint64_t on_offset(void *arg) {
    return replica.offset;
}
static void on_damaged(void *arg) {
    replica.synced = false;
    replica.damages++;
}
static const struct repl_link_ops ops = {.wanted = on_wanted,
                                         .full = on_full,
                                         .records = on_records,
                                         .synced = on_synced,
                                         .resumed = on_resumed,
                                         .passed = on_passed,
                                         .offset = on_offset,
                                         .damaged = on_damaged};

/* --- the master --- */

static struct {
    struct net_loop *loop;
    struct net_listener *listener;
    uint16_t port;
    int fd;
    struct net_watch watch;
    struct buf heard, snapshot, stream; /* snapshot: all that follows PSYNC ? -1 up to the stream */
    uint64_t snapshot_offset;
    size_t cut, said; /* hangs up after that many bytes */
    unsigned connections;
    uint64_t acked;
    bool full_only;
} master;

static void hang_up(void) {
    if (master.fd < 0) return;
    net_watch_set(&master.watch, 0);
    close(master.fd);
    master.fd = -1;
}

static void say(const char *data, size_t len) {
    if (master.fd < 0) return;
    size_t n = master.cut - master.said < len ? master.cut - master.said : len;
    size_t done = 0;
    while (done < n) {
        ssize_t k = send(master.fd, data + done, n - done, MSG_NOSIGNAL);
        if (k <= 0) break;
        done += (size_t)k;
    }
    master.said += n;
    if (n < len) hang_up();
}

static void on_psync(struct span id, struct span next) {
    uint64_t from;
    char line[128];
    size_t at;
    if (!master.full_only && span_eq(id, span_str(ID)) && span_to_u64(next, &from) &&
        from > master.snapshot_offset &&
        (at = (size_t)(from - 1 - master.snapshot_offset)) <= master.stream.len) {
        snprintf(line, sizeof(line), "+CONTINUE " ID "\r\n");
        say(line, strlen(line));
        say(master.stream.data + at, master.stream.len - at);
        return;
    }
    snprintf(line, sizeof(line), "\n\n+FULLRESYNC " ID " 3\r\n\n");
    say(line, strlen(line));
    say(master.snapshot.data, master.snapshot.len);
    say(master.stream.data, master.stream.len);
}

static void on_heard(void *arg, unsigned events) {
    char bytes[4096];
    ssize_t n = read(master.fd, bytes, sizeof(bytes));
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) hang_up();
        return;
    }
    buf_append(&master.heard, bytes, (size_t)n);
    for (;;) {
        struct resp_parser p = {.argv = NULL};
        struct resp_limits limits = {16, 4096, 4096, SIZE_MAX, false};
        size_t used = 0;
        if (master.fd < 0 ||
            resp_parse(&p, &limits, master.heard.data, master.heard.len, &used) != RESP_REQUEST) {
            resp_parser_free(&p);
            return;
        }
        if (span_eq(p.argv[0], SPAN("PING")))
            say("+PONG\r\n", 7);
        else if (span_eq(p.argv[0], SPAN("PSYNC")))
            on_psync(p.argv[1], p.argv[2]);
        else if (p.argc == 3 && span_eq(p.argv[1], SPAN("ACK")))
            CHECK(span_to_u64(p.argv[2], &master.acked));
        else
            say("+OK\r\n", 5);
        resp_parser_free(&p);
        buf_consume(&master.heard, used);
    }
}

static void on_accept(void *arg, int fd, const struct sockaddr_storage *peer) {
    hang_up();
    buf_clear(&master.heard);
    master.fd = fd;
    master.said = 0;
    master.connections++;
    net_watch_init(&master.watch, master.loop, fd, on_heard, NULL);
    net_watch_set(&master.watch, NET_READ);
}

/* --- time --- */

static uint64_t now_ms = 1000;
static uint64_t give_up_ms;

/* A loop runs once: what is awaited in it, and what is done when that has come. */
static struct phase {
    bool (*until)(void);
    void (*then)(void);
} phases[4];
static unsigned phase, n_phases;
static void await(bool (*until)(void), void (*then)(void)) {
    phases[n_phases++] = (struct phase){until, then};
}

/* Seconds pass while nothing happens. */
static uint64_t on_turn(void *arg) {
    bool more = repl_link_turn(replica.link);
    while (phase < n_phases && phases[phase].until()) {
        if (phases[phase].then != NULL) phases[phase].then();
        phase++;
    }
    if (phase == n_phases || clock_mono_ms() > give_up_ms) net_loop_stop(master.loop);
    if (!more) {
        bool idle = repl_link_state(replica.link) == REPL_LINK_WAITING;
        now_ms += idle ? 1100 : 1;
        repl_link_cron(replica.link, now_ms);
    }
    return 0;
}
static void on_woke(void *arg) {}
static struct net_hooks hooks = {.woke = on_woke, .turn = on_turn};

static void begin(void) {
    const char *why;
    int fd;
    log_set_level(LOG_LEVEL_NOTHING);
    now_ms = 1000;
    memset(&replica, 0, sizeof(replica));
    memset(&master, 0, sizeof(master));
    master.fd = -1;
    master.cut = SIZE_MAX;
    master.loop = net_loop_create(&hooks);
    CHECK_EQ(net_listen_tcp("127.0.0.1", 0, 16, &fd, &why), TARN_OK);
    master.port = net_port(fd);
    master.listener = net_listener_open(master.loop, fd, on_accept, NULL);
    struct repl_link_config config = {.host = "127.0.0.1",
                                      .port = master.port,
                                      .user = "",
                                      .password = SPAN(""),
                                      .announce_ip = "",
                                      .announce_port = 1,
                                      .timeout_ms = 1000000000};
    replica.link = repl_link_open(master.loop, &config, &ops, NULL, now_ms);
}

static void run(void) {
    phase = 0;
    give_up_ms = clock_mono_ms() + TEST_PATIENCE_MS;
    net_loop_run(master.loop);
    CHECK_EQ(phase, n_phases);
    n_phases = 0;
}

static void end(void) {
    repl_link_close(&replica.link);
    hang_up();
    if (master.listener != NULL) net_listener_close(&master.listener);
    net_loop_destroy(&master.loop);
    buf_free(&replica.seen);
    buf_free(&replica.passed);
    buf_free(&master.heard);
    buf_free(&master.snapshot);
    buf_free(&master.stream);
}

static void letter(struct buf *b, char c) {
    uint32_t n = 2;
    buf_append(b, &n, 4);
    buf_append_char(b, 1);
    buf_append_char(b, c);
}

static void add_end(struct buf *b) {
    uint32_t n = 9;
    uint64_t objects = 0;
    buf_append(b, &n, 4);
    buf_append_char(b, 64);
    buf_append(b, &objects, 8);
}

static void make_snapshot(const char *letters, uint64_t offset) {
    struct buf *b = &master.snapshot;
    char mark[REPL_MARK_LEN + 1];
    repl_new_id(mark);
    buf_clear(b);
    buf_printf(b, "$EOF:%s\r\n", mark);
    repl_write_head(b);
    for (const char *s = letters; *s != '\0'; s++) letter(b, *s);
    add_end(b);
    repl_write_offset(b, offset);
    buf_append(b, mark, REPL_MARK_LEN);
    master.snapshot_offset = offset;
}

static void add_stream(const char *letters) {
    struct buf records = {NULL, 0, 0};
    for (const char *s = letters; *s != '\0'; s++) letter(&records, *s);
    repl_write_effects_header(&master.stream, records.len);
    buf_append(&master.stream, records.data, records.len);
    buf_append_str(&master.stream, "\r\n");
    buf_free(&records);
}

static const char *expected;
static bool has_all(void) {
    return replica.synced && replica.seen.len == strlen(expected) &&
           memcmp(replica.seen.data, expected, replica.seen.len) == 0;
}
static bool acked(void) {
    return master.acked == master.snapshot_offset + master.stream.len;
}

/* --- tests --- */

TEST(snapshot_and_stream) {
    begin();
    make_snapshot("abc", 500);
    add_stream("de");
    buf_append_str(&master.stream, "*1\r\n$4\r\nPING\r\n");
    add_stream("f");
    struct span getack = REPL_GETACK;
    buf_append(&master.stream, getack.data, getack.len);
    expected = "abcdef";
    await(has_all, NULL);
    await(acked, NULL);
    run();
    CHECK_EQ(replica.fulls, 1);
    CHECK_EQ(repl_link_state(replica.link), REPL_LINK_STREAMING);
    /* byte for byte, for replicas of the replica */
    CHECK_EQ(replica.passed.len, master.stream.len);
    CHECK(memcmp(replica.passed.data, master.stream.data, replica.passed.len) == 0);
    end();
}

static bool cut_twice(void) {
    return master.connections > 2 || has_all();
}
static void mend(void) {
    master.cut = SIZE_MAX;
    if (!has_all()) hang_up();
}

/* Wherever the connection ends: what was whole is there once, and the rest follows. */
TEST(cut_at_every_byte) {
    size_t all = 1;
    for (size_t cut = 0; cut < all; cut++) {
        begin();
        make_snapshot("ab", 500);
        add_stream("c");
        buf_append_str(&master.stream, "*1\r\n$4\r\nPING\r\n");
        add_stream("de");
        all = master.snapshot.len + master.stream.len + 200;
        master.cut = cut;
        expected = "abcde";
        await(cut_twice, mend);
        await(has_all, NULL);
        await(acked, NULL);
        run();
        CHECK_EQ(replica.damages, 0);
        end();
    }
}

/* So that nothing may come of it. */
static uint64_t tried_until_ms;
static bool tried(void) {
    return master.connections >= 2 || clock_mono_ms() > tried_until_ms;
}

static char *wrong, right;
static void tell_the_truth(void) {
    *wrong = right;
    master.full_only = true;
    replica.synced = false;
    hang_up();
}

/* Every byte of what a master says, changed: whatever comes of it, it can be asked again. */
TEST(damage_at_every_byte) {
    for (unsigned part = 0; part < 2; part++) {
        for (size_t at = 0;; at++) {
            begin();
            make_snapshot("ab", 500);
            add_stream("c");
            struct buf *b = part == 0 ? &master.snapshot : &master.stream;
            if (at == b->len) {
                end();
                break;
            }
            wrong = &b->data[at];
            right = *wrong;
            *wrong = (char)(right ^ 0x55);
            tried_until_ms = clock_mono_ms() + 10;
            expected = "abc";
            await(tried, tell_the_truth);
            await(has_all, NULL);
            run();
            end();
        }
    }
}

static bool damaged_once(void) {
    return replica.damages >= 1;
}

static void say_better(void) {
    buf_clear(&master.stream);
    add_stream("cd");
}

TEST(a_refused_record_asks_for_everything) {
    begin();
    make_snapshot("ab", 500);
    add_stream("cx");
    expected = "abcd";
    await(damaged_once, say_better);
    await(has_all, NULL);
    run();
    CHECK_EQ(replica.fulls, 2);
    end();
}

static bool much_later(void) {
    return now_ms > 100000;
}

TEST(nobody_there_and_names) {
    begin();
    net_listener_close(&master.listener);
    await(much_later, NULL);
    run();
    CHECK_EQ(replica.fulls, 0);
    repl_link_close(&replica.link);
    struct repl_link_config config = {.host = "no.such.host.invalid",
                                      .port = 1,
                                      .user = "",
                                      .password = SPAN(""),
                                      .announce_ip = "",
                                      .timeout_ms = 1000};
    replica.link = repl_link_open(master.loop, &config, &ops, NULL, now_ms);
    repl_link_cron(replica.link, now_ms);
    CHECK_EQ(repl_link_state(replica.link), REPL_LINK_CONNECTING);
    repl_link_close(&replica.link); /* while its name is being looked up */
    replica.link = repl_link_open(master.loop, &config, &ops, NULL, now_ms);
    end();
}

TEST_MAIN()
