/* Registered buffers for local memory that is not, and for what READs of segment headers bring. One
 * mapping per domain, which a device learns of when a rail first uses it; buffers are runs of pages
 * in it. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "rdma/work.h"

#define UNIT  4096u
#define WORD  64u
#define SPLIT 16u /* a run of so many units is good enough for whoever wants more */

struct rdma_staging {
    char *base;
    size_t units, rover, used; /* rover: where the last search ended */
    uint64_t *busy;            /* a bit per unit */
    size_t header_bytes;       /* of a rail */
    size_t size;               /* of all of it; headers are behind the units */
    struct ibv_mr *mr[RDMA_DEVICES_MAX];
};

tarn_status rdma_staging_open(struct rdma_work *w) {
    if (w->staging != NULL) return TARN_OK;
    struct rdma_staging *s = xcalloc(1, sizeof(*s));
    s->units = max_u64(rdma_options.staging_bytes / UNIT, SPLIT);
    s->header_bytes = (size_t)rdma_options.send_queue * RDMA_HEADER_STRIDE;
    s->size = s->units * UNIT + (w->max_rails * s->header_bytes + UNIT - 1) / UNIT * UNIT;
    s->base = mmap(NULL, s->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->base == MAP_FAILED) {
        free(s);
        return TARN_ELIMIT;
    }
    /* A child's copy on write would move it from under the device. */
    (void)madvise(s->base, s->size, MADV_DONTFORK);
    s->busy = xcalloc((s->units + WORD - 1) / WORD, sizeof(*s->busy));
    w->staging = s;
    return TARN_OK;
}

tarn_status rdma_staging_key(struct rdma_work *w, struct rdma_device *device, uint32_t *lkey_p) {
    tarn_status status = rdma_staging_open(w);
    if (status != TARN_OK) return status;
    struct ibv_mr **mr = &w->staging->mr[device->index];
    if (*mr == NULL)
        *mr = rdma_mr_make(device->pd, w->staging->base, w->staging->size, IBV_ACCESS_LOCAL_WRITE);
    if (*mr == NULL) {
        log_verbose("Registering %zu bytes of staging buffers with %s: %m", w->staging->size,
                    device->name);
        return TARN_ELIMIT;
    }
    *lkey_p = (*mr)->lkey;
    return TARN_OK;
}

static bool is_busy(const struct rdma_staging *s, size_t i) {
    return (s->busy[i / WORD] >> i % WORD & 1) != 0;
}

static void units_mark(struct rdma_staging *s, size_t at, size_t n, bool busy) {
    for (size_t i = at; i < at + n; i++) {
        TARN_ASSERT(is_busy(s, i) != busy);
        s->busy[i / WORD] ^= UINT64_C(1) << i % WORD;
    }
    s->used = busy ? s->used + n : s->used - n;
}

/* The first run of want units at or behind the rover, else the longest there is. */
static size_t find_run(const struct rdma_staging *s, size_t want, size_t *at_p) {
    size_t best = 0, run = 0;
    for (size_t looked = 0; looked < s->units; looked++) {
        size_t i = (s->rover + looked) % s->units;
        if (i == 0) run = 0; /* it is no circle */
        if (i % WORD == 0 && run == 0 && s->busy[i / WORD] == UINT64_MAX) {
            looked += WORD - 1;
            continue;
        }
        run = is_busy(s, i) ? 0 : run + 1;
        if (run <= best) continue;
        best = run;
        *at_p = i + 1 - run;
        if (best == want) break;
    }
    return best;
}

char *rdma_staging_get(struct rdma_staging *s, uint64_t *length_p) {
    size_t want = (min_u64(*length_p, s->units * UNIT / SPLIT) + UNIT - 1) / UNIT, at = 0;
    if (s->units - s->used == 0) return NULL;
    size_t n = find_run(s, want, &at);
    if (n < want && n < SPLIT) return NULL;
    units_mark(s, at, n, true);
    s->rover = (at + n) % s->units;
    *length_p = min_u64(*length_p, n * UNIT);
    return s->base + at * UNIT;
}

void rdma_staging_trim(struct rdma_staging *s, char *at, uint64_t length, uint64_t needed) {
    size_t had = (length + UNIT - 1) / UNIT, keep = (needed + UNIT - 1) / UNIT;
    if (keep < had) units_mark(s, (size_t)(at - s->base) / UNIT + keep, had - keep, false);
}

void rdma_staging_put(struct rdma_staging *s, char *at, uint64_t length) {
    rdma_staging_trim(s, at, length, 0);
}

char *rdma_staging_headers(struct rdma_staging *s, unsigned slot) {
    return s->base + s->units * UNIT + slot * s->header_bytes;
}

uint64_t rdma_staging_used(const struct rdma_staging *s) {
    return s != NULL ? s->used * UNIT : 0;
}

void rdma_staging_close(struct rdma_staging **staging_p) {
    struct rdma_staging *s = *staging_p;
    if (s == NULL) return;
    *staging_p = NULL;
    TARN_ASSERT(s->used == 0);
    for (unsigned i = 0; i < RDMA_DEVICES_MAX; i++) rdma_mr_drop(s->mr[i]);
    munmap(s->base, s->size);
    free(s->busy);
    free(s);
}
