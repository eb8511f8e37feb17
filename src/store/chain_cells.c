/* Runs in cells by what they are worth: who goes next is in the cell worth least. */
#include "store/chain.h"

#include <string.h>
#include "base/assert.h"

/* --- what a run is --- */

static inline struct chain_traits run_traits(const struct chain_run *r) {
    struct chain_traits t = {.kind = (uint8_t)r->kind};
    switch (r->kind) {
    case CHAIN_SHARED: break;
    case CHAIN_LEFT:
    case CHAIN_LAST: t.turn = r->turn > 1 ? 2 : 1; break;
    default:
        t.turn = (uint8_t)r->turn;
        t.length = (uint8_t)r->length;
        t.growth = (uint8_t)r->growth;
        t.branched = (uint8_t)r->branched;
    }
    return t;
}

#define WEIGHT_MAX 31u

unsigned chain_weight(uint32_t blocks) {
    if (blocks < 2) return 0;
    unsigned w = 64 - (unsigned)__builtin_clzll((uint64_t)blocks * blocks - 1);
    return w < WEIGHT_MAX ? w : WEIGHT_MAX;
}

static float run_weight(const struct chain_run *r, unsigned blocks) {
    return (float)blocks * chain_weights[r->weight] / CHAIN_WEIGHT_ONE;
}

#define QUARTERS(one)                                                                              \
    CHAIN_WEIGHT_ONE / (one), 0.840896428f * CHAIN_WEIGHT_ONE / (one),                             \
        0.707106769f * CHAIN_WEIGHT_ONE / (one), 0.594603539f * CHAIN_WEIGHT_ONE / (one)
const float chain_weights[WEIGHT_MAX + 1] = {QUARTERS(1),  QUARTERS(2),  QUARTERS(4),
                                             QUARTERS(8),  QUARTERS(16), QUARTERS(32),
                                             QUARTERS(64), QUARTERS(128)};

/* --- windows --- */

static uint32_t window_width(unsigned level) {
    return 1u << (CHAIN_WINDOW_BITS + level);
}

static unsigned slot_of(unsigned level, uint32_t request) {
    return level * CHAIN_WINDOWS + (request >> (CHAIN_WINDOW_BITS + level)) % CHAIN_WINDOWS;
}

/* What was used so many requests before the window to come is of no lower level. */
static unsigned level_at_least(uint32_t requests) {
    return 31 - (unsigned)__builtin_clz(requests / (CHAIN_WINDOWS * CHAIN_WINDOW) | 1);
}

/* What was used before the first window, or so long ago that it seems to be to come, is in the
 * first or in the last one. */
static unsigned slot_of_run(const struct chain_cells *x, const struct chain_run *r) {
    uint32_t born = r->born, first = x->from[CHAIN_LEVELS - 1];
    if ((int32_t)(born - x->end) >= 0) born = x->end - 1;
    if ((int32_t)(born - first) < 0) born = first;
    unsigned l = level_at_least(x->end - born);
    while ((int32_t)(born - x->from[l]) < 0) l++;
    return slot_of(l, born);
}

static struct chain_cell *cell_at(const struct chain_books *c, uint32_t cell) {
    return (struct chain_cell *)(void *)c->cells.arena.base + cell;
}

static uint32_t cell_of_run(const struct chain_cells *x, const struct chain_run *r) {
    return r->sort * CHAIN_SLOTS + slot_of_run(x, r);
}

/* Where the windows of a level end. */
static uint32_t level_end(const struct chain_cells *x, unsigned level) {
    return level ? x->from[level - 1] : x->end;
}

/* Of its runs, between its first and its last. */
static uint32_t age_at(uint32_t clock, unsigned level, uint32_t first) {
    int32_t age = (int32_t)(clock - first - window_width(level) / 2);
    return age > 0 ? (uint32_t)age : 0;
}

/* --- lists --- */

#define END (1u << 31) /* not a run: a cell */

static uint32_t *link_before(struct chain_books *c, const struct chain_run *r) {
    return r->prev & END ? &cell_at(c, r->prev & ~END)->list[r->list].first
                         : &chain_run(c, r->prev)->next;
}

static uint32_t *link_after(struct chain_books *c, const struct chain_run *r) {
    return r->next & END ? &cell_at(c, r->next & ~END)->list[r->list].last
                         : &chain_run(c, r->next)->prev;
}

static uint64_t *cell_bit(struct chain_books *c, uint32_t cell, unsigned list) {
    return &c->cells.window[cell % CHAIN_SLOTS].used[list][cell / CHAIN_SLOTS / 64];
}

static uint64_t cell_mask(uint32_t cell) {
    return UINT64_C(1) << cell / CHAIN_SLOTS % 64;
}

/* The cell of one that is in a list, or counted. */
static uint32_t cell_of_listed(const struct chain_books *c, const struct chain_run *r) {
    if (r->list != CHAIN_BARE && r->prev & END) return r->prev & ~END;
    return cell_of_run(&c->cells, r);
}

/* Of one that was used 2^31 requests ago or earlier, the cell is another one. */
static void bare_remove(struct chain_books *c, uint32_t cell) {
    struct chain_cell *at = cell_at(c, cell);
    if (at->bare > 0 && --at->bare == 0) *cell_bit(c, cell, CHAIN_BARE) &= ~cell_mask(cell);
}

static void list_remove(struct chain_books *c, struct chain_run *r, uint32_t cell) {
    if (r->list == CHAIN_BARE) {
        bare_remove(c, cell);
    } else if (r->prev & r->next & END) {
        cell_at(c, cell)->list[r->list] = (struct chain_ends){0, 0};
        *cell_bit(c, cell, r->list) &= ~cell_mask(cell);
    } else {
        *link_before(c, r) = r->next;
        *link_after(c, r) = r->prev;
    }
    if (r == chain_run(c, c->cells.goes)) c->cells.goes = 0;
    r->list = CHAIN_NOWHERE;
    r->prev = r->next = 0;
}

static void bare_insert(struct chain_books *c, struct chain_run *r, uint32_t cell) {
    r->list = CHAIN_BARE;
    if (cell_at(c, cell)->bare++ == 0) *cell_bit(c, cell, CHAIN_BARE) |= cell_mask(cell);
}

/* The oldest are in front: they are the first to go. */
static void list_insert(struct chain_books *c, uint32_t i, unsigned list, uint32_t cell,
                        bool front) {
    struct chain_run *r = chain_run(c, i);
    struct chain_ends *l = &cell_at(c, cell)->list[list];
    r->list = list;
    r->prev = front || !l->last ? END | cell : l->last;
    r->next = front && l->first ? l->first : END | cell;
    *link_before(c, r) = i;
    *link_after(c, r) = i;
    *cell_bit(c, cell, list) |= cell_mask(cell);
}

/* The lists of another cell, whose runs are younger, behind those of a cell. */
static void cell_append(struct chain_books *c, uint32_t cell, uint32_t other) {
    struct chain_cell *to = cell_at(c, cell), *from = cell_at(c, other);
    to->weight += from->weight;
    to->bare += from->bare;
    if (from->bare) *cell_bit(c, cell, CHAIN_BARE) |= cell_mask(cell);
    for (unsigned l = 0; l < CHAIN_BARE; l++) {
        struct chain_ends *a = &to->list[l], *b = &from->list[l];
        if (!b->first) continue;
        chain_run(c, b->first)->prev = a->last ? a->last : END | cell;
        chain_run(c, b->last)->next = END | cell;
        *(a->last ? &chain_run(c, a->last)->next : &a->first) = b->first;
        a->last = b->last;
        *cell_bit(c, cell, l) |= cell_mask(cell);
    }
    *from = (struct chain_cell){0};
}

/* --- weight --- */

static int64_t weight_units(const struct chain_run *r, unsigned blocks) {
    return (int64_t)((float)blocks * chain_weights[r->weight]);
}

static void weight_change(struct chain_cell *cell, int64_t more) {
    cell->weight = cell->weight + more > 0 ? cell->weight + more : 0;
}

void chain_run_size(struct chain_books *c, struct chain_run *r, unsigned blocks) {
    if (r->list != CHAIN_NOWHERE) {
        int64_t more = weight_units(r, blocks) - weight_units(r, r->blocks);
        weight_change(cell_at(c, cell_of_listed(c, r)), more);
    }
    r->blocks = blocks;
}

/* --- who goes --- */

void chain_cells_changed(struct chain_books *c) {
    c->cells.n_next = 0;
    c->cells.goes = 0;
    memset(c->cells.next_in, 0, sizeof(c->cells.next_in));
}

static bool next_has_of(const struct chain_cells *x, unsigned slot) {
    return x->next_in[slot / 64] >> slot % 64 & 1;
}

static void next_note(struct chain_cells *x, unsigned slot) {
    x->next_in[slot / 64] |= UINT64_C(1) << slot % 64;
}

static void next_enter(struct chain_cells *x, uint32_t cell, float worth) {
    if (x->n_next == CHAIN_NEXT) {
        if (worth >= x->next[0].worth) return;
        memmove(&x->next[0], &x->next[1], --x->n_next * sizeof(x->next[0]));
    }
    next_note(x, cell % CHAIN_SLOTS);
    unsigned k = x->n_next++;
    if (k > 0 && worth >= x->next[0].worth) { /* as most, which are young */
        memmove(&x->next[1], &x->next[0], k * sizeof(x->next[0]));
        k = 0;
    }
    for (; k > 0 && x->next[k - 1].worth <= worth; k--) x->next[k] = x->next[k - 1];
    x->next[k] = (struct chain_next){worth, cell};
}

/* Put one by one, and not used yet. */
static bool sort_is_single(const struct chain_books *c, unsigned sort) {
    const struct chain_traits *t = &c->value.sort[sort].traits;
    return t->kind == CHAIN_NEW && t->length == 0;
}

static void next_look_at(struct chain_books *c, unsigned list, unsigned level, uint32_t first,
                         bool young) {
    unsigned slot = slot_of(level, first);
    bool spares = !young && (int32_t)(first + window_width(level) - c->young) > 0;
    const uint64_t *used = c->cells.window[slot].used[list];
    struct chain_bin at = {0};
    bool aged = false;
    for (unsigned i = 0; i < SORT_WORDS; i++)
        for (uint64_t bits = used[i]; bits; bits &= bits - 1) {
            if (!aged) at = chain_bin_at(&c->value, age_at(c->clock, level, first));
            aged = true;
            unsigned sort = i * 64 + (unsigned)__builtin_ctzll(bits);
            if (spares && sort_is_single(c, sort)) continue;
            next_enter(&c->cells, sort * CHAIN_SLOTS + slot, chain_worth(&c->value, sort, at));
        }
}

/* The cells worth least, the oldest first of those worth the same. */
static void next_look(struct chain_books *c, unsigned list, bool young) {
    const struct chain_cells *x = &c->cells;
    for (unsigned l = CHAIN_LEVELS; l-- > 0;)
        for (uint32_t first = x->from[l]; first != level_end(x, l); first += window_width(l))
            next_look_at(c, list, l, first, young);
}

#define NOTHING 1e-6f /* uses for each request: it may as well go */

/* What came together goes together, where that costs little: it lies side by side. */
static uint32_t next_near(struct chain_books *c, uint32_t i) {
    if (c->near == 0 || c->near == i) return i;
    const struct chain_run *near = chain_run(c, c->near);
    return near->list == CHAIN_LEAVES && chain_run_worth(c, near) <= NOTHING ? c->near : i;
}

uint32_t chain_cells_look(struct chain_books *c) {
    struct chain_cells *x = &c->cells;
    enum { OLD_LEAVES, ALL_LEAVES, INNER, KINDS };
    for (unsigned kind = OLD_LEAVES; kind < KINDS; kind++) {
        unsigned list = kind == INNER ? CHAIN_INNER : CHAIN_LEAVES;
        for (bool looked = false;; looked = true) {
            for (; x->n_next > 0; x->n_next--) {
                uint32_t i = cell_at(c, x->next[x->n_next - 1].cell)->list[list].first;
                if (i == 0) continue;
                if (kind == OLD_LEAVES) return x->goes = next_near(c, i);
                chain_cells_changed(c);
                return i;
            }
            if (looked) break;
            next_look(c, list, kind != OLD_LEAVES);
        }
    }
    return 0;
}

float chain_run_worth(struct chain_books *c, const struct chain_run *r) {
    return chain_worth(&c->value, r->sort, chain_bin_at(&c->value, chain_age(c, r)));
}

/* --- in and out --- */

static void run_enter(struct chain_books *c, uint32_t i, uint32_t cell, bool front) {
    struct chain_run *r = chain_run(c, i);
    unsigned list = chain_list_of(r);
    if (list == CHAIN_BARE) {
        bare_insert(c, r, cell);
        return;
    }
    bool first = cell_at(c, cell)->list[list].first == 0;
    list_insert(c, i, list, cell, front);
    if (list != CHAIN_LEAVES) return;
    c->cells.goes = 0;
    if (first && c->cells.n_next > 0 &&
        !((int32_t)(r->born - c->young) >= 0 && sort_is_single(c, r->sort)))
        next_enter(&c->cells, cell, chain_run_worth(c, r));
}

void chain_link(struct chain_books *c, uint32_t i) {
    struct chain_run *r = chain_run(c, i);
    TARN_ASSERT(r->list == CHAIN_NOWHERE);
    struct chain_traits t = run_traits(r);
    r->sort = chain_sort_find(&c->value, &t);
    c->value.sort[r->sort].runs++;
    size_t cells = (size_t)(r->sort + 1) * CHAIN_SLOTS * sizeof(struct chain_cell);
    TARN_ASSERT(page_arena_grow(&c->cells.arena, cells));
    uint32_t cell = cell_of_run(&c->cells, r);
    weight_change(cell_at(c, cell), weight_units(r, r->blocks));
    run_enter(c, i, cell, chain_age(c, r) > 0);
}

void chain_unlink(struct chain_books *c, struct chain_run *r) {
    if (r->list == CHAIN_NOWHERE) return;
    if (r == chain_run(c, c->near)) c->near = 0;
    uint32_t cell = cell_of_listed(c, r);
    weight_change(cell_at(c, cell), -weight_units(r, r->blocks));
    c->value.sort[r->sort].runs--;
    list_remove(c, r, cell);
}

void chain_move(struct chain_books *c, uint32_t i) {
    struct chain_run *r = chain_run(c, i);
    uint32_t cell = cell_of_listed(c, r);
    list_remove(c, r, cell);
    run_enter(c, i, cell, true);
}

void chain_describe(struct chain_books *c, uint32_t i, unsigned weight) {
    struct chain_run *r = chain_run(c, i);
    if (r->list != CHAIN_NOWHERE) {
        struct chain_traits t = run_traits(r);
        if (chain_sort_known(&c->value, &t) == r->sort) {
            int64_t units = weight_units(r, r->blocks);
            r->weight = weight;
            weight_change(cell_at(c, cell_of_listed(c, r)), weight_units(r, r->blocks) - units);
            return;
        }
        chain_unlink(c, r);
    }
    r->weight = weight;
    chain_link(c, i);
}

/* --- age --- */

void chain_run_exposed(struct chain_books *c, const struct chain_run *r) {
    uint32_t now = chain_age(c, r),
             since = c->clock - c->cells.window[slot_of_run(&c->cells, r)].counted;
    uint32_t from = since < now ? now - since : 0;
    chain_exposed(&c->value, r->sort, run_weight(r, r->blocks), from,
                  chain_age_bin(&c->value, from), now);
}

void chain_run_returned(struct chain_books *c, const struct chain_run *r, unsigned blocks) {
    chain_run_exposed(c, r);
    chain_returned(&c->value, r->sort, run_weight(r, blocks), chain_age(c, r));
}

static unsigned sort_words(const struct chain_books *c) {
    return (c->value.sorts + 63) / 64;
}

static uint64_t window_sorts(const struct chain_window *w, unsigned word) {
    return w->used[CHAIN_LEAVES][word] | w->used[CHAIN_INNER][word] | w->used[CHAIN_BARE][word];
}

/* Counts the exposure of a window's runs up to now. */
static void window_count(struct chain_books *c, unsigned level, uint32_t first) {
    unsigned slot = slot_of(level, first);
    const struct chain_window *w = &c->cells.window[slot];
    uint32_t from = age_at(w->counted, level, first), to = age_at(c->clock, level, first);
    unsigned bin = chain_age_bin(&c->value, from), words = sort_words(c);
    for (unsigned i = 0; i < words; i++)
        for (uint64_t bits = window_sorts(w, i); bits; bits &= bits - 1) {
            unsigned sort = i * 64 + (unsigned)__builtin_ctzll(bits);
            float weight = (float)cell_at(c, sort * CHAIN_SLOTS + slot)->weight / CHAIN_WEIGHT_ONE;
            chain_exposed(&c->value, sort, weight, from, bin, to);
        }
    c->cells.window[slot].counted = c->clock;
}

static void window_append(struct chain_books *c, unsigned slot, unsigned other) {
    struct chain_window *w = &c->cells.window[other];
    unsigned words = sort_words(c);
    for (unsigned i = 0; i < words; i++) {
        for (uint64_t bits = window_sorts(w, i); bits; bits &= bits - 1) {
            uint32_t sort = (i * 64 + (unsigned)__builtin_ctzll(bits)) * CHAIN_SLOTS;
            cell_append(c, sort + slot, sort + other);
        }
        for (unsigned list = 0; list < CHAIN_LISTS; list++) w->used[list][i] = 0;
    }
    c->cells.goes = 0;
    if (!next_has_of(&c->cells, other)) return;
    next_note(&c->cells, slot);
    for (unsigned k = 0; k < c->cells.n_next; k++) {
        uint32_t *cell = &c->cells.next[k].cell;
        if (*cell % CHAIN_SLOTS == other) *cell = *cell - other + slot;
    }
}

#define COUNT_WIDTHS 4u /* of itself, and so after a share of its age, a window is counted again */

/* A window has begun: one before it has that age. */
static void window_count_again(struct chain_books *c, unsigned level, uint32_t begun) {
    uint32_t first = begun - COUNT_WIDTHS * window_width(level);
    if ((int32_t)(first - c->cells.from[level]) >= 0) window_count(c, level, first);
}

/* Two windows become one of the next level; of the last level the first goes into the other. */
static void windows_merge(struct chain_books *c, unsigned level, uint32_t first) {
    uint32_t second = first + window_width(level);
    window_count(c, level, first);
    window_count(c, level, second);
    if (level + 1 == CHAIN_LEVELS) {
        window_append(c, slot_of(level, second), slot_of(level, first));
        return;
    }
    unsigned slot = slot_of(level + 1, first);
    window_append(c, slot, slot_of(level, first));
    window_append(c, slot, slot_of(level, second));
    c->cells.window[slot].counted = c->clock;
    window_count_again(c, level + 1, first);
}

/* The only window of a level that is not empty becomes a later one. */
static void window_leap(struct chain_books *c, unsigned level, uint32_t first, uint32_t later) {
    unsigned from = slot_of(level, first), to = slot_of(level, later);
    if (from != to) window_append(c, to, from);
    c->cells.window[to].counted = c->clock;
}

/* Makes room for windows up to that request. After a leap all that were there are merged soon; of
 * the last level into one, which leaps as well. */
static void level_reach(struct chain_books *c, unsigned level, uint32_t end) {
    uint32_t *from = &c->cells.from[level], width = window_width(level);
    bool last = level + 1 == CHAIN_LEVELS;
    for (unsigned n = 0; end - *from > CHAIN_WINDOWS * width; n++) {
        uint32_t behind = *from + (last ? width : 2 * width);
        bool leap = n >= CHAIN_WINDOWS;
        if (leap) behind = (end - (CHAIN_WINDOWS - 2) * width) / (2 * width) * (2 * width);
        if (!last) level_reach(c, level + 1, behind);
        if (!leap)
            windows_merge(c, level, *from);
        else if (last)
            window_leap(c, level, *from, behind);
        *from = behind;
    }
}

void chain_cells_begin(struct chain_books *c) {
    c->cells.look_at = c->clock;
    c->cells.middle = c->clock / CHAIN_WINDOW * CHAIN_WINDOW + CHAIN_WINDOW / 2;
}

#define LOOK_MAX   64u
#define LOOK_SHARE 4096u

void chain_cells_age(struct chain_books *c, uint64_t objects) {
    struct chain_cells *x = &c->cells;
    uint32_t end = (c->clock / CHAIN_WINDOW + 1) * CHAIN_WINDOW;
    if (end != x->end) {
        level_reach(c, 0, end);
        if (end - x->end > end - x->from[0])
            x->end = x->from[0]; /* after a leap of whatever length */
        if ((int32_t)(x->middle - x->end) <= 0) x->middle = x->end + CHAIN_WINDOW / 2;
        for (; x->end != end; x->end += CHAIN_WINDOW)
            x->window[slot_of(0, x->end)].counted = x->end + CHAIN_WINDOW / 2;
    }
    for (; (int32_t)(c->clock - x->middle) >= 0; x->middle += CHAIN_WINDOW)
        window_count_again(c, 0, x->middle - CHAIN_WINDOW / 2);
    if ((int32_t)(c->clock - x->look_at) < 0) return;
    x->look_at =
        c->clock + (uint32_t)min_u64(max_u64(objects / LOOK_SHARE, CHAIN_WINDOW), LOOK_MAX);
    chain_cells_changed(c);
}
