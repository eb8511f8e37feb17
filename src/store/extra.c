/* What few objects have: TTL, pins, a group or boundary (group.c), CRCs per MiB. Kept beside the
 * record, so that the others pay nothing for it; OBJECT_EXTRA says whether to look. */
#include <stdlib.h>
#include <string.h>
#include "store/books.h"

static bool extra_is_of(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct extra, node)->object == *(const object_ref *)key;
}

struct extra *extra_find(const struct store *s, const struct object *o) {
    if (!(o->bits & OBJECT_EXTRA)) return NULL;
    object_ref ref = record_ref(&s->records, o);
    struct htab_node *n = htab_find(&s->extras, hash_u64(ref), extra_is_of, &ref);
    TARN_ASSERT(n != NULL);
    return CONTAINER_OF(n, struct extra, node);
}

struct extra *extra_get(struct store *s, struct object *o) {
    struct extra *x = extra_find(s, o);
    if (x) return x;
    x = xcalloc(1, sizeof(*x));
    x->object = record_ref(&s->records, o);
    htab_insert(&s->extras, &x->node, hash_u64(x->object));
    o->bits |= OBJECT_EXTRA;
    s->extra_bytes += sizeof(*x);
    return x;
}

static void extra_free(struct store *s, struct extra *x) {
    record_get(&s->records, x->object)->bits &= ~(uint32_t)OBJECT_EXTRA;
    htab_remove(&s->extras, &x->node);
    s->extra_bytes -= sizeof(*x) + x->n_crcs * sizeof(*x->crcs);
    free(x->crcs);
    free(x);
}

void extra_trim(struct store *s, struct extra *x) {
    if (x->pin == STORE_PIN_NONE && !x->expire && !x->group && !x->n_crcs && !x->unread)
        extra_free(s, x);
}

static void set_expire(struct store *s, struct extra *x, uint64_t wall_ms) {
    s->expires += (wall_ms != 0) - (x->expire != 0);
    x->expire = wall_ms;
    if (wall_ms)
        wheel_set(s->ttl_wheel, &x->expire_node, wall_ms);
    else
        wheel_remove(s->ttl_wheel, &x->expire_node);
}

static void pin_leave(struct store *s, struct extra *x) {
    if (x->pin == STORE_PIN_SOFT) s->soft_pins--;
    if (x->pin == STORE_PIN_HARD) {
        s->hard_pins--;
        hard_take(s, x->pin_ms, &x->hard);
    }
    x->pin = STORE_PIN_NONE;
}

static void pin_enter(struct store *s, struct extra *x, const struct object *o, enum store_pin pin,
                      uint64_t ms) {
    x->pin = pin;
    x->pin_ms = pin == STORE_PIN_SOFT && ms == 0 ? s->config.soft_pin_ms
                : pin == STORE_PIN_NONE          ? 0
                                                 : ms;
    if (pin == STORE_PIN_SOFT) s->soft_pins++;
    if (pin == STORE_PIN_HARD) {
        s->hard_pins++;
        x->hard = hard_of(s, o);
        hard_add(s, x->pin_ms, &x->hard);
    }
}

/* --- brought to memory ahead --- */

void extra_brought(struct store *s, struct object *o) {
    struct extra *x = extra_get(s, o);
    s->stat.prefetch_brought++;
    s->stat.prefetch_bytes += store_object_size(s, o);
    s->unread++;
    x->unread++;
    object_set_atime(o, (uint32_t)(s->now_ms / 1000));
}

static void unread_end(struct store *s, struct extra *x, uint64_t *figure) {
    *figure += x->unread;
    s->unread -= x->unread;
    x->unread = 0;
}

static void in_vain(struct store *s, struct extra *x) {
    unread_end(s, x, &s->stat.prefetch_in_vain);
}

void extra_in_vain(struct store *s, struct object *o) {
    struct extra *x = extra_find(s, o);
    if (!x) return;
    in_vain(s, x);
    extra_trim(s, x);
}

bool extra_unread(const struct store *s, const struct object *o) {
    const struct extra *x = extra_find(s, o);
    return x && x->unread > 0;
}

/* --- all of it --- */

void extra_drop(struct store *s, struct object *o) {
    struct extra *x = extra_find(s, o);
    if (!x) return;
    in_vain(s, x);
    set_expire(s, x, 0);
    wheel_remove(s->wheel[WHEEL_PIN], &x->pin_node);
    pin_leave(s, x);
    group_leave(s, x);
    extra_free(s, x);
}

/* --- TTL --- */

void extra_set_expire(struct store *s, struct object *o, uint64_t wall_ms) {
    if (!wall_ms && !(o->bits & OBJECT_EXTRA)) return;
    if (wall_ms) store_await_end(s, o); /* disks know no TTL */
    struct extra *x = extra_get(s, o);
    set_expire(s, x, wall_ms);
    extra_trim(s, x);
}

bool extra_expired(const struct store *s, const struct object *o) {
    const struct extra *x = extra_find(s, o);
    return x && x->expire && x->expire <= s->wall_ms;
}

bool extra_due(struct store *s, unsigned *budget) {
    bool more = false;
    struct wheel_node *n;
    while (*budget > 0 && (n = wheel_pop(s->ttl_wheel, s->wall_ms, budget, &more))) {
        struct extra *x = CONTAINER_OF(n, struct extra, expire_node);
        book_drop(s, record_get(&s->records, x->object), STORE_NEWS_EXPIRED);
    }
    return more || *budget == 0;
}

struct sample {
    uint64_t wall_ms;
    struct store_ttl_sample found;
};

static void sample_one(void *arg, struct htab_node *node) {
    const struct extra *x = CONTAINER_OF(node, struct extra, node);
    struct sample *a = arg;
    if (!x->expire) return;
    a->found.seen++;
    if (x->expire <= a->wall_ms)
        a->found.stale++;
    else
        a->found.left_ms += x->expire - a->wall_ms;
}

void store_sample_ttl(struct store *s, unsigned n, struct store_ttl_sample *sample_p) {
    struct sample a = {.wall_ms = s->wall_ms};
    uint64_t cursor = rng_next(&s->rng);
    for (unsigned looks = 4 * n; s->expires > 0 && a.found.seen < n && looks > 0; looks--)
        cursor = htab_scan(&s->extras, cursor, sample_one, &a);
    *sample_p = a.found;
}

/* --- pins --- */

enum store_pin extra_pin(const struct store *s, const struct object *o) {
    return extra_find(s, o)->pin;
}

void extra_set_pin(struct store *s, struct object *o, enum store_pin kind, uint64_t ms) {
    if (kind == STORE_PIN_NONE && !(o->bits & OBJECT_EXTRA)) return;
    bool was = book_protected(s, o);
    book_park(s, o);
    struct extra *x = extra_get(s, o);
    if (x->pin == STORE_PIN_SOFT) s->room_changes++;
    pin_leave(s, x);
    pin_enter(s, x, o, kind, ms);
    if (kind == STORE_PIN_SOFT)
        wheel_set(s->wheel[WHEEL_PIN], &x->pin_node, s->now_ms + x->pin_ms);
    else
        wheel_remove(s->wheel[WHEEL_PIN], &x->pin_node);
    extra_trim(s, x);
    if (!list_linked(o)) book_relink(s, o);
    book_protect(s, o, was);
}

void extra_used(struct store *s, struct object *o, bool put) {
    struct extra *x = extra_find(s, o);
    if (x->group) group_used(x);
    if (x->pin == STORE_PIN_SOFT && s->now_ms + x->pin_ms > x->pin_node.due)
        wheel_set(s->wheel[WHEEL_PIN], &x->pin_node, s->now_ms + x->pin_ms);
    if (x->unread == 0 || put) return;
    unread_end(s, x, &s->stat.prefetch_read);
    extra_trim(s, x);
}

void extra_pin_over(struct store *s, struct wheel_node *node) {
    struct extra *x = CONTAINER_OF(node, struct extra, pin_node);
    struct object *o = record_get(&s->records, x->object);
    extra_set_pin(s, o, STORE_PIN_NONE, 0);
    effect_object(s, o);
}

void store_object_bonds(const struct store *s, const struct object *o,
                        struct store_bonds *bonds_p) {
    const struct extra *x = extra_find(s, o);
    *bonds_p = (struct store_bonds){.pin = STORE_PIN_NONE};
    if (!x) return;
    *bonds_p = (struct store_bonds){x->pin, x->pin_ms, x->expire, {NULL, 0}, false};
    if (!x->group) return;
    bonds_p->group = span_of(x->group->name, x->group->name_len);
    bonds_p->boundary = x->group->boundary;
}
