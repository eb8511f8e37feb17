/* Time, the end of the loop, ports and paths in use, and the configuration on its way to those who
 * need it. The turns of the loop are in src/server/turn.c. */
#ifndef TARN_FRONT_CORE_H
#define TARN_FRONT_CORE_H

#include "cluster/cluster.h"
#include "front/cmd.h"
#include "config/config.h"
#include "net/net.h"

/* config is set; books may come later, but before the first client. */
void core_init(struct net_loop *loop);
/* All is loaded: threads that need nothing but that may start. */
void core_begin(void);
/* All clients are closed. */
void core_deinit(void);
struct net_loop *core_loop(void);
/* Rounds of time-outs and figures a second, now. */
unsigned core_hz(void);
/* A new time stamp, of the wall clock as well; core_stamp (client.h) is cheaper. */
void core_stamp_wall(void);
/* The loop ends after this turn. */
void core_shutdown(const char *why);
bool core_stopping(void);
/* DEBUG PAUSE-CRON: time-outs, figures, rules of snapshots and the link to a master rest. */
void core_pause_cron(bool paused);
bool core_cron_paused(void);

/* Ports and paths in use, for INFO and the log. */
struct core_endpoints {
    uint16_t port, data_port; /* port: of clients, the TLS one where there is no other */
    uint16_t tls_port;        /* 0: none */
    const char *shm_path;     /* "" : none */
    const char *executable;
    uint64_t startup_memory;
    /* Changes of the configuration that concern the listeners, which src/server owns. false: *why_p
     * (static). */
    bool (*rebind)(const char **why_p);
    /* The books were loaded again: the embedded segment is put into them, and they lead. false:
     * logged. NULL: there is none. */
    bool (*reload)(void);
};
extern struct core_endpoints core_endpoints;

/* Tells the books, the host and the rest of the values in force. After store and host were created,
 * and whenever options change. */
void core_apply_config(void);
/* The part of *c that concerns the books, and the pool of many machines. */
void core_store_config(const struct config *c, struct store_config *out);
void core_cluster_config(const struct config *c, struct cluster_config *out);
/* This machine's name. */
const char *core_machine(void);

#endif
