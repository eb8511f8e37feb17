/* A server that answers anything: a master, a data port, a shm socket, a Sentinel and a transfer
 * end in one thread, which says what the script says. A zero in the script, or none left, is an
 * answer that makes sense, so that calls get deep; other bytes choose among sizes and shapes,
 * change what was about to be said, or have it hang up.
 *
 *   script_set ─> the client's calls ─> script_end (waits until all connections are gone) */
#ifndef TARN_TESTS_FUZZ_CLIENT_SERVER_FAKE_H
#define TARN_TESTS_FUZZ_CLIENT_SERVER_FAKE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../buf_splice.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fd_pass.h"
#include "base/segment_header.h"
#include "client/answer.h"
#include "client/client.h"
#include "resp/resp.h"
#include "transfer/transfer.h"
#include "transport/place.h"
#include "transport/shm/shm.h"
#include "transport/tcp/frame.h"

#define VALUES_BYTES (UINT64_C(4) << 20) /* of what is read; as much again for what is put */
#define MEMORY_BYTES (2 * VALUES_BYTES)
#define CONNS_MAX    64u
#define OUT_MAX      (UINT64_C(64) << 20)

enum door { DOOR_RESP, DOOR_DATA, DOOR_SHM, DOORS };
struct fake_conn {
    int fd; /* -1: free */
    enum door door;
    bool closing, greeted;
    struct buf in, out;
    struct resp_parser parser;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const uint8_t *script;
    size_t len, at;
    int listen_fd[DOORS];
    uint16_t port, data_port;
    char shm_path[108];
    int memory_fd;
    char *memory;
    bool written; /* somebody has the memory to write to */
    struct fake_conn conn[CONNS_MAX];
    unsigned n_conns;
    bool shared;  /* its memory is offered by shm, too */
    bool several; /* it is each of several masters, and has a map of them */
} fake = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static const uint64_t fake_sizes[] = {
    100, 0, 5, 64, 65, 5000, 70000, CRC_BLOCK, CRC_BLOCK + 5, VALUES_BYTES - 7};

/* --- the script --- */

static uint8_t next(void) {
    return fake.at < fake.len ? fake.script[fake.at++] : 0;
}

/* Zero most of the time; else below n. */
static unsigned choice(unsigned n) {
    uint8_t byte = next();
    return byte < 128 ? 0 : byte % n;
}

static void change_number(struct buf *b, size_t at) {
    static const char *const edges[] = {
        "0",       "1",          "-1",         "65",      "4096",          "65536",
        "1048577", "2147483648", "4294967296", "8388608", "1099511627776", "9223372036854775807"};
    while (at < b->len && (b->data[at] < '0' || b->data[at] > '9')) at++;
    size_t digits = 0;
    while (at + digits < b->len && b->data[at + digits] >= '0' && b->data[at + digits] <= '9')
        digits++;
    const char *text = edges[next() % ARRAY_LEN(edges)];
    if (digits > 0) buf_splice(b, at, digits, text, strlen(text));
}

/* What was appended since start is not said as it was meant. */
static void change(struct buf *b, size_t start) {
    for (unsigned n = 1 + next() % 3; n > 0 && b->len > start; n--) {
        size_t at = start + ((size_t)next() << 8 | next()) % (b->len - start);
        switch (next() % 6) {
        case 0: b->data[at] = (char)(b->data[at] ^ (1 << next() % 8)); break;
        case 1: b->data[at] = (char)next(); break;
        case 2: buf_splice(b, at, min_u64(1 + next() % 16, b->len - at), "", 0); break;
        case 3: {
            char bytes[8];
            for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (char)next();
            size_t width = min_u64(sizeof(bytes), b->len - at);
            memcpy(b->data + at, bytes, width);
            break;
        }
        default: change_number(b, at);
        }
    }
}

static void say_raw(struct buf *out) {
    for (unsigned n = next(); n > 0 && fake.at < fake.len; n--) buf_append_char(out, (char)next());
}

/* Behind each answer: as it is, or not. false: hang up. */
static bool twist(struct buf *out, size_t start) {
    static const char *const errors[] = {"LOADING 3 of 7",
                                         "STALE epoch",
                                         "NOSPACE none",
                                         "BADTOKEN over",
                                         "TRYAGAIN 1 text",
                                         "ERR what",
                                         "READONLY at 1:2",
                                         "LIMIT of what",
                                         "NOPERM no",
                                         "NOSEGMENT 1",
                                         "TRYAGAIN 99999999999999999999 x",
                                         "PUTBUSY",
                                         "MASTERDOWN x",
                                         "TRYAGAIN -1",
                                         "DENIED x",
                                         "MOVED 5 127.0.0.1:1",
                                         "ASK 16383 127.0.0.1:1",
                                         "CROSSSLOT x",
                                         ""};
    uint8_t how = next();
    if (how < 144) return true;
    if (how < 216) {
        change(out, start);
    } else if (how < 228) {
        out->len = start;
        resp_write_error(out, errors[next() % ARRAY_LEN(errors)]);
    } else if (how < 234) {
        out->len = start;
        say_raw(out);
    } else if (how < 236) {
        out->len = start; /* nothing: somebody will wait in vain */
    } else if (how < 244) {
        static const char *const shapes[] = {"*0\r\n",        "*-1\r\n",
                                             "$-1\r\n",       ":7\r\n",
                                             "$3\r\nabc\r\n", "*1\r\n*1\r\n*1\r\n:1\r\n",
                                             "+x\r\n",        "*2\r\n:1\r\n*2\r\n$-1\r\n:5\r\n"};
        out->len = start;
        buf_append_str(out, shapes[next() % ARRAY_LEN(shapes)]);
    } else if (how < 248) {
        char *copy = xmemdup(out->data + start, out->len - start);
        buf_append(out, copy, out->len - start);
        free(copy);
    } else {
        out->len -= (out->len - start) / 2;
        return false;
    }
    return true;
}

/* --- values --- */

static void fill_memory(void) {
    for (uint64_t i = 0; i < VALUES_BYTES; i++)
        fake.memory[SEGMENT_HEADER_SIZE + i] = (char)(i * 31 + i / 4093);
}

/* By the last byte of its key, most of the time. */
static uint64_t size_of(struct span key) {
    unsigned at = key.len > 0 ? (uint8_t)key.data[key.len - 1] : 0;
    unsigned other = choice(ARRAY_LEN(fake_sizes));
    return fake_sizes[(other != 0 ? other : at) % ARRAY_LEN(fake_sizes)];
}

static uint32_t crc_of(uint64_t from, uint64_t len) {
    static struct {
        uint64_t from, len;
        uint32_t crc;
    } known[16];
    static unsigned n;
    for (unsigned i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].len == len && known[i].from == from) return known[i].crc;
    uint32_t crc = crc32c(0, fake.memory + SEGMENT_HEADER_SIZE + from, len);
    n = (n + 1) % ARRAY_LEN(known);
    known[n].from = from, known[n].len = len, known[n].crc = crc;
    return crc;
}

static bool asked_no_grant; /* by the command that is being answered */

/* Mostly what was asked for. */
static bool says_no_grant(void) {
    return asked_no_grant && choice(8) != 1;
}

static void say_extents(struct buf *out, uint64_t offset, uint64_t size) {
    static const uint8_t grant[GRANT_SIZE] = {1};
    unsigned n = 1 + choice(9);
    if (size < n) n = 1;
    resp_write_array(out, n);
    for (unsigned i = 0; i < n; i++) {
        uint64_t len = i + 1 < n ? size / n : size - size / n * (n - 1);
        resp_write_array(out, 5);
        resp_write_int(out, 1 + choice(3));
        resp_write_int(out, 7);
        resp_write_int(out, (int64_t)offset);
        resp_write_int(out, (int64_t)len);
        resp_write_bulk(out, grant, says_no_grant() ? 0 : sizeof(grant));
        offset += len;
    }
}

static void say_replicas(struct buf *out, uint64_t offset, uint64_t size) {
    static const char *const tiers[] = {"memory", "ssd", "file", "moon"};
    unsigned n = 1 + choice(4);
    resp_write_array(out, n);
    for (unsigned i = 0; i < n; i++) {
        const char *tier = tiers[choice(ARRAY_LEN(tiers))];
        resp_write_array(out, 2);
        resp_write_bulk(out, tier, strlen(tier));
        if (strcmp(tier, "file") != 0) {
            say_extents(out, offset, size);
            continue;
        }
        buf_printf(out, "*1\r\n*2\r\n$13\r\n/proc/cpuinfo\r\n:%llu\r\n", (unsigned long long)size);
    }
}

static void say_packed(struct buf *out, uint64_t number, uint64_t offset, uint64_t size, bool crc) {
    struct place_packed p = {.number = number, .lease_ms = 5000, .extent = {1, 7, offset, size}};
    if (crc) p.flags = PLACE_HAS_CRC, p.crc = crc_of(offset, size);
    resp_write_bulk(out, &p, says_no_grant() ? PLACE_NO_GRANT_SIZE : sizeof(p));
}

static void say_crcs(struct buf *out, uint64_t size) {
    struct buf crcs = {0};
    for (uint64_t at = 0; at < size; at += CRC_BLOCK) {
        uint32_t crc = crc_of(at, min_u64(CRC_BLOCK, size - at));
        buf_append(&crcs, &crc, sizeof(crc));
    }
    resp_write_bulk(out, crcs.data, crcs.len);
    buf_free(&crcs);
}

/* One answer of GETREPLICAS. */
static void say_place(struct buf *out, struct span key, bool crcs) {
    uint64_t size = size_of(key), version = 9 + choice(2);
    unsigned how = choice(6);
    bool inlined = size <= 64 || how == 5;
    if (how == 1) {
        resp_write_null(out, 2);
        return;
    }
    if (how != 2 && !crcs && !inlined) {
        say_packed(out, version, 0, size, how != 3);
        return;
    }
    resp_write_array(out, 7);
    resp_write_int(out, (int64_t)version);
    resp_write_int(out, (int64_t)size);
    resp_write_int(out, 5000);
    resp_write_int(out, how == 3 ? -1 : (int64_t)crc_of(0, size));
    if (!inlined) {
        say_replicas(out, 0, size);
        resp_write_null(out, 2);
    } else {
        resp_write_array(out, 0);
        resp_write_bulk(out, fake.memory + SEGMENT_HEADER_SIZE, size);
    }
    if (crcs && size > CRC_BLOCK && how != 4)
        say_crcs(out, size);
    else
        resp_write_null(out, 2);
}

/* One answer of PUTSTART. */
static void say_space(struct buf *out, uint64_t size, bool packed) {
    unsigned how = choice(5);
    if (how == 1) {
        resp_write_null(out, 2);
    } else if (size > 64 && size <= VALUES_BYTES && packed && how != 2) {
        say_packed(out, 77, VALUES_BYTES, size, false);
    } else {
        resp_write_array(out, 2);
        resp_write_int(out, 77);
        if (size > 64 || how == 3)
            say_replicas(out, VALUES_BYTES, size);
        else
            resp_write_array(out, 0);
    }
}

static void say_field(struct buf *out, const char *name, int64_t value) {
    resp_write_bulk(out, name, strlen(name));
    resp_write_int(out, value);
}

static void say_text(struct buf *out, const char *text) {
    resp_write_bulk(out, text, strlen(text));
}

static void say_segment(struct buf *out, uint64_t id) {
    static const uint8_t grant[GRANT_SIZE] = {2};
    char uri[160];
    unsigned other = choice(3);
    resp_write_array(out, 20);
    say_field(out, "id", (int64_t)id);
    say_field(out, "epoch", 7 + choice(2));
    say_field(out, "size", MEMORY_BYTES);
    say_text(out, "name"), say_text(out, "n.0");
    say_text(out, "node"), say_text(out, other == 2 ? "n" : "");
    say_text(out, "host"), say_text(out, "here");
    say_text(out, "endpoints"), resp_write_array(out, 2);
    snprintf(uri, sizeof(uri), "tcp://127.0.0.1:%u", fake.data_port);
    say_text(out, uri);
    static const char *const odd[] = {NULL, NULL, NULL, "shm", "shm:", "shm://", "tcp", "://"};
    unsigned oddity = choice(ARRAY_LEN(odd));
    snprintf(uri, sizeof(uri), "shm://%s",
             fake.shared != (other == 1) ? fake.shm_path : "/nowhere");
    say_text(out, odd[oddity] != NULL ? odd[oddity] : uri);
    say_text(out, "attach_read"), resp_write_bulk(out, grant, sizeof(grant));
    say_text(out, "attach_write"), resp_write_bulk(out, grant, sizeof(grant));
    say_text(out, "content"), say_text(out, "00000000000000000000000000000000");
}

/* --- commands --- */

static bool has(const struct span *argv, size_t argc, const char *word) {
    for (size_t i = 1; i < argc; i++)
        if (span_case_eq(argv[i], word)) return true;
    return false;
}

static uint64_t number_at(const struct span *argv, size_t argc, size_t at) {
    uint64_t n = 0;
    return at < argc && span_to_u64(argv[at], &n) ? n : 0;
}

static void say_times(struct buf *out, uint64_t n, const char *answer) {
    resp_write_array(out, (size_t)n);
    for (uint64_t i = 0; i < n; i++) buf_append_str(out, answer);
}

/* Keys, or keys and sizes, that are counted by argv[1]. */
static void say_many(struct buf *out, const struct span *argv, size_t argc, bool put) {
    size_t step = put ? 2 : 1, n = (size_t)number_at(argv, argc, 1);
    n = min_u64(n, (argc - 2) / step);
    bool batch = has(argv, argc, "BATCH");
    resp_write_array(out, n + batch);
    for (size_t i = 0; i < n; i++) {
        if (put)
            say_space(out, number_at(argv, argc, 3 + 2 * i), true);
        else
            say_place(out, argv[2 + i], has(argv, argc, "CRCS"));
    }
    if (batch) resp_write_int(out, (int64_t)choice(3));
}

/* MPUTEND. Of a batch, whose size this server does not know: for all, or for as many as there are
 * CRCs. */
static void say_ends(struct buf *out, const struct span *argv, size_t argc) {
    uint64_t n = min_u64(number_at(argv, argc, 1), argc);
    if (n > 0 || argc < 6 || choice(2) == 0) {
        if (n > 0)
            say_times(out, n, "+OK\r\n");
        else
            resp_write_simple(out, "OK");
        return;
    }
    n = argv[5].len / 4;
    resp_write_array(out, n);
    for (uint64_t i = 0; i < n; i++)
        buf_append_str(out, choice(3) == 1 ? "-BADTOKEN it is over\r\n" : "+OK\r\n");
}

/* The parts of one KV group (name kind block unit window drop) for that boundary. */
static void say_kv_group(struct buf *out, struct buf *places, const struct span *argv,
                         uint64_t tokens, uint64_t unit, uint64_t *places_p) {
    uint64_t block = max_u64(number_at(argv, 3, 2), 1), blocks = tokens / block, first = 0;
    uint64_t tail = tokens % block != 0 ? tokens : 0;
    if (span_case_eq(argv[1], "WINDOW")) first = blocks > 2 ? blocks - 2 : 0;
    if (span_case_eq(argv[1], "STATE")) first = blocks - (blocks > 0 && tail == 0);
    if (choice(9) == 1) blocks++;
    resp_write_array(out, 3);
    resp_write_int(out, (int64_t)first);
    resp_write_int(out, (int64_t)(blocks - first));
    resp_write_int(out, (int64_t)tail);
    uint64_t n = blocks - first + (tail > 0);
    *places_p += n;
    for (uint64_t i = 0; i < n; i++) {
        char key = (char)('0' + (i < blocks ? (first + i + 1) * block : tail) / unit % 10);
        say_place(places, span_of(&key, 1), false);
    }
}

/* n hash [hash ...] UNIT tokens ALIGN tokens KVGROUPS m ...; the boundary is among the last. */
static void say_kv_groups(struct buf *out, const struct span *argv, size_t argc) {
    bool replicas = span_case_eq(argv[0], "MGETREPLICAS");
    size_t n = (size_t)number_at(argv, argc, 1), at = n + 7;
    uint64_t unit = max_u64(number_at(argv, argc, n + 3), 1), align = number_at(argv, argc, n + 5);
    uint64_t m = number_at(argv, argc, at), tokens = n * unit, n_places = 0;
    struct buf places = {0};
    tokens -= min_u64(tokens, choice(7) * align);
    resp_write_array(out, replicas ? 3 : 2);
    resp_write_int(out, (int64_t)tokens);
    resp_write_array(out, m);
    for (uint64_t i = 0; i < m && at + 6 * i + 6 < argc; i++)
        say_kv_group(out, &places, argv + at + 1 + 6 * i, tokens, unit, &n_places);
    if (replicas) resp_write_array(out, n_places);
    if (replicas) buf_append(out, places.data, places.len);
    buf_free(&places);
}

static void say_work(struct buf *out) {
    static const char *const items[] = {
        "*2\r\n$5\r\nfence\r\n:5\r\n",
        "*7\r\n$4\r\ncopy\r\n:5\r\n$2\r\nk5\r\n:9\r\n:5000\r\n:1\r\n*1\r\n*2\r\n:4096\r\n:5000\r\n",
        ("*11\r\n$5\r\nstore\r\n:6\r\n$1\r\nk\r\n:9\r\n:100\r\n:-1\r\n$-1\r\n:1\r\n:100\r\n*1\r\n*"
         "2\r\n:0\r\n"
         ":100\r\n:2\r\n"),
        "*5\r\n$4\r\ndrop\r\n:2\r\n:1\r\n:9\r\n:4096\r\n",
        "*3\r\n$7\r\nunmount\r\n:1\r\n:100\r\n",
        "*2\r\n$6\r\ncancel\r\n:5\r\n",
        "*1\r\n$5\r\nleave\r\n",
    };
    unsigned n = choice(4);
    buf_printf(out, "*3\r\n:%llu\r\n*%u\r\n", (unsigned long long)clock_mono_ms(), n);
    for (unsigned i = 0; i < n; i++) buf_append_str(out, items[next() % ARRAY_LEN(items)]);
    resp_write_int(out, 5000);
}

static void say_node(struct buf *out, const struct span *argv, size_t argc) {
    if (span_case_eq(argv[1], "JOIN")) {
        resp_write_array(out, 14);
        say_field(out, "master-epoch", 7);
        say_field(out, "clock", (int64_t)clock_mono_ms());
        say_field(out, "heartbeat", 20);
        say_field(out, "node-timeout", 1000);
        say_field(out, "max-lease", 5000);
        say_text(out, "cluster-id"), say_text(out, "00112233445566778899aabbccddeeff");
        say_text(out, "grant-key"), say_text(out, "0123456789abcdef");
    } else if (span_case_eq(argv[1], "HEARTBEAT")) {
        say_work(out);
    } else if (span_case_eq(argv[1], "DONE") || span_case_eq(argv[1], "OFFER")) {
        say_times(out, min_u64(number_at(argv, argc, 4), 1000), ":1\r\n");
    } else {
        resp_write_simple(out, "OK");
    }
}

static void say_regions(struct buf *out) {
    char grant[GRANT_SIZE] = {3}, address[24];
    resp_write_array(out, 4);
    resp_write_int(out, fake.data_port);
    say_text(out, fake.shared ? fake.shm_path : "");
    say_text(out, "here|"), resp_write_array(out, 2);
    for (int i = 0; i < 2; i++) {
        resp_write_array(out, 14);
        resp_write_int(out, 1 + i);
        resp_write_int(out, 7);
        snprintf(address, sizeof(address), "%llu",
                 4096 + (unsigned long long)MEMORY_BYTES * (unsigned)i);
        say_text(out, address);
        resp_write_int(out, MEMORY_BYTES);
        resp_write_int(out, TARN_TRANSFER_READ | TARN_TRANSFER_WRITE);
        resp_write_int(out, 1);
        say_text(out, "kv");
        for (int g = 0; g < 4; g++) resp_write_bulk(out, grant, sizeof(grant));
        for (int g = 0; g < 3; g++) say_text(out, "");
    }
}

/* What a transfer end says: [number, status, ...]. false: it is no such request. */
static bool say_transfer(struct buf *out, const struct span *argv, size_t argc) {
    static const char *const names[] = {"HELLO", "AUTH",   "REGIONS", "WAIT",
                                        "DONE",  "GIVEUP", "NOTIFY"};
    size_t k = 0;
    while (k < ARRAY_LEN(names) && !span_case_eq(argv[0], names[k])) k++;
    if (k == ARRAY_LEN(names) || argc < 2) return false;
    /* the regions have changed */
    if (choice(8) == 1) buf_append_str(out, "*3\r\n:0\r\n:0\r\n$0\r\n\r\n");
    resp_write_array(out, 3);
    resp_write_int(out, (int64_t)number_at(argv, argc, 1));
    resp_write_int(out, 0);
    if (k == 0) {
        resp_write_array(out, 5);
        resp_write_int(out, TRANSFER_VERSION);
        say_text(out, "0123456789abcdef"), say_text(out, "fedcba9876543210"), say_text(out, ""),
            say_text(out, "far");
    } else if (k == 2) {
        say_regions(out);
    } else {
        say_text(out, "what goes with it");
    }
    return true;
}

static void say_sentinel(struct buf *out, bool replicas) {
    char port[8];
    snprintf(port, sizeof(port), "%u", fake.port);
    if (replicas) {
        resp_write_array(out, 1), resp_write_array(out, 4);
        say_text(out, "ip"), say_text(out, "127.0.0.1"), say_text(out, "port"), say_text(out, port);
        return;
    }
    resp_write_array(out, 2);
    say_text(out, "127.0.0.1"), say_text(out, port);
}

/* All of them are this server. */
static void say_map(struct buf *out) {
    static const char *const rest[] = {"", "moving a b 0-5460\n", "moving c a 10923-16383\n",
                                       "moving b c 6000-9000,9002\nmoving b a 9005\n"};
    struct buf map = {0};
    unsigned epoch = 1 + choice(4), moved = choice(ARRAY_LEN(rest)), none = choice(5);
    buf_printf(&map, "tarn-slots 1\nepoch %u\n", epoch);
    buf_printf(&map, "shard a 7 127.0.0.1:%u 0-5460\n", fake.port);
    if (none == 1)
        buf_append_str(&map, "shard b 7 - 5461-10922\n");
    else
        buf_printf(&map, "shard b 7 127.0.0.1:1,127.0.0.1:%u 5461-10922\n", fake.port);
    buf_printf(&map, "shard c 7 127.0.0.1:%u %s\n%s", none == 2 ? 1 : fake.port,
               epoch == 2 ? "-" : "10923-16383", rest[epoch == 2 ? 0 : moved]);
    resp_write_bulk(out, map.data, map.len);
    buf_free(&map);
}

static void say_info(struct buf *out) {
    char text[128];
    snprintf(text, sizeof(text), "tarn_version:0.1.0\r\nmaster_epoch:%d\r\nnear_sockets:1\r\n%s%s",
             choice(2) == 1 ? 8 : 7, choice(2) == 1 ? "lease_batches:1\r\n" : "",
             choice(2) == 1 ? "put_batches:1\r\nplaces_without_grants:1\r\n" : "");
    say_text(out, text);
}

static void say(struct buf *out, const struct span *argv, size_t argc) {
    uint64_t n = number_at(argv, argc, 1);
    asked_no_grant = has(argv, argc, "NOGRANT");
    if (say_transfer(out, argv, argc)) return;
    if (has(argv, argc, "KVGROUPS")) return say_kv_groups(out, argv, argc);
    if (span_case_eq(argv[0], "MGETREPLICAS")) return say_many(out, argv, argc, false);
    if (span_case_eq(argv[0], "MPUTSTART")) return say_many(out, argv, argc, true);
    if (span_case_eq(argv[0], "GETREPLICAS")) return say_place(out, argv[1], false);
    if (span_case_eq(argv[0], "PUTSTART")) return say_space(out, number_at(argv, argc, 2), false);
    if (span_case_eq(argv[0], "MPUTEND")) return say_ends(out, argv, argc);
    if (span_case_eq(argv[0], "MEXISTS")) return say_times(out, min_u64(n, argc), ":1\r\n");
    if (span_case_eq(argv[0], "PREFIXLEN") || span_case_eq(argv[0], "DEL") ||
        span_case_eq(argv[0], "PIN"))
        return resp_write_int(out, (int64_t)n);
    if (span_case_eq(argv[0], "INFO")) return say_info(out);
    if (span_case_eq(argv[0], "CLIENT") && has(argv, argc, "NEAR"))
        return resp_write_array(out, 3), say_text(out, "tarn-nobody"), say_text(out, "tarn-me"),
               say_text(out, "tarn-word");
    if (span_case_eq(argv[0], "ROLE"))
        return buf_append_str(out, "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
    if (span_case_eq(argv[0], "SENTINEL")) return say_sentinel(out, has(argv, argc, "replicas"));
    if (span_case_eq(argv[0], "CLUSTER")) return say_map(out);
    if (span_case_eq(argv[0], "NODE") && argc > 1) return say_node(out, argv, argc);
    if (span_case_eq(argv[0], "SEGMENT") && argc > 2) {
        if (span_case_eq(argv[1], "INFO")) return say_segment(out, number_at(argv, argc, 2));
        resp_write_array(out, 6);
        say_field(out, "id", 1 + choice(3)), say_field(out, "epoch", 100),
            say_field(out, "kept", choice(2));
        return;
    }
    resp_write_simple(out, "OK");
}

/* --- the doors --- */

static bool serve_resp(struct fake_conn *c) {
    static const struct resp_limits limits = {1u << 20, 1u << 26, 1u << 16, SIZE_MAX, false};
    size_t used;
    while (resp_parse(&c->parser, &limits, c->in.data, c->in.len, &used) == RESP_REQUEST) {
        size_t start = c->out.len;
        bool goes_on = true;
        if (c->parser.argc > 0 && !fake.several && span_case_eq(c->parser.argv[0], "CLUSTER")) {
            resp_write_null(&c->out, 2);
        } else if (c->parser.argc > 0) {
            say(&c->out, c->parser.argv, c->parser.argc);
            if (!span_case_eq(c->parser.argv[0], "CLIENT")) goes_on = twist(&c->out, start);
        }
        buf_consume(&c->in, used);
        if (!goes_on) return false;
    }
    return true;
}

/* Where a part lies, if it does. */
static const char *part_bytes(const struct tcp_part *p) {
    if (p->extent.offset > MEMORY_BYTES || p->sub_offset > MEMORY_BYTES ||
        p->sub_length > MEMORY_BYTES)
        return NULL;
    uint64_t from = p->extent.offset + p->sub_offset;
    return from <= MEMORY_BYTES && p->sub_length <= MEMORY_BYTES - from
               ? fake.memory + SEGMENT_HEADER_SIZE + from
               : NULL;
}

static void say_reply(struct buf *out, const struct tcp_header *rq, const char *meta) {
    struct tcp_header h = {.magic = TCP_MAGIC,
                           .version = TCP_VERSION,
                           .type = TCP_REPLY,
                           .request_id = rq->request_id};
    size_t start = out->len,
           n = rq->type == TCP_READ ? rq->meta_length / sizeof(struct tcp_part) : 0;
    h.status = choice(24);
    buf_append(out, &h, sizeof(h));
    for (size_t i = 0; i < n && h.status == 0; i++) {
        struct tcp_part part;
        memcpy(&part, meta + i * sizeof(part), sizeof(part));
        const char *bytes = part_bytes(&part);
        if (bytes != NULL) buf_append(out, bytes, part.sub_length);
    }
    h.payload_length = out->len - start - sizeof(h);
    unsigned pieces = choice(3);
    if (pieces != 0 && h.payload_length > 1) { /* in two frames */
        struct tcp_header second = h;
        second.payload_length = h.payload_length / 2;
        h.payload_length -= second.payload_length;
        h.flags = TCP_FLAG_MORE;
        buf_splice(out, start + sizeof(h) + h.payload_length, 0, &second, sizeof(second));
    }
    memcpy(out->data + start, &h, sizeof(h));
}

static bool serve_data(struct fake_conn *c) {
    struct tcp_header h;
    for (;;) {
        if (c->in.len < sizeof(h)) return true;
        memcpy(&h, c->in.data, sizeof(h));
        if (h.meta_length > 1u << 20 || h.payload_length > MEMORY_BYTES) return false;
        if (c->in.len < sizeof(h) + h.meta_length + h.payload_length) return true;
        size_t start = c->out.len;
        if (c->greeted) {
            say_reply(&c->out, &h, c->in.data + sizeof(h));
        } else {
            h.version = 0, h.status = choice(24), h.meta_length = sizeof(struct tcp_hello);
            struct tcp_hello hello = {.version_min = TCP_VERSION,
                                      .version_max = TCP_VERSION,
                                      .parts_max = TCP_PARTS_MAX,
                                      .program = TCP_PARTS_MAX};
            buf_append(&c->out, &h, sizeof(h));
            buf_append(&c->out, &hello, sizeof(hello));
            memcpy(&h, c->in.data, sizeof(h));
        }
        c->greeted = true;
        buf_consume(&c->in, sizeof(h) + h.meta_length + h.payload_length);
        uint8_t how = next();
        if (how >= 224) return false;
        if (how >= 160) { /* mostly in its header */
            struct buf head = {0};
            buf_append(&head, c->out.data + start, min_u64(c->out.len - start, sizeof(h)));
            change(&head, 0);
            memcpy(c->out.data + start, head.data, min_u64(head.len, c->out.len - start));
            buf_free(&head);
        }
    }
}

static bool serve_shm(struct fake_conn *c, const struct shm_request *rq) {
    struct shm_reply r = {.magic = SHM_MAGIC,
                          .version = SHM_VERSION,
                          .type = SHM_REPLY,
                          .request_id = rq->request_id,
                          .header_size = SEGMENT_HEADER_SIZE,
                          .size = MEMORY_BYTES,
                          .attachment = 3};
    if (rq->type != SHM_ATTACH) return true;
    fake.written |= rq->writable != 0;
    struct buf bytes = {0};
    uint8_t how = next();
    buf_append(&bytes, &r, how % 2 == 0 ? sizeof(r) : SHM_REPLY_SHORT);
    if (how >= 144) change(&bytes, 0);
    bool ok = fd_pass_send(c->fd, bytes.data, bytes.len, choice(4) != 1 ? fake.memory_fd : -1) > 0;
    buf_free(&bytes);
    return ok && how < 250;
}

/* --- the thread --- */

static void hang_up(struct fake_conn *c) {
    close(c->fd);
    resp_parser_free(&c->parser);
    buf_free(&c->in);
    buf_free(&c->out);
    *c = (struct fake_conn){.fd = -1};
    fake.n_conns--;
    pthread_cond_broadcast(&fake.changed);
}

static bool flush_out(struct fake_conn *c) {
    size_t done = 0;
    while (done < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + done, c->out.len - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) return false;
        if (n <= 0) break;
        done += (size_t)n;
    }
    buf_consume(&c->out, done);
    return c->out.len < OUT_MAX && !(c->closing && c->out.len == 0);
}

/* false: hang up. */
static bool take_turn(struct fake_conn *c, short events) {
    char bytes[65536];
    if (events & (POLLIN | POLLHUP | POLLERR)) {
        ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
        if (n > 0 && c->door == DOOR_SHM)
            return n == sizeof(struct shm_request) && serve_shm(c, (void *)bytes);
        if (n > 0 && !c->closing) {
            buf_append(&c->in, bytes, (size_t)n);
            c->closing = !(c->door == DOOR_RESP ? serve_resp(c) : serve_data(c));
        }
    }
    return flush_out(c);
}

static void welcome(enum door door) {
    int fd = accept(fake.listen_fd[door], NULL, NULL);
    if (fd < 0) return;
    for (unsigned i = 0; i < CONNS_MAX; i++) {
        struct fake_conn *c = &fake.conn[i];
        if (c->fd >= 0) continue;
        *c = (struct fake_conn){.fd = fd, .door = door};
        fake.n_conns++;
        return;
    }
    close(fd);
}

static void *fake_serve(void *arg) {
    (void)arg;
    for (;;) {
        struct pollfd p[DOORS + CONNS_MAX];
        for (unsigned i = 0; i < DOORS; i++)
            p[i] = (struct pollfd){.fd = fake.listen_fd[i], .events = POLLIN};
        for (unsigned i = 0; i < CONNS_MAX; i++) {
            struct fake_conn *c = &fake.conn[i];
            p[DOORS + i] = (struct pollfd){
                .fd = c->fd, .events = (short)(POLLIN | (c->out.len > 0 ? POLLOUT : 0))};
        }
        if (poll(p, DOORS + CONNS_MAX, -1) < 0) continue;
        pthread_mutex_lock(&fake.mutex);
        for (unsigned i = 0; i < CONNS_MAX; i++) {
            struct fake_conn *c = &fake.conn[i];
            if (c->fd >= 0 && p[DOORS + i].revents != 0 && !take_turn(c, p[DOORS + i].revents))
                hang_up(c);
        }
        for (unsigned i = 0; i < DOORS; i++)
            if (p[i].revents != 0) welcome((enum door)i);
        pthread_mutex_unlock(&fake.mutex);
    }
    return NULL;
}

static int listen_tcp(uint16_t *port_p) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TARN_ASSERT(bind(fd, (struct sockaddr *)&a, len) == 0 && listen(fd, 64) == 0);
    TARN_ASSERT(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    *port_p = ntohs(a.sin_port);
    return fd;
}

static void make_memory(void) {
    uint64_t size = SEGMENT_HEADER_SIZE + MEMORY_BYTES;
    fake.memory_fd = memfd_create("fuzz", MFD_CLOEXEC);
    TARN_ASSERT(ftruncate(fake.memory_fd, (off_t)size) == 0);
    fake.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fake.memory_fd, 0);
    TARN_ASSERT(fake.memory != MAP_FAILED);
    struct segment_header h = {.version = SEGMENT_HEADER_VERSION,
                               .segment_id = 1,
                               .epoch = 7,
                               .size = MEMORY_BYTES,
                               .header_size = SEGMENT_HEADER_SIZE,
                               .master_epoch = 7,
                               .segment_epoch = 7};
    memcpy(h.magic, SEGMENT_HEADER_MAGIC, sizeof(h.magic));
    h.crc = segment_header_crc(&h);
    memcpy(fake.memory, &h, sizeof(h));
    fill_memory();
}

static void fake_start(void) {
    pthread_t thread;
    const char *dir = getenv("TMPDIR");
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    make_memory();
    fake.listen_fd[DOOR_RESP] = listen_tcp(&fake.port);
    fake.listen_fd[DOOR_DATA] = listen_tcp(&fake.data_port);
    fake.listen_fd[DOOR_SHM] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(fake.shm_path, sizeof(fake.shm_path), "%.60s/fuzz-%d.shm", dir != NULL ? dir : "/tmp",
             (int)getpid());
    memcpy(un.sun_path, fake.shm_path, sizeof(un.sun_path));
    unlink(fake.shm_path);
    TARN_ASSERT(bind(fake.listen_fd[DOOR_SHM], (struct sockaddr *)&un, sizeof(un)) == 0);
    TARN_ASSERT(listen(fake.listen_fd[DOOR_SHM], 64) == 0);
    for (unsigned i = 0; i < CONNS_MAX; i++) fake.conn[i].fd = -1;
    TARN_ASSERT(pthread_create(&thread, NULL, fake_serve, NULL) == 0);
    pthread_detach(thread);
}

static void fake_stop(void) {
    unlink(fake.shm_path);
}

static void script_set(const uint8_t *data, size_t len, bool shared, bool several) {
    pthread_mutex_lock(&fake.mutex);
    if (fake.written) fill_memory();
    fake.written = false;
    fake.shared = shared;
    fake.several = several;
    fake.script = data, fake.len = len, fake.at = 0;
    pthread_mutex_unlock(&fake.mutex);
}

static void script_end(void) {
    pthread_mutex_lock(&fake.mutex);
    while (fake.n_conns > 0) pthread_cond_wait(&fake.changed, &fake.mutex);
    fake.script = NULL, fake.len = fake.at = 0;
    pthread_mutex_unlock(&fake.mutex);
}

#endif
