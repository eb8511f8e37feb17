/* Values in this process' own memory: of replicas in the embedded segment, and in the books. */
#ifndef TARN_INBAND_OWN_MEMORY_H
#define TARN_INBAND_OWN_MEMORY_H

#include <sys/uio.h>
#include "front/cmd.h"

/* All extents of a replica lie in one segment. */
bool replica_is_local(const struct store_replica *r);
/* The bytes [from, from + len) of such a replica, how many pieces. */
size_t replica_pieces(const struct store_replica *r, uint64_t from, uint64_t len,
                      struct iovec out[STORE_EXTENTS_MAX]);
/* The bytes [from, from + len) of a value, whole or in part: at most STORE_EXTENTS_MAX pieces,
 * valid as long as the object is there or held. 0: it has no replica in this process' memory. */
size_t pool_pieces(const struct object *o, uint64_t from, uint64_t len,
                   struct span pieces[STORE_EXTENTS_MAX]);

#endif
