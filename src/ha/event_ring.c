#include "ha/event_ring.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"

/* Events back to back: u32 length, bytes. Pieces are found by their first number, events within one
 * by walking. */
struct piece {
    uint64_t first; /* number of its first event */
    uint32_t used;
    char data[EVENT_RING_PIECE];
};

struct event_ring {
    uint64_t next; /* number of the event to come */
    size_t cap;    /* pieces that may be there */
    size_t slots;  /* of piece, which is a queue: cap of them, or fewer as long as that is enough */
    size_t head, n;
    struct piece **piece;
};

static struct piece **slot(const struct event_ring *r, size_t i) {
    return &r->piece[(r->head + i) % r->slots];
}

static size_t pieces_for(uint64_t bytes) {
    uint64_t n = bytes / EVENT_RING_PIECE + (bytes % EVENT_RING_PIECE != 0);
    return (size_t)max_u64(n, 2);
}

struct event_ring *event_ring_create(uint64_t bytes) {
    struct event_ring *r = xcalloc(1, sizeof(*r));
    r->next = 1;
    r->cap = pieces_for(bytes);
    r->slots = 2;
    r->piece = xcalloc(r->slots, sizeof(*r->piece));
    return r;
}

static struct piece *take_oldest(struct event_ring *r) {
    struct piece *p = *slot(r, 0);
    r->head = (r->head + 1) % r->slots;
    r->n--;
    return p;
}

void event_ring_destroy(struct event_ring **ring_p) {
    struct event_ring *r = *ring_p;
    if (!r) return;
    while (r->n > 0) free(take_oldest(r));
    free(r->piece);
    free(r);
    *ring_p = NULL;
}

static void set_slots(struct event_ring *r, size_t slots) {
    struct piece **piece = xcalloc(slots, sizeof(*piece));
    for (size_t i = 0; i < r->n; i++) piece[i] = *slot(r, i);
    free(r->piece);
    r->piece = piece;
    r->slots = slots;
    r->head = 0;
}

void event_ring_resize(struct event_ring *r, uint64_t bytes) {
    r->cap = pieces_for(bytes);
    while (r->n > r->cap) free(take_oldest(r));
    if (r->slots > r->cap) set_slots(r, r->cap);
}

/* Room for len bytes at the end of the newest piece. */
static struct piece *ring_room(struct event_ring *r, size_t len) {
    struct piece *p = r->n > 0 ? *slot(r, r->n - 1) : NULL;
    if (p && EVENT_RING_PIECE - p->used >= len) return p;
    p = r->n == r->cap ? take_oldest(r) : xmalloc(sizeof(*p));
    if (r->n == r->slots) set_slots(r, min_u64(r->slots * 2, r->cap));
    p->first = r->next;
    p->used = 0;
    *slot(r, r->n++) = p;
    return p;
}

uint64_t event_ring_add(struct event_ring *r, const void *event, size_t len) {
    TARN_ASSERT(len > 0 && len <= EVENT_RING_EVENT);
    uint32_t n = (uint32_t)len;
    struct piece *p = ring_room(r, sizeof(n) + len);
    memcpy(p->data + p->used, &n, sizeof(n));
    memcpy(p->data + p->used + sizeof(n), event, len);
    p->used += (uint32_t)sizeof(n) + n;
    return r->next++;
}

uint64_t event_ring_last(const struct event_ring *r) {
    return r->next - 1;
}

uint64_t event_ring_first(const struct event_ring *r) {
    return r->n > 0 ? (*slot(r, 0))->first : r->next;
}

uint64_t event_ring_bytes(const struct event_ring *r) {
    return sizeof(*r) + r->slots * sizeof(*r->piece) + r->n * sizeof(struct piece);
}

/* --- reading --- */

/* The piece with event seq, which is there: the last one that begins at or before it. */
static size_t find_piece(const struct event_ring *r, uint64_t seq) {
    size_t low = 0, high = r->n;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if ((*slot(r, mid))->first <= seq)
            low = mid;
        else
            high = mid;
    }
    return low;
}

bool event_ring_next(const struct event_ring *r, struct event_cursor *c, struct span *event_p) {
    uint32_t len;
    if (c->seq >= r->next) return false;
    if (c->at == (*slot(r, c->piece))->used) {
        c->piece++;
        c->at = 0;
    }
    const struct piece *p = *slot(r, c->piece);
    memcpy(&len, p->data + c->at, sizeof(len));
    *event_p = span_of(p->data + c->at + sizeof(len), len);
    c->at += sizeof(len) + len;
    c->seq++;
    return true;
}

bool event_ring_seek(const struct event_ring *r, uint64_t seq, struct event_cursor *c) {
    struct span event;
    if (seq < event_ring_first(r) || seq > r->next) return false;
    *c = (struct event_cursor){.seq = seq};
    if (seq == r->next) return true;
    c->piece = find_piece(r, seq);
    c->seq = (*slot(r, c->piece))->first;
    while (c->seq < seq) (void)event_ring_next(r, c, &event);
    return true;
}
