#include "inband/local_copy.h"

#include <stdlib.h>
#include <sys/queue.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "inband/own_memory.h"
#include "inband/value_read.h"

enum { COPIES_MAX = 8 };

struct local_copy {
    LIST_ENTRY(local_copy) link;
    uint64_t task;
    struct value_read *read;
};
static LIST_HEAD(copy_list, local_copy) copies = LIST_HEAD_INITIALIZER(copies);
static unsigned n_copies;

static void copy_free(struct local_copy *k) {
    value_read_close(&k->read);
    LIST_REMOVE(k, link);
    n_copies--;
    free(k);
}

static void on_copied(void *arg, tarn_status status) {
    struct local_copy *k = arg;
    uint64_t task = k->task;
    copy_free(k);
    cluster_local_done(task, status);
}

tarn_status local_copy_start(void *arg, uint64_t task, struct span key, uint64_t version,
                             uint64_t size, const struct store_replica *to) {
    struct object *o = store_find(books, key);
    if (!o || store_object_version(o) != version || store_object_size(books, o) != size)
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
                                         .done = on_copied,
                                         .arg = k};
    k->task = task;
    k->read = value_read_open(o, &options);
    LIST_INSERT_HEAD(&copies, k, link);
    n_copies++;
    return TARN_OK;
}

void local_copy_cancel(void *arg, uint64_t task) {
    struct local_copy *k;
    LIST_FOREACH(k, &copies, link) {
        if (k->task != task) continue;
        value_read_cancel(k->read);
        return;
    }
}

void local_copy_deinit(void) {
    while (!LIST_EMPTY(&copies)) copy_free(LIST_FIRST(&copies));
}
