/* One event as it stands in a message, before anybody asks whether it makes sense. */
#ifndef TARN_KVEVENTS_EVENT_H
#define TARN_KVEVENTS_EVENT_H

#include "kvevents/decode.h"
#include "kvevents/unpack.h"

#define EVENT_FIELDS(X)                                                                            \
    X(TAG, "the tag")                                                                              \
    X(HASHES, "block_hashes")                                                                      \
    X(PARENT, "parent_block_hash")                                                                 \
    X(TOKENS, "token_ids")                                                                         \
    X(BLOCK, "block_size")                                                                         \
    X(LORA_ID, "lora_id")                                                                          \
    X(MEDIUM, "medium")                                                                            \
    X(LORA, "lora_name")                                                                           \
    X(EXTRA, "extra_keys")                                                                         \
    X(GROUP, "group_idx")                                                                          \
    X(SPEC, "kv_cache_spec_kind")                                                                  \
    X(WINDOW, "kv_cache_spec_sliding_window")                                                      \
    X(LOCALITY, "locality")                                                                        \
    X(SALT, "cache_salt")

enum event_field {
#define EVENT_FIELD(name, text) EVENT_##name,
    EVENT_FIELDS(EVENT_FIELD)
#undef EVENT_FIELD
        EVENT_FIELD_COUNT
};

/* Numbers that grow, and are kept between batches. */
struct event_scratch {
    uint64_t *number; /* own and local hashes of all events of the batch */
    size_t numbers, numbers_cap;
    uint32_t *token; /* of the event at work */
    size_t tokens, tokens_cap;
};

/* Room for n more in an array that keeps its memory; a message is at least as long. */
#define SCRATCH_ROOM(array, used, cap, n)                                                          \
    do {                                                                                           \
        if ((cap) - (used) >= (n)) break;                                                          \
        (cap) = 2 * ((used) + (n));                                                                \
        (array) = xrealloc((array), (cap) * sizeof(*(array)));                                     \
    } while (0)

struct event_raw {
    uint32_t seen, bad; /* bits by event_field: had a value; one of a wrong kind */
    bool known;         /* the tag is one of ours */
    bool has_parent;
    enum kvevents_kind kind;
    uint32_t block, group, window;
    uint64_t parent;
    size_t own_at, own_n; /* in scratch->number */
    struct unpack extra;  /* at its value; at NULL: none */
    struct span lora_id, lora, medium, spec, locality, salt;
    char lora_number[21];
};

/* Reads the event that begins there. false: no msgpack. */
bool event_read(struct unpack *u, struct event_scratch *s, struct event_raw *e);
/* The first of the fields that are bad, as a text that says so. */
const char *event_wrong(uint32_t bad);
/* In which tier the blocks are. false: in none of the engine. */
bool event_tier(const struct event_raw *e, enum route_tier *tier_p);
enum kvevents_spec event_spec(const struct event_raw *e);

#endif
