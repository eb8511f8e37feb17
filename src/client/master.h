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

struct address {
    char host[MASTER_HOST_MAX], port[16];
};
static inline bool address_is(const struct address *a, const struct address *b) {
    return strcmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

/* From answers of a server; false: they are none. */
bool address_read(const struct answer *host, const struct answer *port, struct address *at);

struct scouts;
struct whereabouts {
    struct address server[SENTINELS_MAX]; /* the Sentinels, or those of which one is the master */
    unsigned n;
    char *name;                  /* by which Sentinels know the master; NULL: there are none */
    struct scouts *scouts;       /* NULL: there is one server, and that is the master */
    const tarn_options *options; /* of url_parse */
    bool tls;                    /* the URL says so */
    struct secure secure;        /* how all of them are connected to, once secure_open was called */
    unsigned first;              /* to be asked; atomic */
    uint32_t met;                /* number of the master that was met last; atomic */
    uint64_t met_hash;           /* of its address; atomic: two at once are two changes */
    uint32_t epoch;              /* the highest of those met, 0: none told; atomic */
    uint64_t map_epoch;          /* of many masters: of the map that is known; 0: none; atomic */
};
static inline uint64_t master_map_epoch(const struct whereabouts *m) {
    return __atomic_load_n(&m->map_epoch, __ATOMIC_RELAXED);
}

void master_free(struct whereabouts *m);
static inline bool master_may_change(const struct whereabouts *m) {
    return m->scouts != NULL;
}
/* Where it is; may ask over the network, up to a second each that does not answer. Any thread. */
tarn_status master_find(struct whereabouts *m, uint64_t deadline, struct address *at);
/* Some Sentinel names another master, and none this one; or another server leads, with a higher
 * epoch than any that was met. Takes up to a second for each that does not answer. */
bool master_moved(const struct whereabouts *m, const struct address *at);
/* What was said was wrong: another one is asked next time. */
void master_asked(struct whereabouts *m, const struct address *at);
/* What an answer to INFO says of the master's epoch, 0: nothing. */
uint32_t master_epoch_of(const struct answer *info);
/* A master of this epoch (0: not told) was met. TARN_ECLOSED: one with a higher epoch was met
 * before, this one is deposed. */
tarn_status master_check_epoch(struct whereabouts *m, uint32_t epoch, const char *host,
                               const char *port);
/* A connection to it was made, and it is a master. Returns the number of that, which changes when
 * it is another one than before: connections with another number are to be left, a deposed master
 * may still serve them. Any thread. */
uint32_t master_met(struct whereabouts *m, const struct address *at);
static inline bool master_is_other(const struct whereabouts *m, uint32_t number) {
    return __atomic_load_n(&m->met, __ATOMIC_RELAXED) != number;
}
/* Its name, in an answer to ROLE. */
bool master_is_role(const struct answer *role);
/* The answer to ROLE. TARN_ECLOSED: it is none. */
tarn_status master_check_role(const struct answer *role, const char *host, const char *port);
/* What Sentinel i answers to SENTINEL verb name; the answer lies in the arena. */
tarn_status master_ask_sentinel(const struct whereabouts *m, unsigned i, const char *verb,
                                uint64_t deadline, struct arena *arena, struct answer **answer_p);

struct scouts *scouts_create(void);
void scouts_destroy(struct scouts **scouts_p);
/* The master is away: until then, but no longer than until another one is known. Any thread. */
void scout_wait(struct whereabouts *m, const tarn_options *o, uint64_t until);
/* Who was found, as long as that counts. */
bool scout_known(struct scouts *s, struct address *at);
/* What the Sentinels say; that who is there is no master; and whether they have just not heard of
 * `at` yet. */
void scout_named(struct scouts *s, const struct address *at);
void scout_wrong(struct scouts *s, const struct address *at);
bool scout_is_ahead(struct scouts *s, const struct address *at, const struct address *named);
/* Connections are closed: there is a master. */
void scout_rest(struct scouts *s);

#endif
