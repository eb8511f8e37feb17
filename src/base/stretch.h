/* Stretches of a prompt: neighbouring blocks that share a hash tag, and so one of several masters
 * (docs/SCALE.md). One is at most a quarter as long as what is before it. As in tarn.chain. */
#ifndef TARN_BASE_STRETCH_H
#define TARN_BASE_STRETCH_H

#include <stddef.h>

#define STRETCH_BLOCKS 64u /* at most */

/* The first block of the stretch that a block of a prompt is in; both from 0. */
static inline size_t stretch_first(size_t block) {
    size_t longest = 1;
    while (longest < STRETCH_BLOCKS && longest * 8 <= block) longest *= 2;
    return block - block % longest;
}

#endif
