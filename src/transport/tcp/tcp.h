/* What the files of the tcp transport share. */
#ifndef TARN_TRANSPORT_TCP_TCP_H
#define TARN_TRANSPORT_TCP_TCP_H

#include <netdb.h>

#include "transport/tcp/frame.h"
#include "transport/transport.h"

struct tcp_tag { /* first member of what an epoll event's pointer points to */
    enum { TCP_TAG_ENDPOINT, TCP_TAG_NOTIFY } kind;
};

#define TCP_TOLD 16u /* targets of which a trouble with settings is remembered */

struct transport_domain {
    uint32_t magic;
    int epoll_fd;
    int notify_fd; /* eventfd: a listener's data threads have done what was asked */
    struct tcp_tag notify_tag;
    TAILQ_HEAD(run_queue, transport_endpoint) endpoints, runnable;
    unsigned listeners;
    const struct transport_tls *tls; /* of connections to tcps://; NULL: there can be none */
    uint64_t completed;              /* operations, during this progress */
    struct {
        uint64_t target, told_ms;
    } told[TCP_TOLD];
};

/* tcp://host:port, tcp://[v6]:port, and the same with tcps. addr_p: freeaddrinfo it. May block in
 * the resolver; numeric hosts do not. passive: for listening; host may be "*" or "::*". */
tarn_status tcp_resolve(const char *uri, bool passive, struct addrinfo **addr_p, uint16_t *port_p);
/* Does it begin with tcps://? */
bool tcp_is_secure(const char *uri);
/* The host in it, without brackets. false: it is no such URI, or the host is longer. */
bool tcp_uri_host(const char *uri, char *host, size_t size);
void tcp_socket_options(int fd);
/* Ends the connection and closes fd, which epoll_fd watches. A child that the program has forked
 * may hold the socket, too: a mere close would then end nothing, and leave events of something that
 * is gone. */
void tcp_socket_close(int epoll_fd, int fd);

/* Answers whoever connected with a refusal, in plain text. text may be "". */
void tcp_turn_away(int fd, uint32_t status, const char *text);

tarn_status tcp_listen(struct transport_domain *d, const struct transport_listen_config *config,
                       struct transport_listener **listener_p);
uint16_t tcp_listener_port(const struct transport_listener *l);
void tcp_listener_times(const struct transport_listener *l, struct transport_times *sum);
void tcp_listener_programs(const struct transport_listener *l, struct program_counts *sum);
void tcp_listener_stats(const struct transport_listener *l,
                        struct transport_listener_stats *stats_p);
tarn_status tcp_listener_fence(struct transport_listener *l, const struct transport_fence *fence);
void tcp_listener_close(struct transport_listener **listener_p);
tarn_status tcp_listener_read(struct transport_listener *l, struct transport_op *op,
                              uint64_t deadline_boot_ms);

tarn_status tcp_connect(struct transport_domain *d, const char *uri, uint64_t deadline_boot_ms,
                        struct transport_endpoint **endpoint_p);
tarn_status tcp_endpoint_status(const struct transport_endpoint *e);
void tcp_endpoint_close(struct transport_endpoint **endpoint_p);
tarn_status tcp_submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                       size_t *accepted_p);
size_t tcp_progress(struct transport_domain *d, uint64_t budget);
tarn_status tcp_arm(struct transport_domain *d, int *fd_p);

#endif
