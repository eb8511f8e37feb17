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

static const char *const op_names[] = {"put", "get", "exists", "prefix"};
static const char *const commands[] = {"MPUTSTART", "MGETREPLICAS", "MEXISTS", "PREFIXLEN"};

#define DIGITS META_DIGITS /* of a key's number, in hex, at its end */

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

struct worker {
    struct meta *m;
    pthread_t thread;
    unsigned index;
    struct buf request; /* template of the first request of a batch */
    size_t *key_at;     /* where the keys' digits lie in it */
    uint64_t random;
    uint64_t *numbers; /* tokens or versions of the batch being answered */
    struct meta_result r;
};

/* --- templates --- */

static void append_arg(struct buf *b, const char *s) {
    buf_printf(b, "$%zu\r\n%s\r\n", strlen(s), s);
}

static void append_number(struct buf *b, uint64_t v) {
    char digits[24];
    size_t n = u64_to_dec(v, digits);
    buf_printf(b, "$%zu\r\n%.*s\r\n", n, (int)n, digits);
}

void meta_key(const struct meta *m, struct buf *b, uint64_t number) {
    static const char stem[] = "vllm@meta-llama/Llama-3-70B@8@0@";
    size_t pad = (size_t)m->key_size - DIGITS;
    for (size_t i = 0; i < pad; i++) buf_append_char(b, i < sizeof(stem) - 1 ? stem[i] : '.');
    buf_reserve(b, DIGITS);
    u64_to_hex(number, DIGITS, b->data + b->len);
    b->len += DIGITS;
}

static void append_key(const struct meta *m, struct buf *b, uint64_t number) {
    buf_printf(b, "$%llu\r\n", (unsigned long long)m->key_size);
    meta_key(m, b, number);
    buf_append(b, "\r\n", 2);
}

static void build_template(struct worker *k) {
    const struct meta *m = k->m;
    bool put = m->op == META_PUT, lease = m->op == META_GET && m->lease_ms > 0,
         replicas = put && m->replicas > 1;
    buf_printf(&k->request, "*%llu\r\n",
               (unsigned long long)(2 + m->batch * (put ? 2 : 1) + (lease || replicas ? 2 : 0)));
    append_arg(&k->request, commands[m->op]);
    append_number(&k->request, m->batch);
    k->key_at = xmalloc(m->batch * sizeof(*k->key_at));
    for (uint64_t i = 0; i < m->batch; i++) {
        append_key(m, &k->request, 0);
        k->key_at[i] = k->request.len - 2 - DIGITS;
        if (put) append_number(&k->request, m->value_size);
    }
    if (lease) {
        append_arg(&k->request, "LEASE");
        append_number(&k->request, m->lease_ms);
    }
    if (replicas) {
        append_arg(&k->request, "REPLICAS");
        append_number(&k->request, m->replicas);
    }
}

/* --- the conversation --- */

static void push_flight(struct conn *c, enum stage stage, uint64_t first_key, uint64_t sent_us) {
    TARN_ASSERT(c->count < c->cap);
    c->flights[(c->head + c->count++) % c->cap] = (struct flight){stage, first_key, sent_us};
}

static uint64_t first_key(struct worker *k) {
    struct meta *m = k->m;
    if (m->op == META_PUT) {
        uint64_t n = __atomic_fetch_add(&m->next_put, 1, __ATOMIC_RELAXED);
        return m->run + n * m->batch;
    }
    k->random = mix64(k->random);
    return m->keys <= m->batch ? 0 : k->random % (m->keys - m->batch + 1);
}

static void send_batch(struct worker *k, struct conn *c) {
    uint64_t first = first_key(k);
    for (uint64_t i = 0; i < k->m->batch; i++) {
        uint64_t key = first + i;
        if (k->m->op != META_PUT && key >= k->m->keys) key -= k->m->keys;
        u64_to_hex(key, DIGITS, k->request.data + k->key_at[i]);
    }
    buf_append(&c->w->out, k->request.data, k->request.len);
    push_flight(c, STAGE_FIRST, first, clock_mono_us());
    c->batches++;
    k->r.requests++;
}

/* The first integer of each element, UINT64_MAX where it is nil or an error. Returns how many there
 * are. */
static size_t read_numbers(struct worker *k, struct wire *w) {
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
        k->numbers[i] = UINT64_MAX;
        line = wire_line(w, &len);
        if (line[0] == '-') wire_note_error(w, line, len);
        if (line[0] != '*') continue;
        int64_t n = wire_int(w, line, len);
        if (n <= 0) continue;
        line = wire_line(w, &len);
        k->numbers[i] = (uint64_t)wire_int(w, line, len);
        wire_skip(w, (size_t)n - 1);
        found++;
    }
    return found;
}

static void append_keys_numbers(struct worker *k, struct buf *out, uint64_t first, bool crc) {
    for (uint64_t i = 0; i < k->m->batch; i++) {
        if (k->numbers[i] == UINT64_MAX) continue;
        uint64_t key = first + i;
        if (k->m->op != META_PUT && key >= k->m->keys) key -= k->m->keys;
        append_key(k->m, out, key);
        append_number(out, k->numbers[i]);
        if (crc) append_arg(out, "-1");
    }
}

static void send_end(struct worker *k, struct conn *c, uint64_t first, size_t n, uint64_t sent_us) {
    struct buf *out = &c->w->out;
    bool values = k->m->value_size <= 64;
    buf_printf(out, "*%zu\r\n$7\r\nMPUTEND\r\n", 2 + 3 * n + (values ? 1 + n : 0));
    append_number(out, n);
    append_keys_numbers(k, out, first, true);
    if (values) append_arg(out, "VALUES");
    static const char bytes[65] =
        "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
    for (size_t i = 0; values && i < n; i++) {
        buf_printf(out, "$%llu\r\n%.*s\r\n", (unsigned long long)k->m->value_size,
                   (int)k->m->value_size, bytes);
    }
    push_flight(c, STAGE_END, first, sent_us);
    k->r.requests++;
}

static void send_release(struct worker *k, struct conn *c, uint64_t first, size_t n) {
    buf_printf(&c->w->out, "*%zu\r\n$7\r\nRELEASE\r\n", 2 + 2 * n);
    append_number(&c->w->out, n);
    append_keys_numbers(k, &c->w->out, first, false);
    push_flight(c, STAGE_RELEASE, first, 0);
    k->r.requests++;
}

static void batch_done(struct worker *k, struct conn *c, uint64_t sent_us) {
    hist_add(&k->r.hist, clock_mono_us() - sent_us);
    k->r.done_keys += k->m->batch;
    c->batches--;
}

/* Reads one answer; may send what follows from it. */
static void answer(struct worker *k, struct conn *c) {
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
        k->r.hits += n;
        if (n > 0) {
            send_end(k, c, f.first_key, n, f.sent_us);
        } else {
            batch_done(k, c, f.sent_us);
        }
        return;
    case META_GET:
        n = read_numbers(k, c->w);
        k->r.hits += n;
        if (n > 0 && k->m->lease_ms > 0) send_release(k, c, f.first_key, n);
        break;
    case META_EXISTS:
        line = wire_line(c->w, &len);
        if (line[0] == '-') wire_note_error(c->w, line, len);
        for (int64_t left = line[0] == '*' ? wire_int(c->w, line, len) : 0; left > 0; left--) {
            line = wire_line(c->w, &len);
            k->r.hits += len == 2 && line[1] == '1';
        }
        break;
    case META_PREFIX:
        line = wire_line(c->w, &len);
        if (line[0] == '-') {
            wire_note_error(c->w, line, len);
        } else {
            k->r.hits += (uint64_t)wire_int(c->w, line, len);
        }
        break;
    }
    batch_done(k, c, f.sent_us);
}

static void *work(void *arg) {
    struct worker *k = arg;
    struct meta *m = k->m;
    build_template(k);
    k->numbers = xmalloc(m->batch * sizeof(*k->numbers));
    k->random = mix64(m->run + k->index);
    struct conn *conns = xcalloc(m->clients, sizeof(*conns));
    for (uint64_t i = 0; i < m->clients; i++) {
        conns[i].w = wire_open(m->b);
        conns[i].cap = 3 * m->pipeline + 3;
        conns[i].flights = xcalloc(conns[i].cap, sizeof(struct flight));
    }
    bool busy = true;
    while (busy) {
        bool stop = __atomic_load_n(&m->stop, __ATOMIC_RELAXED);
        busy = false;
        for (uint64_t i = 0; i < m->clients; i++) {
            while (!stop && conns[i].batches < m->pipeline) send_batch(k, &conns[i]);
            wire_flush(conns[i].w);
        }
        for (uint64_t i = 0; i < m->clients; i++) {
            if (conns[i].count == 0) continue;
            answer(k, &conns[i]);
            busy = true;
        }
        busy = busy || !stop;
    }
    for (uint64_t i = 0; i < m->clients; i++) {
        k->r.errors += conns[i].w->errors;
        if (conns[i].w->errors > 0)
            snprintf(k->r.error, sizeof(k->r.error), "%s", conns[i].w->error);
        wire_close(&conns[i].w);
        free(conns[i].flights);
    }
    free(conns);
    free(k->numbers);
    free(k->key_at);
    buf_free(&k->request);
    return NULL;
}

/* --- the whole --- */

void meta_fill(const struct meta *m) {
    struct meta put = *m;
    put.op = META_PUT;
    put.run = 0;
    put.stop = true;
    struct worker *k = xcalloc(1, sizeof(*k));
    k->m = &put;
    build_template(k);
    k->numbers = xmalloc(m->batch * sizeof(*k->numbers));
    struct conn c = {.w = wire_open(m->b), .cap = 3 * m->pipeline + 3};
    c.flights = xcalloc(c.cap, sizeof(struct flight));
    struct progress bar;
    progress_bar(&bar, m->b->json);
    for (uint64_t key = 0; key < m->keys || c.count > 0;) {
        for (; key < m->keys && c.batches < m->pipeline; key += m->batch) send_batch(k, &c);
        wire_flush(c.w);
        answer(k, &c);
        progress_say(&bar, key, m->keys, "loading");
    }
    progress_end(&bar);
    if (c.w->errors > 0) die("loading %llu keys: %s", (unsigned long long)m->keys, c.w->error);
    wire_close(&c.w);
    free(c.flights);
    free(k->numbers);
    free(k->key_at);
    buf_free(&k->request);
    free(k);
}

static void print(const struct meta *m, const struct meta_result *sum) {
    struct latency l = latency_of(&sum->hist);
    double rate = (double)sum->done_keys / sum->seconds;
    if (m->b->json) {
        struct buf out = {0};
        buf_printf(
            &out,
            "{\"op\":\"%s\",\"batch\":%llu,\"keys\":%llu,\"value_size\":%llu,\"key_size\":%llu,"
            "\"clients\":%llu,"
            "\"threads\":%llu,\"pipeline\":%llu,\"lease_ms\":%llu,\"seconds\":%.3f,\"requests\":%"
            "llu,"
            "\"keys_done\":%llu,"
            "\"hits\":%llu,\"errors\":%llu,\"keys_per_s\":%.0f",
            op_names[m->op], (unsigned long long)m->batch, (unsigned long long)m->keys,
            (unsigned long long)m->value_size, (unsigned long long)m->key_size,
            (unsigned long long)m->clients, (unsigned long long)m->threads,
            (unsigned long long)m->pipeline,
            (unsigned long long)(m->op == META_GET ? m->lease_ms : 0), sum->seconds,
            (unsigned long long)sum->requests, (unsigned long long)sum->done_keys,
            (unsigned long long)sum->hits, (unsigned long long)sum->errors, rate);
        json_latency(&out, "", &l);
        printf("%.*s}\n", (int)out.len, out.data);
        buf_free(&out);
        return;
    }
    const char *how = m->op != META_GET ? ""
                      : m->lease_ms > 0 ? ", leased and released"
                                        : ", without leases";
    printf("%s, %llu keys a call%s, %llu connections: %.0f keys/s\n", op_names[m->op],
           (unsigned long long)m->batch, how, (unsigned long long)(m->clients * m->threads), rate);
    printf("call: avg %.0f us, p50 %.0f, p90 %.0f, p95 %.0f, p99 %.0f, p99.9 %.0f, max %.0f\n",
           l.avg, l.p50, l.p90, l.p95, l.p99, l.p999, l.max);
    printf("%llu of %llu keys %s, %llu errors\n", (unsigned long long)sum->hits,
           (unsigned long long)sum->done_keys, m->op == META_PUT ? "stored" : "found",
           (unsigned long long)sum->errors);
}

static enum meta_op parse_op(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(op_names); i++) {
        if (strcmp(name, op_names[i]) == 0) return (enum meta_op)i;
    }
    die("--op is put, get, exists or prefix, not \"%s\"", name);
}

static void run_workers(struct meta *m, struct worker *workers) {
    struct progress bar;
    progress_bar(&bar, m->b->json);
    uint64_t start = clock_mono_us(), total = (uint64_t)(m->seconds * 1e6);
    for (uint64_t i = 0; i < m->threads; i++) {
        workers[i].m = m;
        workers[i].index = (unsigned)i;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            die("cannot start a thread");
    }
    while (clock_mono_us() - start < total) {
        uint64_t left = total - (clock_mono_us() - start);
        usleep((unsigned)(left < 100000 ? left : 100000));
        progress_say(&bar, (clock_mono_us() - start), total, "%s", op_names[m->op]);
    }
    __atomic_store_n(&m->stop, true, __ATOMIC_RELAXED);
    for (uint64_t i = 0; i < m->threads; i++) pthread_join(workers[i].thread, NULL);
    progress_end(&bar);
}

void meta_measure(struct meta *m, struct meta_result *sum) {
    m->stop = false;
    struct worker *workers = xcalloc(m->threads, sizeof(*workers));
    uint64_t start = clock_mono_us();
    run_workers(m, workers);
    *sum = workers[0].r;
    sum->seconds = (double)(clock_mono_us() - start) / 1e6;
    for (uint64_t i = 1; i < m->threads; i++) {
        const struct meta_result *r = &workers[i].r;
        hist_merge(&sum->hist, &r->hist);
        sum->done_keys += r->done_keys;
        sum->hits += r->hits;
        sum->requests += r->requests;
        sum->errors += r->errors;
        if (r->error[0]) memcpy(sum->error, r->error, sizeof(sum->error));
    }
    free(workers);
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
        {"--op", OPT_STRING, &op, 0, 0, NULL},
        {"--batch", OPT_U64, &m.batch, 1, 65536, NULL},
        {"--keys", OPT_U64, &m.keys, 1, 1000000000, NULL},
        {"--value-size", OPT_BYTES, &m.value_size, 1, UINT64_C(1) << 40, NULL},
        {"--key-size", OPT_U64, &m.key_size, DIGITS, 1024, NULL},
        {"--replicas", OPT_U64, &m.replicas, 1, 64, NULL},
        {"--clients", OPT_U64, &m.clients, 1, 10000, NULL},
        {"--threads", OPT_U64, &m.threads, 1, 256, NULL},
        {"--pipeline", OPT_U64, &m.pipeline, 1, 64, NULL},
        {"--lease-ms", OPT_U64, &m.lease_ms, 0, 600000, NULL},
        {"--seconds", OPT_DOUBLE, &m.seconds, 0, 86400, NULL},
        {NULL, OPT_FLAG, NULL, 0, 0, NULL},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("meta takes no argument \"%s\"", argv[0]);
    m.op = parse_op(op);
    m.run = clock_wall_us() << 12;
    if (m.op != META_PUT) meta_fill(&m);
    struct meta_result sum;
    meta_measure(&m, &sum);
    print(&m, &sum);
    if (sum.errors > 0)
        fprintf(stderr, "tarn-benchmark: %llu errors, such as: %s\n",
                (unsigned long long)sum.errors, sum.error);
    return sum.errors > 0;
}
