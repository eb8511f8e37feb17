/* A request from the declaration of its command (src/wire): first the words that its options count
 * in, then request_build, which writes all of it to the connection. */
#ifndef TARN_CLIENT_REQUEST_H
#define TARN_CLIENT_REQUEST_H

#include "client/arena.h"
#include "client/ctl.h"
#include "wire/options.h"

struct arena;
struct ctl;

struct ctl_request {
    struct ctl *ctl;
    struct arena *arena; /* numbers lie there */
    struct span *word;   /* [0] is none */
    uint32_t words, word_cap;
    char *digits; /* of the arena: where the next number goes, */
    size_t digits_left;
    int64_t number; /* the last one, whose word is */
    uint32_t number_word;
};

void request_init(struct ctl_request *r, struct ctl *ctl, struct arena *arena);
void request_deinit(struct ctl_request *r);
void request_begin(struct ctl_request *r);

/* Indices for the options. Bytes are borrowed until request_build. */
uint32_t request_word(struct ctl_request *r, const void *data, size_t len);
uint32_t request_str(struct ctl_request *r, const char *s);
uint32_t request_number(struct ctl_request *r, int64_t value);
/* As PUTEND takes them: four bytes each, the lowest first. */
uint32_t request_crcs(struct ctl_request *r, const uint32_t *crcs, size_t n);
/* The word that comes next, where a list begins. */
static inline uint32_t request_next(const struct ctl_request *r) {
    return r->words;
}

/* It is sent by ctl_commit. */
void request_build(struct ctl_request *r, enum wire_id id, const void *options);

#endif
