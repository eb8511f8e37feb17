#include "engine/placed.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/log.h"

#define FILE_PIECES 64u
#define SUM_BYTES   (UINT64_C(256) << 10) /* read and summed while in the cache */

const uint8_t placed_in_order[PLACED_REPLICAS_MAX] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
};

static uint32_t replica_bit(unsigned replica) {
    return UINT32_C(1) << replica;
}

/* --- what is read --- */

void placed_read_init(struct placed_read *r, const struct placed_value *value) {
    *r = (struct placed_read){.value = *value};
}

static void read_from_start(struct placed_read *r) {
    r->pos = r->from;
    r->sum = 0;
    r->sources = 0;
}

void placed_read_range(struct placed_read *r, uint64_t from, uint64_t len, unsigned how) {
    const struct placed_value *v = &r->value;
    TARN_ASSERT(len > 0 && from < v->size && len <= v->size - from);
    bool pieces = v->size > PLACED_BLOCK && (len < v->size || (how & PLACED_IN_PIECES) != 0);
    r->from = from;
    r->to = from + len;
    r->check = PLACED_UNCHECKED;
    r->learned = NULL;
    if ((how & PLACED_VERIFY) == 0) {
    } else if (v->crcs != NULL && (pieces || v->crc < 0)) {
        r->check = PLACED_BLOCKS;
        r->from = from / PLACED_BLOCK * PLACED_BLOCK;
        r->to = min_u64(v->size, (r->to + PLACED_BLOCK - 1) / PLACED_BLOCK * PLACED_BLOCK);
    } else if (v->crc >= 0) {
        r->check = PLACED_WHOLE;
        r->from = 0;
        r->to = v->size;
    }
    read_from_start(r);
}

void placed_read_learn(struct placed_read *r, uint32_t *room) {
    TARN_ASSERT(r->check == PLACED_WHOLE && r->pos == 0);
    r->learned = room;
}

bool placed_read_relocated(struct placed_read *r, const struct placed_value *now, bool verify) {
    const struct placed_value *v = &r->value;
    if (now->version != v->version || now->size != v->size || now->crc != v->crc) return false;
    if (r->check == PLACED_BLOCKS && now->crcs == NULL) return false;
    if (r->check == PLACED_UNCHECKED && verify) return false;
    r->value = *now;
    r->at = 0;
    r->given_up = 0;
    r->sources = r->pos > r->from ? UINT32_MAX : 0;
    return true;
}

void placed_read_only(struct placed_read *r, unsigned replica) {
    r->at = replica;
    r->given_up = ~replica_bit(replica);
}

/* --- from where --- */

unsigned placed_read_choose(struct placed_read *r, const uint8_t *order, unsigned n,
                            placed_avoid_fn avoid, void *arg) {
    unsigned present = 0, found = n;
    TARN_ASSERT(n <= PLACED_REPLICAS_MAX);
    r->replicas = n;
    if (n == 1 && order[0] == r->at && r->given_up == 0) return 0; /* whatever speaks against it */
    while (present < n && order[present] != r->at) present++;
    for (unsigned k = 0; k <= n; k++) {
        unsigned i = k == 0 ? present : k - 1;
        if (i == n || (k > 0 && i == present) || (r->given_up & replica_bit(order[i]))) continue;
        bool avoided = avoid != NULL && avoid(arg, order[i]);
        if (found == n || !avoided) found = i;
        if (!avoided) break;
    }
    if (found < n) r->at = order[found];
    return found;
}

bool placed_read_has_other(const struct placed_read *r, const uint8_t *order, unsigned n,
                           placed_avoid_fn avoid, void *arg) {
    for (unsigned i = 0; i < n; i++) {
        if (order[i] == r->at || (r->given_up & replica_bit(order[i]))) continue;
        if (avoid == NULL || !avoid(arg, order[i])) return true;
    }
    return false;
}

/* --- what came --- */

static bool blocks_match(const struct placed_read *r, uint64_t len, const uint32_t *crcs) {
    size_t first = r->pos / PLACED_BLOCK - r->value.first_block,
           n = (len + PLACED_BLOCK - 1) / PLACED_BLOCK;
    return memcmp(crcs, (const char *)r->value.crcs + first * sizeof(*crcs), n * sizeof(*crcs)) ==
           0;
}

/* Of several that have contributed any may be the bad one: the present one has to do it alone. As
 * long as it goes round, that is: somebody may be writing there. */
static enum placed_next placed_wrong(struct placed_read *r, unsigned replica) {
    bool mixed = r->check == PLACED_WHOLE && (r->sources & ~replica_bit(replica)) != 0;
    if (++r->mismatches > r->replicas + 1)
        r->given_up = UINT32_MAX;
    else if (!mixed)
        r->given_up |= replica_bit(replica);
    if (r->check == PLACED_WHOLE) read_from_start(r);
    return PLACED_WRONG;
}

enum placed_next placed_read_took(struct placed_read *r, unsigned replica, uint64_t len,
                                  const uint32_t *crcs) {
    TARN_ASSERT(len > 0 && len <= r->to - r->pos);
    if (r->check == PLACED_BLOCKS && !blocks_match(r, len, crcs)) return placed_wrong(r, replica);
    if (r->check == PLACED_WHOLE) {
        r->sum = r->pos == r->from ? crcs[0] : crc32c_combine(r->sum, crcs[0], len);
        r->sources |= replica_bit(replica);
        if (r->learned != NULL) r->learned[r->pos / PLACED_BLOCK] = crcs[0];
    }
    r->pos += len;
    if (r->pos < r->to) return PLACED_MORE;
    if (r->check == PLACED_WHOLE && r->sum != (uint32_t)r->value.crc)
        return placed_wrong(r, replica);
    if (r->learned != NULL) {
        r->value.crcs = r->learned;
        r->value.first_block = 0;
    }
    return PLACED_DONE;
}

void placed_read_failed(struct placed_read *r, unsigned replica) {
    r->given_up |= replica_bit(replica);
}

/* --- pieces --- */

size_t placed_parts(const struct engine_part *parts, size_t n, uint64_t from, uint64_t len,
                    struct engine_part *out) {
    size_t used = 0;
    for (size_t i = 0; i < n && len > 0; i++) {
        uint64_t whole = parts[i].extent.length;
        if (from >= whole) {
            from -= whole;
            continue;
        }
        out[used] = parts[i];
        out[used].sub_offset = from;
        out[used].sub_length = min_u64(whole - from, len);
        len -= out[used++].sub_length;
        from = 0;
    }
    return used;
}

/* data is at bytes from the beginning of the range. */
static void sum_up(struct engine_op *op, uint64_t at, const char *data, uint64_t len) {
    if (op->want_crc) op->crc = crc32c(at > 0 ? op->crc : 0, data, len);
    while (op->crcs != NULL && len > 0) {
        uint64_t in_block = at % op->crc_block, n = min_u64(len, op->crc_block - in_block);
        uint32_t *crc = &op->crcs[at / op->crc_block];
        *crc = crc32c(in_block > 0 ? *crc : 0, data, n);
        data += n;
        at += n;
        len -= n;
    }
}

/* Not through a symbolic link in its last part, and never waiting for a FIFO or a device. */
tarn_status placed_file_open(const char *path, uint64_t size, int *fd_p) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        log_verbose("%s: %s", path, strerror(errno));
        return errno == ENOENT || errno == ENOTDIR ? TARN_ENOTFOUND : TARN_EIO;
    }
    *fd_p = fd;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size >= size) return TARN_OK;
    log_verbose("%s: not a file of %llu bytes", path, (unsigned long long)size);
    close(fd);
    return TARN_ENOTFOUND;
}

tarn_status placed_file_read(int fd, uint64_t offset, struct engine_op *op) {
    struct iov_cursor at = iov_cursor(op->iov, op->n_iov);
    struct iovec pieces[FILE_PIECES], v;
    uint64_t done = 0;
    for (size_t n; (n = iov_gather(at, SUM_BYTES, pieces, FILE_PIECES)) > 0;) {
        ssize_t got = preadv(fd, pieces, (int)n, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return TARN_EIO;
        if (got == 0) return TARN_ECORRUPT;
        for (uint64_t left = (uint64_t)got; left > 0; left -= v.iov_len) {
            v = iov_here(&at);
            v.iov_len = min_u64(v.iov_len, left);
            sum_up(op, done, v.iov_base, v.iov_len);
            iov_advance(&at, v.iov_len);
            done += v.iov_len;
        }
    }
    bool late = op->lease_end_boot_ms != 0 && clock_boot_ms() >= op->lease_end_boot_ms;
    return late ? TARN_ELEASE : TARN_OK;
}
