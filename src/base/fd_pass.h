/* Bytes through a unix socket that bring a descriptor (SCM_RIGHTS). */
#ifndef TARN_BASE_FD_PASS_H
#define TARN_BASE_FD_PASS_H

#include <stddef.h>
#include <sys/types.h>

/* As send, with MSG_DONTWAIT | MSG_NOSIGNAL. fd stays the caller's; -1: none is sent. */
ssize_t fd_pass_send(int sock, const void *bytes, size_t size, int fd);
/* As recv, with MSG_DONTWAIT. The first descriptor that came is the caller's, if *fd_p was -1 and
 * bytes came with it; all others are closed. */
ssize_t fd_pass_receive(int sock, void *bytes, size_t size, int *fd_p);

#endif
