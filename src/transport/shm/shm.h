/* The shm transport: what its files share, and the messages of its unix socket (SOCK_SEQPACKET, one
 * struct per packet, little-endian). docs/DATA-PROTOCOL.md is the same in words.
 *
 *   client                                   host
 *   ATTACH(extent, attach grant)  --------->  checks grant, pid of the sender, opens a pidfd
 *                                 <---------  REPLY(status, sizes) + descriptor
 *   mmap, close(descriptor)
 *   DETACH(attachment) ------------------->  (after munmap: a promise)
 *
 * One connection may attach many segments, and again with another session. */
#ifndef TARN_TRANSPORT_SHM_SHM_H
#define TARN_TRANSPORT_SHM_SHM_H

#include <sys/socket.h>
#include <sys/un.h>

#include "transport/transport.h"

#define SHM_MAGIC   0x53524e54u /* "TNRS" */
#define SHM_VERSION 2u

enum shm_type { SHM_ATTACH = 1, SHM_DETACH = 2, SHM_REPLY = 3 };
enum shm_wire_status {
    SHM_OK = 0 /* 1..15: enum grant_verdict */,
    SHM_BAD_VERSION = 17,
    SHM_TOO_MANY = 18,
    SHM_NO_WATCH = 19
};

struct shm_request {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint64_t request_id;
    struct grant_extent extent; /* ATTACH */
    uint64_t attachment;        /* DETACH: as in the reply */
    uint32_t writable;          /* ATTACH */
    uint32_t program;           /* ATTACH: program.h */
    uint8_t grant[GRANT_SIZE];
};
_Static_assert(sizeof(struct shm_request) == 96, "shm request");

struct shm_reply {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint64_t request_id;
    uint32_t status;
    uint32_t header_size;
    uint64_t size;       /* advertised bytes behind the header */
    uint64_t attachment; /* what DETACH must say */
    /* Those who told their program are told the host's; others get a reply without what follows. */
    uint32_t program;
    uint32_t zero;
};
_Static_assert(sizeof(struct shm_reply) == 48, "shm reply");
#define SHM_REPLY_SHORT offsetof(struct shm_reply, program)

struct shm_tag { /* first member of what an epoll event's pointer points to */
    enum { SHM_TAG_LISTEN, SHM_TAG_TIMER, SHM_TAG_PEER, SHM_TAG_PEER_PID } kind;
};

struct transport_memory {
    struct transport_domain *domain;
    LIST_ENTRY(transport_memory) link;
    struct transport_memory_config config;
};

struct transport_domain {
    uint32_t magic;
    int epoll_fd;
    LIST_HEAD(, transport_memory) memories;
    LIST_HEAD(, transport_listener) listeners;
    TAILQ_HEAD(, transport_endpoint) runnable; /* have operations */
    unsigned n_endpoints;
    size_t completed;
};

/* Fills a unix address from shm:///path. */
bool shm_address(const char *uri, struct sockaddr_un *addr_p, const char **path_p);

/* host.c */
tarn_status shm_listen(struct transport_domain *d, const struct transport_listen_config *config,
                       struct transport_listener **listener_p);
void shm_listener_stats(const struct transport_listener *l,
                        struct transport_listener_stats *stats_p);
void shm_listener_programs(const struct transport_listener *l, struct program_counts *sum);
tarn_status shm_listener_fence(struct transport_listener *l, const struct transport_fence *fence);
bool shm_listener_lent(const struct transport_listener *l, const struct transport_memory *m,
                       uint32_t below_epoch);
/* Nobody needs to be waited for on account of this memory. */
void shm_forget_memory(const struct transport_memory *m);
void shm_listener_close(struct transport_listener **listener_p);
void shm_serve(struct transport_domain *d); /* accepts, answers, notices deaths */

/* watch.c: a writable mapping that came through a socket. */
struct shm_watch {
    LIST_ENTRY(shm_watch) link;
    int fd;
    void *map;
    uint64_t map_size;
    unsigned forks;
    bool watched, gone; /* gone: private memory has taken its place */
};
/* From now on the mapping is let go of when the other end of fd hangs up, in a thread that these
 * two start and end; fd and mapping stay until shm_watch_remove. A machine without descriptors or
 * threads goes without. From any thread. */
void shm_watch_add(struct shm_watch *x, int fd, void *map, uint64_t map_size);
void shm_watch_remove(struct shm_watch *x);

/* endpoint.c */
tarn_status shm_connect(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                        struct transport_endpoint **endpoint_p);
tarn_status shm_endpoint_status(const struct transport_endpoint *e);
void shm_endpoint_close(struct transport_endpoint **endpoint_p);
tarn_status shm_key_unpack(struct transport_endpoint *e, const struct transport_key_config *config,
                           struct transport_key **key_p);
void *shm_key_map(struct transport_key *k, uint64_t offset, uint64_t length);
tarn_status shm_key_check(struct transport_key *k);
void shm_key_close(struct transport_key **key_p);
tarn_status shm_submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                       size_t *accepted_p);
void shm_run(struct transport_domain *d, uint64_t budget);

#endif
