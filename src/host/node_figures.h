/* What a node tells its master with its heartbeats, besides host_node_figures and TIER_FIGURES;
 * with - for _. Here, so that both ends know it. */
#ifndef TARN_HOST_NODE_FIGURES_H
#define TARN_HOST_NODE_FIGURES_H

#include "base/figures.h"

#define NODE_FIGURES(X)                                                                            \
    X(GAUGE, load_percent, "the machine's load over a minute, 100: one core")                      \
    X(BYTES, memory_available, "that the machine or the control group has left")                   \
    X(COUNTER, refused_grants, "operations without a good grant")                                  \
    X(COUNTER, refused_expired, "... whose grant had expired")                                     \
    X(COUNTER, refused_epoch, "... whose grant was of an epoch that is over")                      \
    X(GAUGE, segments_with_keys, "segments that other transports than shm and tcp reach")          \
    X(COUNTER, joins, "times it joined")                                                           \
    X(COUNTER, heartbeats, "answered by the master")                                               \
    X(COUNTER, heartbeat_failures, "... and not")                                                  \
    X(GAUGE, tasks, "that the master has given it")                                                \
    X(GAUGE, copies_running, "replicas being made")                                                \
    X(COUNTER, copies_done, "replicas made")                                                       \
    X(COUNTER, copies_failed, "replicas that could not be made")                                   \
    X(COUNTER_BYTES, copy_bytes, "of replicas made")

struct node_figures {
    NODE_FIGURES(FIGURE_MEMBER)
};

/* Of a disk or directory, as TIER_FIGURES. */
#define FAR_FIGURES(X)                                                                             \
    X(COUNTER, stored, "objects stored")                                                           \
    X(COUNTER, store_failures, "objects that could not be")                                        \
    X(COUNTER_BYTES, store_bytes, "of objects stored")                                             \
    X(GAUGE, offering, "1: the master is being told what was found there")

struct far_figures {
    FAR_FIGURES(FIGURE_MEMBER)
};

#endif
