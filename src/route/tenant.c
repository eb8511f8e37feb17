#include "route/tenant.h"
#include <math.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/queue.h"

#define OTHERS_US (60 * 1000000ull) /* who asked within this time is there */

void tenants_init(struct tenants *t, uint32_t most) {
    TAILQ_INIT(&t->by_use);
    t->most = most;
}

static void tenant_forget(struct tenants *t, struct tenant *who) {
    TAILQ_REMOVE(&t->by_use, who, by_use);
    htab_remove(&t->table, &who->node);
    free(who);
}

void tenants_deinit(struct tenants *t) {
    struct tenant *who;
    while ((who = TAILQ_FIRST(&t->by_use)) != NULL) tenant_forget(t, who);
    htab_free(&t->table);
}

static bool tenant_same(const struct htab_node *node, const void *key) {
    const struct tenant *who = CONTAINER_OF(node, const struct tenant, node);
    return span_eq(span_of(who->name, who->name_len), *(const struct span *)key);
}

/* Looks at a few of the longest unused: those with work outstanding are soon used again. */
static bool tenant_make_room(struct tenants *t) {
    struct tenant *who = TAILQ_LAST(&t->by_use, tenant_list);
    for (int i = 0; i < 16 && who != NULL; i++) {
        if (who->waiting == 0 && !who->kept) return tenant_forget(t, who), true;
        who = TAILQ_PREV(who, tenant_list, by_use);
    }
    return false;
}

struct tenant *tenant_get(struct tenants *t, struct span name, uint64_t now_us) {
    uint64_t hash = hash_bytes(name.data, name.len);
    struct htab_node *node = htab_find(&t->table, hash, tenant_same, &name);
    struct tenant *who = node == NULL ? NULL : CONTAINER_OF(node, struct tenant, node);
    if (who == NULL) {
        if (t->table.count >= t->most && !tenant_make_room(t)) return NULL;
        who = xcalloc(1, sizeof(*who) + name.len);
        if (name.len > 0) memcpy(who->name, name.data, name.len);
        who->name_len = name.len;
        who->weight = 1;
        htab_insert(&t->table, &who->node, hash);
    } else {
        TAILQ_REMOVE(&t->by_use, who, by_use);
    }
    TAILQ_INSERT_HEAD(&t->by_use, who, by_use);
    who->used_us = now_us;
    return who;
}

void tenant_set_weight(struct tenants *t, struct tenant *who, double weight) {
    if (who->waiting > 0) t->weights += weight - who->weight;
    who->weight = weight;
    who->kept = true;
}

/* Has anybody else asked lately? */
static bool others_there(const struct tenants *t, const struct tenant *who, uint64_t now_us) {
    const struct tenant *other = TAILQ_FIRST(&t->by_use);
    if (other == who) other = TAILQ_NEXT(other, by_use);
    return other != NULL && other->used_us > 0 && now_us - other->used_us < OTHERS_US;
}

bool tenant_over_share(const struct tenants *t, const struct tenant *who, uint32_t workers,
                       double shortest_us, double wait_us, uint64_t now_us, double *retry_us_p) {
    if (wait_us <= 0 || shortest_us <= wait_us || !others_there(t, who, now_us)) return false;
    double weights = fmax(t->weights, who->weight);
    double ahead = fmax(who->finish - t->virtual_us, 0) - wait_us * workers / weights;
    if (ahead <= 0) return false;
    *retry_us_p = fmax(ahead * weights / workers, 1000);
    return true;
}

void tenant_admit(struct tenants *t, struct tenant *who, double work_us) {
    if (who->waiting++ == 0) t->weights += who->weight;
    who->waiting_us += work_us;
    who->finish = fmax(who->finish, t->virtual_us) + work_us / who->weight;
    who->admitted++;
}

void tenant_done(struct tenants *t, struct tenant *who, double work_us) {
    TARN_ASSERT(who->waiting > 0);
    t->virtual_us += work_us / t->weights;
    who->waiting_us -= work_us;
    if (--who->waiting > 0) return;
    who->waiting_us = 0;
    t->weights -= who->weight;
    if (t->weights < 1e-9) t->weights = 0;
}
