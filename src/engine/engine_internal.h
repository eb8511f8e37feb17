/* What the files of this room share.
 *
 *   engine
 *    +- kind     a transport that is open: its table, its domain; by slot, and in order of cost
 *    |   +- target   a host, by URI
 *    |       +- stream   an endpoint, or none at the moment
 *    +- segment  what the owner told us, and per kind a route: target, keys, how it fared */
#ifndef TARN_ENGINE_ENGINE_INTERNAL_H
#define TARN_ENGINE_ENGINE_INTERNAL_H

#include "base/htab.h"
#include "base/iov.h"
#include "base/queue.h"
#include "base/segment_header.h"
#include "base/spin.h"
#include "engine/engine.h"
#include "transport/transport.h"

#define ENGINE_MAGIC       0x454e474eu /* "ENGN" */
#define ENGINE_STREAMS_MAX 64u

struct engine_stream {
    struct transport_endpoint *endpoint; /* NULL: closed */
    bool was_up;
    uint64_t outstanding; /* slices */
    uint64_t outstanding_bytes;
    uint64_t used_ms;
};

struct engine_target {
    LIST_ENTRY(engine_target) link;
    struct engine_kind *kind;
    char *uri;
    unsigned users; /* routes */
    unsigned next;  /* stream that takes the next slice */
    struct engine_stream streams[ENGINE_STREAMS_MAX];
};

struct engine_kind {
    unsigned slot;
    const struct transport_ops *ops; /* NULL: it is not open (yet) */
    struct transport_domain *domain;
    uint32_t flags; /* of ops */
    LIST_HEAD(, engine_target) targets;
    uint64_t outstanding; /* slices of all targets */
};

struct engine_route {
    struct engine_target *target; /* NULL: this kind does not lead there */
    /* read, write; only where the transport is not TRANSPORT_GRANTED */
    struct transport_key *keys[2];
    const char *lent[2]; /* where their memory starts, once pointers into it are out */
    void *packed[2];     /* what its host packed, for those who need it; NULL: nothing */
    size_t packed_len[2];
    uint64_t bad_until_ms; /* another kind is taken until then */
    bool doubtful;         /* ... because what is packed here led nowhere */
};
/* Then TARN_ESTALE may only mean that what we have of the host's keys is older than they are:
 * another way may know better. */
static inline bool engine_route_has_packed(const struct engine_route *r) {
    return r->packed_len[0] + r->packed_len[1] > 0;
}

struct engine_retired { /* a key whose memory may still be looked at: by views, or by operations
                           under way */
    SLIST_ENTRY(engine_retired) link;
    struct engine_target *target;
    struct transport_key *key;
    const char *lent;
    uint64_t size; /* of its memory */
};
SLIST_HEAD(engine_retired_list, engine_retired);

struct engine_seg {
    struct htab_node node;
    LIST_ENTRY(engine_seg) link;
    uint32_t id, epoch;
    uint64_t size;
    uint8_t content[SEGMENT_CONTENT_SIZE]; /* zeroes: not known */
    bool current;                          /* nobody has said otherwise */
    uint8_t attach[2][GRANT_SIZE];
    bool may_attach[2];
    struct engine_route routes[TRANSPORTS_MAX];
};

struct engine_memory {
    LIST_ENTRY(engine_memory) link;
    struct engine_buffer buffer; /* fd: our own copy, of a device's */
    struct transport_memory *at[TRANSPORTS_MAX];
};

struct engine {
    uint32_t magic;
    struct engine_config config;
    struct engine_kind kinds[TRANSPORTS_MAX];
    struct engine_kind *open[TRANSPORTS_MAX]; /* in order of preference */
    unsigned n_open;
    struct htab segments; /* by id */
    LIST_HEAD(, engine_seg) segs;
    LIST_HEAD(, engine_memory) memories; /* the caller's, registered */
    unsigned devices;                    /* of these, memory of a device */
    struct engine_retired_list retired;
    /* keys to be closed when the operations that are under way have ended */
    struct engine_retired_list doomed;
    struct engine_stats stats;
    struct spin spin; /* before it sleeps for a transport */
};

/* engine.c */
struct engine_seg *engine_find(const struct engine *e, uint32_t id);
const uint8_t *engine_content(const struct engine_seg *seg); /* NULL: not known */
/* What of the caller's is registered of [addr, addr + len); NULL: nothing. */
struct engine_memory *engine_memory_at(const struct engine *e, const void *addr, size_t len);

/* route.c */
void engine_route_set(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                      const struct engine_way *way);
void engine_route_clear(struct engine *e, struct engine_seg *seg, struct engine_kind *k);
void engine_route_close_key(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                            bool writable);
/* How many there are. */
unsigned engine_routes(const struct engine *e, const struct engine_seg *seg);
void engine_route_free_doomed(struct engine *e); /* nothing is under way */
struct engine_lent {
    struct engine_kind *kind;
    struct transport_key *key;
    const char *start;
    uint64_t size;
    bool retired; /* it is only kept for views */
};
/* The mapping that at lies in. false: it is in none. */
bool engine_route_at(const struct engine *e, const struct engine_seg *seg, const void *at,
                     struct engine_lent *lent_p);
/* A way did not work: others are preferred for a while; on TARN_ESTALE its mappings are dropped,
 * and the owner will be told by engine_segment_known. */
void engine_route_failed(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                         tarn_status status, uint64_t now_ms);
/* The best kind at this moment, NULL: none. device: only kinds that have registered that memory;
 * NULL: all. */
struct engine_kind *engine_route_choose(const struct engine *e, const struct engine_seg *seg,
                                        bool write, const struct engine_memory *device,
                                        uint64_t now_ms);
/* Attaches where that is needed; to_lend: for pointers into it. key_p: NULL when the transport does
 * without. May block until the deadline. */
tarn_status engine_route_key(struct engine *e, struct engine_seg *seg, struct engine_kind *k,
                             bool write, bool to_lend, uint64_t deadline_boot_ms,
                             struct transport_key **key_p);
/* A stream for bytes more, connecting where it must, within patience_ms (0: the engine's own
 * time). */
tarn_status engine_route_stream(struct engine *e, struct engine_target *t, bool spread,
                                uint64_t bytes, uint64_t patience_ms, uint64_t now_ms,
                                struct engine_stream **stream_p);
/* Closes streams that have failed, with no slice on them, or, with idle_ms, have not been used for
 * that long. */
void engine_route_reap(struct engine *e, uint64_t now_ms, uint64_t idle_ms);
/* Closes a stream and waits until the transport has let go of all its operations. */
void engine_stream_close(struct engine_kind *k, struct engine_stream *s);

#endif
