/* The bytes of a new value: from its parts, which are in memory here or stream in from elsewhere, to its space, which is in the
 * pool of this process or streams out. */
#include <string.h>
#include "base/assert.h"
#include "cmd/keys.h"
#include "cmd/string_write.h"

/* About a microsecond of copying and summing. */
#define BYTES_PER_UNIT UINT64_C(8192)

static struct span part_bytes(const struct client *c, const struct string_write *w,
                              const struct string_part *p) {
    switch (p->from) {
    case PART_ARG: return span_of(c->argv[p->index].data + p->offset, p->len);
    case PART_OLD:
        TARN_ASSERT(!w->old_far);
        return span_of((w->old_in_small ? w->old_small : w->old_piece[p->index].data) + p->offset, p->len);
    case PART_SMALL: return span_of(w->small + p->offset, p->len);
    case PART_ZERO: break;
    }
    return span_of(NULL, p->len);
}

void string_gather(const struct client *c, const struct string_write *w, char *to) {
    for (size_t i = 0; i < w->parts; i++) {
        struct span s = part_bytes(c, w, &w->part[i]);
        if (s.data)
            memcpy(to, s.data, s.len);
        else
            memset(to, 0, s.len);
        to += s.len;
    }
}

/* The next bytes of the part; data NULL: zeroes. */
static enum string_flow source(struct client *c, struct string_write *w, struct span *bytes_p) {
    const struct string_part *p = &w->part[w->part_at];
    if (p->from == PART_OLD && w->old_far) return string_far_old(c, w, bytes_p);
    struct span s = part_bytes(c, w, p);
    *bytes_p = span_of(s.data ? s.data + w->part_done : NULL, s.len - w->part_done);
    return STRING_GO_ON;
}

static size_t sink(struct string_write *w, const char *data, size_t n) {
    if (!w->local_out) return remote_write_add(w->far->out, data, n);
    if (data)
        pool_writer_copy(&w->writer, data, n);
    else
        pool_writer_zero(&w->writer, n);
    return n;
}

enum string_flow string_copy_parts(struct client *c, struct string_write *w, unsigned *budget) {
    while (w->part_at < w->parts) {
        const struct string_part *p = &w->part[w->part_at];
        struct span s;
        if (*budget == 0) return STRING_WAIT;
        enum string_flow flow = source(c, w, &s);
        if (flow != STRING_GO_ON) return flow;
        size_t n = sink(w, s.data, min_u64(s.len, *budget * BYTES_PER_UNIT));
        if (n == 0) {
            w->waits = true;
            return STRING_WAIT;
        }
        spend(budget, (n + BYTES_PER_UNIT - 1) / BYTES_PER_UNIT);
        if (p->from == PART_OLD && w->old_far) string_far_old_used(w, n);
        w->part_done += n;
        if (w->part_done == p->len) {
            w->part_at++;
            w->part_done = 0;
        }
    }
    return STRING_GO_ON;
}
