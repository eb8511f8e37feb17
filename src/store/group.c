/* Objects that go together: groups and boundaries, of which an object may be in one.
 *
 * When a member of a group is evicted all of it goes. When a member of a boundary is, those go that
 * were not used since: the members stand in the order of their last use, so these are the ones
 * behind it.
 *
 *   most recently used                                          longest unused
 *      full block ── full block of rank 1 ── window ── state ── window of rank 1
 *      stays                                 goes      evicted   goes
 *
 * Parts of a boundary are put and read by several processes, each at its own moment: what was used
 * but a moment later than the victim (a sixteenth of the time for which that was unused) was used
 * with it. What is copied to a disk as it leaves memory takes nobody along: nothing is lost.
 *
 * The order is not kept: after a load or a failover the members stand as they came (a snapshot has
 * them in the order of the index), and what was used since then stands before all others. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

#define WHOLE_MAX 64u /* so many go with one in any case, whatever the budget */
#define STAY_MAX  64u /* of a boundary: after so many that stay no more are looked at */

struct group_name {
    struct span name;
    bool boundary;
};

static bool same_group(const struct htab_node *node, const void *key) {
    const struct object_group *g = CONTAINER_OF(node, struct object_group, node);
    const struct group_name *n = key;
    return g->boundary == n->boundary && span_eq(span_of(g->name, g->name_len), n->name);
}

struct object_group *group_get(struct store *s, struct span name, bool boundary) {
    struct group_name key = {name, boundary};
    uint64_t hash = hash_bytes(name.data, name.len) + boundary;
    struct htab_node *n = htab_find(&s->groups, hash, same_group, &key);
    struct object_group *g = n ? CONTAINER_OF(n, struct object_group, node) : NULL;
    if (!g) {
        g = xcalloc(1, sizeof(*g) + name.len);
        g->boundary = boundary;
        g->name_len = (uint32_t)name.len;
        memcpy(g->name, name.data, name.len);
        TAILQ_INIT(&g->members);
        htab_insert(&s->groups, &g->node, hash);
        s->boundaries += boundary;
        s->extra_bytes += sizeof(*g) + name.len;
    }
    g->count++;
    return g;
}

void group_unref(struct store *s, struct object_group *g) {
    if (--g->count > 0) return;
    htab_remove(&s->groups, &g->node);
    s->boundaries -= g->boundary;
    s->extra_bytes -= sizeof(*g) + g->name_len;
    free(g);
}

void group_join(struct store *s, struct object *o, struct object_group *g) {
    struct extra *x = extra_get(s, o);
    TARN_ASSERT(!x->group);
    x->group = g;
    TAILQ_INSERT_HEAD(&g->members, x, of_group);
}

void group_leave(struct store *s, struct extra *x) {
    struct object_group *g = x->group;
    if (!g) return;
    TAILQ_REMOVE(&g->members, x, of_group);
    x->group = NULL;
    group_unref(s, g);
}

void group_used(struct extra *x) {
    struct object_group *g = x->group;
    if (!g->boundary) return;
    TAILQ_REMOVE(&g->members, x, of_group);
    TAILQ_INSERT_HEAD(&g->members, x, of_group);
}

/* --- who goes with one that is evicted --- */

/* What a policy has seen of an object, as far as it counts that: the more, the later its turn. */
static unsigned group_uses(const struct object *o) {
    return (o->bits & OBJECT_Q1 ? 256 : 0) + object_freq(o);
}

struct group_victim group_victim(const struct store *s, const struct object *o) {
    const struct extra *x = extra_find(s, o);
    struct group_victim v = {.group = x ? x->group : NULL};
    if (!v.group) return v;
    v.group->count++; /* keep it while its members go */
    if (!v.group->boundary) return v;
    v.request = book_request(s, o);
    v.idle_ms = store_object_idle_ms(s, o);
    v.uses = group_uses(o);
    v.soft = x->pin == STORE_PIN_SOFT;
    v.before = TAILQ_PREV(x, group_members, of_group);
    v.behind = TAILQ_NEXT(x, of_group);
    return v;
}

/* Of one that was used later than the victim: but a moment. Parts of the same request were used
 * together; the time is in seconds. */
static bool used_with(const struct store *s, const struct object *o, const struct group_victim *v) {
    uint64_t later_ms = v->idle_ms - store_object_idle_ms(s, o), moment_ms = v->idle_ms / 16;
    if (book_request(s, o) == v->request) moment_ms = max_u64(moment_ms, 1000);
    return moment_ms >= 1000 && later_ms <= moment_ms;
}

static bool may_follow(const struct store *s, const struct object *o,
                       const struct group_victim *v) {
    if (book_protected(s, o) || (o->bits & OBJECT_VICTIM) || book_far_only(o)) return false;
    if (!v->group->boundary) return true;
    /* with more uses than the victim's it is somebody else's, too */
    return group_uses(o) <= v->uses && (v->soft || object_pin(s, o) != STORE_PIN_SOFT);
}

struct follow {
    const struct group_victim *victim;
    unsigned *budget;
    unsigned seen, stay;
};

/* false: that was all. */
static bool follow_one(struct store *s, struct follow *f, const struct extra *x) {
    if (*f->budget == 0 && f->seen >= WHOLE_MAX) return false;
    if (*f->budget > 0) --*f->budget;
    f->seen++;
    struct object *o = record_get(&s->records, x->object);
    if (!may_follow(s, o, f->victim)) return !f->victim->group->boundary || ++f->stay < STAY_MAX;
    *(f->victim->group->boundary ? &s->stat.evicted_boundary : &s->stat.evicted_group) += 1;
    book_evict_alone(s, o);
    return true;
}

static void boundary_follow(struct store *s, struct follow *f) {
    const struct group_victim *v = f->victim;
    struct extra *x, *next;
    for (x = v->before; x; x = next) {
        next = TAILQ_PREV(x, group_members, of_group);
        if (!used_with(s, record_get(&s->records, x->object), v) || !follow_one(s, f, x)) break;
    }
    for (x = v->behind; x; x = next) {
        next = TAILQ_NEXT(x, of_group);
        if (!follow_one(s, f, x)) break;
    }
}

void group_follow(struct store *s, struct group_victim *v, bool lost, unsigned *budget) {
    if (!v->group) return;
    struct follow f = {.victim = v, .budget = budget};
    struct extra *x, *next;
    if (!v->group->boundary) {
        f.seen = WHOLE_MAX; /* as far as the budget goes */
        TAILQ_FOREACH_SAFE(x, &v->group->members, of_group, next) {
            if (!follow_one(s, &f, x)) break;
        }
    } else if (lost) {
        boundary_follow(s, &f);
    }
    group_unref(s, v->group);
    v->group = NULL;
}
