/* A master and hosts that do what a test tells them, all in one thread of the test's process:
 * answers that come late, in halves or not at all, hosts that die, fall silent or talk nonsense in
 * the middle of a value. The books are real enough for libtarn to put and get; what was asked for
 * is written down.
 *
 *   fake_start ─> tarn_connect(fake_url) ... moods, scripts, damage ... tarn_close ─> fake_stop
 *
 * The functions may be called at any time between; they lock. */
#ifndef TARN_TESTS_CLIENT_FAKE_H
#define TARN_TESTS_CLIENT_FAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_HOSTS 4u

/* What a host does with the next request. */
enum fake_mood {
    FAKE_WELL,
    FAKE_SILENT,   /* reads and says nothing more; to new connections, neither */
    FAKE_RESET,    /* resets the connection */
    FAKE_HALF,     /* READ: half of the bytes, then it closes. WRITE: takes half, then it closes */
    FAKE_NONSENSE, /* answers with what is no frame */
    FAKE_STALE,    /* refuses: the epoch is over */
    FAKE_FENCED,   /* refuses the first session, and only that */
    FAKE_DEAD,     /* connections are refused, and those that are open are reset */
};

/* What the master does with a command. */
enum fake_action {
    FAKE_DROP,   /* closes the connection and does nothing */
    FAKE_UNSAID, /* does it, and closes the connection instead of answering */
    FAKE_CUT,    /* does it, answers half, closes */
    FAKE_SAY,    /* does nothing, and says this */
};

/* Host h is node "n<h>" with the segment "n<h>.0", id FAKE_SEGMENT + h, on machine "m<h>": all by
 * tcp. Replicas go to the hosts in their order. */
void fake_start(void);
void fake_stop(void);
/* tarn://address:port?...options: no pauses to speak of, and the options given (may be ""). Hosts
 * are waited for as long as it takes, and left alone for longer than any test; where one falls
 * silent, failover_ms says for how long. */
const char *fake_url(const char *options);

/* From the request after `after` more on. */
void fake_mood(unsigned host, enum fake_mood mood, unsigned after);
/* It comes back at another port; its old connections are reset. */
void fake_move(unsigned host);
/* The tier that its replicas are of; only "memory" gets puts. */
void fake_tier(unsigned host, const char *tier);
/* What SEGMENT INFO says: the epoch is higher than extents say by this; UINT32_MAX: there is no
 * such segment. */
void fake_epoch(unsigned host, uint32_t ahead);
/* Further fields of SEGMENT INFO, in RESP; NULL: none. */
void fake_info(unsigned fields, const char *text, size_t len);
/* A real host (of tests/transport/world.h) stands behind the name instead: this port, this socket,
 * grants sealed with its key. */
void fake_real(unsigned host, uint16_t port, const char *shm_path, const char *machine,
               const uint8_t key[16], uint32_t master_epoch);
#define FAKE_BYTES   (UINT64_C(64) << 20) /* of a segment */
#define FAKE_SEGMENT 7u                   /* id of the first */
#define FAKE_EPOCH   7u
/* Requests served since the start. */
unsigned fake_reads(unsigned host);
unsigned fake_writes(unsigned host);

/* Of the next commands of that name, the one after `after` others. text: for FAKE_SAY. Several may
 * wait. */
void fake_script(const char *command, unsigned after, enum fake_action action, const char *text);
/* Commands so far that match, as in fnmatch: "PUTSTART k 100 *AVOID n1.0*". Bytes that are not text
 * are '?'. */
unsigned fake_count(const char *pattern);
void fake_forget_commands(void);

/* Of the object's replica on that host: flips a bit of byte `at`. false: there is none. */
bool fake_damage(const char *key, unsigned host, uint64_t at);
/* The host of its index'th replica; -1: none. */
int fake_replica(const char *key, unsigned index);
/* Nearest first from now on: moves the replica on this host to the front. */
void fake_nearest(const char *key, unsigned host);
/* One more replica, in front of the others: a file; or a tier that nobody has heard of. */
void fake_add_file(const char *key, const char *path);
void fake_add_tier(const char *key, const char *tier);
/* Takes it off its host. */
void fake_drop_replica(const char *key, unsigned host);
/* Forgets the CRC. */
void fake_drop_crc(const char *key);
/* So many look-ups are told the CRCs of its MiBs, those after them are not. */
void fake_crcs_times(const char *key, unsigned times);
bool fake_exists(const char *key);
/* Is its replica on that host what was put? */
bool fake_holds(const char *key, unsigned host, const void *data, size_t len);
/* Puts that are open. */
unsigned fake_open_puts(void);
/* How often something that must not happen has: space given back while bytes were on their way to
 * it, a data connection with grants of two sessions. */
unsigned fake_violations(void);

#endif
