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

/* --- places without grants --- */

static unsigned asked(const char *command, const char *key, bool no_grant) {
    char pattern[80];
    snprintf(pattern, sizeof(pattern), "%s %s *%s", command, key, no_grant ? "NOGRANT*" : "");
    return pool_count(pattern);
}

/* Whoever has moved all by shared memory asks for no grants. */
TEST(shared_memory_needs_no_grants) {
    begin_real("", "here");
    CHECK_EQ(put_n("a", 20000, 1), TARN_OK);
    CHECK_EQ(pool_count("*NOGRANT*"), 0);
    CHECK_EQ(get("a", 20000), TARN_OK);
    CHECK_EQ(asked("MGETREPLICAS", "1 a", true), 1);
    CHECK_EQ(put_n("b", 3 * MIB, 1), TARN_OK);
    CHECK_EQ(get("b", 3 * MIB), TARN_OK);
    CHECK(asked("MPUTSTART", "1 b", true) == 1 && asked("MPUTSTART", "1 b", false) == 1);
    CHECK(asked("MGETREPLICAS", "1 b", true) == 1 && asked("MGETREPLICAS", "1 b", false) == 1);
    CHECK_EQ(get_range("b", 3 * MIB, MIB + 5, 100), TARN_OK);
    CHECK(figures().tcp_bytes_read == 0 && figures().tcp_bytes_written == 0);
    /* nor do views and writers, which only map */
    tarn_view *view = NULL;
    CHECK_EQ(tarn_view_open(client, "a", 1, NULL, &view), TARN_OK);
    CHECK_EQ(tarn_view_check(view), TARN_OK);
    CHECK_EQ(asked("GETREPLICAS", "a", true), 1);
    CHECK_EQ(tarn_view_renew(view, 0), TARN_OK);
    tarn_view_release(&view);
    tarn_writer *writer = NULL;
    char *v = value_of("w", 20000);
    CHECK_EQ(tarn_writer_open(client, "w", 1, 20000, NULL, &writer), TARN_OK);
    CHECK_EQ(asked("PUTSTART", "w", true), 1);
    CHECK(tarn_writer_in_place(writer));
    memcpy(tarn_writer_data(writer), v, 20000);
    free(v);
    CHECK_EQ(tarn_writer_commit(&writer), TARN_OK);
    CHECK_EQ(get("w", 20000), TARN_OK);
    CHECK_EQ(pool_open_puts(), 0);
    end_real();
}

/* A put that has one replica elsewhere is begun anew, and that is no failure; then it stays so. */
TEST(a_put_that_needs_grants_after_all) {
    begin_real("retries=0", "here");
    CHECK_EQ(put_n("a", 20000, 1), TARN_OK);
    CHECK_EQ(put_n("b", 20000, 2), TARN_OK);
    CHECK(asked("MPUTSTART", "1 b", true) == 1 && asked("MPUTSTART", "1 b", false) == 2);
    CHECK_EQ(pool_count("MPUTREVOKE 1 b *"), 1);
    char *v = value_of("b", 20000);
    CHECK(pool_holds("b", 0, v, 20000) && pool_holds("b", 1, v, 20000));
    free(v);
    tarn_stats s = figures();
    CHECK(s.retries == 0 && s.outages == 0 && s.put_restarts == 0 && s.put_failures == 0);
    CHECK(s.put_replicas_failed == 0 && s.reconnects == 0 && s.put_stored == 2);
    pool_forget_commands();
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(get("a", 20000), TARN_OK);
        CHECK_EQ(tarn_remove(client, "b", 1), TARN_OK);
        CHECK_EQ(put_n("b", 20000, 2), TARN_OK);
    }
    CHECK_EQ(pool_count("*NOGRANT*"), 0);
    CHECK_EQ(pool_open_puts(), 0);
    end_real();
}

/* Some of a batch are here, some are not. */
TEST(gets_that_need_grants_after_all) {
    begin_real("retries=0", "here");
    CHECK_EQ(put_n("a", 20000, 1), TARN_OK);
    CHECK_EQ(put_n("b", 3 * MIB, 2), TARN_OK);
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url("retries=0"), NULL, &client), TARN_OK);
    pool_drop_replica("b", 0);
    CHECK_EQ(get("a", 20000), TARN_OK);
    pool_forget_commands();
    char *v[2] = {value_of("a", 20000), value_of("b", 3 * MIB)},
         *got[2] = {calloc(1, 20000), calloc(1, 3 * MIB)};
    tarn_item items[2] = {
        {.key = "a", .key_len = 1, .buffer = got[0], .buffer_len = 20000},
        {.key = "b", .key_len = 1, .buffer = got[1], .buffer_len = 3 * MIB},
    };
    CHECK_EQ(tarn_get_many(client, items, 2, NULL, NULL), TARN_OK);
    CHECK(items[0].status == TARN_OK && items[1].status == TARN_OK);
    CHECK(memcmp(v[0], got[0], 20000) == 0 && memcmp(v[1], got[1], 3 * MIB) == 0);
    for (int i = 0; i < 2; i++) free(v[i]), free(got[i]);
    CHECK_EQ(asked("MGETREPLICAS", "2 a b", true), 1);
    CHECK(asked("MGETREPLICAS", "1 b", false) == 1 && asked("MGETREPLICAS", "1 b", true) == 0);
    tarn_stats s = figures();
    CHECK(s.retries == 0 && s.outages == 0 && s.failovers == 0 && s.get_failures == 0);
    CHECK(s.get_misses == 0 && s.reconnects == 0 && s.get_hits == 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(get("a", 20000), TARN_OK);
        CHECK_EQ(get("b", 3 * MIB), TARN_OK);
    }
    CHECK_EQ(pool_count("*NOGRANT*"), 1);
    end_real();
}

/* A disk's bytes come by tcp from the same machine, too. */
TEST(a_tier_that_needs_grants) {
    begin_real("retries=0", "here");
    CHECK_EQ(put_n("a", 20000, 2), TARN_OK);
    CHECK_EQ(put_n("b", 20000, 1), TARN_OK);
    CHECK_EQ(get("b", 20000), TARN_OK);
    pool_tier(1, "ssd");
    pool_drop_replica("a", 0);
    CHECK_EQ(get("a", 20000), TARN_OK);
    CHECK_EQ(figures().get_failures, 0);
    end_real();
}

/* All was moved by shared memory, which a new session cannot attach. */
TEST(shared_memory_that_goes) {
    begin_real("", "here");
    CHECK_EQ(put_n("a", 20000, 1), TARN_OK);
    CHECK_EQ(get("a", 20000), TARN_OK);
    CHECK_EQ(asked("MGETREPLICAS", "1 a", true), 1);
    pool_hide_memory();
    pool_script("MPUTSTART", 0, POOL_DROP, NULL);
    CHECK_EQ(put_n("b", 3 * MIB, 1), TARN_OK);
    CHECK(asked("MPUTSTART", "1 b", true) == 2 && asked("MPUTSTART", "1 b", false) == 3);
    CHECK_EQ(pool_count("MPUTREVOKE 1 b *"), 1);
    tarn_stats s = figures();
    CHECK(s.tcp_bytes_written == 3 * MIB && s.reconnects == 1 && s.outages == 0);
    CHECK_EQ(get("a", 20000), TARN_OK);
    CHECK_EQ(get("b", 3 * MIB), TARN_OK);
    CHECK_EQ(pool_open_puts(), 0);
    end_real();
}

static tarn_item kv_items[2];

static tarn_item *kv_place(void *arg, uint64_t tokens, const tarn_kv_parts *parts, size_t n) {
    (void)arg, (void)parts;
    return tokens == 32 && n == 2 ? kv_items : NULL;
}

/* One part is here, the other is not. */
TEST(parts_of_kv_groups_that_need_grants_after_all) {
    begin_real("retries=0", "here");
    tarn_put_options there;
    tarn_put_options_init(&there);
    there.prefers = 1;
    there.prefer = (const char *const[]){"n1.0"};
    char *far = value_of("f@h1", 20000), *near = value_of("f@h0", 20000);
    CHECK_EQ(tarn_put(client, "f@h1", 4, far, 20000, &there), TARN_OK);
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url("retries=0"), NULL, &client), TARN_OK);
    CHECK_EQ(put_n("f@h0", 20000, 1), TARN_OK);
    static const tarn_kv_group group = {"f@", 2, TARN_KV_FULL, 0, 16, 0, 0};
    static const tarn_key hashes[2] = {{"h0", 2}, {"h1", 2}};
    const tarn_kv_query q = {sizeof(q), hashes, 2, 16, 16, &group, 1};
    for (unsigned i = 0; i < 2; i++) {
        tarn_kv_parts parts;
        uint64_t tokens;
        size_t failed = 1;
        for (int k = 0; k < 2; k++)
            kv_items[k] = (tarn_item){.buffer = calloc(1, 20000), .buffer_len = 20000};
        CHECK_EQ(tarn_kv_get(client, &q, NULL, kv_place, NULL, &tokens, &parts, &failed), TARN_OK);
        CHECK_EQ(failed, 0);
        CHECK(memcmp(kv_items[0].buffer, near, 20000) == 0);
        CHECK(memcmp(kv_items[1].buffer, far, 20000) == 0);
        for (int k = 0; k < 2; k++) free(kv_items[k].buffer);
        CHECK_EQ(pool_count("MGETREPLICAS 2 * KVGROUPS *NOGRANT*"), 1);
        CHECK_EQ(asked("MGETREPLICAS", "1 f@h1", false), 1);
    }
    free(near);
    free(far);
    end_real();
}

/* What does not say that it knows of it is not asked. */
TEST(an_older_server_gives_grants) {
    static const char older[] = "$20\r\ntarn_version:0.2.0\r\n\r\n";
    begin_real("", "here");
    tarn_close(&client);
    pool_script("INFO", 0, POOL_SAY, older);
    CHECK_EQ(tarn_connect(pool_url(""), NULL, &client), TARN_OK);
    CHECK_EQ(put_n("a", 20000, 1), TARN_OK);
    CHECK_EQ(get("a", 20000), TARN_OK);
    CHECK_EQ(get("a", 20000), TARN_OK);
    CHECK_EQ(figures().tcp_bytes_read, 0);
    CHECK_EQ(pool_count("*NOGRANT*"), 0);
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
