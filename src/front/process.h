/* What the operating system and its managers are told about this process: its title, its score for
 * the killer of processes, the priority of its loop, and systemd. Each does nothing where the
 * configuration asks for nothing. */
#ifndef TARN_FRONT_PROCESS_H
#define TARN_FRONT_PROCESS_H

#include <stdbool.h>
#include "config/config.h"

/* First in main: the words of the command line and the environment behind them are where a title
 * goes. */
void process_title_init(int argc, char **argv);
/* By proc-title-template; after anything of it changed. */
void process_title_update(void);

/* oom-score-adj; after the options changed. false: the kernel refused it (*why_p, may be NULL). */
bool process_oom_score(const char **why_p);
/* The same, from now on for a master or a replica. */
void process_role(bool replica);
/* loop-priority, of the calling thread, not of those that it starts; after the option changed.
 * false: the kernel refused it (*why_p, may be NULL). */
bool process_loop_priority(const char **why_p);
/* disable-thp. */
void process_disable_thp(void);

/* Finds systemd, if it supervises this process and the configuration wants to know. Before it
 * becomes a daemon. */
void process_supervisor_find(void);
bool process_supervised(void);
/* "READY=1", "STATUS=...", "STOPPING=1", to the socket that systemd named; several of them in
 * lines. */
void process_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Lines for the report of a crash: the command that runs, clients, memory. */
void process_crash_lines(void);

#endif
