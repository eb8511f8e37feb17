/* s3fifo (Yang et al., SOSP 2023): a small queue that new objects pass through, a main queue for
 * those that were used again meanwhile, and a ghost list of hashes that lately fell out of the
 * small one: they enter the main queue directly. */
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/buf.h"
#include "store/policy.h"

#define FREQ_MAX    3u
#define SMALL_SHARE 10u /* per cent of the objects */

struct s3 {
    object_ref small, main;
    uint64_t n_small, n_main;
    /* Ghosts: a ring of 32-bit fingerprints in order of eviction, as many as the main queue has
     * objects, and a set of them to look in (a wrong answer only costs a place in the queue). */
    uint32_t *ring, *set;
    uint32_t cap, next; /* ring entries, power of two */
    uint32_t *old_set;  /* of before the last growth, NULL: none */
    uint32_t old_cap, old_left;
};

#define GHOST_MIN 1024u
#define GHOST_MAX (1u << 24)

static void s3_open(struct policy *p) {
    struct s3 *s = p->state;
    s->small = list_new(p->records);
    s->main = list_new(p->records);
    s->cap = GHOST_MIN;
    s->ring = xcalloc(s->cap, sizeof(uint32_t));
    s->set = xcalloc(2 * (size_t)s->cap, sizeof(uint32_t));
}

static void s3_close(struct policy *p) {
    struct s3 *s = p->state;
    list_free(p->records, s->small);
    list_free(p->records, s->main);
    free(s->ring);
    free(s->set);
    free(s->old_set);
}

static uint32_t ghost_print(uint64_t hash) {
    return (uint32_t)(hash >> 32) | 1;
}

/* The set is a table of lines of fingerprints, the newest first. When a line is full its last is
 * forgotten early, one in a hundred. A prompt without one of its ghosts is half a prompt. */
#define GHOST_WAYS 8u

static uint32_t *ghost_line(uint32_t *set, uint32_t cap, uint32_t print) {
    return &set[((uint64_t)print * (2 * cap / GHOST_WAYS) >> 32) * GHOST_WAYS];
}

static bool line_drop(uint32_t *line, uint32_t print) {
    unsigned at = 0;
    while (at < GHOST_WAYS && line[at] != print) at++;
    if (at == GHOST_WAYS) return false;
    memmove(&line[at], &line[at + 1], (GHOST_WAYS - 1 - at) * sizeof(*line));
    line[GHOST_WAYS - 1] = 0;
    return true;
}

static void ghost_add(struct s3 *s, uint64_t hash) {
    uint32_t print = ghost_print(hash), old = s->ring[s->next];
    if (old) line_drop(ghost_line(s->set, s->cap, old), old);
    s->ring[s->next] = print;
    s->next = (s->next + 1) & (s->cap - 1);
    uint32_t *line = ghost_line(s->set, s->cap, print);
    memmove(&line[1], line, (GHOST_WAYS - 1) * sizeof(*line));
    line[0] = print;
    if (s->old_set && --s->old_left == 0) {
        free(s->old_set);
        s->old_set = NULL;
    }
}

static bool ghost_take(struct s3 *s, uint64_t hash) {
    uint32_t print = ghost_print(hash);
    return line_drop(ghost_line(s->set, s->cap, print), print) ||
           (s->old_set && line_drop(ghost_line(s->old_set, s->old_cap, print), print));
}

/* Doubles the room for ghosts when the main queue has outgrown it: new ghosts go to new tables, the
 * old set answers until as many evictions have passed as it could hold. Nothing is moved. */
static void ghost_fit(struct s3 *s) {
    if (s->n_main <= s->cap || s->cap >= GHOST_MAX || s->old_set) return;
    uint32_t cap = s->cap * 2;
    uint32_t *ring = calloc(cap, sizeof(uint32_t)),
             *set = calloc(2 * (size_t)cap, sizeof(uint32_t));
    if (!ring || !set) {
        free(ring);
        free(set);
        return;
    }
    s->old_set = s->set;
    s->old_cap = s->old_left = s->cap;
    free(s->ring);
    s->ring = ring;
    s->set = set;
    s->cap = cap;
    s->next = 0;
}

static void s3_enter(struct policy *p, struct object *o, bool main, bool back) {
    struct s3 *s = p->state;
    if (main)
        o->bits |= OBJECT_Q1;
    else
        o->bits &= ~(uint32_t)OBJECT_Q1;
    object_ref head = main ? s->main : s->small;
    if (back)
        list_push_back(p->records, head, o);
    else
        list_push_front(p->records, head, o);
    if (main)
        s->n_main++;
    else
        s->n_small++;
    p->count++;
}

static void s3_leave(struct policy *p, struct object *o) {
    struct s3 *s = p->state;
    if (!list_linked(o)) return;
    list_unlink(p->records, o);
    if (o->bits & OBJECT_Q1)
        s->n_main--;
    else
        s->n_small--;
    p->count--;
}

static void s3_give_back(struct policy *p, struct object *o) {
    s3_enter(p, o, (o->bits & OBJECT_Q1) != 0, true);
}

static void s3_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    o->request = e->request;
    if (e->next) {
        s3_give_back(p, o);
        return;
    }
    object_set_freq(o, 0);
    s3_enter(p, o, ghost_take(p->state, e->hash), false);
}

static void s3_access(struct policy *p, struct object *o, const struct policy_event *e) {
    o->request = e->request;
    if (!e->again && object_freq(o) < FREQ_MAX) object_set_freq(o, object_freq(o) + 1);
}

/* Every turn moves an object on whose counter an access raised; so it is paid for, as in sieve. */
static struct object *s3_pop(struct policy *p, uint64_t now_ms) {
    struct s3 *s = p->state;
    while (p->count > 0) {
        bool from_small =
            s->n_small > 0 && (s->n_main == 0 || s->n_small * 100 >= p->count * SMALL_SHARE);
        struct object *o = list_back(p->records, from_small ? s->small : s->main);
        TARN_ASSERT(o != NULL);
        s3_leave(p, o);
        if (object_freq(o) == 0) return o;
        object_set_freq(o, from_small ? 0 : object_freq(o) - 1);
        s3_enter(p, o, true, false);
    }
    return NULL;
}

static void s3_evicted(struct policy *p, struct object *o, uint64_t hash) {
    struct s3 *s = p->state;
    s3_leave(p, o);
    if (o->bits & OBJECT_Q1) return;
    ghost_fit(s);
    ghost_add(s, hash);
}

static unsigned s3_freq(const struct policy *p, const struct object *o) {
    return object_freq(o);
}

static uint64_t s3_memory(const struct policy *p) {
    const struct s3 *s = p->state;
    return sizeof(*s) +
           (3 * (uint64_t)s->cap + (s->old_set ? 2 * (uint64_t)s->old_cap : 0)) * sizeof(uint32_t);
}

const struct policy_ops policy_s3fifo = {
    .name = "s3fifo",
    .state_size = sizeof(struct s3),
    .open = s3_open,
    .close = s3_close,
    .insert = s3_insert,
    .access = s3_access,
    .unlink = s3_leave,
    .pop = s3_pop,
    .give_back = s3_give_back,
    .evicted = s3_evicted,
    .freq = s3_freq,
    .memory = s3_memory,
};
