/* Two ends of transfers in one process, for the tests of this folder. */
#ifndef TARN_TESTS_UNIT_CLIENT_TRANSFER_PAIR_H
#define TARN_TESTS_UNIT_CLIENT_TRANSFER_PAIR_H

#include <stdlib.h>
#include <string.h>

#include "../test.h"
#include "client/client.h"
#include "transfer/transfer.h"

#define MIB (UINT64_C(1) << 20)

struct pair {
    tarn_transfer *owner, *user;
    tarn_transfer_peer *peer; /* the owner, as seen from the user */
    char *memory;             /* the owner's */
    uint32_t region;
    uint64_t size;
};

static inline void silence(void *arg, int level, const char *text) {
    (void)arg, (void)level, (void)text;
}

static inline tarn_transfer *end_open(const char *transport, const char *secret) {
    tarn_transfer_options o;
    tarn_transfer_options_init(&o);
    o.transport = transport;
    o.secret = secret;
    o.shm_socket = strcmp(transport, "tcp") == 0 ? "" : NULL;
    tarn_transfer *t = NULL;
    tarn_set_log(silence, NULL);
    CHECK_EQ(tarn_transfer_open(&o, &t), TARN_OK);
    return t;
}

static inline void fill(char *memory, uint64_t size, unsigned seed) {
    for (uint64_t i = 0; i < size; i++) memory[i] = (char)(i * 31 + i / 4093 + seed);
}

static inline struct pair pair_open(const char *transport, bool made_by_us, int rights) {
    struct pair p = {.size = 4 * MIB};
    p.owner = end_open(transport, NULL);
    p.user = end_open(transport, NULL);
    if (made_by_us) {
        CHECK_EQ(
            tarn_transfer_alloc(p.owner, p.size, rights, "kv", 0, (void **)&p.memory, &p.region),
            TARN_OK);
    } else {
        p.memory = malloc(p.size);
        CHECK_EQ(tarn_transfer_register(p.owner, p.memory, p.size, rights, "kv", &p.region),
                 TARN_OK);
    }
    CHECK(p.region != 0);
    CHECK_EQ(tarn_transfer_connect(p.user, tarn_transfer_endpoint(p.owner), 0, &p.peer), TARN_OK);
    fill(p.memory, p.size, 1);
    return p;
}

static inline void pair_close(struct pair *p, bool made_by_us) {
    tarn_transfer_disconnect(&p->peer);
    tarn_transfer_close(&p->user);
    if (!made_by_us) CHECK_EQ(tarn_transfer_unregister(p->owner, p->memory), TARN_OK);
    tarn_transfer_close(&p->owner);
    if (!made_by_us) free(p->memory);
}

static inline tarn_transfer_event next_event(tarn_transfer *t, int kind, const char *label,
                                             const char *data) {
    tarn_transfer_event e = {.size = sizeof(e)};
    CHECK_EQ(tarn_transfer_next_event(t, 5000, &e), TARN_OK);
    CHECK_EQ(e.kind, kind);
    CHECK_STR(e.label, label);
    CHECK_EQ(e.len, strlen(data));
    if (e.len > 0) CHECK_STR((char *)e.data, data);
    tarn_free(e.data);
    return e;
}

static inline void no_event(tarn_transfer *t) {
    tarn_transfer_event e = {.size = sizeof(e)};
    CHECK_EQ(tarn_transfer_next_event(t, 0, &e), TARN_EAGAIN);
}

#endif
