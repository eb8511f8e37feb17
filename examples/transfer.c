/* Blocks go from a process that prefills to one that decodes, without being stored: first pulled by
 * the one that decodes, then pushed by the one that prefills. Both have a paged cache, and the
 * blocks of a request lie elsewhere in each.
 *
 *     cc transfer.c $(pkg-config --cflags --libs tarn) -o transfer && ./transfer
 *     ./transfer tarn://127.0.0.1:6479      the same, and they find each other by name */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tarn_transfer.h>
#include <unistd.h>

enum { BLOCKS = 64, BLOCK_SIZE = 256 << 10, N = 5 };

static const uint64_t prefill_blocks[N] = {5, 6, 7, 12, 13}, decode_blocks[N] = {2, 3, 4, 8, 9};

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TARN_OK) {                                                                   \
            fprintf(stderr, "%s: %s\n", #call, tarn_last_error());                                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static tarn_status open_end(const char *name, const char *master, tarn_transfer **end,
                            char **cache) {
    tarn_transfer_options o;
    tarn_transfer_options_init(&o);
    o.name = name;
    o.master = master;
    tarn_status status = tarn_transfer_open(&o, end);
    if (status != TARN_OK) return status;
    /* Both may read and write each other's cache; an engine gives what it needs. */
    return tarn_transfer_alloc(*end, (size_t)BLOCKS * BLOCK_SIZE,
                               TARN_TRANSFER_READ | TARN_TRANSFER_WRITE, "cache", 0, (void **)cache,
                               NULL);
}

/* Tells the other process where we are; without a master, that is. */
static int exchange(int in, int out, const tarn_transfer *end, char *other, size_t cap) {
    const char *own = tarn_transfer_endpoint(end);
    size_t len = strlen(own) + 1;
    return write(out, own, len) == (ssize_t)len && read(in, other, cap) > 0;
}

/* All blocks of one request, from the peer's cache to ours or back; two operations, because
 * neighbours go together. */
static tarn_status move(tarn_transfer_peer *peer, int op, char *cache, const uint64_t *own,
                        const uint64_t *theirs, const char *label) {
    tarn_transfer_region region;
    tarn_transfer_task tasks[N];
    tarn_transfer_call call;
    size_t n;
    tarn_status status = tarn_transfer_peer_regions(peer, &region, 1, &n);
    if (status != TARN_OK) return status;
    n = tarn_transfer_merge(op, cache, own, region.id, 0, theirs, N, BLOCK_SIZE, tasks, N);
    printf("%s: %d blocks in %zu operations\n", label, N, n);
    tarn_transfer_call_init(&call);
    call.done = label; /* tells the peer, and fails if it has given up meanwhile */
    return tarn_transfer_run(peer, tasks, n, &call);
}

static int check(const char *cache, const uint64_t *blocks, const char *what) {
    for (int i = 0; i < N; i++) {
        const char *block = cache + blocks[i] * BLOCK_SIZE;
        if (block[0] != 'a' + i || memcmp(block, block + 1, BLOCK_SIZE - 1) != 0) {
            fprintf(stderr, "%s: block %d is wrong\n", what, i);
            return 1;
        }
    }
    printf("%s: all blocks are there\n", what);
    return 0;
}

static int prefill(int in, int out, const char *master) {
    tarn_transfer *end;
    tarn_transfer_peer *peer;
    char *cache, other[256] = "decode-0";
    TRY(open_end("prefill-0", master, &end, &cache));
    if (master == NULL && !exchange(in, out, end, other, sizeof(other))) return 1;

    /* Request 1: computed, and there for 30 s. Pulled: nothing to do but to wait until its blocks
     * are free again. */
    for (int i = 0; i < N; i++) memset(cache + prefill_blocks[i] * BLOCK_SIZE, 'a' + i, BLOCK_SIZE);
    tarn_transfer_ready_options ready;
    tarn_transfer_ready_options_init(&ready);
    ready.info = prefill_blocks; /* where they lie: the other side asks for nothing else */
    ready.info_len = sizeof(prefill_blocks);
    ready.keep_ms = 30000;
    TRY(tarn_transfer_ready(end, "request-1", &ready));
    tarn_transfer_event event = {.size = sizeof(event)};
    TRY(tarn_transfer_next_event(end, 60000, &event));
    printf("prefill: %s %s\n", event.label,
           event.kind == TARN_TRANSFER_DONE ? "is done with" : "was not taken");
    tarn_free(event.data);

    /* Request 2: pushed into blocks that the other side has made ready. */
    uint64_t theirs[N];
    size_t len;
    TRY(tarn_transfer_connect(end, other, 10000, &peer));
    TRY(tarn_transfer_wait_ready(peer, "request-2", 10000, theirs, sizeof(theirs), &len));
    TRY(move(peer, TARN_TRANSFER_WRITE, cache, prefill_blocks, theirs, "request-2"));
    tarn_transfer_disconnect(&peer);
    tarn_transfer_close(&end);
    return 0;
}

static int decode(int in, int out, const char *master) {
    tarn_transfer *end;
    tarn_transfer_peer *peer;
    char *cache, other[256] = "prefill-0";
    TRY(open_end("decode-0", master, &end, &cache));
    if (master == NULL && !exchange(in, out, end, other, sizeof(other))) return 1;

    uint64_t theirs[N];
    size_t len;
    TRY(tarn_transfer_connect(end, other, 10000, &peer));
    TRY(tarn_transfer_wait_ready(peer, "request-1", 10000, theirs, sizeof(theirs), &len));
    TRY(move(peer, TARN_TRANSFER_READ, cache, decode_blocks, theirs, "request-1"));
    if (check(cache, decode_blocks, "decode, pulled") != 0) return 1;
    tarn_transfer_disconnect(&peer);

    memset(cache, 0, (size_t)BLOCKS * BLOCK_SIZE);
    tarn_transfer_ready_options ready;
    tarn_transfer_ready_options_init(&ready);
    ready.info = decode_blocks;
    ready.info_len = sizeof(decode_blocks);
    ready.keep_ms = 30000;
    /* who still writes after that time is cut off before the blocks are used again */
    ready.cut = 1;
    TRY(tarn_transfer_ready(end, "request-2", &ready));
    tarn_transfer_event event = {.size = sizeof(event)};
    TRY(tarn_transfer_next_event(end, 60000, &event));
    tarn_free(event.data);
    int failed =
        event.kind != TARN_TRANSFER_DONE || check(cache, decode_blocks, "decode, pushed") != 0;
    tarn_transfer_close(&end);
    return failed;
}

int main(int argc, char **argv) {
    const char *master = argc > 1 ? argv[1] : NULL;
    int there[2], back[2], status = 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (pipe(there) != 0 || pipe(back) != 0) return 1;
    pid_t child = fork(); /* before an end is open: those do not survive it */
    if (child < 0) return 1;
    if (child == 0) return decode(there[0], back[1], master);
    int failed = prefill(back[0], there[1], master);
    waitpid(child, &status, 0);
    return failed != 0 || status != 0;
}
