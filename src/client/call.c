/* Gets and puts as programs call them: defaults, a lane, the run on it, figures. */
#include <stdlib.h>

#include "client/client.h"
#include "client/shards.h"

/* There was no lane. */
static void items_fail(tarn_item *items, size_t n, tarn_status status) {
    for (size_t i = 0; i < n; i++) {
        items[i].status = status;
        items[i].got = 0;
    }
}

/* All that it has moved went by shared memory: no host can keep it waiting. */
static bool lane_moves_memory(const struct lane *lane) {
    const char *name;
    uint64_t other = 0;
    for (unsigned i = 0; (name = transport_name(i)) != NULL; i++)
        if (strcmp(name, "shm") != 0)
            other +=
                lane->counters.transport[i].bytes_read + lane->counters.transport[i].bytes_written;
    return other == 0;
}

/* Can it be asked before others are? */
static bool lane_goes_ahead(struct lane *lane, uint64_t deadline) {
    return lane->ctl.fd >= 0 && lane_moves_memory(lane) && lane_ready(lane, deadline) == TARN_OK;
}

/* --- gets --- */

void client_get_begin(struct get_call *g, bool ahead) {
    g->started_us = clock_mono_us();
    g->lane = NULL;
    g->asked = false;
    trace_begin(&g->trace, g->client, "get", g->n);
    g->status = lane_take(g->client, &g->trace, g->o.deadline, &g->lane);
    if (g->status != TARN_OK) return;
    g->lane->asking = g->o.asking;
    if (!ahead || !lane_goes_ahead(g->lane, g->o.deadline)) return;
    g->no_grant = get_locate_build(g->lane, g->items, NULL, g->n, &g->o, false);
    g->sent_ns = clock_boot_ns(); /* leases count from here */
    g->asked = lane_send(g->lane, false) == TARN_OK;
}

/* false: it is asked once more, by a get that starts over. */
static bool get_answered(struct get_call *g, struct get_located *located) {
    struct answer *a = NULL;
    if (!g->asked || lane_receive(g->lane, &a, g->o.deadline) != TARN_OK) return false;
    if (a->type != ANSWER_ARRAY || a->len != g->n) return false;
    located->sent_ns = g->sent_ns;
    located->no_grant = g->no_grant;
    located->of = arena_alloc(&g->lane->arena, g->n * sizeof(*located->of));
    for (size_t i = 0; i < g->n; i++) located->of[i] = &a->element[i];
    return true;
}

tarn_status client_get_end(struct get_call *g) {
    struct get_located located;
    if (g->status == TARN_OK) {
        if (get_answered(g, &located)) g->o.located = &located;
        g->status = get_run(g->lane, g->items, g->n, &g->o);
        timing_add(g->lane, TARN_HIST_GET, g->n, g->started_us);
        lane_give(g->lane);
    } else {
        items_fail(g->items, g->n, g->status);
    }
    if (UNLIKELY(g->trace.on)) trace_end_items(&g->trace, g->status, g->items, g->n);
    return g->status;
}

tarn_status client_get(struct tarn_client *client, tarn_item *items, size_t n,
                       const struct get_options *o) {
    struct get_call g = {.client = client, .items = items, .n = n, .o = *o};
    client_get_begin(&g, false);
    return client_get_end(&g);
}

static tarn_status get_items(tarn_client *client, tarn_item *items, size_t n,
                             const tarn_call *call_in, bool allocate) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (n == 0) return TARN_OK;
    if (items == NULL) return fail(TARN_EINVAL, "no items");
    tarn_call call;
    client_call_copy(&call, call_in);
    status = hint_check(HINT_OF(&call));
    if (status != TARN_OK) return status;
    struct get_options o = {
        .deadline = add_sat(client_deadline(client, call.timeout_ms, 0), call.wait_ms),
        .extend_deadline = call.timeout_ms == 0,
        .lease_ms = call.lease_ms == 0 ? client->options.lease_ms : call.lease_ms,
        .wait_ms = call.wait_ms,
        .allocate = allocate,
        .hint = HINT_OF(&call),
    };
    return client->shards == NULL ? client_get(client, items, n, &o)
                                  : shards_get(client, items, n, &o);
}

tarn_status tarn_get_many(tarn_client *client, tarn_item *items, size_t n, const tarn_call *call,
                          size_t *hits_p) {
    tarn_status status = get_items(client, items, n, call, false);
    if (status != TARN_OK || hits_p == NULL) return status;
    *hits_p = 0;
    for (size_t i = 0; i < n; i++) *hits_p += items[i].status == TARN_OK;
    return TARN_OK;
}

static tarn_status call_get_one(tarn_client *client, tarn_item *item, const tarn_call *call,
                                bool allocate) {
    tarn_status status = get_items(client, item, 1, call, allocate);
    if (status != TARN_OK) return status;
    if (item->status == TARN_ENOTFOUND) fail(TARN_ENOTFOUND, "no such key");
    return (tarn_status)item->status;
}

static tarn_status get_whole(tarn_client *client, tarn_item *item, size_t *len_p,
                             const tarn_call *call) {
    tarn_status status = call_get_one(client, item, call, false);
    if (len_p != NULL && (status == TARN_OK || status == TARN_ELIMIT))
        *len_p = (size_t)item->value_size;
    return status;
}

tarn_status tarn_get(tarn_client *client, const void *key, size_t key_len, void *buffer, size_t cap,
                     size_t *len_p, const tarn_call *call) {
    tarn_item item = {.key = key, .key_len = key_len, .buffer = buffer, .buffer_len = cap};
    return get_whole(client, &item, len_p, call);
}

tarn_status tarn_getv(tarn_client *client, const void *key, size_t key_len, const struct iovec *iov,
                      size_t n_iov, size_t *len_p, const tarn_call *call) {
    tarn_item item = {.key = key, .key_len = key_len, .iov = iov, .n_iov = n_iov};
    return get_whole(client, &item, len_p, call);
}

tarn_status tarn_get_range(tarn_client *client, const void *key, size_t key_len, uint64_t offset,
                           void *buffer, size_t len, size_t *got_p, const tarn_call *call) {
    if (len == 0) return fail(TARN_EINVAL, "a range of no bytes");
    tarn_item item = {.key = key,
                      .key_len = key_len,
                      .buffer = buffer,
                      .buffer_len = len,
                      .offset = offset,
                      .want = len};
    tarn_status status = call_get_one(client, &item, call, false);
    if (status == TARN_OK && got_p != NULL) *got_p = (size_t)item.got;
    return status;
}

tarn_status tarn_get_alloc(tarn_client *client, const void *key, size_t key_len, void **data_p,
                           size_t *len_p, const tarn_call *call) {
    tarn_item item = {.key = key, .key_len = key_len};
    tarn_status status = call_get_one(client, &item, call, true);
    if (status != TARN_OK) return status;
    *data_p = item.buffer;
    if (len_p != NULL) *len_p = (size_t)item.got;
    return TARN_OK;
}

/* --- puts --- */

void client_put_begin(struct put_call *p, bool ahead) {
    p->started_us = clock_mono_us();
    p->lane = NULL;
    p->asked = p->written = false;
    trace_begin(&p->trace, p->client, "put", p->n);
    p->status = lane_take(p->client, &p->trace, p->deadline, &p->lane);
    if (p->status != TARN_OK) return;
    p->lane->asking = p->asking;
    p->putting = put_open(p->lane, p->items, p->n, p->o, p->spread, p->deadline);
    p->asked = ahead && lane_goes_ahead(p->lane, p->deadline) && put_ask_ahead(p->putting);
}

bool client_put_write(struct put_call *p) {
    p->asked = p->written = put_write_ahead(p->putting);
    return put_is_over(p->putting);
}

tarn_status client_put_end(struct put_call *p) {
    if (p->status == TARN_OK) {
        p->status = put_run(p->putting);
        timing_add(p->lane, TARN_HIST_PUT, p->n, p->started_us);
        lane_give(p->lane);
    } else {
        items_fail(p->items, p->n, p->status);
    }
    if (UNLIKELY(p->trace.on)) trace_end_items(&p->trace, p->status, p->items, p->n);
    return p->status;
}

static tarn_status put_items(tarn_client *client, tarn_item *items, size_t n,
                             const tarn_put_options *options) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (n == 0) return TARN_OK;
    if (items == NULL) return fail(TARN_EINVAL, "no items");
    tarn_put_options o;
    client_put_options_copy(&o, options);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes = add_sat(bytes, items[i].n_iov > 0 ? iov_total(items[i].iov, items[i].n_iov)
                                                  : items[i].buffer_len);
    }
    uint64_t deadline = client_deadline(client, o.timeout_ms, bytes);
    if (client->shards != NULL) return shards_put(client, items, n, &o, deadline);
    struct put_call p = {.client = client,
                         .items = items,
                         .n = n,
                         .o = &o,
                         .spread = put_spread(&o, n),
                         .deadline = deadline};
    client_put_begin(&p, false);
    return client_put_end(&p);
}

tarn_status tarn_put_many(tarn_client *client, tarn_item *items, size_t n,
                          const tarn_put_options *options, size_t *failed_p) {
    tarn_status status = put_items(client, items, n, options);
    if (status != TARN_OK || failed_p == NULL) return status;
    *failed_p = 0;
    for (size_t i = 0; i < n; i++)
        *failed_p += items[i].status != TARN_OK && items[i].status != TARN_EEXISTS;
    return TARN_OK;
}

static tarn_status call_put_one(tarn_client *client, tarn_item *item,
                                const tarn_put_options *options) {
    tarn_status status = put_items(client, item, 1, options);
    if (status != TARN_OK) return status;
    if (item->status != TARN_EEXISTS) return (tarn_status)item->status;
    tarn_put_options o;
    client_put_options_copy(&o, options);
    return o.exists_ok ? TARN_OK
                       : fail(TARN_EEXISTS, "the key is there already (replace, or exists_ok)");
}

tarn_status tarn_put(tarn_client *client, const void *key, size_t key_len, const void *data,
                     size_t len, const tarn_put_options *options) {
    tarn_item item = {
        .key = key, .key_len = key_len, .buffer = (void *)(uintptr_t)data, .buffer_len = len};
    return call_put_one(client, &item, options);
}

tarn_status tarn_putv(tarn_client *client, const void *key, size_t key_len, const struct iovec *iov,
                      size_t n_iov, const tarn_put_options *options) {
    tarn_item item = {.key = key, .key_len = key_len, .iov = iov, .n_iov = n_iov};
    return call_put_one(client, &item, options);
}
