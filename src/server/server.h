/* The process: what is set up in which order, and torn down in the opposite one. */
#ifndef TARN_SERVER_SERVER_H
#define TARN_SERVER_SERVER_H

#include <stdbool.h>
#include "front/client.h"
#include "front/core.h"
#include "front/embedded.h"

/* Runs until SHUTDOWN or a signal. config is validated. Returns the exit status. */
int server_run(struct config *config, const char *executable);

/* --- listeners.c --- */

#define LISTENERS_MAX (2 * CONFIG_WORDS_MAX + 1)

/* Binds all addresses and the unix socket; nothing is accepted yet. false: logged. */
bool listeners_bind(void);
/* From now on connections are accepted. */
void listeners_open(struct net_loop *loop);
void listeners_close(void);
/* After bind, port or tls-port changed. What stays is not touched; what goes has accepted who
 * waited there. */
bool listeners_rebind(const char **why_p);
/* Where clients of that kind come in; 0: nowhere, or by no port. */
uint16_t listeners_port(enum client_port kind);
/* The addresses that could be bound, for the data port. Returns how many. */
size_t listeners_addresses(const char *out[LISTENERS_MAX]);

/* --- embedded.c --- */

/* The embedded segment, in embedded.host: with what an earlier process left in it, as far as books
 * that were loaded know it and its bytes are what they were; else empty. The books lead when it
 * returns. false: logged. */
bool embedded_open(const struct config *config, bool loaded);
/* Touches its pages, with threads of its own; embedded.populating.on until it is over, which the
 * latter tells, and how it went (logged). */
void embedded_populate(void);
bool embedded_populated(tarn_status *status_p);
/* The same for books that were loaded again by this process, which has had its bytes in hand all
 * the while. */
bool embedded_reload(void);
/* Nobody who was let in before that epoch can write to it any more. */
void embedded_fenced(uint32_t master_epoch);

/* --- apply.c --- */

/* For config_told. */
extern const config_tell_fn server_told[CONFIG_TELLS];

/* --- signals.c --- */

/* Blocks the signals that the loop handles; before any thread is started. */
void signals_block(void);
void signals_open(struct net_loop *loop);
void signals_close(void);

/* --- welcome.c --- */

void welcome(void);
/* all: a line for each option; else the most used ones. */
void print_help(const char *program, bool all);

#endif
