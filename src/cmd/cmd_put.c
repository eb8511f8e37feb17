/* PUTSTART and MPUTSTART: space for new objects. One job serves both: a single put is a batch of
 * one whose answer stands alone. PUTEND and PUTREVOKE are in cmd_putend.c. */
#include "cmd/families.h"

#include <inttypes.h>
#include <stdlib.h>
#include "base/assert.h"
#include "cmd/acl_users.h"
#include "cmd/config.h"
#include "cmd/keys.h"
#include "cmd/later.h"
#include "cmd/location.h"
#include "cmd/refusal.h"
#include "transport/place.h"

#define SEGMENTS_PER_UNIT 8u /* that can be looked at in about the time of a unit of work */

enum { PREFER_MAX = 16, AVOID_MAX = 16, GROUP_MAX = 1024 };
#define TTL_MAX_MS UINT64_C(1000000000000000) /* some 31,000 years */
#define PIN_MAX_MS UINT64_C(31536000000)      /* a year */

/* Spans would not outlive a slice: these are indices of arguments. */
struct put_args {
    struct store_put_options options; /* without its spans */
    size_t prefer_at[PREFER_MAX], prefers;
    size_t avoid_at[AVOID_MAX], avoids;
    size_t group_at; /* 0: none */
    bool packed;
};

struct put_job {
    struct job job;
    bool single;
    size_t n, pos;
    struct store_put *making; /* room is being made for the key at pos */
    struct put_args args;
    struct store_batch batch;
    struct key_window window;
};

/* --- arguments --- */

static bool pin_option(struct client *c, size_t *at_p, enum store_pin *pin_p, uint64_t *ms_p) {
    size_t at = *at_p; /* of SOFT, HARD or NONE */
    if (at < c->argc && arg_is(c, at, "hard")) {
        *pin_p = STORE_PIN_HARD;
        *ms_p = acl_pin_owner(c);
        *at_p = at + 1;
        return true;
    }
    if (at < c->argc && arg_is(c, at, "soft")) {
        if (!option_number(c, at_p, "SOFT", 1, PIN_MAX_MS, ms_p)) return false;
        *pin_p = STORE_PIN_SOFT;
        return true;
    }
    reply_error(c, "PIN must be SOFT ms or HARD");
    return false;
}

static bool prefer_option(struct client *c, size_t *at_p, struct put_args *args) {
    if (!option_has_value(c, *at_p, "PREFER")) return false;
    if (args->prefers == PREFER_MAX) {
        reply_error(c, "PREFER may be given at most %d times", PREFER_MAX);
        return false;
    }
    args->prefer_at[args->prefers++] = *at_p + 1;
    *at_p += 2;
    return true;
}

static bool avoid_option(struct client *c, size_t *at_p, struct put_args *args) {
    if (!option_has_value(c, *at_p, "AVOID")) return false;
    if (args->avoids == AVOID_MAX) {
        reply_error(c, "AVOID may be given at most %d times", AVOID_MAX);
        return false;
    }
    args->avoid_at[args->avoids++] = *at_p + 1;
    *at_p += 2;
    return true;
}

static bool group_option(struct client *c, size_t *at_p, struct put_args *args) {
    if (!option_has_value(c, *at_p, "GROUP")) return false;
    struct span id = c->argv[*at_p + 1];
    if (id.len == 0 || id.len > GROUP_MAX) {
        reply_error(c, "GROUP must be 1 to %d bytes", GROUP_MAX);
        return false;
    }
    args->group_at = *at_p + 1;
    *at_p += 2;
    return true;
}

static bool put_options(struct client *c, size_t at, bool single, struct put_args *args) {
    struct store_put_options *o = &args->options;
    o->replicas = 1;
    o->host = location_host(c);
    o->once = !location_trusted(c);
    while (at < c->argc) {
        uint64_t v;
        bool ok = true;
        if (arg_is(c, at, "replace")) {
            o->replace = true;
            at++;
        } else if (arg_is(c, at, "replicas")) {
            ok = option_number(c, &at, "REPLICAS", 1, STORE_REPLICAS_MAX, &v);
            if (ok) o->replicas = (uint32_t)v;
        } else if (arg_is(c, at, "ttl")) {
            ok = option_number(c, &at, "TTL", 1, TTL_MAX_MS, &v);
            if (ok) o->expire_wall_ms = server.wall_ms + v;
        } else if (arg_is(c, at, "pin")) {
            at++;
            ok = pin_option(c, &at, &o->pin, &o->pin_ms);
        } else if (arg_is(c, at, "prefer")) {
            ok = prefer_option(c, &at, args);
        } else if (arg_is(c, at, "avoid")) {
            ok = avoid_option(c, &at, args);
        } else if (single && arg_is(c, at, "instead")) {
            ok = option_number(c, &at, "INSTEAD", 1, INT64_MAX, &o->instead);
        } else if (!single && arg_is(c, at, "packed")) {
            args->packed = true;
            at++;
        } else if (arg_is(c, at, "group")) {
            ok = group_option(c, &at, args);
        } else {
            option_unknown(c, at);
            return false;
        }
        if (!ok) return false;
    }
    return true;
}

/* --- the job --- */

/* [token, [replica, ...]], and how many replicas are missing when that is not 0. */
static void answer_opened(struct client *c, const struct store_put *put, bool packed) {
    struct store_layout layout;
    struct location_grant grant = location_put_grant(put);
    c->io->flags |= CLIENT_GRANTED;
    uint32_t missing = store_put_missing(put);
    store_put_layout(server.store, put, &layout);
    struct text t;
    struct place_packed place = {.number = store_put_token(put)};
    text_begin(&t);
    if (packed && missing == 0 && text_packed(&t, &layout, &grant, &place)) {
        text_send(c, &t);
        return;
    }
    text_array(&t, missing > 0 ? 3 : 2);
    text_int(&t, (int64_t)store_put_token(put));
    text_replicas(&t, &layout, span_of(NULL, 0), 0, &grant); /* memory only: no names needed */
    if (missing > 0) text_int(&t, missing);
    text_send(c, &t);
}

static void answer_no_segment(struct client *c, const struct put_args *args) {
    struct store_segment_info info;
    for (size_t i = 0; i < args->prefers; i++) {
        struct span name = c->argv[args->prefer_at[i]];
        if (store_segment_by_name(server.store, name, &info)) continue;
        reply_error(c, "-NOSEGMENT PREFER names no segment: '%.*s' (SEGMENT LIST)",
                    (int)min_u64(name.len, 64), name.data != NULL ? name.data : "");
        return;
    }
    reply_status(c, TARN_ENOSEGMENT, "PREFER"); /* gone since */
}

static void answer_refused(struct client *c, tarn_status status, struct span key, uint64_t size,
                           const struct put_args *args) {
    const struct store_put_options *o = &args->options;
    struct refusal_put put = {.key = key,
                              .size = size,
                              .replicas = o->replicas,
                              .pinned_hard = o->pin == STORE_PIN_HARD,
                              .owner = o->pin_ms};
    switch (status) {
    case TARN_EQUOTA: refusal_quota(c, &put); break;
    case TARN_EINVAL: reply_error(c, "size or an option is out of range"); break;
    case TARN_ENOSPACE: refusal_no_room(c, "NOSPACE", size); break;
    case TARN_ENOSEGMENT: answer_no_segment(c, args); break;
    case TARN_ELIMIT:
        reply_error(c,
                    "-LIMIT this client has %llu puts open, which is max-puts-per-client: end or "
                    "revoke some",
                    (unsigned long long)server.config->max_puts_per_client);
        break;
    default: reply_status(c, status, NULL); break;
    }
}

static void answer_put(struct client *c, tarn_status status, const struct store_put *put,
                       struct span key, uint64_t size, const struct put_args *args) {
    status = room_status(status);
    if (UNLIKELY(later_is(status)))
        later_reply(c, status);
    else if (status == TARN_OK)
        answer_opened(c, put, args->packed);
    else if (status == TARN_EEXISTS)
        reply_null(c);
    else
        answer_refused(c, status, key, size, args);
}

/* The key and size at pos are well-formed; answers otherwise. */
static bool put_element(struct client *c, const struct put_job *p, struct span *key_p,
                        uint64_t *size_p) {
    size_t at = (p->single ? 1 : 2) + p->pos * 2;
    *key_p = c->argv[at];
    if (!key_valid(c, *key_p)) return false;
    if (span_to_u64(c->argv[at + 1], size_p) && *size_p <= STORE_SIZE_MAX) return true;
    reply_error(c, "size must be a number from 0 to %" PRIu64, STORE_SIZE_MAX);
    return false;
}

static tarn_status put_open(struct client *c, struct put_job *p, struct span key, uint64_t size,
                            unsigned *budget, struct store_put **put_p) {
    struct store_put_options options = p->args.options;
    struct span prefer[PREFER_MAX], avoid[AVOID_MAX];
    for (size_t i = 0; i < p->args.prefers; i++) prefer[i] = c->argv[p->args.prefer_at[i]];
    options.prefer = p->args.prefers ? prefer : NULL;
    options.prefers = p->args.prefers;
    for (size_t i = 0; i < p->args.avoids; i++) avoid[i] = c->argv[p->args.avoid_at[i]];
    options.avoid = p->args.avoids ? avoid : NULL;
    options.avoids = p->args.avoids;
    if (p->args.group_at) options.group = c->argv[p->args.group_at];
    return store_put_start(server.store, &p->batch, key, size, &options, c->id, budget, put_p);
}

/* One key, or a further piece of work for it. false: its room is still being made. */
static bool put_next(struct client *c, struct put_job *p, unsigned *budget) {
    tarn_status status;
    struct store_put *put = p->making;
    struct span key;
    uint64_t size;
    if (put == NULL) /* prefetches */
        key_window_hash(&p->window, c, p->single ? 1 : 2, 2, p->pos, p->n);
    if (!put_element(c, p, &key, &size)) return true;
    if (put) {
        status = store_put_continue(server.store, put, budget);
    } else {
        status = put_open(c, p, key, size, budget, &put);
    }
    p->making = status == TARN_EAGAIN ? put : NULL;
    if (status == TARN_EAGAIN) return false;
    /* The answer looks at every segment. */
    if (status == TARN_ENOSPACE)
        spend(budget, store_segment_limit(server.store) / SEGMENTS_PER_UNIT);
    answer_put(c, status, put, key, size, &p->args);
    return true;
}

static bool put_step(struct client *c, struct job *job, unsigned *budget) {
    struct put_job *p = CONTAINER_OF(job, struct put_job, job);
    while (p->pos < p->n) {
        if (*budget == 0) return false;
        if (!put_next(c, p, budget)) return false;
        spend(budget, 1);
        p->pos++;
    }
    return true;
}

static void put_close(struct client *c, struct job *job) {
    struct put_job *p = CONTAINER_OF(job, struct put_job, job);
    if (p->making) store_put_abandon(server.store, &p->making);
}

static struct put_job *put_create(bool single, size_t n) {
    struct put_job *p = xcalloc(1, sizeof(*p));
    p->job = (struct job){.step = put_step, .close = put_close, .runnable = true};
    p->single = single;
    p->n = n;
    return p;
}

static void put_run(struct client *c, struct put_job *p, size_t options_at) {
    if (!put_options(c, options_at, p->single, &p->args)) {
        free(p);
        return;
    }
    store_batch_begin(server.store, &p->batch, &c->chain, STORE_BATCH_PUT, (uint32_t)p->n);
    if (!p->single) reply_array(c, p->n);
    job_start(c, &p->job);
}

void cmd_putstart(struct client *c) {
    put_run(c, put_create(true, 1), 3);
}

void cmd_mputstart(struct client *c) {
    size_t n;
    if (!batch_count(c, 2, &n)) return;
    put_run(c, put_create(false, n), 2 + 2 * n);
}
