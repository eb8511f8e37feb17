/* The figures of a client as text, while other threads work; the summary in the log. */
#include "pool.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "client/client.h"

enum { THREADS = 8, ROUNDS = 40, BATCH = 4, KEYS = 4 };

static char *text_of(int format) {
    char *text = NULL;
    size_t len = 0;
    CHECK_EQ(tarn_figures_text(client, format, &text, &len), TARN_OK);
    CHECK_EQ(strlen(text), len);
    return text;
}

/* The number behind a sample, which stands at the begin of a line; -1: there is none. */
static double sample(const char *text, const char *name) {
    size_t len = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, len) == 0 && line[len] == ' ') return strtod(line + len + 1, NULL);
        line = strchr(line, '\n');
        if (line != NULL) line++;
    }
    return -1;
}

#define CALLS(op)   "tarn_client_call_duration_seconds_count{operation=\"" op "\"}"
#define BATCHES(op) "tarn_client_batch_duration_seconds_count{operation=\"" op "\"}"

static void work_once(size_t i) {
    char names[BATCH][32];
    tarn_key keys[BATCH];
    tarn_item items[BATCH] = {0};
    char bytes[BATCH][200] = {{0}};
    uint8_t found[BATCH];
    for (size_t k = 0; k < BATCH; k++) {
        int len = snprintf(names[k], sizeof(names[k]), "t%zu.%zu", i, k);
        keys[k] = (tarn_key){names[k], (size_t)len};
        items[k] = (tarn_item){.key = names[k],
                               .key_len = (size_t)len,
                               .buffer = bytes[k],
                               .buffer_len = sizeof(bytes[k])};
    }
    CHECK_EQ(tarn_put_many(client, items, BATCH, NULL, NULL), TARN_OK);
    CHECK_EQ(tarn_exists_many(client, keys, BATCH, found), TARN_OK);
    CHECK_EQ(tarn_get_many(client, items, BATCH, NULL, NULL), TARN_OK);
    CHECK_EQ(tarn_get(client, names[0], keys[0].len, bytes[0], sizeof(bytes[0]), NULL, NULL),
             TARN_OK);
}

TEST(calls_and_batches_are_counted) {
    begin("");
    work_once(0);
    CHECK_EQ(tarn_get(client, "none", 4, NULL, 0, NULL, NULL), TARN_ENOTFOUND);
    char *text = text_of(TARN_FIGURES_PROMETHEUS);
    CHECK_EQ(sample(text, CALLS("get")), 3);
    CHECK_EQ(sample(text, BATCHES("get")), 1);
    CHECK_EQ(sample(text, CALLS("put")), 1);
    CHECK_EQ(sample(text, BATCHES("put")), 1);
    CHECK_EQ(sample(text, CALLS("lookup")), 1);
    CHECK_EQ(sample(text, BATCHES("lookup")), 1);
    CHECK_EQ(sample(text, "tarn_client_gets_total"), BATCH + 2);
    CHECK_EQ(sample(text, "tarn_client_get_hits_total"), BATCH + 1);
    CHECK_EQ(sample(text, "tarn_client_get_misses_total"), 1);
    CHECK_EQ(sample(text, "tarn_client_read_bytes_total"), 200 * (BATCH + 1));
    CHECK_EQ(sample(text, "tarn_client_put_stored_total"), BATCH);
    CHECK(sample(text, "tarn_client_request_duration_seconds_count") > 0);
    CHECK(strstr(text, "cluster=") == NULL);
    tarn_free(text);
    text = text_of(TARN_FIGURES_SUMMARY);
    CHECK(strstr(text, "gets: 6 keys, 5 found (83.3 %), 1000 B\n") != NULL);
    CHECK(strstr(text, "batches of put: 1, mean ") != NULL);
    CHECK(strstr(text, "trouble: none\n") != NULL);
    tarn_free(text);
    CHECK_EQ(tarn_figures_text(client, 2, &text, NULL), TARN_EINVAL);
    CHECK_EQ(tarn_figures_text(client, TARN_FIGURES_SUMMARY, NULL, NULL), TARN_EINVAL);
    CHECK_EQ(tarn_figures_text(NULL, TARN_FIGURES_SUMMARY, &text, NULL), TARN_EINVAL);
    end();
}

TEST(a_label_is_on_each_sample) {
    begin("cluster=a%22b%5Cc");
    work_once(0);
    char *text = text_of(TARN_FIGURES_PROMETHEUS);
    for (char *line = text, *next; *line != '\0'; line = next) {
        next = strchr(line, '\n') + 1;
        next[-1] = '\0';
        if (*line != '#') CHECK(strstr(line, "{cluster=\"a\\\"b\\\\c\"") != NULL);
    }
    tarn_free(text);
    text = text_of(TARN_FIGURES_SUMMARY);
    CHECK(strncmp(text, "cluster: a\"b\\c\n", 15) == 0);
    tarn_free(text);
    tarn_client *other = NULL;
    CHECK_EQ(tarn_connect(pool_url("cluster=a%0Ab"), NULL, &other), TARN_EINVAL);
    CHECK_EQ(tarn_connect(pool_url("cluster="), NULL, &other), TARN_EINVAL);
    end();
}

static void *work_on(void *arg) {
    (void)arg;
    for (size_t i = 0; i < ROUNDS; i++) work_once(i % KEYS); /* which are there */
    return NULL;
}

/* Guarantees of the text: a histogram's buckets only grow, and the last one is its count. */
static void buckets_check(const char *text) {
    double before = 0;
    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strncmp(line, "tarn_client_call_duration_seconds_", 34) != 0) continue;
        double n = strtod(strchr(line, '}') + 1, NULL);
        if (strncmp(line + 34, "bucket", 6) == 0) {
            CHECK(n >= before);
            before = n;
        } else if (strncmp(line + 34, "count", 5) == 0) {
            CHECK(n == before);
            before = 0;
        }
    }
}

TEST(read_while_threads_work) {
    begin("");
    pthread_t threads[THREADS];
    for (size_t i = 0; i < KEYS; i++) work_once(i);
    for (size_t i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, work_on, NULL), 0);
    for (size_t i = 0; i < 50; i++) {
        char *text = text_of(TARN_FIGURES_PROMETHEUS);
        buckets_check(text);
        tarn_free(text);
        tarn_free(text_of(TARN_FIGURES_SUMMARY));
    }
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    char *text = text_of(TARN_FIGURES_PROMETHEUS);
    CHECK_EQ(sample(text, CALLS("get")), 2 * (THREADS * ROUNDS + KEYS));
    CHECK_EQ(sample(text, BATCHES("get")), THREADS * ROUNDS + KEYS);
    CHECK_EQ(sample(text, CALLS("put")), THREADS * ROUNDS + KEYS);
    tarn_free(text);
    end();
}

static unsigned summaries; /* atomic */

static void hear(void *arg, int level, const char *text) {
    (void)arg;
    if (level == 2 && strcmp(text, "cluster: here") == 0)
        __atomic_fetch_add(&summaries, 1, __ATOMIC_RELAXED);
}

TEST(the_summary_is_logged) {
    begin("log_figures_s=1&cluster=here");
    tarn_set_log(hear, NULL);
    uint64_t until = clock_boot_ms() + 20000;
    while (__atomic_load_n(&summaries, __ATOMIC_RELAXED) < 2 && clock_boot_ms() < until) {
        work_once(1);
        usleep(20000); /* the pool keeps what it was asked: 8,192 lines */
    }
    CHECK(__atomic_load_n(&summaries, __ATOMIC_RELAXED) >= 2);
    tarn_close(&client);
    unsigned then = __atomic_load_n(&summaries, __ATOMIC_RELAXED);
    tarn_client *other = NULL;
    /* Without it nobody logs; and closing does not wait for the next one. */
    CHECK_EQ(tarn_connect(pool_url("log_figures_s=86401"), NULL, &other), TARN_EINVAL);
    CHECK_EQ(tarn_connect(pool_url("log_figures_s=86400"), NULL, &other), TARN_OK);
    uint64_t began = clock_boot_ms();
    tarn_close(&other);
    CHECK(clock_boot_ms() - began < 10000);
    CHECK_EQ(__atomic_load_n(&summaries, __ATOMIC_RELAXED), then);
    tarn_set_log(quiet, NULL);
    end();
}

TEST_MAIN()
