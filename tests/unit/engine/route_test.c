/* Ways to many segments: who shares connections with whom. */
#include "../test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"
#include "transport/uri.h"

static struct engine *make(void) {
    log_set_level(LOG_LEVEL_NOTHING);
    struct engine_config c;
    engine_config_init(&c);
    c.connect_timeout_ms = 500;
    struct engine *e;
    CHECK_EQ(engine_create(&c, &e), TARN_OK);
    return e;
}

static void set(struct engine *e, uint32_t id, uint32_t epoch, const char *host, uint16_t port,
                const char *shm) {
    static const uint8_t grant[GRANT_SIZE];
    struct engine_segment s = {
        .id = id, .epoch = epoch, .size = 1u << 20, .attach = {grant, grant}, .same_host = true};
    char *uri[2] = {host != NULL ? uri_make(SPAN("tcp"), host, port) : NULL,
                    shm != NULL ? uri_of_path("shm", shm) : NULL};
    for (int i = 0; i < 2; i++)
        if (uri[i] != NULL) CHECK(engine_segment_way(&s, uri[i]) != NULL);
    CHECK_EQ(engine_segment_set(e, &s), TARN_OK);
    for (int i = 0; i < 2; i++) free(uri[i]);
}

static unsigned targets(const struct engine *e, const struct transport_ops *t) {
    unsigned n = 0;
    const struct engine_target *target;
    LIST_FOREACH(target, &e->kinds[transport_slot(t)].targets, link) n++;
    return n;
}

TEST(segments_of_one_host_share_its_connections) {
    struct engine *e = make();
    for (uint32_t id = 1; id <= 50; id++) set(e, id, 1, "10.0.0.1", 16479, "/run/n1.sock");
    CHECK_EQ(targets(e, &transport_tcp), 1);
    CHECK_EQ(targets(e, &transport_shm), 1);
    for (uint32_t id = 51; id <= 60; id++)
        set(e, id, 1, "10.0.0.1", 16480, NULL); /* another on that machine */
    for (uint32_t id = 61; id <= 70; id++) set(e, id, 1, "fe80::1", 16479, NULL);
    CHECK_EQ(targets(e, &transport_tcp), 3);
    CHECK_EQ(targets(e, &transport_shm), 1);
    /* it has moved */
    for (uint32_t id = 61; id <= 70; id++) set(e, id, 2, "10.0.0.1", 16479, NULL);
    CHECK_EQ(targets(e, &transport_tcp), 2);
    for (uint32_t id = 1; id <= 70; id++) set(e, id, 3, NULL, 0, NULL);
    CHECK_EQ(targets(e, &transport_tcp), 0); /* what nobody uses is closed */
    CHECK_EQ(targets(e, &transport_shm), 0);
    engine_destroy(&e);
}

/* A port where nobody listens, and would not. */
static uint16_t closed_port(int *fd_p) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    *fd_p = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(*fd_p, (struct sockaddr *)&a, sizeof(a)) == 0);
    CHECK(getsockname(*fd_p, (struct sockaddr *)&a, &len) == 0);
    return ntohs(a.sin_port);
}

static tarn_status read_from(struct engine *e, uint32_t id, uint64_t patience_ms) {
    char data[100];
    uint8_t grant[GRANT_SIZE] = {0};
    struct iovec iov = {data, 100};
    struct engine_part part = {{id, 1, 0, 100}, grant, 0, 100};
    struct engine_op op = {
        .parts = &part, .n_parts = 1, .iov = &iov, .n_iov = 1, .patience_ms = patience_ms};
    CHECK_EQ(engine_run(e, &op, 1, clock_boot_ms() + 20000), TARN_OK);
    return op.status;
}

/* The socket file of a host that was killed, and its port. */
TEST(what_a_dead_host_leaves_behind) {
    struct engine *e = make();
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/tarn-route-XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/s", dir);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), port_fd;
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0);
    close(fd);
    uint16_t port = closed_port(&port_fd);
    set(e, 1, 1, "127.0.0.1", port, a.sun_path);
    set(e, 2, 1, NULL, 0, a.sun_path);
    set(e, 3, 1, "127.0.0.1", port, "/nonexistent/s");
    CHECK_EQ(read_from(e, 1, 100), TARN_ECLOSED);
    CHECK_EQ(read_from(e, 2, 100), TARN_ECLOSED);
    CHECK_EQ(read_from(e, 3, 100), TARN_ECLOSED);
    CHECK_EQ(read_from(e, 1, 0), TARN_ECLOSED); /* without patience it is tried a few times */
    CHECK(engine_map(e, 1, 1, 0, 1, false) == NULL);
    struct engine_stats st;
    engine_get_stats(e, &st);
    CHECK(st.fallbacks > 0 && st.connect_failures > 0);
    close(port_fd);
    unlink(a.sun_path);
    rmdir(dir);
    engine_destroy(&e);
}

TEST_MAIN()
