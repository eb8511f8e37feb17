/* A hierarchical timing wheel.
 *
 * `tick` is the time up to which everything was looked at. A node lies in the lowest level whose
 * reach covers its distance from the tick at which it was placed:
 *
 *     level 0   64 slots of 1 ms          due - tick in [1, 64)
 *     level 1   32 slots of 64 ms         [64, 2^11)
 *     ...
 *     level 4   32 slots of 2^21 ms       [2^21, 2^26), and everything later in the farthest slot
 *
 * A slot of level 1..4 is cascaded (its nodes are placed anew) when tick reaches the first
 * millisecond it stands for; a slot of level 0 then holds one exact due. Bitmaps of occupied slots
 * let tick jump from one such event to the next, so a process that slept for a day catches up in a
 * few steps. A cascade takes its slot's list over at once and works it off within the budgets of as
 * many calls as it needs:
 *
 *     placed in a slot --> cascading --> placed in a lower slot --> ... --> ready --> popped
 *                              \___________________________________________/
 */
#include "base/wheel.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"

#define WHEEL_MAGIC 0x6c656877u
#define LEVELS      5
#define L0_BITS     6
#define LN_BITS     5
#define L0_SLOTS    (1u << L0_BITS)
#define LN_SLOTS    (1u << LN_BITS)
#define SLOTS       (L0_SLOTS + (LEVELS - 1) * LN_SLOTS)
#define REACH       ((uint64_t)1 << (L0_BITS + (LEVELS - 1) * LN_BITS))
/* A clock that steps back by less only makes timers late by as much; by more, the wheel is placed
 * anew. */
#define BACKSTEP_MS 1000

struct wheel {
    uint32_t magic;
    uint64_t tick;
    size_t count;
    uint64_t occupied[LEVELS]; /* one bit per slot */
    struct wheel_node ready;   /* due <= tick */
    struct wheel_node cascading;
    struct wheel_node slot[SLOTS]; /* level 0, then 1 .. 4; heads of circular lists */
};

static unsigned level_shift(unsigned level) {
    return level == 0 ? 0 : L0_BITS + (level - 1) * LN_BITS;
}
static unsigned level_slots(unsigned level) {
    return level == 0 ? L0_SLOTS : LN_SLOTS;
}
static unsigned level_base(unsigned level) {
    return level == 0 ? 0 : L0_SLOTS + (level - 1) * LN_SLOTS;
}

static void list_init(struct wheel_node *head) {
    head->prev = head->next = head;
}

static bool list_empty(const struct wheel_node *head) {
    return head->next == head;
}

static void list_append(struct wheel_node *head, struct wheel_node *node) {
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static void list_move_all(struct wheel_node *to, struct wheel_node *from) {
    if (list_empty(from)) return;
    from->next->prev = to->prev;
    from->prev->next = to;
    to->prev->next = from->next;
    to->prev = from->prev;
    list_init(from);
}

static void unlink_node(struct wheel *w, struct wheel_node *node) {
    struct wheel_node *head = node->prev == node->next ? node->prev : NULL; /* it was alone */
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->prev = node->next = NULL;
    if (head == NULL || (uintptr_t)head < (uintptr_t)w->slot ||
        (uintptr_t)head >= (uintptr_t)(w->slot + SLOTS))
        return;
    unsigned i = (unsigned)(head - w->slot), level = 0;
    while (level + 1 < LEVELS && i >= level_base(level + 1)) level++;
    w->occupied[level] &= ~((uint64_t)1 << (i - level_base(level)));
}

static void wheel_place(struct wheel *w, struct wheel_node *node) {
    if (node->due <= w->tick) {
        list_append(&w->ready, node);
        return;
    }
    uint64_t delta = node->due - w->tick, due = node->due;
    if (delta >= REACH) {
        delta = REACH - 1;
        due = w->tick + delta;
    }
    unsigned bits = 64u - (unsigned)__builtin_clzll(delta);
    unsigned level = bits <= L0_BITS ? 0 : (bits - L0_BITS + LN_BITS - 1) / LN_BITS;
    unsigned i = (unsigned)(due >> level_shift(level)) & (level_slots(level) - 1);
    w->occupied[level] |= (uint64_t)1 << i;
    list_append(&w->slot[level_base(level) + i], node);
}

/* The first tick after the present one at which a slot fires or cascades; UINT64_MAX: none. */
static uint64_t next_event(const struct wheel *w) {
    uint64_t best = UINT64_MAX;
    for (unsigned level = 0; level < LEVELS; level++) {
        uint64_t map = w->occupied[level];
        if (map == 0) continue;
        unsigned slots = level_slots(level), shift = level_shift(level);
        uint64_t next = (w->tick >> shift) + 1; /* slots ahead are 1 .. slots steps away */
        unsigned r = (unsigned)next & (slots - 1);
        uint64_t turned = r == 0 ? map : (map >> r) | (map << (slots - r));
        uint64_t at = (next + (unsigned)__builtin_ctzll(turned)) << shift;
        best = min_u64(best, at);
    }
    return best;
}

/* Takes over the slots that begin at tick. */
static void enter_tick(struct wheel *w) {
    for (unsigned level = 0; level < LEVELS; level++) {
        unsigned shift = level_shift(level);
        if (w->tick & (((uint64_t)1 << shift) - 1)) break;
        unsigned i = (unsigned)(w->tick >> shift) & (level_slots(level) - 1);
        if (!(w->occupied[level] >> i & 1)) continue;
        w->occupied[level] &= ~((uint64_t)1 << i);
        list_move_all(level == 0 ? &w->ready : &w->cascading, &w->slot[level_base(level) + i]);
    }
}

static void place_all_anew(struct wheel *w, uint64_t now_ms) {
    list_move_all(&w->cascading, &w->ready);
    for (unsigned i = 0; i < SLOTS; i++) list_move_all(&w->cascading, &w->slot[i]);
    for (unsigned level = 0; level < LEVELS; level++) w->occupied[level] = 0;
    w->tick = now_ms;
}

struct wheel *wheel_create(uint64_t now_ms) {
    struct wheel *w = xcalloc(1, sizeof(*w));
    w->magic = WHEEL_MAGIC;
    w->tick = now_ms;
    list_init(&w->ready);
    list_init(&w->cascading);
    for (unsigned i = 0; i < SLOTS; i++) list_init(&w->slot[i]);
    return w;
}

void wheel_destroy(struct wheel **wheel_p) {
    struct wheel *w = *wheel_p;
    if (w == NULL) return;
    MAGIC_CHECK(w, WHEEL_MAGIC);
    w->magic = 0;
    free(w);
    *wheel_p = NULL;
}

void wheel_set(struct wheel *w, struct wheel_node *node, uint64_t due_ms) {
    MAGIC_CHECK(w, WHEEL_MAGIC);
    if (wheel_pending(node))
        unlink_node(w, node);
    else
        w->count++;
    node->due = due_ms;
    wheel_place(w, node);
}

void wheel_remove(struct wheel *w, struct wheel_node *node) {
    MAGIC_CHECK(w, WHEEL_MAGIC);
    if (!wheel_pending(node)) return;
    unlink_node(w, node);
    w->count--;
}

struct wheel_node *wheel_pop(struct wheel *w, uint64_t now_ms, unsigned *budget, bool *more_p) {
    MAGIC_CHECK(w, WHEEL_MAGIC);
    *more_p = false;
    if (UNLIKELY(now_ms < w->tick) && w->tick - now_ms > BACKSTEP_MS) place_all_anew(w, now_ms);
    for (;;) {
        struct wheel_node *node = w->ready.next;
        if (node != &w->ready && node->due <= now_ms) {
            unlink_node(w, node);
            w->count--;
            return node;
        }
        if (list_empty(&w->cascading)) {
            if (w->tick >= now_ms) return NULL;
            uint64_t event = next_event(w);
            if (event > now_ms) {
                w->tick = now_ms;
                return NULL;
            }
            if (*budget == 0) break;
            --*budget;
            w->tick = event;
            enter_tick(w);
        } else {
            if (*budget == 0) break;
            --*budget;
            node = w->cascading.next;
            unlink_node(w, node);
            wheel_place(w, node);
        }
    }
    *more_p = true;
    return NULL;
}

uint64_t wheel_next_ms(const struct wheel *w, uint64_t now_ms, uint64_t limit_ms) {
    MAGIC_CHECK(w, WHEEL_MAGIC);
    if (w->count == 0) return limit_ms;
    if (!list_empty(&w->cascading)) return 0;
    uint64_t at = list_empty(&w->ready) ? next_event(w) : w->ready.next->due;
    return at <= now_ms ? 0 : min_u64(at - now_ms, limit_ms);
}

size_t wheel_count(const struct wheel *w) {
    return w->count;
}
