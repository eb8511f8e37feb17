/* The bytes of a new value: from its parts to its space, which is in the pool of this process or on
 * another machine. */
#include <string.h>
#include "base/assert.h"
#include "front/keys.h"
#include "inband/string_write.h"

static struct span part_bytes(const struct client *c, const struct string_write *w,
                              const struct string_part *p) {
    switch (p->from) {
    case PART_ARG: return span_of(c->argv[p->index].data + p->offset, p->len);
    case PART_OLD: return span_of(string_old_bytes(w, p->index).data + p->offset, p->len);
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
        struct span s = part_bytes(c, w, &w->part[w->part_at]); /* data NULL: zeroes */
        if (*budget == 0) return STRING_WAIT;
        size_t n = sink(w, s.data ? s.data + w->part_done : NULL,
                        min_u64(s.len - w->part_done, *budget * STRING_BYTES_PER_UNIT));
        if (n == 0) {
            w->waits = true;
            return STRING_WAIT;
        }
        spend(budget, (n + STRING_BYTES_PER_UNIT - 1) / STRING_BYTES_PER_UNIT);
        w->part_done += n;
        if (w->part_done == s.len) {
            w->part_at++;
            w->part_done = 0;
        }
    }
    return STRING_GO_ON;
}
