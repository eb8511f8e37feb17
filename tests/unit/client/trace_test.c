/* Trace contexts of threads, what the server is told of them, and spans. */
#include "pool.h"

#include "base/hex.h"
#include "base/thread.h"
#include "client/client.h"

#define TRACE  "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00-" TRACE "-00f067aa0ba902b7-01"
#define TOLD   "CLIENT SETINFO tarn-traceparent "

enum { HEARD = 4096, THREADS = 8, ROUNDS = 40 };

static struct heard {
    tarn_span span;
    char name[24], detail[24], host[96], transport[24];
} heard[HEARD];
static unsigned n_heard; /* atomic */

static void copy_text(char *to, size_t cap, const char *from) {
    snprintf(to, cap, "%s", from != NULL ? from : "");
}

static void hear_span(void *arg, const tarn_span *span) {
    CHECK(arg == heard);
    CHECK_EQ(span->size, sizeof(*span));
    unsigned i = __atomic_fetch_add(&n_heard, 1, __ATOMIC_RELAXED);
    CHECK(i < HEARD);
    heard[i].span = *span;
    copy_text(heard[i].name, sizeof(heard[i].name), span->name);
    copy_text(heard[i].detail, sizeof(heard[i].detail), span->detail);
    copy_text(heard[i].host, sizeof(heard[i].host), span->host);
    copy_text(heard[i].transport, sizeof(heard[i].transport), span->transport);
}

static void begin_hearing(const char *more) {
    tarn_options o;
    tarn_options_init(&o);
    o.on_span = hear_span;
    o.span_arg = heard;
    begin("");
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url(more), &o, &client), TARN_OK);
    n_heard = 0;
}

static void end_hearing(void) {
    CHECK_EQ(tarn_set_traceparent(NULL), TARN_OK);
    end();
}

/* The only call of that name, or stage of that call; NULL: there is none. */
static const struct heard *heard_of(const char *name, const char *parent) {
    const struct heard *found = NULL;
    for (unsigned i = 0; i < n_heard; i++) {
        const struct heard *h = &heard[i];
        if (strcmp(h->name, name) != 0 || h->span.stage != (parent != NULL)) continue;
        if (parent != NULL && strcmp(h->span.parent_id, parent) != 0) continue;
        CHECK(found == NULL);
        found = h;
    }
    return found;
}

static bool is_id(const char *text, size_t n) {
    uint8_t bytes[16], all = 0;
    if (!hex_decode(span_str(text), bytes, n)) return false;
    for (size_t i = 0; i < n; i++) all |= bytes[i];
    return all != 0;
}

static void put_one(const char *key, size_t len) {
    static char bytes[1u << 20];
    CHECK_EQ(tarn_put(client, key, strlen(key), bytes, len, NULL), TARN_OK);
}

TEST(contexts_have_a_form) {
    CHECK_EQ(tarn_set_traceparent(PARENT), TARN_OK);
    CHECK_EQ(tarn_set_traceparent(PARENT "0"), TARN_EINVAL);
    CHECK(strstr(tarn_last_error(), "00-TRACE-SPAN-FLAGS") != NULL);
    CHECK_EQ(tarn_set_traceparent("nonsense"), TARN_EINVAL);
    CHECK_EQ(tarn_set_traceparent(""), TARN_OK);
    CHECK_EQ(tarn_set_traceparent(NULL), TARN_OK);
}

TEST(the_server_is_told_when_it_changes) {
    begin("max_lanes=1");
    put_one("a", 1000);
    CHECK_EQ(pool_count(TOLD "*"), 0);
    CHECK_EQ(tarn_set_traceparent(PARENT), TARN_OK);
    put_one("b", 1000);
    CHECK_EQ(pool_count(TOLD PARENT), 1);
    CHECK_EQ(tarn_exists(client, "b", 1), TARN_OK);
    CHECK_EQ(tarn_remove(client, "b", 1), TARN_OK);
    CHECK_EQ(pool_count(TOLD "*"), 1);
    /* nothing of what comes behind is done for it */
    CHECK_EQ(tarn_set_traceparent(NULL), TARN_OK);
    CHECK_EQ(tarn_exists(client, "a", 1), TARN_OK);
    CHECK_EQ(tarn_exists(client, "a", 1), TARN_OK);
    CHECK_EQ(pool_count(TOLD "*"), 2);
    CHECK_EQ(pool_count("CLIENT SETINFO tarn-traceparent "), 1);
    end();
}

TEST(a_new_connection_is_told_again) {
    begin("max_lanes=1");
    put_one("a", 1000);
    CHECK_EQ(tarn_set_traceparent(PARENT), TARN_OK);
    CHECK_EQ(tarn_exists(client, "a", 1), TARN_OK);
    pool_script("MEXISTS", 0, POOL_DROP, NULL);
    CHECK_EQ(tarn_exists(client, "a", 1), TARN_OK);
    CHECK_EQ(pool_count(TOLD PARENT), 2);
    CHECK_EQ(tarn_set_traceparent(NULL), TARN_OK);
    end();
}

TEST(a_server_that_refuses_does_no_harm) {
    begin("max_lanes=1");
    put_one("a", 1000);
    CHECK_EQ(tarn_set_traceparent(PARENT), TARN_OK);
    pool_script("CLIENT", 0, POOL_SAY, "-ERR Unrecognized option 'tarn-traceparent'\r\n");
    CHECK_EQ(tarn_exists(client, "a", 1), TARN_OK);
    CHECK_EQ(tarn_exists(client, "none", 4), TARN_ENOTFOUND);
    CHECK_EQ(tarn_set_traceparent(NULL), TARN_OK);
    end();
}

TEST(a_get_and_its_stages) {
    char bytes[100000];
    begin_hearing("max_lanes=1&cluster=here");
    put_one("a", sizeof(bytes));
    n_heard = 0;
    CHECK_EQ(tarn_set_traceparent(PARENT), TARN_OK);
    uint64_t before_ns = clock_ns(CLOCK_REALTIME);
    CHECK_EQ(tarn_get(client, "a", 1, bytes, sizeof(bytes), NULL, NULL), TARN_OK);
    uint64_t after_ns = clock_ns(CLOCK_REALTIME);
    const struct heard *get = heard_of("get", NULL);
    CHECK(get != NULL);
    CHECK(strcmp(get->span.trace_id, TRACE) == 0);
    CHECK(strcmp(get->span.parent_id, "00f067aa0ba902b7") == 0);
    CHECK(is_id(get->span.span_id, 8) && strcmp(get->span.span_id, get->span.parent_id) != 0);
    CHECK_EQ(get->span.keys, 1);
    CHECK_EQ(get->span.done, 1);
    CHECK_EQ(get->span.bytes, sizeof(bytes));
    CHECK_EQ(get->span.status, TARN_OK);
    CHECK(strcmp(get->transport, "tcp") == 0);
    CHECK(strcmp(get->span.cluster, "here") == 0);
    CHECK(get->span.start_ns >= before_ns && get->span.start_ns <= after_ns);
    const struct heard *request = heard_of("request", get->span.span_id);
    CHECK(request != NULL && strcmp(request->detail, "MGETREPLICAS") == 0);
    CHECK(strncmp(request->host, "127.0.0.1:", 10) == 0);
    const struct heard *read = heard_of("read", get->span.span_id);
    CHECK(read != NULL && read->span.bytes == sizeof(bytes));
    CHECK(strcmp(read->transport, "tcp") == 0 && strcmp(read->host, "n0.0") == 0);
    for (unsigned i = 0; i < n_heard; i++) { /* stages lie within their call */
        CHECK(strcmp(heard[i].span.trace_id, TRACE) == 0);
        CHECK(heard[i].span.start_ns >= get->span.start_ns);
        CHECK(heard[i].span.start_ns + heard[i].span.duration_ns <=
              get->span.start_ns + get->span.duration_ns);
    }
    /* what the server notes names that call */
    char told[128];
    snprintf(told, sizeof(told), TOLD "00-" TRACE "-%s-01", get->span.span_id);
    CHECK_EQ(pool_count(told), 1);
    end_hearing();
}

TEST(without_a_context_each_call_is_a_trace_of_its_own) {
    begin_hearing("max_lanes=1");
    put_one("a", 1000);
    CHECK_EQ(tarn_exists(client, "a", 1), TARN_OK);
    CHECK_EQ(tarn_exists(client, "none", 4), TARN_ENOTFOUND);
    const struct heard *put = heard_of("put", NULL), *hit = NULL, *miss = NULL;
    CHECK(put != NULL && put->span.done == 1 && put->span.bytes == 1000);
    CHECK(heard_of("write", put->span.span_id) != NULL);
    for (unsigned i = 0; i < n_heard; i++) {
        if (strcmp(heard[i].name, "lookup") != 0) continue;
        *(hit == NULL ? &hit : &miss) = &heard[i];
    }
    CHECK(hit != NULL && hit->span.keys == 1 && hit->span.done == 1);
    CHECK(miss != NULL && miss->span.keys == 1 && miss->span.done == 0);
    CHECK(hit->span.parent_id[0] == '\0' && is_id(hit->span.trace_id, 16));
    CHECK(strcmp(hit->span.trace_id, miss->span.trace_id) != 0);
    CHECK_EQ(pool_count(TOLD "*"), 0);
    end_hearing();
}

TEST(what_is_not_sampled_has_no_spans) {
    begin_hearing("max_lanes=1");
    CHECK_EQ(tarn_set_traceparent("00-" TRACE "-00f067aa0ba902b7-00"), TARN_OK);
    put_one("a", 1000);
    CHECK_EQ(n_heard, 0);
    CHECK_EQ(pool_count(TOLD "00-" TRACE "-00f067aa0ba902b7-00"), 1); /* but it is shown */
    end_hearing();
}

TEST(what_fails_says_so) {
    begin_hearing("max_lanes=1&retries=1");
    put_one("a", 1000);
    n_heard = 0;
    pool_script("MEXISTS", 0, POOL_DROP, NULL);
    CHECK_EQ(tarn_exists(client, "a", 1), TARN_OK);
    const struct heard *call = heard_of("lookup", NULL);
    CHECK(call != NULL && call->span.status == TARN_OK);
    CHECK(heard_of("pause", call->span.span_id) != NULL);
    CHECK(heard_of("connect", call->span.span_id) != NULL);
    unsigned failed = 0;
    for (unsigned i = 0; i < n_heard; i++)
        failed += strcmp(heard[i].name, "request") == 0 && heard[i].span.status == TARN_ECLOSED;
    CHECK_EQ(failed, 1);
    end_hearing();
}

TEST(queues_keep_the_context_of_their_submitter) {
    tarn_async *queue = NULL;
    tarn_completion done;
    char bytes[1000];
    tarn_item item = {.key = "a", .key_len = 1, .buffer = bytes, .buffer_len = sizeof(bytes)};
    begin_hearing("");
    put_one("a", sizeof(bytes));
    n_heard = 0;
    CHECK_EQ(tarn_async_open(client, 8, &queue), TARN_OK);
    CHECK_EQ(tarn_set_traceparent(PARENT), TARN_OK);
    CHECK_EQ(tarn_async_get(queue, &item, 1, NULL, NULL, NULL), TARN_OK);
    CHECK_EQ(tarn_set_traceparent(NULL), TARN_OK);
    CHECK_EQ(tarn_async_poll(queue, &done, 1, 10000), 1);
    const struct heard *get = heard_of("get", NULL);
    CHECK(get != NULL && strcmp(get->span.trace_id, TRACE) == 0);
    const struct heard *wait = heard_of("queue", get->span.span_id);
    CHECK(wait != NULL && wait->span.start_ns == get->span.start_ns);
    n_heard = 0; /* a worker forgets it */
    CHECK_EQ(tarn_async_get(queue, &item, 1, NULL, NULL, NULL), TARN_OK);
    CHECK_EQ(tarn_async_poll(queue, &done, 1, 10000), 1);
    CHECK(heard_of("get", NULL)->span.parent_id[0] == '\0');
    tarn_async_close(&queue);
    end_hearing();
}

/* Each thread's calls are of its own trace, though they share lanes. */
static void *work_traced(void *arg) {
    char parent[64], key[8];
    snprintf(parent, sizeof(parent), "00-%032zx-%016zx-01", (size_t)arg, (size_t)arg);
    int len = snprintf(key, sizeof(key), "%zu", (size_t)arg);
    CHECK_EQ(tarn_set_traceparent(parent), TARN_OK);
    for (unsigned i = 0; i < ROUNDS; i++)
        CHECK_EQ(tarn_exists(client, key, (size_t)len), TARN_ENOTFOUND);
    CHECK_EQ(tarn_set_traceparent(NULL), TARN_OK);
    return NULL;
}

TEST(many_threads_on_few_lanes) {
    pthread_t threads[THREADS];
    unsigned by_thread[THREADS + 1] = {0};
    begin_hearing("max_lanes=2");
    for (size_t i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, work_traced, (void *)(i + 1)), 0);
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < n_heard; i++) {
        if (heard[i].span.stage != 0) continue;
        size_t who = strtoul(heard[i].span.trace_id, NULL, 16);
        CHECK(who >= 1 && who <= THREADS);
        CHECK_EQ(strtoul(heard[i].span.parent_id, NULL, 16), who);
        by_thread[who]++;
    }
    for (size_t i = 1; i <= THREADS; i++) CHECK_EQ(by_thread[i], ROUNDS);
    CHECK_EQ(pool_count(TOLD "00-*"), THREADS * ROUNDS);
    end_hearing();
}

TEST(old_callers_have_none) {
    tarn_options o;
    tarn_options_init(&o);
    o.size = offsetof(tarn_options, on_span);
    o.on_span = hear_span;
    begin("");
    tarn_close(&client);
    CHECK_EQ(tarn_connect(pool_url(""), &o, &client), TARN_OK);
    n_heard = 0;
    put_one("a", 1000);
    CHECK_EQ(n_heard, 0);
    end();
}

TEST_MAIN()
