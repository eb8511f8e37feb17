/* transfer: how fast batches of blocks move between two ends that store nothing
 * (src/tarn_transfer.h). Both ends in one process, or a target that lends memory in one and an
 * initiator in another, which reads or writes it. Blocks are as scattered as those of a paged
 * cache, unless they are to be merged. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmark/bench.h"
#include "tarn_transfer.h"

#define PAGE     UINT64_C(4096) /* what one pattern fills */
#define PEER_MS  30000u
#define FILLED   "filled" /* a label: the blocks are there */
#define FAIL_MAX 1000u

struct transfer_run {
    const struct bench *b;
    const char *mode, *peer, *name, *master, *bind, *announce, *secret, *transport, *op;
    uint64_t port, data_port, block_size, batch, threads, count, buffer, streams;
    double seconds;
    bool foreign, merge, check, write;
    tarn_transfer *target, *initiator;
    void *own; /* the target's memory, where it is not tarn's */
    tarn_transfer_peer *far;
    tarn_transfer_region region; /* of the target */
    struct bench_crew all;
};

struct transfer_worker {
    struct bench_thread t;
    const struct transfer_run *run;
    uint64_t index, slots; /* blocks that it rotates through, on both sides */
    char *memory, *proof;  /* proof: what was written, read again */
    tarn_transfer_task *tasks;
    uint64_t batches, operations;
    char transport[8];
};

/* --- patterns --- */

static void fill_pages(uint64_t salt, char *memory, uint64_t first_page, uint64_t bytes) {
    for (uint64_t at = 0; at < bytes; at += PAGE)
        pattern_fill(salt + first_page + at / PAGE, memory + at, PAGE);
}

static bool check_pages(uint64_t salt, const char *memory, uint64_t first_page, uint64_t bytes) {
    bool same = true;
    for (uint64_t at = 0; at < bytes; at += PAGE)
        same &= pattern_check(salt + first_page + at / PAGE, memory + at, PAGE);
    return same;
}

/* --- the target --- */

static tarn_transfer *open_end(const struct transfer_run *run, bool target) {
    tarn_transfer_options o;
    tarn_transfer_options_init(&o);
    o.transport = run->transport;
    o.secret = run->secret;
    o.master = run->master;
    o.workers = (unsigned)min_u64(run->threads, 64);
    o.streams = (unsigned)run->streams;
    const char *bind[] = {run->bind};
    if (target) {
        o.name = run->name;
        o.announce = run->announce;
        o.port = (uint16_t)run->port;
        o.data_port = (uint16_t)run->data_port;
        o.bind = bind;
        o.binds = run->bind != NULL;
    }
    tarn_transfer *t;
    if (tarn_transfer_open(&o, &t) != TARN_OK) die("%s", tarn_last_error());
    return t;
}

static void target_lend(struct transfer_run *run) {
    const int rights = TARN_TRANSFER_READ | TARN_TRANSFER_WRITE;
    void *memory = NULL;
    run->target = open_end(run, true);
    tarn_status status;
    if (run->foreign) {
        if (posix_memalign(&memory, PAGE, run->buffer) != 0) die("no memory for the blocks");
        run->own = memory;
        status =
            tarn_transfer_register(run->target, memory, run->buffer, rights, "benchmark", NULL);
    } else {
        status =
            tarn_transfer_alloc(run->target, run->buffer, rights, "benchmark", 1, &memory, NULL);
    }
    if (status != TARN_OK) die("%s", tarn_last_error());
    fill_pages(0, memory, 0, run->buffer / PAGE * PAGE);
    /* Its name may have been known since it was opened: this says that there is something to read.
     * It stays, whoever leaves. */
    tarn_transfer_ready_options filled;
    tarn_transfer_ready_options_init(&filled);
    filled.peers = UINT32_MAX;
    if (tarn_transfer_ready(run->target, FILLED, &filled) != TARN_OK) die("%s", tarn_last_error());
}

static int target_serve(struct transfer_run *run) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    target_lend(run);
    printf(run->b->json ? "{\"endpoint\":\"%s\",\"bytes\":%" PRIu64 "}\n"
                        : "%s lends %" PRIu64 " bytes\n",
           tarn_transfer_endpoint(run->target), run->buffer);
    fflush(stdout);
    int signal;
    sigwait(&signals, &signal);
    tarn_transfer_close(&run->target);
    free(run->own);
    return 0;
}

/* --- one thread of the initiator --- */

/* Every other block, so that none are neighbours; or one after the other. */
static uint64_t block_at(const struct transfer_worker *k, uint64_t number) {
    if (k->run->merge) return number % k->slots;
    uint64_t half = k->slots / 2, i = number % (2 * half);
    return i < half ? 2 * i : 2 * (i - half) + 1;
}

static void tasks_fill(struct transfer_worker *k, uint64_t first) {
    const struct transfer_run *run = k->run;
    for (uint64_t i = 0; i < run->batch; i++) {
        uint64_t block = block_at(k, first + i);
        k->tasks[i] = (tarn_transfer_task){
            .op = run->write ? TARN_TRANSFER_WRITE : TARN_TRANSFER_READ,
            .region = run->region.id,
            .local = k->memory + block * run->block_size,
            .remote = (k->index * k->slots + block) * run->block_size,
            .length = run->block_size,
        };
        if (run->write && run->check)
            fill_pages(first, k->tasks[i].local, k->tasks[i].remote / PAGE, run->block_size);
    }
}

static void tasks_check(struct transfer_worker *k, uint64_t first) {
    const struct transfer_run *run = k->run;
    for (uint64_t i = 0; i < run->batch; i++) {
        tarn_transfer_task *task = &k->tasks[i];
        const char *bytes = task->local;
        if (task->status != TARN_OK) continue;
        if (run->write) {
            tarn_transfer_task back = *task;
            back.op = TARN_TRANSFER_READ;
            back.local = k->proof;
            k->t.failed += tarn_transfer_run(run->far, &back, 1, NULL) != TARN_OK;
            bytes = k->proof;
        }
        k->t.mismatched +=
            !check_pages(run->write ? first : 0, bytes, task->remote / PAGE, run->block_size);
    }
}

static void one_batch(struct transfer_worker *k, uint64_t first) {
    const struct transfer_run *run = k->run;
    tasks_fill(k, first);
    tarn_transfer_batch *batch;
    tarn_transfer_batch_info info = {.size = sizeof(info)};
    uint64_t start = clock_mono_ns();
    tarn_status status = tarn_transfer_submit(run->far, k->tasks, run->batch, NULL, &batch);
    if (status == TARN_OK) {
        status = tarn_transfer_wait(batch, TARN_NO_TIMEOUT);
        if (status != TARN_OK) snprintf(k->t.error, sizeof(k->t.error), "%s", tarn_last_error());
        (void)tarn_transfer_get_batch(batch, &info);
        tarn_transfer_release(&batch);
    } else {
        snprintf(k->t.error, sizeof(k->t.error), "%s", tarn_last_error());
        info.failed = run->batch;
    }
    thread_called(&k->t, start);
    k->batches++;
    k->operations += info.operations;
    k->t.failed += info.failed;
    __atomic_store_n(&k->t.bytes, k->t.bytes + info.bytes, __ATOMIC_RELAXED);
    if (info.transport[0] != '\0') memcpy(k->transport, info.transport, sizeof(k->transport));
    if (run->check) tasks_check(k, first);
}

static void *transfer_work(void *arg) {
    struct transfer_worker *k = arg;
    const struct transfer_run *run = k->run;
    uint64_t done = 0;
    while (!threads_stop(&run->all) && k->t.failed < FAIL_MAX &&
           (run->count == 0 || done < run->count)) {
        one_batch(k, done * run->batch);
        done++;
    }
    __atomic_store_n(&k->t.over, true, __ATOMIC_RELAXED);
    return NULL;
}

/* --- the whole --- */

static void connect_target(struct transfer_run *run) {
    const char *where = run->target != NULL ? tarn_transfer_endpoint(run->target) : run->peer;
    run->initiator = open_end(run, false);
    if (tarn_transfer_connect(run->initiator, where, PEER_MS, &run->far) != TARN_OK)
        die("%s", tarn_last_error());
    if (tarn_transfer_wait_ready(run->far, FILLED, PEER_MS, NULL, 0, NULL) != TARN_OK)
        die("%s is no target of tarn-benchmark transfer, or not ready: %s", where,
            tarn_last_error());
    size_t n = 0;
    if (tarn_transfer_peer_regions(run->far, &run->region, 1, &n) != TARN_OK)
        die("%s", tarn_last_error());
    if (n != 1 || strcmp(run->region.name, "benchmark") != 0)
        die("%s is no target of tarn-benchmark transfer", where);
}

static void transfer_worker_open(struct transfer_worker *k, struct transfer_run *run,
                                 uint64_t index) {
    k->run = run;
    k->index = index;
    k->slots = run->region.length / run->threads / run->block_size;
    if (k->slots < run->batch || k->slots < 2)
        die("a buffer of %" PRIu64 " bytes is too small for %" PRIu64
            " threads with batches of %" PRIu64 " x %" PRIu64 " bytes",
            run->region.length, run->threads, run->batch, run->block_size);
    uint64_t bytes = k->slots * run->block_size;
    if (posix_memalign((void **)&k->memory, PAGE, bytes) != 0) die("no memory for the blocks");
    memset(k->memory, 1, bytes);
    k->proof = xmalloc(run->block_size);
    k->tasks = xcalloc(run->batch, sizeof(*k->tasks));
    if (tarn_transfer_register(run->initiator, k->memory, bytes, 0, NULL, NULL) != TARN_OK)
        die("%s", tarn_last_error());
}

static void transfer_worker_close(struct transfer_worker *k) {
    (void)tarn_transfer_unregister(k->run->initiator, k->memory);
    free(k->memory);
    free(k->proof);
    free(k->tasks);
}

static void transfer_print(const struct transfer_run *run, const struct transfer_worker *last,
                           const struct bench_thread *sum, double rate) {
    uint64_t batches = 0, operations = 0;
    char size[24];
    for (uint64_t i = 0; i < run->all.n; i++) {
        const struct transfer_worker *k = (struct transfer_worker *)threads_at(&run->all, i);
        batches += k->batches;
        operations += k->operations;
    }
    if (!run->b->json) {
        printf("%-9s %-5s %6s %5s %7s %9s %9s", "transport", "op", "block", "batch", "threads",
               "GB/s", "ops");
        print_latencies(NULL, 9);
        printf("%-9s %-5s %6s %5" PRIu64 " %7" PRIu64 " %9.3f %9" PRIu64, last->transport, run->op,
               size_text(run->block_size, size), run->batch, run->threads, rate, operations);
        print_latencies(&sum->hist, 9);
        print_failures("tasks", sum);
        return;
    }
    struct buf out = {0};
    json_add(&out,
             "transport:s op:s block_size:u batch:u threads:u gb_per_s:4 bytes:u batches:u "
             "operations:u failed:u checked:b mismatched_blocks:u",
             last->transport, run->op, run->block_size, run->batch, run->threads, rate, sum->bytes,
             batches, operations, sum->failed, run->check, sum->mismatched);
    json_latency(&out, "", &sum->hist);
    json_print(&out);
}

static int transfer_measure(struct transfer_run *run) {
    struct bench_crew *all = &run->all;
    struct bench_thread sum;
    connect_target(run);
    threads_open(all, run->threads, sizeof(struct transfer_worker));
    for (uint64_t i = 0; i < all->n; i++)
        transfer_worker_open((struct transfer_worker *)threads_at(all, i), run, i);
    threads_start(all, transfer_work);
    if (run->count == 0) threads_wait(all, run->b, run->seconds, run->op);
    double rate = threads_join(all, &sum);
    transfer_print(run, (struct transfer_worker *)threads_at(all, all->n - 1), &sum, rate);
    for (uint64_t i = 0; i < all->n; i++)
        transfer_worker_close((struct transfer_worker *)threads_at(all, i));
    tarn_transfer_disconnect(&run->far);
    tarn_transfer_close(&run->initiator);
    tarn_transfer_close(&run->target);
    free(run->own);
    threads_close(all);
    return sum.failed + sum.mismatched > 0 || sum.bytes == 0;
}

int transfer_main(struct bench *b, int argc, char **argv) {
    struct transfer_run run = {.b = b,
                               .mode = "both",
                               .transport = "auto",
                               .op = "read",
                               .block_size = 65536,
                               .batch = 128,
                               .threads = 1,
                               .seconds = 10,
                               .buffer = UINT64_C(256) << 20,
                               .streams = 2};
    const struct option_spec specs[] = {
        {"--mode", OPT_STRING, &run.mode, 0, 0},
        {"--peer", OPT_STRING, &run.peer, 0, 0},
        {"--name", OPT_STRING, &run.name, 0, 0},
        {"--master", OPT_STRING, &run.master, 0, 0},
        {"--bind", OPT_STRING, &run.bind, 0, 0},
        {"--announce", OPT_STRING, &run.announce, 0, 0},
        {"--listen", OPT_U64, &run.port, 0, 65535},
        {"--data-port", OPT_U64, &run.data_port, 0, 65535},
        {"--secret", OPT_STRING, &run.secret, 0, 0},
        {"--transport", OPT_STRING, &run.transport, 0, 0},
        {"--op", OPT_STRING, &run.op, 0, 0},
        {"--block-size", OPT_BYTES, &run.block_size, 1, UINT64_C(1) << 32},
        {"--batch", OPT_U64, &run.batch, 1, 65536},
        {"--threads", OPT_U64, &run.threads, 1, 256},
        {"--streams", OPT_U64, &run.streams, 1, 64},
        {"--buffer", OPT_BYTES, &run.buffer, PAGE, UINT64_C(1) << 40},
        {"--seconds", OPT_DOUBLE, &run.seconds, 0, 86400},
        {"--count", OPT_U64, &run.count, 1, UINT64_MAX},
        {"--foreign", OPT_FLAG, &run.foreign, 0, 0},
        {"--merge", OPT_FLAG, &run.merge, 0, 0},
        {"--check", OPT_FLAG, &run.check, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("transfer takes no argument \"%s\"", argv[0]);
    const struct bench plain = BENCH_INIT;
    if (strcmp(b->host, plain.host) != 0 || b->port != plain.port || b->password != NULL ||
        b->user != NULL || b->tls)
        die("transfer needs no server, so -h, -p, -a, --user and --tls have no effect; --master "
            "URL names "
            "one that ends are found by");
    run.write = strcmp(run.op, "write") == 0;
    if (!run.write && strcmp(run.op, "read") != 0) die("--op is read or write, not \"%s\"", run.op);
    if (run.check && run.block_size % PAGE != 0) die("--check takes blocks of whole 4k");
    bool both = strcmp(run.mode, "both") == 0, initiator = strcmp(run.mode, "initiator") == 0;
    if (!both && !initiator && strcmp(run.mode, "target") != 0)
        die("--mode is both, target or initiator, not \"%s\"", run.mode);
    if (initiator != (run.peer != NULL)) die("an initiator, and nobody else, needs --peer");
    if (!both && !initiator) return target_serve(&run);
    if (both) target_lend(&run);
    return transfer_measure(&run);
}
