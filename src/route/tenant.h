/* Whose work waits, and whose turn it is: fair queueing by tenant, without a queue.
 *
 * Requests are sent on at once, so what can be fair is who is admitted. Each tenant has a virtual
 * time (start-time fair queueing, Goyal, Vin and Cheng 1996): it grows by the work of what was
 * admitted over the tenant's weight; that of the whole grows by the work that is done over the
 * weights of all who have work outstanding. How far a tenant is ahead says how much more than its
 * share it has taken or has waiting.
 *
 * While engines have little to do nobody is held back. When the shortest queue is longer than
 * tenant_wait_ms, and others are there, who is further ahead than his share of such queues is told
 * to come again. So one who floods fills the queues to that length at most, and a tenant within its
 * share finds no more than that before it. */
#ifndef TARN_ROUTE_TENANT_H
#define TARN_ROUTE_TENANT_H

#include <stdbool.h>
#include <sys/queue.h>
#include "base/buf.h"
#include "base/htab.h"

struct tenant {
    struct htab_node node;
    TAILQ_ENTRY(tenant) by_use;
    double weight;
    double finish;     /* virtual time, microseconds of work over weight */
    double waiting_us; /* work of its requests without a first token */
    uint32_t waiting;  /* how many those are */
    uint64_t used_us, admitted, refused;
    bool kept; /* its weight was set: it is not forgotten */
    size_t name_len;
    char name[];
};
TAILQ_HEAD(tenant_list, tenant);

struct tenants {
    struct htab table;
    struct tenant_list by_use; /* the latest first */
    uint32_t most;
    double virtual_us;
    double weights; /* of those with work outstanding */
};

void tenants_init(struct tenants *t, uint32_t most);
void tenants_deinit(struct tenants *t);
/* That of the name, made if need be; the one longest unused, that has nothing outstanding, goes for
 * it. NULL: all have. */
struct tenant *tenant_get(struct tenants *t, struct span name, uint64_t now_us);
void tenant_set_weight(struct tenants *t, struct tenant *who, double weight);
/* Must this one wait for others? workers: among which the work is spread; shortest_us: the shortest
 * of their queues. Sets in how many microseconds it need not any more. */
bool tenant_over_share(const struct tenants *t, const struct tenant *who, uint32_t workers,
                       double shortest_us, double wait_us, uint64_t now_us, double *retry_us_p);
void tenant_admit(struct tenants *t, struct tenant *who, double work_us);
/* Work that was admitted is done, or given up. */
void tenant_done(struct tenants *t, struct tenant *who, double work_us);

#endif
