/* Where a stream is in its publisher's numbers, without sockets or clock. Batches are numbered from
 * 0; a publisher that starts anew starts at 0 again. Where nothing is missing is judged by the
 * number of the last batch that was applied; whether a publisher started anew, by numbers that go
 * back on the wire, or by a batch that is another than the one that had its number (a print is a
 * hash of a batch's bytes). */
#ifndef TARN_KVEVENTS_SEQUENCE_H
#define TARN_KVEVENTS_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#define SEQUENCE_END UINT64_MAX /* no batch has it: it ends a replay */

/* Zeroed, it is at the beginning. */
struct sequence {
    bool begun;     /* something was applied since the beginning, or since it was forgotten */
    bool whole;     /* what was applied, if anything, is all that the publisher knows */
    bool wire_seen; /* something came on the wire */
    uint64_t last;  /* number of what was applied last; begun only */
    uint64_t print; /* of it */
    uint64_t wire;  /* the last number on the wire */
};

enum sequence_place {
    SEQUENCE_NEXT,  /* follows what was applied, or is a publisher's first */
    SEQUENCE_KNOWN, /* was applied */
    SEQUENCE_GAP,   /* others belong before it, which were not seen */
};
enum sequence_place sequence_place(const struct sequence *s, uint64_t number);

/* A batch on the wire. true: the publisher started anew; sequence_forget is due. */
bool sequence_wire(struct sequence *s, uint64_t number, uint64_t print);

/* Of a replay, which is asked to begin with `last` itself where something was applied: the first
 * answer to that. */
enum sequence_proof {
    SEQUENCE_SAME,    /* that batch: nothing is missing in between */
    SEQUENCE_ANOTHER, /* another one with its number: the publisher started anew */
    SEQUENCE_LATER,   /* that one is not kept any more: nobody knows what is missing */
    SEQUENCE_EARLIER, /* was not asked for */
};
enum sequence_proof sequence_prove(const struct sequence *s, uint64_t number, uint64_t print);

/* It is applied. What is not NEXT makes the stream less than whole. */
void sequence_apply(struct sequence *s, uint64_t number, uint64_t print);
/* The publisher, of which nothing was applied, has published nothing. */
void sequence_none(struct sequence *s);
/* What was applied counts for nothing any more. */
void sequence_forget(struct sequence *s);

#endif
