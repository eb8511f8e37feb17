/* Where a conversation went before: something to go by where nobody knows a prefix, which is where
 * an engine has no event stream, or a request no hashes.
 *
 * Of each session the worker that computed most of it, how many tokens it had then, and how much
 * that worker had taken in. What is left of it is an estimate: an engine's cache drops what was
 * used longest ago, so of a prefix the end goes first, and all of it when as many tokens as it
 * holds have come since. It ends after some minutes, with its engine, and when that one fails.
 *
 * Bounded: the session longest unused goes. A name is kept as a fingerprint of 64 bits. A hint:
 * what it forgets, or is wrong about, costs time. It is in no record: after a restart sessions
 * begin anew. */
#ifndef TARN_ROUTE_SESSION_H
#define TARN_ROUTE_SESSION_H

#include <sys/queue.h>
#include "base/htab.h"

struct route_session {
    struct htab_node node; /* its hash is the fingerprint */
    TAILQ_ENTRY(route_session) by_use;
    uint32_t worker, rests; /* rests: of its engine, then */
    uint32_t tokens;
    uint16_t birth;        /* of the worker's number */
    uint64_t taken_tokens; /* by the worker until then */
    uint64_t at_us;
};
TAILQ_HEAD(session_list, route_session);

struct sessions {
    struct htab table;
    struct session_list by_use; /* the latest first */
};

void sessions_init(struct sessions *t);
void sessions_deinit(struct sessions *t);
size_t sessions_memory(const struct sessions *t);

#endif
