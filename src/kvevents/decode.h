/* What engines tell of their KV caches, from msgpack to plain structs.
 *
 *     batch     [ts, [event, ...], rank?]       or a map of ts, events, data_parallel_rank
 *     event     [tag, field, ...]               vLLM before 0.26, SGLang of the first half of 2026
 *               {"type": tag, field: value}     from then on
 *
 *     BlockStored       block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium,
 *                       lora_name, extra_keys, group_idx, kv_cache_spec_kind,
 *                       kv_cache_spec_sliding_window; maps also locality, and SGLang's cache_salt
 *     BlockRemoved      block_hashes, medium, group_idx; maps also locality
 *     AllBlocksCleared
 *
 * Trailing fields of arrays and any field of maps may be missing. In SGLang's arrays a map with
 * cache_salt is where vLLM has lora_name. Mooncake's events call the tag event_type (stored,
 * removed, cleared), and hashes seq_hashes and parent_hash. LMCache's go through vLLM, in its form.
 *
 * What is not understood is never half applied, and errs to the side of the index: a stored event
 * with a wrong value is left out and counted, which costs hits; a batch with a removed event that
 * cannot be read is refused as a whole, as the blocks would be thought to be there for ever. Fields
 * and events that nobody knew when this was written are passed over; events are counted.
 *
 * Bounded: time and memory by the length of the message (a batch is at most KVEVENTS_BLOWUP times
 * as long, and the decoder's own memory as much again), nothing by what the message claims. */
#ifndef TARN_KVEVENTS_DECODE_H
#define TARN_KVEVENTS_DECODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "route/index.h"
#include "tarn_status.h"

enum kvevents_kind { KVEVENTS_STORED, KVEVENTS_REMOVED, KVEVENTS_CLEARED };

/* The KV group's kind of layers. NONE: not told, which is full attention before there were groups.
 * OTHER: one whose reuse follows none of the three rules (chunked local, cross, encoder). */
enum kvevents_spec {
    KVEVENTS_SPEC_NONE,
    KVEVENTS_SPEC_FULL,
    KVEVENTS_SPEC_WINDOW,
    KVEVENTS_SPEC_STATE,
    KVEVENTS_SPEC_OTHER,
};

struct kvevents_event {
    enum kvevents_kind kind;
    enum route_tier tier;
    /* In no tier of the engine itself: a shared store, a machine elsewhere, a medium of a name that
     * is unknown here. */
    bool elsewhere;
    bool has_parent;
    enum kvevents_spec spec;
    uint32_t group;  /* KV group; 0 where there are none */
    uint32_t window; /* tokens of a sliding window; 0: not told */
    uint32_t block;  /* tokens; 0: not told */
    uint64_t parent; /* own hash of the block before the first; 0 without one */
    size_t n;        /* blocks; above 0 but in CLEARED, 0 there */
    /* The engine's own hashes: integers as they are (negative ones as their bits), bytes as the
     * integer that vLLM makes of them, the last eight, big-endian. */
    const uint64_t *own;
    /* The standard local hashes (route/hash.h) of the tokens and extra keys; NULL: the event has no
     * tokens (vLLM's offloading tells of blocks by their hashes alone). EXTRA of a block is the
     * array of its extra keys in msgpack, as the engine sent it (shortest forms), without the name
     * of the LoRA, which is part of the scope; nothing when nothing is left. vLLM has a request's
     * salt in it, in the first block of a prompt. */
    const uint64_t *local;
    struct span lora; /* name, or number in decimal where the engine has no names; "": none */
    struct span salt; /* SGLang's cache_salt; "": none */
};

struct kvevents_batch {
    int64_t rank; /* data-parallel; -1: not told */
    size_t n;     /* events */
    const struct kvevents_event *events;
    uint64_t blocks;          /* of all events */
    uint32_t unknown;         /* events of other kinds, passed over */
    uint32_t left_out;        /* stored events with something wrong */
    const char *why_left_out; /* the last of them; static; NULL: none */
    size_t bytes;             /* of memory, this struct included */
};

#define KVEVENTS_BLOWUP     16u
#define KVEVENTS_EVENTS_MAX 65536u   /* in a batch */
#define KVEVENTS_BLOCK_MAX  1048576u /* tokens of a block */

/* Keeps memory between batches. One thread at a time. */
struct kvevents_decoder;
/* seed: of the hashes. payload_max: longer messages are refused; above 0. */
struct kvevents_decoder *kvevents_decoder_create(uint64_t seed, size_t payload_max);
void kvevents_decoder_destroy(struct kvevents_decoder **d_p);

/* The batch borrows nothing from the payload. TARN_EPROTO: *why_p, static, says what is wrong with
 * it. */
tarn_status kvevents_decode(struct kvevents_decoder *d, struct span payload,
                            struct kvevents_batch **batch_p, const char **why_p);
void kvevents_batch_destroy(struct kvevents_batch **batch_p);

#endif
