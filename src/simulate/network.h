/* Bytes on their way between hosts. Each host has three links: out and in on its network card, and
 * one between the memory of the host and that of its devices. A flow takes a link of each end;
 * those that share a link have equal shares of it, and a flow goes as fast as the slower of its two
 * allows. What it leaves of the other is not given to others. */
#ifndef TARN_SIMULATE_NETWORK_H
#define TARN_SIMULATE_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "simulate/events.h"

#define FLOW_NONE UINT32_MAX

struct network_config {
    uint32_t hosts, rack_hosts; /* hosts of a rack, 0: one rack */
    double nic, local;          /* bytes a second */
    double rack_s, far_s;       /* latency within a rack, and between two */
};
struct flow {
    double left, rate, since, latency;
    double expected;   /* when it is looked at next */
    uint32_t link[2];  /* the second may be FLOW_NONE */
    uint32_t place[2]; /* in the list of the link */
    uint32_t generation, next_free;
    uint32_t owner; /* of the caller */
    bool sent;      /* its last byte is under way, for so long as the latency is */
};
struct link {
    uint32_t *flows;
    size_t n, cap;
    double rate;
};
struct network {
    struct network_config config;
    struct events *events;
    struct flow *flows;
    size_t n, cap;
    uint32_t free;
    struct link *links;  /* three of each host */
    double moved, local; /* bytes, between hosts and within them */
};

void network_open(struct network *n, const struct network_config *config, struct events *events);
void network_close(struct network *n);
/* Starts now; an EVENT_FLOW with its number comes at its end. owner: the caller's. from == to: by
 * the host's own link. */
void network_start(struct network *n, double now, uint32_t from, uint32_t to, double bytes,
                   uint32_t owner);
/* Of an event. false: it is too early or of a flow that is no more; the flow is over else, and its
 * number free. */
bool network_ended(struct network *n, double now, uint32_t flow, uint32_t generation,
                   uint32_t *owner_p);
/* What a new flow would get now, in bytes a second. */
double network_share(const struct network *n, uint32_t from, uint32_t to);

#endif
