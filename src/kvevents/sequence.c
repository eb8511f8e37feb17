#include "kvevents/sequence.h"

#include "base/assert.h"

enum sequence_place sequence_place(const struct sequence *s, uint64_t number) {
    uint64_t next = s->begun ? s->last + 1 : 0;
    if (number == next) return SEQUENCE_NEXT;
    return number > next ? SEQUENCE_GAP : SEQUENCE_KNOWN;
}

bool sequence_wire(struct sequence *s, uint64_t number, uint64_t print) {
    bool back = s->wire_seen && number <= s->wire;
    if (back && s->begun && number == s->last && print == s->print) return false; /* said twice */
    s->wire_seen = true;
    s->wire = number;
    return back;
}

enum sequence_proof sequence_prove(const struct sequence *s, uint64_t number, uint64_t print) {
    TARN_ASSERT(s->begun);
    if (number != s->last) return number > s->last ? SEQUENCE_LATER : SEQUENCE_EARLIER;
    return print == s->print ? SEQUENCE_SAME : SEQUENCE_ANOTHER;
}

void sequence_apply(struct sequence *s, uint64_t number, uint64_t print) {
    bool next = sequence_place(s, number) == SEQUENCE_NEXT;
    s->whole = next && (s->whole || !s->begun);
    s->begun = true;
    s->last = number;
    s->print = print;
}

void sequence_none(struct sequence *s) {
    TARN_ASSERT(!s->begun);
    s->whole = true;
}

void sequence_forget(struct sequence *s) {
    s->begun = s->whole = false;
}
