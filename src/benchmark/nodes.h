/* What the nodes subcommand measures (nodes.c), the nodes that it simulates (nodes_sim.c), and how
 * it is shown (nodes_print.c). */
#ifndef TARN_BENCHMARK_NODES_H
#define TARN_BENCHMARK_NODES_H

#include "benchmark/meta.h"

/* --- nodes_sim.c --- */

enum order { ORDER_NONE, ORDER_SILENCE, ORDER_CLOSE };

/* A node's session with one master. */
struct sim_node {
    const struct bench *master;
    char name[32], instance[33], content[33];
    struct ctl ctl;
    struct arena arena; /* of the last answer */
    uint64_t beats;
    bool probing; /* the heartbeat under way does not wait */
    bool left, dead;
    uint64_t sent_us;
};

struct beat_figures {
    double per_s;
    struct hist hist;
};

struct nodes {
    struct bench *b;
    struct meta meta; /* the load, and the masters */
    uint64_t n, segments, segment_bytes, dying;
    uint64_t sessions;
    struct sim_node *node;             /* all sessions of a node, then those of the next */
    uint64_t heartbeat_ms, timeout_ms; /* as the masters say */
    int epoll;
    pthread_t thread;
    bool stop;
    /* of the main thread to that of the heartbeats; ORDER_NONE: carried out */
    enum order order;
    uint64_t first, count, died_us;
    /* of the heartbeats; the main thread reads them when the other has ended, or resets them under
     * the lock */
    pthread_mutex_t lock;
    struct hist hist;
    uint64_t beats, since_us;
};

/* Of n->n nodes at all masters. */
void nodes_name(struct nodes *n);
/* Joins, mounts, comes up. Returns how many of the segments the master knew, with their content. */
uint64_t node_join(struct nodes *n, struct sim_node *s);
void node_leave(struct sim_node *s);
/* From now on it beats. */
void node_watch(struct nodes *n, struct sim_node *s);
void beats_start(struct nodes *n);
void beats_stop(struct nodes *n);
void beats_reset(struct nodes *n);
struct beat_figures beats_so_far(struct nodes *n);
/* count sessions die, from that on; n->died_us is when. */
void nodes_order(struct nodes *n, uint64_t first, uint64_t count, enum order order);

/* --- what is measured --- */

#define NODES_ASKED 4u /* commands that tell of all */

struct nodes_asked {
    const char *name;
    double cpu_ms, longest_ms;
};

struct nodes_figures {
    uint64_t nodes, masters, segments, replicas, objects, dying;
    uint64_t heartbeat_ms, timeout_ms;         /* of the masters */
    double join_ms;                            /* of all: join, mount, up */
    double join_cpu_us, join_longest_ms;       /* of a master, for one node */
    double bytes_per_session, rss_per_session; /* of a master, for one node */
    double beat_cpu_us, beats_share;           /* of a master: for a beat; of its processor */
    double put_seconds, put_cpu_ns;            /* of all objects; of the masters, for a key */
    double bytes_per_object;                   /* of books */
    struct meta_result gets;
    struct beat_figures beats, beats_loading, beats_reading;
    struct nodes_asked asked[NODES_ASKED]; /* the first master */
    /* From a node's death to the last look-up that found what only it had: its connection closed,
     * it fell silent. */
    double closed_ms, silent_ms;
    double back_ms; /* from its return to its objects being readable */
    /* Many at once, of one master: its processor time for all, and its longest turn. */
    double dying_cpu_ms, dying_longest_ms, back_cpu_ms, back_longest_ms;
};
void nodes_print(const struct bench *b, const struct nodes_figures *f);

#endif
