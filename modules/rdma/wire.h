/* What travels between an RDMA host and its clients, except the bytes of objects: the private data
 * of rdma_cm, and packed keys. docs/DATA-PROTOCOL.md is the same in words. Little-endian; nothing
 * here is trusted by who receives it.
 *
 *   client                                            host
 *   REQ   rdma_request: segment,                      gate.check; a queue pair that may do that,
 *         right, attach grant            ----->       in the segment's own protection domain,
 *                                                     and nothing else
 *                                        <-----       REP  rdma_accept: epochs, version of the keys
 *                                                     or REJ  rdma_reject: why
 *   READ and WRITE, one-sided, until either side disconnects
 *
 * A connection belongs to one segment, one session and one right. Cutting off a session, or a
 * segment, is destroying its queue pairs; what is registered under new keys is not reached by old
 * ones. */
#ifndef TARN_RDMA_WIRE_H
#define TARN_RDMA_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include "base/program.h"
#include "transport/grant.h"

#define RDMA_WIRE_MAGIC   0x5254u /* "TR" */
#define RDMA_WIRE_VERSION 1u

enum rdma_right { RDMA_READ = 1, RDMA_WRITE = 2 /* includes reading */ };

/* Numbers of queue pairs have 24 bits, so hosts of 0.1 find none that is to be replaced. */
#define RDMA_PROGRAM 0xff000000u

/* 56 bytes: all that a REQ has room for under RDMA_PS_TCP. */
struct rdma_request {
    uint16_t magic;
    uint8_t version; /* the highest the client knows */
    uint8_t right;
    uint32_t segment, segment_epoch;
    /* Number of the host's queue pair that this connection takes the place of, 0: none. If it
     * belongs to the same session, segment and right the host destroys it before it accepts:
     * nothing more will arrive by it. */
    uint32_t replaces;         /* or RDMA_PROGRAM, and the client's program.h */
    uint8_t grant[GRANT_SIZE]; /* GRANT_ATTACH_READ or _WRITE of the whole segment */
};
static_assert(sizeof(struct rdma_request) == 56, "REQ private data");

struct rdma_accept {
    uint16_t magic;
    uint8_t version; /* that both know */
    uint8_t zero;
    uint32_t segment_epoch;
    uint32_t master_epoch, instance; /* of the segment header, at this moment */
    uint64_t generation;             /* of the packed keys that are good for this connection */
    uint64_t slice_max;              /* bytes per READ or WRITE that the host's device takes */
    /* Hosts of 0.1 end here. */
    uint32_t program; /* program.h */
    uint32_t zero_too;
};
static_assert(sizeof(struct rdma_accept) == 40, "REP private data");
#define RDMA_ACCEPT_SHORT offsetof(struct rdma_accept, program)

enum rdma_refusal { /* 0..15: enum grant_verdict */
                    RDMA_REFUSED_VERSION = 16,
                    RDMA_REFUSED_SEGMENT = 17,  /* no such segment here, or of another epoch */
                    RDMA_REFUSED_NOT_YET = 18,  /* its regions are being registered */
                    RDMA_REFUSED_TOO_MANY = 19, /* connections */
                    RDMA_REFUSED_REQUEST = 20,  /* it makes no sense */
                    RDMA_REFUSED_DEVICE = 21,   /* no resources */
};

struct rdma_reject {
    uint16_t magic;
    uint8_t version_min, version_max; /* that the host knows */
    uint32_t refusal;
};
static_assert(sizeof(struct rdma_reject) == 8, "REJ private data");

/* --- packed keys: one for readers, one for writers ---
 *
 *   rdma_key_header | n_devices x { rdma_key_device | uint32_t rkey[n_chunks] }
 *
 * Chunk i is [i * chunk_size, (i + 1) * chunk_size) of the segment, the last one shorter. The
 * header page in front of the segment has a key of its own, always read-only. */
#define RDMA_KEY_MAGIC   0x4b445254u /* "TRDK" */
#define RDMA_DEVICES_MAX 8u
#define RDMA_CHUNK_SIZE  (UINT64_C(1) << 30) /* doubled until RDMA_CHUNKS_MAX are enough */
#define RDMA_CHUNKS_MAX  1024u

struct rdma_key_header {
    uint32_t magic;
    uint16_t version; /* RDMA_WIRE_VERSION */
    uint16_t right;
    uint32_t segment, segment_epoch;
    uint64_t size, chunk_size;
    uint64_t address;        /* of offset 0, as READ and WRITE name it */
    uint64_t header_address; /* of struct segment_header */
    uint64_t generation;     /* another one each time the segment is registered; never 0 */
    uint32_t n_chunks;
    uint32_t n_devices;
};
static_assert(sizeof(struct rdma_key_header) == 64, "packed key");

struct rdma_key_device {
    char name[32];       /* ends with a zero */
    uint8_t address[16]; /* to connect to: IPv6, or IPv4 mapped into it */
    uint16_t port;
    int16_t numa_node; /* -1: unknown */
    uint32_t speed_mbps;
    uint32_t mtu;
    uint32_t header_rkey;
};
static_assert(sizeof(struct rdma_key_device) == 64, "packed key, device");

#endif
