/* The clients. What a reader is handed as good is checked byte by byte; its generation must have
 * been issued for that key; and it must not be older than what was acknowledged before the reading
 * began: neither a node that comes back nor a disk that is read again may bring back what was
 * replaced or removed. */
#include "chaos.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "tarn.h"
#include "value.h"

#define THREADS   2
#define BATCH_MAX 12
#define VALUE_MAX (1u << 20)

static const struct role {
    const char *transport, *host, *rack;
    bool writer, verify;
} roles[CHAOS_CLIENTS] = {
    {"auto", "m0", "r0", true, true},   {"tcp", "m9", "r1", true, true},
    {"auto", "m1", "r0", false, false}, {"tcp", "m2", "r1", false, false},
    {"auto", "m3", "r1", true, true},
};

struct chaos_shared *chaos;

void chaos_complain(const char *fmt, ...) {
    if (__atomic_fetch_add(&chaos->wrong, 1, __ATOMIC_RELAXED) > 0) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(chaos->complaint, sizeof(chaos->complaint), fmt, ap);
    va_end(ap);
}

void chaos_sleep_ms(uint64_t ms) {
    usleep((useconds_t)(ms * 1000));
}

struct actor {
    const struct role *role;
    tarn_client *client;
    struct rng rng;
    char *memory;
    char names[BATCH_MAX][24];
};

/* --- what may be read --- */

static size_t size_of(uint64_t key, uint64_t generation) {
    static const uint32_t limits[] = {64,    64,    300,   4096,   5000,
                                      20000, 65536, 70000, 300000, VALUE_MAX};
    uint64_t r = value_mix(key * 77 + generation);
    uint32_t limit = limits[r % 64 == 0 ? 9 : r % 9];
    return VALUE_HEAD + (r >> 8) % (limit - VALUE_HEAD + 1);
}

static struct chaos_put *put_of(uint64_t generation) {
    return &chaos->puts[value_mix(generation) % ARRAY_LEN(chaos->puts)];
}

/* Generations grow, and are noted before the first byte of them is sent. */
static uint64_t new_generation(void) {
    uint64_t g = __atomic_add_fetch(&chaos->next_generation, 1, __ATOMIC_ACQ_REL);
    struct chaos_put *p = put_of(g);
    __atomic_store_n(&p->end_ns, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&p->generation, g, __ATOMIC_RELEASE);
    __atomic_store_n(&p->start_ns, clock_mono_ns(), __ATOMIC_RELEASE);
    return g;
}

/* What is under the key now began at start_ns. */
static void is_newest(uint64_t key, uint64_t what, uint64_t start_ns) {
    uint64_t old = __atomic_load_n(&chaos->newest_ns[key], __ATOMIC_RELAXED);
    while (old < start_ns) {
        if (!__atomic_compare_exchange_n(&chaos->newest_ns[key], &old, start_ns, true,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        __atomic_store_n(&chaos->newest[key], what, __ATOMIC_RELAXED);
        return;
    }
}

static void acknowledged(uint64_t key, uint64_t generation, uint64_t start_ns) {
    struct chaos_put *p = put_of(generation);
    uint64_t now = clock_mono_ns();
    if (__atomic_load_n(&p->generation, __ATOMIC_ACQUIRE) == generation)
        __atomic_store_n(&p->end_ns, now, __ATOMIC_RELEASE);
    is_newest(key, generation, start_ns);
}

/* To be taken before reading begins. */
static uint64_t newest(uint64_t key) {
    return __atomic_load_n(&chaos->newest_ns[key], __ATOMIC_ACQUIRE);
}

static void check_age(uint64_t key, uint64_t generation, uint64_t newest_ns, const char *how) {
    const struct chaos_put *p = put_of(generation);
    uint64_t end = __atomic_load_n(&p->end_ns, __ATOMIC_ACQUIRE),
             start = __atomic_load_n(&p->start_ns, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&p->generation, __ATOMIC_ACQUIRE) != generation || end == 0) return;
    if (start < __atomic_load_n(&chaos->master_started_ns, __ATOMIC_ACQUIRE) || end >= newest_ns)
        return;
    uint64_t newest = __atomic_load_n(&chaos->newest[key], __ATOMIC_RELAXED);
    const char *what = newest == CHAOS_REMOVED     ? "DEL: 1"
                       : newest == CHAOS_NOT_FOUND ? "DEL: 0"
                                                   : "a put";
    chaos_complain(
        "an old value came back (%s): key %llu, generation %llu was put %.0f ms before something "
        "newer began (%s)",
        how, (unsigned long long)key, (unsigned long long)generation,
        (double)(newest_ns - end) / 1e6, what);
}

static bool right_bytes(const char *data, uint64_t key, uint64_t generation, size_t size,
                        size_t offset, size_t len, const char *how) {
    int64_t at = value_wrong_at(data, key, generation, size, offset, len);
    if (at >= 0)
        chaos_complain("wrong bytes (%s): key %llu generation %llu size %zu, at byte %lld", how,
                       (unsigned long long)key, (unsigned long long)generation, size,
                       (long long)at);
    return at < 0;
}

/* The generation; 0: it was wrong. */
static uint64_t check(const char *data, size_t len, uint64_t key, uint64_t newest_ns,
                      const char *how) {
    uint64_t head[3] = {0};
    if (len >= VALUE_HEAD) memcpy(head, data, sizeof(head));
    if (len < VALUE_HEAD || head[0] != key || head[1] == 0 ||
        head[1] > __atomic_load_n(&chaos->next_generation, __ATOMIC_ACQUIRE) || head[2] != len ||
        size_of(key, head[1]) != len) {
        chaos_complain(
            "%s (%s): read as key %llu with %zu bytes: key %llu generation %llu size %llu",
            head[0] != key ? "another key's value, or none" : "no value that was ever put", how,
            (unsigned long long)key, len, (unsigned long long)head[0], (unsigned long long)head[1],
            (unsigned long long)head[2]);
        return 0;
    }
    if (!right_bytes(data, key, head[1], len, 0, len, how)) return 0;
    check_age(key, head[1], newest_ns, how);
    return head[1];
}

/* --- common --- */

static void noted(tarn_status status) {
    switch (status) {
    case TARN_OK:
    case TARN_ENOTFOUND:
    case TARN_EEXISTS:
    case TARN_EBUSY:
    case TARN_ENOSPACE: return;
    case TARN_ETIMEOUT: chaos_count(CHAOS_TIMEOUTS, 1); return;
    case TARN_ECORRUPT: chaos_count(CHAOS_CORRUPT, 1); return;
    default:
        if (getenv("STRESS_VERBOSE"))
            fprintf(stderr, "%s: %s\n", tarn_strerror(status), tarn_last_error());
        chaos_count(CHAOS_FAILURES, 1);
    }
}

static uint64_t any_key(struct actor *a) {
    return rng_below(&a->rng, 3) == 0 ? rng_below(&a->rng, 20) : rng_below(&a->rng, CHAOS_KEYS);
}

static const char *name_key(struct actor *a, size_t slot, uint64_t key) {
    snprintf(a->names[slot], sizeof(a->names[slot]), "chaos:%llu", (unsigned long long)key);
    return a->names[slot];
}

static void short_call(struct actor *a, tarn_call *call) {
    tarn_call_init(call);
    call->lease_ms = 30 + rng_below(&a->rng, 1000);
    call->timeout_ms = 3000;
}

/* --- readers --- */

static void read_batch(struct actor *a) {
    tarn_item items[BATCH_MAX] = {0};
    uint64_t keys[BATCH_MAX], newest_ns[BATCH_MAX];
    size_t n = 1 + rng_below(&a->rng, BATCH_MAX);
    tarn_call call;
    short_call(a, &call);
    for (size_t i = 0; i < n; i++) {
        keys[i] = any_key(a);
        newest_ns[i] = newest(keys[i]);
        const char *name = name_key(a, i, keys[i]);
        items[i] = (tarn_item){.key = name,
                               .key_len = strlen(name),
                               .buffer = a->memory + i * VALUE_MAX,
                               .buffer_len = VALUE_MAX};
    }
    tarn_get_many(a->client, items, n, &call, NULL);
    chaos_count(CHAOS_GETS, n);
    for (size_t i = 0; i < n; i++) {
        noted((tarn_status)items[i].status);
        if (items[i].status != TARN_OK) continue;
        chaos_count(CHAOS_HITS, 1);
        check(items[i].buffer, items[i].got, keys[i], newest_ns[i], a->role->transport);
    }
}

static void read_range(struct actor *a) {
    uint64_t key = any_key(a), newest_ns = newest(key);
    const char *name = name_key(a, 0, key);
    tarn_call call;
    short_call(a, &call);
    tarn_item whole = {
        .key = name, .key_len = strlen(name), .buffer = a->memory, .buffer_len = VALUE_MAX};
    tarn_get_many(a->client, &whole, 1, &call, NULL);
    noted((tarn_status)whole.status);
    if (whole.status != TARN_OK) return;
    uint64_t generation = check(a->memory, whole.got, key, newest_ns, a->role->transport);
    for (int i = 0; i < 3 && generation != 0; i++) {
        tarn_item part = whole;
        part.buffer = a->memory + VALUE_MAX;
        part.offset = rng_below(&a->rng, whole.got);
        part.want = 1 + rng_below(&a->rng, whole.got - part.offset);
        tarn_get_many(a->client, &part, 1, &call, NULL);
        /* it may be shorter by now */
        if (part.status != TARN_EINVAL) noted((tarn_status)part.status);
        if (part.status != TARN_OK || part.version != whole.version) continue;
        chaos_count(CHAOS_RANGES, 1);
        right_bytes(part.buffer, key, generation, whole.got, part.offset, part.got, "range");
    }
}

static void read_view(struct actor *a) {
    uint64_t key = any_key(a), newest_ns = newest(key);
    const char *name = name_key(a, 0, key);
    tarn_call call;
    short_call(a, &call);
    tarn_view *view;
    tarn_status status = tarn_view_open(a->client, name, strlen(name), &call, &view);
    if (status != TARN_OK) {
        if (status != TARN_ESTALE) noted(status); /* the bytes are on another machine */
        return;
    }
    const struct iovec *pieces;
    size_t n = tarn_view_pieces(view, &pieces), at = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(a->memory + at, pieces[i].iov_base, pieces[i].iov_len);
        at += pieces[i].iov_len;
        if (rng_below(&a->rng, 3) == 0) chaos_sleep_ms(rng_below(&a->rng, 300));
    }
    if (tarn_view_check(view) == TARN_OK) {
        chaos_count(CHAOS_VIEWS, 1);
        check(a->memory, at, key, newest_ns, "view");
    }
    tarn_view_release(&view);
}

/* As a Redis client would. */
static void read_in_band(struct actor *a) {
    uint64_t key = any_key(a), newest_ns = newest(key);
    const char *argv[] = {"GET", name_key(a, 0, key)};
    char *text;
    size_t len;
    tarn_status status = tarn_command(a->client, 2, argv, NULL, &text, &len);
    noted(status);
    if (status != TARN_OK) return;
    if (len > 0) {
        chaos_count(CHAOS_IN_BAND_GETS, 1);
        check(text, len, key, newest_ns, "GET");
    }
    tarn_free(text);
}

/* What a decoder does: how much of the prefix is there, then all of that. */
static void read_prefix(struct actor *a) {
    tarn_key keys[BATCH_MAX];
    uint64_t first = any_key(a), newest_ns[BATCH_MAX];
    tarn_item items[BATCH_MAX] = {0};
    size_t n = 0;
    tarn_call call;
    short_call(a, &call);
    for (size_t i = 0; i < BATCH_MAX; i++) {
        newest_ns[i] = newest((first + i) % CHAOS_KEYS);
        const char *name = name_key(a, i, (first + i) % CHAOS_KEYS);
        keys[i] = (tarn_key){name, strlen(name)};
        items[i] = (tarn_item){.key = name,
                               .key_len = strlen(name),
                               .buffer = a->memory + i * VALUE_MAX,
                               .buffer_len = VALUE_MAX};
    }
    noted(tarn_prefix_length(a->client, keys, BATCH_MAX, &call, &n));
    if (n == 0 || n > BATCH_MAX) return;
    tarn_get_many(a->client, items, n, &call, NULL);
    for (size_t i = 0; i < n; i++) {
        noted((tarn_status)items[i].status);
        if (items[i].status == TARN_OK)
            check(items[i].buffer, items[i].got, (first + i) % CHAOS_KEYS, newest_ns[i], "prefix");
    }
}

static void read_something(struct actor *a) {
    switch (rng_below(&a->rng, 10)) {
    case 0:
    case 1: read_range(a); return;
    case 2: read_prefix(a); return;
    case 3: read_in_band(a); return;
    case 4:
        if (strcmp(a->role->transport, "tcp") != 0) {
            read_view(a);
            return;
        }
        /* fall through */
    default: read_batch(a);
    }
}

/* --- writers --- */

static void write_batch(struct actor *a) {
    tarn_item items[BATCH_MAX] = {0};
    uint64_t keys[BATCH_MAX], generations[BATCH_MAX];
    size_t n = 1 + rng_below(&a->rng, BATCH_MAX);
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replace = rng_below(&a->rng, 2) == 0;
    o.timeout_ms = 5000;
    o.replicas = 1 + (unsigned)rng_below(&a->rng, 3);
    for (size_t i = 0; i < n; i++) {
        keys[i] = any_key(a);
        generations[i] = new_generation();
        size_t size = size_of(keys[i], generations[i]);
        const char *name = name_key(a, i, keys[i]);
        value_fill(a->memory + i * VALUE_MAX, keys[i], generations[i], size);
        items[i] = (tarn_item){.key = name,
                               .key_len = strlen(name),
                               .buffer = a->memory + i * VALUE_MAX,
                               .buffer_len = size};
    }
    uint64_t start_ns = clock_mono_ns();
    tarn_put_many(a->client, items, n, &o, NULL);
    for (size_t i = 0; i < n; i++) {
        noted((tarn_status)items[i].status);
        if (items[i].status != TARN_OK) continue;
        chaos_count(CHAOS_PUTS, 1);
        if (items[i].replicas > 0 && items[i].replicas < o.replicas) chaos_count(CHAOS_MISSING, 1);
        acknowledged(keys[i], generations[i], start_ns);
    }
}

static void write_in_band(struct actor *a) {
    uint64_t key = any_key(a), generation = new_generation(), start_ns = clock_mono_ns();
    size_t size = size_of(key, generation);
    value_fill(a->memory, key, generation, size);
    const char *argv[] = {"SET", name_key(a, 0, key), a->memory};
    size_t lens[] = {3, strlen(argv[1]), size};
    char *text;
    tarn_status status = tarn_command(a->client, 3, argv, lens, &text, NULL);
    if (status == TARN_OK) {
        chaos_count(CHAOS_IN_BAND_SETS, 1);
        acknowledged(key, generation, start_ns);
        tarn_free(text);
    } else if (status != TARN_EOOM) {
        noted(status);
    }
}

static void write_in_place(struct actor *a) {
    uint64_t key = any_key(a), generation = new_generation(), start_ns = clock_mono_ns();
    size_t size = size_of(key, generation), at = 0;
    const char *name = name_key(a, 0, key);
    value_fill(a->memory, key, generation, size);
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replace = 1;
    o.timeout_ms = 5000;
    o.replicas = 1 + (unsigned)rng_below(&a->rng, 2);
    tarn_writer *w;
    tarn_status status = tarn_writer_open(a->client, name, strlen(name), size, &o, &w);
    if (status == TARN_OK) {
        const struct iovec *pieces;
        size_t n = tarn_writer_pieces(w, &pieces);
        for (size_t i = 0; i < n; at += pieces[i++].iov_len)
            memcpy(pieces[i].iov_base, a->memory + at, pieces[i].iov_len);
        if (rng_below(&a->rng, 4) == 0) chaos_sleep_ms(rng_below(&a->rng, 200));
        status = tarn_writer_commit(&w);
        if (status == TARN_OK) {
            chaos_count(CHAOS_PUTS, 1);
            acknowledged(key, generation, start_ns);
        }
    }
    noted(status);
}

static void remove_one(struct actor *a) {
    uint64_t key = any_key(a), start_ns = clock_mono_ns();
    const char *name = name_key(a, 0, key);
    tarn_status status = tarn_remove(a->client, name, strlen(name));
    noted(status);
    if (status != TARN_OK && status != TARN_ENOTFOUND) return;
    chaos_count(CHAOS_REMOVES, status == TARN_OK);
    is_newest(key, status == TARN_OK ? CHAOS_REMOVED : CHAOS_NOT_FOUND, start_ns);
}

static void write_something(struct actor *a) {
    switch (rng_below(&a->rng, 12)) {
    case 0: remove_one(a); return;
    case 1:
    case 2: write_in_band(a); return;
    case 3:
    case 4: write_in_place(a); return;
    default: write_batch(a);
    }
}

/* --- a process --- */

struct life {
    const struct role *role;
    tarn_client *client;
    uint64_t seed;
};

static void *act(void *arg) {
    const struct life *life = arg;
    struct actor a = {.role = life->role, .client = life->client};
    rng_seed(&a.rng, life->seed ^ (uint64_t)(uintptr_t)pthread_self());
    a.memory = malloc((size_t)BATCH_MAX * VALUE_MAX);
    while (a.memory != NULL && !chaos_stopping()) {
        if (life->role->writer && rng_below(&a.rng, 2) == 0) {
            write_something(&a);
        } else {
            read_something(&a);
        }
    }
    free(a.memory);
    return NULL;
}

static void no_log(void *arg, int level, const char *text) {
    if (getenv("STRESS_VERBOSE")) fprintf(stderr, "libtarn: %s\n", text);
}

int chaos_client(unsigned role, const char *url, uint64_t seed, bool damage) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tarn_set_log(no_log, NULL);
    tarn_options o;
    tarn_options_init(&o);
    o.transport = roles[role].transport;
    /* Damage to a disk is found by CRC alone; all else must be right without looking at it. */
    o.verify = roles[role].verify || damage;
    o.host_name = roles[role].host;
    o.rack = roles[role].rack;
    o.max_lanes = THREADS;
    o.failover_ms = 200;
    struct life life = {.role = &roles[role], .seed = seed};
    while (tarn_connect(url, &o, &life.client) != TARN_OK) {
        if (chaos_stopping()) return 0;
        chaos_sleep_ms(50);
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, act, &life);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    tarn_close(&life.client);
    return 0;
}
