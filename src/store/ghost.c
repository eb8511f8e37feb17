/* Ghosts: space of what went while somebody may still read or write it who is not known here.
 * Leases that another master granted end until a time that it told; a writer's grants at their
 * deadline. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

static void ghost_count(struct store *s, const struct ghost *g, int sign) {
    for (uint32_t i = 0; i < g->n_blocks; i++) {
        const struct block *b = block_get(&s->space, g->blocks[i]);
        if (g->written) {
            s->written_units += (uint64_t)sign * b->len;
            continue;
        }
        s->ghost_units += (uint64_t)sign * b->len;
        s->space.segments[block_segment(b)]->ghost_units += (uint64_t)sign * b->len;
    }
}

static void ghost_free(struct store *s, struct ghost *g, bool release) {
    wheel_remove(s->wheel[WHEEL_GHOST], &g->wheel);
    LIST_REMOVE(g, link);
    ghost_count(s, g, -1);
    s->ghosts_read -= !g->written;
    for (uint32_t i = 0; i < g->n_blocks && release; i++) space_release(&s->space, g->blocks[i]);
    s->put_bytes -= sizeof(*g) + g->n_blocks * sizeof(block_id);
    s->room_changes++;
    free(g);
}

static void ghost_new(struct store *s, const block_id *blocks, uint32_t n, uint64_t until_ms,
                      bool written) {
    struct ghost *g = xcalloc(1, sizeof(*g) + n * sizeof(block_id));
    g->n_blocks = n;
    g->told_ms = s->told_ms;
    g->written = written;
    s->ghosts_read += !written;
    memcpy(g->blocks, blocks, n * sizeof(block_id));
    if (++s->ghost_age == 0) s->ghost_age = 1;
    for (uint32_t i = 0; i < n; i++)
        block_assign(&s->space, blocks[i], BLOCK_HELD, s->ghost_age, 0);
    ghost_count(s, g, 1);
    LIST_INSERT_HEAD(&s->ghosts, g, link);
    s->put_bytes += sizeof(*g) + n * sizeof(block_id);
    wheel_set(s->wheel[WHEEL_GHOST], &g->wheel, until_ms);
}

void space_hold_written(struct store *s, const block_id *blocks, uint32_t n, uint64_t until_ms) {
    if (n > 0) ghost_new(s, blocks, n, until_ms, true);
}

void ghost_over(struct store *s, struct wheel_node *node) {
    ghost_free(s, CONTAINER_OF(node, struct ghost, wheel), true);
}

bool ghosts_hold(const struct store *s) {
    return s->ghosts_read > 0 || s->now_ms < s->ghost_until_ms;
}

void ghosts_free_all(struct store *s) {
    while (!LIST_EMPTY(&s->ghosts)) ghost_free(s, LIST_FIRST(&s->ghosts), false);
}

void space_part(struct store *s, const block_id *blocks, uint32_t n) {
    if (n == 0) return;
    if (s->following) {
        ghost_new(s, blocks, n, s->now_ms + s->config.max_lease_ms, false);
    } else if (s->now_ms < s->ghost_until_ms) {
        ghost_new(s, blocks, n, s->ghost_until_ms, false);
    } else {
        for (uint32_t i = 0; i < n; i++) space_release(&s->space, blocks[i]);
        s->room_changes++;
    }
}

void ghosts_leave(struct store *s, uint32_t segment, bool all) {
    struct ghost *g, *next;
    LIST_FOREACH_SAFE(g, &s->ghosts, link, next) {
        uint32_t kept = 0, n = g->n_blocks;
        ghost_count(s, g, -1);
        for (uint32_t i = 0; i < n; i++) {
            if (replica_segment(s, g->blocks[i]) == segment &&
                (all || block_get(&s->space, g->blocks[i])->owner == 0))
                space_release(&s->space, g->blocks[i]);
            else
                g->blocks[kept++] = g->blocks[i];
        }
        s->put_bytes -= (n - kept) * sizeof(block_id);
        g->n_blocks = kept;
        ghost_count(s, g, 1);
        if (kept == 0) ghost_free(s, g, false);
    }
}

void ghosts_beyond(struct store *s, uint32_t segment, uint64_t units) {
    const struct ghost *g;
    LIST_FOREACH(g, &s->ghosts, link) {
        for (uint32_t i = 0; i < g->n_blocks; i++) {
            const struct block *b = block_get(&s->space, g->blocks[i]);
            if (block_segment(b) == segment && block_offset(b) + b->len > units)
                block_assign(&s->space, g->blocks[i], BLOCK_HELD, 0, 0);
        }
    }
    ghosts_leave(s, segment, false);
}

void ghosts_told(struct store *s, uint64_t end_ms) {
    struct ghost *g, *next;
    LIST_FOREACH_SAFE(g, &s->ghosts, link, next) {
        uint64_t until_ms = min_u64(g->told_ms, end_ms);
        if (until_ms <= s->now_ms)
            ghost_free(s, g, true);
        else
            wheel_set(s->wheel[WHEEL_GHOST], &g->wheel, until_ms);
    }
}

void book_forget(struct store *s, struct object *o, bool same) {
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    block_id kept[PLACES_BLOCKS_MAX];
    if (n) memcpy(kept, blocks, n * sizeof(kept[0]));
    bool stays = s->following;
    book_remove(s, o, STORE_NEWS_NONE); /* its blocks are a ghost now */
    if (!same || n == 0) return;
    struct ghost *g = LIST_FIRST(&s->ghosts);
    TARN_ASSERT(stays && g->n_blocks == n && g->blocks[0] == kept[0]);
    ghost_free(s, g, true);
}
