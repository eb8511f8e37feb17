/* replay: the requests of a trace against a running server, as an inference engine would make them:
 * how long is the prefix that is there, get its blocks, compute (here: make up) and put the others.
 * Every byte follows from its block's hash id, and every byte that is read is checked.
 *
 * One thread keeps strictly to the order of the trace; several take the next request in turn. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmark/bench.h"
#include "benchmark/trace.h"

#define KEY_SIZE 64

struct replay {
    const struct bench *b;
    struct trace trace;
    const char *transport;
    uint64_t block_size, threads, lease_ms, limit;
    double speed;
    size_t next; /* request, over all threads */
    uint64_t start_ms;
    struct bench_crew all;
};

struct replay_figures {
    uint64_t requests, blocks, hit_blocks, bytes_read, bytes_written, mismatched_blocks,
        failed_puts, busy_puts, existing_puts, lost_hits, failed_lookups;
    struct hist prefix, get, put;
};

struct replay_worker {
    struct bench_thread t;
    struct replay *r;
    tarn_client *client;
    struct replay_figures f;
    tarn_key *keys;
    tarn_item *items;
    char (*names)[KEY_SIZE + 1];
    char *memory;
};

/* As vLLM's connectors name blocks: model, ranks, hash. */
static void name_trace_block(char out[KEY_SIZE + 1], uint64_t id) {
    snprintf(out, KEY_SIZE + 1, "vllm@conversation_trace@1@0@%016llx@%019llu",
             (unsigned long long)mix64(id), (unsigned long long)id);
}

static void note_error(struct replay_worker *k, const char *what) {
    if (k->t.error[0] == '\0')
        snprintf(k->t.error, sizeof(k->t.error), "%s: %s", what, tarn_last_error());
}

static void set_item(struct replay_worker *k, size_t i, size_t slot) {
    k->items[slot] = (tarn_item){.key = k->names[i],
                                 .key_len = KEY_SIZE,
                                 .buffer = k->memory + slot * k->r->block_size,
                                 .buffer_len = k->r->block_size};
}

static size_t prefix_look_up(struct replay_worker *k, size_t n) {
    tarn_call call;
    tarn_call_init(&call);
    call.lease_ms = k->r->lease_ms;
    size_t length = 0;
    uint64_t start = clock_mono_us();
    if (tarn_prefix_length(k->client, k->keys, n, &call, &length) != TARN_OK) {
        k->f.failed_lookups++;
        note_error(k, "look-up");
        length = 0;
    }
    hist_add(&k->f.prefix, clock_mono_us() - start);
    return length;
}

static void get_hits(struct replay_worker *k, const uint64_t *ids, size_t hits) {
    tarn_call call;
    tarn_call_init(&call);
    call.lease_ms = k->r->lease_ms;
    for (size_t i = 0; i < hits; i++) set_item(k, i, i);
    size_t got = 0;
    uint64_t start = clock_mono_us();
    tarn_status status = tarn_get_many(k->client, k->items, hits, &call, &got);
    hist_add(&k->f.get, clock_mono_us() - start);
    if (status != TARN_OK) note_error(k, "get");
    for (size_t i = 0; i < hits; i++) {
        if (k->items[i].status != TARN_OK) {
            k->f.lost_hits++;
            if (k->items[i].status != TARN_ENOTFOUND) note_error(k, "get");
            continue;
        }
        k->f.bytes_read += k->items[i].got;
        bool right = k->items[i].got == k->r->block_size &&
                     pattern_check(ids[i], k->items[i].buffer, k->r->block_size);
        k->f.mismatched_blocks += !right;
    }
}

static void put_misses(struct replay_worker *k, const uint64_t *ids, size_t from, size_t n) {
    size_t count = n - from;
    for (size_t i = 0; i < count; i++) {
        set_item(k, from + i, i);
        pattern_fill(ids[from + i], k->items[i].buffer, k->r->block_size);
    }
    uint64_t start = clock_mono_us();
    tarn_status status = tarn_put_many(k->client, k->items, count, NULL, NULL);
    hist_add(&k->f.put, clock_mono_us() - start);
    if (status != TARN_OK) note_error(k, "put");
    for (size_t i = 0; i < count; i++) {
        switch (k->items[i].status) {
        case TARN_OK: k->f.bytes_written += k->r->block_size; break;
        case TARN_EEXISTS: k->f.existing_puts++; break;
        case TARN_EBUSY: k->f.busy_puts++; break; /* another thread is putting the same bytes */
        default: k->f.failed_puts++; note_error(k, "put");
        }
    }
}

static void one_request(struct replay_worker *k, const struct trace_request *q) {
    const uint64_t *ids = k->r->trace.ids + q->first;
    for (size_t i = 0; i < q->n; i++) {
        name_trace_block(k->names[i], ids[i]);
        k->keys[i] = (tarn_key){k->names[i], KEY_SIZE};
    }
    size_t hits = q->n == 0 ? 0 : prefix_look_up(k, q->n);
    if (hits > 0) get_hits(k, ids, hits);
    if (hits < q->n) put_misses(k, ids, hits, q->n);
    k->f.requests++;
    k->f.blocks += q->n;
    /* The main thread shows it meanwhile. */
    __atomic_store_n(&k->f.hit_blocks, k->f.hit_blocks + hits, __ATOMIC_RELAXED);
}

static void wait_for_turn(const struct replay *r, const struct trace_request *q) {
    if (r->speed <= 0) return;
    double due = (double)(q->timestamp_ms - r->trace.requests[0].timestamp_ms) / r->speed;
    double now = (double)(clock_mono_ms() - r->start_ms);
    if (q->timestamp_ms >= r->trace.requests[0].timestamp_ms && due > now)
        usleep((useconds_t)((due - now) * 1000));
}

static void *replay_work(void *arg) {
    struct replay_worker *k = arg;
    struct replay *r = k->r;
    for (;;) {
        size_t i = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED);
        if (i >= r->trace.n) return NULL;
        wait_for_turn(r, &r->trace.requests[i]);
        one_request(k, &r->trace.requests[i]);
    }
}

static void replay_worker_open(struct replay_worker *k, struct replay *r) {
    size_t n = r->trace.longest;
    k->r = r;
    k->client = client_open(r->b, r->transport, true);
    k->keys = xcalloc(n + 1, sizeof(*k->keys));
    k->items = xcalloc(n + 1, sizeof(*k->items));
    k->names = xcalloc(n + 1, sizeof(*k->names));
    if (posix_memalign((void **)&k->memory, 4096, n * r->block_size + 1) != 0)
        die("no memory for %zu blocks", n);
}

static void replay_worker_close(struct replay_worker *k) {
    tarn_close(&k->client);
    free(k->keys);
    free(k->items);
    free(k->names);
    free(k->memory);
}

static void figures_add(struct replay_figures *sum, const struct replay_figures *f) {
    uint64_t *to = &sum->requests;
    const uint64_t *from = &f->requests;
    for (size_t i = 0; i < offsetof(struct replay_figures, prefix) / sizeof(*to); i++)
        to[i] += from[i];
    hist_merge(&sum->prefix, &f->prefix);
    hist_merge(&sum->get, &f->get);
    hist_merge(&sum->put, &f->put);
}

static void replay_print_json(const struct replay_figures *f, double seconds, double ratio,
                              double evictions) {
    struct buf out = {0};
    json_add(&out,
             "requests:u blocks:u hit_blocks:u hit_ratio:4 bytes_read:u bytes_written:u "
             "mismatched_blocks:u failed_puts:u seconds:3 busy_puts:u existing_puts:u lost_hits:u "
             "failed_lookups:u evictions:0 gb_per_s:3",
             f->requests, f->blocks, f->hit_blocks, ratio, f->bytes_read, f->bytes_written,
             f->mismatched_blocks, f->failed_puts, seconds, f->busy_puts, f->existing_puts,
             f->lost_hits, f->failed_lookups, evictions,
             (double)(f->bytes_read + f->bytes_written) / seconds / 1e9);
    json_latency(&out, "prefix_", &f->prefix);
    json_latency(&out, "get_", &f->get);
    json_latency(&out, "put_", &f->put);
    json_print(&out);
}

static void replay_print_calls(const char *what, const struct hist *h) {
    printf("%-8s %10" PRIu64, what, h->count);
    print_latencies(h, 8);
}

static void replay_print(const struct replay_figures *f, double seconds, double ratio,
                         double evictions) {
    printf("%" PRIu64 " requests, %" PRIu64 " blocks in %.2f s\n", f->requests, f->blocks, seconds);
    printf("prefix hit ratio %.4f (%" PRIu64 " blocks)\n", ratio, f->hit_blocks);
    printf("read %.3f GB, wrote %.3f GB: %.3f GB/s\n", (double)f->bytes_read / 1e9,
           (double)f->bytes_written / 1e9,
           (double)(f->bytes_read + f->bytes_written) / seconds / 1e9);
    printf("mismatched blocks %" PRIu64 ", failed puts %" PRIu64 ", lost hits %" PRIu64
           ", failed look-ups %" PRIu64 ", evictions %.0f\n",
           f->mismatched_blocks, f->failed_puts, f->lost_hits, f->failed_lookups, evictions);
    printf("\n%-8s %10s", "us", "calls");
    print_latencies(NULL, 8);
    replay_print_calls("prefix", &f->prefix);
    replay_print_calls("get", &f->get);
    replay_print_calls("put", &f->put);
}

static void replay_watch(const struct replay *r) {
    struct progress bar;
    progress_bar(&bar, r->b->json);
    size_t next;
    while (!bar.silent && (next = __atomic_load_n(&r->next, __ATOMIC_RELAXED)) < r->trace.n) {
        uint64_t hits = 0;
        for (uint64_t i = 0; i < r->threads; i++)
            hits += __atomic_load_n(
                &((const struct replay_worker *)threads_at(&r->all, i))->f.hit_blocks,
                __ATOMIC_RELAXED);
        size_t blocks = r->trace.requests[next].first;
        progress_say(&bar, next, r->trace.n, "%zu of %zu requests, hit ratio %.3f", next,
                     r->trace.n, blocks == 0 ? 0.0 : (double)hits / (double)blocks);
        usleep(50000);
    }
    progress_end(&bar);
}

static int replay_run(struct replay *r) {
    threads_open(&r->all, r->threads, sizeof(struct replay_worker));
    struct replay_worker *workers = r->all.of;
    for (uint64_t i = 0; i < r->threads; i++) replay_worker_open(&workers[i], r);
    double before = info_number(workers[0].client, "evicted_keys");
    r->start_ms = clock_mono_ms();
    uint64_t start = clock_mono_us();
    struct bench_thread calls;
    threads_start(&r->all, replay_work);
    replay_watch(r);
    (void)threads_join(&r->all, &calls);
    double seconds = (double)(clock_mono_us() - start) / 1e6;
    double after = info_number(workers[0].client, "evicted_keys");
    struct replay_figures *sum = xcalloc(1, sizeof(*sum));
    for (uint64_t i = 0; i < r->threads; i++) figures_add(sum, &workers[i].f);
    double ratio = sum->blocks == 0 ? 0 : (double)sum->hit_blocks / (double)sum->blocks;
    double evictions = before < 0 || after < 0 ? -1 : after - before;
    (r->b->json ? replay_print_json : replay_print)(sum, seconds, ratio, evictions);
    for (uint64_t i = 0; i < r->threads; i++) replay_worker_close(&workers[i]);
    int rc = sum->mismatched_blocks > 0 || sum->failed_puts > 0 || sum->failed_lookups > 0;
    free(sum);
    threads_close(&r->all);
    return rc;
}

int replay_main(struct bench *b, int argc, char **argv) {
    struct replay r = {
        .b = b, .transport = "auto", .block_size = 4096, .threads = 1, .lease_ms = 50};
    const struct option_spec specs[] = {
        {"--block-size", OPT_BYTES, &r.block_size, 1, UINT64_C(1) << 30},
        {"--threads", OPT_U64, &r.threads, 1, 256},
        {"--lease-ms", OPT_U64, &r.lease_ms, 1, 600000},
        {"--limit", OPT_U64, &r.limit, 0, UINT64_C(1) << 40},
        {"--speed", OPT_DOUBLE, &r.speed, 0, 1000000},
        {"--transport", OPT_STRING, &r.transport, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    size_t plain = options_parse(b, specs, argc, argv, false, NULL);
    if (plain != 1) die("replay takes one trace file (tarn-benchmark --help)");
    trace_load(&r.trace, argv[0], (size_t)r.limit);
    int rc = replay_run(&r);
    trace_free(&r.trace);
    return rc;
}
