/* The process: what is set up in which order, and torn down in the opposite one. */
#ifndef TARN_SERVER_SERVER_H
#define TARN_SERVER_SERVER_H

#include <stdbool.h>
#include "cmd/core.h"

/* Runs until SHUTDOWN or a signal. config is validated. Returns the exit status. */
int server_run(struct config *config, const char *executable);

/* --- listeners.c ------------------------------------------------------------------------------------------------------------ */

#define LISTENERS_MAX (CONFIG_WORDS_MAX + 1)

/* Binds all addresses and the unix socket; nothing is accepted yet. false: logged. */
bool listeners_bind(const struct config *config);
/* From now on connections are accepted. */
void listeners_open(struct net_loop *loop);
void listeners_close(void);
/* After bind or port changed. */
bool listeners_rebind(const char **why_p);
/* The addresses that could be bound, for the data port. Returns how many. */
size_t listeners_addresses(const char *out[LISTENERS_MAX]);

/* --- signals.c -------------------------------------------------------------------------------------------------------------- */

/* Blocks the signals that the loop handles; before any thread is started. */
void signals_block(void);
void signals_open(struct net_loop *loop);
void signals_close(void);
/* A log line with a backtrace for a process that dies. */
void signals_catch_crashes(void);

/* --- welcome.c -------------------------------------------------------------------------------------------------------------- */

void welcome(const struct config *config);
void print_help(const char *program);

#endif
