/* What an operator has to know now, in words: looked at once a second, told in the log when it
 * begins and when it is over. */
#ifndef TARN_COMMANDS_ALARMS_H
#define TARN_COMMANDS_ALARMS_H

#include <stdint.h>

/* From the server's cron, as often as it likes. */
void alarms_cron(void);
/* Those of now; since_ms is a turn.mono_ms. Texts are borrowed for the call. */
void alarms_each(void (*fn)(void *arg, const char *name, const char *text, uint64_t since_ms),
                 void *arg);
/* How long ago what the pool evicted in the last seconds had been used, in the mean; -1: nothing
 * was evicted. */
int64_t alarms_evicted_idle_ms(void);

#endif
