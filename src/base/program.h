/* Which version of tarn the other side of a connection is, as handshakes tell it, and how many
 * peers are of which: so that a rolling upgrade can be watched. Nothing depends on it. */
#ifndef TARN_BASE_PROGRAM_H
#define TARN_BASE_PROGRAM_H

#include <stdint.h>

/* 0.2.1 is 0x000201: major << 16 | minor << 8 | patch. 0: it does not say, as tarn 0.1 does. */
#define PROGRAM_MAX    0xffffffu
#define PROGRAM_OTHER  UINT32_MAX /* one of many, or nobody knows */
#define PROGRAM_TEXT   16u        /* bytes of the longest text, with its end */
#define PROGRAM_COUNTS 8u

/* This one's. */
uint32_t program_own(void);
/* What came from a peer: more than PROGRAM_MAX says nothing, either. */
static inline uint32_t program_told(uint32_t program) {
    return program <= PROGRAM_MAX ? program : 0;
}
/* "0.2.1"; "0.1" for 0, "other" for PROGRAM_OTHER. */
void program_write(uint32_t program, char text[PROGRAM_TEXT]);

struct program_counts {
    struct program_count {
        uint32_t program, peers;
    } of[PROGRAM_COUNTS + 1]; /* those without peers are free; the last is PROGRAM_OTHER */
};
/* So many peers more. Returns what program_drop is to be told of them: PROGRAM_OTHER when there are
 * too many versions. */
uint32_t program_add(struct program_counts *c, uint32_t program, uint32_t peers);
void program_drop(struct program_counts *c, uint32_t added);
void program_add_all(struct program_counts *sum, const struct program_counts *more);

#endif
