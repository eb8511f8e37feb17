#include "base/fd_pass.h"

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

ssize_t fd_pass_send(int sock, const void *bytes, size_t size, int fd) {
    struct iovec iov = {(void *)(uintptr_t)bytes, size};
    union control control = {{0}};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&msg);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &fd, sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
}

ssize_t fd_pass_receive(int sock, void *bytes, size_t size, int *fd_p) {
    struct iovec iov = {bytes, size};
    union control control;
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.bytes,
                         .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *head = n >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (head == NULL || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return n;
    /* there is room for one, and for what alignment adds */
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= head->cmsg_len; at += sizeof(int)) {
        int came;
        memcpy(&came, (char *)head + at, sizeof(came));
        if (*fd_p < 0)
            *fd_p = came;
        else
            close(came);
    }
    return n;
}
