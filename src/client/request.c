#include "client/request.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "client/client.h"

enum { FIRST_CAP = 64, DIGITS_MAX = 24, DIGITS_BLOCK = 1024 };

void request_init(struct ctl_request *r, struct ctl *ctl, struct arena *arena) {
    *r = (struct ctl_request){.ctl = ctl, .arena = arena};
}

void request_deinit(struct ctl_request *r) {
    free(r->word);
    r->word = NULL;
    r->words = r->word_cap = 0;
}

void request_begin(struct ctl_request *r) {
    r->words = r->number_word = 0;
    r->digits_left = 0; /* the arena may have been rewound */
    request_word(r, "", 0);
}

uint32_t request_word(struct ctl_request *r, const void *data, size_t len) {
    if (r->words == r->word_cap) {
        r->word_cap = r->word_cap == 0 ? FIRST_CAP : r->word_cap * 2;
        r->word = xrealloc(r->word, r->word_cap * sizeof(*r->word));
    }
    r->word[r->words] = span_of(data, len);
    return r->words++;
}

uint32_t request_str(struct ctl_request *r, const char *s) {
    return request_word(r, s, strlen(s));
}

/* Values of a batch mostly have one size. */
uint32_t request_number(struct ctl_request *r, int64_t value) {
    if (r->number_word != 0 && r->number == value) {
        struct span same = r->word[r->number_word];
        return request_word(r, same.data, same.len);
    }
    if (r->digits_left < DIGITS_MAX) {
        r->digits = arena_alloc(r->arena, DIGITS_BLOCK);
        r->digits_left = DIGITS_BLOCK;
    }
    char *digits = r->digits;
    size_t len = i64_to_dec(value, digits);
    r->digits += len;
    r->digits_left -= len;
    r->number = value;
    return r->number_word = request_word(r, digits, len);
}

uint32_t request_crcs(struct ctl_request *r, const uint32_t *crcs, size_t n) {
    uint8_t *packed = arena_alloc(r->arena, n * 4 + 1);
    for (size_t i = 0; i < n; i++) {
        for (unsigned b = 0; b < 4; b++) packed[4 * i + b] = (uint8_t)(crcs[i] >> (8 * b));
    }
    return request_word(r, packed, n * 4);
}

static void sink_word(void *ctl, struct span word) {
    ctl_arg(ctl, word.data, word.len);
}

static void sink_number(void *ctl, int64_t value) {
    ctl_arg_i64(ctl, value);
}

void request_build(struct ctl_request *r, enum wire_id id, const void *options) {
    const struct wire_sink sink = {r->ctl, sink_word, sink_number};
    ctl_begin(r->ctl, wire_commands[id].name);
    wire_build(&wire_commands[id], options, r->word, &sink);
}
