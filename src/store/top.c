#include "store/top.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/htab.h"

/* A heap by count, smallest at its root, beside a table by name. */
struct top_slot {
    struct htab_node node;
    uint32_t at; /* place in the heap */
    struct top_entry entry;
};

struct top {
    struct htab names;
    struct top_slot slot[TOP_SLOTS];
    struct top_slot *heap[TOP_SLOTS];
    uint32_t n;
    uint64_t total, halved_ms;
};

static bool slot_is(const struct htab_node *node, const void *key) {
    const struct top_entry *e = &CONTAINER_OF(node, struct top_slot, node)->entry;
    const struct span *name = key;
    return e->name_len == name->len && memcmp(e->name, name->data, name->len) == 0;
}

static void heap_place(struct top *t, uint32_t at, struct top_slot *s) {
    t->heap[at] = s;
    s->at = at;
}

static void heap_down(struct top *t, uint32_t at) {
    struct top_slot *s = t->heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= t->n) break;
        if (child + 1 < t->n && t->heap[child + 1]->entry.count < t->heap[child]->entry.count)
            child++;
        if (s->entry.count <= t->heap[child]->entry.count) break;
        heap_place(t, at, t->heap[child]);
        at = child;
    }
    heap_place(t, at, s);
}

static void heap_up(struct top *t, uint32_t at) {
    struct top_slot *s = t->heap[at];
    for (; at > 0 && t->heap[(at - 1) / 2]->entry.count > s->entry.count; at = (at - 1) / 2)
        heap_place(t, at, t->heap[(at - 1) / 2]);
    heap_place(t, at, s);
}

/* All counts alike, so the order in the heap stays. */
static void counts_halve(struct top *t, unsigned times) {
    t->total >>= times;
    for (uint32_t i = 0; i < t->n; i++) {
        struct top_entry *e = &t->heap[i]->entry;
        /* rounded up, so that none is too low */
        e->count = (e->count >> times) + ((e->count & ((UINT64_C(1) << times) - 1)) != 0);
        e->error = (e->error >> times) + ((e->error & ((UINT64_C(1) << times) - 1)) != 0);
    }
}

static void top_fade(struct top *t, uint64_t now_ms) {
    if (t->halved_ms == 0) t->halved_ms = now_ms;
    uint64_t times = (now_ms - t->halved_ms) / TOP_HALF_MS;
    if (times == 0) return;
    t->halved_ms += times * TOP_HALF_MS;
    counts_halve(t, times < 63 ? (unsigned)times : 63);
}

struct top *top_create(void) {
    return xcalloc(1, sizeof(struct top));
}

void top_destroy(struct top **top_p) {
    if (!*top_p) return;
    htab_free(&(*top_p)->names);
    free(*top_p);
    *top_p = NULL;
}

void top_add(struct top *t, struct span name, uint64_t n, uint64_t now_ms) {
    if (n == 0) return;
    top_fade(t, now_ms);
    if (name.len > TOP_NAME_MAX) name.len = TOP_NAME_MAX;
    t->total += n;
    uint64_t hash = hash_bytes(name.data, name.len);
    struct htab_node *node = htab_find(&t->names, hash, slot_is, &name);
    if (node) {
        struct top_slot *s = CONTAINER_OF(node, struct top_slot, node);
        s->entry.count += n;
        heap_down(t, s->at);
        return;
    }
    bool grows = t->n < TOP_SLOTS;
    struct top_slot *s = grows ? &t->slot[t->n] : t->heap[0];
    uint64_t least = grows ? 0 : s->entry.count;
    if (grows)
        heap_place(t, t->n++, s);
    else
        htab_remove(&t->names, &s->node);
    s->entry =
        (struct top_entry){.name_len = (uint32_t)name.len, .count = least + n, .error = least};
    if (name.len) memcpy(s->entry.name, name.data, name.len);
    htab_insert(&t->names, &s->node, hash);
    if (grows)
        heap_up(t, s->at);
    else
        heap_down(t, s->at);
}

static int entry_larger(const void *a, const void *b) {
    const struct top_entry *x = *(const struct top_entry *const *)a;
    const struct top_entry *y = *(const struct top_entry *const *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    uint32_t least = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp(x->name, y->name, least);
    return order ? order : (int)x->name_len - (int)y->name_len;
}

size_t top_get(const struct top *t, struct top_entry *entries, size_t max) {
    const struct top_entry *sorted[TOP_SLOTS] = {NULL};
    for (uint32_t i = 0; i < t->n; i++) sorted[i] = &t->heap[i]->entry;
    qsort(sorted, t->n, sizeof(sorted[0]), entry_larger);
    size_t n = max < t->n ? max : t->n;
    for (size_t i = 0; i < n; i++) entries[i] = *sorted[i];
    return n;
}

uint64_t top_total(const struct top *t) {
    return t->total;
}

uint64_t top_memory(void) {
    return sizeof(struct top) + TOP_SLOTS * sizeof(void *);
}

void top_reset(struct top *t) {
    for (uint32_t i = 0; i < t->n; i++) htab_remove(&t->names, &t->heap[i]->node);
    t->n = 0;
    t->total = t->halved_ms = 0;
}
