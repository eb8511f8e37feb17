/* Looking at a place before a pool file or a tier is made or taken there: nobody's disk is
 * filled, and nobody's file overwritten, by a path that was not meant. */
#ifndef TARN_POOL_SITE_H
#define TARN_POOL_SITE_H

#include <stdbool.h>
#include <stddef.h>
#include "base/status.h"

/* Is path below a mount point that /etc/fstab names and on which nothing is mounted? Its bytes
 * would go to the disk below. Neither path nor what leads to it need be there. missing_p: that
 * mount point, size bytes. What the machine does not tell is no. */
bool site_unmounted(const char *path, char *missing, size_t size);
/* The same, with other tables than the machine's own: for tests. */
bool site_unmounted_by(const char *fstab, const char *mounts, const char *path, char *missing,
                       size_t size);

/* Is there nothing but zeroes where a file system, an archive or a program begins (the first 128
 * KiB)? */
bool site_blank(int fd);

/* The open file at path becomes this process'. TARN_EINVAL: it belongs to another user, who may
 * have put it there before us and have it open (a device may); TARN_EBUSY: another process has
 * locked it. what: begins the sentence, "pool file ". */
tarn_status site_claim(int fd, const char *what, const char *path, unsigned patience_ms,
                       const char **why_p);

#endif
