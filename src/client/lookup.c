/* What needs no bytes: look-ups, removal, pins, waiting, any command. All of it may be repeated
 * without harm. */
#include <stdlib.h>
#include <strings.h>

#include "base/assert.h"
#include "client/lookup.h"
#include "client/shards.h"

void lookup_build(struct lane *lane, const struct lookup *l) {
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_look look = {
        .keys = {request_next(r), (uint32_t)l->n}, .lease_ms = l->lease_ms, .wait_ms = l->wait_ms};
    for (size_t i = 0; i < l->n; i++) request_word(r, l->keys[i].data, l->keys[i].len);
    hint_fill(r, l->hint, &look.hint);
    spread_fill(r, &l->spread, NULL, l->n, &look.spread);
    request_build(r, l->id, &look);
}

static tarn_status lookup_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct lookup *l = arg;
    lookup_build(lane, l);
    return lane_call(lane, &l->answer, deadline);
}

/* How many of the keys it is true of; found NULL, or which. */
static tarn_status lookup_answer(const struct lookup *l, uint8_t *found, uint64_t *count_p) {
    const struct answer *a = l->answer;
    const char *name = wire_commands[l->id].name;
    if (found == NULL)
        return answer_u64(a, count_p) ? TARN_OK
                                      : fail(TARN_EPROTO, "%s: the answer is no number", name);
    if (a->type != ANSWER_ARRAY || a->len != l->n)
        return fail(TARN_EPROTO, "%s: wrong number of answers", name);
    for (size_t i = 0; i < l->n; i++) {
        found[i] = a->element[i].type == ANSWER_INTEGER && a->element[i].integer == 1;
        *count_p += found[i];
    }
    return TARN_OK;
}

/* So many keys at a time as one request takes; *count_p as of look_answer. */
static tarn_status lookup_run(struct lane *lane, const struct lookup *l, uint64_t deadline,
                              uint8_t *found, size_t *count_p) {
    size_t total = 0;
    for (size_t at = 0; at < l->n; at += LOOKUP_KEYS) {
        struct lookup part = *l;
        uint64_t count = 0;
        part.keys = l->keys + at;
        part.n = min_u64(l->n - at, LOOKUP_KEYS);
        tarn_status status = lane_run(lane, deadline, lookup_once, &part);
        if (status == TARN_OK)
            status = lookup_answer(&part, found == NULL ? NULL : found + at, &count);
        if (status != TARN_OK) return status;
        total += min_u64(count, part.n);
        if (l->id == WIRE_prefixlen && count < part.n) break;
    }
    *count_p = total;
    return TARN_OK;
}

tarn_status wait_for_keys(struct lane *lane, const tarn_key *keys, size_t n, uint64_t wait_ms,
                          uint64_t deadline, size_t *length_p) {
    const struct lookup l = {.id = WIRE_prefixlen, .keys = keys, .n = n, .wait_ms = wait_ms};
    return lookup_run(lane, &l, deadline, NULL, length_p);
}

void lookup_count(struct lane *lane, const struct lookup *l) {
    if (l->id == WIRE_del)
        COUNT(lane, removes, l->n);
    else
        COUNT(lane, lookups, l->n);
}

static tarn_status lookup_call(tarn_client *client, const struct lookup *l, uint64_t timeout_ms,
                               uint8_t *found, size_t *count_p) {
    tarn_status status = client_usable(client);
    if (status == TARN_OK) status = hint_check(l->hint);
    for (size_t i = 0; i < l->n && status == TARN_OK; i++)
        status = client_check_key(l->keys[i].data, l->keys[i].len);
    if (status != TARN_OK) return status;
    uint64_t deadline = add_sat(client_deadline(client, timeout_ms, 0), l->wait_ms),
             started = clock_mono_us();
    if (client->shards != NULL) return shards_lookup(client, l, deadline, found, count_p);
    struct lane *lane;
    struct call_trace trace;
    size_t count = 0;
    trace_begin(&trace, client, l->id == WIRE_del ? "remove" : "lookup", l->n);
    status = lane_take(client, &trace, deadline, &lane);
    if (status == TARN_OK) {
        status = lookup_run(lane, l, deadline, found, &count);
        lookup_count(lane, l);
        if (l->id != WIRE_del) timing_add(lane, TARN_HIST_LOOKUP, l->n, started);
        lane_give(lane);
    }
    if (status == TARN_OK) *count_p = count;
    trace_end(&trace, status, count, 0);
    return status;
}

static tarn_status found_or_not(tarn_status status, bool found) {
    if (status != TARN_OK || found) return status;
    return fail(TARN_ENOTFOUND, "no such key");
}

tarn_status tarn_exists_many(tarn_client *client, const tarn_key *keys, size_t n, uint8_t *found) {
    size_t count;
    return lookup_call(client, &(struct lookup){.id = WIRE_mexists, .keys = keys, .n = n}, 0, found,
                       &count);
}

tarn_status tarn_exists(tarn_client *client, const void *key, size_t key_len) {
    tarn_key k = {key, key_len};
    uint8_t found = 0;
    tarn_status status = tarn_exists_many(client, &k, 1, &found);
    return found_or_not(status, found);
}

tarn_status tarn_remove_many(tarn_client *client, const tarn_key *keys, size_t n,
                             size_t *removed_p) {
    size_t removed;
    return lookup_call(client, &(struct lookup){.id = WIRE_del, .keys = keys, .n = n}, 0, NULL,
                       removed_p != NULL ? removed_p : &removed);
}

tarn_status tarn_remove(tarn_client *client, const void *key, size_t key_len) {
    tarn_key k = {key, key_len};
    size_t removed = 0;
    tarn_status status = tarn_remove_many(client, &k, 1, &removed);
    return found_or_not(status, removed > 0);
}

tarn_status tarn_prefix_length(tarn_client *client, const tarn_key *keys, size_t n,
                               const tarn_call *call_in, size_t *length_p) {
    tarn_call call;
    client_call_copy(&call, call_in);
    return lookup_call(client,
                       &(struct lookup){.id = WIRE_prefixlen,
                                        .keys = keys,
                                        .n = n,
                                        .lease_ms = call.lease_ms,
                                        .wait_ms = call.wait_ms,
                                        .hint = HINT_OF(&call)},
                       call.timeout_ms, NULL, length_p);
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

/* --- without keys, or with one --- */

struct lane_task {
    const char *name; /* of the call */
    lane_fn fn;
    void *arg;
    bool once; /* it connects by itself, and is not tried again */
};

static tarn_status lane_do_at(struct tarn_client *client, bool asking, uint64_t deadline,
                              void *arg) {
    const struct lane_task *task = arg;
    struct lane *lane;
    struct call_trace trace;
    trace_begin(&trace, client, task->name, 0);
    tarn_status status = lane_take(client, &trace, deadline, &lane);
    if (status == TARN_OK) {
        lane->asking = asking;
        status = task->once ? task->fn(lane, task->arg, deadline)
                            : lane_run(lane, deadline, task->fn, task->arg);
        lane_give(lane);
    }
    trace_end(&trace, status, 0, 0);
    return status;
}

/* key NULL: any master will do. */
static tarn_status lane_do(tarn_client *client, const void *key, size_t key_len,
                           struct lane_task task) {
    uint64_t deadline = client_deadline(client, 0, 0);
    if (client->shards == NULL) return lane_do_at(client, false, deadline, &task);
    return key != NULL ? shards_one(client, key, key_len, deadline, lane_do_at, &task)
                       : shards_any(client, deadline, lane_do_at, &task);
}

struct pin {
    tarn_key key;
    int kind;
    uint64_t ms, done;
};

static tarn_status pin_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct pin *p = arg;
    struct answer *a;
    request_begin(&lane->request);
    struct wire_pin pin = {.key = request_word(&lane->request, p->key.data, p->key.len),
                           .kind = p->kind == TARN_PIN_HARD   ? WIRE_PIN_HARD
                                   : p->kind == TARN_PIN_SOFT ? WIRE_PIN_SOFT
                                                              : WIRE_PIN_NONE,
                           .ms = p->ms};
    request_build(&lane->request, WIRE_pin, &pin);
    tarn_status status = lane_call(lane, &a, deadline);
    if (status != TARN_OK || answer_u64(a, &p->done)) return status;
    return fail(TARN_EPROTO, "PIN: the answer is no number");
}

tarn_status tarn_pin(tarn_client *client, const void *key, size_t key_len, int kind, uint64_t ms) {
    tarn_status status = client_usable(client);
    if (status == TARN_OK) status = client_check_key(key, key_len);
    if (status != TARN_OK) return status;
    if (kind < TARN_PIN_NONE || kind > TARN_PIN_HARD)
        return fail(TARN_EINVAL, "kind is a TARN_PIN_*");
    struct pin p = {{key, key_len}, kind, ms, 0};
    status = lane_do(client, key, key_len, (struct lane_task){"pin", pin_once, &p, false});
    return found_or_not(status, p.done == 1);
}

static tarn_status ping_once(struct lane *lane, void *arg, uint64_t deadline) {
    (void)arg;
    return lane_ping(lane, deadline);
}

tarn_status tarn_ping(tarn_client *client) {
    tarn_status status = client_usable(client);
    const struct lane_task task = {"ping", ping_once, NULL, false};
    return status == TARN_OK ? lane_do(client, NULL, 0, task) : status;
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

struct command {
    size_t argc;
    const char *const *argv;
    const size_t *lens;
    struct buf text; /* of the answer, with a zero byte */
};

static struct span command_word(const struct command *c, size_t i) {
    if (i >= c->argc) return (struct span){NULL, 0};
    return span_of(c->argv[i], c->lens != NULL ? c->lens[i] : strlen(c->argv[i]));
}

/* "GET", or "SEGMENT|INFO" of two words. */
static bool command_is(const struct command *c, const char *name) {
    size_t n = strcspn(name, "|");
    struct span first = command_word(c, 0);
    if (first.len != n || strncasecmp(first.data, name, n) != 0) return false;
    return name[n] == '\0' || span_case_eq(command_word(c, 1), name + n + 1);
}

/* NULL: it has none, or we do not know the command. */
static struct span command_key(const struct command *c) {
    struct cmd_key_spec spec[WIRE_KEY_SPECS] = {{0}};
    for (size_t i = 0; i < WIRE_COMMANDS; i++)
        if (command_is(c, wire_commands[i].name)) wire_keys(&wire_commands[i], spec);
    if (spec[0].flags == 0) return (struct span){NULL, 0};
    size_t at = (size_t)spec[0].begin_index;
    if (spec[0].keyword != NULL) {
        while (at < c->argc && !span_case_eq(command_word(c, at), spec[0].keyword)) at++;
        at++;
    }
    return command_word(c, at + spec[0].keynum);
}

/* Not repeated: who knows what it does. */
static tarn_status command_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct command *c = arg;
    struct answer *a;
    tarn_status status = lane_ready(lane, deadline);
    if (status != TARN_OK) return status;
    ctl_words(&lane->ctl, "command", c->argc, c->argv, c->lens);
    status = lane_call(lane, &a, deadline);
    if (status != TARN_OK) return status;
    render(&c->text, a);
    buf_append_char(&c->text, '\0');
    return TARN_OK;
}

/* To the master that has its first key, where it has one. */
static tarn_status command_run(tarn_client *client, struct command *c) {
    const struct lane_task task = {"command", command_once, c, true};
    struct span key = {NULL, 0};
    if (client->shards != NULL) key = command_key(c);
    return lane_do(client, key.data, key.len, task);
}

tarn_status tarn_command(tarn_client *client, size_t argc, const char *const *argv,
                         const size_t *lens, char **text_p, size_t *len_p) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (argc == 0 || argv == NULL) return fail(TARN_EINVAL, "no command");
    struct command c = {argc, argv, lens, {NULL, 0, 0}};
    status = command_run(client, &c);
    if (status != TARN_OK) return status;
    *text_p = c.text.data;
    if (len_p != NULL) *len_p = c.text.len - 1;
    return TARN_OK;
}
