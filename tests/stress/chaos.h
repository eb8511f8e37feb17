/* What the files of chaos_stress share: chaos_stress.c disturbs, chaos_pool.c holds the master and
 * the nodes, chaos_load.c is the clients, which check every byte. */
#ifndef TARN_TESTS_STRESS_CHAOS_H
#define TARN_TESTS_STRESS_CHAOS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/rng.h"

#define CHAOS_KEYS        600
#define CHAOS_CLIENTS     5
#define CHAOS_NODES       5
#define CHAOS_PATIENCE_MS 300000 /* what must come may take its time on a busy machine */

enum chaos_figure {
    CHAOS_GETS,
    CHAOS_HITS,
    CHAOS_RANGES,
    CHAOS_VIEWS,
    CHAOS_IN_BAND_GETS,
    CHAOS_PUTS,
    CHAOS_IN_BAND_SETS,
    CHAOS_REMOVES,
    CHAOS_MISSING,
    CHAOS_TIMEOUTS,
    CHAOS_FAILURES,
    CHAOS_CORRUPT,
    CHAOS_NODE_KILLS,
    CHAOS_NODE_STOPS,
    CHAOS_NODE_EXITS,
    CHAOS_DRAINS,
    CHAOS_DRAINED,
    CHAOS_MOVES,
    CHAOS_DAMAGES,
    CHAOS_CLIENT_KILLS,
    CHAOS_MASTER_KILLS,
    CHAOS_FIGURES
};

#define CHAOS_REMOVED   (UINT64_MAX - 1) /* DEL said 1 */
#define CHAOS_NOT_FOUND UINT64_MAX       /* DEL said 0 */

/* Mapped by all processes. */
struct chaos_shared {
    uint64_t stop, wrong;
    char complaint[500];
    uint64_t figures[CHAOS_FIGURES];
    uint64_t next_generation;
    /* what older masters knew may be lost, and what they had removed may come back */
    uint64_t master_started_ns;
    /* When the newest put or removal of a key that was acknowledged had begun. */
    uint64_t newest_ns[CHAOS_KEYS];
    /* its generation, or CHAOS_REMOVED, CHAOS_NOT_FOUND; for the complaint */
    uint64_t newest[CHAOS_KEYS];
    /* When a put's acknowledgement came, by generation. The table forgets what was overwritten. */
    struct chaos_put {
        uint64_t generation, start_ns, end_ns; /* end 0: not known to be acknowledged */
    } puts[1 << 18];
};
extern struct chaos_shared *chaos;

static inline void chaos_count(enum chaos_figure f, uint64_t n) {
    __atomic_add_fetch(&chaos->figures[f], n, __ATOMIC_RELAXED);
}
static inline bool chaos_stopping(void) {
    return __atomic_load_n(&chaos->stop, __ATOMIC_RELAXED) != 0;
}
/* The first one is kept; the test has failed from then on. */
void chaos_complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void chaos_sleep_ms(uint64_t ms);

/* --- chaos_load.c --- */

/* The life of a client process, until chaos->stop; returns its exit status. */
int chaos_client(unsigned role, const char *url, uint64_t seed, bool damage);

/* --- chaos_pool.c --- */

struct chaos_pool {
    char dir[300], url[64];
    int port;
    pid_t master;
    struct chaos_node {
        pid_t pid; /* 0: it does not run */
        bool paused, maintenance;
        /* it was asked to drain, so it may end: a node that is killed meanwhile goes on with it */
        bool draining;
        uint64_t until_ms; /* of a pause, or when to start it again */
    } node[CHAOS_NODES];
};

/* A new directory, and the master. false: it does not start (said on stderr). */
bool chaos_pool_open(struct chaos_pool *p);
/* Ends all that runs, and says whether it ended well. ok: the directory is not needed for a
 * look. */
bool chaos_pool_close(struct chaos_pool *p, bool ok);
/* Of the master ("master") or of a node, its last lines on stderr. */
void chaos_show_log(const struct chaos_pool *p, const char *name);
void chaos_master_start(struct chaos_pool *p);
bool chaos_master_answers(const struct chaos_pool *p, uint64_t ms);
const char *chaos_node_name(unsigned i);
void chaos_node_start(struct chaos_pool *p, unsigned i);
/* With this signal, and waits for its end; its exit status as waitpid tells it. */
int chaos_node_end(struct chaos_pool *p, unsigned i, int signo);
/* Writes nonsense into what its disk tier holds. false: it has none. */
bool chaos_node_damage(struct chaos_pool *p, unsigned i, struct rng *rng);
/* Words separated by blanks, to the master; the reply's text, cut to cap. false: an error, with its
 * text. */
bool chaos_ask(const struct chaos_pool *p, char *reply, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
