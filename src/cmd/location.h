/* Replies that say where an object lies, with the grants to get there. Written into one piece of memory with digits placed
 * by hand: a batch of 128 keys has some 2,000 fields, and a call per field would cost more than the books do. */
#ifndef TARN_CMD_LOCATION_H
#define TARN_CMD_LOCATION_H

#include "cmd/cmd.h"
#include "transport/grant.h"

/* Text in the making, for one element of a reply. */
struct text {
    char *at;
    char data[13 * 1024];
};
/* What the largest layout takes, other fields of its element aside. */
#define LOCATION_TEXT_MAX (STORE_REPLICAS_MAX * (32 + STORE_EXTENTS_MAX * 160))

static inline void text_begin(struct text *t) {
    t->at = t->data;
}
void text_array(struct text *t, size_t n);
void text_int(struct text *t, int64_t v);
void text_bulk(struct text *t, const void *data, size_t len); /* small ones: it must fit */
void text_null(struct text *t, int proto);
void text_send(struct client *c, struct text *t);

/* Appends "[replica, ...]": each extent with a grant of op for session until expiry_ms; expiry_ms 0: no grants. */
void text_replicas(struct text *t, const struct store_layout *layout, enum grant_op op, uint64_t session,
                   uint64_t expiry_ms);

/* Seals a grant of this master for its own host. */
void location_seal(enum grant_op op, uint64_t session, uint64_t expiry_ms, const struct grant_extent *e,
                   uint8_t out[GRANT_SIZE]);

#endif
