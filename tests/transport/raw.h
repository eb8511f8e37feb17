/* A client of the data port that says what it likes. */
#ifndef TARN_TESTS_TRANSPORT_RAW_H
#define TARN_TESTS_TRANSPORT_RAW_H

#include "fixture.h"

static int dial(void) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons(w.state->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 60};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    return fd;
}

static void put(int fd, const void *data, size_t len) {
    CHECK_EQ(send(fd, data, len, MSG_NOSIGNAL), (ssize_t)len);
}

/* Where there is a limit, a process that was stopped and goes on is told of it. */
static ssize_t receive(int fd, void *data, size_t len) {
    ssize_t n;
    do n = recv(fd, data, len, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

/* Exactly len bytes; false at the end of the stream. */
static bool get(int fd, void *data, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = receive(fd, (char *)data + at, len - at);
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static bool is_closed(int fd) {
    char ignored[65536];
    ssize_t n;
    while ((n = receive(fd, ignored, sizeof(ignored))) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
}

static struct tcp_header hello_with(int fd, uint16_t version_min, uint16_t version_max,
                                    uint32_t features) {
    struct {
        struct tcp_header h;
        struct tcp_hello hello;
    } f = {.h = {.magic = TCP_MAGIC, .type = TCP_HELLO, .meta_length = sizeof(struct tcp_hello)},
           .hello = {.version_min = version_min, .version_max = version_max, .features = features}};
    put(fd, &f, sizeof(f));
    struct tcp_header reply = {0};
    CHECK(get(fd, &reply, sizeof(reply)));
    char meta[1024];
    CHECK(reply.meta_length <= sizeof(meta));
    CHECK(get(fd, meta, reply.meta_length));
    return reply;
}

static struct tcp_header hello(int fd, uint16_t version_min, uint16_t version_max) {
    return hello_with(fd, version_min, version_max, 0);
}

struct request {
    struct tcp_header h;
    struct tcp_part part;
};

static struct request request(const struct object *o, bool write, uint64_t id) {
    struct request r = {
        .h = {.magic = TCP_MAGIC,
              .version = TCP_VERSION,
              .type = write ? TCP_WRITE : TCP_READ,
              .request_id = id,
              .meta_length = sizeof(struct tcp_part),
              .payload_length = write ? o->size : 0},
        .part = {.extent = o->x[0], .sub_length = o->size},
    };
    memcpy(r.part.grant, o->grant[write][0], GRANT_SIZE);
    return r;
}

#endif
