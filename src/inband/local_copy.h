/* New replicas in the embedded segment: the part of a storage node that this process plays itself
 * (struct cluster_local_ops). Reads the value from one of its other replicas, verified, straight to
 * where it will stay. */
#ifndef TARN_INBAND_LOCAL_COPY_H
#define TARN_INBAND_LOCAL_COPY_H

#include "front/cmd.h"

/* For cluster_local_ops: cluster_local_done(task, status) follows on TARN_OK, not from inside.
 * TARN_EAGAIN: enough of them are under way. TARN_ENOTFOUND: that version is gone. */
tarn_status local_copy_start(void *arg, uint64_t task, struct span key, uint64_t version,
                             uint64_t size, const struct store_replica *to);
void local_copy_cancel(void *arg, uint64_t task);
/* Ends all of them, and tells nobody. Before remote_deinit. */
void local_copy_deinit(void);

#endif
