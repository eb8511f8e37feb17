/* How fast the rdma transport moves bytes, in MiB/s: the counterpart of ib_read_bw and ib_write_bw.
 * A host in a process of its own, an engine here, blocks that follow each other in registered
 * memory, nothing verified.
 *
 *     rate MODULE SIZE OUTSTANDING SECONDS HOST-ARGS CLIENT-ARGS   prints "read RATE", "write RATE"
 *     rate MODULE SIZE OUTSTANDING SECONDS ARGS                     both in one process
 *
 * The ARGS are those of the module, in one word each: the host's are for the process that serves,
 * as in "bind 10.9.0.1". In one process the module is unloaded at the end, "unloaded" is printed,
 * and the process stays until its standard input ends: so that others can see what it left in the
 * kernel. */
#include "../transport/world.h"

#include "base/log.h"
#include "module/loader.h"

#define POOL_BYTES      (UINT64_C(32) << 20)
#define OUTSTANDING_MAX 256u
#define READY_MS        20000u

static struct world w;
static char *local;

static void module_get(const char *path, const char *args) {
    const struct tarn_services services = {.program = TARN_PROGRAM_CLIENT};
    static char words[400], error[MODULE_ERROR_SIZE];
    const char *argv[16];
    size_t argc = 0;
    snprintf(words, sizeof(words), "%s", args);
    char *rest = words;
    for (char *word; (word = strsep(&rest, " ")) != NULL && argc < ARRAY_LEN(argv);) {
        if (*word != '\0') argv[argc++] = word;
    }
    module_init(&services, NULL);
    if (module_load(path, argc, argv, error, sizeof(error)) == TARN_OK) return;
    fprintf(stderr, "rate: %s\n", error);
    exit(1);
}

static double run(struct engine *e, uint64_t size, bool write, unsigned batch, double seconds) {
    static struct engine_op ops[OUTSTANDING_MAX];
    static struct engine_part parts[OUTSTANDING_MAX];
    static struct iovec iov[OUTSTANDING_MAX];
    static uint8_t grants[OUTSTANDING_MAX][GRANT_SIZE];
    uint64_t bytes = 0, start = clock_mono_ns();
    for (unsigned i = 0; i < batch; i++) {
        struct grant_extent x = world_extent(&w, i * size % POOL_BYTES, size);
        world_grant(&w, write ? GRANT_WRITE : GRANT_READ, 1, &x, grants[i]);
        parts[i] = (struct engine_part){x, grants[i], 0, size};
        iov[i] = (struct iovec){local + i * size % POOL_BYTES, size};
    }
    while ((double)(clock_mono_ns() - start) < seconds * 1e9) {
        for (unsigned i = 0; i < batch; i++)
            ops[i] = (struct engine_op){
                .write = write, .parts = &parts[i], .n_parts = 1, .iov = &iov[i], .n_iov = 1};
        TARN_ASSERT(engine_run(e, ops, batch, clock_boot_ms() + 30000) == TARN_OK);
        for (unsigned i = 0; i < batch; i++) {
            if (ops[i].status == TARN_OK && ops[i].used == transport_slot(transport_find("rdma")))
                continue;
            fprintf(stderr, "rate: %s\n", tarn_status_text(ops[i].status));
            exit(1);
        }
        bytes += batch * size;
    }
    return (double)bytes / (double)(clock_mono_ns() - start) * 1e9 / (1 << 20);
}

static int unload(void) {
    char error[MODULE_ERROR_SIZE];
    if (module_unload("rdma", error, sizeof(error)) != TARN_OK) {
        fprintf(stderr, "rate: %s\n", error);
        return 1;
    }
    printf("unloaded\n");
    fflush(stdout);
    while (getchar() != EOF) continue;
    return 0;
}

int main(int argc, char **argv) {
    bool child = strcmp(argv[0], "world-host") == 0;
    log_set_level(LOG_LEVEL_NOTHING);
    if (child) {
        module_get(getenv("RATE_MODULE"), getenv("RATE_HOST_ARGS"));
        world_child_main(argc, argv, "rdma");
    }
    if (argc != 7 && argc != 6) {
        fprintf(stderr, "rate MODULE SIZE OUTSTANDING SECONDS HOST-ARGS [CLIENT-ARGS]\n");
        return 2;
    }
    bool alone = argc == 6;
    uint64_t size = strtoull(argv[2], NULL, 10);
    unsigned batch = (unsigned)atoi(argv[3]);
    if (size == 0 || batch == 0 || batch > OUTSTANDING_MAX || POOL_BYTES % size != 0) return 2;
    setenv("RATE_MODULE", argv[1], 1);
    setenv("RATE_HOST_ARGS", argv[5], 1);
    module_get(argv[1], argv[alone ? 5 : 6]);
    world_init(&w, "rdma", POOL_BYTES);
    world_start(&w, !alone);
    uint64_t end = clock_mono_ms() + READY_MS;
    while (!world_ready(&w, WORLD_SEGMENT, w.segment_epoch) && clock_mono_ms() < end) usleep(10000);
    local = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TARN_ASSERT(local != MAP_FAILED);
    memset(local, 2, POOL_BYTES);
    struct engine *e = world_engine(&w, "rdma", 1);
    struct engine_buffer buffer = {.address = local, .len = POOL_BYTES, .fd = -1};
    TARN_ASSERT(engine_register(e, &buffer) == TARN_OK);
    for (int write = 1; write >= 0; write--) {
        run(e, size, write, batch, 0.2); /* connections */
        printf("%s %.2f\n", write ? "write" : "read", run(e, size, write, batch, atof(argv[4])));
    }
    engine_destroy(&e);
    world_deinit(&w);
    return alone ? unload() : 0;
}
