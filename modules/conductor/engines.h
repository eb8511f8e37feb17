/* Who is registered. A registration is what CONDUCTOR.ADD said of one rank of an engine; it is kept
 * (kept.h) under "e/ID/RANK" as its values, each as text:
 *
 *     u8 tag, u16 length (little-endian), that many bytes     in the order of the fields
 *
 * A tag that is unknown, of a later version, is passed over. What is kept is the registration; the
 * route follows it, also on replicas. */
#ifndef TARN_CONDUCTOR_ENGINES_H
#define TARN_CONDUCTOR_ENGINES_H

#include "base/buf.h"
#include "route/route.h"

enum engine_field {
    ENGINE_URL, /* these may differ from rank to rank */
    ENGINE_EVENTS,
    ENGINE_REPLAY,
    ENGINE_METRICS,
    ENGINE_OF_ALL, /* ... and those from here on not */
    ENGINE_ROLE = ENGINE_OF_ALL,
    ENGINE_MODEL,
    ENGINE_LORA,
    ENGINE_TENANT,
    ENGINE_SALT,
    ENGINE_BLOCK,
    ENGINE_KVBLOCKS,
    ENGINE_HOST,
    ENGINE_RACK,
    ENGINE_BYTES,
    ENGINE_FIELDS
};

/* Borrowed bytes; what was not said is empty. */
struct registration {
    struct span id;
    uint32_t rank;
    struct span field[ENGINE_FIELDS];
};

const char *engine_field_name(enum engine_field f); /* "BLOCK" */

/* Pure: the value, and what it says. false: it is none, or has what no registration has. */
void registration_write(const struct registration *x, struct buf *out);
bool registration_read(struct span value, struct registration *x);
/* The name under which it is kept, and what a name says. false: it is no such name. */
#define REGISTRATION_NAME_MAX (ROUTE_NAME_MAX + 8)
struct span registration_name(struct span id, uint32_t rank, char out[REGISTRATION_NAME_MAX]);
bool registration_named(struct span name, struct span *id_p, uint32_t *rank_p);
/* The first field in which they differ and may not, ENGINE_FIELDS: none. two_ranks: two ranks of an
 * engine are compared, whose URLs may differ. Where its events and figures come from may always
 * change. */
enum engine_field registration_differs(const struct registration *a, const struct registration *b,
                                       bool two_ranks);
bool registration_sources_differ(const struct registration *a, const struct registration *b);
void registration_spec(const struct registration *x, struct route_engine_spec *spec);

#endif
