/* Reading values. A request goes out in pieces: straight into the reader's buffer where offset and
 * buffer allow it, else through bounce buffers, of which there is a bounded number. O_DIRECT moves
 * whole blocks only. */
#include <stdlib.h>
#include <string.h>

#include "pool/ssd_internal.h"

#define BOUNCE_BYTES (256u << 10)
#define DIRECT_BYTES (2u << 20) /* of one transfer */
/* Under way at a time: enough for a disk. More would end all at once, and who sends them on had
 * nothing to do until then, and the disk nothing afterwards. For that reason the last of what there
 * is goes out bit by bit, half of the rest at a time, down to what keeps a disk busy. */
#define READING_BYTES       (8u << 20)
#define READING_BYTES_LEAST (2u << 20)

struct ssd_read {
    STAILQ_ENTRY(ssd_read) next;
    struct ssd *owner;
    struct ssd_unit *unit;
    struct tier_read_end end;
    uint64_t offset, started; /* started: bytes whose pieces are under way */
    char *buffer;
    unsigned pieces; /* under way */
    tarn_status status;
};

struct ssd_piece {
    struct ssd_op op;
    struct ssd_read *read;
    void *bounce; /* NULL: none is needed */
    char *to;     /* what is wanted of the bounce buffer, and where it goes */
    size_t skip, length;
};

tarn_status ssd_read(struct tier *t, struct tier_record *r, uint64_t offset, void *buffer,
                     const struct tier_read_end *end) {
    struct ssd *s = (struct ssd *)t;
    struct ssd_unit *u = ssd_unit_at(s, r->offset);
    TARN_ASSERT(!s->closing);
    if (u->state >= SSD_LEAVING) return TARN_ENOTFOUND;
    struct ssd_read *read = xmalloc(sizeof(*read));
    *read =
        (struct ssd_read){.owner = s, .unit = u, .end = *end, .offset = offset, .buffer = buffer};
    STAILQ_INSERT_TAIL(&s->reads, read, next);
    u->reads++;
    u->heat += end->length;
    ssd_kick(s);
    return TARN_OK;
}

/* What is written to a unit stays there until another unit takes its place. */
uint64_t ssd_mark(struct tier *t, const struct tier_record *r) {
    const struct ssd_unit *u = ssd_unit_at((const struct ssd *)t, r->offset);
    return u->state < SSD_LEAVING ? u->nonce : 0;
}

static void read_end(struct ssd *s, struct ssd_read *read) {
    pthread_mutex_lock(&s->tier.lock);
    read->unit->reads--;
    pthread_mutex_unlock(&s->tier.lock);
    tier_read_ended(&s->tier, &read->end, read->status);
    free(read);
}

static void piece_read(struct ssd_op *op) {
    struct ssd_piece *p = op->arg;
    struct ssd_read *read = p->read;
    struct ssd *s = read->owner;
    s->bytes_reading -= op->length;
    if (op->error != 0) read->status = TARN_EIO;
    if (p->bounce != NULL) {
        if (op->error == 0) memcpy(p->to, (char *)p->bounce + p->skip, p->length);
        s->bounces[s->n_bounces++] = p->bounce;
    }
    free(p);
    /* The last piece of a request that is still in line is not its end. */
    if (--read->pieces == 0 && read->started == read->end.length) read_end(s, read);
}

static void *bounce_take(struct ssd *s) {
    if (s->n_bounces > 0) return s->bounces[--s->n_bounces];
    if (s->bounces_made == s->bounces_max) return NULL;
    s->bounces_made++;
    return ssd_blocks(BOUNCE_BYTES);
}

/* Sends the next piece off; false: no bounce buffer is free. */
static bool piece_start(struct ssd *s, struct ssd_read *read) {
    uint64_t at = read->offset + read->started, left = read->end.length - read->started;
    char *to = read->buffer + read->started;
    size_t skip = at % SSD_BLOCK;
    bool congruent = (uintptr_t)to % SSD_BLOCK == skip;
    struct ssd_piece *p = xcalloc(1, sizeof(*p));
    p->read = read;
    p->op = (struct ssd_op){.done = piece_read, .arg = p};
    if (!s->direct || (congruent && skip == 0 && left >= SSD_BLOCK)) {
        uint64_t whole = s->direct ? left & ~(uint64_t)(SSD_BLOCK - 1) : left;
        p->length = min_u64(whole, DIRECT_BYTES);
        p->op.buffer = to;
        p->op.offset = at;
        p->op.length = p->length;
    } else {
        /* Where it leads to whole blocks that need no copy, only the part before these. */
        uint64_t most = congruent && skip != 0 ? SSD_BLOCK - skip : BOUNCE_BYTES - skip;
        p->length = min_u64(left, most);
        p->skip = skip;
        p->to = to;
        p->bounce = bounce_take(s);
        if (p->bounce == NULL) {
            free(p);
            return false;
        }
        p->op.buffer = p->bounce;
        p->op.offset = at - skip;
        p->op.length = ssd_align(skip + p->length, SSD_BLOCK);
    }
    read->started += p->length;
    read->pieces++;
    s->bytes_waiting -= p->length;
    s->bytes_reading += p->op.length;
    ssd_io_submit(s->io, &p->op);
    return true;
}

static void reads_take(struct ssd *s) {
    struct ssd_read *read;
    pthread_mutex_lock(&s->tier.lock);
    STAILQ_FOREACH(read, &s->reads, next) s->bytes_waiting += read->end.length;
    STAILQ_CONCAT(&s->reading_now, &s->reads);
    pthread_mutex_unlock(&s->tier.lock);
}

static bool disk_has_enough(const struct ssd *s) {
    uint64_t half = (s->bytes_reading + s->bytes_waiting) / 2;
    return s->bytes_reading >= min_u64(max_u64(half, READING_BYTES_LEAST), READING_BYTES);
}

/* One piece failed: no more of them. */
static void read_cut(struct ssd *s, struct ssd_read *read) {
    s->bytes_waiting -= read->end.length - read->started;
    read->started = read->end.length;
}

void ssd_read_start(struct ssd *s) {
    reads_take(s);
    while (!STAILQ_EMPTY(&s->reading_now)) {
        struct ssd_read *read = STAILQ_FIRST(&s->reading_now);
        if (read->status != TARN_OK) read_cut(s, read);
        while (read->started < read->end.length) {
            /* when a piece is done */
            if (disk_has_enough(s) || !piece_start(s, read)) return;
        }
        STAILQ_REMOVE_HEAD(&s->reading_now, next);
        if (read->pieces == 0) read_end(s, read); /* of no bytes, or failed while in line */
    }
}

void ssd_read_free(struct ssd *s) {
    TARN_ASSERT(s->n_bounces == s->bounces_made);
    for (size_t i = 0; i < s->n_bounces; i++) free(s->bounces[i]);
    free(s->bounces);
}
