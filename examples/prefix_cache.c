/* What an inference engine does for a prompt: how many of its leading blocks are in the pool, get
 * them, compute the others and put them. Run it twice: the second time everything is a hit.
 *
 *     cc prefix_cache.c $(pkg-config --cflags --libs tarn) -o prefix_cache && ./prefix_cache
 * tarn://127.0.0.1:6479 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tarn.h>

enum { BLOCKS = 64, BLOCK_SIZE = 128 << 10 };

static char names[BLOCKS][64];
static char *memory;

static void compute(int block) {
    memset(memory + (size_t)block * BLOCK_SIZE, 'a' + block % 26, BLOCK_SIZE);
}

static int run(tarn_client *client) {
    tarn_key keys[BLOCKS];
    tarn_item items[BLOCKS];
    memset(items, 0, sizeof(items));
    for (int i = 0; i < BLOCKS; i++) {
        snprintf(names[i], sizeof(names[i]), "example:prompt-1:block-%04d", i);
        keys[i].data = items[i].key = names[i];
        keys[i].len = items[i].key_len = strlen(names[i]);
        items[i].buffer = memory + (size_t)i * BLOCK_SIZE;
        items[i].buffer_len = BLOCK_SIZE;
    }

    /* The lease keeps the prefix where it is until the gets have begun. */
    tarn_call call;
    tarn_call_init(&call);
    call.lease_ms = 1000;
    size_t hits = 0, got = 0, failed = 0;
    if (tarn_prefix_length(client, keys, BLOCKS, &call, &hits) != TARN_OK) return 1;
    if (tarn_get_many(client, items, hits, NULL, &got) != TARN_OK) return 1;
    for (int i = 0; i < BLOCKS; i++) {
        if ((size_t)i >= hits || items[i].status != TARN_OK) compute(i);
    }
    if (tarn_put_many(client, items + hits, BLOCKS - hits, NULL, &failed) != TARN_OK) return 1;
    printf("%d blocks: %zu were there, %zu read, %zu put, %zu failed\n", BLOCKS, hits, got,
           BLOCKS - hits - failed, failed);

    tarn_stats stats;
    stats.size = sizeof(stats);
    if (tarn_get_stats(client, &stats) != TARN_OK) return 1;
    printf("read %llu bytes, wrote %llu bytes, waited for the server %llu times\n",
           (unsigned long long)stats.bytes_read, (unsigned long long)stats.bytes_written,
           (unsigned long long)stats.round_trips);
    return failed == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    tarn_client *client;
    if (tarn_connect(argc > 1 ? argv[1] : "tarn://127.0.0.1:6479", NULL, &client) != TARN_OK) {
        fprintf(stderr, "%s\n", tarn_last_error());
        return 1;
    }
    memory = malloc((size_t)BLOCKS * BLOCK_SIZE);
    int rc = memory == NULL ? 1 : run(client);
    if (rc != 0) fprintf(stderr, "%s\n", tarn_last_error());
    free(memory);
    tarn_close(&client);
    return rc;
}
