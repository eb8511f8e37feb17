/* libtarn for scripts: puts, gets and checks values that follow from their keys.
 *
 *     kv [OPTION]... URL put KEY SIZE            kv URL load PREFIX COUNT SIZE
 *     kv [OPTION]... URL get KEY                 kv URL verify PREFIX COUNT SIZE
 *     kv [OPTION]... URL remove KEY              kv URL run PREFIX COUNT SIZE     until SIGTERM
 *
 * SIZE is bytes or FROM-TO, of which each key has its own. load puts PREFIX0, PREFIX1, ...; verify
 * reads them all and checks every byte; run reads (and with --fill puts what is missing, with
 * --replace now and then what is there) at random. The answer is one line of NAME=NUMBER: keys, ok,
 * misses, existed, errors, wrong, bytes, replicas, missing (replicas that were asked for and not
 * made), failovers, shm_bytes, tcp_bytes, rdma_bytes. get writes the value to standard output. The
 * exit status is 0, 1 when something failed and 3 when bytes were wrong; misses are no failures.
 *
 * Options: --replicas N, --prefer SEGMENT (again: next best), --replace, --pin (hard), --ttl MS,
 * --group NAME, --seed N (other values under the same keys), --batch N, --host NAME, --rack NAME,
 * --transport NAME, --no-verify, --glance (of what is read only the first and the last word are
 * looked at: libtarn has compared the checksum), --timeout MS,
 * --failover MS, --wait MS, --offset N --want N (get), --fill, --pause MS (run), --slow MS (put:
 * between opening and writing),
 * --from I (load and verify: first number). */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/rng.h"
#include "tarn.h"

#define BATCH_MAX  8192u
#define PREFER_MAX 8u
#define KEY_BYTES  200u

struct kv {
    tarn_client *client;
    const char *prefix;
    uint64_t count, size_from, size_to, seed, batch, first, pause_ms, slow_ms;
    bool fill, glance;
    tarn_put_options put;
    tarn_call call;
    uint64_t offset, want;
    const char *prefer[PREFER_MAX];
    /* the answer */
    uint64_t keys, ok, misses, existed, errors, wrong, bytes, replicas, missing;
    char first_error[300];
};

_Noreturn static void die(const char *what, const char *detail) {
    fprintf(stderr, "kv: %s%s%s\n", what, detail[0] ? ": " : "", detail);
    exit(1);
}

/* --- values --- */

static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static uint64_t hash_of(const struct kv *k, const char *key) {
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ mix(k->seed); /* FNV-1a */
    for (; *key != '\0'; key++) h = (h ^ (uint8_t)*key) * UINT64_C(0x100000001b3);
    return mix(h);
}

static size_t size_of(const struct kv *k, const char *key) {
    struct kv other = *k;
    other.seed = 0; /* the size stays when the value changes */
    return (size_t)(k->size_from + hash_of(&other, key) % (k->size_to - k->size_from + 1));
}

/* Whole words apart from the rest: at gigabytes a second, calls for 8 bytes would be what is
 * measured. */
static void fill(const struct kv *k, const char *key, char *data, size_t size) {
    uint64_t h = hash_of(k, key), w;
    size_t at = 0;
    for (; size - at >= sizeof(w); at += sizeof(w)) {
        w = mix(h + at);
        memcpy(data + at, &w, sizeof(w));
    }
    w = mix(h + at);
    memcpy(data + at, &w, size - at);
}

static bool is_right(const struct kv *k, const char *key, const char *data, size_t size) {
    uint64_t h = hash_of(k, key), w, got;
    size_t at = 0, words = size / sizeof(w);
    for (; size - at >= sizeof(w); at += sizeof(w)) {
        if (k->glance && at > 0) at = (words - 1) * sizeof(w);
        w = mix(h + at);
        memcpy(&got, data + at, sizeof(got));
        if (got != w) break;
    }
    w = mix(h + at);
    if (memcmp(data + at, &w, size - at < sizeof(w) ? size - at : sizeof(w)) == 0) return true;
    fprintf(stderr, "kv: wrong byte of %s in the word at %zu\n", key, at);
    return false;
}

/* --- batches --- */

struct batch {
    tarn_item items[BATCH_MAX];
    char keys[BATCH_MAX][KEY_BYTES];
    size_t sizes[BATCH_MAX], n;
    char *memory;
    size_t slot;
};

static void batch_open(const struct kv *k, struct batch *b) {
    memset(b, 0, sizeof(*b));
    b->slot = ((size_t)k->size_to + 64) / 64 * 64;
    b->memory = xmalloc(b->slot * k->batch);
}

static void batch_add(const struct kv *k, struct batch *b, uint64_t number) {
    size_t i = b->n++;
    snprintf(b->keys[i], KEY_BYTES, "%.150s%llu", k->prefix, (unsigned long long)number);
    b->sizes[i] = size_of(k, b->keys[i]);
    b->items[i] = (tarn_item){.key = b->keys[i],
                              .key_len = strlen(b->keys[i]),
                              .buffer = b->memory + i * b->slot,
                              .buffer_len = b->sizes[i]};
}

static void note_error(struct kv *k, const char *key, int status) {
    if (k->errors++ == 0)
        snprintf(k->first_error, sizeof(k->first_error), "%s: %s (%s)", key, tarn_strerror(status),
                 tarn_last_error());
}

static void batch_put(struct kv *k, struct batch *b) {
    for (size_t i = 0; i < b->n; i++) fill(k, b->keys[i], b->items[i].buffer, b->sizes[i]);
    tarn_put_many(k->client, b->items, b->n, &k->put, NULL);
    for (size_t i = 0; i < b->n; i++) {
        const tarn_item *item = &b->items[i];
        k->keys++;
        if (item->status == TARN_OK) {
            k->ok++;
            k->bytes += b->sizes[i];
            k->replicas += item->replicas;
            if (item->replicas < k->put.replicas) k->missing += k->put.replicas - item->replicas;
        } else if (item->status == TARN_EEXISTS) {
            k->existed++;
        } else {
            note_error(k, b->keys[i], item->status);
        }
    }
    b->n = 0;
}

static void batch_get(struct kv *k, struct batch *b) {
    for (size_t i = 0; i < b->n; i++) b->items[i].buffer_len = b->slot;
    tarn_get_many(k->client, b->items, b->n, &k->call, NULL);
    for (size_t i = 0; i < b->n; i++) {
        const tarn_item *item = &b->items[i];
        k->keys++;
        if (item->status == TARN_ENOTFOUND) {
            k->misses++;
        } else if (item->status != TARN_OK) {
            note_error(k, b->keys[i], item->status);
        } else if (item->got != b->sizes[i] ||
                   !is_right(k, b->keys[i], item->buffer, b->sizes[i])) {
            if (item->got != b->sizes[i])
                fprintf(stderr, "kv: %s has %llu bytes, not %zu\n", b->keys[i],
                        (unsigned long long)item->got, b->sizes[i]);
            k->wrong++;
        } else {
            k->ok++;
            k->bytes += item->got;
        }
    }
    b->n = 0;
}

static void load_or_verify(struct kv *k, void (*work)(struct kv *k, struct batch *b)) {
    struct batch *b = xmalloc(sizeof(*b));
    batch_open(k, b);
    for (uint64_t i = 0; i < k->count; i++) {
        batch_add(k, b, k->first + i);
        if (b->n == k->batch || i + 1 == k->count) work(k, b);
    }
    free(b->memory);
    free(b);
}

static volatile sig_atomic_t ended;
static void on_signal(int signo) {
    ended = 1;
}

static void run(struct kv *k) {
    struct batch *b = xmalloc(sizeof(*b));
    struct rng rng;
    rng_seed(&rng, (uint64_t)getpid());
    batch_open(k, b);
    printf("running\n");
    fflush(stdout);
    while (!ended) {
        static uint64_t numbers[BATCH_MAX];
        uint64_t n = 1 + rng_below(&rng, k->batch), misses = k->misses;
        for (uint64_t i = 0; i < n; i++) {
            numbers[i] = k->first + rng_below(&rng, k->count);
            batch_add(k, b, numbers[i]);
        }
        if (k->put.replace && rng_below(&rng, 4) == 0) {
            batch_put(k, b);
            continue;
        }
        batch_get(k, b);
        bool fills = k->fill && k->misses != misses;
        for (uint64_t i = 0; fills && i < n; i++) batch_add(k, b, numbers[i]);
        if (fills) batch_put(k, b);
        if (k->pause_ms > 0) usleep((useconds_t)(k->pause_ms * 1000));
    }
    free(b->memory);
    free(b);
}

/* --- single keys --- */

static void put_slowly(struct kv *k, const char *key) {
    tarn_writer *w;
    size_t size = size_of(k, key), n, at = 0;
    char *data = xmalloc(size + 1);
    fill(k, key, data, size);
    tarn_status status = tarn_writer_open(k->client, key, strlen(key), size, &k->put, &w);
    if (status == TARN_OK) {
        printf("open\n");
        fflush(stdout);
        usleep((useconds_t)(k->slow_ms * 1000));
        const struct iovec *pieces;
        n = tarn_writer_pieces(w, &pieces);
        for (size_t i = 0; i < n; at += pieces[i++].iov_len)
            memcpy(pieces[i].iov_base, data + at, pieces[i].iov_len);
        status = tarn_writer_commit(&w);
    }
    k->keys = 1;
    if (status == TARN_OK) {
        k->ok++;
    } else {
        note_error(k, key, status);
    }
    free(data);
}

static void put_one(struct kv *k, const char *key) {
    if (k->slow_ms > 0) {
        put_slowly(k, key);
        return;
    }
    size_t size = size_of(k, key);
    char *data = xmalloc(size + 1);
    fill(k, key, data, size);
    tarn_item item = {.key = key, .key_len = strlen(key), .buffer = data, .buffer_len = size};
    tarn_put_many(k->client, &item, 1, &k->put, NULL);
    k->keys = 1;
    k->replicas = item.replicas;
    if (item.status == TARN_OK) {
        k->ok++;
        k->bytes = size;
        if (item.replicas < k->put.replicas) k->missing += k->put.replicas - item.replicas;
    } else if (item.status == TARN_EEXISTS) {
        k->existed++;
    } else {
        note_error(k, key, item.status);
    }
    free(data);
}

static void get_one(struct kv *k, const char *key) {
    void *data = NULL;
    size_t len = 0;
    tarn_status status;
    if (k->want > 0) {
        data = xmalloc((size_t)k->want);
        status = tarn_get_range(k->client, key, strlen(key), k->offset, data, (size_t)k->want, &len,
                                &k->call);
    } else {
        status = tarn_get_alloc(k->client, key, strlen(key), &data, &len, &k->call);
    }
    if (status != TARN_OK) die(key, status == TARN_ENOTFOUND ? "no such key" : tarn_last_error());
    if (fwrite(data, 1, len, stdout) != len) die("standard output", strerror(errno));
    if (k->want > 0)
        free(data);
    else
        tarn_free(data);
}

/* --- command line --- */

static uint64_t number(const char *name, const char *text) {
    uint64_t v;
    if (text == NULL || !span_to_u64(span_str(text), &v)) die(name, "needs a number");
    return v;
}

static void set_size(struct kv *k, const char *text) {
    const char *dash = strchr(text, '-');
    if (dash == NULL) {
        k->size_from = k->size_to = number("SIZE", text);
        return;
    }
    if (!span_to_u64(span_of(text, (size_t)(dash - text)), &k->size_from)) die("SIZE", text);
    k->size_to = number("SIZE", dash + 1);
    if (k->size_to < k->size_from) die("SIZE", text);
}

/* Returns how many arguments it took. */
static int option(struct kv *k, tarn_options *o, const char *name, const char *value) {
    const struct {
        const char *name;
        uint64_t *to;
    } numbers[] = {
        {"--seed", &k->seed},          {"--batch", &k->batch},
        {"--from", &k->first},         {"--pause", &k->pause_ms},
        {"--slow", &k->slow_ms},       {"--offset", &k->offset},
        {"--want", &k->want},          {"--ttl", &k->put.ttl_ms},
        {"--wait", &k->call.wait_ms},  {"--lease", &k->call.lease_ms},
        {"--timeout", &o->timeout_ms}, {"--failover", &o->failover_ms},
    };
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        *numbers[i].to = number(name, value);
        return 2;
    }
    const struct {
        const char *name;
        const char **to;
    } texts[] = {{"--host", &o->host_name}, {"--rack", &o->rack}, {"--transport", &o->transport}};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        if (strcmp(name, texts[i].name) != 0) continue;
        if (value == NULL) die(name, "needs a value");
        *texts[i].to = value;
        return 2;
    }
    if (strcmp(name, "--replicas") == 0) {
        k->put.replicas = (unsigned)number(name, value);
    } else if (strcmp(name, "--prefer") == 0) {
        if (value == NULL || k->put.prefers == PREFER_MAX)
            die(name, "needs a segment, at most 8 times");
        k->prefer[k->put.prefers++] = value;
    } else if (strcmp(name, "--group") == 0) {
        if (value == NULL) die(name, "needs a value");
        k->put.group = value;
        k->put.group_len = strlen(value);
    } else {
        if (strcmp(name, "--replace") == 0) {
            k->put.replace = 1;
        } else if (strcmp(name, "--pin") == 0) {
            k->put.pin = TARN_PIN_HARD;
        } else if (strcmp(name, "--no-verify") == 0) {
            o->verify = 0;
        } else if (strcmp(name, "--glance") == 0) {
            k->glance = true;
        } else if (strcmp(name, "--fill") == 0) {
            k->fill = true;
        } else {
            die("there is no option", name);
        }
        return 1;
    }
    return 2;
}

static int answer(struct kv *k) {
    tarn_stats s = {.size = sizeof(s)};
    tarn_get_stats(k->client, &s);
    const struct {
        const char *name;
        uint64_t value;
    } fields[] = {
        {"keys", k->keys},
        {"ok", k->ok},
        {"misses", k->misses},
        {"existed", k->existed},
        {"errors", k->errors},
        {"wrong", k->wrong},
        {"bytes", k->bytes},
        {"replicas", k->replicas},
        {"missing", k->missing},
        {"failovers", s.failovers},
        {"reports", s.replica_reports},
        {"shm_bytes", s.shm_bytes_read + s.shm_bytes_written},
        {"tcp_bytes", s.tcp_bytes_read + s.tcp_bytes_written},
        {"rdma_bytes", s.rdma_bytes_read + s.rdma_bytes_written},
        {"shm_unreachable", s.shm_unreachable},
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        printf("%s%s=%llu", i > 0 ? " " : "", fields[i].name, (unsigned long long)fields[i].value);
    for (size_t i = 0; i < ARRAY_LEN(s.transport) && s.transport[i].name[0] != '\0'; i++) {
        const tarn_transport_stats *t = &s.transport[i];
        if (strstr("shm tcp rdma", t->name) == NULL)
            printf(" %s_bytes=%llu", t->name,
                   (unsigned long long)(t->bytes_read + t->bytes_written));
    }
    printf("\n");
    if (k->errors > 0)
        fprintf(stderr, "kv: %llu errors, such as %s\n", (unsigned long long)k->errors,
                k->first_error);
    return k->wrong > 0 ? 3 : k->errors > 0 ? 1 : 0;
}

static void no_log(void *arg, int level, const char *text) {}

int main(int argc, char **argv) {
    struct kv k = {.batch = 16};
    tarn_options o;
    int at = 1, rc = 0;
    tarn_options_init(&o);
    /* A loaded machine may stand still for a second or two, which is no outage, and is slow. */
    o.failover_ms = 2000;
    o.connect_timeout_ms = 30000;
    o.timeout_ms = 60000;
    tarn_put_options_init(&k.put);
    tarn_call_init(&k.call);
    while (at < argc && argv[at][0] == '-') at += option(&k, &o, argv[at], argv[at + 1]);
    k.put.prefer = k.prefer;
    if (k.batch == 0 || k.batch > BATCH_MAX) die("--batch", "is 1 to 8192");
    if (argc - at < 3) die("URL COMMAND KEY ...", "");
    const char *url = argv[at], *command = argv[at + 1], *key = argv[at + 2];
    int left = argc - at - 3;
    argv += at + 3;
    if (strcmp(command, "run") == 0) signal(SIGTERM, on_signal);
    tarn_set_log(no_log, NULL);
    if (tarn_connect(url, &o, &k.client) != TARN_OK) die(url, tarn_last_error());
    if (strcmp(command, "get") == 0 && left == 0) {
        get_one(&k, key);
        tarn_close(&k.client);
        return 0;
    }
    if (strcmp(command, "put") == 0 && left == 1) {
        set_size(&k, argv[0]);
        put_one(&k, key);
    } else if (strcmp(command, "remove") == 0 && left == 0) {
        tarn_status status = tarn_remove(k.client, key, strlen(key));
        k.keys = 1;
        if (status == TARN_OK) {
            k.ok = 1;
        } else if (status == TARN_ENOTFOUND) {
            k.misses = 1;
        } else {
            note_error(&k, key, status);
        }
    } else if (left == 2) {
        k.prefix = key;
        k.count = number("COUNT", argv[0]);
        set_size(&k, argv[1]);
        if (strcmp(command, "load") == 0) {
            load_or_verify(&k, batch_put);
        } else if (strcmp(command, "verify") == 0) {
            load_or_verify(&k, batch_get);
        } else if (strcmp(command, "run") == 0) {
            run(&k);
        } else {
            die("there is no command", command);
        }
    } else {
        die("wrong number of arguments for", command);
    }
    rc = answer(&k);
    tarn_close(&k.client);
    return rc;
}
