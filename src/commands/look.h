/* What a look-up tells of an object, and on which terms it protects it. */
#ifndef TARN_COMMANDS_LOOK_H
#define TARN_COMMANDS_LOOK_H

#include "front/cmd.h"
#include "wire/options.h"

struct look_terms {
    bool gets; /* it says where things are, not only whether */
    /* look-ups are accesses; not those that storage nodes make for their copies */
    bool counts;
    bool crcs, packed;
    bool no_grant;               /* as location_no_grant */
    uint64_t lease_ms;           /* 0: none; at most max-lease, which the reply says */
    uint64_t batch;              /* of leases; 0: its client wants none */
    uint64_t late_ms;            /* a lease holds for so much longer than is said */
    uint32_t session, return_ms; /* hints for the request, which begins later */
    struct wire_spread spread;
    struct store_batch request;
};

void look_terms_init(const struct client *c, struct look_terms *t, const struct wire_look *args);
/* For so many keys. */
void look_terms_begin(struct client *c, struct look_terms *t, size_t keys);
/* Until when an awaited key may come; 0: WAIT is not given, or within EXEC. */
uint64_t look_deadline_ms(const struct client *c, const struct wire_look *args);

/* The reply of GETREPLICAS: it counts as used, and has its lease. */
/* hash: store_hash of its key */
void look_answer(struct client *c, struct look_terms *t, struct object *o, uint64_t hash);
void look_refuse_lease(struct client *c);

/* KVGROUPS of PREFIXLEN and MGETREPLICAS (replicas). args are bound. */
void look_kv_groups(struct client *c, const struct wire_look *args, bool replicas);

#endif
