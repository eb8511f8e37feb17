/* meta: batches of metadata commands over plain RESP connections. Requests come from templates in
 * which only digits change, replies are skipped, so that the server is the limit and not this
 * program.
 *
 * A put is MPUTSTART and MPUTEND of keys that were never there (their bytes are not written), a get
 * MGETREPLICAS, with a lease and its RELEASE or without. Every connection keeps `pipeline` batches
 * under way. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmark/meta.h"
#include "transport/place.h"

static const char *const op_names[] = {"put", "get", "exists", "prefix"};
static const char *const commands[] = {"MPUTSTART", "MGETREPLICAS", "MEXISTS", "PREFIXLEN"};

#define DIGITS 16 /* of a key's number, in hex, at its end */

/* A batch under way. */
enum stage { STAGE_FIRST, STAGE_END, STAGE_RELEASE };
struct flight {
    enum stage stage;
    uint64_t first_key, sent_us;
};

struct conn {
    struct wire *w;
    struct flight *flights; /* ring, in the order of the answers */
    size_t head, count, cap;
    size_t batches; /* that are not done */
};

struct meta_worker {
    struct bench_thread t;
    struct meta *m;
    struct conn *conns;
    struct buf request; /* template of the first request of a batch */
    size_t *key_at;     /* where the keys' digits lie in it */
    struct buf key;     /* template of a key in the second one; its digits end before the CRLF */
    uint64_t random;
    uint64_t *numbers; /* tokens or versions of the batch being answered */
    uint64_t done_keys, hits, requests, errors;
};

/* --- templates --- */

static void resp_append(struct buf *b, const char *s) {
    buf_printf(b, "$%zu\r\n%s\r\n", strlen(s), s);
}

#define NUMBER_MAX 27u /* bytes of a number as a bulk string */

static void resp_append_number(struct buf *b, uint64_t v) {
    char digits[24];
    size_t n = u64_to_dec(v, digits);
    buf_reserve(b, NUMBER_MAX);
    char *at = b->data + b->len;
    *at++ = '$';
    at += u64_to_dec(n, at);
    memcpy(at, "\r\n", 2);
    memcpy(at + 2, digits, n);
    memcpy(at + 2 + n, "\r\n", 2);
    b->len = (size_t)(at - b->data) + n + 4;
}

/* Key number `number`, without RESP around it: "vllm@llama-3-70b@8@0@..." filled up to key_size,
 * then the number. */
static void key_append(const struct meta *m, struct buf *b, uint64_t number) {
    static const char stem[] = "vllm@meta-llama/Llama-3-70B@8@0@";
    size_t pad = (size_t)m->key_size - DIGITS;
    for (size_t i = 0; i < pad; i++) buf_append_char(b, i < sizeof(stem) - 1 ? stem[i] : '.');
    buf_reserve(b, DIGITS);
    u64_to_hex(number, DIGITS, b->data + b->len);
    b->len += DIGITS;
}

static void resp_append_key(const struct meta *m, struct buf *b, uint64_t number) {
    buf_printf(b, "$%" PRIu64 "\r\n", m->key_size);
    key_append(m, b, number);
    buf_append(b, "\r\n", 2);
}

static void build_template(struct meta_worker *k) {
    const struct meta *m = k->m;
    bool put = m->op == META_PUT, lease = m->op == META_GET && m->lease_ms > 0,
         replicas = put && m->replicas > 1, packed = put || m->op == META_GET;
    buf_printf(&k->request, "*%" PRIu64 "\r\n",
               (2 + m->batch * (put ? 2 : 1) + (lease || replicas ? 2 : 0) + packed));
    resp_append(&k->request, commands[m->op]);
    resp_append_number(&k->request, m->batch);
    k->key_at = xmalloc(m->batch * sizeof(*k->key_at));
    for (uint64_t i = 0; i < m->batch; i++) {
        resp_append_key(m, &k->request, 0);
        k->key_at[i] = k->request.len - 2 - DIGITS;
        if (put) resp_append_number(&k->request, m->value_size);
    }
    if (lease) {
        resp_append(&k->request, "LEASE");
        resp_append_number(&k->request, m->lease_ms);
    }
    if (replicas) {
        resp_append(&k->request, "REPLICAS");
        resp_append_number(&k->request, m->replicas);
    }
    if (packed) resp_append(&k->request, "PACKED"); /* as libtarn does */
    resp_append_key(m, &k->key, 0);
}

/* --- the conversation --- */

static void push_flight(struct conn *c, enum stage stage, uint64_t first_key, uint64_t sent_us) {
    TARN_ASSERT(c->count < c->cap);
    c->flights[(c->head + c->count++) % c->cap] = (struct flight){stage, first_key, sent_us};
}

/* Look-ups are of the batches that were put, as prompts are: none begins within another. */
static uint64_t first_key(struct meta_worker *k) {
    struct meta *m = k->m;
    if (m->op == META_PUT) {
        uint64_t n = __atomic_fetch_add(&m->next_put, 1, __ATOMIC_RELAXED);
        return m->run + n * m->batch;
    }
    k->random = mix64(k->random);
    return m->keys <= m->batch ? 0 : k->random % (m->keys / m->batch) * m->batch;
}

static void batch_send(struct meta_worker *k, struct conn *c) {
    uint64_t first = first_key(k);
    for (uint64_t i = 0; i < k->m->batch; i++) {
        uint64_t key = first + i;
        if (k->m->op != META_PUT && key >= k->m->keys) key -= k->m->keys;
        u64_to_hex(key, DIGITS, k->request.data + k->key_at[i]);
    }
    buf_append(&c->w->out, k->request.data, k->request.len);
    push_flight(c, STAGE_FIRST, first, clock_mono_us());
    c->batches++;
    k->requests++;
}

/* The version or token of an element, UINT64_MAX where it is nil or an error. */
static uint64_t read_number(struct wire *w) {
    static const struct span packed_head = SPAN("$88\r\n");
    _Static_assert(sizeof(struct place_packed) == 88, "as in its head");
    if (LIKELY(wire_take(w, packed_head))) {
        uint64_t number;
        const char *place = wire_bytes(w, sizeof(struct place_packed) + 2);
        memcpy(&number, place + offsetof(struct place_packed, number), sizeof(number));
        return number;
    }
    size_t len;
    const char *line = wire_line(w, &len);
    if (line[0] == '-') wire_note_error(w, line, len);
    int64_t n = line[0] == '*' ? wire_int(w, line, len) : 0;
    if (n <= 0) return UINT64_MAX;
    line = wire_line(w, &len);
    uint64_t number = (uint64_t)wire_int(w, line, len);
    wire_skip(w, (size_t)n - 1);
    return number;
}

/* The number of each element. Returns how many there are. */
static size_t read_numbers(struct meta_worker *k, struct wire *w) {
    size_t len, found = 0;
    const char *line = wire_line(w, &len);
    if (line[0] == '-') {
        wire_note_error(w, line, len);
        for (uint64_t i = 0; i < k->m->batch; i++) k->numbers[i] = UINT64_MAX;
        return 0;
    }
    if (line[0] != '*' || wire_int(w, line, len) != (int64_t)k->m->batch)
        die("unexpected answer: %.*s", (int)len, line);
    for (uint64_t i = 0; i < k->m->batch; i++) {
        k->numbers[i] = read_number(w);
        found += k->numbers[i] != UINT64_MAX;
    }
    return found;
}

static void append_keys_numbers(struct meta_worker *k, struct buf *out, uint64_t first, bool crc) {
    static const struct span no_crc = SPAN("$2\r\n-1\r\n");
    for (uint64_t i = 0; i < k->m->batch; i++) {
        if (k->numbers[i] == UINT64_MAX) continue;
        uint64_t key = first + i;
        if (k->m->op != META_PUT && key >= k->m->keys) key -= k->m->keys;
        u64_to_hex(key, DIGITS, k->key.data + k->key.len - 2 - DIGITS);
        buf_append(out, k->key.data, k->key.len);
        resp_append_number(out, k->numbers[i]);
        if (crc) buf_append(out, no_crc.data, no_crc.len);
    }
}

static void batch_send_end(struct meta_worker *k, struct conn *c, uint64_t first, size_t n,
                           uint64_t sent_us) {
    struct buf *out = &c->w->out;
    bool values = k->m->value_size <= 64;
    buf_printf(out, "*%zu\r\n$7\r\nMPUTEND\r\n", 2 + 3 * n + (values ? 1 + n : 0));
    resp_append_number(out, n);
    append_keys_numbers(k, out, first, true);
    if (values) resp_append(out, "VALUES");
    static const char bytes[65] =
        "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
    for (size_t i = 0; values && i < n; i++) {
        buf_printf(out, "$%" PRIu64 "\r\n%.*s\r\n", k->m->value_size, (int)k->m->value_size, bytes);
    }
    push_flight(c, STAGE_END, first, sent_us);
    k->requests++;
}

static void batch_send_release(struct meta_worker *k, struct conn *c, uint64_t first, size_t n) {
    buf_printf(&c->w->out, "*%zu\r\n$7\r\nRELEASE\r\n", 2 + 2 * n);
    resp_append_number(&c->w->out, n);
    append_keys_numbers(k, &c->w->out, first, false);
    push_flight(c, STAGE_RELEASE, first, 0);
    k->requests++;
}

static void batch_done(struct meta_worker *k, struct conn *c, uint64_t sent_us) {
    hist_add(&k->t.hist, clock_mono_us() - sent_us);
    k->done_keys += k->m->batch;
    c->batches--;
}

static bool read_flag(struct wire *w) {
    static const struct span yes = SPAN(":1\r\n");
    if (LIKELY(wire_take(w, yes))) return true;
    wire_skip(w, 1);
    return false;
}

/* Reads one answer; may send what follows from it. */
static void batch_answered(struct meta_worker *k, struct conn *c) {
    struct flight f = c->flights[c->head];
    c->head = (c->head + 1) % c->cap;
    c->count--;
    size_t n, len;
    const char *line;
    if (f.stage == STAGE_RELEASE) {
        wire_skip(c->w, 1);
        return;
    }
    if (f.stage == STAGE_END) {
        wire_skip(c->w, 1);
        batch_done(k, c, f.sent_us);
        return;
    }
    switch (k->m->op) {
    case META_PUT:
        n = read_numbers(k, c->w);
        k->hits += n;
        if (n > 0) {
            batch_send_end(k, c, f.first_key, n, f.sent_us);
        } else {
            batch_done(k, c, f.sent_us);
        }
        return;
    case META_GET:
        n = read_numbers(k, c->w);
        k->hits += n;
        if (n > 0 && k->m->lease_ms > 0) batch_send_release(k, c, f.first_key, n);
        break;
    case META_EXISTS:
        line = wire_line(c->w, &len);
        if (line[0] == '-') wire_note_error(c->w, line, len);
        for (int64_t left = line[0] == '*' ? wire_int(c->w, line, len) : 0; left > 0; left--)
            k->hits += read_flag(c->w);
        break;
    case META_PREFIX:
        line = wire_line(c->w, &len);
        if (line[0] == '-') {
            wire_note_error(c->w, line, len);
        } else {
            k->hits += (uint64_t)wire_int(c->w, line, len);
        }
        break;
    }
    batch_done(k, c, f.sent_us);
}

static void meta_worker_open(struct meta_worker *k, struct meta *m, uint64_t index) {
    k->m = m;
    build_template(k);
    k->numbers = xmalloc(m->batch * sizeof(*k->numbers));
    k->random = mix64(m->run + index);
    k->conns = xcalloc(m->clients, sizeof(*k->conns));
    for (uint64_t i = 0; i < m->clients; i++) {
        k->conns[i].w = wire_open(m->b);
        k->conns[i].cap = 3 * m->pipeline + 3;
        k->conns[i].flights = xcalloc(k->conns[i].cap, sizeof(struct flight));
    }
}

static void meta_worker_close(struct meta_worker *k) {
    for (uint64_t i = 0; i < k->m->clients; i++) {
        struct conn *c = &k->conns[i];
        k->errors += c->w->errors;
        if (c->w->errors > 0) snprintf(k->t.error, sizeof(k->t.error), "%s", c->w->error);
        wire_close(&c->w);
        free(c->flights);
    }
    free(k->conns);
    free(k->numbers);
    free(k->key_at);
    buf_free(&k->request);
    buf_free(&k->key);
}

static void *meta_work(void *arg) {
    struct meta_worker *k = arg;
    struct meta *m = k->m;
    bool busy = true;
    while (busy) {
        bool stop = threads_stop(&m->all);
        busy = false;
        for (uint64_t i = 0; i < m->clients; i++) {
            while (!stop && k->conns[i].batches < m->pipeline) batch_send(k, &k->conns[i]);
            wire_flush(k->conns[i].w);
        }
        for (uint64_t i = 0; i < m->clients; i++) {
            if (k->conns[i].count == 0) continue;
            batch_answered(k, &k->conns[i]);
            busy = true;
        }
        busy = busy || !stop;
    }
    meta_worker_close(k);
    return NULL;
}

/* --- the whole --- */

void meta_fill(const struct meta *m) {
    struct meta put = *m;
    put.op = META_PUT;
    put.run = 0;
    put.clients = 1;
    struct meta_worker *k = xcalloc(1, sizeof(*k));
    meta_worker_open(k, &put, 0);
    struct conn *c = k->conns;
    struct progress bar;
    progress_bar(&bar, m->b->json);
    for (uint64_t key = 0; key < m->keys || c->count > 0;) {
        for (; key < m->keys && c->batches < m->pipeline; key += m->batch) batch_send(k, c);
        wire_flush(c->w);
        batch_answered(k, c);
        progress_say(&bar, key, m->keys, "loading");
    }
    progress_end(&bar);
    meta_worker_close(k);
    if (k->errors > 0) die("loading %" PRIu64 " keys: %s", m->keys, k->t.error);
    free(k);
}

static void meta_print(const struct meta *m, const struct meta_result *sum) {
    double rate = (double)sum->done_keys / sum->seconds;
    if (m->b->json) {
        struct buf out = {0};
        json_add(&out,
                 "op:s batch:u keys:u value_size:u key_size:u clients:u threads:u pipeline:u "
                 "lease_ms:u seconds:3 requests:u keys_done:u hits:u errors:u keys_per_s:0",
                 op_names[m->op], m->batch, m->keys, m->value_size, m->key_size, m->clients,
                 m->threads, m->pipeline, m->op == META_GET ? m->lease_ms : 0, sum->seconds,
                 sum->requests, sum->done_keys, sum->hits, sum->errors, rate);
        json_latency(&out, "", &sum->hist);
        json_print(&out);
        return;
    }
    const char *how = m->op != META_GET ? ""
                      : m->lease_ms > 0 ? ", leased and released"
                                        : ", without leases";
    printf("%s, %" PRIu64 " keys a call%s, %" PRIu64 " connections: %.0f keys/s\ncall: ",
           op_names[m->op], m->batch, how, m->clients * m->threads, rate);
    print_latency(&sum->hist);
    printf("%" PRIu64 " of %" PRIu64 " keys %s, %" PRIu64 " errors\n", sum->hits, sum->done_keys,
           m->op == META_PUT ? "stored" : "found", sum->errors);
}

static enum meta_op parse_op(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(op_names); i++) {
        if (strcmp(name, op_names[i]) == 0) return (enum meta_op)i;
    }
    die("--op is put, get, exists or prefix, not \"%s\"", name);
}

void meta_measure(struct meta *m, struct meta_result *result_p) {
    struct bench_thread sum;
    threads_open(&m->all, m->threads, sizeof(struct meta_worker));
    for (uint64_t i = 0; i < m->threads; i++)
        meta_worker_open((struct meta_worker *)threads_at(&m->all, i), m, i);
    uint64_t start = clock_mono_us();
    threads_start(&m->all, meta_work);
    threads_wait(&m->all, m->b, m->seconds, op_names[m->op]);
    (void)threads_join(&m->all, &sum);
    *result_p =
        (struct meta_result){.hist = sum.hist, .seconds = (double)(clock_mono_us() - start) / 1e6};
    for (uint64_t i = 0; i < m->threads; i++) {
        const struct meta_worker *k = (struct meta_worker *)threads_at(&m->all, i);
        result_p->done_keys += k->done_keys;
        result_p->hits += k->hits;
        result_p->requests += k->requests;
        result_p->errors += k->errors;
    }
    threads_close(&m->all);
}

int meta_main(struct bench *b, int argc, char **argv) {
    const char *op = "put";
    struct meta m = {.b = b,
                     .batch = 128,
                     .keys = 100000,
                     .value_size = 4096,
                     .key_size = 64,
                     .replicas = 1,
                     .clients = 1,
                     .threads = 1,
                     .pipeline = 2,
                     .lease_ms = 5000,
                     .seconds = 5};
    const struct option_spec specs[] = {
        {"--op", OPT_STRING, &op, 0, 0},
        {"--batch", OPT_U64, &m.batch, 1, 65536},
        {"--keys", OPT_U64, &m.keys, 1, 1000000000},
        {"--value-size", OPT_BYTES, &m.value_size, 1, UINT64_C(1) << 40},
        {"--key-size", OPT_U64, &m.key_size, DIGITS, 1024},
        {"--replicas", OPT_U64, &m.replicas, 1, 64},
        {"--clients", OPT_U64, &m.clients, 1, 10000},
        {"--threads", OPT_U64, &m.threads, 1, 256},
        {"--pipeline", OPT_U64, &m.pipeline, 1, 64},
        {"--lease-ms", OPT_U64, &m.lease_ms, 0, 600000},
        {"--seconds", OPT_DOUBLE, &m.seconds, 0, 86400},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("meta takes no argument \"%s\"", argv[0]);
    m.op = parse_op(op);
    m.run = clock_wall_us() << 12;
    if (m.op != META_PUT) meta_fill(&m);
    struct meta_result sum;
    meta_measure(&m, &sum);
    meta_print(&m, &sum);
    return sum.errors > 0;
}
