/* data: how fast bytes get in and out, by block size and batch, beside memcpy of the same blocks.
 * Sources and destinations rotate through more memory than caches hold, on both sides alike. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmark/data.h"

#define GATHER_MAX    (UINT64_C(64) << 10) /* values up to this length */
#define GATHER_BYTES  (UINT64_C(1) << 20)
#define PRELOAD_BATCH UINT64_C(64)
#define PRELOAD_LOOKS 32u

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

static char *block_memory(struct data_worker *k, uint64_t number) {
    return k->memory + number % k->slots * k->run->block_size;
}

/* A batch over libtarn. Returns the bytes moved. */
static uint64_t tarn_batch(struct data_worker *k, bool put, uint64_t first) {
    const struct data_run *run = k->run;
    for (uint64_t i = 0; i < run->batch; i++) {
        uint64_t number = put ? first + i : (first + i) % run->preloaded;
        name_block(k->names[i], run, number);
        k->items[i] = (tarn_item){.key = k->names[i],
                                  .key_len = DATA_KEY,
                                  .buffer = block_memory(k, first + i),
                                  .buffer_len = run->block_size};
        if (put && run->check) pattern_fill(number, k->items[i].buffer, run->block_size);
    }
    uint64_t start = clock_mono_ns(), bytes = 0;
    tarn_status status = put ? tarn_put_many(k->client, k->items, run->batch, NULL, NULL)
                             : tarn_get_many(k->client, k->items, run->batch, NULL, NULL);
    thread_called(&k->t, start);
    if (status != TARN_OK) snprintf(k->t.error, sizeof(k->t.error), "%s", tarn_last_error());
    for (uint64_t i = 0; i < run->batch; i++) {
        if (k->items[i].status != TARN_OK && k->items[i].status != TARN_EEXISTS) {
            k->t.failed++;
            if (k->t.error[0] == '\0') {
                snprintf(k->t.error, sizeof(k->t.error), "%s (%s)",
                         tarn_strerror(k->items[i].status), tarn_last_error());
            }
            continue;
        }
        bytes += run->block_size;
        if (!put && run->check) {
            k->t.mismatched +=
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
        pattern_fill(first + i, block_memory(k, first + i), run->block_size);
    uint64_t start = clock_mono_ns(), bytes = 0;
    for (uint64_t i = 0; i < run->batch; i++) {
        name_block(k->names[i], run, put ? first + i : (first + i) % run->preloaded);
        if (put) {
            buf_printf(&w->out, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%" PRIu64 "\r\n", DATA_KEY,
                       k->names[i], run->block_size);
            send_value(w, block_memory(k, first + i), run->block_size);
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
            k->t.failed++;
            snprintf(k->t.error, sizeof(k->t.error), "%.*s", (int)len, line);
            wire_skip_rest(w, line);
            continue;
        }
        if (!put) wire_bulk(w, block_memory(k, first + i), run->block_size);
        bytes += run->block_size;
    }
    thread_called(&k->t, start);
    for (uint64_t i = 0; i < run->batch && !put && run->check; i++) {
        k->t.mismatched += !pattern_check((first + i) % run->preloaded, block_memory(k, first + i),
                                          run->block_size);
    }
    return bytes;
}

static uint64_t data_batch(struct data_worker *k, bool put, uint64_t first) {
    return k->run->resp ? resp_batch(k, put, first) : tarn_batch(k, put, first);
}

/* What came before was warming up: first touches of memory, a pool that is not full yet. */
static void start_over(struct data_worker *k) {
    k->warm = true;
    k->t.busy_ns = 0;
    __atomic_store_n(&k->t.bytes, 0, __ATOMIC_RELAXED);
    hist_init(&k->t.hist);
}

static void *data_work(void *arg) {
    struct data_worker *k = arg;
    struct data_run *run = k->run;
    uint64_t turn = 0;
    while (!threads_stop(&run->all) && k->t.failed < 1000) {
        bool put = run->op == DATA_PUT || (run->op == DATA_MIX && turn % 2 == 1);
        uint64_t first = put ? __atomic_fetch_add(&run->next_put, run->batch, __ATOMIC_RELAXED)
                             : (turn * run->batch + k->index * run->preloaded / run->threads);
        if (!k->warm && __atomic_load_n(&run->warm, __ATOMIC_RELAXED)) start_over(k);
        uint64_t bytes = data_batch(k, put, first);
        __atomic_store_n(&k->t.bytes, k->t.bytes + bytes, __ATOMIC_RELAXED);
        turn++;
    }
    __atomic_store_n(&k->t.over, true, __ATOMIC_RELAXED);
    return NULL;
}

/* --- one row --- */

static void data_worker_open(struct data_worker *k, struct data_run *run, uint64_t index) {
    k->run = run;
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
}

static void data_worker_close(struct data_worker *k) {
    if (k->client != NULL) tarn_close(&k->client);
    if (k->wire != NULL) wire_close(&k->wire);
    free(k->memory);
    free(k->names);
    free(k->items);
}

static void preload_put(struct data_worker *k, uint64_t first) {
    (void)data_batch(k, true, first);
    if (k->t.failed > 0) die("loading blocks: %s", k->t.error);
}

/* Looks for all, and puts what is not found. Returns whether all was. */
static bool preload_look(struct data_worker *k) {
    bool whole = true;
    for (uint64_t i = 0; i < k->run->preloaded; i += k->run->batch) {
        (void)data_batch(k, false, i);
        if (k->t.failed == 0) continue;
        whole = false;
        k->t.failed = 0;
        k->t.error[0] = '\0';
        preload_put(k, i);
    }
    return whole;
}

/* Blocks 0 .. preloaded-1, for gets. What the server holds may be worth more to it than blocks that
 * nobody has read: these are loaded as engines do it, until all of them are found. */
static void preload(struct data_run *run) {
    struct data_run put = *run;
    put.batch = 1;
    for (uint64_t n = 2; n <= PRELOAD_BATCH; n++) {
        if (run->preloaded % n == 0) put.batch = n;
    }
    struct data_worker *k = xcalloc(1, sizeof(*k));
    hist_init(&k->t.hist);
    data_worker_open(k, &put, 0);
    for (uint64_t i = 0; i < run->preloaded; i += put.batch) preload_put(k, i);
    for (unsigned n = 0; !preload_look(k); n++)
        if (n == PRELOAD_LOOKS)
            die("the server does not keep what it is asked for again and again");
    run->next_put = run->preloaded;
    data_worker_close(k);
    free(k);
}

/* So that the next row starts with an empty place, and other keys of the pool stay. */
static void clean(struct data_run *run) {
    struct wire *w = wire_open(run->b);
    char name[DATA_KEY + 1];
    for (uint64_t i = 0; i < run->next_put; i += 1000) {
        uint64_t n = min_u64(run->next_put - i, 1000);
        buf_printf(&w->out, "*%" PRIu64 "\r\n$6\r\nUNLINK\r\n", n + 1);
        for (uint64_t j = i; j < i + n; j++) {
            name_block(name, run, j);
            buf_printf(&w->out, "$%d\r\n%s\r\n", DATA_KEY, name);
        }
        wire_flush(w);
        wire_skip(w, 1);
    }
    wire_close(&w);
}

static void row_run(struct data_run *run, struct data_row *row) {
    struct bench_crew *all = &run->all;
    char what[64], size[24];
    run->id = mix64(clock_wall_us());
    run->warm = run->warm_seconds == 0;
    run->next_put = 0;
    if (run->op != DATA_PUT) preload(run);
    threads_open(all, run->threads, sizeof(struct data_worker));
    for (uint64_t i = 0; i < all->n; i++)
        data_worker_open((struct data_worker *)threads_at(all, i), run, i);
    threads_start(all, data_work);
    usleep((unsigned)(run->warm_seconds * 1e6));
    __atomic_store_n(&run->warm, true, __ATOMIC_RELAXED);
    snprintf(what, sizeof(what), "%s %s x %" PRIu64, data_op_names[run->op],
             size_text(run->block_size, size), run->batch);
    threads_wait(all, run->b, run->seconds, what);
    *row = (struct data_row){.transport = run->transport,
                             .op = data_op_names[run->op],
                             .block_size = run->block_size,
                             .batch = run->batch};
    row->gb_per_s = threads_join(all, &row->sum);
    for (uint64_t i = 0; i < all->n; i++)
        data_worker_close((struct data_worker *)threads_at(all, i));
    clean(run);
    threads_close(all);
}

/* --- the whole --- */

static void data_parse(struct data_run *run, const char *op, bool no_verify) {
    size_t i = 0;
    while (i < DATA_OPS && strcmp(op, data_op_names[i]) != 0) i++;
    if (i == DATA_OPS) die("--op is get, put or mix, not \"%s\"", op);
    run->op = (enum data_op)i;
    run->resp = strcmp(run->transport, "resp") == 0;
    run->verify = !no_verify;
    if (no_verify && run->check) die("--check and --no-verify exclude each other");
}

/* What the server holds before it evicts. Any server that speaks RESP will do for rows of resp. */
static uint64_t data_pool_bytes(const struct data_run *run) {
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
        {"--transport", OPT_STRING, &run.transport, 0, 0},
        {"--op", OPT_STRING, &op, 0, 0},
        {"--block-size", OPT_BYTES_LIST, &sizes, 1, UINT64_C(1) << 32},
        {"--batch", OPT_U64_LIST, &batches, 1, 65536},
        {"--threads", OPT_U64, &run.threads, 1, 256},
        {"--seconds", OPT_DOUBLE, &run.seconds, 0, 86400},
        {"--warm-up", OPT_DOUBLE, &run.warm_seconds, 0, 3600},
        {"--check", OPT_FLAG, &run.check, 0, 0},
        {"--no-verify", OPT_FLAG, &no_verify, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("data takes no argument \"%s\"", argv[0]);
    data_parse(&run, op, no_verify);
    uint64_t pool = data_pool_bytes(&run), failed = 0;
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
                        "tarn-benchmark: %s x %" PRIu64 " left out: the pool of %" PRIu64
                        " MiB is too small\n",
                        size_text(run.block_size, text), run.batch, pool >> 20);
                continue;
            }
            run.preloaded = max_u64(min_u64(ROTATION_BYTES, pool / 2) / run.block_size, run.batch);
            run.preloaded = min_u64(run.preloaded, 65536);
            struct data_row row;
            row_run(&run, &row);
            row.memcpy_gb_per_s = memcpy_rate;
            data_print_row(b, &row);
            failed += row.sum.failed + row.sum.mismatched;
        }
    }
    data_print_tail(b, &run);
    return failed > 0;
}
