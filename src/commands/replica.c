/* REPLICA COPY, MOVE, DROP, TASKS, CANCEL, LIST: single copies of an object. REPLICA REPORT is in
 * report.c. */
#include "front/families.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "front/client.h"
#include "config/config.h"
#include "front/location.h"
#include "commands/nodes.h"
#include "wire/options.h"

enum { TASKS_DEFAULT = 100 };

/* The object at argv[2]; NULL: answered. */
static struct object *object_arg(struct client *c) {
    if (!arg_key(c, 2)) return NULL;
    struct object *o = store_find(books, c->argv[2]);
    if (o == NULL) reply_status(c, TARN_ENOTFOUND, NULL);
    return o;
}

/* FROM or TO, 0: not given. */
static bool order_place(struct client *c, uint32_t at, uint32_t *id_p) {
    struct store_segment_info s = {.id = STORE_SEGMENT_ANY};
    if (at != 0 && !segment_arg(c, at, &s)) return false;
    *id_p = s.id;
    return true;
}

/* A client that waits for the end of its task, which goes on without it. */
#define WAIT_LOOK_MS 2u

struct wait_job {
    struct job job;
    uint64_t task, asked_ms, until_ms;
};

/* Two replicas never share a machine, so there may be room and none of it counts. */
const char *task_error_text(tarn_status status) {
    return status == TARN_ENOSPACE
               ? "no memory segment on a machine without a replica has room or can make some"
               : tarn_status_text(status);
}

static bool task_wait_step(struct client *c, struct job *job, unsigned *budget) {
    struct wait_job *w = CONTAINER_OF(job, struct wait_job, job);
    struct cluster_task_info t;
    spend(budget, 1);
    bool known = cluster_task_get(w->task, &t);
    if (known && t.state < CLUSTER_TASK_DONE && turn.mono_ms < w->until_ms)
        return job_look_again(job, min_u64(WAIT_LOOK_MS, w->until_ms - turn.mono_ms));
    if (!known)
        reply_error(
            c, "what became of task %llu is not known any more: REPLICA LIST shows the replicas",
            (unsigned long long)w->task);
    else if (t.state == CLUSTER_TASK_DONE)
        reply_int(c, (int64_t)w->task);
    else if (t.state < CLUSTER_TASK_DONE)
        reply_error(c, "-BUSY task %llu is still under way after %llu ms: REPLICA TASKS shows it",
                    (unsigned long long)w->task, (unsigned long long)w->asked_ms);
    else
        reply_error(c, "task %llu was %s: %s", (unsigned long long)w->task,
                    t.state == CLUSTER_TASK_FAILED ? "not done" : "canceled",
                    task_error_text(t.error));
    return true;
}

static void wait_for_task(struct client *c, uint64_t task, uint64_t wait_ms) {
    struct wait_job w = {.job.step = task_wait_step,
                         .task = task,
                         .asked_ms = wait_ms,
                         .until_ms = turn.mono_ms + wait_ms};
    job_run(c, &w.job, sizeof(w));
}

static void reply_task(struct client *c, tarn_status status, uint64_t task) {
    switch (status) {
    case TARN_OK: reply_int(c, (int64_t)task); break;
    case TARN_EINVAL:
        reply_error(c, "this cannot be copied there: the value lies in the books, or TO is not "
                       "another memory segment");
        break;
    case TARN_ENOTFOUND: reply_error(c, "FROM has no replica of this key that can be read"); break;
    case TARN_EEXISTS: reply_error(c, "TO has a replica of this key already"); break;
    case TARN_ELIMIT:
        reply_error(c, "-LIMIT max-tasks are under way: wait, or CONFIG SET max-tasks");
        break;
    default: reply_status(c, status, NULL); break;
    }
}

struct replica_order {
    struct object *object;
    uint32_t from, to;
    uint64_t wait_ms;
};

static bool order_read(struct client *c, struct replica_order *o) {
    struct wire_replica args = {0};
    if (!arg_bind(c, &args) || !order_place(c, args.from, &o->from) ||
        !order_place(c, args.to, &o->to))
        return false;
    o->wait_ms = args.wait_ms;
    o->object = object_arg(c);
    return o->object != NULL;
}

static void order_plan(struct client *c, bool move) {
    struct replica_order o;
    uint64_t task = 0;
    if (!order_read(c, &o)) return;
    tarn_status status = move ? cluster_replica_move(o.object, o.from, o.to, &task)
                              : cluster_replica_copy(o.object, o.to, &task);
    if (status == TARN_OK && o.wait_ms > 0 && !(c->io->flags & CLIENT_EXEC))
        wait_for_task(c, task, o.wait_ms);
    else
        reply_task(c, status, task);
}

void cmd_replica_copy(struct client *c) {
    order_plan(c, false);
}
void cmd_replica_move(struct client *c) {
    order_plan(c, true);
}

void cmd_replica_drop(struct client *c) {
    struct replica_order o;
    if (!order_read(c, &o)) return;
    switch (store_replica_drop(books, o.object, o.from, false)) {
    case TARN_OK: reply_ok(c); break;
    case TARN_EBUSY:
        reply_error(c, "-BUSY this is the last replica that can be read: DEL removes the key");
        break;
    default: reply_error(c, "FROM has no replica of this key"); break;
    }
}

/* --- LIST --- */

static void reply_replica(struct client *c, const struct store_replica *r) {
    struct cluster_segment g;
    struct store_segment_info s;
    uint32_t id = r->extent[0].segment;
    bool there = cluster_segment_get(id, &g) && store_segment_get(books, id, &s);
    bool readable = there && (s.state == SEGMENT_UP || s.state == SEGMENT_READONLY ||
                              (s.state == SEGMENT_DOWN && s.tier == STORE_TIER_FILE));
    reply_map(c, 6);
    field_str(c, "tier", location_tier_name(r->tier));
    field_str(c, "segment", there ? g.name : "");
    field_str(c, "node", there ? g.node : "");
    field_str(c, "machine", there ? g.machine : "");
    field_str(c, "state",
              readable                           ? "complete"
              : there && s.state == SEGMENT_DOWN ? "down"
                                                 : "leaving");
    reply_bulk_str(c, "extents");
    reply_array(c, r->extents);
    for (uint32_t i = 0; i < r->extents; i++) {
        const struct store_extent *x = &r->extent[i];
        reply_array(c, 4);
        reply_int(c, x->segment);
        reply_int(c, x->segment_epoch);
        reply_int(c, (int64_t)x->offset);
        reply_int(c, (int64_t)x->length);
    }
}

void cmd_replica_list(struct client *c) {
    struct store_layout layout;
    struct span value;
    struct object *o = object_arg(c);
    if (o == NULL) return;
    if (store_object_inline(o, &value)) { /* it lies in the books */
        reply_array(c, 0);
        return;
    }
    store_object_replicas(books, o, &layout);
    reply_array(c, layout.replicas);
    for (uint32_t i = 0; i < layout.replicas; i++) reply_replica(c, &layout.replica[i]);
}

/* --- TASKS --- */

struct tasks_list {
    struct client *c;
    int state; /* -1: any */
    size_t n, max;
};

static void segment_field(struct client *c, const char *name, uint32_t id) {
    struct cluster_segment g;
    field_str(c, name, id != STORE_SEGMENT_ANY && cluster_segment_get(id, &g) ? g.name : "");
}

static bool one_task(void *arg, const struct cluster_task_info *t) {
    struct tasks_list *l = arg;
    struct client *c = l->c;
    if (l->state >= 0 && t->state != (enum cluster_task_state)l->state) return true;
    reply_map(c, 13);
    field_int(c, "id", t->id);
    field_str(c, "kind", cluster_task_kind_name(t->kind));
    field_str(c, "reason", cluster_task_reason_name(t->reason));
    reply_bulk_str(c, "key");
    reply_bulk(c, span_of(t->key, t->key_len));
    field_int(c, "version", t->version);
    segment_field(c, "from", t->from);
    segment_field(c, "to", t->to);
    field_str(c, "node", t->node);
    field_str(c, "state", cluster_task_state_name(t->state));
    field_int(c, "tries", t->tries);
    field_str(c, "error", t->error == TARN_OK ? "" : task_error_text(t->error));
    field_int(c, "age-ms", t->age_ms);
    field_int(c, "bytes", t->bytes);
    return ++l->n < l->max;
}

void cmd_replica_tasks(struct client *c) {
    struct wire_tasks args = {0};
    if (!arg_bind(c, &args)) return;
    struct tasks_list l = {
        .c = c, .state = (int)args.state - 1, .max = args.count > 0 ? args.count : TASKS_DEFAULT};
    void *cookie = reply_deferred(c);
    cluster_tasks_each(0, one_task, &l);
    reply_deferred_array(c, cookie, l.n);
}

/* 1: it is canceled, or will be unless it is done first. 0: there is no such task, or it is
 * over. */
void cmd_replica_cancel(struct client *c) {
    uint64_t id;
    if (arg_range(c, 2, "task id", 1, INT64_MAX, &id)) reply_int(c, cluster_task_cancel(id));
}
