/* lfu: least frequently used, with a logarithmic 8-bit counter that decays with time (Redis' scheme
 * and settings). One list per counter value, each in order of use, so the victim is found in
 * constant time. An object's counter decays when it is used; and every eviction also looks at the
 * stalest object of one of the higher lists in turn, so that what was popular long ago sinks. */
#include <string.h>
#include "base/assert.h"
#include "store/policy.h"

#define LEVELS   256u
#define INIT_VAL 5u /* a new object outlives those that were used once long ago */

struct lfu {
    object_ref head[LEVELS];
    uint64_t map[LEVELS / 64]; /* lists that may hold something */
    unsigned look;             /* the next higher list to look at */
};

static void lfu_open(struct policy *p) {
    struct lfu *l = p->state;
    for (unsigned i = 0; i < LEVELS; i++) l->head[i] = list_new(p->records);
}

static void lfu_close(struct policy *p) {
    struct lfu *l = p->state;
    for (unsigned i = 0; i < LEVELS; i++) list_free(p->records, l->head[i]);
}

static void link_at(struct policy *p, struct object *o, unsigned level, bool back) {
    struct lfu *l = p->state;
    object_set_freq(o, level);
    l->map[level / 64] |= UINT64_C(1) << (level % 64);
    if (back)
        list_push_back(p->records, l->head[level], o);
    else
        list_push_front(p->records, l->head[level], o);
}

static uint32_t policy_random(struct policy *p) {
    p->seed ^= p->seed << 13;
    p->seed ^= p->seed >> 17;
    return p->seed ^= p->seed << 5;
}

static unsigned freq_decayed(const struct policy *p, const struct object *o, uint64_t now_ms) {
    unsigned freq = object_freq(o), minutes = p->config->lfu_decay_minutes;
    if (!minutes) return freq;
    uint64_t idle_s = (now_ms / 1000 - object_atime(o)) & 0xffffff, periods = idle_s / 60 / minutes;
    return periods > freq ? 0 : freq - (unsigned)periods;
}

static unsigned freq_incremented(struct policy *p, unsigned freq) {
    if (freq == LEVELS - 1) return freq;
    uint64_t base = freq > INIT_VAL ? freq - INIT_VAL : 0;
    return policy_random(p) % (base * p->config->lfu_log_factor + 1) == 0 ? freq + 1 : freq;
}

static void lfu_give_back(struct policy *p, struct object *o) {
    link_at(p, o, object_freq(o), true);
    p->count++;
}

static void lfu_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    o->request = e->request;
    if (e->next) {
        lfu_give_back(p, o);
        return;
    }
    link_at(p, o, INIT_VAL, false);
    p->count++;
}

static void lfu_access(struct policy *p, struct object *o, const struct policy_event *e) {
    unsigned freq = e->again ? object_freq(o) : freq_incremented(p, freq_decayed(p, o, e->now_ms));
    o->request = e->request;
    list_unlink(p->records, o);
    link_at(p, o, freq, false);
}

static void lfu_unlink(struct policy *p, struct object *o) {
    if (!list_linked(o)) return;
    list_unlink(p->records, o);
    p->count--;
}

/* Lets the stalest object of the next higher list sink to where its decayed counter puts it. */
static void sink_one(struct policy *p, uint64_t now_ms) {
    struct lfu *l = p->state;
    l->look = (l->look + 1) % LEVELS;
    struct object *o = list_back(p->records, l->head[l->look]);
    if (!o) return;
    unsigned freq = freq_decayed(p, o, now_ms);
    if (freq == l->look) return;
    list_unlink(p->records, o);
    link_at(p, o, freq, false);
}

static struct object *lfu_pop(struct policy *p, uint64_t now_ms) {
    struct lfu *l = p->state;
    sink_one(p, now_ms);
    for (unsigned w = 0; w < LEVELS / 64; w++) {
        while (l->map[w]) {
            unsigned level = w * 64 + (unsigned)__builtin_ctzll(l->map[w]);
            struct object *o = list_back(p->records, l->head[level]);
            if (o) {
                lfu_unlink(p, o);
                return o;
            }
            l->map[w] &= l->map[w] - 1;
        }
    }
    return NULL;
}

static void lfu_evicted(struct policy *p, struct object *o, uint64_t hash) {
    lfu_unlink(p, o);
}

static unsigned lfu_freq(const struct policy *p, const struct object *o) {
    return object_freq(o);
}

static uint64_t lfu_memory(const struct policy *p) {
    return sizeof(struct lfu);
}

const struct policy_ops policy_lfu = {
    .name = "lfu",
    .state_size = sizeof(struct lfu),
    .open = lfu_open,
    .close = lfu_close,
    .insert = lfu_insert,
    .access = lfu_access,
    .unlink = lfu_unlink,
    .pop = lfu_pop,
    .give_back = lfu_give_back,
    .evicted = lfu_evicted,
    .freq = lfu_freq,
    .memory = lfu_memory,
};
