/* What the files of the fake share. */
#ifndef TARN_TESTS_CLIENT_FAKE_INTERNAL_H
#define TARN_TESTS_CLIENT_FAKE_INTERNAL_H

#include <hiredis/hiredis.h>
#include <pthread.h>

#include "base/assert.h"
#include "base/buf.h"
#include "fake.h"
#include "client/placement.h"
#include "transport/grant.h"

#define CONNS       128
#define OBJECTS     512
#define REPLICAS    6
#define EXTENTS     2
#define LOG_LINES   4096
#define LINE_BYTES  512
#define SCRIPTS     16
#define FILE_HOST   1000u
#define TIER_HOST   1001u
#define SPLIT_BYTES 8192u /* larger values lie in two extents */

struct fake_extent {
    uint64_t offset, length;
};

struct fake_replica_at {
    unsigned host; /* or FILE_HOST, TIER_HOST */
    char path[200];
    struct fake_extent extent[EXTENTS];
    unsigned extents;
};

/* An open put or an object. */
struct fake_object {
    bool used, complete;
    char key[64];
    uint64_t token, size;
    int64_t crc;
    struct buf crcs;
    unsigned crcs_times, crcs_told; /* look-ups that are told of them, and were */
    char value[64];
    struct fake_replica_at replica[REPLICAS];
    unsigned replicas;
};

struct fake_host {
    int listener;
    uint16_t port;
    enum fake_mood mood;
    unsigned after;
    char tier[16], shm[128], machine[96];
    bool real;
    uint16_t real_port;
    uint8_t key[GRANT_KEY_SIZE];
    uint32_t master_epoch;
    uint32_t ahead;
    uint8_t *memory;
    uint64_t used;
    unsigned reads, writes;
};

struct fake_conn {
    int fd;   /* 0: free */
    int host; /* -1: control */
    redisReader *reader;
    struct buf in, out;
    bool hello_done, silent, close_when_sent;
    uint64_t session;
};

struct fake_script {
    char command[24];
    unsigned after;
    enum fake_action action;
    char text[200];
};

struct fake_pool {
    pthread_mutex_t mutex;
    pthread_t thread;
    bool stop;
    int wake, listener;
    char address[16]; /* of all that listens */
    uint16_t port;
    struct fake_host host[FAKE_HOSTS];
    struct fake_conn conn[CONNS];
    struct fake_object object[OBJECTS];
    uint64_t next_token, next_session;
    char log[LOG_LINES][LINE_BYTES];
    unsigned lines;
    struct fake_script script[SCRIPTS];
    unsigned scripts, violations;
    struct buf info; /* more of SEGMENT INFO */
    unsigned info_fields;
};
extern struct fake_pool fake;

/* fake.c */
void fake_lock(void);
void fake_unlock(void); /* and wakes the thread */
void fake_close(struct fake_conn *c, bool reset);
void fake_say(struct fake_conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void fake_say_bulk(struct fake_conn *c, const void *data, size_t len);

/* fake_books.c: what came on a control connection. false: it makes no sense. */
bool fake_control_input(struct fake_conn *c, const char *data, size_t n);
void fake_forget(struct fake_object *o);

/* fake_host.c: what came on a data connection is in c->in. false: it is closed. */
bool fake_data_input(struct fake_conn *c);

#endif
