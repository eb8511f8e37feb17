/* The gate: may this peer touch these bytes? Asked by data threads for every part of every request,
 * and again before every receive into segment memory. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "host/host_internal.h"

#define FORGET_AT_ONCE  64u
#define FORGET_SLACK_MS 2000u /* what clocks of master and host may differ by more than we know */

struct fenced_session {
    struct htab_node node;
    uint64_t session;
    uint32_t master_epoch; /* that was current when it was fenced */
    /* when the last of its grants is over: expiry refuses them from then on */
    struct wheel_node wheel;
};

static bool fenced_eq(const struct htab_node *node, const void *key) {
    const struct fenced_session *f = CONTAINER_OF(node, const struct fenced_session, node);
    return f->session == *(const uint64_t *)key;
}

void host_gate_init(struct host_gate *g) {
    pthread_mutex_init(&g->authority_lock, NULL);
    pthread_rwlock_init(&g->fenced_lock, NULL);
    g->fenced_wheel = wheel_create(clock_mono_ms());
    host_puts_init(&g->puts);
}

static void fenced_free(struct host_gate *g, struct fenced_session *f) {
    wheel_remove(g->fenced_wheel, &f->wheel);
    htab_remove(&g->fenced, &f->node);
    free(f);
}

struct fenced_before {
    struct host_gate *gate;
    uint32_t epoch;
};

static void fenced_drop_older(void *arg, struct htab_node *node) {
    const struct fenced_before *before = arg;
    struct fenced_session *f = CONTAINER_OF(node, struct fenced_session, node);
    if (f->master_epoch < before->epoch) fenced_free(before->gate, f);
}

/* Drops what was fenced under an epoch before this one. */
static void forget_fenced(struct host_gate *g, uint32_t epoch) {
    struct fenced_before before = {g, epoch};
    pthread_rwlock_wrlock(&g->fenced_lock);
    htab_each(&g->fenced, fenced_drop_older, &before);
    __atomic_store_n(&g->n_fenced, g->fenced.count, __ATOMIC_RELEASE);
    pthread_rwlock_unlock(&g->fenced_lock);
}

void host_gate_deinit(struct host_gate *g) {
    host_puts_deinit(&g->puts);
    forget_fenced(g, UINT32_MAX);
    htab_free(&g->fenced);
    wheel_destroy(&g->fenced_wheel);
    pthread_rwlock_destroy(&g->fenced_lock);
    pthread_mutex_destroy(&g->authority_lock);
    while (g->authority != NULL) {
        struct host_authority *a = g->authority;
        g->authority = a->older;
        explicit_bzero(a->key, sizeof(a->key));
        free(a);
    }
}

const struct host_authority *host_gate_authority(const struct host_gate *g) {
    return __atomic_load_n(&g->authority, __ATOMIC_ACQUIRE);
}

uint32_t host_gate_master_epoch(const struct host_gate *g) {
    const struct host_authority *a = host_gate_authority(g);
    return a != NULL ? a->master_epoch : 0;
}

void host_gate_set_authority(struct host_gate *g, const uint8_t key[GRANT_KEY_SIZE],
                             uint32_t master_epoch) {
    pthread_mutex_lock(&g->authority_lock);
    struct host_authority *old = g->authority;
    bool same = old != NULL && old->master_epoch == master_epoch &&
                memcmp(old->key, key, GRANT_KEY_SIZE) == 0;
    if (!same) {
        struct host_authority *a = xcalloc(1, sizeof(*a));
        memcpy(a->key, key, GRANT_KEY_SIZE);
        a->master_epoch = master_epoch;
        a->older = old;
        __atomic_store_n(&g->authority, a, __ATOMIC_RELEASE);
        if (old != NULL) forget_fenced(g, old->master_epoch);
    }
    unsigned n = __atomic_load_n(&g->n_slots, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < n; i++) {
        struct host_slot *s = &g->slots[i];
        uint64_t name = __atomic_load_n(&s->name, __ATOMIC_ACQUIRE);
        if (s->pool != NULL && name != 0) pool_set_epochs(s->pool, master_epoch, (uint32_t)name);
    }
    pthread_mutex_unlock(&g->authority_lock);
}

/* --- segments --- */

struct host_slot *host_gate_find(const struct host_gate *g, uint32_t id,
                                 uint32_t *segment_epoch_p) {
    unsigned n = __atomic_load_n(&g->n_slots, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < n; i++) {
        uint64_t name = __atomic_load_n(&g->slots[i].name, __ATOMIC_ACQUIRE);
        if (name == 0 || name >> 32 != id) continue;
        *segment_epoch_p = (uint32_t)name;
        return (struct host_slot *)(uintptr_t)&g->slots[i];
    }
    *segment_epoch_p = 0;
    return NULL;
}

/* The header first: a peer that was given a grant maps what it finds there. */
void host_gate_publish(struct host_gate *g, struct host_slot *s, uint32_t id,
                       uint32_t segment_epoch) {
    pthread_mutex_lock(&g->authority_lock);
    if (s->pool != NULL) pool_serve(s->pool, id, segment_epoch, host_gate_master_epoch(g));
    __atomic_store_n(&s->name, host_name(id, segment_epoch), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&g->authority_lock);
}

void host_gate_hide(struct host_gate *g, struct host_slot *s) {
    pthread_mutex_lock(&g->authority_lock);
    if (s->pool != NULL) pool_retire(s->pool);
    __atomic_store_n(&s->name, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&g->authority_lock);
}

/* Under the lock. Some at a time: as many as come, and more. */
static void forget_some(struct host_gate *g) {
    unsigned budget = FORGET_AT_ONCE;
    bool more;
    for (struct wheel_node *w;
         budget > 0 && (w = wheel_pop(g->fenced_wheel, clock_mono_ms(), &budget, &more)) != NULL;)
        fenced_free(g, CONTAINER_OF(w, struct fenced_session, wheel));
}

bool host_gate_fence(struct host_gate *g, uint64_t session, uint64_t keep_ms) {
    const struct host_authority *a = host_gate_authority(g);
    uint64_t hash = hash_u64(session), now_ms = clock_mono_ms();
    pthread_rwlock_wrlock(&g->fenced_lock);
    forget_some(g);
    struct htab_node *node = htab_find(&g->fenced, hash, fenced_eq, &session);
    bool room = node != NULL || keep_ms == HOST_FENCE_FOR_EVER || g->fenced.count < HOST_FENCED_MAX;
    if (room) {
        struct fenced_session *f =
            node != NULL ? CONTAINER_OF(node, struct fenced_session, node) : NULL;
        if (f == NULL) {
            f = xcalloc(1, sizeof(*f));
            f->session = session;
            htab_insert(&g->fenced, &f->node, hash);
        }
        f->master_epoch = a != NULL ? a->master_epoch : 0;
        wheel_remove(g->fenced_wheel, &f->wheel);
        if (keep_ms != HOST_FENCE_FOR_EVER)
            wheel_set(g->fenced_wheel, &f->wheel, now_ms + keep_ms + FORGET_SLACK_MS);
    }
    __atomic_store_n(&g->n_fenced, g->fenced.count, __ATOMIC_RELEASE);
    pthread_rwlock_unlock(&g->fenced_lock);
    return room;
}

static bool is_fenced(struct host_gate *g, uint64_t session) {
    if (__atomic_load_n(&g->n_fenced, __ATOMIC_ACQUIRE) == 0) return false;
    pthread_rwlock_rdlock(&g->fenced_lock);
    bool found = htab_find(&g->fenced, hash_u64(session), fenced_eq, &session) != NULL;
    pthread_rwlock_unlock(&g->fenced_lock);
    return found;
}

uint64_t host_gate_now_ms(const struct host_gate *g) {
    return clock_mono_ms() + (uint64_t)__atomic_load_n(&g->clock_offset_ms, __ATOMIC_RELAXED);
}

enum grant_verdict host_gate_check(void *arg, const uint8_t grant[GRANT_SIZE],
                                   const struct grant_extent *extent, enum grant_op want,
                                   uint64_t sub_offset, uint64_t sub_length, struct grant *g_p,
                                   void **addr_p) {
    struct host_gate *g = arg;
    const struct host_authority *a = host_gate_authority(g);
    if (a == NULL) return GRANT_BAD_EPOCH;
    uint32_t epoch;
    const struct host_slot *s = host_gate_find(g, extent->segment, &epoch);
    enum grant_verdict v = grant_check(a->key, grant, extent, want, sub_offset, sub_length,
                                       a->master_epoch, epoch, host_gate_now_ms(g), g_p);
    if (v == GRANT_BAD_MAC &&
        (grant_claimed_epoch(grant) != a->master_epoch || extent->segment_epoch != epoch)) {
        return GRANT_BAD_EPOCH; /* the key went with its epoch; tell the honest to look again */
    }
    if (v == GRANT_OK && s == NULL) v = GRANT_BAD_EPOCH; /* a master signed epoch 0 */
    if ((v == GRANT_OK || v == GRANT_EXPIRED) && is_fenced(g, g_p->session)) return GRANT_FENCED;
    if (v != GRANT_OK) return v;
    /* The master only signs what is inside. But it is our memory. */
    if (extent->offset > s->size || extent->length > s->size - extent->offset)
        return GRANT_BAD_RANGE;
    if (s->base == NULL && want != GRANT_READ) return GRANT_BAD_OP;
    if (s->device && (want == GRANT_READ || want == GRANT_WRITE)) return GRANT_BAD_OP;
    *addr_p = s->base != NULL ? s->base + extent->offset + sub_offset : NULL;
    return GRANT_OK;
}

enum grant_verdict host_gate_recheck(void *arg, const struct grant *grant,
                                     const struct grant_extent *extent) {
    struct host_gate *g = arg;
    const struct host_authority *a = host_gate_authority(g);
    uint32_t epoch;
    const struct host_slot *s = host_gate_find(g, extent->segment, &epoch);
    if (a == NULL || s == NULL || grant->master_epoch != a->master_epoch ||
        extent->segment_epoch != epoch) {
        return GRANT_BAD_EPOCH;
    }
    if (is_fenced(g, grant->session)) return GRANT_FENCED;
    return host_gate_now_ms(g) >= grant->expiry_ms ? GRANT_EXPIRED : GRANT_OK;
}

/* The segment that is a reader; NULL: it is none, or served under another name by now. */
static const struct host_slot *find_reader(const struct host_gate *g,
                                           const struct grant_extent *extent) {
    uint32_t epoch;
    const struct host_slot *s = host_gate_find(g, extent->segment, &epoch);
    return s != NULL && s->base == NULL && extent->segment_epoch == epoch ? s : NULL;
}

uint64_t host_gate_mark(void *arg, const struct grant_extent *extent, uint64_t offset,
                        uint64_t length) {
    const struct host_slot *s = find_reader(arg, extent);
    if (s == NULL || s->reader.mark == NULL) return 0;
    return s->reader.mark(s->reader.arg, extent->offset + offset, length);
}

tarn_status host_gate_stage(void *arg, const struct grant_extent *extent, uint64_t offset,
                            uint64_t length, void *buffer,
                            void (*done)(void *done_arg, tarn_status status), void *done_arg) {
    const struct host_slot *s = find_reader(arg, extent);
    if (s == NULL) return TARN_ENOTFOUND;
    TARN_ASSERT(offset <= extent->length && length <= extent->length - offset);
    return s->reader.read(s->reader.arg, extent->offset + offset, length, buffer, done, done_arg);
}

bool host_gate_reads(const struct host_gate *g, const struct grant_extent *extent) {
    const struct host_slot *s = find_reader(g, extent);
    return s != NULL && extent->offset <= s->size && extent->length <= s->size - extent->offset;
}
