/* A slow tier made of arrays, in the place of src/pool's: does as it is told. */
#ifndef TARN_TESTS_FAKE_TIER_H
#define TARN_TESTS_FAKE_TIER_H

#include <pthread.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/crc32c.h"
#include "client/client.h"
#include "pool/tier.h"

#define DISK_WAIT_S 20

struct tier {
    struct tier_info info;
    int event_fd;
};

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct entry {
        char key[64], bytes[256];
        uint64_t version, size, offset;
        uint32_t crc;
        bool there, renamed;
    } entry[64];
    size_t n;
    unsigned full;    /* so many puts are answered EAGAIN */
    bool hold;        /* puts are not ended until it is false */
    uint64_t evict;   /* ticket to hand out, with everything in it */
    uint64_t evicted; /* ticket that came back */
    uint64_t weigh;   /* ticket to hand out, the same */
    double loss;      /* what was said of it */
    unsigned opened;
    char cluster[33];
    uint8_t content;
    bool recovered;
    uint64_t largest; /* that can be opened; 0: any */
    struct tier *open;
    struct {
        void (*done)(void *arg, tarn_status status, uint64_t offset);
        void *arg;
        uint64_t offset;
    } held[16];
    size_t n_held;
} disk = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void disk_reset(void) {
    memset(disk.entry, 0, sizeof(disk.entry));
    disk.n = disk.n_held = disk.full = disk.opened = 0;
    disk.hold = false;
    disk.evict = disk.evicted = disk.weigh = 0;
    disk.content = 1;
    disk.recovered = false;
    disk.largest = 0;
}

tarn_status tier_renew(struct tier *t) {
    memset(t->info.content, ++disk.content, sizeof(t->info.content));
    return TARN_OK;
}

static inline void disk_wait(bool (*until)(void)) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += DISK_WAIT_S;
    pthread_mutex_lock(&disk.mutex);
    while (!until() && pthread_cond_timedwait(&disk.changed, &disk.mutex, &ts) == 0) continue;
    bool ok = until();
    pthread_mutex_unlock(&disk.mutex);
    CHECK(ok);
}

static size_t disk_add(const char *key, uint64_t version, const char *bytes) {
    struct entry *e = &disk.entry[disk.n];
    *e = (struct entry){
        .version = version, .size = strlen(bytes), .offset = 4096 * (disk.n + 1), .there = true};
    snprintf(e->key, sizeof(e->key), "%s", key);
    memcpy(e->bytes, bytes, e->size);
    e->crc = crc32c(0, e->bytes, e->size);
    return disk.n++;
}

tarn_status tier_open(const char *kind, const struct tier_config *config, struct tier **tier_p,
                      const char **why_p) {
    *why_p = "no such disk";
    if (strcmp(config->path, "/broken") == 0) return TARN_EIO;
    if (disk.largest > 0 && config->size > disk.largest) return TARN_ENOSPACE;
    struct tier *t = xcalloc(1, sizeof(*t));
    t->info = (struct tier_info){.size = config->size, .directory = "/shared/of/cluster"};
    memset(t->info.content, disk.content, sizeof(t->info.content));
    t->info.recovered = disk.recovered;
    t->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_lock(&disk.mutex);
    disk.opened++;
    disk.open = t;
    if (config->cluster != NULL)
        sodium_bin2hex(disk.cluster, sizeof(disk.cluster), config->cluster, 16);
    pthread_mutex_unlock(&disk.mutex);
    *tier_p = t;
    return TARN_OK;
}

static void disk_release(void) {
    pthread_mutex_lock(&disk.mutex);
    disk.hold = false;
    while (disk.n_held > 0) {
        disk.n_held--;
        disk.held[disk.n_held].done(disk.held[disk.n_held].arg, TARN_OK,
                                    disk.held[disk.n_held].offset);
    }
    pthread_mutex_unlock(&disk.mutex);
}

void tier_close(struct tier **tier_p) {
    if (*tier_p == NULL) return;
    disk_release();
    close((*tier_p)->event_fd);
    free(*tier_p);
    *tier_p = NULL;
}

const struct tier_info *tier_get_info(const struct tier *t) {
    return &t->info;
}

int tier_event_fd(const struct tier *t) {
    return t->event_fd;
}

void tier_each(struct tier *t, void (*fn)(void *arg, const struct tier_item *item), void *arg) {
    pthread_mutex_lock(&disk.mutex);
    for (size_t i = 0; i < disk.n; i++) {
        const struct entry *e = &disk.entry[i];
        struct tier_item item = {span_str(e->key), e->version, e->size, e->crc, NULL, 0, 0,
                                 e->offset};
        if (e->there) fn(arg, &item);
    }
    pthread_mutex_unlock(&disk.mutex);
}

tarn_status tier_rename(struct tier *t, uint64_t offset, uint64_t version) {
    pthread_mutex_lock(&disk.mutex);
    struct entry *e = &disk.entry[offset / 4096 - 1];
    e->version = version;
    e->renamed = true;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.mutex);
    return TARN_OK;
}

tarn_status tier_put(struct tier *t, struct tier_item *item, bool check_crc,
                     const struct iovec *iov, size_t n_iov,
                     void (*done)(void *arg, tarn_status status, uint64_t offset), void *arg) {
    char bytes[256], key[64];
    size_t len = 0;
    for (size_t i = 0; i < n_iov; i++) {
        memcpy(bytes + len, iov[i].iov_base, iov[i].iov_len);
        len += iov[i].iov_len;
    }
    bytes[len] = '\0';
    uint32_t crc = crc32c(0, bytes, len);
    if (check_crc && crc != item->crc) return TARN_ECORRUPT;
    item->crc = crc;
    snprintf(key, sizeof(key), "%.*s", (int)item->key.len, item->key.data);
    pthread_mutex_lock(&disk.mutex);
    if (disk.full > 0) {
        disk.full--;
        pthread_mutex_unlock(&disk.mutex);
        return TARN_EAGAIN;
    }
    uint64_t offset = disk.entry[disk_add(key, item->version, bytes)].offset;
    bool hold = disk.hold;
    if (hold) {
        disk.held[disk.n_held].done = done;
        disk.held[disk.n_held].arg = arg;
        disk.held[disk.n_held++].offset = offset;
    }
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.mutex);
    if (!hold) done(arg, TARN_OK, offset);
    return TARN_OK;
}

void tier_drop(struct tier *t, uint64_t offset, uint64_t version) {
    pthread_mutex_lock(&disk.mutex);
    struct entry *e = &disk.entry[offset / 4096 - 1];
    if (e->version == version) e->there = false;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.mutex);
}

uint64_t tier_mark(struct tier *t, uint64_t offset, uint64_t length) {
    return 0;
}
tarn_status tier_read(struct tier *t, uint64_t offset, uint64_t length, void *buffer,
                      void (*done)(void *arg, tarn_status status), void *arg) {
    return TARN_ENOTFOUND;
}

uint64_t tier_poll_evict(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                         void *arg) {
    pthread_mutex_lock(&disk.mutex);
    uint64_t ticket = disk.evict;
    disk.evict = 0;
    eventfd_t ignored;
    eventfd_read(t->event_fd, &ignored);
    pthread_mutex_unlock(&disk.mutex);
    if (ticket != 0) tier_each(t, fn, arg);
    return ticket;
}

uint64_t tier_weigh(struct tier *t, void (*fn)(void *arg, const struct tier_item *item),
                    void *arg) {
    pthread_mutex_lock(&disk.mutex);
    uint64_t ticket = disk.weigh;
    disk.weigh = 0;
    pthread_mutex_unlock(&disk.mutex);
    if (ticket != 0) tier_each(t, fn, arg);
    return ticket;
}

void tier_weighed(struct tier *t, uint64_t ticket, double loss) {
    pthread_mutex_lock(&disk.mutex);
    CHECK_EQ(ticket, 41);
    disk.loss = loss;
    disk.evict = 42; /* which has waited for it */
    pthread_mutex_unlock(&disk.mutex);
}

void tier_evicted(struct tier *t, uint64_t ticket) {
    pthread_mutex_lock(&disk.mutex);
    disk.evicted = ticket;
    pthread_cond_broadcast(&disk.changed);
    pthread_mutex_unlock(&disk.mutex);
}

void tier_get_times(struct tier *t, struct tier_times *times_p) {
    memset(times_p, 0, sizeof(*times_p));
}

void tier_get_stats(struct tier *t, struct tier_stats *stats_p) {
    pthread_mutex_lock(&disk.mutex);
    *stats_p = (struct tier_stats){.size = t->info.size, .entries = disk.n};
    pthread_mutex_unlock(&disk.mutex);
}

#endif
