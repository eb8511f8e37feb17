/* Disks of an ssd tier, filled with whatever: they are opened or refused, and what is found can be
 * listed, read, dropped, evicted, and written over.
 *
 * Input: a byte of flags, then pieces of the disk: block number (2 bytes), length (2 bytes), so
 * many bytes. The rest of the disk is zero. Checksums keep random bytes out of the code behind
 * them, so flags mend them: 1 those of the superblocks, 2 those of every block that begins like a
 * batch, 4 its position as well. 8: something is put, too. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/log.h"
#include "pool/ssd_format.h"
#include "pool/ssd_io.h"
#include "pool/tier.h"

#define DISK_BYTES (4u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char disk[DISK_BYTES] __attribute__((aligned(4096)));

static void mend(uint8_t flags) {
    struct ssd_superblock super;
    for (size_t copy = 0; copy < 2 && (flags & 1) != 0; copy++) {
        memcpy(&super, disk + copy * SSD_BLOCK, sizeof(super));
        ssd_super_seal(&super);
        memcpy(disk + copy * SSD_BLOCK, &super, sizeof(super));
    }
    memcpy(&super, disk, sizeof(super));
    for (size_t at = SSD_DATA_START; at < DISK_BYTES && (flags & 6) != 0; at += SSD_BLOCK) {
        struct ssd_batch_header *h = (struct ssd_batch_header *)(void *)(disk + at);
        if (memcmp(h->magic, SSD_BATCH_MAGIC, sizeof(h->magic)) != 0) continue;
        if (flags & 4) h->position = at;
        if ((flags & 2) && h->records_size <= DISK_BYTES - at - sizeof(*h))
            ssd_batch_seal(h, super.key);
    }
}

/* --- looking at what was found --- */

struct wait {
    int fd[2];
};
static void on_read(void *arg, tarn_status status) {
    struct wait *w = arg;
    char done = (char)status;
    if (write(w->fd[1], &done, 1) != 1) abort();
}
static void on_put(void *arg, tarn_status status, uint64_t offset) {
    (void)offset;
    on_read(arg, status);
}
static void wait_for(struct wait *w) {
    char done;
    ssize_t n;
    do n = read(w->fd[0], &done, 1);
    while (n < 0 && errno == EINTR); /* libFuzzer's clock */
    if (n != 1) abort();
}

struct found {
    struct {
        uint64_t offset, size, version;
    } items[64];
    size_t n;
};
static void on_item(void *arg, const struct tier_item *item) {
    struct found *f = arg;
    TARN_ASSERT(item->key.len > 0 && item->key.len <= 1024);
    uint32_t sum = 0; /* every byte of it can be touched */
    for (size_t i = 0; i < item->key.len; i++) sum += (uint8_t)item->key.data[i];
    for (size_t i = 0; i < item->n_crcs; i++) sum += item->crcs[i];
    if (f->n == ARRAY_LEN(f->items) || sum == 12345) return;
    f->items[f->n].offset = item->offset;
    f->items[f->n].size = item->size;
    f->items[f->n++].version = item->version;
}

static void use(struct tier *t, struct wait *w, bool put) {
    struct found found = {.n = 0}, gone = {.n = 0};
    tier_each(t, on_item, &found);
    char *buffer = malloc(DISK_BYTES);
    for (size_t i = 0; i < found.n; i++) {
        TARN_ASSERT(found.items[i].offset + found.items[i].size <= tier_get_info(t)->size);
        if (tier_read(t, found.items[i].offset, found.items[i].size, buffer, on_read, w) == TARN_OK)
            wait_for(w);
        if (i % 3 == 0) tier_drop(t, found.items[i].offset, found.items[i].version);
        if (i % 3 == 1) tier_rename(t, found.items[i].offset, found.items[i].version + 1);
    }
    uint64_t ticket;
    while ((ticket = tier_poll_evict(t, on_item, &gone)) != 0) tier_evicted(t, ticket);
    struct tier_item item = {.key = SPAN("fuzz"), .version = 1, .size = 5000};
    struct iovec iov = {buffer, 5000};
    memset(buffer, 7, 5000);
    if (put && tier_put(t, &item, false, &iov, 1, on_put, w) == TARN_OK) wait_for(w);
    free(buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    log_set_level(LOG_LEVEL_NOTHING);
    ssd_io_forbid_uring(true); /* setting one up and closing it takes longer than all the rest */
    if (size == 0) return 0;
    memset(disk, 0, sizeof(disk));
    for (size_t at = 1; at + 4 <= size;) {
        uint16_t block, length;
        memcpy(&block, data + at, 2);
        memcpy(&length, data + at + 2, 2);
        at += 4;
        size_t to = block % (DISK_BYTES / SSD_BLOCK) * SSD_BLOCK;
        size_t n = min_u64(length, min_u64(size - at, DISK_BYTES - to));
        memcpy(disk + to, data + at, n);
        at += n;
    }
    mend(data[0]);
    struct wait w;
    int fd = memfd_create("disk", MFD_CLOEXEC);
    if (fd < 0 || pipe(w.fd) != 0) abort();
    if (ftruncate(fd, sizeof(disk)) != 0) abort();
    for (size_t at = 0; at < sizeof(disk); at += SSD_BLOCK) {
        static const char zero[SSD_BLOCK];
        if (memcmp(disk + at, zero, SSD_BLOCK) == 0) continue;
        if (pwrite(fd, disk + at, SSD_BLOCK, (off_t)at) != SSD_BLOCK) abort();
    }
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct tier_config config = {
        .path = path, .size = DISK_BYTES, .queue_bytes = 1u << 20, .create = true};
    /* Twice: what was found, and what became of it. */
    for (int round = 0; round < 2; round++) {
        struct tier *t;
        const char *why;
        if (tier_open("ssd", &config, &t, &why) != TARN_OK) break;
        use(t, &w, round == 0 && (data[0] & 8) != 0);
        tier_close(&t);
    }
    close(w.fd[0]);
    close(w.fd[1]);
    close(fd);
    return 0;
}
