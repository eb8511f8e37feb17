/* meta: batches of metadata commands over plain RESP connections. Requests come from templates in
 * which only digits change, replies are skipped, so that the server is the limit and not this
 * program.
 *
 * A put is MPUTSTART and MPUTEND of keys that were never there (their bytes are not written), a get
 * MGETREPLICAS, with a lease and its RELEASE or without. Every connection keeps `pipeline` batches
 * under way; or, with a rate, each batch has a time when it is due, whether or not what was due
 * before has been answered, and its latency counts from there. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "benchmark/meta.h"
#include "transport/place.h"

const char *const meta_op_names[] = {"put", "get", "exists", "prefix", NULL};
static const char *const commands[] = {"MPUTSTART", "MGETREPLICAS", "MEXISTS", "PREFIXLEN"};

/* A batch under way. */
enum stage { STAGE_FIRST, STAGE_END, STAGE_RELEASE };
struct flight {
    enum stage stage;
    enum meta_op op;
    uint64_t first_key, from_us; /* it was sent, or due */
    size_t found;                /* of its keys, by the first answer */
};

struct conn {
    struct wire *w;
    struct flight *flights; /* ring, in the order of the answers */
    size_t head, count, cap;
    size_t batches;  /* that are not done */
    uint64_t due_ns; /* the next one, with a rate */
};

/* The first request of a batch, but for the digits of its keys. */
struct template {
    struct buf request;
    size_t *key_at;
};

struct meta_worker {
    struct bench_thread t;
    struct meta *m;
    struct conn *conns;
    struct template own, put; /* of the operation; of the puts among them */
    struct buf key;           /* template of a key in the second request; it ends with the CRLF */
    struct rng random;
    double interval_ns; /* between two batches of a connection, with a rate */
    uint64_t *numbers;  /* tokens or versions of the batch being answered */
    bool leases;        /* the batch of their leases comes behind those of a get */
    uint64_t lease_batch;
    struct meta_result did;
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
    size_t pad = (size_t)m->key_size - META_DIGITS;
    for (size_t i = 0; i < pad; i++) buf_append_char(b, i < sizeof(stem) - 1 ? stem[i] : '.');
    buf_reserve(b, META_DIGITS);
    u64_to_hex(number, META_DIGITS, b->data + b->len);
    b->len += META_DIGITS;
}

static void resp_append_key(const struct meta *m, struct buf *b, uint64_t number) {
    buf_printf(b, "$%" PRIu64 "\r\n", m->key_size);
    key_append(m, b, number);
    buf_append(b, "\r\n", 2);
}

/* lease_batch: its leases are to be a batch. */
static void template_build(const struct meta *m, enum meta_op op, bool lease_batch,
                           struct template *t) {
    bool put = op == META_PUT, lease = op == META_GET && m->lease_ms > 0,
         replicas = put && m->replicas > 1, packed = put || op == META_GET;
    buf_printf(&t->request, "*%" PRIu64 "\r\n",
               (2 + m->batch * (put ? 2 : 1) + (lease || replicas ? 2 : 0) + packed + lease_batch));
    resp_append(&t->request, commands[op]);
    resp_append_number(&t->request, m->batch);
    t->key_at = xmalloc(m->batch * sizeof(*t->key_at));
    for (uint64_t i = 0; i < m->batch; i++) {
        resp_append_key(m, &t->request, 0);
        t->key_at[i] = t->request.len - 2 - META_DIGITS;
        if (put) resp_append_number(&t->request, m->value_size);
    }
    if (lease) {
        resp_append(&t->request, "LEASE");
        resp_append_number(&t->request, m->lease_ms);
    }
    if (replicas) {
        resp_append(&t->request, "REPLICAS");
        resp_append_number(&t->request, m->replicas);
    }
    if (packed) resp_append(&t->request, "PACKED"); /* as libtarn does, and this */
    if (lease_batch) resp_append(&t->request, "BATCH");
}

static void template_free(struct template *t) {
    free(t->key_at);
    buf_free(&t->request);
}

/* --- the conversation --- */

static void push_flight(struct conn *c, struct flight f) {
    TARN_ASSERT(c->count < c->cap);
    c->flights[(c->head + c->count++) % c->cap] = f;
}

/* Look-ups are of the batches that were put, as prompts are: none begins within another. */
static uint64_t first_key(struct meta_worker *k, enum meta_op op) {
    struct meta *m = k->m;
    if (op == META_PUT) {
        uint64_t n = __atomic_fetch_add(&m->next_put, 1, __ATOMIC_RELAXED);
        return m->run + n * m->batch;
    }
    return m->keys <= m->batch ? 0 : rng_below(&k->random, m->keys / m->batch) * m->batch;
}

/* Number i of a batch: look-ups begin again after the last key. */
static uint64_t key_number(const struct meta *m, enum meta_op op, uint64_t first, uint64_t i) {
    uint64_t key = first + i;
    return op != META_PUT && key >= m->keys ? key - m->keys : key;
}

static void batch_send(struct meta_worker *k, struct conn *c, uint64_t from_us) {
    struct meta *m = k->m;
    bool put = m->op == META_PUT || (m->puts > 0 && rng_below(&k->random, 100) < m->puts);
    enum meta_op op = put ? META_PUT : m->op;
    struct template *t = op == m->op ? &k->own : &k->put;
    uint64_t first = first_key(k, op);
    for (uint64_t i = 0; i < m->batch; i++)
        u64_to_hex(key_number(m, op, first, i), META_DIGITS, t->request.data + t->key_at[i]);
    buf_append(&c->w->out, t->request.data, t->request.len);
    push_flight(c, (struct flight){STAGE_FIRST, op, first, from_us, 0});
    c->batches++;
    k->did.requests++;
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

/* The number of each element, and the batch of leases behind them. Returns how many there are. */
static size_t read_numbers(struct meta_worker *k, struct wire *w, bool leases) {
    size_t len, found = 0;
    const char *line = wire_line(w, &len);
    if (line[0] == '-') {
        wire_note_error(w, line, len);
        for (uint64_t i = 0; i < k->m->batch; i++) k->numbers[i] = UINT64_MAX;
        return 0;
    }
    if (line[0] != '*' || wire_int(w, line, len) != (int64_t)k->m->batch + leases)
        die("unexpected answer: %.*s", (int)len, line);
    for (uint64_t i = 0; i < k->m->batch; i++) {
        k->numbers[i] = read_number(w);
        found += k->numbers[i] != UINT64_MAX;
    }
    if (leases) {
        line = wire_line(w, &len);
        k->lease_batch = (uint64_t)wire_int(w, line, len);
    }
    return found;
}

static void append_keys_numbers(struct meta_worker *k, struct buf *out, struct flight f) {
    static const struct span no_crc = SPAN("$2\r\n-1\r\n");
    for (uint64_t i = 0; i < k->m->batch; i++) {
        if (k->numbers[i] == UINT64_MAX) continue;
        u64_to_hex(key_number(k->m, f.op, f.first_key, i), META_DIGITS,
                   k->key.data + k->key.len - 2 - META_DIGITS);
        buf_append(out, k->key.data, k->key.len);
        resp_append_number(out, k->numbers[i]);
        if (f.op == META_PUT) buf_append(out, no_crc.data, no_crc.len);
    }
}

static void batch_send_end(struct meta_worker *k, struct conn *c, struct flight f, size_t n) {
    struct buf *out = &c->w->out;
    bool values = k->m->value_size <= 64;
    buf_printf(out, "*%zu\r\n$7\r\nMPUTEND\r\n", 2 + 3 * n + (values ? 1 + n : 0));
    resp_append_number(out, n);
    append_keys_numbers(k, out, f);
    if (values) resp_append(out, "VALUES");
    static const char bytes[65] =
        "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
    for (size_t i = 0; values && i < n; i++) {
        buf_printf(out, "$%" PRIu64 "\r\n%.*s\r\n", k->m->value_size, (int)k->m->value_size, bytes);
    }
    f.stage = STAGE_END;
    push_flight(c, f);
    k->did.requests++;
}

static void batch_send_release(struct meta_worker *k, struct conn *c, struct flight f, size_t n) {
    if (k->leases) {
        buf_append_str(&c->w->out, "*4\r\n$7\r\nRELEASE\r\n$1\r\n0\r\n$5\r\nBATCH\r\n");
        resp_append_number(&c->w->out, k->lease_batch);
        f.stage = STAGE_RELEASE;
        push_flight(c, f);
        k->did.requests++;
        return;
    }
    buf_printf(&c->w->out, "*%zu\r\n$7\r\nRELEASE\r\n", 2 + 2 * n);
    resp_append_number(&c->w->out, n);
    append_keys_numbers(k, &c->w->out, f);
    f.stage = STAGE_RELEASE;
    push_flight(c, f);
    k->did.requests++;
}

static void batch_done(struct meta_worker *k, struct conn *c, struct flight f) {
    uint64_t took_us = clock_mono_us() - f.from_us;
    c->batches--;
    if (f.op != k->m->op) {
        hist_add(&k->did.put_hist, took_us);
        k->did.put_keys += f.found;
        return;
    }
    hist_add(&k->t.hist, took_us);
    k->did.done_keys += k->m->batch;
}

static bool read_flag(struct wire *w) {
    static const struct span yes = SPAN(":1\r\n");
    if (LIKELY(wire_take(w, yes))) return true;
    wire_skip(w, 1);
    return false;
}

static size_t read_exists(struct wire *w) {
    size_t len, found = 0;
    const char *line = wire_line(w, &len);
    if (line[0] == '-') wire_note_error(w, line, len);
    for (int64_t left = line[0] == '*' ? wire_int(w, line, len) : 0; left > 0; left--)
        found += read_flag(w);
    return found;
}

static size_t read_prefix(struct wire *w) {
    size_t len;
    const char *line = wire_line(w, &len);
    if (line[0] != '-') return (size_t)wire_int(w, line, len);
    wire_note_error(w, line, len);
    return 0;
}

/* Reads one answer; may send what follows from it. */
static void batch_answered(struct meta_worker *k, struct conn *c) {
    struct flight f = c->flights[c->head];
    c->head = (c->head + 1) % c->cap;
    c->count--;
    size_t n = 0;
    if (f.stage != STAGE_FIRST) {
        wire_skip(c->w, 1);
        if (f.stage == STAGE_END) batch_done(k, c, f);
        return;
    }
    switch (f.op) {
    case META_PUT:
        f.found = n = read_numbers(k, c->w, k->leases && f.op == META_GET);
        if (n > 0) batch_send_end(k, c, f, n);
        break;
    case META_GET:
        n = read_numbers(k, c->w, k->leases && f.op == META_GET);
        if (n > 0 && k->m->lease_ms > 0) batch_send_release(k, c, f, n);
        break;
    case META_EXISTS: n = read_exists(c->w); break;
    case META_PREFIX: n = read_prefix(c->w); break;
    }
    if (f.op == k->m->op) k->did.hits += n;
    if (f.op != META_PUT || n == 0) batch_done(k, c, f);
}

static void meta_worker_open(struct meta_worker *k, struct meta *m, uint64_t index) {
    k->m = m;
    resp_append_key(m, &k->key, 0);
    k->numbers = xmalloc(m->batch * sizeof(*k->numbers));
    rng_seed(&k->random, m->run + index);
    k->conns = xcalloc(m->clients, sizeof(*k->conns));
    for (uint64_t i = 0; i < m->clients; i++) {
        k->conns[i].w = wire_open(m->b);
        k->conns[i].cap = 3 * m->pipeline + 3;
        k->conns[i].flights = xcalloc(k->conns[i].cap, sizeof(struct flight));
    }
    k->leases = m->op == META_GET && m->lease_ms > 0 && k->conns[0].w->lease_batches;
    template_build(m, m->op, k->leases, &k->own);
    if (m->puts > 0) template_build(m, META_PUT, false, &k->put);
}

static void meta_worker_close(struct meta_worker *k) {
    for (uint64_t i = 0; i < k->m->clients; i++) {
        struct conn *c = &k->conns[i];
        k->did.errors += c->w->errors;
        if (c->w->errors > 0) snprintf(k->t.error, sizeof(k->t.error), "%s", c->w->error);
        wire_close(&c->w);
        free(c->flights);
    }
    free(k->conns);
    free(k->numbers);
    template_free(&k->own);
    template_free(&k->put);
    buf_free(&k->key);
}

/* --- when what is sent --- */

/* When a connection sends its first batch, of nanoseconds between two; and from one to the next. As
 * fast as it goes: at once. Random: as if nobody knew of the others, in exponentially distributed
 * intervals. */
static uint64_t next_due_ns(struct meta_worker *k) {
    double u = (double)(rng_next(&k->random) >> 11) * 0x1p-53;
    return (uint64_t)(k->interval_ns * (k->m->random ? -log1p(-u) : 1));
}
static uint64_t first_due_ns(struct meta_worker *k, uint64_t i) {
    return k->m->random ? next_due_ns(k)
                        : (uint64_t)(k->interval_ns * (double)i / (double)k->m->clients);
}

/* Sends what is due, and what followed from answers. Returns when there is more, of those that have
 * room for it. */
static uint64_t send_due(struct meta_worker *k, uint64_t now_ns, bool stop) {
    const struct meta *m = k->m;
    uint64_t next = UINT64_MAX;
    for (uint64_t i = 0; i < m->clients; i++) {
        struct conn *c = &k->conns[i];
        for (; !stop && c->due_ns <= now_ns && c->batches<m->pipeline; c->due_ns += m->rate> 0
                   ? next_due_ns(k)
                   : 0)
            batch_send(k, c, (m->rate > 0 ? c->due_ns : now_ns) / 1000);
        wire_flush(c->w);
        if (c->batches < m->pipeline) next = min_u64(next, c->due_ns);
    }
    return next;
}

static void work_open(struct meta_worker *k, int epoll) {
    struct meta *m = k->m;
    uint64_t start = clock_mono_ns();
    if (m->rate > 0) k->interval_ns = 1e9 * (double)(m->clients * m->threads) / m->rate;
    for (uint64_t i = 0; i < m->clients; i++) {
        struct conn *c = &k->conns[i];
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, c->w->fd, &e) != 0)
            die("epoll: %s", strerror(errno));
        c->due_ns = start + first_due_ns(k, i);
    }
}

/* With a rate it does not sleep: who is late here would find the server slow. */
static void *meta_work(void *arg) {
    struct meta_worker *k = arg;
    struct meta *m = k->m;
    struct epoll_event ready[64];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    uint64_t under_way = 0, next = 0;
    work_open(k, epoll);
    for (bool stop = false; !stop || under_way > 0; stop = threads_stop(&m->all)) {
        uint64_t now = clock_mono_ns();
        if (now >= next) next = send_due(k, now, stop);
        int n = epoll_wait(epoll, ready, (int)ARRAY_LEN(ready), m->rate > 0 ? 0 : 10);
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            do batch_answered(k, c);
            while (c->count > 0 && wire_buffered(c->w));
            next = 0;
        }
        under_way = 0;
        for (uint64_t i = 0; stop && i < m->clients; i++) under_way += k->conns[i].count;
    }
    close(epoll);
    meta_worker_close(k);
    return NULL;
}

/* --- the whole --- */

void meta_fill(const struct meta *m) {
    struct meta put = *m;
    put.op = META_PUT;
    put.run = 0;
    put.puts = 0;
    put.clients = 1;
    struct meta_worker *k = xcalloc(1, sizeof(*k));
    meta_worker_open(k, &put, 0);
    struct conn *c = k->conns;
    struct progress bar;
    progress_bar(&bar, m->b->json);
    for (uint64_t key = 0; key < m->keys || c->count > 0;) {
        for (; key < m->keys && c->batches < m->pipeline; key += m->batch)
            batch_send(k, c, clock_mono_us());
        wire_flush(c->w);
        batch_answered(k, c);
        progress_say(&bar, key, m->keys, "loading");
    }
    progress_end(&bar);
    meta_worker_close(k);
    if (k->did.errors > 0) die("loading %" PRIu64 " keys: %s", m->keys, k->t.error);
    free(k);
}

void meta_measure(struct meta *m, struct meta_result *result_p) {
    struct bench_thread sum;
    threads_open(&m->all, m->threads, sizeof(struct meta_worker));
    for (uint64_t i = 0; i < m->threads; i++)
        meta_worker_open((struct meta_worker *)threads_at(&m->all, i), m, i);
    uint64_t start = clock_mono_us();
    threads_start(&m->all, meta_work);
    threads_wait(&m->all, m->b, m->seconds, meta_op_names[m->op]);
    (void)threads_join(&m->all, &sum);
    memset(result_p, 0, sizeof(*result_p));
    *result_p =
        (struct meta_result){.hist = sum.hist, .seconds = (double)(clock_mono_us() - start) / 1e6};
    for (uint64_t i = 0; i < m->threads; i++) {
        const struct meta_worker *k = (struct meta_worker *)threads_at(&m->all, i);
        const struct meta_result *did = &k->did;
        result_p->done_keys += did->done_keys;
        result_p->hits += did->hits;
        result_p->requests += did->requests;
        result_p->errors += did->errors;
        result_p->put_keys += did->put_keys;
        hist_merge(&result_p->put_hist, &did->put_hist);
    }
    threads_close(&m->all);
}
