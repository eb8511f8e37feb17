/* Copies to the embedded segment. */
#include "values.h"

#include "inband/own_memory.h"

struct own_copy {
    const char *key;
    uint64_t task;
    tarn_status status;
    bool canceled;
};

static void copy_here(void *arg) {
    struct own_copy *k = arg;
    struct object *o = store_find(books, span_str(k->key));
    k->status = cluster_replica_copy(o, 0, &k->task);
}

static bool here(const char *key) {
    struct look l = look(key);
    for (uint32_t i = 0; i < l.layout.replicas; i++)
        if (l.layout.replica[i].extent[0].segment == 0) return true;
    return false;
}

static void own_bytes(void *arg) {
    char **data = arg;
    struct object *o = store_find(books, SPAN("k"));
    struct store_layout layout;
    store_object_layout(books, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++)
        if (replica_is_local(&layout.replica[i])) {
            struct iovec piece[STORE_EXTENTS_MAX];
            replica_pieces(&layout.replica[i], 0, 1, piece);
            *data = piece[0].iov_base;
        }
}

TEST(copies_to_the_embedded_segment) {
    begin(8 * MB);
    pool_add_node(0, 32 * MB);
    size_t len = 5 * MB + 9;
    char *v = make(len, 7), *mine = NULL;
    ask("SET filler %b", v, 5 * MB);
    check_ok();
    ask("SET k %b", v, len);
    check_ok();
    CHECK(!here("k"));
    ask("DEL filler");
    struct own_copy k = {.key = "k"};
    pool_call(copy_here, &k);
    CHECK_EQ(k.status, TARN_OK);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && !here("k"); i++) usleep(1000);
    CHECK(here("k"));
    pool_call(own_bytes, &mine);
    CHECK(mine != NULL && memcmp(mine, v, len) == 0);
    pool_kill(0);
    ask("GET k");
    check_value(v, len);
    CHECK_EQ(figures().stats.inband_failures, 0);
    free(v);
    end();
}

TEST_MAIN()
