/* MONITOR and SLOWLOG: what others see of the commands that run. */
#ifndef TARN_FRONT_INTROSPECT_H
#define TARN_FRONT_INTROSPECT_H

#include "front/cmd.h"

/* Shows c's command to the monitors. */
void monitor_feed(struct client *c);
extern size_t monitor_n; /* read by dispatch before each command */

/* Notes c's command if it took long enough. */
void slowlog_note(struct client *c, uint64_t us);
void slowlog_reset(void);
size_t slowlog_len(void);
void slowlog_trim(void);

#endif
