/* The fake's connections, peers in other processes, and what tests may do to it. */
#include "pair.h"

#include <signal.h>
#include <sys/prctl.h>

/* --- rdma_cm --- */

TEST(private_data_has_its_sizes) {
    uint8_t data[200];
    begin_with("");
    fill(data, sizeof(data), 1);
    end_listen(&b, "127.0.0.1");
    uint16_t port = ntohs(rdma_get_src_port(b.listener));
    end_route(&a, "127.0.0.1", "127.0.0.1", port);
    end_verbs(&a, a.id->verbs, MIB, IBV_ACCESS_LOCAL_WRITE);
    end_qp(&a);
    struct rdma_conn_param p = param_of(&a, data, 57);
    CHECK(rdma_connect(a.id, &p) == -1 && errno == EINVAL);
    p.private_data_len = 20;
    CHECK_EQ(rdma_connect(a.id, &p), 0);
    struct rdma_cm_event *e = next_event(b.channel);
    CHECK(e != NULL && e->event == RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(e->listen_id == b.listener && e->id->context == b.listener->context);
    CHECK_EQ(e->param.conn.private_data_len, 56); /* always */
    CHECK_EQ(e->param.conn.qp_num, a.qp->qp_num);
    const uint8_t *seen = e->param.conn.private_data;
    CHECK(memcmp(seen, data, 20) == 0 && seen[20] == 0 && seen[55] == 0);
    struct sockaddr_in *peer = (void *)rdma_get_peer_addr(e->id);
    CHECK_EQ(peer->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    struct rdma_cm_id *id = e->id;
    CHECK(rdma_reject(id, data, 149) == -1 && errno == EINVAL);
    CHECK_EQ(rdma_reject(id, data + 1, 148), 0);
    CHECK_EQ(rdma_destroy_id(id), 0); /* before its event is acknowledged: that is the listener's */
    rdma_ack_cm_event(e);
    e = next_event(a.channel);
    CHECK(e != NULL && e->event == RDMA_CM_EVENT_REJECTED);
    CHECK_EQ(e->status, 28);
    CHECK_EQ(e->param.conn.private_data_len, 148);
    CHECK(memcmp(e->param.conn.private_data, data + 1, 148) == 0);
    rdma_ack_cm_event(e);
    CHECK(rdma_connect(a.id, &p) == -1 && errno == EINVAL);
    over();
}

TEST(nobody_listens) {
    begin_with("");
    end_listen(&b, "127.0.0.1");
    uint16_t port = ntohs(rdma_get_src_port(b.listener));
    CHECK_EQ(rdma_destroy_id(b.listener), 0);
    b.listener = NULL;
    end_connect(&a, "127.0.0.1", "127.0.0.1", port, MIB);
    expect_event(a.channel, RDMA_CM_EVENT_REJECTED, 8);
    over();
}

TEST(a_listener_takes_its_requests_along) {
    begin_with("");
    end_listen(&b, "127.0.0.1");
    end_connect(&a, "127.0.0.1", "127.0.0.1", ntohs(rdma_get_src_port(b.listener)), MIB);
    struct pollfd p = {.fd = b.channel->fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 5000), 1); /* it has come, and nobody looks at it */
    CHECK_EQ(rdma_destroy_id(b.listener), 0);
    b.listener = NULL;
    CHECK_EQ(poll(&p, 1, 0), 0);
    expect_event(a.channel, RDMA_CM_EVENT_REJECTED, 28);
    over();
}

TEST(a_full_backlog_refuses) {
    struct end c[6] = {0};
    begin_with("");
    end_listen(&b, "127.0.0.1");
    CHECK_EQ(rdma_destroy_id(b.listener), 0);
    struct sockaddr_storage at = address("127.0.0.1", 0);
    CHECK_EQ(rdma_create_id(b.channel, &b.listener, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_bind_addr(b.listener, (struct sockaddr *)&at), 0);
    CHECK_EQ(rdma_listen(b.listener, 4), 0);
    for (unsigned i = 0; i < 6; i++)
        end_connect(&c[i], "127.0.0.1", "127.0.0.1", ntohs(rdma_get_src_port(b.listener)), 4096);
    unsigned refused = 0;
    for (unsigned i = 0; i < 6; i++) {
        struct pollfd p = {.fd = c[i].channel->fd, .events = POLLIN};
        if (poll(&p, 1, 100) != 1) continue;
        expect_event(c[i].channel, RDMA_CM_EVENT_REJECTED, 28);
        refused++;
    }
    CHECK_EQ(refused, 2);
    for (unsigned i = 0; i < 6; i++) end_down(&c[i]);
    over();
}

TEST(addresses_and_devices) {
    begin_with("devices=2,addresses=127.0.0.3;127.0.0.4");
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id, *second;
    struct sockaddr_storage no = address("127.0.0.1", 0), yes = address("127.0.0.4", 0);
    CHECK_EQ(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
    CHECK(rdma_bind_addr(id, (struct sockaddr *)&no) == -1 && errno == ENODEV);
    CHECK_EQ(rdma_bind_addr(id, (struct sockaddr *)&yes), 0);
    CHECK_STR(ibv_get_device_name(id->verbs->device), "fake1");
    CHECK_EQ(rdma_listen(id, 1), 0);
    struct sockaddr_storage taken = address("127.0.0.4", ntohs(rdma_get_src_port(id)));
    CHECK_EQ(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP), 0);
    CHECK(rdma_bind_addr(second, (struct sockaddr *)&taken) == -1 && errno == EADDRINUSE);
    union ibv_gid gid;
    CHECK_EQ(ibv_query_gid(id->verbs, 1, 2, &gid), 0);
    CHECK(gid.raw[10] == 0xff && gid.raw[12] == 127 && gid.raw[15] == 4);
    fcntl(channel->fd, F_SETFL, O_NONBLOCK);
    struct rdma_cm_event *e;
    CHECK(rdma_get_cm_event(channel, &e) == -1 && errno == EAGAIN);
    rdma_destroy_id(id);
    rdma_destroy_id(second);
    rdma_destroy_event_channel(channel);
    over();
}

TEST(both_sides_part) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    CHECK_EQ(rdma_disconnect(a.id), 0);
    expect_event(b.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    expect_completion(&a, 1, IBV_WC_SUCCESS); /* queue pairs are the program's own */
    CHECK_EQ(rdma_disconnect(b.id), 0);
    expect_event(a.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    expect_event(a.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    expect_event(b.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    CHECK(rdma_disconnect(a.id) == -1 && errno == EINVAL);
    over();
}

TEST(a_destroyed_queue_pair_answers_nobody) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    for (unsigned i = 0; i < 20; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, 0, 0, MIB, there(0), b.mr->rkey), 0);
    CHECK_EQ(ibv_destroy_qp(b.qp), 0);
    b.qp = NULL;
    memset(b.memory, 3, b.size); /* from here on it is ours */
    struct ibv_wc wc = completion(&a);
    CHECK_STR(ibv_wc_status_str(wc.status), ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR));
    for (uint64_t i = wc.wr_id + 1; i < 20; i++) expect_completion(&a, i, IBV_WC_WR_FLUSH_ERR);
    for (size_t i = 0; i < b.size; i++) CHECK_EQ(b.memory[i], 3);
    over();
}

/* --- two processes --- */

struct shared {
    uint16_t port;
    uint64_t addr;
    uint32_t rkey;
    uint8_t *seen;
};

/* A host that serves one connection, and then does nothing at all. */
static pid_t host(struct shared *s) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(&b, 0, sizeof(b));
    end_listen(&b, "127.0.0.1");
    __atomic_store_n(&s->port, ntohs(rdma_get_src_port(b.listener)), __ATOMIC_RELEASE);
    end_accept(&b, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    s->addr = (uintptr_t)b.memory;
    fill(b.memory, MIB, 77);
    __atomic_store_n(&s->rkey, b.mr->rkey, __ATOMIC_RELEASE);
    for (;;) pause();
}

static pid_t begin_two(struct shared **s) {
    begin_with("stall_ms=2000");
    *s = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = host(*s);
    while (__atomic_load_n(&(*s)->port, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    end_connect(&a, "127.0.0.1", "127.0.0.1", (*s)->port, MIB);
    end_establish(&a);
    while (__atomic_load_n(&(*s)->rkey, __ATOMIC_ACQUIRE) == 0) usleep(1000);
    return pid;
}

static void end_two(pid_t pid, struct shared *s) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    munmap(s, 4096);
    over();
}

TEST(another_process_serves_without_doing_anything) {
    struct shared *s;
    pid_t pid = begin_two(&s);
    uint8_t *expected = malloc(MIB);
    fill(expected, MIB, 77);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, 0, MIB, s->addr, s->rkey), 0);
    expect_completion(&a, 1, IBV_WC_SUCCESS);
    CHECK(memcmp(a.memory, expected, MIB) == 0);
    free(expected);
    end_two(pid, s);
}

TEST(a_stopped_process_goes_on_later) {
    struct shared *s;
    pid_t pid = begin_two(&s);
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, 0, 100, s->addr, s->rkey), 0);
    expect_nothing(&a, 50);
    kill(pid, SIGCONT);
    expect_completion(&a, 1, IBV_WC_SUCCESS);
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 2, IBV_SEND_SIGNALED, 0, 100, s->addr, s->rkey), 0);
    expect_completion(&a, 2, IBV_WC_RETRY_EXC_ERR); /* after stall_ms */
    end_two(pid, s);
}

TEST(a_killed_process_is_gone) {
    struct shared *s;
    pid_t pid = begin_two(&s);
    fake_hold(false);
    for (unsigned i = 0; i < 30; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, 0, 0, MIB, s->addr, s->rkey), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 50, 0, 0, 100, s->addr, s->rkey), 0);
    expect_event(a.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    struct ibv_wc wc = completion(&a);
    CHECK_STR(ibv_wc_status_str(wc.status), ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR));
    munmap(s, 4096);
    over();
}

/* --- injections --- */

TEST(a_port_goes_down_and_comes_back) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_async_event event;
    struct ibv_port_attr port;
    fake_port("fake0", false);
    CHECK_EQ(ibv_get_async_event(a.verbs, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_PORT_ERR);
    ibv_ack_async_event(&event);
    CHECK_EQ(ibv_query_port(a.verbs, 1, &port), 0);
    CHECK_EQ(port.state, IBV_PORT_DOWN);
    fake_port("fake0", true);
    CHECK_EQ(ibv_get_async_event(a.verbs, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_PORT_ACTIVE);
    ibv_ack_async_event(&event);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 1, IBV_SEND_SIGNALED, 0, 100, there(0), b.mr->rkey), 0);
    expect_completion(&a, 1, IBV_WC_SUCCESS);
    fake_port("fake0", false);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 2, IBV_SEND_SIGNALED, 0, 100, there(0), b.mr->rkey), 0);
    expect_completion(&a, 2, IBV_WC_RETRY_EXC_ERR);
    over();
}

TEST(a_device_breaks) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_async_event event;
    fake_hold(true);
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, i, IBV_SEND_SIGNALED, 0, MIB, there(0), b.mr->rkey),
                 0);
    fake_device_remove("fake0", false);
    fake_hold(false);
    expect_event(a.channel, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
    for (unsigned i = 0; i < 4; i++) {
        struct ibv_wc wc = completion(&a);
        CHECK_EQ(wc.wr_id, i);
        CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR);
    }
    CHECK_EQ(ibv_get_async_event(a.verbs, &event), 0);
    CHECK_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
    ibv_ack_async_event(&event);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 9, 0, 0, 1, there(0), b.mr->rkey), EIO);
    CHECK(ibv_alloc_pd(a.verbs) == NULL && errno == EIO);
    CHECK(ibv_reg_mr(a.pd, a.memory, 4096, 0) == NULL && errno == EIO);
    struct ibv_device_attr attr;
    CHECK_EQ(ibv_query_device(a.verbs, &attr), EIO);
    int n;
    CHECK(rdma_get_devices(&n) == NULL);
    fake_device_add("fake7", NULL);
    struct ibv_context **list = rdma_get_devices(&n);
    CHECK_EQ(n, 1);
    CHECK_STR(ibv_get_device_name(list[0]->device), "fake7");
    rdma_free_devices(list);
    over();
}

TEST(wires_and_queue_pairs_break) {
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    fake_cut(b.qp->qp_num); /* their side */
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 1, 0, 0, 1, there(0), b.mr->rkey), 0);
    expect_completion(&a, 1, IBV_WC_RETRY_EXC_ERR);
    struct pollfd p = {.fd = a.channel->fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 0), 0);
    fake_disconnect(a.qp->qp_num);
    expect_event(a.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    over();
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    fake_cut(a.qp->qp_num);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 1, 0, 0, 1, there(0), b.mr->rkey), 0);
    CHECK_EQ(post(&a, IBV_WR_RDMA_READ, 2, 0, 0, 1, there(0), b.mr->rkey), 0);
    fake_qp_error(a.qp->qp_num, IBV_WC_REM_OP_ERR);
    expect_completion(&a, 1, IBV_WC_REM_OP_ERR);
    expect_completion(&a, 2, IBV_WC_WR_FLUSH_ERR);
    over();
}

TEST(calls_fail_when_told) {
    begin_with("");
    fake_fail(FAKE_CREATE_EVENT_CHANNEL, 0, 1, EMFILE);
    CHECK(rdma_create_event_channel() == NULL && errno == EMFILE);
    end_listen(&b, "127.0.0.1");
    fake_fail(FAKE_CREATE_ID, 0, 1, ENOMEM);
    CHECK(rdma_create_id(b.channel, &b.id, NULL, RDMA_PS_TCP) == -1 && errno == ENOMEM);
    struct ibv_context **list = rdma_get_devices(NULL);
    fake_fail(FAKE_ALLOC_PD, 1, 2, ENOSPC); /* the second and the third */
    struct ibv_pd *pd = ibv_alloc_pd(list[0]);
    CHECK(pd != NULL);
    CHECK(ibv_alloc_pd(list[0]) == NULL && errno == ENOSPC);
    CHECK(ibv_alloc_pd(list[0]) == NULL && errno == ENOSPC);
    b.pd = ibv_alloc_pd(list[0]);
    CHECK(b.pd != NULL);
    CHECK_EQ(ibv_dealloc_pd(pd), 0);
    CHECK_EQ(fake_count(FAKE_PDS), 1);
    rdma_free_devices(list);
    over();
}

/* For processes that no test lives in. */
TEST(a_file_says_what_to_do) {
    char path[64], options[96];
    snprintf(path, sizeof(path), "/tmp/tarn-fake-control-%d", (int)getpid());
    snprintf(options, sizeof(options), "control=%s", path);
    begin_with(options);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    pair_up(&a, &b, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    struct ibv_async_event event;
    CHECK(dprintf(fd, "port fake0 down\nport fake0 ") > 0);
    CHECK_EQ(ibv_get_async_event(a.verbs, &event), 0);
    enum ibv_event_type first = event.event_type;
    ibv_ack_async_event(&event);
    CHECK(dprintf(fd, "up\nqp %u error\n", a.qp->qp_num) > 0);
    CHECK_EQ(ibv_get_async_event(a.verbs, &event), 0);
    enum ibv_event_type second = event.event_type;
    ibv_ack_async_event(&event);
    CHECK_EQ(ibv_get_async_event(a.verbs, &event), 0);
    enum ibv_event_type third = event.event_type;
    ibv_ack_async_event(&event);
    unlink(path);
    close(fd);
    CHECK_EQ(first, IBV_EVENT_PORT_ERR);
    CHECK_EQ(second, IBV_EVENT_PORT_ACTIVE);
    CHECK_EQ(third, IBV_EVENT_QP_FATAL);
    over();
}

TEST(a_child_starts_afresh) {
#ifdef __SANITIZE_THREAD__
    SKIP("ThreadSanitizer has no threads in the child of a program with threads");
#endif
    if (getenv("TEST_UNDER") != NULL && *getenv("TEST_UNDER") != '\0')
        SKIP("nor has qemu-user, which the Makefile names in TEST_UNDER");
    begin(IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) { /* the parent's objects are there, connected to nobody */
        struct end c = {0}, d = {0};
        pair_up(&c, &d, MIB, IBV_ACCESS_LOCAL_WRITE | RIGHT_WRITE, RIGHT_WRITE);
        c.memory[0] = 1;
        CHECK_EQ(post(&c, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, 0, 1, (uintptr_t)d.memory,
                      d.mr->rkey),
                 0);
        expect_completion(&c, 1, IBV_WC_SUCCESS);
        b.memory[9] = d.memory[0]; /* which the parent sees */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    for (unsigned i = 0;
         i < TEST_PATIENCE_MS && __atomic_load_n(&b.memory[9], __ATOMIC_ACQUIRE) == 0; i++)
        usleep(1000);
    CHECK_EQ(b.memory[9], 1);
    CHECK_EQ(post(&a, IBV_WR_RDMA_WRITE, 1, IBV_SEND_SIGNALED, 0, 1, there(0), b.mr->rkey), 0);
    expect_completion(&a, 1, IBV_WC_SUCCESS);
    CHECK_EQ(rdma_destroy_id(a.id), 0); /* the child holds no end of it */
    a.id = NULL;
    expect_event(b.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
    struct sockaddr_storage at = address("127.0.0.1", ntohs(rdma_get_src_port(b.listener)));
    CHECK_EQ(rdma_destroy_id(b.listener), 0);
    CHECK_EQ(rdma_create_id(b.channel, &b.listener, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_bind_addr(b.listener, (struct sockaddr *)&at), 0); /* nor the port */
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    over();
}

TEST_MAIN()
