/* What the master asks for in its answers to heartbeats, and the reports about it.
 *
 *   item ─> task ─> crew (copies, stores) ─> task_done ─> NODE DONE ─> accepted, or the bytes are
 *                                                │                     forgotten
 *                       the session is over: nobody waits for it; a store that is on disk is
 *                       offered (or dropped) */
#include <stdlib.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/answer.h"
#include "client/client.h"
#include "client/error.h"
#include "client/placement.h"
#include "hosting/hosting.h"

/* --- tasks --- */

static void task_release(struct tarn_host *h, struct hosting_task *t) {
    TARN_ASSERT(h->n_tasks > 0);
    h->n_tasks--;
    if (t->segment != NULL) t->segment->users--;
    free(t->key);
    free(t->crcs);
    free(t);
}

/* The master will not hear of this one. What is on disk may be known to it or not: offering it
 * finds that out. Bytes without a CRC of the writer may be of a value that had gone already, so
 * they are not worth it. */
static void task_abandon(struct tarn_host *h, struct hosting_task *t) {
    if (t->kind == TASK_STORE && t->status == TARN_OK && far_tier(t->far) != NULL) {
        if (t->check) {
            offer_add_orphan(t->far, t);
        } else {
            tier_drop(t->far->tier, t->offset, t->version);
        }
    }
    task_release(h, t);
}

void task_done(struct tarn_host *h, struct hosting_task *t) {
    if (t->generation != h->session.generation || h->session.phase == PHASE_LEFT) {
        task_abandon(h, t);
        return;
    }
    TAILQ_INSERT_TAIL(&h->done_tasks, &t->job.crew, link);
}

static struct hosting_task *task_create(struct tarn_host *h, enum task_kind kind,
                                        const struct answer *item) {
    const struct answer *key = answer_at(item, 2);
    uint64_t id, version, size;
    if (!answer_u64(answer_at(item, 1), &id) || key == NULL || key->type != ANSWER_STRING ||
        key->len == 0 || key->len > TARN_KEY_MAX || !answer_u64(answer_at(item, 3), &version) ||
        !answer_u64(answer_at(item, 4), &size) || size == 0 || size > VALUE_MAX) {
        log_warning("The master asks for something that makes no sense: a task is skipped");
        return NULL;
    }
    struct hosting_task *t = xcalloc(1, sizeof(*t));
    t->kind = kind;
    t->id = id;
    t->generation = h->session.generation;
    t->key = xmemdup(key->str, key->len);
    t->key_len = key->len;
    t->version = version;
    t->size = size;
    h->n_tasks++;
    return t;
}

/* true: t may begin. Else it has been answered. */
static bool task_may_begin(struct tarn_host *h, struct hosting_task *t, struct hosted *seg,
                           const struct answer *extents) {
    t->status = TARN_OK;
    if (h->n_tasks > TASKS_MAX) {
        t->status = TARN_ELIMIT;
    } else if (h->session.closing != CLOSE_NO) {
        t->status = TARN_ECANCELED;
    } else if (!hosting_iov(h, seg, extents, t->size, t->iov, &t->n_iov)) {
        t->status = seg == NULL ? TARN_ESTALE : TARN_EINVAL;
    }
    if (t->status != TARN_OK) {
        task_done(h, t);
        return false;
    }
    t->segment = seg;
    seg->users++;
    return true;
}

/* ["copy", task, key, version, size, segment, [[offset, length], ...]] */
static void item_copy(struct tarn_host *h, const struct answer *item) {
    struct hosting_task *t = task_create(h, TASK_COPY, item);
    uint64_t segment = UINT64_MAX;
    if (t == NULL) return;
    answer_u64(answer_at(item, 5), &segment);
    if (task_may_begin(h, t, hosting_segment(h, segment), answer_at(item, 6))) copy_start(h, t);
}

/* One CRC per MiB, packed. */
static bool task_take_crcs(struct hosting_task *t, const struct answer *a) {
    if (a == NULL || a->type != ANSWER_STRING || a->len == 0) return true;
    if (a->len % 4 != 0 || a->len / 4 != (t->size + CRC_BLOCK - 1) / CRC_BLOCK) return false;
    t->n_crcs = a->len / 4;
    t->crcs = xmalloc(a->len);
    for (size_t i = 0; i < t->n_crcs; i++) {
        const uint8_t *b = (const uint8_t *)a->str + 4 * i;
        t->crcs[i] =
            (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    return true;
}

/* ["store", task, key, version, size, crc, crcs, segment, epoch, [[offset, length], ...], far
 * segment, prompt] */
static void item_store(struct tarn_host *h, const struct answer *item) {
    struct hosting_task *t = task_create(h, TASK_STORE, item);
    uint64_t segment = UINT64_MAX, epoch = 0, far = UINT64_MAX;
    if (t == NULL) return;
    const struct answer *crc = answer_at(item, 5);
    answer_u64(answer_at(item, 7), &segment);
    answer_u64(answer_at(item, 8), &epoch);
    answer_u64(answer_at(item, 10), &far);
    struct hosted *seg = hosting_segment(h, segment), *to = hosting_segment(h, far);
    if (seg != NULL && seg->epoch != epoch) seg = NULL;
    if (!task_may_begin(h, t, seg, answer_at(item, 9))) return;
    bool sane = crc != NULL && crc->type == ANSWER_INTEGER && crc->integer >= -1 &&
                crc->integer <= UINT32_MAX;
    if (to == NULL || to->far == NULL || !sane || !task_take_crcs(t, answer_at(item, 6))) {
        t->status = to == NULL ? TARN_ESTALE : TARN_EINVAL;
        task_done(h, t);
        return;
    }
    t->check = crc->integer >= 0;
    t->crc = t->check ? (uint32_t)crc->integer : 0;
    answer_u64(answer_at(item, 11), &t->prompt); /* 0 from a master that does not know */
    far_store(to->far, t);
}

/* ["drop", far segment, n, version, offset, ...] */
static void item_drop(struct tarn_host *h, const struct answer *item) {
    uint64_t far = UINT64_MAX, n = 0, version, offset;
    answer_u64(answer_at(item, 1), &far);
    answer_u64(answer_at(item, 2), &n);
    const struct hosted *seg = hosting_segment(h, far);
    if (seg == NULL || seg->far == NULL) return; /* of another life of it */
    for (uint64_t i = 0; i < n && 3 + 2 * i < item->len; i++) {
        if (answer_u64(answer_at(item, 3 + 2 * i), &version) &&
            answer_u64(answer_at(item, 4 + 2 * i), &offset))
            tier_drop(seg->far->tier, offset, version);
    }
}

static void item_fence(struct tarn_host *h, const struct answer *item) {
    uint64_t session, keep_ms;
    /* an older master */
    if (!answer_u64(answer_at(item, 2), &keep_ms)) keep_ms = HOST_FENCE_FOR_EVER;
    if (answer_u64(answer_at(item, 1), &session) && session != 0)
        host_fence(h->host, session, keep_ms);
}

static void item_unmount(struct tarn_host *h, const struct answer *item) {
    uint64_t id = UINT64_MAX, epoch;
    answer_u64(answer_at(item, 1), &id);
    struct hosted *seg = hosting_segment(h, id);
    if (seg == NULL || (answer_u64(answer_at(item, 2), &epoch) && epoch != seg->epoch)) return;
    log_notice("Segment %s is unmounted", seg->name);
    if (seg->kind != HOSTED_FILE)
        host_segment_retire(h->host, seg->slot, seg->kind == HOSTED_MEMORY);
    if (seg->far != NULL) offer_stop(seg->far);
    seg->mounted = false;
    seg->gone = true;
}

static void item_leave(struct tarn_host *h, const struct answer *item) {
    session_left(h);
}

static bool task_has_id(const struct crew_job *job, const void *arg) {
    return CONTAINER_OF(job, const struct hosting_task, job.crew)->id == *(const uint64_t *)arg;
}

void tasks_cancel(struct tarn_host *h, const uint64_t *id) {
    bool (*match)(const struct crew_job *job, const void *arg) = id != NULL ? task_has_id : NULL;
    crew_cancel(&h->copies, match, id);
    for (unsigned i = 0; i < h->n_fars; i++) {
        if (!h->fars[i].opening) crew_cancel(&h->fars[i].stores, match, id);
    }
}

static void item_cancel(struct tarn_host *h, const struct answer *item) {
    uint64_t id;
    if (answer_u64(answer_at(item, 1), &id)) tasks_cancel(h, &id);
}

void work_item(struct tarn_host *h, const struct answer *item) {
    static const struct {
        const char *name;
        void (*fn)(struct tarn_host *h, const struct answer *item);
    } items[] = {{"fence", item_fence},  {"copy", item_copy},   {"store", item_store},
                 {"drop", item_drop},    {"leave", item_leave}, {"unmount", item_unmount},
                 {"cancel", item_cancel}};
    const struct answer *name = answer_at(item, 0);
    if (name == NULL || name->type != ANSWER_STRING) return;
    for (size_t i = 0; i < ARRAY_LEN(items); i++) {
        if (strcmp(name->str, items[i].name) != 0) continue;
        items[i].fn(h, item);
        return;
    }
    log_debug("The master asks for \"%s\", which this version does not know", name->str);
}

/* --- reports --- */

static struct hosting_task *task_take(struct crew_jobs *list) {
    struct crew_job *job = TAILQ_TAKE(list, link);
    return job != NULL ? CONTAINER_OF(job, struct hosting_task, job.crew) : NULL;
}

static void done_answered(struct tarn_host *h, const struct answer *a, void *arg,
                          uint64_t sent_ms) {
    struct hosting_task *t;
    bool ok = session_accepts(h, a, "NODE DONE");
    for (size_t i = 0; (t = task_take(&h->done_told)) != NULL; i++) {
        const struct answer *one = ok ? answer_at(a, i) : NULL;
        if (one == NULL || one->type != ANSWER_INTEGER) {
            task_abandon(h, t);
            continue;
        }
        /* Not accepted: the object has gone meanwhile, or other bytes lie where it was. */
        bool stored = t->kind == TASK_STORE && t->status == TARN_OK;
        if (stored && one->integer == 0 && far_tier(t->far) != NULL)
            tier_drop(t->far->tier, t->offset, t->version);
        task_release(h, t);
    }
}

static void done_send(struct tarn_host *h) {
    struct hosting_link *l = &h->reports;
    struct wire_node node = link_node(h, l);
    struct ctl_request *r = &l->request;
    struct hosting_task *t;
    node.keys.at = request_next(r);
    for (; node.keys.n < DONE_BATCH && (t = task_take(&h->done_tasks)) != NULL; node.keys.n++) {
        bool stored = t->kind == TASK_STORE && t->status == TARN_OK;
        request_number(r, (int64_t)t->id);
        request_number(r, t->status);
        request_number(r, stored ? (int64_t)t->offset : 0);
        request_number(r, stored && !t->check ? (int64_t)t->crc : -1);
        TAILQ_INSERT_TAIL(&h->done_told, &t->job.crew, link);
    }
    link_send(h, l, WIRE_node_done, &node, done_answered, NULL);
}

static void fenced_answered(struct tarn_host *h, const struct answer *a, void *arg,
                            uint64_t sent_ms) {
    /* it may have waited for this */
    if (session_accepts(h, a, "NODE FENCED")) h->session.next_up_ms = 0;
}

void reports_turn(struct tarn_host *h) {
    struct hosting_link *l = &h->reports;
    while (session_joined(&h->session) && h->n_fenced > 0 && link_room(l) > LINK_PENDING_MAX / 2) {
        struct wire_node node = link_node(h, l);
        node.session = h->fenced[--h->n_fenced];
        link_send(h, l, WIRE_node_fenced, &node, fenced_answered, NULL);
    }
    if (session_joined(&h->session) && !TAILQ_EMPTY(&h->done_tasks) && TAILQ_EMPTY(&h->done_told) &&
        link_room(l) > 0)
        done_send(h);
}

void reports_forget(struct tarn_host *h) {
    h->n_fenced = 0; /* a master that waits for them says so again */
    struct hosting_task *t;
    while ((t = task_take(&h->done_tasks)) != NULL) task_abandon(h, t);
}
