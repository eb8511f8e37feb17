#include "simulate/evict.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define NEVER UINT64_MAX

/* A use is a place in the requests' blocks, one request after the other. So the next use of a block
 * tells which block, which request and how deep in it: the later, the sooner it goes. */
struct foresight {
    const struct trace *t;
    uint32_t *id;      /* of each use */
    uint64_t *next;    /* the next use of the same id */
    uint32_t *request; /* of each use */
    uint64_t *gap;     /* of each request: the first use that is known to find nothing */
    uint64_t *kept;    /* of each id: its next use, 0: it is not there */
    uint64_t *heap;    /* next uses, the last on top; those that are over stay at the bottom */
    size_t n_heap, cap_heap;
    uint64_t count; /* of those that are there */
};

static void *array_new(uint64_t n, size_t size) {
    return xcalloc(n > 0 ? n : 1, size);
}

static void foresight_open(struct foresight *f, const struct trace *t, uint64_t ids) {
    uint64_t uses = 0, at = 0;
    for (size_t r = 0; r < t->n; r++) uses += t->requests[r].n;
    *f = (struct foresight){.t = t,
                            .id = array_new(uses, sizeof(*f->id)),
                            .next = array_new(uses, sizeof(*f->next)),
                            .request = array_new(uses, sizeof(*f->request)),
                            .gap = array_new(t->n, sizeof(*f->gap)),
                            .kept = array_new(ids, sizeof(*f->kept))};
    for (size_t r = 0; r < t->n; r++) {
        f->gap[r] = NEVER;
        for (uint32_t i = 0; i < t->requests[r].n; i++, at++) {
            f->id[at] = (uint32_t)t->ids[t->requests[r].first + i];
            f->request[at] = (uint32_t)r;
        }
    }
    uint64_t *later = array_new(ids, sizeof(*later)); /* plus 1; 0: none */
    while (at-- > 0) {
        uint64_t *seen = &later[f->id[at]];
        f->next[at] = *seen > 0 ? *seen - 1 : NEVER;
        *seen = at + 1;
    }
    for (uint64_t id = 0; id < ids; id++) { /* its first use finds nothing */
        if (later[id] == 0) continue;
        uint64_t *gap = &f->gap[f->request[later[id] - 1]];
        if (later[id] - 1 < *gap) *gap = later[id] - 1;
    }
    free(later);
}

static void foresight_close(struct foresight *f) {
    free(f->id);
    free(f->next);
    free(f->request);
    free(f->gap);
    free(f->kept);
    free(f->heap);
}

static void heap_push(struct foresight *f, uint64_t use) {
    ARRAY_GROW(f->heap, f->n_heap, f->cap_heap);
    size_t at = f->n_heap++;
    for (; at > 0 && f->heap[(at - 1) / 2] < use; at = (at - 1) / 2)
        f->heap[at] = f->heap[(at - 1) / 2];
    f->heap[at] = use;
}

static uint64_t heap_pop(struct foresight *f) {
    uint64_t top = f->heap[0], last = f->heap[--f->n_heap];
    size_t at = 0;
    for (size_t child = 1; child < f->n_heap; child = 2 * at + 1) {
        if (child + 1 < f->n_heap && f->heap[child + 1] > f->heap[child]) child++;
        if (f->heap[child] <= last) break;
        f->heap[at] = f->heap[child];
        at = child;
    }
    f->heap[at] = last;
    return top;
}

/* It will not be there at that use, nor can what is behind it be found then. */
static void gap_note(struct foresight *f, uint64_t use) {
    uint64_t *gap = &f->gap[f->request[use]];
    if (use < *gap) *gap = use;
}

static void furthest_drop(struct foresight *f) {
    uint64_t use = heap_pop(f);
    TARN_ASSERT(f->kept[f->id[use]] == use);
    f->kept[f->id[use]] = 0;
    f->count--;
    gap_note(f, use);
}

/* Returns whether the block was there. */
static bool use_block(struct foresight *f, uint64_t use, uint64_t blocks, uint64_t *evictions_p) {
    uint64_t *kept = &f->kept[f->id[use]], next = f->next[use];
    bool there = *kept != 0;
    if (next != NEVER && next > f->gap[f->request[next]]) next = NEVER;
    f->count += (next != NEVER) - there;
    *kept = next != NEVER ? next : 0;
    if (next != NEVER) heap_push(f, next);
    if (f->count > blocks) {
        furthest_drop(f);
        ++*evictions_p;
    }
    return there;
}

void evict_belady(const struct trace *t, uint64_t ids, uint64_t blocks,
                  const struct sim_speed *speed, struct evict_score *score) {
    struct foresight f;
    uint64_t use = 0;
    foresight_open(&f, t, ids);
    *score = (struct evict_score){0};
    for (size_t r = 0; r < t->n; r++) {
        uint32_t n = t->requests[r].n, hits = 0;
        bool gap = false;
        for (uint32_t i = 0; i < n; i++, use++) {
            gap = !use_block(&f, use, blocks, &score->evictions) || gap;
            hits += !gap;
        }
        evict_count(score, speed, t, &t->requests[r], hits);
    }
    foresight_close(&f);
}

void evict_unlimited(const struct trace *t, uint64_t ids, const struct sim_speed *speed,
                     struct evict_score *score) {
    bool *seen = array_new(ids, sizeof(*seen));
    *score = (struct evict_score){0};
    for (size_t r = 0; r < t->n; r++) {
        const struct trace_request *q = &t->requests[r];
        const uint64_t *id = t->ids + q->first;
        uint32_t hits = 0;
        while (hits < q->n && seen[id[hits]]) hits++;
        for (uint32_t i = hits; i < q->n; i++) seen[id[i]] = true;
        evict_count(score, speed, t, q, hits);
    }
    free(seen);
}
