/* Where the unix socket of shm goes when nobody has said where. Whoever can write to its folder can
 * take its name before us, or put something else there that clients would talk to. */
#ifndef TARN_HOST_PLACE_H
#define TARN_HOST_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#define HOST_SOCKET_MAX 108u /* sun_path */

/* A folder of ours that nobody else can write to; of these the first that is one:
 *
 *   $RUNTIME_DIRECTORY   a service of systemd has it (RuntimeDirectory=tarn; the first of several)
 *   /run/tarn            made where it is missing by root, else only used
 *   $XDG_RUNTIME_DIR     of who is logged in
 *   TMPDIR/tarn-UID      made, with mode 0700; TMPDIR or /tmp
 *
 * No link is followed to it. *out_p becomes the path of the socket `name` in it (of a hash of that
 * name where the path would be too long). false: there is none, which is logged. Does not block,
 * but for the file system. */
bool host_socket_path(const char *name, char out[HOST_SOCKET_MAX]);

#endif
