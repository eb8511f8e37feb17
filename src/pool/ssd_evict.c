/* What goes when the disk is nearly full, and how its space comes back.
 *
 * A log gives up whole units, so the question is which. Strictly the oldest would be FIFO, which
 * wears the disk least but knows nothing of use. We look at the oldest and take the one with which
 * least is lost for its size, if the owner has said that of all of them (tier_weigh). Else it is,
 * of fewer, the one that was read least; those passed over keep half of their count, so that what
 * was hot once does not stay for ever. Where that one ends in the middle of a prompt, the last unit
 * goes that is all of this prompt: what is behind a gap is worth nothing, so the tail goes before
 * the head. Caches on flash do much the same: CacheLib's Navy (Berg et al., OSDI 2020) gives up
 * whole regions, FIFO or LRU by region, never single objects. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "pool/ssd_internal.h"

#define CANDIDATES 8u
#define WEIGHED    32u    /* candidates where it is known what they are worth */
#define WEIGH_MS   10000u /* so long that counts; then it is asked for again */
#define SAMPLE     32u    /* entries of one that are asked for */
#define TAIL_MAX   1024u  /* units of one prompt */

static bool unit_may_go(const struct ssd_unit *u) {
    return u->state == SSD_SEALED && u->unwritten == 0;
}

/* Regions that are free or on their way. */
static uint32_t regions_coming(const struct ssd *s) {
    uint32_t n = s->free;
    const struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->leaving, leaving) n += u->regions;
    return n;
}

/* --- victims --- */

static struct ssd_unit *victim_empty(struct ssd *s) {
    struct ssd_unit *u;
    if (!s->empty_hint) return NULL;
    TAILQ_FOREACH(u, &s->units, by_age) {
        if (u->live == 0 && unit_may_go(u)) return u;
    }
    s->empty_hint = false;
    return NULL;
}

/* Where a run of s->want regions would cost least: the one whose youngest unit is oldest. */
static bool window_choose(struct ssd *s) {
    uint64_t best = UINT64_MAX;
    for (uint32_t at = 0; at + s->want <= s->regions; at++) {
        uint64_t youngest = 0;
        for (uint32_t r = at; r < at + s->want && youngest < best; r++) {
            const struct ssd_unit *u = s->owner[r];
            if (u == NULL) continue;
            youngest = u->state == SSD_OPEN || u->bad ? UINT64_MAX : max_u64(youngest, u->seq + 1);
        }
        if (youngest >= best) continue;
        best = youngest;
        s->want_at = at;
    }
    return best != UINT64_MAX;
}

static struct ssd_unit *unit_prompt_tail(struct ssd_unit *u) {
    struct ssd_unit *tail = u, *v = u;
    uint32_t prompt = u->last_prompt;
    for (unsigned i = 0; prompt != 0 && i < TAIL_MAX; i++) {
        v = TAILQ_NEXT(v, by_age);
        if (v == NULL || v->state == SSD_OPEN || v->first_prompt != prompt ||
            v->last_prompt != prompt)
            break;
        if (unit_may_go(v)) tail = v;
    }
    return tail;
}

static double unit_loss(const struct ssd_unit *u) {
    return u->loss * (double)u->live / u->regions;
}

/* NULL: it is not known of all that could go. */
static struct ssd_unit *victim_weighed(struct ssd *s) {
    struct ssd_unit *u, *best = NULL;
    unsigned seen = 0;
    TAILQ_FOREACH(u, &s->units, by_age) {
        if (!unit_may_go(u)) continue;
        if (u->live > 0 && (u->weighed_ms == 0 || u->loss < 0)) return NULL;
        if (best == NULL || unit_loss(u) < unit_loss(best)) best = u;
        if (++seen == WEIGHED) break;
    }
    return best;
}

static struct ssd_unit *victim_read_least(struct ssd *s) {
    struct ssd_unit *u, *best = NULL;
    unsigned seen = 0;
    TAILQ_FOREACH(u, &s->units, by_age) {
        if (!unit_may_go(u)) continue;
        if (best == NULL || u->heat / u->regions < best->heat / best->regions) best = u;
        if (++seen == CANDIDATES) break;
    }
    return best;
}

static struct ssd_unit *victim_old(struct ssd *s) {
    struct ssd_unit *u, *best = victim_weighed(s);
    if (best == NULL) best = victim_read_least(s);
    if (best == NULL) return NULL;
    for (u = TAILQ_FIRST(&s->units); u != best; u = TAILQ_NEXT(u, by_age)) {
        if (unit_may_go(u)) u->heat /= 2;
    }
    return unit_prompt_tail(best);
}

static struct ssd_unit *victim_in_window(struct ssd *s) {
    if (s->want == 0) return NULL;
    if (clock_mono_ms() >= s->want_until_ms) {
        s->want = 0; /* nobody asked again */
        return NULL;
    }
    if (s->want_at >= s->regions && !window_choose(s)) return NULL;
    for (uint32_t r = s->want_at; r < s->want_at + s->want; r++) {
        if (s->owner[r] != NULL && unit_may_go(s->owner[r])) return s->owner[r];
    }
    return regions_coming(s) < s->want + SSD_RESERVE ? victim_old(s) : NULL;
}

static struct ssd_unit *victim_find(struct ssd *s) {
    struct ssd_unit *u = victim_empty(s);
    if (u != NULL) return u;
    if ((u = victim_in_window(s)) != NULL) return u;
    uint32_t n = regions_coming(s);
    if (n < s->free_start) s->evicting = true;
    if (n >= s->free_stop) s->evicting = false;
    return s->evicting ? victim_old(s) : NULL;
}

bool ssd_too_full(struct tier *t) {
    const struct ssd *s = (const struct ssd *)t;
    return s->empty_hint || s->want > 0 || regions_coming(s) < s->free_start;
}

/* --- the owner's side --- */

static void unit_sample(const struct ssd_unit *u, struct buf *records) {
    size_t step = u->live / SAMPLE + 1, live = 0;
    for (size_t i = 0; i < u->n_entries; i++) {
        const struct tier_record *r = ssd_unit_entry(u, i);
        if (r->kind == TIER_ENTRY && live++ % step == 0) buf_append(records, r, r->size);
    }
}

/* Ahead of the need: what is about to be chosen. */
uint64_t ssd_weigh(struct tier *t, struct buf *records) {
    struct ssd *s = (struct ssd *)t;
    struct ssd_unit *u;
    unsigned seen = 0;
    uint64_t now = clock_mono_ms();
    if (s->empty_hint || regions_coming(s) >= s->free_stop) return 0;
    TAILQ_FOREACH(u, &s->units, by_age) {
        if (!unit_may_go(u)) continue;
        if (u->live > 0 && (u->weighed_ms == 0 || now - u->weighed_ms > WEIGH_MS)) {
            unit_sample(u, records);
            return u->seq;
        }
        if (++seen == WEIGHED) break;
    }
    return 0;
}

void ssd_weighed(struct tier *t, uint64_t ticket, double loss) {
    struct ssd *s = (struct ssd *)t;
    struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->units, by_age) {
        if (u->seq != ticket) continue;
        u->loss = loss;
        u->weighed_ms = clock_mono_ms();
        return;
    }
}

uint64_t ssd_choose(struct tier *t, struct buf *records) {
    struct ssd *s = (struct ssd *)t;
    struct ssd_unit *u = victim_find(s);
    if (u == NULL) return 0;
    u->state = SSD_GOING;
    TAILQ_INSERT_TAIL(&s->leaving, u, leaving);
    buf_append(records, u->log.data, u->log.len);
    t->stats.evicted += u->live;
    return u->seq;
}

void ssd_evicted(struct tier *t, uint64_t ticket) {
    struct ssd *s = (struct ssd *)t;
    struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->leaving, leaving) {
        if (u->seq == ticket) break;
    }
    TARN_ASSERT(u != NULL && u->state == SSD_GOING);
    u->state = SSD_LEAVING;
    ssd_kick(s);
}

/* --- the thread's side --- */

/* Notes in this unit that still mean something are written once more, elsewhere, before they go
 * with it. */
static void unit_carry_notes(struct ssd *s, struct ssd_unit *u) {
    uint64_t before = s->notes_added;
    for (size_t at = 0; at < u->log.len;) {
        const struct tier_record *r = (const void *)(u->log.data + at);
        at += r->size;
        /* In the log of what was written an entry has crossed over to TIER_DROPPED when it has a
         * key. */
        if (r->key_size > 0 || r->value == u->nonce) continue;
        if (ssd_note_target(s, r->value, r->offset) != NULL) ssd_note_add(s, r->value, r->offset);
    }
    u->state = SSD_CARRIED;
    u->notes_mark = s->notes_added == before ? 0 : s->notes_added;
    if (u->notes_mark > 0) s->notes_due_ms = clock_mono_ms();
}

/* A unit whose first header cannot be overwritten stays in its place, out of use and in no list of
 * what may go. Its entries would be found after a restart: so each is noted as dropped. */
static void unit_out_of_use(struct ssd *s, struct ssd_unit *u) {
    log_warning("SSD tier %s: cannot write at %llu: %u MiB are out of use", s->tier.path,
                (unsigned long long)u->base, (unsigned)(u->regions * s->region_size >> 20));
    u->bad = true;
    for (size_t i = 0; i < u->n_entries; i++) {
        struct tier_record *r = ssd_unit_entry(u, i);
        if (r->kind != TIER_ENTRY) continue;
        ssd_entry_drop(s, u, r);
        ssd_note_add(s, u->nonce, r->offset);
    }
}

static void unit_erased(struct ssd_op *op) {
    struct ssd_unit *u = op->arg;
    struct ssd *s = u->owner;
    pthread_mutex_lock(&s->tier.lock);
    s->erasing--;
    TAILQ_REMOVE(&s->leaving, u, leaving);
    if (op->error == 0)
        ssd_unit_destroy(s, u);
    else
        unit_out_of_use(s, u);
    ssd_sync_soon(s);
    pthread_mutex_unlock(&s->tier.lock);
}

void ssd_evict_advance(struct ssd *s) {
    struct ssd_unit *u;
    TAILQ_FOREACH(u, &s->leaving, leaving) {
        if (u->state == SSD_LEAVING && u->reads == 0) unit_carry_notes(s, u);
        if (u->state != SSD_CARRIED || s->notes_done < u->notes_mark) continue;
        u->state = SSD_ERASING;
        u->erase = (struct ssd_op){.write = true,
                                   .buffer = s->zero_block,
                                   .offset = u->base,
                                   .length = SSD_BLOCK,
                                   .done = unit_erased,
                                   .arg = u};
        s->erasing++;
        ssd_io_submit(s->io, &u->erase);
    }
}
