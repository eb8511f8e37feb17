/* What will be read soon (PREFETCH). May be repeated without harm. */
#include "base/assert.h"
#include "client/client.h"

#define PREFETCH_KEYS 32768 /* in one request */

struct prefetch_call {
    const tarn_key *keys;
    size_t n;
    const char *segment; /* NULL: none */
    struct answer *answer;
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
    struct lane *lane;
    struct call_trace trace;
    trace_begin(&trace, client, "prefetch", n);
    status = lane_take(client, &trace, deadline, &lane);
    if (status == TARN_OK) {
        const struct prefetch_call p = {.keys = keys, .n = n, .segment = segment};
        status = prefetch_run(lane, &p, deadline, &sum);
        lane_give(lane);
    }
    trace_end(&trace, status, sum.taken, 0);
    if (status == TARN_OK && result_p != NULL) *result_p = sum;
    return status;
}
