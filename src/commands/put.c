/* PUTSTART and MPUTSTART: space for new objects. One walk serves both: a single put is a batch of
 * one whose answer stands alone. PUTEND and PUTREVOKE are in putend.c. */
#include "front/families.h"

#include "base/assert.h"
#include "commands/hint.h"
#include "commands/spread.h"
#include "front/acl_users.h"
#include "config/config.h"
#include "front/each.h"
#include "inband/later.h"
#include "front/location.h"
#include "front/refusal.h"
#include "front/shard.h"
#include "transport/place.h"
#include "wire/options.h"

#define SEGMENTS_PER_UNIT 8u /* that can be looked at in about the time of a unit of work */

struct puts {
    struct each each;
    struct store_put *making; /* room is being made for the key that it is at */
    struct wire_put args;
    bool no_grant;                    /* as location_no_grant */
    struct store_put_options options; /* without its spans */
    struct store_batch request;
    uint64_t batch; /* of the puts that it opens, 0: none */
    uint32_t opened;
    size_t sized; /* the word that said the last size, 0: none yet */
    uint64_t size;
};

/* --- arguments --- */

static void put_options(struct client *c, struct puts *p) {
    const struct wire_put *args = &p->args;
    p->no_grant = location_no_grant(c, args->no_grant);
    p->options = (struct store_put_options){
        .replicas = args->replicas > 0 ? args->replicas : 1,
        .host = location_host(c),
        .once = config->put_receipts && !location_trusted(c),
        .replace = args->replace,
        .instead = args->instead,
        .moves = args->moving,
        .expire_wall_ms = args->ttl_ms > 0 ? turn.wall_ms + args->ttl_ms : 0,
        .pin = args->pin == WIRE_PIN_HARD   ? STORE_PIN_HARD
               : args->pin == WIRE_PIN_SOFT ? STORE_PIN_SOFT
                                            : STORE_PIN_NONE,
        .pin_ms = args->pin == WIRE_PIN_HARD ? acl_pin_owner(c) : args->pin_ms,
    };
}

/* --- one after the other --- */

/* [token, [replica, ...]], and how many replicas are missing when that is not 0. */
static void answer_opened(struct client *c, const struct store_put *put, const struct puts *p) {
    struct store_layout layout;
    struct location_grant sealed = location_put_grant(put), *grant = p->no_grant ? NULL : &sealed;
    c->io->flags |= CLIENT_GRANTED;
    uint32_t missing = store_put_missing(put);
    store_put_layout(books, put, &layout);
    struct place_packed place = {.number = store_put_token(put)};
    if (p->args.packed && missing == 0 && location_packed(c, &layout, grant, &place)) return;
    struct text t;
    text_begin(&t);
    text_array(&t, missing > 0 ? 3 : 2);
    text_int(&t, (int64_t)store_put_token(put));
    text_replicas(&t, &layout, span_of(NULL, 0), 0, grant); /* memory only: no names needed */
    if (missing > 0) text_int(&t, missing);
    text_send(c, &t);
}

static void answer_no_segment(struct client *c, const struct wire_put *args) {
    struct store_segment_info info;
    for (size_t i = 0; i < args->prefer.n; i++) {
        struct span name = c->argv[args->prefer.at[i]];
        if (store_segment_by_name(books, name, &info)) continue;
        reply_error(c, "-NOSEGMENT PREFER names no segment: '%.*s' (SEGMENT LIST)",
                    (int)min_u64(name.len, 64), name.data != NULL ? name.data : "");
        return;
    }
    reply_status(c, TARN_ENOSEGMENT, "PREFER"); /* gone since */
}

static void answer_refused(struct client *c, tarn_status status, struct span key, uint64_t size,
                           const struct puts *p) {
    const struct store_put_options *o = &p->options;
    struct refusal_put put = {.key = key,
                              .size = size,
                              .replicas = o->replicas,
                              .pinned_hard = o->pin == STORE_PIN_HARD,
                              .owner = o->pin_ms};
    switch (status) {
    case TARN_EQUOTA: refusal_quota(c, &put); break;
    case TARN_EINVAL:
        reply_error(c, "size, an option, or the id of a group (up to %u bytes) is out of range",
                    STORE_KEY_MAX);
        break;
    case TARN_ENOSPACE: refusal_no_room(c, "NOSPACE", size); break;
    case TARN_ENOSEGMENT: answer_no_segment(c, &p->args); break;
    case TARN_ELIMIT:
        reply_error(c,
                    "-LIMIT this client has %llu puts open, which is max-puts-per-client: end or "
                    "revoke some",
                    (unsigned long long)config->max_puts_per_client);
        break;
    default: reply_status(c, status, NULL); break;
    }
}

static void answer_put(struct client *c, tarn_status status, struct store_put *put, struct span key,
                       uint64_t size, struct puts *p) {
    status = room_status(status);
    if (UNLIKELY(later_is(status))) {
        later_reply(c, status);
    } else if (status == TARN_OK) {
        if (p->batch != 0) store_put_join(books, put, p->batch, p->opened++);
        answer_opened(c, put, p);
    } else if (status == TARN_EEXISTS) {
        reply_null(c);
    } else {
        answer_refused(c, status, key, size, p);
    }
}

/* Of the key that it is at. */
static void put_together(struct client *c, const struct puts *p,
                         struct store_put_options *options) {
    const struct wire_put *args = &p->args;
    uint32_t each = args->groups | args->boundaries, all = args->group | args->boundary;
    options->group = arg_word(c, each != 0 ? each + (uint32_t)p->each.at : all);
    options->boundary = args->boundary != 0 || args->boundaries != 0;
}

static tarn_status put_open(struct client *c, struct puts *p, struct span key, uint64_t size,
                            unsigned *budget, struct store_put **put_p) {
    const struct wire_put *args = &p->args;
    struct store_put_options options = p->options;
    struct span prefer[WIRE_PREFERS], avoid[WIRE_PREFERS];
    for (size_t i = 0; i < args->prefer.n; i++) prefer[i] = c->argv[args->prefer.at[i]];
    options.prefer = prefer;
    options.prefers = args->prefer.n;
    for (size_t i = 0; i < args->avoid.n; i++) avoid[i] = c->argv[args->avoid.at[i]];
    options.avoid = avoid;
    options.avoids = args->avoid.n;
    put_together(c, p, &options);
    options.hash = each_hash(c, &p->each, p->each.at);
    return store_put_start(books, &p->request, key, size, &options, c->id, budget, put_p);
}

/* Most keys of a batch are of one size. */
static bool put_bind(struct client *c, struct puts *p, size_t at, struct wire_put_key *k) {
    const struct span *words = &c->argv[at];
    if (p->sized != 0 && words[0].len - 1 < STORE_KEY_MAX && span_eq(words[1], c->argv[p->sized])) {
        *k = (struct wire_put_key){(uint32_t)at, p->size};
        return true;
    }
    if (!arg_bind_block(c, at, k)) return false;
    p->sized = at + 1;
    p->size = k->size;
    return true;
}

/* One key, or a further piece of work for it: EACH_AGAIN, its room is still being made. */
static enum each_next put_one(struct client *c, struct each *each, unsigned *budget) {
    struct puts *p = CONTAINER_OF(each, struct puts, each);
    struct store_put *put = p->making;
    struct wire_put_key k;
    if (!put_bind(c, p, each_index(each), &k)) return EACH_ON;
    struct span key = c->argv[k.key];
    if (put == NULL && shard_refuses(c, key)) return EACH_ON;
    if (put == NULL) spread_at(c, &p->args.spread, each->at, &p->request);
    tarn_status status = put != NULL ? store_put_continue(books, put, budget)
                                     : put_open(c, p, key, k.size, budget, &put);
    p->making = status == TARN_EAGAIN ? put : NULL;
    if (status == TARN_EAGAIN) return EACH_AGAIN;
    /* The answer looks at every segment. */
    if (status == TARN_ENOSPACE) spend(budget, store_segment_limit(books) / SEGMENTS_PER_UNIT);
    answer_put(c, status, put, key, k.size, p);
    return EACH_ON;
}

static void put_batch_answer(struct client *c, struct each *each) {
    const struct puts *p = CONTAINER_OF(each, struct puts, each);
    if (p->batch != 0) reply_int(c, (int64_t)p->batch);
}

static void put_close(struct client *c, struct job *job) {
    struct puts *p = CONTAINER_OF(job, struct puts, each.job);
    if (p->making) store_put_abandon(books, &p->making);
}

static void put_run(struct client *c, bool single) {
    struct puts p = {.each = {.job.close = put_close, .one = put_one, .end = put_batch_answer}};
    if (!arg_bind(c, &p.args) || !spread_check(c, &p.args.spread, p.args.keys.n)) return;
    put_options(c, &p);
    store_batch_begin(books, &p.request, &c->chain, STORE_BATCH_PUT, p.args.keys.n);
    p.request.session = hint_session(c, &p.args.hint);
    p.request.return_ms = p.args.hint.return_ms;
    if (p.args.moving) c->asking = true;
    if (p.args.batch) p.batch = store_batch_id(books);
    if (!single) reply_array(c, p.args.keys.n + p.args.batch);
    each_keys(&p.each, p.args.keys, 2);
    each_run(c, &p.each, sizeof(p));
}

void cmd_putstart(struct client *c) {
    put_run(c, true);
}
void cmd_mputstart(struct client *c) {
    put_run(c, false);
}
