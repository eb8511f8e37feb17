/* What the tests against the fake pool start from: a client, values, a look at its figures. */
#ifndef TARN_TESTS_CLIENT_POOL_H
#define TARN_TESTS_CLIENT_POOL_H

#include "../test.h"

#include "base/clock.h"
#include "client/client.h"
#include "fake.h"
#include "tarn.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each program uses some of it */

/* A host is silent after that; none that is only slow should be. */
#define SOON "failover_ms=2000"

static tarn_client *client;

static void quiet(void *arg, int level, const char *text) {
    (void)arg;
    if (getenv("TARN_TEST_LOG") != NULL) fprintf(stderr, "%d %s\n", level, text);
}

static bool running;

/* What a failed test has left behind. */
static void tidy(void) {
    if (!running) return;
    tarn_close(&client);
    fake_stop();
    running = false;
}

static void begin(const char *options) {
    tarn_set_log(quiet, NULL);
    tidy();
    fake_start();
    running = true;
    CHECK_EQ(tarn_connect(fake_url(options), NULL, &client), TARN_OK);
}

static void end(void) {
    tarn_close(&client);
    CHECK_EQ(fake_violations(), 0);
    fake_stop();
    running = false;
}

/* Bytes that only this key has. */
static char *value_of(const char *key, size_t len) {
    char *v = malloc(len + 1);
    uint64_t x = 88172645463325252u;
    for (const char *k = key; *k != '\0'; k++) x = x * 31 + (unsigned char)*k;
    for (size_t i = 0; i < len; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        v[i] = (char)x;
    }
    return v;
}

static tarn_status put_n(const char *key, size_t len, unsigned replicas) {
    char *v = value_of(key, len);
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = replicas;
    tarn_status status = tarn_put(client, key, strlen(key), v, len, &o);
    free(v);
    return status;
}

/* TARN_OK only with the right bytes; CHECKs that wrong ones never come. */
static tarn_status get(const char *key, size_t len) {
    char *v = value_of(key, len), *got = malloc(len + 1);
    size_t n = 0;
    memset(got, 0x55, len);
    tarn_status status = tarn_get(client, key, strlen(key), got, len, &n, NULL);
    bool right = status != TARN_OK || (n == len && memcmp(v, got, len) == 0);
    free(v);
    free(got);
    CHECK(right);
    return status;
}

static tarn_status get_range(const char *key, size_t len, size_t from, size_t want) {
    char *v = value_of(key, len), *got = malloc(want + 1);
    size_t n = 0;
    tarn_status status = tarn_get_range(client, key, strlen(key), from, got, want, &n, NULL);
    bool right = status != TARN_OK || (n == want && memcmp(v + from, got, want) == 0);
    free(v);
    free(got);
    CHECK(right);
    return status;
}

static tarn_stats figures(void) {
    tarn_stats s = {.size = sizeof(s)};
    CHECK_EQ(tarn_get_stats(client, &s), TARN_OK);
    return s;
}

/* What nobody waited for has arrived, too. */
static void catch_up(void) {
    CHECK_EQ(tarn_ping(client), TARN_OK);
}

#endif
