/* What goes when: EVICT, PIN, QUOTA. REMOVEMATCH has its own file. */
#include "cmd/families.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "base/assert.h"
#include "cmd/acl_users.h"
#include "cmd/config.h"
#include "cmd/keys.h"
#include "cmd/refusal.h"

#define PIN_MAX_MS UINT64_C(31536000000) /* a year */

/* --- EVICT --- */

struct evict_job {
    struct job job;
    size_t first, n, pos; /* the keys of KEYS; n 0: by the policy */
    struct store_evict_job evict;
};

static bool enough(const struct store_evict_job *e) {
    return (e->want_bytes && e->bytes >= e->want_bytes) ||
           (e->want_objects && e->objects >= e->want_objects);
}

/* Of those keys, in their order. */
static bool evict_keys(struct client *c, struct evict_job *e, unsigned *budget) {
    for (; e->pos < e->n && !enough(&e->evict); e->pos++) {
        if (*budget == 0) return false;
        spend(budget, 1);
        struct object *o = store_find(server.store, c->argv[e->first + e->pos]);
        uint64_t bytes = 0;
        if (!o || !store_evict_object(server.store, o, &bytes)) continue;
        e->evict.objects++;
        e->evict.bytes += bytes;
    }
    return true;
}

static bool evict_step(struct client *c, struct job *job, unsigned *budget) {
    struct evict_job *e = CONTAINER_OF(job, struct evict_job, job);
    bool done =
        e->n > 0 ? evict_keys(c, e, budget) : store_evict_step(server.store, &e->evict, budget);
    if (!done) return false;
    reply_array(c, 2);
    reply_int(c, (int64_t)e->evict.objects);
    reply_int(c, (int64_t)e->evict.bytes);
    return true;
}

static bool ratio_option(struct client *c, size_t *at_p, double *ratio_p) {
    if (!option_has_value(c, *at_p, "RATIO")) return false;
    char text[40], *end;
    struct span s = c->argv[*at_p + 1];
    size_t len = min_u64(s.len, sizeof(text) - 1);
    memcpy(text, s.data, len);
    text[len] = 0;
    double ratio = strtod(text, &end);
    if (s.len == 0 || len != s.len || end != text + len || !(ratio > 0 && ratio <= 1)) {
        reply_error(c, "RATIO must be a number above 0 and up to 1");
        return false;
    }
    *ratio_p = ratio;
    *at_p += 2;
    return true;
}

static bool keys_option(struct client *c, size_t *at_p, struct evict_job *e) {
    uint64_t n;
    if (!option_number(c, at_p, "KEYS", 1, server.config->max_batch_keys, &n)) return false;
    if (c->argc - *at_p < n) {
        reply_error(c, "KEYS is %" PRIu64 ", but fewer keys follow", n);
        return false;
    }
    e->first = *at_p;
    e->n = n;
    *at_p += n;
    return true;
}

static bool evict_options(struct client *c, struct evict_job *e) {
    double ratio = 0;
    bool ok = true;
    for (size_t at = 1; ok && at < c->argc;) {
        if (arg_is(c, at, "bytes") && ratio == 0) {
            ok = option_number(c, &at, "BYTES", 1, INT64_MAX, &e->evict.want_bytes);
        } else if (arg_is(c, at, "ratio") && e->evict.want_bytes == 0) {
            ok = ratio_option(c, &at, &ratio);
        } else if (arg_is(c, at, "keys") && e->n == 0) {
            ok = keys_option(c, &at, e);
        } else {
            if (arg_is(c, at, "bytes") || arg_is(c, at, "ratio"))
                reply_error(c, "BYTES and RATIO exclude each other");
            else
                option_unknown(c, at);
            return false;
        }
    }
    if (!ok) return false;
    if (ratio == 0 && e->evict.want_bytes == 0 && e->n == 0)
        ratio = store_config(server.store)->eviction_ratio;
    if (ratio > 0)
        e->evict.want_objects =
            (uint64_t)ceil(ratio * (double)(e->n ? e->n : store_count(server.store)));
    return true;
}

void cmd_evict(struct client *c) {
    struct evict_job *e = xcalloc(1, sizeof(*e));
    e->job = (struct job){.step = evict_step, .runnable = true};
    if (evict_options(c, e))
        job_start(c, &e->job);
    else
        free(e);
}

/* --- PIN --- */

static void pin(struct client *c, enum store_pin kind, uint64_t ms) {
    tarn_status status = store_pin(server.store, c->argv[1], kind, ms);
    if (status == TARN_EQUOTA)
        refusal_pin(c, c->argv[1], ms);
    else
        reply_int(c, status == TARN_OK);
}

void cmd_pin(struct client *c) {
    uint64_t ms = 0;
    enum store_pin kind;
    size_t at = 2;
    if (!arg_key(c, 1)) return;
    if (arg_is(c, at, "soft")) {
        if (!option_number(c, &at, "SOFT", 1, PIN_MAX_MS, &ms)) return;
        kind = STORE_PIN_SOFT;
    } else if (arg_is(c, at, "hard") || arg_is(c, at, "none")) {
        kind = arg_is(c, at, "hard") ? STORE_PIN_HARD : STORE_PIN_NONE;
        at++;
    } else {
        reply_error(c, "PIN must be SOFT ms, HARD or NONE");
        return;
    }
    if (at < c->argc) {
        option_unknown(c, at);
        return;
    }
    pin(c, kind, kind == STORE_PIN_HARD ? acl_pin_owner(c) : ms);
}

/* PIN key HARD under a name of its own, which is the right to pin hard. */
void cmd_pinhard(struct client *c) {
    if (arg_key(c, 1)) pin(c, STORE_PIN_HARD, acl_pin_owner(c));
}

/* --- QUOTA --- */

enum { QUOTAS_MAX = 256 };

void cmd_quota_set(struct client *c) {
    uint64_t bytes;
    if (!span_to_bytes(c->argv[3], &bytes) || bytes > INT64_MAX) {
        reply_error(c, "bytes must be a size, as 1000000 or 10gb");
        return;
    }
    tarn_status status = store_quota_set(server.store, c->argv[2], bytes);
    if (status == TARN_OK)
        reply_ok(c);
    else if (status == TARN_EINVAL)
        reply_error(c, "prefix must be 1 to %u bytes", STORE_KEY_MAX);
    else
        reply_error(c, "-LIMIT there are 255 quotas already: QUOTA DEL some (QUOTA LIST)");
}

static void reply_quota(struct client *c, const struct store_quota *q) {
    reply_map(c, 5);
    reply_bulk_str(c, "prefix");
    reply_bulk(c, q->prefix);
    reply_bulk_str(c, "bytes");
    reply_int(c, (int64_t)q->limit);
    reply_bulk_str(c, "used");
    reply_int(c, (int64_t)q->used);
    reply_bulk_str(c, "objects");
    reply_int(c, (int64_t)q->objects);
    reply_bulk_str(c, "counting");
    reply_bool(c, q->counting);
}

void cmd_quota_get(struct client *c) {
    struct store_quota q;
    if (store_quota_get(server.store, c->argv[2], &q))
        reply_quota(c, &q);
    else
        reply_null(c);
}

void cmd_quota_list(struct client *c) {
    struct store_quota quotas[QUOTAS_MAX];
    size_t n = store_quota_list(server.store, quotas, QUOTAS_MAX);
    TARN_ASSERT(n <= QUOTAS_MAX);
    reply_array(c, n);
    for (size_t i = 0; i < n; i++) reply_quota(c, &quotas[i]);
}

void cmd_quota_del(struct client *c) {
    reply_int(c, store_quota_del(server.store, c->argv[2]));
}
