/* What will be read soon (PREFETCH). May be repeated without harm. */
#include <stdlib.h>

#include "base/assert.h"
#include "client/shards.h"

#define PREFETCH_KEYS 32768 /* in one request */
#define WHOLE_MS      1000u /* until keys that a master calls not its own now are asked for alone */

struct prefetch_call {
    const tarn_key *keys;
    size_t n;
    const char *segment; /* NULL: none */
    struct answer *answer;
    tarn_prefetched *sum;
};

static tarn_status prefetch_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct prefetch_call *p = arg;
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_prefetch args = {.keys = {request_next(r), (uint32_t)p->n}};
    for (size_t i = 0; i < p->n; i++) request_word(r, p->keys[i].data, p->keys[i].len);
    if (p->segment != NULL) args.segment = request_str(r, p->segment);
    request_build(r, WIRE_prefetch, &args);
    return lane_call(lane, &p->answer, deadline);
}

/* [taken, there, unknown, refused] */
static tarn_status add_answer(const struct answer *a, tarn_prefetched *sum) {
    uint64_t *const count[] = {&sum->taken, &sum->there, &sum->unknown, &sum->refused};
    bool right = a->type == ANSWER_ARRAY && a->len == ARRAY_LEN(count);
    for (size_t i = 0; right && i < ARRAY_LEN(count); i++) {
        uint64_t n = 0;
        right = answer_u64(&a->element[i], &n);
        *count[i] += n;
    }
    return right ? TARN_OK : fail(TARN_EPROTO, "PREFETCH: the answer is no four numbers");
}

static tarn_status prefetch_run(struct lane *lane, const struct prefetch_call *p, uint64_t deadline,
                                tarn_prefetched *sum) {
    tarn_status status = TARN_OK;
    for (size_t at = 0; at < p->n && status == TARN_OK; at += PREFETCH_KEYS) {
        struct prefetch_call part = *p;
        part.keys = p->keys + at;
        part.n = min_u64(p->n - at, PREFETCH_KEYS);
        status = lane_run(lane, deadline, prefetch_once, &part);
        if (status == TARN_OK) status = add_answer(part.answer, sum);
    }
    return status;
}

static tarn_status prefetch_at(struct tarn_client *client, bool asking, uint64_t deadline,
                               void *arg) {
    const struct prefetch_call *p = arg;
    tarn_prefetched sum = {0};
    struct lane *lane;
    struct call_trace trace;
    trace_begin(&trace, client, "prefetch", p->n);
    tarn_status status = lane_take(client, &trace, deadline, &lane);
    if (status == TARN_OK) {
        lane->asking = asking;
        status = prefetch_run(lane, p, deadline, &sum);
        lane_give(lane);
    }
    trace_end(&trace, status, sum.taken, 0);
    if (status != TARN_OK) return status;
    p->sum->taken += sum.taken;
    p->sum->there += sum.there;
    p->sum->unknown += sum.unknown;
    p->sum->refused += sum.refused;
    return TARN_OK;
}

/* --- over several masters --- */

/* Segments are a master's: the others choose. */
static tarn_status prefetch_where(struct tarn_client *front, struct prefetch_call p,
                                  uint64_t deadline, bool *known_p) {
    const tarn_key *key = p.keys;
    tarn_status status = shards_one(front, key->data, key->len, deadline, prefetch_at, &p);
    if (status != TARN_ENOSEGMENT) *known_p = true;
    if (status != TARN_ENOSEGMENT || p.segment == NULL) return status;
    p.segment = NULL;
    return shards_one(front, key->data, key->len, deadline, prefetch_at, &p);
}

/* One master's keys; those of slots that move, or have moved, one by one. */
static tarn_status prefetch_keys(struct tarn_client *front, struct prefetch_call p, bool single,
                                 uint64_t deadline, bool *known_p) {
    tarn_status status = TARN_ELATER;
    if (!single) status = prefetch_where(front, p, min_u64(deadline, now_ms() + WHOLE_MS), known_p);
    if (single || status == TARN_ELATER) {
        size_t n = p.n;
        for (size_t i = 0; i < n; i++, p.keys++) {
            p.n = 1;
            status = prefetch_where(front, p, deadline, known_p);
            if (status != TARN_OK) return status;
        }
    }
    return status;
}

static tarn_status prefetch_shards(struct tarn_client *front, const struct prefetch_call *p,
                                   uint64_t deadline) {
    struct shard_map *map = shards_take(front);
    struct split s;
    split_init(&s, map->slots, (struct keys_of){p->keys, sizeof(*p->keys)}, NULL, NULL, p->n, true);
    tarn_key *keys = xmalloc(p->n * sizeof(*keys) + 1);
    tarn_status failed = TARN_OK, status = TARN_OK;
    bool any = p->n == 0, known = p->segment == NULL || p->n == 0;
    for (size_t i = 0; i < p->n; i++) keys[i] = p->keys[s.order[i]];
    for (unsigned b = 0; b <= SPLIT_NOBODY; b++) {
        struct prefetch_call part = *p;
        part.keys = keys + s.begin[b];
        part.n = s.begin[b + 1] - s.begin[b];
        if (part.n == 0) continue;
        status = prefetch_keys(front, part, b % SPLIT_KINDS == SPLIT_SINGLE, deadline, &known);
        any = any || status == TARN_OK;
        if (status != TARN_OK && failed == TARN_OK) failed = status;
    }
    free(keys);
    split_free(&s);
    shards_give(front, &map);
    if (any && !known) return fail(TARN_ENOSEGMENT, "no master has a segment %s", p->segment);
    return any ? TARN_OK : failed;
}

tarn_status tarn_prefetch(tarn_client *client, const tarn_key *keys, size_t n, const char *segment,
                          const tarn_call *call_in, tarn_prefetched *result_p) {
    tarn_call call;
    client_call_copy(&call, call_in);
    tarn_status status = client_usable(client);
    for (size_t i = 0; i < n && status == TARN_OK; i++)
        status = client_check_key(keys[i].data, keys[i].len);
    if (status != TARN_OK) return status;
    uint64_t deadline = client_deadline(client, call.timeout_ms, 0);
    tarn_prefetched sum = {0};
    struct prefetch_call p = {.keys = keys, .n = n, .segment = segment, .sum = &sum};
    status = client->shards != NULL ? prefetch_shards(client, &p, deadline)
                                    : prefetch_at(client, false, deadline, &p);
    if (status == TARN_OK && result_p != NULL) *result_p = sum;
    return status;
}
