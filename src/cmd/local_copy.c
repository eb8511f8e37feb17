#include "cmd/local_copy.h"

#include <stdlib.h>
#include <sys/queue.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "cmd/client.h"
#include "cmd/core.h"
#include "cmd/value_read.h"

enum { COPIES_MAX = 8, PIECES_PER_TURN = 2 };

struct local_copy {
    LIST_ENTRY(local_copy) link;
    uint64_t task;
    struct value_read *read;
    struct net_timer timer;
    /* TARN_EAGAIN: under way; else it ends when nothing is on its way to the segment any more */
    tarn_status status;
};
static LIST_HEAD(copy_list, local_copy) copies = LIST_HEAD_INITIALIZER(copies);
static unsigned n_copies;

static void copy_free(struct local_copy *k) {
    net_timer_stop(&k->timer);
    value_read_close(&k->read);
    LIST_REMOVE(k, link);
    n_copies--;
    free(k);
}

static void soon(void *arg) {
    struct local_copy *k = arg;
    if (!k->timer.pending) net_timer_start(&k->timer, 0);
}

static void turn(void *arg) {
    struct local_copy *k = arg;
    core_stamp();
    for (int i = 0; i < PIECES_PER_TURN && k->status == TARN_EAGAIN; i++) {
        struct value_piece piece;
        tarn_status status = value_read_next(k->read, &piece);
        if (status == TARN_EAGAIN) return;
        if (status != TARN_OK || piece.bytes.len == 0) k->status = status;
    }
    if (k->status == TARN_EAGAIN) {
        soon(k);
        return;
    }
    if (!value_read_idle(k->read)) return; /* it tells when it is */
    uint64_t task = k->task;
    tarn_status status = k->status;
    copy_free(k);
    cluster_local_done(task, status);
}

tarn_status local_copy_start(void *arg, uint64_t task, struct span key, uint64_t version,
                             uint64_t size, const struct store_replica *to) {
    struct object *o = store_find(server.store, key);
    if (!o || store_object_version(o) != version || store_object_size(server.store, o) != size)
        return TARN_ENOTFOUND;
    if (n_copies == COPIES_MAX) return TARN_EAGAIN;
    if (!replica_is_local(to)) return TARN_EINVAL;
    struct iovec into[STORE_EXTENTS_MAX];
    size_t n_into = replica_pieces(to, 0, size, into);
    struct local_copy *k = xcalloc(1, sizeof(*k));
    struct value_read_options options = {.len = size,
                                         .only = STORE_SEGMENT_ANY,
                                         .into = into,
                                         .n_into = n_into,
                                         .ready = soon,
                                         .arg = k};
    k->task = task;
    k->status = TARN_EAGAIN;
    net_timer_init(&k->timer, core_loop(), turn, k);
    k->read = value_read_open(o, &options);
    LIST_INSERT_HEAD(&copies, k, link);
    n_copies++;
    soon(k);
    return TARN_OK;
}

void local_copy_cancel(void *arg, uint64_t task) {
    struct local_copy *k;
    LIST_FOREACH(k, &copies, link) {
        if (k->task != task) continue;
        if (k->status == TARN_EAGAIN) k->status = TARN_ECANCELED;
        soon(k);
        return;
    }
}

void local_copy_deinit(void) {
    while (!LIST_EMPTY(&copies)) copy_free(LIST_FIRST(&copies));
}
