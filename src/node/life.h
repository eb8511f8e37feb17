/* The life of a node, on a thread of its own: waits for the master, opens the host, heeds signals,
 * closes it. Meanwhile the main thread runs the loop, so that probes are answered whatever this
 * one waits for. */
#ifndef TARN_NODE_LIFE_H
#define TARN_NODE_LIFE_H

#include <pthread.h>
#include "hosting/view.h"
#include "node/options.h"

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NAME_TAKEN = 3, EXIT_PASSWORD = 4 };

struct node_life {
    const struct node_options *o;
    struct hosting_view *view;
    pthread_t thread;
    bool runs;
    int over_fd; /* readable when it has ended; then: */
    int code;    /* the exit status */
    pthread_mutex_t mutex;
    char waiting[320]; /* under it: why there is no host yet; "": there is one, or was */
    bool told;         /* the thread's: the log was */
};

/* false: errno; life_end in any case. */
bool life_init(struct node_life *l, const struct node_options *o, struct hosting_view *view);
/* From here on SIGHUP is for the node; SIGTERM and SIGINT end the process until it is up. false:
 * errno. */
bool life_start(struct node_life *l);
/* Waits until it is over. The exit status. */
int life_end(struct node_life *l);
/* From any thread. false: there is a host, and its view tells. */
bool life_waits(struct node_life *l, char *text, size_t cap);

#endif
