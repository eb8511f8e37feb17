#include "base/program.h"

#include <stdio.h>

#include "base/assert.h"

uint32_t program_own(void) {
    unsigned major = 0, minor = 0, patch = 0;
    (void)sscanf(TARN_VERSION, "%u.%u.%u", &major, &minor, &patch);
    return major << 16 | minor << 8 | patch;
}

void program_write(uint32_t program, char text[PROGRAM_TEXT]) {
    if (program == PROGRAM_OTHER)
        snprintf(text, PROGRAM_TEXT, "other");
    else if (program == 0)
        snprintf(text, PROGRAM_TEXT, "0.1");
    else
        snprintf(text, PROGRAM_TEXT, "%u.%u.%u", program >> 16 & 0xff, program >> 8 & 0xff,
                 program & 0xff);
}

uint32_t program_add(struct program_counts *c, uint32_t program, uint32_t peers) {
    struct program_count *place = &c->of[PROGRAM_COUNTS];
    for (unsigned i = PROGRAM_COUNTS; i-- > 0 && program != PROGRAM_OTHER;) {
        if (c->of[i].peers > 0 && c->of[i].program == program) {
            place = &c->of[i];
            break;
        }
        if (c->of[i].peers == 0) place = &c->of[i];
    }
    place->program = place == &c->of[PROGRAM_COUNTS] ? PROGRAM_OTHER : program;
    place->peers += peers;
    return place->program;
}

void program_drop(struct program_counts *c, uint32_t added) {
    for (unsigned i = 0; i <= PROGRAM_COUNTS; i++) {
        if (c->of[i].peers == 0 || c->of[i].program != added) continue;
        c->of[i].peers--;
        return;
    }
    TARN_ASSERT(!"a peer that was not counted");
}

void program_add_all(struct program_counts *sum, const struct program_counts *more) {
    for (unsigned i = 0; i <= PROGRAM_COUNTS; i++)
        if (more->of[i].peers > 0) (void)program_add(sum, more->of[i].program, more->of[i].peers);
}
