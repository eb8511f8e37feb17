/* data: how fast bytes get in and out, by block size and batch, beside memcpy of the same blocks.
 * Sources and destinations rotate through more memory than caches hold, on both sides alike. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmark/data.h"

typedef unsigned long long ull;

#define GATHER_MAX    (UINT64_C(64) << 10) /* values up to this length */
#define GATHER_BYTES  (UINT64_C(1) << 20)
#define PRELOAD_BATCH UINT64_C(64)

/* --- one thread --- */

/* "bench:<16 digits>:<8 digits>:<32 digits>", by hand: with small blocks snprintf would be the
 * larger part of a call. */
static void name_block(char out[DATA_KEY + 1], const struct data_run *run, uint64_t number) {
    memcpy(out, "bench:", 6);
    u64_to_hex(run->id, 16, out + 6);
    out[22] = out[31] = ':';
    u64_to_hex(run->block_size, 8, out + 23);
    u64_to_hex(number, 32, out + 32);
    out[DATA_KEY] = '\0';
}

static char *slot(struct data_worker *k, uint64_t number) {
    return k->memory + number % k->slots * k->run->block_size;
}

static void count_time(struct data_worker *k, uint64_t start_ns) {
    uint64_t took_ns = clock_mono_ns() - start_ns;
    k->busy_ns += took_ns;
    hist_add(&k->hist, took_ns / 1000);
}

/* A batch over libtarn. Returns the bytes moved. */
static uint64_t tarn_batch(struct data_worker *k, bool put, uint64_t first) {
    const struct data_run *run = k->run;
    for (uint64_t i = 0; i < run->batch; i++) {
        uint64_t number = put ? first + i : (first + i) % run->preloaded;
        name_block(k->names[i], run, number);
        k->items[i] = (tarn_item){.key = k->names[i],
                                  .key_len = DATA_KEY,
                                  .buffer = slot(k, first + i),
                                  .buffer_len = run->block_size};
        if (put && run->check) pattern_fill(number, k->items[i].buffer, run->block_size);
    }
    uint64_t start = clock_mono_ns(), bytes = 0;
    tarn_status status = put ? tarn_put_many(k->client, k->items, run->batch, NULL, NULL)
                             : tarn_get_many(k->client, k->items, run->batch, NULL, NULL);
    count_time(k, start);
    if (status != TARN_OK) snprintf(k->error, sizeof(k->error), "%s", tarn_last_error());
    for (uint64_t i = 0; i < run->batch; i++) {
        if (k->items[i].status != TARN_OK) {
            k->failed++;
            if (k->error[0] == '\0') {
                snprintf(k->error, sizeof(k->error), "%s (%s)", tarn_strerror(k->items[i].status),
                         tarn_last_error());
            }
            continue;
        }
        bytes += run->block_size;
        if (!put && run->check) {
            k->mismatched +=
                !pattern_check((first + i) % run->preloaded, k->items[i].buffer, run->block_size);
        }
    }
    return bytes;
}

/* Small values are gathered, as clients do that pipeline: a system call for each would measure
 * that. */
static void send_value(struct wire *w, const char *data, uint64_t len) {
    if (len <= GATHER_MAX) {
        buf_append(&w->out, data, len);
        if (w->out.len > GATHER_BYTES) wire_flush(w);
        return;
    }
    wire_flush(w);
    wire_send(w, data, len);
}

static uint64_t resp_batch(struct data_worker *k, bool put, uint64_t first) {
    const struct data_run *run = k->run;
    struct wire *w = k->wire;
    for (uint64_t i = 0; i < run->batch && put && run->check; i++)
        pattern_fill(first + i, slot(k, first + i), run->block_size);
    uint64_t start = clock_mono_ns(), bytes = 0;
    for (uint64_t i = 0; i < run->batch; i++) {
        name_block(k->names[i], run, put ? first + i : (first + i) % run->preloaded);
        if (put) {
            buf_printf(&w->out, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%llu\r\n", DATA_KEY, k->names[i],
                       (ull)run->block_size);
            send_value(w, slot(k, first + i), run->block_size);
            buf_append(&w->out, "\r\n", 2);
        } else {
            buf_printf(&w->out, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", DATA_KEY, k->names[i]);
        }
    }
    wire_flush(w);
    for (uint64_t i = 0; i < run->batch; i++) {
        size_t len;
        const char *line = wire_line(w, &len);
        bool ok = put ? line[0] == '+'
                      : line[0] == '$' && wire_int(w, line, len) == (int64_t)run->block_size;
        if (!ok) {
            k->failed++;
            snprintf(k->error, sizeof(k->error), "%.*s", (int)len, line);
            wire_skip_rest(w, line);
            continue;
        }
        if (!put) wire_bulk(w, slot(k, first + i), run->block_size);
        bytes += run->block_size;
    }
    count_time(k, start);
    for (uint64_t i = 0; i < run->batch && !put && run->check; i++) {
        k->mismatched +=
            !pattern_check((first + i) % run->preloaded, slot(k, first + i), run->block_size);
    }
    return bytes;
}

/* What came before was warming up: first touches of memory, a pool that is not full yet. */
static void start_over(struct data_worker *k) {
    k->warm = true;
    k->busy_ns = 0;
    __atomic_store_n(&k->bytes, 0, __ATOMIC_RELAXED);
    hist_init(&k->hist);
}

static void *work(void *arg) {
    struct data_worker *k = arg;
    const struct data_run *run = k->run;
    uint64_t turn = 0;
    while (!__atomic_load_n(&run->stop, __ATOMIC_RELAXED) && k->failed < 1000) {
        bool put = run->op == DATA_PUT || (run->op == DATA_MIX && turn % 2 == 1);
        uint64_t first =
            put ? __atomic_fetch_add(&k->shared->next_put, run->batch, __ATOMIC_RELAXED)
                : (turn * run->batch + k->index * run->preloaded / run->threads);
        if (!k->warm && __atomic_load_n(&run->warm, __ATOMIC_RELAXED)) start_over(k);
        uint64_t bytes = run->resp ? resp_batch(k, put, first) : tarn_batch(k, put, first);
        __atomic_store_n(&k->bytes, k->bytes + bytes, __ATOMIC_RELAXED);
        turn++;
    }
    return NULL;
}

/* --- one row --- */

static void open_worker(struct data_worker *k, struct data_run *run, uint64_t index) {
    k->run = run;
    k->shared = run;
    k->index = index;
    k->warm = run->warm;
    if (run->resp) {
        k->wire = wire_open(run->b);
    } else {
        k->client = client_open(run->b, run->transport, run->verify);
    }
    k->slots = max_u64(ROTATION_BYTES / run->block_size, run->batch);
    if (posix_memalign((void **)&k->memory, 4096, k->slots * run->block_size) != 0)
        die("no memory for the blocks");
    pattern_fill(run->id, k->memory, k->slots * run->block_size);
    k->names = xcalloc(run->batch, sizeof(*k->names));
    k->items = xcalloc(run->batch, sizeof(*k->items));
    hist_init(&k->hist);
}

static void close_worker(struct data_worker *k) {
    if (k->client != NULL) tarn_close(&k->client);
    if (k->wire != NULL) wire_close(&k->wire);
    free(k->memory);
    free(k->names);
    free(k->items);
}

/* Blocks 0 .. preloaded-1, for gets. */
static void preload(struct data_run *run) {
    struct data_run put = *run;
    put.batch = 1;
    for (uint64_t n = 2; n <= PRELOAD_BATCH; n++) {
        if (run->preloaded % n == 0) put.batch = n;
    }
    struct data_worker *k = xcalloc(1, sizeof(*k));
    open_worker(k, &put, 0);
    for (uint64_t i = 0; i < run->preloaded; i += put.batch) {
        if (run->resp) {
            resp_batch(k, true, i);
        } else {
            tarn_batch(k, true, i);
        }
        if (k->failed > 0) die("loading blocks: %s", k->error);
    }
    run->next_put = run->preloaded;
    close_worker(k);
    free(k);
}

/* So that the next row starts with an empty place, and other keys of the pool stay. */
static void clean(struct data_run *run) {
    struct wire *w = wire_open(run->b);
    char name[DATA_KEY + 1];
    for (uint64_t i = 0; i < run->next_put; i += 1000) {
        uint64_t n = min_u64(run->next_put - i, 1000);
        buf_printf(&w->out, "*%llu\r\n$6\r\nUNLINK\r\n", (ull)n + 1);
        for (uint64_t j = i; j < i + n; j++) {
            name_block(name, run, j);
            buf_printf(&w->out, "$%d\r\n%s\r\n", DATA_KEY, name);
        }
        wire_flush(w);
        wire_skip(w, 1);
    }
    wire_close(&w);
}

static void run_row(struct data_run *run, struct data_row *row) {
    struct data_worker *workers = xcalloc(run->threads, sizeof(*workers));
    struct progress bar;
    progress_bar(&bar, run->b->json);
    run->id = mix64(clock_wall_us());
    run->stop = false;
    run->warm = run->warm_seconds == 0;
    run->next_put = 0;
    if (run->op != DATA_PUT) preload(run);
    for (uint64_t i = 0; i < run->threads; i++) open_worker(&workers[i], run, i);
    uint64_t start = clock_mono_us(), total = (uint64_t)(run->seconds * 1e6), now;
    for (uint64_t i = 0; i < run->threads; i++) {
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            die("cannot start a thread");
    }
    char size[24];
    usleep((unsigned)(run->warm_seconds * 1e6));
    __atomic_store_n(&run->warm, true, __ATOMIC_RELAXED);
    start = clock_mono_us();
    while ((now = clock_mono_us()) - start < total) {
        usleep((unsigned)min_u64(total - (now - start), 100000));
        progress_say(&bar, (now - start), total, "%s %s x %llu", data_op_names[run->op],
                     size_text(run->block_size, size), (ull)run->batch);
    }
    __atomic_store_n(&run->stop, true, __ATOMIC_RELAXED);
    *row = (struct data_row){.transport = run->transport,
                             .op = data_op_names[run->op],
                             .block_size = run->block_size,
                             .batch = run->batch};
    hist_init(&row->hist);
    double rate = 0;
    for (uint64_t i = 0; i < run->threads; i++) {
        struct data_worker *k = &workers[i];
        pthread_join(k->thread, NULL);
        hist_merge(&row->hist, &k->hist);
        row->bytes += k->bytes;
        row->failed += k->failed;
        row->mismatched += k->mismatched;
        /* The time that calls take; what making and checking patterns takes is not the pool's. */
        if (k->busy_ns > 0) rate += (double)k->bytes / (double)k->busy_ns;
        if (k->error[0]) fprintf(stderr, "tarn-benchmark: %s\n", k->error);
        close_worker(k);
    }
    row->gb_per_s = rate;
    progress_end(&bar);
    clean(run);
    free(workers);
}

/* --- the whole --- */

static void parse(struct data_run *run, const char *op, bool no_verify) {
    size_t i = 0;
    while (i < DATA_OPS && strcmp(op, data_op_names[i]) != 0) i++;
    if (i == DATA_OPS) die("--op is get, put or mix, not \"%s\"", op);
    run->op = (enum data_op)i;
    run->resp = strcmp(run->transport, "resp") == 0;
    run->verify = !no_verify;
    if (no_verify && run->check) die("--check and --no-verify exclude each other");
}

static double info_field(const char *text, const char *field) {
    char needle[80];
    int n = snprintf(needle, sizeof(needle), "\n%s:", field);
    const char *at = strstr(text, needle);
    return at == NULL ? 0 : strtod(at + n, NULL);
}

/* What the server holds before it evicts. Any server that speaks RESP will do for rows of resp. */
static uint64_t pool_bytes(const struct data_run *run) {
    double size;
    if (run->resp) {
        struct wire *w = wire_open(run->b);
        buf_append_str(&w->out, "*1\r\n$4\r\nINFO\r\n");
        wire_flush(w);
        size_t len;
        const char *line = wire_line(w, &len);
        int64_t bytes = line[0] == '$' ? wire_int(w, line, len) : 0;
        if (bytes <= 0) die("the server answers INFO with \"%.*s\"", (int)len, line);
        char *text = xcalloc(1, (size_t)bytes + 1);
        wire_bulk(w, text, (size_t)bytes);
        size = info_field(text, "pool_size");
        if (size <= 0) size = info_field(text, "maxmemory");
        free(text);
        wire_close(&w);
    } else {
        tarn_client *c = client_open(run->b, "auto", true);
        size = info_number(c, "pool_size");
        tarn_close(&c);
    }
    return size > 0 ? (uint64_t)size : UINT64_C(1) << 30;
}

int data_main(struct bench *b, int argc, char **argv) {
    const char *op = "get";
    bool no_verify = false;
    struct data_run run = {.b = b, .transport = "shm", .threads = 1, .seconds = 2};
    struct number_list sizes = {
        {4096, 65536, UINT64_C(1) << 20, UINT64_C(4) << 20, UINT64_C(16) << 20, UINT64_C(64) << 20},
        6};
    struct number_list batches = {{1, 16}, 2};
    const struct option_spec specs[] = {
        {"--transport", OPT_STRING, &run.transport, 0, 0, NULL},
        {"--op", OPT_STRING, &op, 0, 0, NULL},
        {"--block-size", OPT_BYTES_LIST, &sizes, 1, UINT64_C(1) << 32, NULL},
        {"--batch", OPT_U64_LIST, &batches, 1, 65536, NULL},
        {"--threads", OPT_U64, &run.threads, 1, 256, NULL},
        {"--seconds", OPT_DOUBLE, &run.seconds, 0, 86400, NULL},
        {"--warm-up", OPT_DOUBLE, &run.warm_seconds, 0, 3600, NULL},
        {"--check", OPT_FLAG, &run.check, 0, 0, NULL},
        {"--no-verify", OPT_FLAG, &no_verify, 0, 0, NULL},
        {NULL, OPT_FLAG, NULL, 0, 0, NULL},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("data takes no argument \"%s\"", argv[0]);
    parse(&run, op, no_verify);
    uint64_t pool = pool_bytes(&run), failed = 0;
    data_print_head(b);
    for (size_t s = 0; s < sizes.n; s++) {
        run.block_size = sizes.v[s];
        double memcpy_rate = data_memcpy_row(&run, min_u64(ROTATION_BYTES, pool / 2));
        for (size_t i = 0; i < batches.n; i++) {
            run.batch = batches.v[i];
            uint64_t bytes = run.batch * run.block_size;
            if (bytes * run.threads > pool / 3) {
                char text[24];
                fprintf(stderr,
                        "tarn-benchmark: %s x %llu left out: the pool of %llu MiB is too small\n",
                        size_text(run.block_size, text), (ull)run.batch, (ull)pool >> 20);
                continue;
            }
            run.preloaded = max_u64(min_u64(ROTATION_BYTES, pool / 2) / run.block_size, run.batch);
            run.preloaded = min_u64(run.preloaded, 65536);
            struct data_row row;
            run_row(&run, &row);
            row.memcpy_gb_per_s = memcpy_rate;
            data_print_row(b, &row);
            failed += row.failed + row.mismatched;
        }
    }
    data_print_tail(b, &run);
    return failed > 0;
}
