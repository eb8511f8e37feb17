/* Bandwidth and latency of the data path on one machine, with memcpy of the same blocks beside it.
 *
 *   datapath shm|tcp [streams] [seconds] [host threads] [only this size]
 *
 * Not a test: built by hand or by utils/bench. Blocks are visited at random in 1 GiB, so that
 * neither side is in the cache. */
#include "../world.h"
#include "base/crc32c.h"
#include "base/rng.h"

static struct world w;
static char *local;
#define LOCAL_BYTES (256ull << 20)
#define POOL_BYTES  (1ull << 30)

static double run_engine(struct engine *e, uint64_t size, bool write, bool crc, unsigned batch,
                         double seconds) {
    struct rng rng;
    rng_seed(&rng, 1);
    struct engine_op ops[128];
    struct engine_part parts[128];
    struct iovec iov[128];
    uint8_t grants[128][GRANT_SIZE];
    uint64_t bytes = 0, start = clock_mono_ns();
    while ((double)(clock_mono_ns() - start) < seconds * 1e9) {
        for (unsigned i = 0; i < batch; i++) {
            struct grant_extent x =
                world_extent(&w, rng_below(&rng, POOL_BYTES / size) * size, size);
            world_grant(&w, write ? GRANT_WRITE : GRANT_READ, 1, &x, grants[i]);
            parts[i] = (struct engine_part){x, grants[i], 0, size};
            iov[i] = (struct iovec){local + rng_below(&rng, LOCAL_BYTES / size) * size, size};
            ops[i] = (struct engine_op){.write = write,
                                        .parts = &parts[i],
                                        .n_parts = 1,
                                        .iov = &iov[i],
                                        .n_iov = 1,
                                        .want_crc = crc};
        }
        TARN_ASSERT(engine_run(e, ops, batch, clock_boot_ms() + 10000) == TARN_OK);
        for (unsigned i = 0; i < batch; i++) {
            if (ops[i].status != TARN_OK) {
                fprintf(stderr, "%s\n", tarn_status_text(ops[i].status));
                exit(1);
            }
        }
        bytes += batch * size;
    }
    return (double)bytes / (double)(clock_mono_ns() - start);
}

static double run_memcpy(uint64_t size, double seconds) {
    struct rng rng;
    rng_seed(&rng, 1);
    const char *pool = host_segment_base(w.host, WORLD_SEGMENT);
    uint64_t bytes = 0, start = clock_mono_ns();
    while ((double)(clock_mono_ns() - start) < seconds * 1e9) {
        memcpy(local + rng_below(&rng, LOCAL_BYTES / size) * size,
               pool + rng_below(&rng, POOL_BYTES / size) * size, size);
        bytes += size;
    }
    return (double)bytes / (double)(clock_mono_ns() - start);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "tcp";
    double seconds = argc > 3 ? atof(argv[3]) : 1;
    world_init(&w, "tcp", POOL_BYTES);
    w.threads = argc > 4 ? (unsigned)atoi(argv[4]) : 2;
    w.idle_timeout_ms = 10000;
    world_start(&w, false);
    memset(host_segment_base(w.host, WORLD_SEGMENT), 1, POOL_BYTES);
    local = mmap(NULL, LOCAL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(local, 2, LOCAL_BYTES);
    struct engine_config config;
    engine_config_init(&config);
    config.transport = name;
    if (argc > 2) config.streams = (unsigned)atoi(argv[2]);
    if (config.streams > 1) config.stripe_min = 4u << 20;
    struct engine *e;
    TARN_ASSERT(engine_create(&config, &e) == TARN_OK);
    world_tell(&w, e, 1);
    static const struct {
        uint64_t size;
        unsigned batch;
    } cases[] = {{4096, 1},     {4096, 128},   {65536, 1},    {65536, 64},
                 {1u << 20, 1}, {1u << 20, 8}, {4u << 20, 1}, {4u << 20, 4}};
    printf("%s, %u streams, %u host threads, crc %s; GB/s\n", name, config.streams, w.threads,
           crc32c_impl());
    printf("%8s %6s %8s %8s %8s %8s %8s\n", "size", "batch", "memcpy", "get", "get+crc", "put",
           "put+crc");
    run_engine(e, 1u << 20, true, false, 1, 0.3); /* page tables */
    run_engine(e, 1u << 20, false, false, 1, 0.3);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t size = cases[i].size;
        unsigned batch = cases[i].batch;
        if (argc > 5 && size != strtoull(argv[5], NULL, 10)) continue;
        printf("%8llu %6u %8.2f", (unsigned long long)size, batch, run_memcpy(size, seconds));
        for (int k = 0; k < 4; k++)
            printf(" %8.2f", run_engine(e, size, k >= 2, k & 1, batch, seconds));
        printf("\n");
        fflush(stdout);
    }
    engine_destroy(&e);
    world_deinit(&w);
    return 0;
}
