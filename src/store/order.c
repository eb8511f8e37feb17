/* The order of eviction: which list or policy an object is in, and what keeps it out of all of
 * them. */
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
        s->space.segments[block_segment(b)]->evictable_units += units;
        s->evictable_units += units;
    }
    if (is) return;
    s->room_changes++;
    /* It was taken out of the order when eviction met it: its turn is still now. */
    if (!list_linked(o)) book_relink(s, o);
}

struct policy *order_policy(struct store *s, const struct object *o) {
    return &s->domains[book_domain(s, o)].policy[(o->bits & OBJECT_INLINE) != 0];
}

static bool is_legacy(const struct store *s, const struct object *o) {
    return (o->bits & OBJECT_GEN) != s->gen;
}

void book_unlink(struct store *s, struct object *o) {
    if (!list_linked(o) || (o->bits & OBJECT_AWAITS)) return;
    if (book_far_only(o) || object_pin(s, o) == STORE_PIN_SOFT) {
        list_unlink(&s->records, o);
    } else if (is_legacy(s, o)) {
        list_unlink(&s->records, o);
        s->legacy_count--;
    } else {
        struct policy *p = order_policy(s, o);
        p->ops->unlink(p, o);
    }
}

static void set_gen(struct store *s, struct object *o) {
    o->bits = (o->bits & ~(uint32_t)OBJECT_GEN) | s->gen;
}

void book_relink(struct store *s, struct object *o) {
    if (o->bits & OBJECT_AWAITS) return;
    TARN_ASSERT(!list_linked(o));
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    if (book_far_only(o)) {
        if (object_pin(s, o) != STORE_PIN_HARD) list_push_back(&s->records, d->far, o);
        return;
    }
    switch (object_pin(s, o)) {
    case STORE_PIN_HARD: return;
    case STORE_PIN_SOFT: list_push_back(&s->records, d->soft[inl], o); return;
    case STORE_PIN_NONE: break;
    }
    if (is_legacy(s, o)) {
        o->bits &= ~(uint32_t)OBJECT_Q1;
        object_set_freq(o, 0);
        set_gen(s, o);
    }
    d->policy[inl].ops->give_back(&d->policy[inl], o);
}

void book_enter_order(struct store *s, struct object *o, const struct policy_event *e) {
    bool waits =
        UNLIKELY(s->copying) && s->config.copies_all && !book_far_only(o) && await_enter(s, o);
    if (!waits) book_enter_policy(s, o, e);
}

void book_enter_policy(struct store *s, struct object *o, const struct policy_event *e) {
    struct domain *d = &s->domains[book_domain(s, o)];
    int inl = (o->bits & OBJECT_INLINE) != 0;
    enum store_pin pin = object_pin(s, o);
    TARN_ASSERT(!list_linked(o));
    set_gen(s, o);
    if (pin == STORE_PIN_HARD) return;
    if (book_far_only(o))
        list_push_front(&s->records, d->far, o);
    else if (pin == STORE_PIN_SOFT)
        list_push_front(&s->records, d->soft[inl], o);
    else
        d->policy[inl].ops->insert(&d->policy[inl], o, e);
}

/* Being read again and again is what brings it back to memory. */
static void far_access(struct store *s, struct object *o) {
    if (object_freq(o) < 255) object_set_freq(o, object_freq(o) + 1);
    if (!list_linked(o)) return;
    list_unlink(&s->records, o);
    list_push_front(&s->records, s->domains[book_domain(s, o)].far, o);
}

void book_access(struct store *s, struct object *o, const struct policy_event *e) {
    if (o->bits & OBJECT_EXTRA) extra_used(s, o);
    enum store_pin pin = object_pin(s, o);
    if (o->bits & OBJECT_AWAITS) {
        /* it comes into the order when it has its copy */
    } else if (book_far_only(o)) {
        far_access(s, o);
    } else if (pin == STORE_PIN_SOFT && list_linked(o)) {
        list_unlink(&s->records, o);
        list_push_front(&s->records,
                        s->domains[book_domain(s, o)].soft[(o->bits & OBJECT_INLINE) != 0], o);
    } else if (pin == STORE_PIN_NONE) {
        if (list_linked(o) && is_legacy(s, o)) book_unlink(s, o);
        if (!list_linked(o)) book_relink(s, o);
        struct policy *p = order_policy(s, o);
        p->ops->access(p, o, e);
    }
    object_set_atime(o, (uint32_t)(s->now_ms / 1000));
}

/* --- another policy --- */

/* What the previous policy left goes behind everything the new one knows, the next to go last. */
bool order_migrate(struct store *s, unsigned *budget) {
    for (unsigned i = 0; i < s->n_domains && s->legacy_count > 0; i++) {
        struct domain *d = &s->domains[i];
        for (int inl = 0; d->used && inl < 2; inl++) {
            object_ref head = d->legacy[inl];
            while (*budget > 0 && record_get(&s->records, head)->next != head) {
                struct object *o = record_get(&s->records, record_get(&s->records, head)->next);
                book_unlink(s, o);
                book_relink(s, o);
                --*budget;
            }
        }
    }
    return s->legacy_count > 0;
}

tarn_status store_set_policy(struct store *s, const char *name) {
    const struct policy_ops *ops = policy_find(name);
    if (!ops) return TARN_EINVAL;
    if (ops == s->policy) return TARN_OK;
    if (s->legacy_count > 0) return TARN_EBUSY;
    s->gen ^= OBJECT_GEN;
    s->policy = ops;
    story_policy(s);
    for (unsigned i = 0; i < s->n_domains; i++) {
        struct domain *d = &s->domains[i];
        for (int inl = 0; d->used && inl < 2; inl++) {
            s->legacy_count += d->policy[inl].count;
            d->policy[inl].ops->drain(&d->policy[inl], d->legacy[inl]);
            policy_close(&d->policy[inl]);
            policy_open(&d->policy[inl], ops, &s->records, &s->config);
        }
    }
    return TARN_OK;
}

const char *store_policy_name(const struct store *s) {
    return s->policy->name;
}

bool store_policy_keeps(const struct store *s) {
    return s->policy->keeps;
}
