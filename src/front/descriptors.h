/* Open files: who gets how many of those that the system allows.
 *
 *   fixed         listeners, files, threads: 32, 2 for each of io-threads, 4 of data-threads
 *   other hosts   64 for each of inband-threads, where values move to and from nodes
 *   data port     data-maxclients, with a pool
 *   clients       maxclients
 *
 * A limit that is too low is raised as far as the system lets us. What is left to share then goes
 * half to the clients, a quarter to the data port, a quarter to other hosts; what one of them does
 * not need goes to the rest. */
#ifndef TARN_FRONT_DESCRIPTORS_H
#define TARN_FRONT_DESCRIPTORS_H

#include "config/config.h"

#define DESCRIPTORS_CLIENTS_MIN 32u

/* At the start: lowers maxclients and data-maxclients where that is necessary, with a line in
 * the log. false: fewer clients than DESCRIPTORS_CLIENTS_MIN, and fewer than were configured,
 * would be left; the log says what to do. */
bool descriptors_share(struct config *c);
/* While the server runs: false: the system does not allow as many as *c wants; *why_p is static
 * text. */
bool descriptors_raise(const struct config *c, const char **why_p);

struct descriptors {
    uint64_t fixed, hosts, data, clients;
};
/* What *c would like to have. */
struct descriptors descriptors_wanted(const struct config *c);
uint64_t descriptors_sum(const struct descriptors *d);
/* The same for no more than limit in all; of a limit below fixed nothing is left for anybody. */
struct descriptors descriptors_of(const struct descriptors *wanted, uint64_t limit);

#endif
