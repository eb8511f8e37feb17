/* What listener.c and peer.c share. */
#ifndef TARN_RDMA_PASSIVE_H
#define TARN_RDMA_PASSIVE_H

#include "rdma/rdma.h"

/* An id that listens at one address of one device. */
struct rdma_listening {
    struct rdma_tag tag;
    TAILQ_ENTRY(rdma_listening) link;
    struct transport_listener *listener;
    struct rdma_device *device;
    struct rdma_cm_id *id;
    struct rdma_address address;
    uint16_t port;
    bool broken; /* librdmacm said so */
};

/* A client's queue pair.
 *
 *   request --accepted--> pending --ESTABLISHED--> up --its end--> gone
 *                            \--deadline--> gone
 *
 * Its end: disconnected, fenced; its memory, device or address goes. */
struct rdma_peer {
    struct rdma_tag tag;
    TAILQ_ENTRY(rdma_peer) link;    /* listener->peers */
    TAILQ_ENTRY(rdma_peer) waiting; /* listener->pending, while !up */
    struct transport_listener *listener;
    const struct rdma_listening *at; /* by which it came */
    struct transport_memory *memory;
    struct rdma_device *device;
    struct rdma_cm_id *id;
    struct ibv_qp *qp;
    uint64_t session;
    uint32_t master_epoch;
    enum rdma_right right;
    uint32_t program, counted; /* the client's; as program_drop wants it */
    bool up;
    uint64_t since_ms;
    uint32_t psn;      /* of the next packet it expects, when it was looked at; */
    uint64_t heard_ms; /* and when that had changed. 0: never looked at */
};

struct transport_listener {
    uint32_t magic;
    struct transport_domain *domain;
    LIST_ENTRY(transport_listener) link;
    struct transport_gate gate;
    unsigned max_peers;
    uint16_t port; /* of the first address; others try for the same. 0: none yet */
    TAILQ_HEAD(, rdma_listening) listening;
    TAILQ_HEAD(, rdma_peer) peers, pending;
    uint64_t kicks;   /* of the domain, that were acted on */
    uint64_t look_ms; /* try again then; 0: all is well */
    uint64_t print;   /* of what packed keys say of devices */
    uint64_t fenced;  /* peers that were cut off */
    uint64_t told_ms; /* when a device that refuses was last complained of */
    bool look, warned;
    struct transport_listener_stats stats;
    struct program_counts programs; /* of peers */
};

/* Acknowledges the event, a CONNECT_REQUEST. */
void rdma_peer_request(struct rdma_listening *at, struct rdma_cm_event *event);
void rdma_peer_event(struct rdma_peer *p, enum rdma_cm_event_type type);
/* Its queue pair is gone when this returns: nothing more arrives by it. */
void rdma_peer_destroy(struct rdma_peer *p);
/* Drops those that never came up. */
void rdma_peers_turn(struct transport_listener *l);
void rdma_peer_describe(const struct rdma_peer *p, struct buf *out);

#endif
