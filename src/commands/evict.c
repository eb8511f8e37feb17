/* What goes when: EVICT, PIN, QUOTA. REMOVEMATCH has its own file. */
#include "front/families.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "base/assert.h"
#include "front/acl_users.h"
#include "config/config.h"
#include "front/each.h"
#include "front/refusal.h"
#include "wire/options.h"

/* --- EVICT --- */

struct evict {
    struct each each; /* over the keys of KEYS, or until the policy has given enough */
    struct store_evict_job evict;
};

static bool evicted_enough(const struct store_evict_job *e) {
    return (e->want_bytes && e->bytes >= e->want_bytes) ||
           (e->want_objects && e->objects >= e->want_objects);
}

static enum each_next evict_key(struct client *c, struct each *each, unsigned *budget) {
    struct store_evict_job *e = &CONTAINER_OF(each, struct evict, each)->evict;
    struct object *o = store_find(books, *each_args(c, each));
    uint64_t bytes = 0;
    if (o && store_evict_object(books, o, &bytes)) {
        e->objects++;
        e->bytes += bytes;
    }
    return evicted_enough(e) ? EACH_OVER : EACH_ON;
}

static enum each_next evict_some(struct client *c, struct each *each, unsigned *budget) {
    struct evict *e = CONTAINER_OF(each, struct evict, each);
    return store_evict_step(books, &e->evict, budget) ? EACH_OVER : EACH_AGAIN;
}

static void evict_end(struct client *c, struct each *each) {
    struct store_evict_job *e = &CONTAINER_OF(each, struct evict, each)->evict;
    reply_array(c, 2);
    reply_int(c, (int64_t)e->objects);
    reply_int(c, (int64_t)e->bytes);
}

void cmd_evict(struct client *c) {
    struct wire_evict args = {0};
    double ratio = 0;
    if (!arg_bind(c, &args)) return;
    if (args.ratio > 0) wire_ratio(c->argv[args.ratio], &ratio);
    if (ratio == 0 && args.bytes == 0 && args.keys.n == 0)
        ratio = store_config(books)->eviction_ratio;
    uint64_t of = args.keys.n > 0 ? args.keys.n : store_count(books);
    struct evict e = {
        .each = {.one = evict_some, .end = evict_end, .n = EACH_ENDLESS},
        .evict = {.want_bytes = args.bytes, .want_objects = (uint64_t)ceil(ratio * (double)of)}};
    if (args.keys.n > 0) {
        e.each.one = evict_key;
        each_keys(&e.each, args.keys, 1);
    }
    each_run(c, &e.each, sizeof(e));
}

/* --- PIN --- */

static void pin_key(struct client *c, enum store_pin kind, uint64_t ms) {
    tarn_status status = store_pin(books, c->argv[1], kind, ms);
    if (status == TARN_EQUOTA)
        refusal_pin(c, c->argv[1], ms);
    else
        reply_int(c, status == TARN_OK);
}

void cmd_pin(struct client *c) {
    static const enum store_pin kinds[] = {[WIRE_PIN_SOFT] = STORE_PIN_SOFT,
                                           [WIRE_PIN_HARD] = STORE_PIN_HARD,
                                           [WIRE_PIN_NONE] = STORE_PIN_NONE};
    struct wire_pin args = {0};
    if (!arg_bind(c, &args)) return;
    pin_key(c, kinds[args.kind], args.kind == WIRE_PIN_HARD ? acl_pin_owner(c) : args.ms);
}

/* PIN key HARD under a name of its own, which is the right to pin hard. */
void cmd_pinhard(struct client *c) {
    if (arg_key(c, 1)) pin_key(c, STORE_PIN_HARD, acl_pin_owner(c));
}

/* --- QUOTA --- */

enum { QUOTAS_MAX = 256 };

void cmd_quota_set(struct client *c) {
    struct wire_quota args = {0};
    if (!arg_bind(c, &args)) return;
    tarn_status status = store_quota_set(books, c->argv[args.prefix], args.bytes);
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
    if (store_quota_get(books, c->argv[2], &q))
        reply_quota(c, &q);
    else
        reply_null(c);
}

void cmd_quota_list(struct client *c) {
    struct store_quota quotas[QUOTAS_MAX];
    size_t n = store_quota_list(books, quotas, QUOTAS_MAX);
    TARN_ASSERT(n <= QUOTAS_MAX);
    reply_array(c, n);
    for (size_t i = 0; i < n; i++) reply_quota(c, &quotas[i]);
}

void cmd_quota_del(struct client *c) {
    reply_int(c, store_quota_del(books, c->argv[2]));
}
