/* A trace's other lives: what is learnt on one must hold on them, too. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "trace/dense.h"
#include "trace/trace.h"

static const char *const transform_names[TRACE_TRANSFORMS] = {"whole", "first-half", "last-half",
                                                              "reversed-sessions"};

enum trace_transform trace_transform_of(const char *name) {
    unsigned i = 0;
    while (i < TRACE_TRANSFORMS && strcmp(name, transform_names[i]) != 0) i++;
    return (enum trace_transform)i;
}

const char *trace_transform_name(enum trace_transform transform) {
    return transform_names[transform];
}

/* Who goes on with a conversation has all blocks of its last prompt but the last one, which was not
 * full, and more of them than the first, which may be everybody's system prompt. */
static void sessions_find(struct trace *t) {
    struct dense ids = {0};
    uint32_t *owner = xcalloc(t->n_ids + 1, sizeof(*owner)); /* of each id: who had it first */
    uint32_t *length = xcalloc(t->n + 1, sizeof(*length));   /* of a session's last prompt */
    uint32_t n = 0;
    for (size_t r = 0; r < t->n; r++) {
        struct trace_request *q = &t->requests[r];
        const uint64_t *id = t->ids + q->first;
        uint32_t shared = 0, who = UINT32_MAX, number;
        while (shared < q->n && (number = dense_find(&ids, id[shared])) != UINT32_MAX) {
            who = owner[number];
            shared++;
        }
        if (shared < 2 || shared + 1 < length[who]) who = n++;
        for (uint32_t i = shared; i < q->n; i++) {
            bool new;
            number = dense_of(&ids, id[i], &new);
            if (new) owner[number] = who;
        }
        length[who] = q->n;
        q->session = who;
    }
    dense_free(&ids);
    free(owner);
    free(length);
}

/* Each session as a whole comes as long before the end as it came after the beginning. */
static void sessions_reverse(struct trace *t) {
    struct span_ms {
        uint64_t first, last;
    } * spans;
    struct dense names = {0};
    bool new;
    if (t->n == 0) return;
    for (size_t r = 0; r < t->n; r++)
        if (t->requests[r].session == TRACE_SESSION_NONE) {
            sessions_find(t);
            break;
        }
    spans = xcalloc(t->n, sizeof(*spans));
    for (size_t r = 0; r < t->n; r++) {
        const struct trace_request *q = &t->requests[r];
        uint32_t s = dense_of(&names, q->session, &new);
        if (new) spans[s].first = q->timestamp_ms;
        spans[s].last = q->timestamp_ms;
    }
    uint64_t ends = t->requests[0].timestamp_ms + t->requests[t->n - 1].timestamp_ms;
    for (size_t r = 0; r < t->n; r++) {
        struct trace_request *q = &t->requests[r];
        uint32_t s = dense_find(&names, q->session);
        q->timestamp_ms = ends - spans[s].last + (q->timestamp_ms - spans[s].first);
    }
    dense_free(&names);
    free(spans);
    trace_sort(t);
}

void trace_transform(struct trace *out, const struct trace *t, enum trace_transform transform) {
    size_t half = t->n / 2, from = transform == TRACE_LAST_HALF ? half : 0;
    *out = *t;
    out->n = transform == TRACE_FIRST_HALF ? half : t->n - from;
    out->cap = out->n;
    out->requests = xmalloc((out->n + 1) * sizeof(*out->requests));
    if (out->n > 0) memcpy(out->requests, t->requests + from, out->n * sizeof(*out->requests));
    out->cap_ids = t->n_ids;
    out->ids = xmalloc((t->n_ids + 1) * sizeof(*out->ids));
    if (t->n_ids > 0) memcpy(out->ids, t->ids, t->n_ids * sizeof(*out->ids));
    if (transform == TRACE_REVERSED_SESSIONS) sessions_reverse(out);
}
