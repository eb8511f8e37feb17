/* Lanes: a control connection and an engine that one thread uses at a time; the segments they
 * know. */
#ifndef TARN_CLIENT_LANE_H
#define TARN_CLIENT_LANE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/hist.h"
#include "base/rng.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/ctl.h"
#include "client/master.h"
#include "client/placement.h"
#include "client/request.h"
#include "client/trace.h"
#include "engine/engine.h"
#include "tarn.h"
#include "tls/tls.h"
#include "transport/transport.h"

#define REGISTER_MAX 1024u

/* A lane counts in a tarn_stats of its own, by slot of transport, and leaves 0 there what is of the
 * client. One writer (the lane's taker), any reader: relaxed words. */
#define COUNT(lane, field, n)                                                                      \
    __atomic_store_n(&(lane)->counters.field, (lane)->counters.field + (uint64_t)(n),              \
                     __ATOMIC_RELAXED)

struct segment_entry {
    bool known;
    uint32_t epoch;
    bool write_attached;
    uint64_t fetched_ms;
    uint64_t again_ms; /* its host may have a key by then, 0: no need to ask */
    unsigned asked;    /* ... in vain, since there was one */
    /* These stay when the rest is forgotten. */
    uint64_t home;    /* of its host, the same for all segments of one; 0: never fetched */
    uint64_t address; /* hash of it */
    char name[64];
    /* Its host offers no way that we have or may use. */
    struct unreachable {
        uint64_t until_ms; /* the master is not asked again before; 0: there is a way */
        uint32_t epoch;    /* of when that was so */
        tarn_status status;
        char *why;
    } unreachable;
};

/* An engine stays as long as somebody looks at memory that it has mapped: its lane, views,
 * writers. */
struct engine_ref {
    struct engine *engine;
    unsigned users; /* under direct_mutex once the direct lane has it */
    unsigned writers;
};

struct lane {
    struct tarn_client *client;
    struct transport_tls tls; /* of its engine */
    char no_tls[TLS_WHY_MAX +
                /* " (why)" when a host was not reached for it, since the lane was taken; else "" */
                200];
    struct ctl ctl;
    struct address at; /* whom it was opened to */
    struct engine_ref *ref;
    struct engine *engine; /* ref->engine */
    struct arena arena;
    struct rng rng;
    struct segment_entry *segment; /* by id */
    size_t segments;
    struct ctl_request request;
    uint64_t later_ms; /* of the last answer, a TRYAGAIN; else 0 */
    uint64_t window;   /* bytes per engine_run: adapts to the speed of the path */
    bool connected_before;
    struct server_numbers numbers;    /* of the server of its connection */
    uint32_t master_number;           /* master_met, of its connection */
    uint64_t registered_seen;         /* client->registered_gen this lane's engine knows */
    struct engine_buffer *registered; /* what its engine knows, REGISTER_MAX */
    size_t n_registered;
    struct call_trace *trace; /* of the call that has taken it; NULL: of no interest */
    tarn_stats counters;
    struct hist hist[TARN_HISTS];
    /* NULL; or of the direct lane: released for others to have it while a call pauses */
    pthread_mutex_t *held;
    bool asking; /* what its call asks for is on its way to this master: ctl.asking */
    /* What its last call moved went by ways that need no grants; and since then one that did not,
     * until when that says nothing. */
    bool no_grant;
    uint64_t grants_until_ms;
    /* of the pool, under client->mutex */
    bool busy;
    pthread_t last_user;
};

/* Keys per request of a call on n keys. A batch is cut into several, so that the server looks up
 * one while the bytes of another move; not into too small ones, each of which is a turn of both
 * sides. */
size_t lane_chunk_keys(const struct lane *lane, size_t n);

struct lane *lane_create(struct tarn_client *client, tarn_status *status_p);
void lane_destroy(struct lane **lane_p);
void engine_ref_drop(struct engine_ref **ref_p);
/* Takes a free lane; waits for one until the deadline. trace: of the call; NULL: there is none. */
tarn_status lane_take(struct tarn_client *client, struct call_trace *trace, uint64_t deadline,
                      struct lane **lane_p);
/* What its next requests are done for: its trace, or nothing. lane_ready does it. */
void lane_tell_trace(struct lane *lane);
/* What was registered and unregistered since it was last used; under the client's mutex, not in a
 * call. */
void lane_sync_registered(struct lane *lane);
void lane_give(struct lane *lane);
/* Connects, if that is needed. */
tarn_status lane_ready(struct lane *lane, uint64_t deadline);

/* Does it ask for places without grants? Sealing them is a fifth of what a small get costs the
 * server, and who reads and writes by what he has mapped shows none. */
static inline bool lane_no_grant(const struct lane *lane) {
    return lane->no_grant && lane->numbers.no_grant;
}
/* The engine says of a place without a grant that its way needs one: it is to be asked for again,
 * and this and what comes next have grants. */
void lane_needs_grants(struct lane *lane);

tarn_status lane_send(struct lane *lane, bool skip);
/* With the next one that is sent; nobody waits for its answer. */
void lane_leave(struct lane *lane);
tarn_status lane_receive(struct lane *lane, struct answer **answer_p, uint64_t deadline);
tarn_status lane_call(struct lane *lane, struct answer **answer_p,
                      uint64_t deadline); /* send, receive, check */
tarn_status lane_ping(struct lane *lane, uint64_t deadline);

/* answer_check of an answer to the whole request, for lane_retry: it keeps what a TRYAGAIN asks
 * for. */
tarn_status lane_check(struct lane *lane, const struct answer *a, const char *what);

/* Tells the server that bytes of this version do not match their CRC. It looks for itself and
 * removes what is bad; else every get would come across it, and a key without a good replica would
 * miss at every get and be there for every put. Nobody waits for the answer, and a failure shows at
 * the next request. */
void lane_report(struct lane *lane, const void *key, size_t key_len, uint64_t version);

/* How a call goes on after a failure of the connection or a lost lease. Zero-initialised is the
 * first try. */
struct attempts {
    /* later: after LOADING or TRYAGAIN, which are no failures of the connection */
    unsigned made, later;
};
/* true: status may get better; the back-off has been slept. false: give up (also when the deadline
 * is near). */
bool lane_retry(struct lane *lane, struct attempts *attempts, tarn_status status,
                uint64_t deadline);
/* What is to be done on a lane that is connected. */
typedef tarn_status (*lane_fn)(struct lane *lane, void *arg, uint64_t deadline);
/* Connects and does it (NULL: nothing more), again as long as lane_retry says so. */
tarn_status lane_run(struct lane *lane, uint64_t deadline, lane_fn fn, void *arg);
/* For what is not now, but will be: sleeps ms, or (0) for what comes before try number `made` + 1.
 * false: the deadline is nearer, or nothing is tried again (retries=0). */
bool lane_later(struct lane *lane, unsigned made, uint64_t ms, uint64_t deadline);
/* Sleeps for what comes before try number `made` + 1. false: the deadline is nearer. */
bool lane_pause(struct lane *lane, unsigned made, uint64_t deadline);

/* --- segment.c --- */

/* Makes the engine know the segment, by SEGMENT INFO if need be. Nothing
 * may be unanswered on the lane. */
tarn_status segment_ensure(struct lane *lane, uint32_t id, uint32_t epoch, bool write,
                           uint64_t deadline);
void segment_forget(struct lane *lane, uint32_t id);
void segment_forget_all(struct lane *lane);
void segment_free_all(struct lane *lane);
/* TARN_ENOTSUP when the memory segments that are up are known and none offers this transport. */
tarn_status segment_require(struct lane *lane, const char *scheme, uint64_t deadline);
/* "host name|boot id" as servers report it. */
void segment_host_name(char *out, size_t cap);
bool segment_host_is(const char *reported, size_t len, const char *own);

/* What is known of a segment whose info was fetched, NULL: it never was. */
const struct segment_entry *segment_find(const struct lane *lane, uint32_t id);
/* For errors: its name, "?" when its info was never fetched. */
const char *segment_name(const struct lane *lane, uint32_t id);

#endif
