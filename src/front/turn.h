/* What time it is, in this turn of the loop; refreshed before each command (core_stamp). */
#ifndef TARN_FRONT_TURN_H
#define TARN_FRONT_TURN_H

#include <stdint.h>

struct turn {
    uint64_t mono_ms, wall_ms, wall_us;
};
extern struct turn turn;

#endif
