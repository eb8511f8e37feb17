#include "base/spin.h"

#include <sched.h>
#include "base/clock.h"

#define COUNTER_MAX   7u
#define COUNTER_LOOKS 4u     /* from here on */
#define OTHERS_NS     15000u /* a look that takes longer: somebody else ran */
#define WAKE_NS       50000u /* by which a wait that was slept out is longer */

static bool one_processor(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) == 1;
}

void spin_set(struct spin *s, uint64_t limit_us) {
    s->limit_ns = limit_us == 0 || one_processor() ? 0 : (uint32_t)limit_us * 1000;
}

bool spin_begin(struct spin *s) {
    if (s->limit_ns == 0) return false;
    s->began_ns = s->looked_ns = clock_mono_ns();
    s->looks = s->counter[s->last] >= COUNTER_LOOKS;
    if (s->looks) __atomic_store_n(&s->spins, s->spins + 1, __ATOMIC_RELAXED);
    return s->looks;
}

bool spin_again(struct spin *s) {
    (void)sched_yield();
    uint64_t now_ns = clock_mono_ns(), took_ns = now_ns - s->looked_ns;
    s->looked_ns = now_ns;
    return took_ns < OTHERS_NS && now_ns - s->began_ns < s->limit_ns;
}

/* A wait that was looked out in vain costs twice what one that was not gains, so most must be
 * short. */
void spin_end(struct spin *s) {
    if (s->limit_ns == 0 || s->began_ns == 0) return;
    uint64_t took_ns = clock_mono_ns() - s->began_ns;
    bool is_short = took_ns < s->limit_ns + (s->looks ? 0 : WAKE_NS);
    uint8_t *counter = &s->counter[s->last];
    if (is_short)
        *counter += *counter < COUNTER_MAX;
    else
        *counter = *counter < 2 ? 0 : *counter - 2;
    if (is_short && s->looks) __atomic_store_n(&s->hits, s->hits + 1, __ATOMIC_RELAXED);
    s->last = (uint8_t)((s->last << 1 | is_short) & ((1u << SPIN_HISTORY) - 1));
    s->began_ns = 0;
}
