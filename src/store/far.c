/* Copies that hosts keep on their disks or on a shared file system. The host decides where; the
 * books only note it. */
#include <string.h>
#include "store/batch.h"
#include "store/books.h"

static int far_index(const struct places *p, uint32_t segment) {
    for (uint32_t i = 0; i < p->n_far; i++)
        if (p->far[i].segment == segment) return (int)i;
    return -1;
}

static struct segment *far_segment(const struct store *s, uint32_t id) {
    struct segment *seg = space_segment(&s->space, id);
    return seg && seg->tier != STORE_TIER_MEMORY && seg->state != SEGMENT_LEAVING ? seg : NULL;
}

/* --- what must not come back --- */

/* A host may offer what it had not heard the end of: it was away, or was killed before it noted it
 * down. So of keys that were removed or replaced, or whose far replica we gave up, we remember up
 * to which version, in a table by a part of their hash: keys that share a slot share the fate,
 * which costs copies on disks, never an answer that is too old. What is gone because its host lost
 * it is not meant: if it finds it after all, the better. */
void far_remember(struct store *s) {
    if (!s->superseded) s->superseded = xcalloc(SUPERSEDED_SLOTS, sizeof(*s->superseded));
}

void store_far_supersede(struct store *s, struct span key, uint64_t version) {
    if (!s->superseded) return;
    uint64_t *slot = &s->superseded[store_hash(key) % SUPERSEDED_SLOTS];
    if (*slot >= version) return;
    *slot = version;
    effect_superseded(s, (uint32_t)(slot - s->superseded), version);
}

static bool is_superseded(const struct store *s, uint64_t hash, uint64_t version) {
    return version <= s->flush_version ||
           (s->superseded && version <= s->superseded[hash % SUPERSEDED_SLOTS]);
}

/* --- coming and going --- */

tarn_status store_far_add(struct store *s, struct object *o, uint32_t segment, uint64_t offset) {
    if (!far_segment(s, segment)) return TARN_ENOSEGMENT;
    if (o->bits & OBJECT_INLINE) return TARN_EINVAL;
    struct places p;
    places_read(s, o, &p);
    if (far_index(&p, segment) >= 0) return TARN_EEXISTS;
    if (p.n_memory + p.n_far == STORE_REPLICAS_MAX) return TARN_ELIMIT;
    p.far[p.n_far++] = (struct far){offset, segment};
    places_write(s, o, &p);
    s->stat.far_added++;
    return TARN_OK;
}

#define BEHIND_MAX 1024u

/* A disk has given up a block that is nowhere else: what is behind it in its prompt, as far as its
 * last request used them together, is kept in vain. It makes room on its disks before its time. */
static void far_drop_behind(struct store *s, const struct object *o) {
    if (!s->domains[book_domain(s, o)].policy[0].ops->chains) return;
    struct object *next;
    for (unsigned n = 0; n < BEHIND_MAX && (next = book_far_next(s, o)); n++) {
        s->stat.far_dropped++;
        book_remove(s, next, STORE_NEWS_EVICTED);
    }
}

/* Whatever readers made of the object: its space on the disk is the host's to wait for. */
static void far_forget(struct store *s, struct object *o, uint32_t segment) {
    struct places p;
    places_read(s, o, &p);
    s->stat.far_dropped++;
    store_far_supersede(s, store_object_key(o), object_version(o));
    if (p.n_memory + p.n_far == 1) {
        far_drop_behind(s, o);
        s->far_silent = segment;
        book_remove(s, o, STORE_NEWS_EVICTED);
        s->far_silent = STORE_SEGMENT_ANY;
        return;
    }
    places_drop_far(&p, (uint32_t)far_index(&p, segment));
    places_write(s, o, &p);
}

/* It gets a TTL, which disks do not know: after a restart it would come back for ever. One that is
 * only there stays. */
void far_leave(struct store *s, struct object *o) {
    if (!(o->bits & OBJECT_PLACES) || book_far_only(o)) return;
    struct places p;
    places_read(s, o, &p);
    if (p.n_far == 0) return;
    far_announce_gone(s, o);
    s->stat.far_dropped += p.n_far;
    p.n_far = 0;
    places_write(s, o, &p);
}

bool store_far_drop(struct store *s, struct span key, uint64_t version, uint32_t segment) {
    struct object *o = index_find(&s->index, key, store_hash(key));
    if (!o || object_version(o) != version || !(o->bits & OBJECT_PLACES)) return false;
    struct places p;
    places_read(s, o, &p);
    if (far_index(&p, segment) < 0) return false;
    far_forget(s, o, segment);
    return true;
}

void far_announce_gone(struct store *s, const struct object *o) {
    if (s->following) return; /* who leads tells them */
    struct places p;
    places_read(s, o, &p);
    for (uint32_t i = 0; i < p.n_far; i++) {
        const struct segment *seg = s->space.segments[p.far[i].segment];
        if (seg->id == s->far_silent) continue;
        store_far_supersede(s, store_object_key(o), object_version(o));
        if (seg->state == SEGMENT_LEAVING || !s->events.far_gone) continue;
        s->events.far_gone(s->events.arg, store_object_key(o), object_version(o), seg->id,
                           p.far[i].offset);
    }
}

/* --- what a host found on its disk --- */

static tarn_status new_object(struct store *s, struct span key, uint64_t hash, uint64_t size,
                              int64_t crc, const uint32_t *crcs, size_t n_crcs, struct far far,
                              uint64_t offered, uint64_t *version_p) {
    unsigned budget = 64;
    unsigned domain = quota_domain(s, key);
    tarn_status st = room_limits(s, domain, 0, 1, &budget);
    if (st != TARN_OK) return st == TARN_EAGAIN ? TARN_EOOM : st;
    struct policy_event e = {.now_ms = s->now_ms, .hash = hash, .length = 1};
    /* What an earlier master gave out keeps its number: so of two hosts that offer the same key the
     * later put wins. */
    uint64_t version = offered < s->config.first_version ? offered : s->next_version++;
    struct object *o = record_new(s, key, NULL, version, &e);
    if (!o) return TARN_EOOM;
    struct places p = {.size = size, .domain = domain, .n_far = 1, .far = {far}};
    places_first(s, o, &p);
    if (crc >= 0) object_set_crc(o, (uint32_t)crc);
    object_set_crcs(s, o, crcs, n_crcs);
    put_key_taken(s, key, hash);
    object_appear(s, o, hash, &e, &(struct put_wishes){.pin = STORE_PIN_NONE}, false);
    s->stat.far_added++;
    *version_p = object_version(o);
    return TARN_OK;
}

static bool is_same_copy(const struct store *s, const struct object *o, uint64_t size, int64_t crc,
                         uint32_t segment, uint64_t offset) {
    if (!(o->bits & OBJECT_PLACES) || !(o->bits & OBJECT_CRC) || o->crc != crc) return false;
    struct places p;
    places_read(s, o, &p);
    int i = far_index(&p, segment);
    return i >= 0 && p.far[i].offset == offset && p.size == size;
}

tarn_status store_far_offer(struct store *s, struct span key, uint64_t size, int64_t crc,
                            const uint32_t *crcs, size_t n_crcs, uint64_t version, uint32_t segment,
                            uint64_t offset, uint64_t *version_p) {
    if (!far_segment(s, segment)) return TARN_ENOSEGMENT;
    if (key.len == 0 || key.len > STORE_KEY_MAX || size == 0 || size > STORE_SIZE_MAX ||
        crc > UINT32_MAX || !crcs_fit(size, n_crcs))
        return TARN_EINVAL;
    uint64_t hash = store_hash(key);
    struct object *o = index_find(&s->index, key, hash);
    if (o && book_stale(s, o)) {
        book_remove(s, o, STORE_NEWS_NONE);
        o = NULL;
    }
    if (o && is_same_copy(s, o, size, crc, segment, offset)) {
        *version_p = object_version(o); /* our answer to its first offer was lost */
        return TARN_OK;
    }
    /* Both are from before our time, and nobody has put the key since. */
    if (o && version > object_version(o) && version < s->config.first_version) {
        book_remove(s, o, STORE_NEWS_REMOVED);
        o = NULL;
    }
    if (!o && is_superseded(s, hash, version)) return TARN_EEXISTS;
    if (!o)
        return new_object(s, key, hash, size, crc, crcs, n_crcs, (struct far){offset, segment},
                          version, version_p);
    if (object_version(o) != version || store_object_size(s, o) != size ||
        (o->bits & OBJECT_INLINE))
        return TARN_EEXISTS;
    if (!(o->bits & OBJECT_CRC) || o->crc != crc)
        return TARN_EEXISTS; /* what proves that it is the same value? */
    tarn_status st = store_far_add(s, o, segment, offset);
    if (st == TARN_EEXISTS) {
        struct places p;
        places_read(s, o, &p);
        p.far[far_index(&p, segment)].offset = offset;
        places_write(s, o, &p);
        st = TARN_OK;
    }
    if (st == TARN_OK) *version_p = version;
    return st;
}
