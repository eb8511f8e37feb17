/* HINT SESSION, which the books know by a number. */
#ifndef TARN_COMMANDS_HINT_H
#define TARN_COMMANDS_HINT_H

#include "front/client.h"
#include "store/store.h"
#include "wire/options.h"

/* 0: it is not given. */
static inline uint32_t hint_session(const struct client *c, const struct wire_hint *hint) {
    return hint->session != 0 ? store_session(c->argv[hint->session]) : 0;
}

#endif
