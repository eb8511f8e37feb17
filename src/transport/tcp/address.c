#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "transport/tcp/tcp.h"

bool tcp_is_secure(const char *uri) {
    return strncmp(uri, "tcps://", 7) == 0;
}

/* Splits tcp://host:port. The host is copied without brackets. */
static bool address_split(const char *uri, char *host, size_t host_size, uint64_t *port_p) {
    if (!tcp_is_secure(uri) && strncmp(uri, "tcp://", 6) != 0) return false;
    const char *start = strchr(uri, '/') + 2, *colon = strrchr(start, ':');
    if (colon == NULL) return false;
    size_t len = (size_t)(colon - start);
    if (len >= 2 && start[0] == '[' && start[len - 1] == ']') {
        start++;
        len -= 2;
    }
    if (len >= host_size) return false;
    memcpy(host, start, len);
    host[len] = '\0';
    return span_to_u64(span_str(colon + 1), port_p) && *port_p <= 65535;
}

bool tcp_uri_host(const char *uri, char *host, size_t size) {
    uint64_t port;
    return address_split(uri, host, size, &port);
}

tarn_status tcp_resolve(const char *uri, bool passive, struct addrinfo **addr_p, uint16_t *port_p) {
    char host[NI_MAXHOST];
    uint64_t port;
    if (!address_split(uri, host, sizeof(host), &port)) {
        log_warning("Not an address of the data port: %s", uri);
        return TARN_EINVAL;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = passive ? AI_PASSIVE : 0};
    const char *node = host;
    if (passive && (strcmp(host, "*") == 0 || strcmp(host, "::*") == 0)) {
        hints.ai_family = host[0] == '*' ? AF_INET : AF_INET6;
        node = NULL;
    }
    *port_p = (uint16_t)port;
    int rc = getaddrinfo(node, strrchr(uri, ':') + 1, &hints, addr_p);
    if (rc == 0) return TARN_OK;
    log_warning("Address %s: %s", uri, gai_strerror(rc));
    return TARN_ENOTFOUND;
}

void tcp_socket_options(int fd) {
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    /* No SO_SNDBUF, SO_RCVBUF: they end the kernel's own tuning, which goes higher than we could
     * ask for. */
}

void tcp_socket_close(int epoll_fd, int fd) {
    (void)epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    (void)shutdown(fd, SHUT_RDWR);
    close(fd);
}
