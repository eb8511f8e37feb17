/* Where the master is: the URL, Sentinels, servers that are named, and who leads before the
 * Sentinels say so (scout.c). */
#ifndef TARN_CLIENT_MASTER_H
#define TARN_CLIENT_MASTER_H

#include <stdbool.h>
#include <stdint.h>
#include "client/answer.h"
#include "client/secure.h"
#include "tarn.h"

#define SENTINELS_MAX   16u
#define SERVERS_MAX     8u /* that a URL names without Sentinels */
#define MASTER_HOST_MAX 256u

struct scouts;
struct whereabouts {
    char *host, *port; /* of the only server; NULL: one of those below knows */
    char *name;        /* by which Sentinels know the master; NULL: those below are the servers */
    struct {
        char *host, *port;
    } sentinel[SENTINELS_MAX];
    unsigned n;
    const tarn_options *options; /* of url_parse */
    bool tls;                    /* the URL says so */
    struct secure secure;        /* how all of them are connected to, once secure_open was called */
    unsigned first;              /* to be asked; atomic */
    uint32_t met;                /* number of the master that was met last; atomic */
    uint64_t met_hash;           /* of its address; atomic: two at once are two changes */
    uint32_t epoch;              /* the highest of those met, 0: none told; atomic */
    struct scouts *scouts;       /* where the master may change */
};
void master_free(struct whereabouts *m);
/* Where it is; may ask over the network. Any thread. */
tarn_status master_find(struct whereabouts *m, uint64_t deadline, char host[MASTER_HOST_MAX],
                        char port[16]);
/* Some Sentinel names another master, and none this one; or servers_moved. Takes up to a second for
 * each Sentinel that does not answer. */
bool master_moved(const struct whereabouts *m, const char *host, const char *port);
/* What was said was wrong: another Sentinel is asked next time. */
void master_asked(struct whereabouts *m, const char *host, const char *port);
/* What an answer to INFO says of the master's epoch, 0: nothing. */
uint32_t master_epoch_of(const struct answer *info);
/* A master of this epoch (0: not told) was met. TARN_ECLOSED: one with a higher epoch was met
 * before, this one is deposed. */
tarn_status master_check_epoch(struct whereabouts *m, uint32_t epoch, const char *host,
                               const char *port);
/* A connection to host:port was made, and it is a master. Returns the number of that, which changes
 * when it is another one than before: connections with another number are to be left, a deposed
 * master may still serve them. Any thread. */
uint32_t master_met(struct whereabouts *m, const char *host, const char *port);
static inline bool master_is_other(const struct whereabouts *m, uint32_t number) {
    return __atomic_load_n(&m->met, __ATOMIC_RELAXED) != number;
}
/* The answer to ROLE. TARN_ECLOSED: it is none. */
tarn_status master_check_role(const struct answer *role, const char *host, const char *port);

/* The number of the one that leads. May take up to a second for each that does not answer. */
tarn_status servers_find(const struct whereabouts *m, uint64_t deadline, unsigned *index_p);
/* Another one leads, with a higher epoch than any that was met. */
bool servers_moved(const struct whereabouts *m, const char *host, const char *port);

struct scouts *scouts_create(void);
void scouts_destroy(struct scouts **scouts_p);
/* The master is away: until then, but no longer than until another one is known. Any thread. */
void scout_wait(struct whereabouts *m, const tarn_options *o, uint64_t until);
/* Who was found, as long as that counts. */
bool scout_known(struct scouts *s, char host[MASTER_HOST_MAX], char port[16]);
/* What the Sentinels say; that who is there is no master; and whether they have just not heard of
 * host:port yet. */
void scout_named(struct scouts *s, const char *host, const char *port);
void scout_wrong(struct scouts *s, const char *host, const char *port);
bool scout_is_ahead(struct scouts *s, const char *host, const char *port, const char *named_host,
                    const char *named_port);
/* Connections are closed: there is a master. */
void scout_rest(struct scouts *s);

#endif
