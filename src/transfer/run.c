/* Moving the bytes of one batch: which tasks are neighbours, where they are over there, and one
 * engine_run for all of them. In a worker, outside the mutex; the lane is the worker's, the map has
 * a reference of the batch's. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lane.h"
#include "engine/engine.h"
#include "transfer/transfer.h"

size_t tarn_transfer_merge(int op, void *local, const uint64_t *local_blocks, uint32_t region,
                           uint64_t remote, const uint64_t *remote_blocks, size_t n,
                           uint64_t block_bytes, tarn_transfer_task *tasks, size_t max) {
    size_t needed = 0;
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n; run++) {
            if (local_blocks[i + run] != local_blocks[i] + run ||
                remote_blocks[i + run] != remote_blocks[i] + run)
                break;
        }
        if (needed < max) {
            tasks[needed] = (tarn_transfer_task){
                .op = op,
                .region = region,
                .local = (char *)local + local_blocks[i] * block_bytes,
                .remote = remote + remote_blocks[i] * block_bytes,
                .length = run * block_bytes,
            };
        }
        needed++;
    }
    return needed;
}

/* --- where a task leads --- */

/* By id, or, for 0, by the address that lies in it. */
static const struct transfer_far *map_find(const struct transfer_map *map, uint32_t id,
                                           uint64_t address) {
    if (id != 0) {
        for (size_t i = 0; i < map->n; i++)
            if (map->regions[i].id == id) return &map->regions[i];
        return NULL;
    }
    size_t low = 0, high = map->n; /* the last one that begins at address or before */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (map->regions[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? &map->regions[low - 1] : NULL;
}

static tarn_status task_locate(const struct transfer_map *map, const tarn_transfer_task *task,
                               struct batch_run *r) {
    const struct transfer_far *f = map_find(map, task->region, task->remote);
    if (f == NULL) return TARN_ENOTFOUND;
    uint64_t offset = task->region != 0 ? task->remote : task->remote - f->address;
    if (offset > f->length || task->length > f->length - offset)
        return task->region != 0 ? TARN_EINVAL : TARN_ENOTFOUND;
    if ((f->rights & task->op) == 0) return TARN_EPERM;
    *r = (struct batch_run){.n = 1, .region = f, .offset = offset, .length = task->length};
    return TARN_OK;
}

static bool is_device(const tarn_transfer_task *task, const struct engine_buffer *devices,
                      size_t n) {
    for (size_t i = 0; i < n; i++)
        if (engine_buffer_meets(&devices[i], task->local, task->length)) return true;
    return false;
}

enum transfer_way transfer_batch_way(const struct tarn_transfer_batch *b,
                                     const struct transfer_map *map,
                                     const struct engine_buffer *devices, size_t n_devices) {
    struct batch_run r;
    const char *only = b->peer->end->transport;
    const struct transport_ops *t = only != NULL ? transport_find(only) : NULL;
    bool by_key = t != NULL && (t->flags & TRANSPORT_ANNOUNCES) != 0, later = false;
    for (size_t i = 0; i < b->n_tasks; i++) {
        const tarn_transfer_task *task = &b->tasks[i];
        if (task->length == 0) continue;
        tarn_status status = task_locate(map, task, &r);
        if (status == TARN_ENOTFOUND) return TRANSFER_UNKNOWN;
        if (status != TARN_OK || r.region->key_uri != NULL) continue;
        later |= by_key || r.region->device || is_device(task, devices, n_devices);
    }
    return later ? TRANSFER_LATER : TRANSFER_LEADS;
}

/* Is next, the task after those of r, their neighbour on both sides? */
static bool task_joins(const struct batch_run *r, const tarn_transfer_task *tasks,
                       const struct batch_run *next, const tarn_transfer_task *task) {
    const tarn_transfer_task *first = &tasks[r->first];
    return r->region == next->region && first->op == task->op &&
           r->offset + r->length == next->offset &&
           (char *)first->local + r->length == (char *)task->local;
}

/* A region that is stale is no more: its number is never given again. */
static void end_task(tarn_transfer_task *task, tarn_status status, bool settled) {
    if (status == TARN_ESTALE) status = TARN_ENOTFOUND;
    task->status = status;
    task->done = status == TARN_OK ? task->length : 0;
    task->settled = settled;
}

/* Memory of a device, on either side, that no transport has. */
static bool is_out_of_reach(const struct transfer_lane *lane, const tarn_transfer_task *task,
                            const struct transfer_far *region) {
    return (region->device && region->key_uri == NULL) ||
           transfer_lane_refuses(lane, task->local, task->length);
}

/* Runs of neighbours, in place of the tasks; what leads nowhere is over at once. */
static size_t batch_plan(struct tarn_transfer_batch *b, const struct transfer_lane *lane,
                         const struct transfer_map *map, struct batch_run *runs) {
    size_t n = 0;
    bool open = false; /* the task before this one is in the last run */
    for (size_t i = 0; i < b->n_tasks; i++) {
        struct batch_run r;
        tarn_transfer_task *task = &b->tasks[i];
        tarn_status status = task->length == 0 ? TARN_OK : task_locate(map, task, &r);
        if (status == TARN_OK && task->length > 0 && is_out_of_reach(lane, task, r.region))
            status = TARN_ENOTSUP;
        if (status != TARN_OK || task->length == 0) {
            end_task(task, status, true);
            open = false;
            continue;
        }
        r.first = i;
        if (open && task_joins(&runs[n - 1], b->tasks, &r, task)) {
            runs[n - 1].n++;
            runs[n - 1].length += r.length;
        } else {
            runs[n++] = r;
        }
        open = true;
    }
    return n;
}

/* --- what the engine must know --- */

static void region_tell(struct engine *e, const struct transfer_map *map,
                        const struct transfer_far *f) {
    static const int rights[] = {TARN_TRANSFER_READ, TARN_TRANSFER_WRITE};
    struct engine_segment s = {
        .id = f->id,
        .epoch = f->epoch,
        .size = f->length,
        .same_host = map->same_host,
    };
    for (int w = 0; w < 2; w++)
        if ((f->rights & rights[w]) != 0) s.attach[w] = f->attach[w];
    if (!f->device) (void)engine_segment_way(&s, map->data_uri);
    if (f->file && map->shm_uri != NULL) (void)engine_segment_way(&s, map->shm_uri);
    struct engine_way *way = f->key_uri != NULL ? engine_segment_way(&s, f->key_uri) : NULL;
    for (int w = 0; w < 2 && way != NULL; w++) way->key[w] = span_of(f->key[w], f->key_len[w]);
    if (!engine_segment_same(e, &s)) (void)engine_segment_set(e, &s);
}

/* fresh: what the engine knows may be out of date, though it does not know that. */
static void tell_regions(const struct tarn_transfer_batch *b, struct engine *e,
                         const struct transfer_map *map, const struct batch_run *runs, size_t n,
                         bool fresh) {
    bool *told = xcalloc(map->n + 1, sizeof(*told));
    for (size_t i = 0; i < n; i++) {
        const struct transfer_far *f = runs[i].region;
        bool *done = &told[f - map->regions];
        if (*done) continue;
        *done = true;
        if (fresh || !engine_segment_known(e, f->id, f->epoch)) region_tell(e, map, f);
    }
    free(told);
}

static void batch_count(struct tarn_transfer_batch *b, const struct engine_op *op, uint64_t bytes,
                        const char **used_p) {
    const char *name = transport_name(op->used);
    if (*used_p == NULL)
        *used_p = name;
    else if (name != NULL && *used_p != name)
        *used_p = "mixed";
    if (op->status != TARN_OK) return;
    b->bytes += bytes;
    b->moved[op->write] += bytes;
    b->by[op->used] += bytes;
}

static void runs_move(struct tarn_transfer_batch *b, struct transfer_lane *lane,
                      const struct batch_run *runs, size_t n) {
    struct engine_op *ops = xcalloc(n, sizeof(*ops));
    struct engine_part *parts = xcalloc(n, sizeof(*parts));
    struct iovec *iov = xcalloc(n, sizeof(*iov));
    for (size_t i = 0; i < n; i++) {
        const struct batch_run *r = &runs[i];
        const tarn_transfer_task *task = &b->tasks[r->first];
        bool write = task->op == TARN_TRANSFER_WRITE;
        iov[i] = (struct iovec){task->local, r->length};
        parts[i] =
            (struct engine_part){.extent = {r->region->id, r->region->epoch, 0, r->region->length},
                                 .grant = r->region->grant[write],
                                 .sub_offset = r->offset,
                                 .sub_length = r->length};
        ops[i] = (struct engine_op){
            .write = write, .parts = &parts[i], .n_parts = 1, .iov = &iov[i], .n_iov = 1};
    }
    tarn_status status =
        engine_run(lane->engine, ops, n, b->deadline == DEADLINE_NONE ? 0 : b->deadline);
    const char *used = NULL;
    for (size_t i = 0; i < n; i++) {
        if (status != TARN_OK) ops[i].status = status;
        batch_count(b, &ops[i], runs[i].length, &used);
        for (size_t k = 0; k < runs[i].n; k++)
            end_task(&b->tasks[runs[i].first + k], ops[i].status, ops[i].settled);
    }
    snprintf(b->transport, sizeof(b->transport), "%s", used != NULL ? used : "");
    free(ops);
    free(parts);
    free(iov);
}

void transfer_batch_move(struct tarn_transfer_batch *b, struct transfer_lane *lane,
                         const struct transfer_map *map, bool fresh) {
    struct batch_run *runs = xcalloc(b->n_tasks + 1, sizeof(*runs));
    size_t n = batch_plan(b, lane, map, runs);
    b->operations = n;
    if (n > 0) {
        tell_regions(b, lane->engine, map, runs, n, fresh);
        runs_move(b, lane, runs, n);
    }
    free(runs);
}
