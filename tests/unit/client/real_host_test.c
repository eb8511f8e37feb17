/* One of the hosts is a real one, in a process of its own: killed, stopped, reached by shared
 * memory. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "pool.h"
#include "client/client.h"
#include "client/error.h"
#include "client/outage.h"

#define MIB (1u << 20)

static void begin_real(const char *options, const char *machine) {
    tidy();
    pool_renew(machine);
    begin(options);
}

static void end_real(void) {
    end();
    pool_renew(NULL);
}

static void kill_host(void) {
    kill(pool_pid(0), SIGKILL);
}

/* Until all its threads stand still: on a busy machine one may answer after the signal. */
static void stop_host(void) {
    siginfo_t stopped;
    kill(pool_pid(0), SIGSTOP);
    CHECK_EQ(waitid(P_PID, (id_t)pool_pid(0), &stopped, WSTOPPED), 0);
}

TEST(a_view_is_of_the_replica_that_is_here) {
    begin_real("", "here");
    pool_fragment();
    CHECK_EQ(put_n("k", 3 * MIB, 2), TARN_OK);
    CHECK(figures().shm_bytes_written == 3 * MIB && figures().tcp_bytes_written == 3 * MIB);
    pool_nearest("k", 1);
    tarn_view *view = NULL;
    CHECK_EQ(tarn_view_open(client, "k", 1, NULL, &view), TARN_OK);
    const struct iovec *pieces;
    CHECK_EQ(tarn_view_pieces(view, &pieces), 2);
    char *v = value_of("k", 3 * MIB);
    CHECK(memcmp(pieces[0].iov_base, v, pieces[0].iov_len) == 0);
    CHECK(memcmp(pieces[1].iov_base, v + pieces[0].iov_len, pieces[1].iov_len) == 0);
    CHECK_EQ(tarn_view_check(view), TARN_OK);
    tarn_view_release(&view);
    free(v);
    CHECK_EQ(pool_reads(1), 0);
    CHECK_EQ(get("k", 3 * MIB), TARN_OK); /* a get goes by the server's order */
    CHECK_EQ(pool_reads(1), 1);
    end_real();
}

struct opening {
    tarn_view *view;
    tarn_status status;
};

static void *open_view(void *arg) {
    struct opening *o = arg;
    o->status = tarn_view_open(client, "b", 1, NULL, &o->view);
    return NULL;
}

/* Views share a connection; nobody waits for one that is tried again. */
static void checked_while_another_waits(enum pool_action action, const char *text) {
    begin_real("backoff_min_ms=3000&backoff_max_ms=3000", "here");
    tarn_view *view = NULL;
    struct opening o = {.view = NULL};
    pthread_t thread;
    CHECK_EQ(put_n("a", 20000, 1), TARN_OK);
    CHECK_EQ(put_n("b", 20000, 1), TARN_OK);
    CHECK_EQ(tarn_view_open(client, "a", 1, NULL, &view), TARN_OK);
    pool_script("GETREPLICAS b", 0, action, text);
    CHECK(pthread_create(&thread, NULL, open_view, &o) == 0);
    while (pool_count("GETREPLICAS b *") == 0) usleep(1000);
    usleep(100000);
    tarn_status status = tarn_view_check(view);
    bool waited = pool_count("GETREPLICAS b *") > 1;
    pthread_join(thread, NULL);
    CHECK_EQ(status, TARN_OK);
    CHECK(!waited);
    CHECK_EQ(o.status, TARN_OK);
    tarn_view_release(&o.view);
    tarn_view_release(&view);
    end_real();
}

TEST(a_view_is_checked_while_another_comes_later) {
    checked_while_another_waits(POOL_SAY, "-TRYAGAIN 1500 x\r\n");
}
TEST(a_view_is_checked_while_another_connects_again) {
    checked_while_another_waits(POOL_DROP, NULL);
}

/* A device that was told of a mapping reads it for longer than a view is open. */
TEST(the_mapping_of_a_view_stays) {
    begin_real("", "here");
    CHECK_EQ(put_n("k", 3 * MIB, 1), TARN_OK);
    CHECK_EQ(put_n("small", 10, 1), TARN_OK);
    tarn_view *view = NULL;
    CHECK_EQ(tarn_view_open(client, "k", 1, NULL, &view), TARN_OK);
    tarn_mapping *one = NULL, *two = NULL, *none = NULL;
    CHECK_EQ(tarn_mapping_open(view, 0, &one), TARN_OK);
    CHECK_EQ(
        tarn_mapping_open(view, tarn_view_pieces(view, &(const struct iovec *){NULL}) - 1, &two),
        TARN_OK);
    CHECK_EQ(tarn_mapping_open(view, 8, &none), TARN_EINVAL);
    CHECK(none == NULL);
    const char *start = tarn_mapping_address(one);
    CHECK(start == tarn_mapping_address(two));
    CHECK_EQ((uintptr_t)start % 4096, 0);
    CHECK_EQ(tarn_mapping_size(one), POOL_BYTES);
    const struct iovec *pieces;
    size_t n = tarn_view_pieces(view, &pieces);
    const char *last = (const char *)pieces[n - 1].iov_base + pieces[n - 1].iov_len;
    CHECK(start <= (const char *)pieces[0].iov_base && last <= start + POOL_BYTES);
    CHECK_EQ(tarn_mapping_check(one), TARN_OK);
    tarn_mapping_close(&two);
    CHECK(two == NULL);
    const char *at = pieces[0].iov_base;
    size_t len = pieces[0].iov_len;
    tarn_view_release(&view);
    kill_host(); /* and with it whoever else had this memory */
    char *v = value_of("k", 3 * MIB);
    CHECK(memcmp(at, v, len) == 0);
    free(v);
    tarn_mapping_close(&one);
    tarn_mapping_close(&one);
    CHECK_EQ(tarn_mapping_check(one), TARN_EINVAL);
    CHECK_EQ(tarn_view_open(client, "small", 5, NULL, &view), TARN_OK);
    CHECK_EQ(tarn_mapping_open(view, 0, &none), TARN_ENOTSUP);
    tarn_view_release(&view);
    end_real();
}

/* The same paths exist on other machines. */
TEST(shared_memory_is_for_the_same_machine) {
    begin_real("", "elsewhere");
    CHECK_EQ(put_n("k", 20000, 1), TARN_OK);
    CHECK_EQ(figures().shm_bytes_written, 0);
    CHECK_EQ(get("k", 20000), TARN_OK);
    tarn_view *view = NULL;
    CHECK_EQ(tarn_view_open(client, "k", 1, NULL, &view), TARN_ESTALE);
    end_real();
}

TEST(a_killed_host) {
    begin_real("transport=tcp&piece_bytes=1048576", "here");
    CHECK_EQ(put_n("k", 5 * MIB, 2), TARN_OK);
    CHECK_EQ(get("k", 5 * MIB), TARN_OK);
    kill_host();
    CHECK_EQ(put_n("two", 5 * MIB, 2), TARN_OK);
    CHECK_EQ(pool_count("MPUTEND 1 two * FAILEDS 1"), 1);
    CHECK_EQ(put_n("one", 5 * MIB, 1), TARN_OK);
    CHECK_EQ(get("k", 5 * MIB), TARN_OK);
    CHECK_EQ(get("two", 5 * MIB), TARN_OK);
    CHECK_EQ(get("one", 5 * MIB), TARN_OK);
    CHECK_EQ(figures().outages, 1);
    end_real();
}

TEST(a_stopped_host) {
    begin_real("transport=tcp&piece_bytes=1048576&" SOON, "here");
    CHECK_EQ(put_n("k", 5 * MIB, 2), TARN_OK);
    stop_host();
    CHECK_EQ(get("k", 5 * MIB), TARN_OK);
    CHECK_EQ(figures().failovers, 1);
    tarn_close(&client); /* one that does not know yet, with connections that are up */
    kill(pool_pid(0), SIGCONT);
    CHECK_EQ(tarn_connect(pool_url("transport=tcp&" SOON), NULL, &client), TARN_OK);
    CHECK_EQ(put_n("first", 5 * MIB, 2), TARN_OK);
    stop_host();
    CHECK_EQ(put_n("two", 5 * MIB, 2), TARN_OK);
    CHECK_EQ(figures().put_restarts, 1);
    CHECK_EQ(pool_count("PUTSTART two * AVOID n0.0 INSTEAD *"), 1);
    CHECK_EQ(get("two", 5 * MIB), TARN_OK);
    kill(pool_pid(0), SIGCONT); /* what was sent to it arrives now */
    CHECK_EQ(get("two", 5 * MIB), TARN_OK);
    CHECK_EQ(get("first", 5 * MIB), TARN_OK);
    end_real();
}

/* Nobody answers who asks for its memory, nor for a connection. */
TEST(a_host_that_was_stopped_before_we_came) {
    begin_real(SOON, "here");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    tarn_close(&client);
    stop_host();
    CHECK_EQ(tarn_connect(pool_url(SOON), NULL, &client), TARN_OK);
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(figures().shm_bytes_read, 0);
    CHECK_EQ(put_n("two", 20000, 2), TARN_OK);
    CHECK_EQ(pool_replica("two", 0), 1);
    end_real();
}

/* Memory that is mapped outlives its host: what was put there is still read, and put, until
 * somebody notices. */
TEST(a_killed_host_whose_memory_is_mapped) {
    begin_real("", "here");
    CHECK_EQ(put_n("k", 20000, 2), TARN_OK);
    CHECK_EQ(get("k", 20000), TARN_OK);
    kill_host();
    CHECK_EQ(get("k", 20000), TARN_OK);
    CHECK_EQ(figures().failovers, 0);
    end_real();
}

TEST_MAIN()
