/* replay: the requests of a trace against a running server, as an inference engine would make them:
 * how long is the prefix that is there, get its blocks, compute (here: make up) and put the others.
 * replay_kv.c has that for models with several KV groups. Every byte follows from its block's hash
 * id, and every byte that is read is checked.
 *
 * One thread keeps strictly to the order of the trace; several take the next request in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "benchmark/replay.h"

/* As vLLM's connectors name blocks: model, ranks, hash. */
static void name_trace_block(char out[REPLAY_KEY_SIZE + 1], uint64_t id) {
    snprintf(out, REPLAY_KEY_SIZE + 1, "vllm@conversation_trace@1@0@%016llx@%019llu",
             (unsigned long long)mix64(id), (unsigned long long)id);
}

void replay_note(struct replay_worker *k, const char *what) {
    if (k->t.error[0] == '\0')
        snprintf(k->t.error, sizeof(k->t.error), "%s: %s", what, tarn_last_error());
}

static void set_item(struct replay_worker *k, size_t i, size_t slot) {
    k->items[slot] = (tarn_item){.key = k->names[i],
                                 .key_len = REPLAY_KEY_SIZE,
                                 .buffer = k->memory + slot * k->r->block_size,
                                 .buffer_len = k->r->block_size};
}

tarn_call replay_call(const struct replay_worker *k) {
    tarn_call call;
    tarn_call_init(&call);
    call.lease_ms = k->r->lease_ms;
    call.session = k->session;
    call.session_len = strlen(k->session);
    return call;
}

static size_t prefix_look_up(struct replay_worker *k, size_t n) {
    const tarn_call call = replay_call(k);
    size_t length = 0;
    uint64_t start = clock_mono_us();
    if (tarn_prefix_length(k->client, k->keys, n, &call, &length) != TARN_OK) {
        k->f.failed_lookups++;
        replay_note(k, "look-up");
        length = 0;
    }
    hist_add(&k->f.prefix, clock_mono_us() - start);
    return length;
}

void replay_get(struct replay_worker *k, const uint64_t *seeds, size_t n) {
    const tarn_call call = replay_call(k);
    uint64_t start = clock_mono_us();
    tarn_status status = tarn_get_many(k->client, k->items, n, &call, NULL);
    hist_add(&k->f.get, clock_mono_us() - start);
    if (status != TARN_OK) replay_note(k, "get");
    for (size_t i = 0; i < n; i++) {
        const tarn_item *item = &k->items[i];
        if (item->status != TARN_OK) {
            k->f.lost_hits++;
            if (item->status != TARN_ENOTFOUND) replay_note(k, "get");
            continue;
        }
        k->f.bytes_read += item->got;
        k->f.mismatched_blocks += item->got != item->buffer_len ||
                                  !pattern_check(seeds[i], item->buffer, item->buffer_len);
    }
}

void replay_put(struct replay_worker *k, size_t n, tarn_put_options *options) {
    uint64_t start = clock_mono_us();
    options->session = k->session;
    options->session_len = strlen(k->session);
    tarn_status status = tarn_put_many(k->client, k->items, n, options, NULL);
    hist_add(&k->f.put, clock_mono_us() - start);
    if (status != TARN_OK) replay_note(k, "put");
    for (size_t i = 0; i < n; i++) {
        switch (k->items[i].status) {
        case TARN_OK: k->f.bytes_written += k->items[i].buffer_len; break;
        case TARN_EEXISTS: k->f.existing_puts++; break;
        case TARN_EBUSY: k->f.busy_puts++; break; /* another thread is putting the same bytes */
        default: k->f.failed_puts++; replay_note(k, "put");
        }
    }
}

static void get_hits(struct replay_worker *k, const uint64_t *ids, size_t hits) {
    for (size_t i = 0; i < hits; i++) set_item(k, i, i);
    replay_get(k, ids, hits);
}

static void put_misses(struct replay_worker *k, const uint64_t *ids, size_t from, size_t n) {
    size_t count = n - from;
    tarn_put_options options;
    tarn_put_options_init(&options);
    for (size_t i = 0; i < count; i++) {
        set_item(k, from + i, i);
        pattern_fill(ids[from + i], k->items[i].buffer, k->r->block_size);
    }
    replay_put(k, count, &options);
}

static void one_request(struct replay_worker *k, const struct trace_request *q) {
    const uint64_t *ids = k->r->trace.ids + q->first;
    for (size_t i = 0; i < q->n; i++) {
        name_trace_block(k->names[i], ids[i]);
        k->keys[i] = (tarn_key){k->names[i], REPLAY_KEY_SIZE};
    }
    size_t hits = q->n == 0 ? 0 : prefix_look_up(k, q->n);
    if (hits > 0) get_hits(k, ids, hits);
    if (hits < q->n) put_misses(k, ids, hits, q->n);
    k->f.blocks += q->n;
    k->f.hit_blocks += hits;
    k->f.tokens += q->n * k->r->trace.block;
    /* The main thread shows it meanwhile. */
    __atomic_store_n(&k->f.hit_tokens, k->f.hit_tokens + hits * k->r->trace.block,
                     __ATOMIC_RELAXED);
}

static void wait_for_turn(const struct replay *r, const struct trace_request *q) {
    if (r->speed <= 0) return;
    double due = (double)(q->timestamp_ms - r->trace.requests[0].timestamp_ms) / r->speed;
    double now = (double)(clock_mono_ms() - r->start_ms);
    if (q->timestamp_ms >= r->trace.requests[0].timestamp_ms && due > now)
        usleep((useconds_t)((due - now) * 1000));
}

static void hint_request(struct replay_worker *k, const struct trace_request *q) {
    k->session[0] = '\0';
    if (k->r->hints && q->session != TRACE_SESSION_NONE)
        snprintf(k->session, sizeof(k->session), "%" PRIu32, q->session);
}

static void *replay_work(void *arg) {
    struct replay_worker *k = arg;
    struct replay *r = k->r;
    for (;;) {
        size_t i = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED);
        if (i >= r->trace.n) return NULL;
        wait_for_turn(r, &r->trace.requests[i]);
        hint_request(k, &r->trace.requests[i]);
        (r->plan.n > 0 ? replay_kv_request : one_request)(k, &r->trace.requests[i]);
        k->f.requests++;
    }
}

static void replay_worker_open(struct replay_worker *k, struct replay *r) {
    size_t n = r->trace.longest;
    k->r = r;
    k->client = client_open(r->b, r->transport, true);
    if (r->plan.n > 0) {
        replay_kv_open(k);
        return;
    }
    k->keys = xcalloc(n + 1, sizeof(*k->keys));
    k->items = xcalloc(n + 1, sizeof(*k->items));
    k->names = xcalloc(n + 1, sizeof(*k->names));
    if (posix_memalign((void **)&k->memory, 4096, n * r->block_size + 1) != 0)
        die("no memory for %zu blocks", n);
}

static void replay_worker_close(struct replay_worker *k) {
    tarn_close(&k->client);
    replay_kv_close(k);
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

static double hit_ratio(const struct replay_figures *f) {
    return f->tokens == 0 ? 0 : (double)f->hit_tokens / (double)f->tokens;
}

static void replay_print_json(const struct replay *r, const struct replay_figures *f,
                              double seconds, double evictions) {
    struct buf out = {0};
    json_add(&out,
             "requests:u blocks:u hit_blocks:u hit_ratio:4 bytes_read:u bytes_written:u "
             "mismatched_blocks:u failed_puts:u seconds:3 busy_puts:u existing_puts:u lost_hits:u "
             "failed_lookups:u evictions:0 gb_per_s:3 tokens:u hit_tokens:u round_trips:u",
             f->requests, f->blocks, f->hit_blocks, hit_ratio(f), f->bytes_read, f->bytes_written,
             f->mismatched_blocks, f->failed_puts, seconds, f->busy_puts, f->existing_puts,
             f->lost_hits, f->failed_lookups, evictions,
             (double)(f->bytes_read + f->bytes_written) / seconds / 1e9, f->tokens, f->hit_tokens,
             f->round_trips);
    for (size_t g = 0; g < r->plan.n; g++)
        buf_printf(&out, "%s{\"block\":%u,\"hit_blocks\":%" PRIu64 ",\"bytes_read\":%" PRIu64 "}%s",
                   g == 0 ? ",\"kv_groups\":[" : ",", r->plan.group[g].block, f->group_blocks[g],
                   f->group_blocks[g] * r->plan.bytes[g], g + 1 == r->plan.n ? "]" : "");
    json_latency(&out, "prefix_", &f->prefix);
    json_latency(&out, "get_", &f->get);
    json_latency(&out, "put_", &f->put);
    json_print(&out);
}

static void replay_print_calls(const char *what, const struct hist *h) {
    printf("%-8s %10" PRIu64, what, h->count);
    print_latencies(h, 8);
}

static void replay_print(const struct replay *r, const struct replay_figures *f, double seconds,
                         double evictions) {
    printf("%" PRIu64 " requests, %" PRIu64 " blocks in %.2f s, %" PRIu64 " round trips\n",
           f->requests, f->blocks, seconds, f->round_trips);
    printf("prefix hit ratio %.4f (%" PRIu64 " tokens, %" PRIu64 " blocks)\n", hit_ratio(f),
           f->hit_tokens, f->hit_blocks);
    for (size_t g = 0; g < r->plan.n; g++)
        printf("  KV group %zu, blocks of %u: %" PRIu64 " blocks read\n", g + 1,
               r->plan.group[g].block, f->group_blocks[g]);
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
        uint64_t hits = 0; /* tokens */
        for (uint64_t i = 0; i < r->threads; i++)
            hits += __atomic_load_n(
                &((const struct replay_worker *)threads_at(&r->all, i))->f.hit_tokens,
                __ATOMIC_RELAXED);
        size_t tokens = r->trace.requests[next].first * r->trace.block;
        progress_say(&bar, next, r->trace.n, "%zu of %zu requests, hit ratio %.3f", next,
                     r->trace.n, tokens == 0 ? 0.0 : (double)hits / (double)tokens);
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
    for (uint64_t i = 0; i < r->threads; i++) {
        tarn_stats stats = {.size = sizeof(stats)};
        if (tarn_get_stats(workers[i].client, &stats) == TARN_OK)
            workers[i].f.round_trips = stats.round_trips;
        figures_add(sum, &workers[i].f);
    }
    double evictions = before < 0 || after < 0 ? -1 : after - before;
    (r->b->json ? replay_print_json : replay_print)(r, sum, seconds, evictions);
    for (uint64_t i = 0; i < r->threads; i++) replay_worker_close(&workers[i]);
    int rc = sum->mismatched_blocks > 0 || sum->failed_puts > 0 || sum->failed_lookups > 0;
    free(sum);
    threads_close(&r->all);
    return rc;
}

static bool trace_tells_sessions(const struct trace *t) {
    for (size_t i = 0; i < t->n; i++)
        if (t->requests[i].session != TRACE_SESSION_NONE) return true;
    return false;
}

int replay_main(struct bench *b, int argc, char **argv) {
    struct replay r = {.b = b, .transport = "auto", .threads = 1, .lease_ms = 50};
    const char *kv_groups = NULL, *why;
    uint64_t kv_interval = UINT64_MAX; /* not given, as others that are still 0 */
    const struct option_spec specs[] = {
        {"--kv-groups", OPT_STRING, &kv_groups, 0, 0},
        {"--kv-together", OPT_STRING, &r.together, 0, 0},
        {"--kv-interval", OPT_U64, &kv_interval, 0, UINT64_C(1) << 30},
        {"--block-size", OPT_BYTES, &r.block_size, 1, UINT64_C(1) << 30},
        {"--threads", OPT_U64, &r.threads, 1, 256},
        {"--lease-ms", OPT_U64, &r.lease_ms, 1, 600000},
        {"--limit", OPT_U64, &r.limit, 0, UINT64_C(1) << 40},
        {"--speed", OPT_DOUBLE, &r.speed, 0, 1000000},
        {"--transport", OPT_STRING, &r.transport, 0, 0},
        {"--hints", OPT_FLAG, &r.hints, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    size_t plain = options_parse(b, specs, argc, argv, false, NULL);
    if (plain != 1) die("replay takes one trace file (tarn-benchmark --help)");
    if (kv_groups == NULL && r.together != NULL) die("--kv-together goes with --kv-groups");
    if (kv_groups == NULL && kv_interval != UINT64_MAX) die("--kv-interval goes with --kv-groups");
    if (kv_groups != NULL && r.block_size != 0)
        die("--block-size does not go with --kv-groups, which says how large parts are");
    if (r.together == NULL) r.together = "boundaries";
    if (kv_interval == UINT64_MAX) kv_interval = 0;
    if (r.block_size == 0) r.block_size = 4096;
    if (kv_groups != NULL && (why = kv_plan_parse(&r.plan, kv_groups, kv_interval)) != NULL)
        die("--kv-groups %s: %s", kv_groups, why);
    if (!replay_kv_together(r.together, NULL, NULL))
        die("--kv-together is boundaries, groups or nothing, not %s", r.together);
    const struct trace_options how = {.limit = (size_t)r.limit, .lengths_apart = true};
    if (trace_load(&r.trace, argv[0], &how, &why) != TARN_OK) die("%s", why);
    if (kv_groups != NULL && r.trace.block != TRACE_BLOCK)
        die("--kv-groups needs a trace with blocks of %u tokens, as mooncake's", TRACE_BLOCK);
    if (r.hints && !trace_tells_sessions(&r.trace))
        die("--hints: %s tells no sessions (bailian's, burstgpt's, and those of tarn-simulate "
            "trace do)",
            argv[0]);
    int rc = replay_run(&r);
    trace_free(&r.trace);
    return rc;
}
