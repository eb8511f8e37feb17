/* Large values of SET and its kin go from the socket to where they will stay: the put is opened
 * when the value's header has been read, and becomes the object when the command runs. */
#include "inband/big_sink.h"

#include "base/assert.h"
#include "config/config.h"
#include "front/embedded.h"
#include "front/table.h"
#include "inband/string_write.h"

/* Bytes for which room was made and that have not come yet. Only so much of the pool is taken by
 * announcements: what is over it comes by way of the heap, which grows with what has come. */
static _Atomic uint64_t awaited;
#define AWAITED_SHARE 4 /* of pool-size */

/* Which argument of which command is a value that may lie in the pool from the start. */
static bool wants_sink(const struct span *argv, size_t argc) {
    const struct cmd *cmd = argc > 0 ? table_find(argv[0]) : NULL; /* whatever it was renamed to */
    if (cmd == NULL) return false;
    if (argc == 2) return cmd->id == WIRE_set || cmd->id == WIRE_setnx || cmd->id == WIRE_getset;
    return argc == 3 && (cmd->id == WIRE_setex || cmd->id == WIRE_psetex);
}

/* It supersedes nobody: whether the command may run at all is known only when all of it is here. */
static tarn_status sink_open(struct client *c, struct span key, uint64_t size,
                             struct store_put **put_p) {
    struct store_put_options options = value_write_options(size, 0);
    struct store_batch batch;
    unsigned budget = job_quota();
    options.supersede = false;
    store_batch_begin(books, &batch, NULL, STORE_BATCH_PUT, 1);
    tarn_status status = store_put_start(books, &batch, key, size, &options, c->id, &budget, put_p);
    if (status == TARN_EAGAIN) store_put_abandon(books, put_p);
    return status;
}

struct value_write *big_sink_begin(struct client *c, const struct span *argv, size_t argc_so_far,
                                   size_t big_len) {
    static_assert(BIG_PIECES >= STORE_EXTENTS_MAX, "the extents of a value fit");
    if (!embedded.host || embedded.populating.on || string_write_elsewhere() ||
        big_len <= STORE_INLINE_MAX || !wants_sink(argv, argc_so_far))
        return NULL;
    struct span key = argv[1];
    if (key.len == 0 || key.len > STORE_KEY_MAX) return NULL;
    if (awaited > 0 && awaited + big_len > config->pool_size / AWAITED_SHARE) return NULL;
    struct store_put *put;
    if (sink_open(c, key, big_len, &put) != TARN_OK) return NULL;
    struct value_write *w = value_write_open(put, key, big_len, NULL);
    if (w == NULL) /* its space is on another machine */
        store_put_revoke(books, key, store_put_token(put));
    else
        awaited += big_len;
    return w;
}

void big_sink_filled(struct value_write *sink, size_t n) {
    value_write_filled(sink, n);
    awaited -= n;
}

void big_sink_abort(struct value_write *sink) {
    awaited -= value_write_left(sink);
    value_write_abort(&sink);
}
