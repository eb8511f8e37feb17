/* meta: batches of metadata commands over plain RESP connections. Requests come from templates in
 * which only digits change, replies are skipped, so that the server is the limit and not this
 * program.
 *
 * A put is MPUTSTART and MPUTEND of keys that were never there (their bytes are not written), a get
 * MGETREPLICAS, with a lease and its RELEASE or without. Every client keeps `pipeline` batches
 * under way; or, with a rate, each batch has a time when it is due, whether or not what was due
 * before has been answered, and its latency counts from there.
 *
 * A client has a connection to each master. Each is sent its part of a batch at once, and the batch
 * is done when all parts are. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/slot.h"
#include "base/spin.h"
#include "benchmark/meta.h"
#include "client/ctl.h"
#include "client/placement.h"
#include "transport/place.h"

#define BUSY_POLL_US 100u /* libtarn's default */

const char *const meta_op_names[] = {"put", "get", "exists", "prefix", NULL};
static const char *const commands[] = {"MPUTSTART", "MGETREPLICAS", "MEXISTS", "PREFIXLEN"};

/* A batch under way. */
struct meta_call {
    enum meta_op op;
    uint64_t first_key, from_us; /* it was sent, or due */
    size_t parts;                /* that are not done */
    size_t found;                /* of its keys, by the first answers */
    uint32_t *order;             /* its keys' places, by master; NULL: one master has all */
};

/* What one master has of it. Behind a RELEASE the call may be another already. */
enum stage { STAGE_FIRST, STAGE_END, STAGE_RELEASE };
struct meta_part {
    enum stage stage;
    struct meta_call *call;
    size_t from, keys; /* of the order */
};

/* A client's connection to a master. */
struct meta_link {
    struct wire *w;
    struct conn *client;
    struct meta_part *parts; /* ring, in the order of the answers */
    size_t head, count, cap;
    size_t left; /* bytes at the end of w->out: RELEASE, which goes with the next request */
};

struct conn {
    struct meta_link *links; /* one for each master */
    struct meta_call *calls; /* as many as may be under way */
    struct meta_call **idle; /* idle[batches ..] are those that are not */
    size_t batches;          /* that are not done */
    uint64_t due_ns;         /* the next one, with a rate */
    uint64_t room_ns;        /* since then one more may be under way */
};

/* The first request for a batch, or a part of it, but for the digits of its keys. */
struct template {
    struct buf name, keys, tail; /* keys of a whole batch */
    size_t key_bytes;            /* of one in it */
    size_t words, words_a_key;   /* of the request, besides its keys; for each of these */
};

struct meta_worker {
    struct bench_thread t;
    struct meta *m;
    struct conn *conns;
    struct template own, put; /* of the operation; of the puts among them */
    struct buf key;           /* template of a key in the second request; it ends with the CRLF */
    uint8_t *whose;           /* the master of each key of a batch that is split */
    size_t *ends;             /* by master: where its part of the order ends */
    struct rng random;
    double interval_ns; /* between two batches of a connection, with a rate */
    struct spin spin;   /* before it sleeps */
    bool any_sockets;   /* not all go through shared memory */
    uint64_t *numbers;  /* tokens or versions of the batch being answered */
    /* the server numbers the leases of a get, the puts of a put: that comes behind their answers */
    bool leases, puts;
    uint64_t numbered;
    struct meta_result did;
};

/* --- templates --- */

static void resp_append(struct buf *b, const char *s) {
    buf_printf(b, "$%zu\r\n%s\r\n", strlen(s), s);
}

#define NUMBER_MAX 27u /* bytes of a number as a bulk string */

/* How many words a request has. */
static void resp_append_count(struct buf *b, uint64_t n) {
    buf_reserve(b, NUMBER_MAX);
    char *at = b->data + b->len;
    *at++ = '*';
    at += u64_to_dec(n, at);
    memcpy(at, "\r\n", 2);
    b->len = (size_t)(at - b->data) + 2;
}

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

/* Writes a key's number, whose digits these are, and the hash tag of its stretch before them. */
static void key_number_set(const struct meta *m, char *digits, uint64_t number) {
    u64_to_hex(number, META_DIGITS, digits);
    if (m->stretch > 0)
        u64_to_hex(number / m->stretch * UINT64_C(0x9e3779b97f4a7c15) >> 48, META_TAG - 2,
                   digits - META_TAG + 1);
}

/* Key number `number`, without RESP around it: "vllm@llama-3-70b@8@0@..." filled up to key_size,
 * the tag of its stretch, then the number. */
static void key_append(const struct meta *m, struct buf *b, uint64_t number) {
    static const char stem[] = "vllm@meta-llama/Llama-3-70B@8@0@";
    size_t pad = (size_t)m->key_size - META_DIGITS - (m->stretch > 0 ? META_TAG : 0);
    for (size_t i = 0; i < pad; i++) buf_append_char(b, i < sizeof(stem) - 1 ? stem[i] : '.');
    if (m->stretch > 0) buf_append_str(b, "{....}");
    buf_reserve(b, META_DIGITS);
    key_number_set(m, b->data + b->len, number);
    b->len += META_DIGITS;
}

static void resp_append_key(const struct meta *m, struct buf *b, uint64_t number) {
    buf_printf(b, "$%" PRIu64 "\r\n", m->key_size);
    key_append(m, b, number);
    buf_append(b, "\r\n", 2);
}

static void template_build(const struct meta_worker *k, enum meta_op op, struct template *t) {
    const struct meta *m = k->m;
    bool put = op == META_PUT, lease = op == META_GET && m->lease_ms > 0,
         replicas = put && m->replicas > 1, packed = put || op == META_GET,
         no_grant = packed && m->no_grants, batch = put ? k->puts : k->leases && lease;
    t->words = 2u + (lease || replicas ? 2 : 0) + packed + no_grant + batch;
    t->words_a_key = put ? 2 : 1;
    resp_append(&t->name, commands[op]);
    for (uint64_t i = 0; i < m->batch; i++) {
        resp_append_key(m, &t->keys, 0);
        if (put) resp_append_number(&t->keys, m->value_size);
    }
    t->key_bytes = t->keys.len / m->batch;
    if (lease) {
        resp_append(&t->tail, "LEASE");
        resp_append_number(&t->tail, m->lease_ms);
    }
    if (replicas) {
        resp_append(&t->tail, "REPLICAS");
        resp_append_number(&t->tail, m->replicas);
    }
    if (packed) resp_append(&t->tail, "PACKED"); /* as libtarn does, and this */
    if (no_grant) resp_append(&t->tail, "NOGRANT");
    if (batch) resp_append(&t->tail, "BATCH");
}

static void template_free(struct template *t) {
    buf_free(&t->name);
    buf_free(&t->keys);
    buf_free(&t->tail);
}

/* --- the conversation --- */

static void push_part(struct meta_link *l, struct meta_part p) {
    TARN_ASSERT(l->count < l->cap);
    l->parts[(l->head + l->count++) % l->cap] = p;
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

/* The place in its batch of number i of a part, and its key. */
static size_t part_place(const struct meta_part *p, size_t i) {
    return p->call->order == NULL ? i : p->call->order[p->from + i];
}
static uint64_t part_key(const struct meta *m, const struct meta_part *p, size_t i) {
    return key_number(m, p->call->op, p->call->first_key, part_place(p, i));
}

static void part_send(struct meta_worker *k, struct meta_link *l, struct meta_part p) {
    struct meta *m = k->m;
    struct template *t = p.call->op == m->op ? &k->own : &k->put;
    struct buf *out = &l->w->out;
    char *digits = t->keys.data + k->key.len - 2 - META_DIGITS;
    for (size_t i = 0; i < p.keys; i++, digits += t->key_bytes)
        key_number_set(m, digits, part_key(m, &p, i));
    resp_append_count(out, t->words + p.keys * t->words_a_key);
    buf_append(out, t->name.data, t->name.len);
    resp_append_number(out, p.keys);
    buf_append(out, t->keys.data, p.keys * t->key_bytes);
    buf_append(out, t->tail.data, t->tail.len);
    push_part(l, p);
    p.call->parts++;
    k->did.requests++;
}

/* Orders the keys by master, as libtarn does, and says where the part of each ends. */
static void call_split(struct meta_worker *k, struct meta_call *call) {
    const struct meta *m = k->m;
    size_t *at = k->ends, sum = 0;
    char *key = k->key.data + k->key.len - 2 - m->key_size;
    struct slot_last last = {0};
    memset(at, 0, m->n_masters * sizeof(*at));
    for (uint64_t i = 0; i < m->batch; i++) {
        key_number_set(m, key + m->key_size - META_DIGITS,
                       key_number(m, call->op, call->first_key, i));
        k->whose[i] = m->owner[slot_of_next(&last, span_of(key, m->key_size))];
        at[k->whose[i]]++;
    }
    for (unsigned master = 0; master < m->n_masters; master++) {
        size_t keys = at[master];
        at[master] = sum;
        sum += keys;
    }
    for (uint32_t i = 0; i < m->batch; i++) call->order[at[k->whose[i]]++] = i;
}

static void batch_send(struct meta_worker *k, struct conn *c, uint64_t from_us) {
    struct meta *m = k->m;
    bool put = m->op == META_PUT || (m->puts > 0 && rng_below(&k->random, 100) < m->puts);
    struct meta_call *call = c->idle[c->batches++];
    call->op = put ? META_PUT : m->op;
    call->first_key = first_key(k, call->op);
    call->from_us = from_us;
    call->found = call->op == META_PREFIX ? m->batch : 0;
    if (call->order == NULL) {
        part_send(k, c->links, (struct meta_part){STAGE_FIRST, call, 0, m->batch});
        return;
    }
    call_split(k, call);
    for (size_t master = 0, from = 0; master < m->n_masters; from = k->ends[master++]) {
        size_t keys = k->ends[master] - from;
        if (keys > 0)
            part_send(k, &c->links[master], (struct meta_part){STAGE_FIRST, call, from, keys});
    }
}

/* The version or token of an element, UINT64_MAX where it is nil or an error. */
static uint64_t read_number(struct wire *w) {
    static const struct span granted = SPAN("$88\r\n"), no_grant = SPAN("$48\r\n");
    _Static_assert(sizeof(struct place_packed) == 88 && PLACE_NO_GRANT_SIZE == 48, "as in heads");
    size_t size = wire_take(w, granted)    ? sizeof(struct place_packed)
                  : wire_take(w, no_grant) ? PLACE_NO_GRANT_SIZE
                                           : 0;
    if (LIKELY(size > 0)) {
        uint64_t number;
        const char *place = wire_bytes(w, size + 2);
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

/* The number of each element, and that of the batch behind them. Returns how many there are. */
static size_t read_numbers(struct meta_worker *k, struct wire *w, size_t keys, bool batch) {
    size_t len, found = 0;
    const char *line = wire_line(w, &len);
    if (line[0] == '-') {
        wire_note_error(w, line, len);
        for (size_t i = 0; i < keys; i++) k->numbers[i] = UINT64_MAX;
        return 0;
    }
    if (line[0] != '*' || wire_int(w, line, len) != (int64_t)keys + batch)
        die("unexpected answer: %.*s", (int)len, line);
    for (size_t i = 0; i < keys; i++) {
        k->numbers[i] = read_number(w);
        found += k->numbers[i] != UINT64_MAX;
    }
    if (batch) {
        line = wire_line(w, &len);
        k->numbered = (uint64_t)wire_int(w, line, len);
    }
    return found;
}

static void append_keys_numbers(struct meta_worker *k, struct buf *out, const struct meta_part *p) {
    static const struct span no_crc = SPAN("$2\r\n-1\r\n");
    for (size_t i = 0; i < p->keys; i++) {
        if (k->numbers[i] == UINT64_MAX) continue;
        key_number_set(k->m, k->key.data + k->key.len - 2 - META_DIGITS, part_key(k->m, p, i));
        buf_append(out, k->key.data, k->key.len);
        resp_append_number(out, k->numbers[i]);
        if (p->call->op == META_PUT) buf_append(out, no_crc.data, no_crc.len);
    }
}

static void part_send_end(struct meta_worker *k, struct meta_link *l, struct meta_part p,
                          size_t n) {
    struct buf *out = &l->w->out;
    bool values = k->m->value_size <= INLINE_MAX;
    p.stage = STAGE_END;
    push_part(l, p);
    k->did.requests++;
    if (k->puts) {
        buf_append_str(out, "*4\r\n$7\r\nMPUTEND\r\n$1\r\n0\r\n$5\r\nBATCH\r\n");
        resp_append_number(out, k->numbered);
        return;
    }
    resp_append_count(out, 2 + 3 * n + (values ? 1 + n : 0));
    buf_append_str(out, "$7\r\nMPUTEND\r\n");
    resp_append_number(out, n);
    append_keys_numbers(k, out, &p);
    if (values) resp_append(out, "VALUES");
    static const char bytes[65] =
        "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
    for (size_t i = 0; values && i < n; i++) {
        buf_printf(out, "$%" PRIu64 "\r\n%.*s\r\n", k->m->value_size, (int)k->m->value_size, bytes);
    }
}

static void part_send_release(struct meta_worker *k, struct meta_link *l, struct meta_part p,
                              size_t n) {
    struct buf *out = &l->w->out;
    size_t before = out->len;
    if (k->leases) {
        buf_append_str(out, "*4\r\n$7\r\nRELEASE\r\n$1\r\n0\r\n$5\r\nBATCH\r\n");
        resp_append_number(out, k->numbered);
    } else {
        resp_append_count(out, 2 + 2 * n);
        buf_append_str(out, "$7\r\nRELEASE\r\n");
        resp_append_number(out, n);
        append_keys_numbers(k, out, &p);
    }
    p.stage = STAGE_RELEASE;
    push_part(l, p);
    k->did.requests++;
    if (n * k->m->value_size <= LEASES_LEFT_MAX) l->left += out->len - before;
}

/* A part of a call is done, with the last one the call. */
static void part_done(struct meta_worker *k, struct conn *c, struct meta_call *call) {
    if (--call->parts > 0) return;
    uint64_t now_ns = clock_mono_ns(), took_us = now_ns / 1000 - call->from_us;
    if (c->batches == k->m->pipeline) c->room_ns = now_ns;
    c->idle[--c->batches] = call;
    if (call->op != k->m->op) {
        hist_add(&k->did.put_hist, took_us);
        k->did.put_keys += call->found;
        return;
    }
    hist_add(&k->t.hist, took_us);
    k->did.hits += call->found;
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
static void part_answered(struct meta_worker *k, struct meta_link *l) {
    struct meta_part p = l->parts[l->head];
    struct meta_call *call = p.call;
    l->head = (l->head + 1) % l->cap;
    l->count--;
    size_t n;
    if (p.stage != STAGE_FIRST) {
        wire_skip(l->w, 1);
        if (p.stage == STAGE_END) part_done(k, l->client, call);
        return;
    }
    switch (call->op) {
    case META_PUT:
        call->found += n = read_numbers(k, l->w, p.keys, k->puts);
        if (n == 0) break;
        part_send_end(k, l, p, n);
        return;
    case META_GET:
        call->found += n = read_numbers(k, l->w, p.keys, k->leases);
        if (n > 0 && k->m->lease_ms > 0) part_send_release(k, l, p, n);
        break;
    case META_EXISTS: call->found += read_exists(l->w); break;
    case META_PREFIX: /* the batch's ends where the first key is missing */
        n = read_prefix(l->w);
        if (n < p.keys) call->found = min_u64(call->found, part_place(&p, n));
        break;
    }
    part_done(k, l->client, call);
}

static void conn_open(struct meta_worker *k, struct conn *c) {
    const struct meta *m = k->m;
    c->links = xcalloc(m->n_masters, sizeof(*c->links));
    c->calls = xcalloc(m->pipeline, sizeof(*c->calls));
    c->idle = xcalloc(m->pipeline, sizeof(struct meta_call *));
    for (unsigned i = 0; i < m->n_masters; i++) {
        struct meta_link *l = &c->links[i];
        l->w = wire_open(&m->masters[i]);
        l->client = c;
        k->any_sockets |= l->w->ring.memory == NULL;
        l->cap = 3 * m->pipeline + 3;
        l->parts = xcalloc(l->cap, sizeof(*l->parts));
        k->leases = k->leases && l->w->numbers.leases;
        k->puts = k->puts && l->w->numbers.puts;
    }
    for (uint64_t i = 0; i < m->pipeline; i++) {
        c->idle[i] = &c->calls[i];
        if (m->n_masters > 1) c->calls[i].order = xcalloc(m->batch, sizeof(uint32_t));
    }
}

static void conn_close(struct meta_worker *k, struct conn *c) {
    for (unsigned i = 0; i < k->m->n_masters; i++) {
        struct meta_link *l = &c->links[i];
        k->did.errors += l->w->errors;
        if (l->w->errors > 0) snprintf(k->t.error, sizeof(k->t.error), "%s", l->w->error);
        wire_close(&l->w);
        free(l->parts);
    }
    for (uint64_t i = 0; i < k->m->pipeline; i++) free(c->calls[i].order);
    free(c->links);
    free(c->calls);
    free(c->idle);
}

static size_t conn_parts(const struct meta *m, const struct conn *c) {
    size_t sum = 0;
    for (unsigned i = 0; i < m->n_masters; i++) sum += c->links[i].count;
    return sum;
}

/* all: what is left for the next request, too. */
static void conn_flush(const struct meta *m, struct conn *c, bool all) {
    for (unsigned i = 0; i < m->n_masters; i++) {
        struct meta_link *l = &c->links[i];
        if (!all && l->w->out.len == l->left) continue;
        wire_flush(l->w);
        l->left = 0;
    }
}

static void meta_worker_open(struct meta_worker *k, struct meta *m, uint64_t index) {
    k->m = m;
    resp_append_key(m, &k->key, 0);
    k->numbers = xmalloc(m->batch * sizeof(*k->numbers));
    k->whose = xmalloc(m->batch);
    k->ends = xcalloc(m->n_masters, sizeof(*k->ends));
    rng_seed(&k->random, m->run + index);
    k->leases = m->op == META_GET && m->lease_ms > 0;
    k->puts = m->value_size > INLINE_MAX;
    k->conns = xcalloc(m->clients, sizeof(*k->conns));
    for (uint64_t i = 0; i < m->clients; i++) conn_open(k, &k->conns[i]);
    template_build(k, m->op, &k->own);
    if (m->puts > 0) template_build(k, META_PUT, &k->put);
}

static void meta_worker_close(struct meta_worker *k) {
    for (uint64_t i = 0; i < k->m->clients; i++) conn_close(k, &k->conns[i]);
    free(k->conns);
    free(k->numbers);
    free(k->whose);
    free(k->ends);
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
        while (!stop && c->due_ns <= now_ns && c->batches < m->pipeline) {
            batch_send(k, c, (m->rate > 0 ? c->due_ns : now_ns) / 1000);
            if (m->rate == 0) continue;
            uint64_t could_ns = max_u64(c->due_ns, c->room_ns);
            hist_add(&k->did.late_hist, (clock_mono_ns() - could_ns) / 1000);
            c->due_ns += next_due_ns(k);
        }
        conn_flush(m, c, stop);
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
        for (unsigned master = 0; master < m->n_masters; master++) {
            struct meta_link *l = &c->links[master];
            struct epoll_event e = {.events = EPOLLIN, .data.ptr = l};
            if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, l->w->fd, &e) != 0)
                die("epoll: %s", strerror(errno));
        }
        c->due_ns = start + first_due_ns(k, i);
    }
}

/* Of those that go through shared memory, where there is something; from index n on. */
static int rings_ready(const struct meta_worker *k, struct epoll_event *ready, int n, int max) {
    const struct meta *m = k->m;
    for (uint64_t i = 0; i < m->clients; i++) {
        for (unsigned master = 0; master < m->n_masters && n < max; master++) {
            struct meta_link *l = &k->conns[i].links[master];
            if (l->w->ring.memory != NULL && ring_possible(&l->w->ring) & RING_READ)
                ready[n++].data.ptr = l;
        }
    }
    return n;
}

/* Asleep they are called by their descriptors. false: there is something by now. */
static bool rings_sleep(const struct meta_worker *k) {
    const struct meta *m = k->m;
    bool any = false;
    for (uint64_t i = 0; i < m->clients; i++)
        for (unsigned master = 0; master < m->n_masters; master++)
            any |= wire_sleep(k->conns[i].links[master].w);
    return !any;
}

static void rings_woke(const struct meta_worker *k) {
    const struct meta *m = k->m;
    for (uint64_t i = 0; i < m->clients; i++)
        for (unsigned master = 0; master < m->n_masters; master++)
            (void)wire_woke(k->conns[i].links[master].w, false);
}

static int descriptors_ready(int epoll, struct epoll_event *ready, int max, int ms) {
    int n = epoll_wait(epoll, ready, max, ms), left = 0;
    for (int i = 0; i < n; i++)
        if (wire_woke(((struct meta_link *)ready[i].data.ptr)->w, true)) ready[left++] = ready[i];
    return left;
}

/* Which links have something to be read; waits for it as a call of libtarn does. */
static int links_wait(struct meta_worker *k, int epoll, struct epoll_event *ready, int max) {
    for (bool looks = spin_begin(&k->spin);; looks = looks && spin_again(&k->spin)) {
        int n = rings_ready(k, ready, 0, max);
        if (n == 0 && (!looks || k->any_sockets)) {
            bool sleeps = !looks && k->m->rate == 0;
            n = descriptors_ready(epoll, ready, max, sleeps && rings_sleep(k) ? 10 : 0);
            if (sleeps) rings_woke(k);
        }
        if (n > 0 || !looks) {
            spin_end(&k->spin);
            return n;
        }
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
    spin_set(&k->spin, m->rate > 0 ? 0 : BUSY_POLL_US);
    for (bool stop = false; !stop || under_way > 0;) {
        uint64_t now = clock_mono_ns();
        if (now >= next) next = send_due(k, now, stop);
        int n = links_wait(k, epoll, ready, (int)ARRAY_LEN(ready));
        for (int i = 0; i < n; i++) {
            struct meta_link *l = ready[i].data.ptr;
            do part_answered(k, l);
            while (l->count > 0 && wire_buffered(l->w));
            next = 0;
        }
        stop = threads_stop(&m->all);
        if (stop) next = 0; /* for what is left to be sent */
        under_way = 0;
        for (uint64_t i = 0; stop && i < m->clients; i++) under_way += conn_parts(m, &k->conns[i]);
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
    for (uint64_t key = 0; key < m->keys || c->batches > 0;) {
        for (; key < m->keys && c->batches < m->pipeline; key += m->batch)
            batch_send(k, c, clock_mono_us());
        conn_flush(m, c, true);
        for (unsigned i = 0; i < m->n_masters; i++)
            if (c->links[i].count > 0) part_answered(k, &c->links[i]);
        progress_say(&bar, key, m->keys, "loading");
    }
    progress_end(&bar);
    meta_worker_close(k);
    if (k->did.errors > 0) die("loading %" PRIu64 " keys: %s", m->keys, k->t.error);
    free(k);
}

static double cpu_s(void) {
    return (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9;
}

void meta_measure(struct meta *m, struct meta_result *result_p) {
    struct bench_thread sum;
    threads_open(&m->all, m->threads, sizeof(struct meta_worker));
    for (uint64_t i = 0; i < m->threads; i++)
        meta_worker_open((struct meta_worker *)threads_at(&m->all, i), m, i);
    uint64_t start = clock_mono_us();
    double servers_s = meta_masters_cpu_s(m), own_s = cpu_s();
    threads_start(&m->all, meta_work);
    threads_wait(&m->all, m->b, m->seconds, meta_op_names[m->op]);
    (void)threads_join(&m->all, &sum);
    memset(result_p, 0, sizeof(*result_p));
    *result_p = (struct meta_result){.hist = sum.hist,
                                     .seconds = (double)(clock_mono_us() - start) / 1e6,
                                     .client_cpu_s = cpu_s() - own_s,
                                     .servers_cpu_s = meta_masters_cpu_s(m) - servers_s};
    for (uint64_t i = 0; i < m->threads; i++) {
        const struct meta_worker *k = (struct meta_worker *)threads_at(&m->all, i);
        const struct meta_result *did = &k->did;
        result_p->done_keys += did->done_keys;
        result_p->hits += did->hits;
        result_p->requests += did->requests;
        result_p->errors += did->errors;
        result_p->put_keys += did->put_keys;
        hist_merge(&result_p->put_hist, &did->put_hist);
        hist_merge(&result_p->late_hist, &did->late_hist);
    }
    threads_close(&m->all);
}
