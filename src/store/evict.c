/* Who goes when room is needed: the next in the order of eviction, and what belongs to it. */
#include <math.h>
#include <string.h>
#include "store/books.h"

static struct object *pop_from(struct store *s, struct domain *d, int inl, bool soft) {
    struct object *o = order_pop(&d->legacy[inl], s->now_ms);
    if (o || (o = order_pop(&d->policy[inl], s->now_ms))) return o;
    if (soft && (o = list_back(&s->records, d->soft[inl]))) list_unlink(&s->records, o);
    return o;
}

/* An object whose only space is on a host that is away makes no room: its turn comes again when all
 * others had theirs. */
static bool set_aside(struct store *s, struct object *o) {
    if (!s->hidden || (o->bits & OBJECT_INLINE) || store_object_in_memory(s, o)) return false;
    if (object_pin(s, o) != STORE_PIN_NONE) return false;
    book_unlink(s, o);
    struct policy_event e = order_event(s, o);
    book_enter_order(s, o, &e);
    return true;
}

#define ASIDE_MAX 64u

/* Protected objects that come up are left out: book_protect gives them back when the
 * protection ends. Those that are set aside come up again: they use up all of the budget but one
 * unit, and end the search soon after, so that whoever asks goes on in another way. */
static struct object *pop_free(struct store *s, struct domain *d, int inl, bool soft, bool space,
                               unsigned *budget) {
    unsigned aside = 0;
    while (*budget > 0) {
        struct object *o = pop_from(s, d, inl, soft);
        if (!o) return NULL;
        if (book_protected(s, o)) {
            book_hold(s, o);
            --*budget;
            continue;
        }
        if (!space || !set_aside(s, o)) return o;
        if (*budget > 1)
            --*budget;
        else if (++aside == ASIDE_MAX)
            return NULL;
    }
    return NULL;
}

/* By what their policies say, or how long they were unused. */
static bool goes_before(const struct store *s, const struct object *a, const struct object *b) {
    float worth_a = book_worth(s, a), worth_b = book_worth(s, b);
    if (worth_a >= 0 && worth_b >= 0) return worth_a < worth_b;
    return store_object_idle_ms(s, a) + (object_pin(s, a) == STORE_PIN_NONE) >
           store_object_idle_ms(s, b) + (object_pin(s, b) == STORE_PIN_NONE);
}

struct object *book_pop(struct store *s, int domain, int inl, bool soft, bool space,
                        unsigned *budget) {
    if (domain >= 0) return pop_free(s, &s->domains[domain], inl, soft, space, budget);
    if (s->n_domains == 1) return pop_free(s, &s->domains[0], inl, soft, space, budget);
    /* The first of the candidates that the domains would give. */
    struct object *best = NULL;
    for (unsigned i = 0; i < s->n_domains; i++) {
        if (!s->domains[i].used) continue;
        struct object *o = pop_free(s, &s->domains[i], inl, soft, space, budget);
        if (!o) continue;
        if (best && !goes_before(s, o, best)) {
            book_give_back(s, o);
            continue;
        }
        if (best) book_give_back(s, best);
        best = o;
    }
    return best;
}

void book_count_evicted(struct store *s, const struct object *o) {
    s->stat.evicted_objects++;
    s->stat.evicted_for[s->evicting_for]++;
    if (s->n_domains > 1) s->domains[book_domain(s, o)].evicted++;
    s->stat.evicted_bytes += store_object_size(s, o);
    if (o->bits & OBJECT_INLINE) s->stat.evicted_inline++;
    if (object_pin(s, o) == STORE_PIN_SOFT) s->stat.evicted_soft_pinned++;
}

/* Leaves memory, but stays readable from a disk. false: there is no copy that could be read. */
static bool evict_demote(struct store *s, struct object *o) {
    if (!(o->bits & OBJECT_PLACES)) return false;
    struct places p;
    places_read(s, o, &p);
    bool readable = false;
    for (uint32_t i = 0; i < p.n_far; i++)
        readable = readable || segment_readable(s->space.segments[p.far[i].segment]);
    if (!readable) return false;
    block_id blocks[PLACES_BLOCKS_MAX];
    uint32_t n = p.n_blocks;
    memcpy(blocks, p.block, n * sizeof(blocks[0]));
    p.n_memory = p.n_blocks = 0;
    memset(p.extents, 0, sizeof(p.extents));
    places_write(s, o, &p);
    o->bits &= ~(uint32_t)OBJECT_VICTIM;
    space_part(s, blocks, n);
    s->stat.evicted_to_far++;
    return true;
}

bool book_evict_alone(struct store *s, struct object *o) {
    book_count_evicted(s, o);
    if (!book_far_only(o)) {
        s->evicting = o;
        if (evict_demote(s, o)) {
            s->evicting = NULL;
            return false;
        }
        if (UNLIKELY(s->copying) && s->config.copies_all && await_disk(s, o) != STORE_SEGMENT_ANY)
            s->stat.evicted_before_copy++;
    }
    book_remove(s, o, STORE_NEWS_EVICTED);
    s->evicting = NULL;
    return true;
}

#define COLDER_MAX 4u

/* Who was not next to go is no measure of what else is to: parts of its boundary may be in use. */
static void evict_with(struct store *s, struct object *o, bool next, unsigned *budget) {
    struct group_victim v = group_victim(s, o);
    bool lost = book_evict_alone(s, o);
    if (*budget > 0) --*budget;
    group_follow(s, &v, lost && next, budget);
}

void book_evict(struct store *s, struct object *o, unsigned *budget) {
    evict_with(s, o, true, budget);
}

/* Values in the books make no room in the pool, but what is colder than what goes from there has
 * had its time as well. A few at a time: as many as go from the pool, and more where they are
 * behind. */
static void evict_colder_small(struct store *s, uint64_t idle_ms, unsigned *budget) {
    for (unsigned n = 0; n < COLDER_MAX && s->inline_count > 0 && *budget > 0; n++) {
        struct object *o = book_pop(s, -1, 1, false, false, budget);
        if (!o) return;
        if (store_object_idle_ms(s, o) <= idle_ms) {
            book_give_back(s, o);
            return;
        }
        book_evict(s, o, budget);
    }
}

void book_evict_space(struct store *s, struct object *o, bool next, unsigned *budget) {
    uint64_t idle_ms = store_object_idle_ms(s, o), to_far = s->stat.evicted_to_far;
    evict_with(s, o, next, budget);
    if (s->stat.evicted_to_far > to_far)
        return; /* it has its time on a disk, and what belongs to it has no copy there */
    evict_colder_small(s, idle_ms, budget);
}

bool store_evict_object(struct store *s, struct object *o, uint64_t *bytes_p) {
    if (book_protected(s, o) || book_far_only(o)) return false;
    *bytes_p = store_object_size(s, o);
    s->stat.evict_command++;
    s->evicting_for = STORE_EVICTION_COMMAND;
    book_evict_alone(s, o);
    s->evicting_for = STORE_EVICTION_PUT;
    return true;
}

/* Evicts whoever is next, with space first. false: nobody, or the budget is used up. */
static bool evict_next(struct store *s, unsigned *budget, uint64_t *objects_p, uint64_t *bytes_p) {
    uint64_t objects = s->stat.evicted_objects, bytes = s->stat.evicted_bytes;
    struct object *o = book_pop(s, -1, 0, true, false, budget);
    if (!o) o = book_pop(s, -1, 1, true, false, budget);
    if (!o) return false;
    s->evicting_for = STORE_EVICTION_COMMAND;
    book_evict(s, o, budget);
    s->evicting_for = STORE_EVICTION_PUT;
    *objects_p += s->stat.evicted_objects - objects;
    *bytes_p += s->stat.evicted_bytes - bytes;
    return true;
}

bool store_evict_step(struct store *s, struct store_evict_job *job, unsigned *budget) {
    while ((job->want_objects && job->objects < job->want_objects) ||
           (job->want_bytes && job->bytes < job->want_bytes)) {
        if (*budget == 0) return false;
        uint64_t before = job->objects;
        if (!evict_next(s, budget, &job->objects, &job->bytes)) return *budget > 0;
        s->stat.evict_command += job->objects - before;
    }
    return true;
}

static bool above(const struct store *s, double share) {
    uint64_t size = s->space.up.units, used = size - s->space.up.free;
    return size > 0 && s->space.up.evictable > 0 && (double)used > share * (double)size;
}

static bool above_watermark(const struct store *s) {
    return above(s, s->config.high_watermark);
}

/* --- what memory is for --- */

#define READ_RATE  (2.0 * (1 << 30)) /* of a disk, until it was measured */
#define TWICE_AT   (8.0 * (1 << 30)) /* bytes before a block that takes twice as long to compute */
#define TIMES_MOST 64

/* So many times as long as a read from a disk it takes to compute it again: the attention to what
 * is before a block grows with its depth. */
static float lost_times(const struct store *s, const struct object *o) {
    const struct store_config *c = &s->config;
    double read = c->disk_read_rate > 0 ? c->disk_read_rate : READ_RATE;
    double before = (double)object_depth(o) * (double)store_object_size(s, o);
    return (float)fmin(read / c->prefill_rate * (1 + before / TWICE_AT), TIMES_MOST);
}

bool evict_worth_less(const struct store *s, const struct object *next, float worth) {
    return book_worth(s, next) * (object_has_far(s, next) ? 1 : lost_times(s, next)) < worth;
}

#define LOOKS 64u

bool store_object_worth_memory(struct store *s, const struct object *o, bool otherwise) {
    float worth = book_far_only(o) ? book_far_worth(s, o) : book_worth(s, o);
    if (worth < 0 || s->policy->keeps) return otherwise;
    /* Eviction lets that much go at a time: below that there is room without it. */
    if (!above(s, s->config.high_watermark - 2 * s->config.eviction_ratio)) return true;
    unsigned budget = LOOKS;
    struct object *next = book_pop(s, -1, 0, false, false, &budget);
    if (!next) return otherwise;
    bool more = evict_worth_less(s, next, worth);
    book_give_back(s, next);
    return more;
}

/* In millionths. All of a prompt is read from the disk or computed again: so its blocks count the
 * same, but for a little that makes those at its end go first. */
float store_object_far_loss(struct store *s, const struct object *o) {
    float worth = book_far_only(o) ? book_far_worth(s, o) : book_worth(s, o);
    if (worth < 0) return -1;
    float head = 1 + 1 / (16 + (float)object_depth(o));
    return worth * (float)store_object_size(s, o) * head * 1e6f;
}

/* Most of what an eviction costs is waiting for the index's buckets, and for the space and what is
 * beside it: they are on their way to the cache from here on, what they lead to with go_near. */
static struct ahead come_near(const struct store *s, struct object *o) {
    block_id block = o->bits & OBJECT_PLACES ? 0 : o->block;
    struct ahead a = {o, object_version(o), store_hash(store_object_key(o)), block};
    index_prefetch_bucket(&s->index, a.hash);
    __builtin_prefetch(block_get(&s->space, block));
    return a;
}

static void go_near(const struct store *s, const struct ahead *a) {
    const struct block *b = block_get(&s->space, a->block);
    __builtin_prefetch(block_get(&s->space, b->prev));
    __builtin_prefetch(block_get(&s->space, b->next));
    index_prefetch_more(&s->index, a->hash);
}

void evict_ahead(struct store *s) {
    struct policy *p = &s->domains[0].policy[0];
    struct object *o = p->ops->peek ? p->ops->peek(p) : NULL;
    if (o) s->ahead = come_near(s, o);
}

void evict_soon(const struct store *s) {
    if (s->ahead.object) go_near(s, &s->ahead);
}

#define EVICT_AHEAD 8u

static unsigned pop_ahead(struct store *s, struct ahead next[EVICT_AHEAD], unsigned *budget) {
    uint64_t most = min_u64(min_u64(EVICT_AHEAD, s->evict_left), *budget);
    unsigned n = 0;
    while (n < most) {
        struct object *o = book_pop(s, -1, 0, false, true, budget);
        if (!o) break;
        o->bits |= OBJECT_VICTIM; /* not to be taken along by the group of another */
        next[n++] = come_near(s, o);
    }
    for (unsigned i = 0; i < n; i++) go_near(s, &next[i]);
    return n;
}

/* Above the watermark a pass frees eviction_ratio of the objects in memory; another follows while
 * that was not enough. Not while what goes stays unusable (store_lead): it would be never
 * enough. */
bool evict_background(struct store *s, unsigned *budget) {
    if (ghosts_hold(s) || s->keeps_expired) return false;
    if (s->policy->keeps) {
        s->evict_left = 0;
        return false;
    }
    while (*budget > 0) {
        if (!s->evict_left) {
            if (!above_watermark(s)) return false;
            uint64_t in_memory = s->index.count - s->inline_count - s->far_objects;
            s->evict_left = (uint64_t)((double)in_memory * s->config.eviction_ratio) + 1;
        }
        struct ahead next[EVICT_AHEAD];
        unsigned n = pop_ahead(s, next, budget);
        if (n == 0) {
            if (*budget > 0) s->evict_left = 0; /* only soft-pinned objects are left */
            return *budget == 0;
        }
        s->stat.evicted_background += n;
        s->evict_left -= n;
        s->evicting_for = STORE_EVICTION_WATERMARK;
        for (unsigned i = 0; i < n; i++) {
            s->ahead = next[i];
            book_evict_space(s, next[i].object, true, budget);
        }
        s->evicting_for = STORE_EVICTION_PUT;
    }
    return true;
}
