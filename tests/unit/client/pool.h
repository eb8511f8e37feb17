/* A pool of real processes, a server and four nodes, between which and libtarn stand proxies that
 * do what a test tells them: answers that come late, in halves or not at all, hosts that die, fall
 * silent or talk nonsense in the middle of a value. What was asked for is written down.
 *
 *   begin ─> moods, scripts, damage, calls of libtarn ... ─> end
 *
 * The processes live as long as the program; each test begins with an empty pool. */
#ifndef TARN_TESTS_CLIENT_POOL_H
#define TARN_TESTS_CLIENT_POOL_H

#include "../test.h"

#include "base/clock.h"
#include "client/client.h"
#include "tarn.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* each program uses some of it */

#define POOL_HOSTS 4u
#define POOL_BYTES (UINT64_C(64) << 20) /* of a segment */

/* What a host does with the next request. */
enum pool_mood {
    POOL_WELL,
    POOL_SILENT,   /* takes nothing and says nothing more; to new connections, neither */
    POOL_RESET,    /* resets the connection */
    POOL_HALF,     /* READ: half of the bytes, then it closes. WRITE: takes half, then it closes */
    POOL_NONSENSE, /* answers with what is no frame */
    POOL_STALE,    /* refuses: the epoch is over */
    POOL_FENCED,   /* refuses the first session, and only that */
    POOL_DEAD,     /* connections are refused, and those that are open are reset */
};

/* What the server does with a command. */
enum pool_action {
    POOL_DROP,   /* closes the connection and does nothing */
    POOL_UNSAID, /* does it, and closes the connection instead of answering */
    POOL_CUT,    /* does it, answers half, closes */
    POOL_SAY,    /* does nothing, and says this */
};

/* --- pool.c --- */

/* Host h is node "n<h>" with the segment "n<h>.0" on machine "m<h>": all by tcp. Replicas go to the
 * hosts in their order. */
void pool_start(void);
void pool_stop(void);
/* The processes end, too, and the next start is one of new ones, in which host 0 is on that machine
 * and reached as it is, not by a proxy; NULL: as the others. */
void pool_renew(const char *machine);
pid_t pool_pid(unsigned host);
/* Of host 0, when it is reached as it is: nobody can attach its memory from now on. */
void pool_hide_memory(void);
/* tarn://address:port?...options: no pauses to speak of, and the options given (may be ""). Hosts
 * are waited for as long as it takes, and left alone for longer than any test; where one falls
 * silent, failover_ms says for how long. */
const char *pool_url(const char *options);
/* Id of its segment. */
uint32_t pool_segment(unsigned host);
/* Free memory is in pieces of 2 MiB from now on: a larger value lies in several extents. */
void pool_fragment(void);

/* From the request after `after` more on. */
void pool_mood(unsigned host, enum pool_mood mood, unsigned after);
/* It comes back at another port; its old connections are reset. */
void pool_move(unsigned host);
/* The tier that its replicas are said to be of. */
void pool_tier(unsigned host, const char *tier);
/* What SEGMENT INFO says: the epoch is higher than extents say by this; UINT32_MAX: there is no
 * such segment, and no put goes there. */
void pool_epoch(unsigned host, uint32_t ahead);
/* Further fields of SEGMENT INFO, in RESP; NULL: none. */
void pool_info(unsigned fields, const char *text, size_t len);
/* Requests that came to its proxy since the start. */
unsigned pool_reads(unsigned host);
unsigned pool_writes(unsigned host);

/* Of the next commands of that name, the one after `after` others. text: for POOL_SAY. Several may
 * wait. */
void pool_script(const char *command, unsigned after, enum pool_action action, const char *text);
/* Commands so far that match, as in fnmatch: "PUTSTART k 100 *AVOID n1.0*". */
unsigned pool_count(const char *pattern);
void pool_forget_commands(void);

/* Of the object's replica on that host: flips a bit of byte `at`. false: there is none. */
bool pool_damage(const char *key, unsigned host, uint64_t at);
/* The host of its index'th replica; -1: none. */
int pool_replica(const char *key, unsigned index);
bool pool_exists(const char *key);
/* Is its replica on that host what was put? */
bool pool_holds(const char *key, unsigned host, const void *data, size_t len);
/* Puts that stay open; those that are just being revoked do not. */
unsigned pool_open_puts(void);
/* How often something that must not happen has: space given back while bytes were on their way to
 * it, a data connection with grants of two sessions. */
unsigned pool_violations(void);

/* What look-ups of the key are told from now on: */
#define POOL_FILE 1000u
void pool_nearest(const char *key, unsigned host);      /* this replica first */
void pool_add_file(const char *key, const char *path);  /* a file before all others */
void pool_add_tier(const char *key, const char *tier);  /* or one of a tier of a later version */
void pool_drop_replica(const char *key, unsigned host); /* not this one; POOL_FILE: no file */
void pool_drop_crc(const char *key);                    /* no CRC */
void pool_crcs_times(const char *key, unsigned times);  /* the CRCs of its MiBs, so often */

/* --- what tests start from --- */

/* A host is silent after 2 s, which puts wait for twice as long as gets; none that is only slow
 * should be. */
#define SOON     "failover_ms=2000"
#define SOON_PUT "failover_ms=1000"

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
    pool_stop();
    running = false;
}

static void begin(const char *options) {
    tarn_set_log(quiet, NULL);
    tidy();
    pool_start();
    running = true;
    CHECK_EQ(tarn_connect(pool_url(options), NULL, &client), TARN_OK);
}

static void end(void) {
    tarn_close(&client);
    CHECK_EQ(pool_violations(), 0);
    pool_stop();
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
