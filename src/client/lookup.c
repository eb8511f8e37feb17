/* What needs no bytes: look-ups, removal, pins, waiting, any command. All of it may be repeated
 * without harm. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "client/answer.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/lane.h"

#define LOOKUP_KEYS 32768 /* keys in one request */

/* One request that build makes; repeated over reconnects. */
struct plain {
    const char *what;
    void (*build)(struct lane *lane, const void *arg);
    const void *arg;
};

static tarn_status run_plain(struct lane *lane, const struct plain *p, struct answer **answer_p,
                             uint64_t deadline) {
    struct attempts attempts = {0};
    tarn_status status;
    do {
        status = lane_ready(lane, deadline);
        if (status != TARN_OK) continue;
        request_begin(&lane->request);
        p->build(lane, p->arg);
        status = lane_call(lane, answer_p, deadline);
    } while (status != TARN_OK && lane_retry(lane, &attempts, status, deadline));
    return status;
}

struct keys {
    const tarn_key *keys;
    size_t n;
    enum wire_id id;
    uint64_t lease_ms, wait_ms;
};

static void build_keys(struct lane *lane, const void *arg) {
    const struct keys *k = arg;
    struct ctl_request *r = &lane->request;
    struct wire_look look = {
        .keys = {request_next(r), (uint32_t)k->n}, .lease_ms = k->lease_ms, .wait_ms = k->wait_ms};
    for (size_t i = 0; i < k->n; i++) request_word(r, k->keys[i].data, k->keys[i].len);
    request_build(r, k->id, &look);
}

static tarn_status check_keys(tarn_client *client, const tarn_key *keys, size_t n) {
    tarn_status status = client_usable(client);
    for (size_t i = 0; i < n && status == TARN_OK; i++)
        status = client_check_key(keys[i].data, keys[i].len);
    return status;
}

static tarn_status integer_answer(struct lane *lane, const struct plain *p, uint64_t *value_p,
                                  uint64_t deadline) {
    struct answer *a;
    tarn_status status = run_plain(lane, p, &a, deadline);
    if (status != TARN_OK) return status;
    return answer_u64(a, value_p) ? TARN_OK
                                  : fail(TARN_EPROTO, "%s: the answer is no number", p->what);
}

/* --- existence --- */

static tarn_status exists_chunk(struct lane *lane, const struct keys *k, uint8_t *found,
                                uint64_t deadline) {
    struct answer *a;
    tarn_status status = run_plain(lane, &(struct plain){"MEXISTS", build_keys, k}, &a, deadline);
    if (status != TARN_OK) return status;
    if (a->type != ANSWER_ARRAY || a->len != k->n)
        return fail(TARN_EPROTO, "MEXISTS: wrong number of answers");
    for (size_t i = 0; i < k->n; i++)
        found[i] = a->element[i].type == ANSWER_INTEGER && a->element[i].integer == 1;
    return TARN_OK;
}

tarn_status tarn_exists_many(tarn_client *client, const tarn_key *keys, size_t n, uint8_t *found) {
    tarn_status status = check_keys(client, keys, n);
    if (status != TARN_OK || n == 0) return status;
    uint64_t deadline = client_deadline(client, 0, 0), started = clock_mono_us();
    struct lane *lane;
    status = lane_take(client, deadline, &lane);
    if (status != TARN_OK) return status;
    for (size_t at = 0; at < n && status == TARN_OK; at += LOOKUP_KEYS) {
        struct keys k = {.keys = keys + at,
                         .n = n - at < LOOKUP_KEYS ? n - at : LOOKUP_KEYS,
                         .id = WIRE_mexists};
        status = exists_chunk(lane, &k, found + at, deadline);
    }
    COUNT(lane, lookups, n);
    hist_add(&lane->hist[TARN_HIST_LOOKUP], clock_mono_us() - started);
    lane_give(lane);
    return status;
}

tarn_status tarn_exists(tarn_client *client, const void *key, size_t key_len) {
    tarn_key k = {key, key_len};
    uint8_t found = 0;
    tarn_status status = tarn_exists_many(client, &k, 1, &found);
    if (status != TARN_OK) return status;
    return found ? TARN_OK : fail(TARN_ENOTFOUND, "no such key");
}

/* --- prefixes and waiting --- */

static tarn_status prefix_on_lane(struct lane *lane, const tarn_key *keys, size_t n,
                                  uint64_t lease_ms, uint64_t wait_ms, uint64_t deadline,
                                  size_t *length_p) {
    size_t length = 0;
    for (size_t at = 0; at < n; at += LOOKUP_KEYS) {
        struct keys k = {.keys = keys + at,
                         .n = n - at < LOOKUP_KEYS ? n - at : LOOKUP_KEYS,
                         .id = WIRE_prefixlen,
                         .lease_ms = lease_ms,
                         .wait_ms = wait_ms};
        uint64_t hits;
        tarn_status status =
            integer_answer(lane, &(struct plain){"PREFIXLEN", build_keys, &k}, &hits, deadline);
        if (status != TARN_OK) return status;
        length += (size_t)min_u64(hits, k.n);
        if (hits < k.n) break;
    }
    *length_p = length;
    return TARN_OK;
}

tarn_status wait_for_keys(struct lane *lane, const tarn_key *keys, size_t n, uint64_t wait_ms,
                          uint64_t deadline, size_t *length_p) {
    return prefix_on_lane(lane, keys, n, 0, wait_ms, deadline, length_p);
}

tarn_status tarn_prefix_length(tarn_client *client, const tarn_key *keys, size_t n,
                               const tarn_call *call_in, size_t *length_p) {
    tarn_status status = check_keys(client, keys, n);
    if (status != TARN_OK) return status;
    tarn_call call;
    client_call_copy(&call, call_in);
    uint64_t deadline = add_sat(client_deadline(client, call.timeout_ms, 0), call.wait_ms),
             started = clock_mono_us();
    struct lane *lane;
    status = lane_take(client, deadline, &lane);
    if (status != TARN_OK) return status;
    status = prefix_on_lane(lane, keys, n, call.lease_ms, call.wait_ms, deadline, length_p);
    COUNT(lane, lookups, n);
    hist_add(&lane->hist[TARN_HIST_LOOKUP], clock_mono_us() - started);
    lane_give(lane);
    return status;
}

tarn_status tarn_wait(tarn_client *client, const void *key, size_t key_len, uint64_t timeout_ms) {
    /* A server bounds how long one WAIT may be; ask again until the caller's time is over. */
    static const uint64_t slice_ms = 10000;
    tarn_key k = {key, key_len};
    uint64_t until = add_sat(now_ms(), timeout_ms);
    for (;;) {
        uint64_t now = now_ms();
        tarn_call call;
        tarn_call_init(&call);
        call.wait_ms = now >= until ? 0 : min_u64(until - now, slice_ms);
        size_t length;
        tarn_status status = tarn_prefix_length(client, &k, 1, &call, &length);
        if (status != TARN_OK) return status;
        if (length == 1) return TARN_OK;
        if (now_ms() >= until) return fail(TARN_ETIMEOUT, "the key did not come within the time");
    }
}

/* --- removal, pins, ping --- */

tarn_status tarn_remove_many(tarn_client *client, const tarn_key *keys, size_t n,
                             size_t *removed_p) {
    tarn_status status = check_keys(client, keys, n);
    if (status != TARN_OK) return status;
    uint64_t deadline = client_deadline(client, 0, 0), removed = 0;
    struct lane *lane;
    status = lane_take(client, deadline, &lane);
    if (status != TARN_OK) return status;
    for (size_t at = 0; at < n && status == TARN_OK; at += LOOKUP_KEYS) {
        struct keys k = {
            .keys = keys + at, .n = n - at < LOOKUP_KEYS ? n - at : LOOKUP_KEYS, .id = WIRE_del};
        uint64_t count = 0;
        status = integer_answer(lane, &(struct plain){"DEL", build_keys, &k}, &count, deadline);
        removed += min_u64(count, k.n);
    }
    COUNT(lane, removes, n);
    lane_give(lane);
    if (status == TARN_OK && removed_p != NULL) *removed_p = (size_t)removed;
    return status;
}

tarn_status tarn_remove(tarn_client *client, const void *key, size_t key_len) {
    tarn_key k = {key, key_len};
    size_t removed = 0;
    tarn_status status = tarn_remove_many(client, &k, 1, &removed);
    if (status != TARN_OK) return status;
    return removed > 0 ? TARN_OK : fail(TARN_ENOTFOUND, "no such key");
}

struct pin {
    const void *key;
    size_t key_len;
    int kind;
    uint64_t ms;
};

static void build_pin(struct lane *lane, const void *arg) {
    const struct pin *p = arg;
    struct wire_pin pin = {.key = request_word(&lane->request, p->key, p->key_len),
                           .kind = p->kind == TARN_PIN_HARD   ? WIRE_PIN_HARD
                                   : p->kind == TARN_PIN_SOFT ? WIRE_PIN_SOFT
                                                              : WIRE_PIN_NONE,
                           .ms = p->ms};
    request_build(&lane->request, WIRE_pin, &pin);
}

static tarn_status simple_call(tarn_client *client, const struct plain *p, uint64_t *value_p) {
    uint64_t deadline = client_deadline(client, 0, 0);
    struct lane *lane;
    struct answer *a;
    tarn_status status = lane_take(client, deadline, &lane);
    if (status != TARN_OK) return status;
    status = run_plain(lane, p, &a, deadline);
    if (status == TARN_OK && value_p != NULL && !answer_u64(a, value_p))
        status = fail(TARN_EPROTO, "%s: no number", p->what);
    lane_give(lane);
    return status;
}

tarn_status tarn_pin(tarn_client *client, const void *key, size_t key_len, int kind, uint64_t ms) {
    tarn_key k = {key, key_len};
    tarn_status status = check_keys(client, &k, 1);
    if (status != TARN_OK) return status;
    if (kind < TARN_PIN_NONE || kind > TARN_PIN_HARD)
        return fail(TARN_EINVAL, "kind is a TARN_PIN_*");
    struct pin p = {key, key_len, kind, ms};
    uint64_t done = 0;
    status = simple_call(client, &(struct plain){"PIN", build_pin, &p}, &done);
    if (status != TARN_OK) return status;
    return done == 1 ? TARN_OK : fail(TARN_ENOTFOUND, "no such key");
}

static void build_ping(struct lane *lane, const void *arg) {
    (void)arg;
    lane_begin(lane, "PING");
}

tarn_status tarn_ping(tarn_client *client) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    return simple_call(client, &(struct plain){"PING", build_ping, NULL}, NULL);
}

/* --- any command --- */

static void render(struct buf *out, const struct answer *a) {
    switch (a->type) {
    case ANSWER_NIL: break;
    case ANSWER_INTEGER: buf_printf(out, "%lld", (long long)a->integer); break;
    case ANSWER_ARRAY:
        for (size_t i = 0; i < a->len; i++) {
            if (i > 0) buf_append_char(out, '\n');
            render(out, &a->element[i]);
        }
        break;
    default: buf_append(out, a->str, a->len);
    }
}

tarn_status tarn_command(tarn_client *client, size_t argc, const char *const *argv,
                         const size_t *lens, char **text_p, size_t *len_p) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (argc == 0 || argv == NULL) return fail(TARN_EINVAL, "no command");
    uint64_t deadline = client_deadline(client, 0, 0);
    struct lane *lane;
    status = lane_take(client, deadline, &lane);
    if (status != TARN_OK) return status;
    struct answer *a;
    status = lane_ready(lane, deadline); /* not repeated: who knows what it does */
    if (status == TARN_OK) {
        ctl_begin(&lane->ctl, "command");
        for (size_t i = 0; i < argc; i++)
            lane_arg(lane, argv[i], lens == NULL ? strlen(argv[i]) : lens[i]);
        status = lane_send(lane, false);
        if (status == TARN_OK) status = lane_receive(lane, &a, deadline);
        if (status == TARN_OK) status = answer_check(a, "command");
    }
    if (status == TARN_OK) {
        struct buf out = {0};
        render(&out, a);
        buf_append_char(&out, '\0');
        *text_p = out.data;
        if (len_p != NULL) *len_p = out.len - 1;
    }
    lane_give(lane);
    return status;
}
