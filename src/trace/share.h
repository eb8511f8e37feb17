/* Prefixes for traces that tell only lengths. The model, of which nothing is in the trace:
 *
 *   - a request begins a conversation, or (SHARE_CONTINUES, or its Session ID says so) goes on with
 *     one: with the most likely of the last SHARE_RECENT, the later the likelier, whose last prompt
 *     and answer fit into this prompt. It shares all whole blocks of that last prompt
 *   - a conversation begins with one of SHARE_SYSTEMS system prompts (Zipf's law, exponent 1) of
 *     SHARE_SYSTEM_TOKENS tokens, as far as its prompt is as long
 *   - all other blocks are new
 *
 * The same seed gives the same ids. */
#ifndef TARN_TRACE_SHARE_H
#define TARN_TRACE_SHARE_H

#include "base/rng.h"
#include "trace/trace.h"

#define SHARE_CONTINUES     0.5
#define SHARE_RECENT        4096u
#define SHARE_TRIES         16u
#define SHARE_SYSTEMS       16u
#define SHARE_SYSTEM_TOKENS 1024u

struct share_talk { /* a conversation that may go on */
    uint64_t first; /* of its last prompt's ids */
    uint32_t n, tokens;
    uint32_t session;
};
struct share_model {
    struct rng rng;
    struct share_talk recent[SHARE_RECENT]; /* a ring: the latest is before next */
    uint32_t next, n;
    struct share_talk *named; /* by number of the Session ID */
    size_t n_named, cap_named;
    double zipf[SHARE_SYSTEMS];
    uint64_t next_id;
    uint32_t sessions;
};

void share_init(struct share_model *s, uint64_t seed);
void share_free(struct share_model *s);
/* Appends q's ids and sets its first, n and session. named: the number of its Session ID (dense),
 * UINT32_MAX: it has none. false: the trace has too many ids. */
bool share_ids(struct share_model *s, struct trace *t, uint32_t named, struct trace_request *q);

#endif
