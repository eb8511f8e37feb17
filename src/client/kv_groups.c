/* Prefixes of models with several KV groups: what is asked of the server, and what it may answer.
 * Which parts a boundary needs the server knows; here it is checked that all of them lie within
 * what was asked, for the caller has memory for no others. */
#include "client/kv_groups.h"
#include "client/shards.h"

struct kv_asking {
    const tarn_kv_query *query;
    uint64_t lease_ms, wait_ms;
    struct call_hint hint;
    uint64_t tokens;
    tarn_kv_parts *parts; /* in the lane's arena */
    /* MGETREPLICAS only: what it says of each part, one group after the other, and when it was
     * asked */
    struct get_located located;
    size_t n;
    size_t found;   /* of the hashes, or of the parts that were read, */
    uint64_t bytes; /* and of these */
};

/* --- what is asked --- */

/* What the server does not know of, or we could not make keys of. */
static const char *kv_group_fault_of(const tarn_kv_query *q, const tarn_kv_group *g) {
    if (g->name == NULL || g->name_len == 0) return "it has no name";
    if (g->kind < TARN_KV_FULL || g->kind > TARN_KV_STATE) return "its kind is a TARN_KV_*";
    if (g->block == 0 || g->block % kv_group_unit(g) != 0 || kv_group_unit(g) % q->unit != 0)
        return "the unit of the hashes divides its unit, and that one its block";
    if (q->align % kv_group_unit(g) != 0) return "its unit divides the alignment";
    return NULL;
}

tarn_status kv_query_copy(const tarn_kv_query *in, tarn_kv_query *q) {
    *q = (tarn_kv_query){0};
    if (in == NULL || in->size < sizeof(*in))
        return fail(TARN_EINVAL, "KV groups: no query, or its size is not set");
    *q = *in;
    if (q->unit == 0 || q->align == 0 || (q->hashes == NULL && q->n_hashes > 0) ||
        q->groups == NULL || q->n_groups == 0)
        return fail(TARN_EINVAL, "KV groups: hashes, their unit, an alignment, and groups");
    size_t longest = 0;
    for (size_t i = 0; i < q->n_hashes; i++) {
        tarn_status status = client_check_key(q->hashes[i].data, q->hashes[i].len);
        if (status != TARN_OK) return status;
        longest = max_u64(longest, q->hashes[i].len);
    }
    for (size_t i = 0; i < q->n_groups; i++) {
        const char *fault = kv_group_fault_of(q, &q->groups[i]);
        if (fault == NULL && q->groups[i].name_len + longest > TARN_KEY_MAX)
            fault = "its name and a hash are too long for a key";
        if (fault != NULL)
            return fail(TARN_EINVAL, "KV group %zu of %zu: %s", i + 1, q->n_groups, fault);
    }
    return TARN_OK;
}

static void kv_request_build(struct ctl_request *r, enum wire_id id, const struct kv_asking *l) {
    static const char *const kinds[] = {
        [TARN_KV_FULL] = "FULL", [TARN_KV_WINDOW] = "WINDOW", [TARN_KV_STATE] = "STATE"};
    const tarn_kv_query *q = l->query;
    request_begin(r);
    struct wire_look look = {.keys = {request_next(r), (uint32_t)q->n_hashes},
                             .unit = q->unit,
                             .align = q->align,
                             .lease_ms = l->lease_ms,
                             .wait_ms = l->wait_ms,
                             .packed = id == WIRE_mgetreplicas,
                             .no_grant = id == WIRE_mgetreplicas && l->located.no_grant};
    for (size_t i = 0; i < q->n_hashes; i++) request_word(r, q->hashes[i].data, q->hashes[i].len);
    look.kv_groups = (struct wire_list){request_next(r), (uint32_t)q->n_groups};
    for (size_t i = 0; i < q->n_groups; i++) {
        const tarn_kv_group *g = &q->groups[i];
        request_word(r, g->name, g->name_len);
        request_str(r, kinds[g->kind]);
        request_number(r, g->block);
        request_number(r, kv_group_unit(g));
        request_number(r, g->window);
        request_number(r, g->drops_last != 0);
    }
    hint_fill(r, l->hint, &look.hint);
    request_build(r, id, &look);
}

/* --- what is answered --- */

/* What that kind needs at any boundary. */
static uint64_t kv_blocks_most(const tarn_kv_group *g) {
    if (g->kind == TARN_KV_FULL) return UINT64_MAX;
    if (g->kind == TARN_KV_STATE) return 1;
    return ((uint64_t)g->window + g->block - 2) / g->block;
}

/* Nothing behind the boundary but the rest of the block that it lies in. */
static bool kv_parts_within(const tarn_kv_query *q, const tarn_kv_group *g, uint64_t tokens,
                            const tarn_kv_parts *p) {
    uint64_t whole = tokens / g->block, most = kv_blocks_most(g);
    if (p->first > whole || p->blocks > whole - p->first || p->blocks > most) return false;
    /* up to the boundary, and a state once */
    if (p->blocks > 0 && p->first + p->blocks != whole) return false;
    if (g->kind == TARN_KV_STATE && p->blocks > 0 && p->tail != 0) return false;
    if (p->tail == 0) return true;
    return tokens % g->block != 0 && p->tail % kv_group_unit(g) == 0 &&
           p->tail > whole * g->block && p->tail <= (whole + 1) * g->block &&
           p->tail / q->unit <= q->n_hashes;
}

static bool kv_parts_read(const tarn_kv_query *q, const tarn_kv_group *g, uint64_t tokens,
                          const struct answer *a, tarn_kv_parts *p) {
    return answer_u64(answer_at(a, 0), &p->first) && answer_u64(answer_at(a, 1), &p->blocks) &&
           answer_u64(answer_at(a, 2), &p->tail) && kv_parts_within(q, g, tokens, p);
}

static tarn_status kv_answer_read(struct kv_asking *l, const struct answer *a) {
    const tarn_kv_query *q = l->query;
    const struct answer *groups = answer_at(a, 1);
    bool right = answer_u64(answer_at(a, 0), &l->tokens) && l->tokens % q->align == 0 &&
                 l->tokens / q->unit <= q->n_hashes && groups != NULL &&
                 groups->type == ANSWER_ARRAY && groups->len == q->n_groups;
    for (size_t i = 0; i < q->n_groups && right; i++)
        right = kv_parts_read(q, &q->groups[i], l->tokens, &groups->element[i], &l->parts[i]);
    return right ? TARN_OK : fail(TARN_EPROTO, "KVGROUPS: the answer makes no sense");
}

static size_t kv_parts_count(const tarn_kv_parts *p) {
    return (size_t)p->blocks + (p->tail != 0);
}

/* The answers for the parts, which are those of one group after the other. */
static tarn_status kv_located_read(struct arena *arena, struct kv_asking *l,
                                   const struct answer *a) {
    const struct answer *replies = answer_at(a, 2);
    tarn_status status = kv_answer_read(l, a);
    if (status != TARN_OK) return status;
    for (size_t i = 0; i < l->query->n_groups; i++) l->n += kv_parts_count(&l->parts[i]);
    if (replies == NULL || replies->type != ANSWER_ARRAY || replies->len != l->n)
        return fail(TARN_EPROTO, "KVGROUPS: another number of answers than of parts");
    l->located.of = arena_alloc(arena, l->n * sizeof(*l->located.of));
    for (size_t i = 0; i < l->n; i++) l->located.of[i] = &replies->element[i];
    return TARN_OK;
}

/* --- calls --- */

static tarn_status kv_prefix_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct kv_asking *l = arg;
    struct answer *a;
    l->parts = arena_alloc(&lane->arena, l->query->n_groups * sizeof(*l->parts));
    kv_request_build(&lane->request, WIRE_prefixlen, l);
    tarn_status status = lane_call(lane, &a, deadline);
    return status == TARN_OK ? kv_answer_read(l, a) : status;
}

static tarn_status kv_locate_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct kv_asking *l = arg;
    struct answer *a;
    l->n = 0;
    l->parts = arena_alloc(&lane->arena, l->query->n_groups * sizeof(*l->parts));
    l->located.no_grant = lane_no_grant(lane);
    kv_request_build(&lane->request, WIRE_mgetreplicas, l);
    l->located.sent_ns = clock_boot_ns(); /* the lease counts from here */
    tarn_status status = lane_call(lane, &a, deadline);
    return status == TARN_OK ? kv_located_read(&lane->arena, l, a) : status;
}

/* A call of either kind: what is done on the lane, and what came of it. */
static tarn_status
kv_call(tarn_client *client, const char *name, const tarn_kv_query *query, const tarn_call *call,
        tarn_status (*run)(struct lane *lane, struct kv_asking *l, void *arg, uint64_t deadline),
        void *arg, uint64_t *tokens_p, tarn_kv_parts *parts) {
    tarn_kv_query q;
    tarn_status status = client_usable(client);
    if (status == TARN_OK) status = hint_check(HINT_OF(call));
    if (status == TARN_OK) status = kv_query_copy(query, &q);
    if (status != TARN_OK) return status;
    struct kv_asking l = {
        .query = &q, .lease_ms = call->lease_ms, .wait_ms = call->wait_ms, .hint = HINT_OF(call)};
    uint64_t deadline = add_sat(client_deadline(client, call->timeout_ms, 0), call->wait_ms);
    struct lane *lane;
    struct call_trace trace;
    if (q.n_hashes == 0) {
        *tokens_p = 0;
        memset(parts, 0, q.n_groups * sizeof(*parts));
        return TARN_OK;
    }
    if (client->shards != NULL) return shards_kv(client, &q, call, arg, deadline, tokens_p, parts);
    trace_begin(&trace, client, name, q.n_hashes);
    status = lane_take(client, &trace, deadline, &lane);
    if (status == TARN_OK) {
        COUNT(lane, lookups, q.n_hashes);
        status = run(lane, &l, arg, deadline);
        if (status == TARN_OK) {
            *tokens_p = l.tokens;
            memcpy(parts, l.parts, q.n_groups * sizeof(*parts));
        }
        lane_give(lane);
    }
    if (l.located.of != NULL) trace.keys = l.n;
    trace_end(&trace, status, l.found, l.bytes);
    return status;
}

static tarn_status kv_prefix_run(struct lane *lane, struct kv_asking *l, void *arg,
                                 uint64_t deadline) {
    uint64_t started = clock_mono_us();
    (void)arg;
    tarn_status status = lane_run(lane, deadline, kv_prefix_once, l);
    timing_add(lane, TARN_HIST_LOOKUP, l->query->n_hashes, started);
    if (status == TARN_OK) l->found = (size_t)l->tokens / l->query->unit;
    return status;
}

tarn_status tarn_kv_prefix(tarn_client *client, const tarn_kv_query *query,
                           const tarn_call *call_in, uint64_t *tokens_p, tarn_kv_parts *parts) {
    tarn_call call;
    client_call_copy(&call, call_in);
    return kv_call(client, "lookup", query, &call, kv_prefix_run, NULL, tokens_p, parts);
}

/* --- gets --- */

tarn_key kv_key_make(struct arena *arena, const tarn_kv_query *q, const tarn_kv_group *g,
                     uint64_t end) {
    const tarn_key *hash = &q->hashes[end / q->unit - 1];
    char *key = arena_alloc(arena, g->name_len + hash->len);
    memcpy(key, g->name, g->name_len);
    memcpy(key + g->name_len, hash->data, hash->len);
    return (tarn_key){key, g->name_len + hash->len};
}

void kv_parts_name(struct arena *arena, const tarn_kv_query *q, const tarn_kv_parts *parts,
                   tarn_key *keys) {
    for (size_t i = 0; i < q->n_groups; i++) {
        const tarn_kv_group *g = &q->groups[i];
        const tarn_kv_parts *p = &parts[i];
        for (uint64_t b = p->first; b < p->first + p->blocks; b++)
            *keys++ = kv_key_make(arena, q, g, (b + 1) * g->block);
        if (p->tail != 0) *keys++ = kv_key_make(arena, q, g, p->tail);
    }
}

static void kv_items_name(struct arena *arena, const struct kv_asking *l, tarn_item *items) {
    tarn_key *keys = arena_alloc(arena, l->n * sizeof(*keys));
    kv_parts_name(arena, l->query, l->parts, keys);
    for (size_t i = 0; i < l->n; i++) {
        items[i].key = keys[i].data;
        items[i].key_len = keys[i].len;
    }
}

/* What was answered has no CRCs of blocks, without which a range costs all of its value. */
static bool kv_needs_crcs(const struct lane *lane, const tarn_item *items, size_t n) {
    bool ranges = false;
    for (size_t i = 0; i < n; i++) ranges = ranges || items[i].offset != 0 || items[i].want != 0;
    return ranges && lane->client->options.verify;
}

static tarn_status kv_read(struct lane *lane, struct kv_asking *l, struct kv_reading *r,
                           uint64_t deadline) {
    tarn_item *items = r->place(r->arg, l->tokens, l->parts, l->n);
    if (items == NULL) return fail(TARN_ECANCELED, "the parts are not wanted");
    bool again = kv_needs_crcs(lane, items, l->n);
    const struct get_options o = {.located = again ? NULL : &l->located,
                                  .deadline = deadline,
                                  .extend_deadline = r->extend_deadline,
                                  .lease_ms = l->lease_ms,
                                  .hint = l->hint};
    kv_items_name(&lane->arena, l, items);
    tarn_status status = get_run(lane, items, l->n, &o);
    for (size_t i = 0; i < l->n; i++) {
        items[i].key = NULL;
        items[i].key_len = 0;
        r->failed += items[i].status != TARN_OK;
        l->bytes += items[i].got;
    }
    l->found = l->n - r->failed;
    return status;
}

static tarn_status kv_get_run(struct lane *lane, struct kv_asking *l, void *arg,
                              uint64_t deadline) {
    struct kv_reading *r = arg;
    uint64_t started = clock_mono_us();
    /* without a lease: its clock would run while we wait */
    uint64_t lease_ms = l->lease_ms;
    l->lease_ms = 0;
    tarn_status status = l->wait_ms > 0 ? lane_run(lane, deadline, kv_prefix_once, l) : TARN_OK;
    l->lease_ms = lease_ms;
    l->wait_ms = 0;
    if (status == TARN_OK) status = lane_run(lane, deadline, kv_locate_once, l);
    if (status == TARN_OK && l->n > 0) status = kv_read(lane, l, r, deadline);
    timing_add(lane, TARN_HIST_GET, l->n, started);
    return status;
}

tarn_status tarn_kv_get(tarn_client *client, const tarn_kv_query *query, const tarn_call *call_in,
                        tarn_kv_place_fn place, void *arg, uint64_t *tokens_p, tarn_kv_parts *parts,
                        size_t *failed_p) {
    tarn_call call;
    client_call_copy(&call, call_in);
    struct kv_reading r = {place, arg, call.timeout_ms == 0, 0};
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (place == NULL) return fail(TARN_EINVAL, "KV groups: nobody says where the parts go");
    if (call.lease_ms == 0) call.lease_ms = client->options.lease_ms;
    status = kv_call(client, "get", query, &call, kv_get_run, &r, tokens_p, parts);
    if (status == TARN_OK && failed_p != NULL) *failed_p = r.failed;
    return status;
}
