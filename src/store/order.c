/* The order of eviction: which list or policy an object is in, and what keeps it out of all of
 * them. */
#include "store/batch.h"
#include "store/books.h"

bool book_protected(const struct store *s, const struct object *o) {
    return (o->bits & (OBJECT_REFS | OBJECT_AWAITS)) || object_pin(s, o) == STORE_PIN_HARD;
}

void book_protect(struct store *s, struct object *o, bool was_protected) {
    bool is = book_protected(s, o);
    if (is == was_protected) return;
    uint32_t n;
    const block_id *blocks = book_blocks(s, o, &n);
    for (uint32_t i = 0; i < n; i++) {
        const struct block *b = block_get(&s->space, blocks[i]);
        uint64_t units = is ? -(uint64_t)b->len : b->len;
        space_evictable_add(&s->space, s->space.segments[block_segment(b)], units);
        s->evictable_units += units;
    }
    if (is) return;
    s->room_changes++;
    /* It was taken out of the order when eviction met it: its turn is still now. */
    if (!list_linked(o)) book_give_back(s, o);
}

/* --- whose it is --- */

/* Its policy's, linked or popped, as long as it is in the books. */
static bool in_policy(const struct store *s, const struct object *o) {
    return !(o->bits & OBJECT_AWAITS) && !book_far_only(o) && object_pin(s, o) == STORE_PIN_NONE;
}

static bool is_legacy(const struct store *s, const struct object *o) {
    return (o->bits & OBJECT_GEN) != s->gen;
}

struct policy *order_policy(struct store *s, const struct object *o) {
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    return is_legacy(s, o) ? &d->legacy[inl] : &d->policy[inl];
}

uint32_t book_request(const struct store *s, const struct object *o) {
    if (LIKELY(!s->policy->request && s->legacy_count == 0)) return o->request;
    if (!in_policy(s, o)) return o->request;
    const struct policy *p = order_policy((struct store *)s, o);
    return p->ops->request ? p->ops->request(p, o) : o->request;
}

float book_worth(const struct store *s, const struct object *o) {
    if (!in_policy(s, o)) return -1;
    const struct policy *p = order_policy((struct store *)s, o);
    return p->ops->worth ? p->ops->worth(p, o) : -1;
}

float book_far_worth(struct store *s, const struct object *o) {
    struct policy *p = &s->domains[book_domain(s, o)].policy[0];
    return p->ops->far_worth ? p->ops->far_worth(p, o->request, object_freq(o) > 0) : -1;
}

struct policy_event order_event(const struct store *s, const struct object *o) {
    return (struct policy_event){.now_ms = s->now_ms,
                                 .hash = store_hash(store_object_key(o)),
                                 .request = o->request,
                                 .depth = object_depth(o)};
}

/* It was parked, or may have been, and is no more. */
static void policy_forget(struct policy *p, const struct object *o) {
    if (p->ops && p->ops->forget) p->ops->forget(p, o);
}

static void policy_insert(struct store *s, struct object *o, const struct policy_event *e) {
    if (UNLIKELY(s->migrating))
        policy_forget(&s->domains[book_domain(s, o)].legacy[(o->bits & OBJECT_INLINE) != 0], o);
    o->bits = (o->bits & ~(uint32_t)OBJECT_GEN) | s->gen;
    struct policy *p = order_policy(s, o);
    p->ops->insert(p, o, e);
}

static void policy_leave(struct store *s, struct object *o) {
    struct policy *p = order_policy(s, o);
    p->out -= !list_linked(o);
    s->legacy_count -= is_legacy(s, o);
    if (o != s->evicting) {
        p->ops->unlink(p, o);
        return;
    }
    s->evicting = NULL;
    p->ops->evicted(p, o, book_hash(s, o));
}

static void far_unlink(struct store *s, struct object *o) {
    struct domain *d = &s->domains[book_domain(s, o)];
    if (d->far_at == record_ref(&s->records, o)) d->far_at = o->prev == d->far ? 0 : o->prev;
    list_unlink(&s->records, o);
}

static void other_unlink(struct store *s, struct object *o) {
    if (!list_linked(o)) return;
    if (book_far_only(o))
        far_unlink(s, o);
    else
        list_unlink(&s->records, o);
}

void book_unlink(struct store *s, struct object *o) {
    if (in_policy(s, o)) {
        policy_leave(s, o);
        return;
    }
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    policy_forget(&d->policy[inl], o);
    policy_forget(&d->legacy[inl], o);
    if (!(o->bits & OBJECT_AWAITS)) other_unlink(s, o);
}

void book_park(struct store *s, struct object *o) {
    if (o->bits & OBJECT_AWAITS) return;
    struct policy *p = order_policy(s, o);
    if (!in_policy(s, o)) {
        other_unlink(s, o);
    } else if (p->ops->park && !is_legacy(s, o)) {
        p->out -= !list_linked(o);
        p->ops->park(p, o);
    } else {
        policy_leave(s, o);
    }
}

/* What it was to another policy says nothing here. */
static void forget_uses(struct object *o) {
    o->bits &= ~(uint32_t)OBJECT_Q1;
    object_set_freq(o, 0);
}

void book_relink(struct store *s, struct object *o) {
    if (o->bits & OBJECT_AWAITS) return;
    TARN_ASSERT(!list_linked(o));
    struct domain *d = &s->domains[book_domain(s, o)];
    enum store_pin pin = object_pin(s, o);
    if (pin == STORE_PIN_HARD) return;
    if (book_far_only(o)) {
        list_push_back(&s->records, d->far, o);
    } else if (pin == STORE_PIN_SOFT) {
        list_push_back(&s->records, d->soft[(o->bits & OBJECT_INLINE) != 0], o);
    } else {
        if (is_legacy(s, o)) forget_uses(o);
        struct policy_event e = order_event(s, o);
        e.next = true;
        policy_insert(s, o, &e);
    }
}

struct object *order_pop(struct policy *p, uint64_t now_ms) {
    struct object *o = p->ops ? p->ops->pop(p, now_ms) : NULL;
    p->out += o != NULL;
    return o;
}

void book_hold(struct store *s, struct object *o) {
    if (!in_policy(s, o)) return; /* a soft-pinned one */
    struct policy *p = order_policy(s, o);
    if (p->ops->held) p->ops->held(p, o);
}

bool book_behind(struct store *s, const struct object *o, const struct object *other) {
    if (!in_policy(s, o) || !in_policy(s, other)) return false;
    const struct policy *p = order_policy(s, o);
    return p->ops->behind && p == order_policy(s, other) && p->ops->behind(p, o, other);
}

struct object *book_pop_behind(struct store *s, const struct object *o, unsigned *budget) {
    struct policy *p = in_policy(s, o) ? order_policy(s, o) : NULL;
    struct object *last = p && p->ops->pop_behind ? p->ops->pop_behind(p, o, budget) : NULL;
    if (last) p->out++;
    return last;
}

void book_give_back(struct store *s, struct object *o) {
    if (!in_policy(s, o)) {
        book_relink(s, o);
        return;
    }
    struct policy *p = order_policy(s, o);
    p->out--;
    p->ops->give_back(p, o);
}

/* --- coming and being used --- */

void book_enter_order(struct store *s, struct object *o, const struct policy_event *e) {
    if (LIKELY(!s->copying) || !s->config.copies_all || book_far_only(o) || !await_due(s, o)) {
        book_enter_policy(s, o, e);
        return;
    }
    if (object_pin(s, o) == STORE_PIN_NONE && s->domains[book_domain(s, o)].policy[0].ops->park) {
        policy_insert(s, o, e);
        book_park(s, o);
    }
    await_enter(s, o);
}

/* One that is on disks only and was last used by that request; 0: none is known. Records that have
 * gone have no version. */
static object_ref far_of_request(const struct store *s, const struct domain *d, uint32_t request) {
    object_ref ref = d->far_of[request % FAR_REQUESTS];
    if (request == 0 || ref == 0) return 0;
    const struct object *o = record_get(&s->records, ref);
    bool is = object_version(o) != 0 && o->request == request && book_far_only(o) &&
              list_linked(o) && &s->domains[book_domain(s, o)] == d;
    return is ? ref : 0;
}

struct object *book_far_next(struct store *s, const struct object *o) {
    const struct domain *d = &s->domains[book_domain(s, o)];
    if (o->request == 0 || !list_linked(o) || o->next == d->far) return NULL;
    struct object *next = record_get(&s->records, o->next);
    return next->request == o->request && object_depth(next) > object_depth(o) ? next : NULL;
}

#define FAR_STEPS 64u

/* In front; where the policy knows chains, among those that the same request used last, in the
 * order of their prompt. A tail leaves memory before its head, so that is next to the one that came
 * last. */
static void far_enter(struct store *s, struct domain *d, struct object *o) {
    object_ref at = d->policy[0].ops->chains ? far_of_request(s, d, o->request) : 0;
    const struct object *beside = record_get(&s->records, at ? at : d->far);
    for (unsigned n = 0; at && n < FAR_STEPS; n++) {
        if (object_depth(beside) < object_depth(o)) break;
        at = beside->prev;
        beside = record_get(&s->records, at);
        if (at == d->far || beside->request != o->request) break;
    }
    list_insert_after(&s->records, at ? at : d->far, o);
    d->far_of[o->request % FAR_REQUESTS] = record_ref(&s->records, o);
}

void book_enter_policy(struct store *s, struct object *o, const struct policy_event *e) {
    struct domain *d = &s->domains[book_domain(s, o)];
    enum store_pin pin = object_pin(s, o);
    TARN_ASSERT(!list_linked(o));
    if (pin == STORE_PIN_HARD) return;
    if (book_far_only(o))
        far_enter(s, d, o);
    else if (pin == STORE_PIN_SOFT)
        list_push_front(&s->records, d->soft[(o->bits & OBJECT_INLINE) != 0], o);
    else
        policy_insert(s, o, e);
}

/* In front of what was used before; where the policy knows chains, behind the blocks that the same
 * request has used before it: a head must not go before its tail. */
static void far_to_front(struct store *s, struct domain *d, struct object *o) {
    object_ref at = d->far;
    if (d->far_at && d->policy[0].ops->worth) {
        const struct object *before = record_get(&s->records, d->far_at);
        if (before->request == o->request && o->request != 0 &&
            object_depth(before) < object_depth(o))
            at = d->far_at;
    }
    list_insert_after(&s->records, at, o);
    d->far_at = record_ref(&s->records, o);
    d->far_of[o->request % FAR_REQUESTS] = d->far_at;
}

/* Being read again and again is what brings it back to memory, unless the policy knows better. */
static void far_access(struct store *s, struct object *o, const struct policy_event *e) {
    struct domain *d = &s->domains[book_domain(s, o)];
    if (!e->again && object_freq(o) < 255) object_set_freq(o, object_freq(o) + 1);
    if (d->policy[0].ops->far_access) d->policy[0].ops->far_access(&d->policy[0], e);
    if (!list_linked(o)) return;
    far_unlink(s, o);
    far_to_front(s, d, o);
}

static void policy_access(struct store *s, struct object *o, const struct policy_event *e) {
    if (is_legacy(s, o)) {
        policy_leave(s, o);
        policy_insert(s, o, e);
        return;
    }
    struct policy *p = order_policy(s, o);
    if (!list_linked(o)) book_give_back(s, o);
    p->ops->access(p, o, e);
}

static void parked_access(struct store *s, struct object *o, const struct policy_event *e) {
    if (is_legacy(s, o)) return;
    struct policy *p = order_policy(s, o);
    if (p->ops->parked_access) p->ops->parked_access(p, o, e);
}

void book_found(struct store *s, struct object *o, const struct policy_event *e) {
    if (book_far_only(o) || is_legacy(s, o)) return;
    struct policy *p = order_policy(s, o);
    if (p->ops->found) p->ops->found(p, o, !in_policy(s, o), e);
}

void book_access(struct store *s, struct object *o, const struct policy_event *e) {
    if (o->bits & OBJECT_EXTRA) extra_used(s, o, e->put);
    enum store_pin pin = object_pin(s, o);
    if (!book_far_only(o) && ((o->bits & OBJECT_AWAITS) || pin != STORE_PIN_NONE))
        parked_access(s, o, e);
    if (o->bits & OBJECT_AWAITS) {
        /* It comes into the order with its copy; its prompt is that of its put until then. */
    } else if (!book_far_only(o) && pin == STORE_PIN_NONE) {
        policy_access(s, o, e);
    } else {
        o->request = e->request;
        if (book_far_only(o)) {
            far_access(s, o, e);
        } else if (pin == STORE_PIN_SOFT && list_linked(o)) {
            list_unlink(&s->records, o);
            list_push_front(&s->records,
                            s->domains[book_domain(s, o)].soft[(o->bits & OBJECT_INLINE) != 0], o);
        }
    }
    object_set_atime(o, (uint32_t)(s->now_ms / 1000));
}

/* --- another policy --- */

/* The previous policy gives its objects, the next to go first, so that their order stays; they come
 * before all that the new one is told of from then on. */
static void migrate_linked(struct store *s, struct policy *from, unsigned *budget) {
    struct object *o;
    while (*budget > 0 && (o = order_pop(from, s->now_ms))) {
        policy_leave(s, o);
        forget_uses(o);
        struct policy_event e = order_event(s, o);
        policy_insert(s, o, &e);
        --*budget;
    }
}

/* One that it had popped when it was in use. */
static void migrate_held(void *arg, struct htab_node *node) {
    struct store *s = arg;
    struct object *o = record_get(&s->records, CONTAINER_OF(node, struct refs, node)->object);
    if (!o || list_linked(o) || !in_policy(s, o) || !is_legacy(s, o)) return;
    policy_leave(s, o);
    book_relink(s, o);
}

/* true: not yet. */
static bool migrate_over(struct store *s) {
    s->migrating = s->legacy_count > 0;
    for (unsigned i = 0; i < s->n_domains && !s->migrating; i++)
        for (int inl = 0; inl < 2; inl++) policy_close(&s->domains[i].legacy[inl]);
    return s->migrating;
}

bool order_migrate(struct store *s, unsigned *budget) {
    if (LIKELY(!s->migrating)) return false;
    uint64_t linked = 0;
    for (unsigned i = 0; i<s->n_domains && * budget> 0; i++)
        for (int inl = 0; inl < 2; inl++) {
            struct policy *from = &s->domains[i].legacy[inl];
            migrate_linked(s, from, budget);
            linked += from->count;
        }
    for (; *budget > 0 && linked == 0 && s->legacy_count > 0; --*budget)
        s->migrate_cursor = htab_scan(&s->refs, s->migrate_cursor, migrate_held, s);
    return migrate_over(s);
}

tarn_status order_set_policy(struct store *s, const struct policy_ops *ops) {
    if (ops == s->policy) return TARN_OK;
    if (s->migrating) return TARN_EBUSY;
    batch_over(s);
    s->gen ^= OBJECT_GEN;
    s->policy = ops;
    s->migrate_cursor = 0;
    story_policy(s);
    for (unsigned i = 0; i < s->n_domains; i++) {
        struct domain *d = &s->domains[i];
        for (int inl = 0; d->used && inl < 2; inl++) {
            d->legacy[inl] = d->policy[inl];
            s->legacy_count += d->legacy[inl].count + d->legacy[inl].out;
            policy_open(&d->policy[inl], policy_of(ops, inl), &s->records, &s->config);
        }
    }
    migrate_over(s);
    return TARN_OK;
}

tarn_status store_set_policy(struct store *s, const char *name) {
    const struct policy_ops *ops = policy_find(name);
    return ops ? order_set_policy(s, ops) : TARN_EINVAL;
}

const char *store_policy_name(const struct store *s) {
    return s->policy->name;
}

bool store_policy_keeps(const struct store *s) {
    return s->policy->keeps;
}
