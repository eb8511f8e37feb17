/* PUTEND and PUTREVOKE with their M forms: a put becomes an object, or nothing. The token is the
 * writer's right to do either; it may be shown from any connection. */
#include "front/families.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "config/config.h"
#include "front/acl_users.h"
#include "front/each.h"
#include "front/location.h"
#include "front/shard.h"
#include "wire/options.h"

struct endings {
    struct each each;
    bool single, revoke;
    bool listed; /* of a batch, not all ended well: an element for each, as without it */
    struct wire_end args;
};

/* One put that ends, as its arguments say. */
struct ending {
    struct span key;
    uint64_t token;
    struct store_put *put; /* the open one of both; NULL: there is none */
    int64_t crc;
    uint32_t failed;   /* bit i, replica i */
    struct span value; /* data NULL: not given */
    struct span crcs;  /* little-endian u32 each */
    struct span receipts;
};

static bool parse_failed(struct client *c, struct span s, uint32_t *failed_p) {
    uint64_t mask;
    if (span_to_u64(s, &mask) && mask >> STORE_REPLICAS_MAX == 0) {
        *failed_p = (uint32_t)mask;
        return true;
    }
    reply_error(c, "FAILEDS must be numbers from 0 to %u, with bit i for replica i",
                (1u << STORE_REPLICAS_MAX) - 1);
    return false;
}

static struct span end_value(struct client *c, const struct endings *e, uint32_t list) {
    return arg_word(c, list ? list + (uint32_t)e->each.at : 0);
}

static bool parse_ending(struct client *c, const struct endings *e, struct ending *x) {
    const struct wire_end *args = &e->args;
    struct wire_end_key k = {.crc = -1};
    if (!arg_bind_block(c, each_index(&e->each), &k)) return false;
    *x = (struct ending){.key = c->argv[k.key],
                         .token = k.token,
                         .crc = k.crc,
                         .failed = args->failed,
                         .value = end_value(c, e, args->values),
                         .crcs = end_value(c, e, args->crcs),
                         .receipts = end_value(c, e, args->receipts)};
    if (args->faileds && !parse_failed(c, end_value(c, e, args->faileds), &x->failed)) return false;
    /* an empty one in a list: this key has none */
    if (!e->single && x->value.len == 0) x->value.data = NULL;
    if (x->crcs.len % sizeof(uint32_t) == 0) return true;
    reply_error(c, "CRCS must be a multiple of 4 bytes");
    return false;
}

/* CRCS are as long as the value has MiB, up to 4 MiB of them; the argument need not be aligned. */
static tarn_status put_end(const struct ending *x) {
    const struct span *value = x->value.data ? &x->value : NULL;
    size_t n = x->crcs.len / sizeof(uint32_t);
    if (!x->put) return store_put_end(books, x->key, x->token, x->crc, x->failed, NULL, 0, value);
    if (n == 0) return store_put_end_found(books, x->put, x->crc, x->failed, NULL, 0, value);
    uint32_t small[64], *crcs = n <= ARRAY_LEN(small) ? small : xmalloc(x->crcs.len);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *b = (const unsigned char *)x->crcs.data + i * sizeof(uint32_t);
        crcs[i] =
            (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    tarn_status status = store_put_end_found(books, x->put, x->crc, x->failed, crcs, n, value);
    if (crcs != small) free(crcs);
    return status;
}

/* A writer who is not trusted with the segment shows his hosts' word that the value is all there
 * and stays as it is: else readers would see what somebody else left in that space, or what comes
 * later. Who revokes shows it to have the space free at once. */
static bool end_receipts(struct client *c, const struct endings *e, const struct ending *x) {
    struct store_put *put = x->put;
    bool needed = put && store_put_once(put) && !store_put_is_inline(put);
    if (!needed || (e->revoke && x->receipts.len == 0)) return true;
    if (!location_receipts_fit(put, x->receipts)) {
        reply_error(c,
                    "RECEIPTS must be %u bytes for each extent of the put, as the data port "
                    "answered when its grants were sealed (users without @direct). For libtarn "
                    "0.1, which has none: CONFIG SET put-receipts no",
                    GRANT_RECEIPT_SIZE);
        return false;
    }
    if (!location_receipts(put, e->revoke ? 0 : x->failed, !e->revoke, x->receipts)) {
        reply_error(c, e->revoke
                           ? "RECEIPTS are not of this put"
                           : "RECEIPTS do not say that the value was wholly written by this put");
        return false;
    }
    if (e->revoke) store_put_sealed(put);
    return true;
}

static void answer_end(struct client *c, tarn_status status) {
    if (status == TARN_OK)
        reply_ok(c);
    else if (status == TARN_EINVAL)
        reply_error(c,
                    "VALUE, CRCS or FAILED does not fit the put (a value of up to %u bytes is "
                    "handed over with VALUE)",
                    STORE_INLINE_MAX);
    else if (status == TARN_EIO)
        reply_error(c, "-STALE no replica of the put is left; it is revoked");
    else
        reply_status(c, status, NULL);
}

static void end_put(struct client *c, struct endings *e) {
    struct ending x;
    if (!parse_ending(c, e, &x) || (!e->revoke && shard_refuses(c, x.key))) return;
    x.put = store_put_find(books, x.key, each_hash(c, &e->each, e->each.at), x.token);
    if (!end_receipts(c, e, &x)) return;
    tarn_status status;
    if (e->revoke) {
        status = store_put_revoke(books, x.key, x.token);
    } else if (x.value.data && x.crc >= 0 &&
               crc32c(0, x.value.data, x.value.len) != (uint32_t)x.crc) {
        reply_error(c, "VALUE does not match its crc");
        return;
    } else {
        status = put_end(&x);
    }
    answer_end(c, status);
}

static enum each_next end_one(struct client *c, struct each *each, unsigned *budget) {
    end_put(c, CONTAINER_OF(each, struct endings, each));
    return EACH_ON;
}

/* --- those of a batch --- */

/* One does not end well; so far all did. */
static void endings_list(struct client *c, struct endings *e) {
    if (e->listed) return;
    e->listed = true;
    reply_array(c, e->each.n);
    for (size_t i = 0; i < e->each.at; i++) reply_ok(c);
}

static int64_t batch_crc(const struct client *c, const struct endings *e) {
    struct span crcs = arg_word(c, e->args.batch_crcs);
    uint32_t crc;
    if (crcs.len == 0) return -1;
    memcpy(&crc, crcs.data + e->each.at * sizeof(crc), sizeof(crc));
    return crc;
}

/* Its keys are not in the request, and its user may have changed since they were. */
static bool batch_may_end(struct client *c, struct endings *e, struct span key) {
    if (LIKELY(c->unrestricted)) return true;
    const struct span argv[] = {SPAN("MPUTEND"), SPAN("1"), key, SPAN("0"), SPAN("-1")};
    size_t at;
    enum acl_verdict v = acl_check(c->user, c->cmd, argv, ARRAY_LEN(argv), &at);
    if (v == ACL_GRANTED) return true;
    acl_log_note(c, v, c->cmd, c->argc, SPAN(""));
    endings_list(c, e);
    reply_error(c, "-NOPERM this user has no permissions to access one of the keys of the batch");
    return false;
}

static enum each_next end_batch_one(struct client *c, struct each *each, unsigned *budget) {
    struct endings *e = CONTAINER_OF(each, struct endings, each);
    struct store_put *put = store_put_at(books, c->id, e->args.batch, (uint32_t)each->at);
    struct ending x = {.put = put, .crc = batch_crc(c, e)};
    bool lost = put && UNLIKELY(shard_lost(store_put_key(put)));
    bool sealed = put && store_put_once(put) && !store_put_is_inline(put);
    if (put && !batch_may_end(c, e, store_put_key(put))) return EACH_ON;
    if (lost || sealed) endings_list(c, e);
    if ((lost && shard_refuses(c, store_put_key(put))) || !end_receipts(c, e, &x)) return EACH_ON;
    tarn_status status = put ? put_end(&x) : TARN_ETOKEN;
    if (status != TARN_OK) endings_list(c, e);
    if (e->listed) answer_end(c, status);
    return EACH_ON;
}

static void end_batch_answer(struct client *c, struct each *each) {
    if (!CONTAINER_OF(each, struct endings, each)->listed) reply_ok(c);
}

static void end_batch(struct client *c, struct endings *e) {
    const struct wire_end *a = &e->args;
    struct span crcs = arg_word(c, a->batch_crcs);
    if (a->keys.n > 0 || a->values || a->crcs || a->faileds || a->receipts) {
        reply_error(c, "BATCH stands alone: MPUTEND 0 BATCH id [BATCHCRCS bytes]");
        return;
    }
    e->each.n = store_put_batch_size(books, c->id, a->batch);
    if (e->each.n == 0) {
        reply_status(c, TARN_ETOKEN,
                     "BATCH is none of this connection, or all of its puts are over");
        return;
    }
    if (a->batch_crcs && crcs.len != e->each.n * sizeof(uint32_t)) {
        reply_error(c, "BATCHCRCS must be 4 bytes for each of the %zu puts of the batch",
                    e->each.n);
        return;
    }
    e->each.one = end_batch_one;
    e->each.end = end_batch_answer;
    each_run(c, &e->each, sizeof(*e));
}

static void end_run(struct client *c, bool single, bool revoke) {
    struct endings e = {.each.one = end_one, .single = single, .revoke = revoke};
    if (!arg_bind(c, &e.args)) return;
    if (e.args.batch) {
        end_batch(c, &e);
        return;
    }
    if (e.args.keys.n == 0 || e.args.batch_crcs) {
        reply_error(c,
                    "n must be a number from 1 to %llu, or there is a BATCH: MPUTEND 0 BATCH id "
                    "[BATCHCRCS bytes]",
                    (unsigned long long)config->max_batch_keys);
        return;
    }
    if (!single) reply_array(c, e.args.keys.n);
    each_keys(&e.each, e.args.keys, wire_block_words(c->cmd->block));
    each_run(c, &e.each, sizeof(e));
}

void cmd_putend(struct client *c) {
    end_run(c, true, false);
}
void cmd_mputend(struct client *c) {
    end_run(c, false, false);
}
void cmd_putrevoke(struct client *c) {
    end_run(c, true, true);
}
void cmd_mputrevoke(struct client *c) {
    end_run(c, false, true);
}
