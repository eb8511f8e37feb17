/* Clocks. Leases count on CLOCK_BOOTTIME (it runs while the machine sleeps); TTLs use wall time;
 * the rest is monotonic. */
#ifndef TARN_BASE_CLOCK_H
#define TARN_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t id) {
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
static inline uint64_t clock_mono_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}
static inline uint64_t clock_mono_us(void) {
    return clock_mono_ns() / 1000;
}
static inline uint64_t clock_mono_ms(void) {
    return clock_mono_ns() / 1000000;
}
static inline uint64_t clock_boot_ns(void) {
    return clock_ns(CLOCK_BOOTTIME);
}
static inline uint64_t clock_boot_ms(void) {
    return clock_boot_ns() / 1000000;
}
static inline uint64_t clock_wall_us(void) {
    return clock_ns(CLOCK_REALTIME) / 1000;
}
static inline uint64_t clock_wall_ms(void) {
    return clock_ns(CLOCK_REALTIME) / 1000000;
}

#endif
