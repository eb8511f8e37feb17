/* The control port of a transfer end, fed with whatever, and what an end believes of a peer's
 * memory. The first byte says which, and how the rest is cut into pieces. The end has no secret in
 * one half of the cases, so that what comes after HELLO is reached, too. Nothing is sent: answers
 * go into a buffer. */
#include <hiredis/hiredis.h>
#include <stdlib.h>

#include "transfer/transfer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void silence(void *arg, int level, const char *text) {
    (void)arg, (void)level, (void)text;
}

static struct tarn_transfer *make_end(const char *secret) {
    tarn_transfer_options o;
    tarn_transfer_options_init(&o);
    o.secret = secret;
    o.transport = "tcp";
    o.shm_socket = "";
    o.threads = 1;
    tarn_transfer *t;
    void *memory;
    tarn_set_log(silence, NULL);
    TARN_ASSERT(tarn_transfer_open(&o, &t) == TARN_OK);
    TARN_ASSERT(tarn_transfer_alloc(t, 4096, TARN_TRANSFER_READ, "fuzz", 0, &memory, NULL) ==
                TARN_OK);
    return t;
}

static void serve(struct tarn_transfer *t, const uint8_t *data, size_t size, size_t piece) {
    (void)tarn_transfer_ready(t, "there", NULL);
    pthread_mutex_lock(&t->mutex);
    struct transfer_conn *c = transfer_conn_create(t, -1, "fuzz");
    for (size_t at = 0; at < size; at += piece) {
        if (!transfer_serve_bytes(c, data + at, min_u64(piece, size - at))) break;
    }
    transfer_conn_destroy(&c);
    pthread_mutex_unlock(&t->mutex);
    tarn_transfer_event e = {.size = sizeof(e)};
    while (tarn_transfer_next_event(t, 0, &e) == TARN_OK) tarn_free(e.data);
}

static void believe(const uint8_t *data, size_t size) {
    struct arena arena = {0};
    struct redisReader *reader = answer_reader_create();
    answer_reader_set_arena(reader, &arena);
    void *got = NULL;
    struct transfer_map *map = NULL;
    if (redisReaderFeed(reader, (const char *)data, size) == REDIS_OK &&
        redisReaderGetReply(reader, &got) == REDIS_OK && got != NULL &&
        transfer_map_parse(got, "here", "127.0.0.1", &map) == TARN_OK) {
        for (size_t i = 1; i < map->n; i++)
            TARN_ASSERT(map->regions[i - 1].address <= map->regions[i].address);
        transfer_map_put(&map);
    }
    redisReaderFree(reader);
    arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tarn_transfer *ends[2];
    if (ends[0] == NULL) {
        ends[0] = make_end(NULL);
        ends[1] = make_end("a secret nobody knows");
    }
    if (size == 0) return 0;
    unsigned how = data[0];
    if (how % 4 == 3)
        believe(data + 1, size - 1);
    else
        serve(ends[how % 4 == 2], data + 1, size - 1, 1 + how / 4);
    return 0;
}
