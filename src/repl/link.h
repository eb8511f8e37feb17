/* The link of a replica to its master.
 *
 *   waiting ─> resolving ─> connecting ─> handshake ─┬─ +CONTINUE ──────────────────> streaming
 *      ^                                             └─ +FULLRESYNC ─> snapshot ─> (mark) ─┘
 *      └────────── any failure: a line in the log, and again a second later ───────────────┘
 *
 * What arrives is handed up in slices of half a millisecond. A command is applied as a whole once
 * it is here as a whole, also when the connection ends meanwhile: the offset never stands in the
 * middle of one. */
#ifndef TARN_REPL_LINK_H
#define TARN_REPL_LINK_H

#include "net/net.h"
#include "repl/history.h"
#include "repl/stream.h"
#include "tls/tls.h"

enum repl_link_state {
    REPL_LINK_WAITING, /* to connect */
    REPL_LINK_CONNECTING,
    REPL_LINK_HANDSHAKE,
    REPL_LINK_SNAPSHOT,
    REPL_LINK_STREAMING,
};

/* Upwards. None may close the link. */
struct repl_link_ops {
    /* What to ask for. false: everything. */
    bool (*wanted)(void *arg, char id[REPL_ID_LEN + 1], uint64_t *next_p);
    /* Everything comes anew: what was there is to be forgotten. */
    void (*full)(void *arg, const char *id, uint64_t offset);
    /* Whole records, of a snapshot or of a command. TARN_OK, or *why_p (static): then the next
     * attempt asks for everything. */
    tarn_status (*records)(void *arg, struct span records, bool *end_p, const char **why_p);
    /* The snapshot is whole. */
    void (*synced)(void *arg, uint64_t offset);
    /* It goes on where it was. id: the master's, which may be a new one; NULL: the same. */
    void (*resumed)(void *arg, const char *id);
    /* A command was applied; these are all of its bytes. */
    void (*passed)(void *arg, struct span bytes);
    /* So far. */
    uint64_t (*offset)(void *arg);
    /* What is here cannot be gone on with. */
    void (*damaged)(void *arg);
    /* The answer to the wish that the other one leads (repl_link_config.lead), once. why not. */
    void (*asked_to_lead)(void *arg, bool agreed, const char *why);
};

struct repl_link_config {
    const char *host; /* copied, as all of these */
    uint16_t port;
    const char *user;        /* "": none */
    struct span password;    /* empty: none */
    const char *announce_ip; /* "": the address of the connection */
    uint16_t announce_port;
    uint64_t timeout_ms;
    struct tls_context *tls; /* shared, not copied; NULL: plain text */
    /* The other one still follows the stream of this one, and is asked to lead (PSYNC id next
     * FAILOVER). A connection that ends before it was asked is a refusal; one that ends after it is
     * followed by another attempt, as long as it takes. */
    bool lead;
    uint64_t suspect_below; /* it is told (store_suspect_below) */
};

struct repl_link;
struct repl_link *repl_link_open(struct net_loop *loop, const struct repl_link_config *config,
                                 const struct repl_link_ops *ops, void *arg, uint64_t now_ms);
/* What has arrived as a whole is applied first. */
void repl_link_close(struct repl_link **l_p);
/* About ten times a second: acknowledges, notices silence, tries again. */
void repl_link_cron(struct repl_link *l, uint64_t now_ms);
/* Goes on with what has arrived. true: there is more. */
bool repl_link_turn(struct repl_link *l);
/* Takes in what the master has sent so far, up to a few MiB: it says nothing any more. */
void repl_link_drain(struct repl_link *l);
/* The configuration has changed: of use for the next attempt, the time limit at once. */
void repl_link_reconfigure(struct repl_link *l, const struct repl_link_config *config);
/* Ends this connection; the next attempt follows. false: there was none. */
bool repl_link_reconnect(struct repl_link *l);

/* The address from which it is connected. false: it is not. */
bool repl_link_local(const struct repl_link *l, char *host, size_t size);
enum repl_link_state repl_link_state(const struct repl_link *l);
/* A command is applied in part. */
bool repl_link_within(const struct repl_link *l);
struct repl_link_figures {
    uint64_t last_io_ms,
        down_since_ms;       /* mono; down_since_ms of a link that is not streaming. 0: never was */
    uint64_t snapshot_bytes; /* of the one under way */
};
void repl_link_get_figures(const struct repl_link *l, struct repl_link_figures *f);

#endif
