/* Replies that say where an object lies, with the grants to get there. Written into one piece of
 * memory with digits placed by hand: a batch of 128 keys has some 2,000 fields, and a call per
 * field would cost more than the books do. */
#ifndef TARN_FRONT_LOCATION_H
#define TARN_FRONT_LOCATION_H

#include "front/cmd.h"
#include "transport/grant.h"

/* Text in the making, for one element of a reply. */
struct text {
    char *at;
    char data[13 * 1024];
};
/* What the largest layout takes, other fields of its element aside. */
#define LOCATION_TEXT_MAX (STORE_REPLICAS_MAX * (32 + STORE_EXTENTS_MAX * 160))
#define LOCATION_PATH_MAX 1200u /* of a file: its directory and the name in there */

static inline void text_begin(struct text *t) {
    t->at = t->data;
}
void text_array(struct text *t, size_t n);
void text_int(struct text *t, int64_t v);
void text_bulk(struct text *t, const void *data, size_t len); /* small ones: it must fit */
void text_null(struct text *t, int proto);
void text_send(struct client *c, struct text *t);

/* What the grants of a layout say. */
#define LOCATION_ATTACH_MS 60000u /* grants to attach are for use at once */

/* No grant that this session was given is good for longer than this from now on. */
uint64_t location_session_grants_ms(uint64_t session);

struct location_grant {
    enum grant_op op;
    uint64_t session, expiry_ms;
    /* of the put; 0: it is none, or its writer is trusted with the segment */
    uint64_t token;
};
struct grant location_grant_of(const struct location_grant *grant);
/* What the grants of a put say. */
struct location_grant location_put_grant(const struct store_put *put);
/* Are these the words of its hosts that nothing more is written by the put's grants, one for each
 * extent of the replicas that are not in `without` (bit i, replica i)? whole: and that all of it
 * was written. */
bool location_receipts(const struct store_put *put, uint32_t without, bool whole,
                       struct span receipts);
/* Are they as many bytes as they must be? */
bool location_receipts_fit(const struct store_put *put, struct span receipts);
/* Appends "[replica, ...]": memory and ssd with extents and a grant for each (grant NULL: without
 * them), file with path and size. key and version are those of the object: files are named by
 * them. */
void text_replicas(struct text *t, const struct store_layout *layout, struct span key,
                   uint64_t version, const struct location_grant *grant);
/* Answers the packed form (transport/place.h) of a value of one replica in one extent of memory,
 * with its grant, or (grant NULL) without one. false, and nothing answered: it is none, or there
 * is no grant for it. */
struct place_packed;
bool location_packed(struct client *c, const struct store_layout *layout,
                     const struct location_grant *grant, struct place_packed *place);
const char *location_tier_name(enum store_tier tier); /* "memory", "ssd", "file" */

/* Is its user trusted with whole segments (@direct)? Whoever is not is held to his grants: what
 * they allow, and how long. */
bool location_trusted(const struct client *c);
/* Does it get places without grants, for which it asks with NOGRANT? A session that reads and
 * writes by what it has mapped shows none, and is fenced with these mappings: what it was told is
 * protected, kept from others and cut off as if it had grants. Who is not trusted has nothing
 * else, so he gets them. */
static inline bool location_no_grant(const struct client *c, bool asks) {
    return asks && location_trusted(c);
}
/* Seals a grant for the host of e->segment. false: there is no such segment. */
bool location_seal(enum grant_op op, uint64_t session, uint64_t expiry_ms,
                   const struct grant_extent *e, uint8_t out[GRANT_SIZE]);
/* The number of the machine that c runs on; STORE_HOST_NONE: it did not say, or no host is
 * there. */
uint32_t location_host(struct client *c);

#endif
