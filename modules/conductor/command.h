/* What the files of commands share: what a request is bound to, and who runs it. */
#ifndef TARN_CONDUCTOR_COMMAND_H
#define TARN_CONDUCTOR_COMMAND_H

#include "base/assert.h"
#include "conductor/conductor.h"
#include "wire/wire.h"

typedef void (*command_fn)(struct tarn_call_context *c, const struct span *argv, size_t argc);

struct declaration {
    struct wire_command wire;
    unsigned flags; /* enum tarn_command_flag */
    const char *complexity;
    command_fn run;
};

enum conductor_command {
    CONDUCTOR_ADD,
    CONDUCTOR_REMOVE,
    CONDUCTOR_DRAIN,
    CONDUCTOR_LIST,
    CONDUCTOR_INFO,
    CONDUCTOR_LOAD,
    CONDUCTOR_KEYS,
    CONDUCTOR_ROUTE,
    CONDUCTOR_FIRST,
    CONDUCTOR_DONE,
    CONDUCTOR_MATCH,
    CONDUCTOR_EXPLAIN,
    CONDUCTOR_DOCTOR,
    CONDUCTOR_COMMANDS
};

/* Reads a request into the struct of its command, all zero before; members are as src/wire/wire.h
 * has them: of words, their index in argv. false: it has answered what is wrong. */
bool conductor_bind(struct tarn_call_context *c, enum conductor_command id, const struct span *argv,
                    size_t argc, void *args);

/* The words of one KV group, for wire_bind_block and a struct wire_kv_group. */
const struct wire_arg *conductor_group_words(void);
/* No such engine, or not that rank of it (CONDUCTOR_UNTOLD: any): what is answered then. */
void conductor_fail_unknown(struct tarn_call_context *c, struct span id, uint64_t rank);

/* A word that need not be given. */
static inline struct span word_at(const struct span *argv, uint32_t at) {
    return at == 0 ? SPAN("") : argv[at];
}

struct conductor_add {
    uint32_t id, url, role, model, lora, tenant, salt, host, rack, events, replay, metrics;
    uint64_t block, rank, kv_blocks, bytes;
};
#define CONDUCTOR_UNTOLD UINT64_MAX
struct conductor_engine {
    uint32_t id;
    bool cancel;
    uint64_t rank; /* or CONDUCTOR_UNTOLD */
};
/* What was not told is CONDUCTOR_UNTOLD. */
struct conductor_load {
    uint32_t id;
    uint64_t rank, prefill, waiting, running, kv_used, kv_blocks;
};
struct conductor_keys {
    uint32_t id, hash, revision; /* hash: enum pool_hashing, 0: nothing is said */
    uint32_t unit, align;
    struct wire_list kv_groups;
};

struct conductor_ask {
    uint32_t request, model, lora, salt, tokens, extra, session, tenant, policy;
    struct wire_list hashes;
    uint64_t block, length, output, ttft_ms, tbt_ms;
    int64_t priority;
    WIRE_MANY(ROUTE_EXCLUDE_MAX) exclude;
};
struct conductor_told {
    uint32_t request;
    uint64_t output;
    bool failed, decode;
};

void cmd_add(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_remove(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_drain(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_list(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_info(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_keys(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_load(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_route(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_first(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_done(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_match(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_explain(struct tarn_call_context *c, const struct span *argv, size_t argc);
void cmd_doctor(struct tarn_call_context *c, const struct span *argv, size_t argc);

#endif
