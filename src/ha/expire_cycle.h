/* Active expiry: keys whose time is over are removed though nobody asks for them. A timing wheel
 * knows which they are, so nothing is searched; what is bounded is how much of the loop's time that
 * may take when many are due at once. */
#ifndef TARN_HA_EXPIRE_CYCLE_H
#define TARN_HA_EXPIRE_CYCLE_H

#include <stdbool.h>
#include <stdint.h>

/* A slice, once per turn. true: more may be done at once. */
bool expire_cycle_turn(void);
/* How long the loop may sleep before there is something to do, at most limit_ms. */
uint64_t expire_cycle_next_ms(uint64_t limit_ms);
/* hz times a second. */
void expire_cycle_cron(void);
/* DEBUG SET-ACTIVE-EXPIRE. */
void expire_cycle_enable(bool on);

#endif
