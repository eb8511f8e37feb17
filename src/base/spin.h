/* Looking again and again for a moment before a thread goes to sleep. To wake one that sleeps takes
 * 5 us, in a virtual machine 25 to 55: more than many an answer takes.
 *
 *   spin_begin ──true──> (a look in vain ─> spin_again)* ──true: look once more──┐
 *      │ false              │ false                                              │ something came
 *      └────> sleep <───────┘                                                    │
 *               └──────────────────────────> spin_end <──────────────────────────┘
 *
 * It ends by itself, in three ways. A wait looks for `limit_ns` at most. It looks only where waits
 * that began like this one were short of late: as with predictors of branches, the lengths of the
 * last waits choose a counter, so that of two waits that take turns, such as a copy and a request
 * that follows at once, one is looked out and the other slept out. And it ends as soon as another
 * thread has had this processor: then there are more that want to run than processors.
 *
 * One thread at a time; what it counts may be read by any. */
#ifndef TARN_BASE_SPIN_H
#define TARN_BASE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#define SPIN_HISTORY 3u /* waits */

struct spin {
    uint32_t limit_ns; /* 0: never */
    bool looks;        /* the wait under way */
    uint8_t last;      /* of the last SPIN_HISTORY waits, a bit each: it was short */
    uint8_t counter[1u << SPIN_HISTORY];
    uint64_t began_ns, looked_ns;
    uint64_t spins, hits; /* waits that looked, and those of them in which something came */
};

/* limit_us: 0 where there is one processor only. Keeps what is known and counted. */
void spin_set(struct spin *s, uint64_t limit_us);
/* A wait begins. true: look before you sleep. */
bool spin_begin(struct spin *s);
/* Nothing was there. true: look again. Gives the processor to whoever waits for it. */
bool spin_again(struct spin *s);
/* The wait is over: something came, or there was a reason to get up. */
void spin_end(struct spin *s);

#endif
