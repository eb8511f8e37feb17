#include "repl/backlog.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define LEAST (1u << 20) /* as small as it gets for want of memory */

void repl_backlog_create(struct repl_backlog *b, size_t size) {
    TARN_ASSERT(b->ring == NULL && size > 0);
    char *ring;
    while ((ring = malloc(size)) == NULL && size > LEAST) size /= 2;
    *b = (struct repl_backlog){.ring = ring != NULL ? ring : xmalloc(size), .size = size};
}

void repl_backlog_free(struct repl_backlog *b) {
    free(b->ring);
    *b = (struct repl_backlog){.ring = NULL};
}

void repl_backlog_clear(struct repl_backlog *b) {
    b->len = b->head = 0;
}

bool repl_backlog_resize(struct repl_backlog *b, size_t size) {
    if (b->ring == NULL || b->size == size) return true;
    struct repl_backlog next = {.ring = malloc(size), .size = size};
    struct span piece[2];
    if (next.ring == NULL) return false;
    repl_backlog_tail(b, b->len < size ? b->len : size, piece);
    repl_backlog_feed(&next, piece[0]);
    repl_backlog_feed(&next, piece[1]);
    repl_backlog_free(b);
    *b = next;
    return true;
}

void repl_backlog_feed(struct repl_backlog *b, struct span bytes) {
    if (bytes.len > b->size) bytes = span_of(bytes.data + bytes.len - b->size, b->size);
    if (bytes.len == 0) return;
    size_t first = b->size - b->head < bytes.len ? b->size - b->head : bytes.len;
    memcpy(b->ring + b->head, bytes.data, first);
    if (bytes.len > first) memcpy(b->ring, bytes.data + first, bytes.len - first);
    b->head = (b->head + bytes.len) % b->size;
    b->len = b->size - b->len < bytes.len ? b->size : b->len + bytes.len;
}

bool repl_backlog_holds(const struct repl_backlog *b, uint64_t offset, uint64_t next) {
    return b->ring != NULL && next <= offset + 1 && next + b->len >= offset + 1;
}

void repl_backlog_tail(const struct repl_backlog *b, size_t n, struct span piece[2]) {
    TARN_ASSERT(n <= b->len);
    size_t in_front = n < b->head ? n : b->head; /* of the ring's seam */
    piece[0] = span_of(b->ring + b->size - (n - in_front), n - in_front);
    piece[1] = span_of(b->ring + b->head - in_front, in_front);
    if (piece[0].len == 0) piece[0] = span_of(b->ring, 0);
}
