/* PUTEND and PUTREVOKE with their M forms: a put becomes an object, or nothing. The token is the
 * writer's right to do either; it may be shown from any connection. */
#include "cmd/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "base/crc32c.h"
#include "cmd/keys.h"
#include "cmd/location.h"

struct end_job {
    struct job job;
    bool single, revoke;
    size_t n, pos;
    size_t step; /* arguments per key */
    /* argv index of the first value, the first CRC list and the first mask of failed replicas, 0:
     * none */
    size_t values_at, crcs_at, faileds_at, receipts_at;
    uint32_t failed; /* PUTEND: bit i, replica i */
    struct key_window window;
};

/* One put that ends, as its arguments say. */
struct ending {
    struct span key;
    uint64_t token;
    int64_t crc;
    uint32_t failed;   /* bit i, replica i */
    struct span value; /* data NULL: not given */
    struct span crcs;  /* little-endian u32 each */
    struct span receipts;
};

static bool parse_token(struct client *c, struct span s, uint64_t *token_p) {
    if (span_to_u64(s, token_p) && *token_p <= INT64_MAX) return true;
    reply_error(c, "token must be the number that PUTSTART answered");
    return false;
}

static bool parse_crc(struct client *c, struct span s, int64_t *crc_p) {
    if (span_to_i64(s, crc_p) && *crc_p >= -1 && *crc_p <= UINT32_MAX) return true;
    reply_error(c, "crc must be -1 or a number from 0 to 4294967295");
    return false;
}

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

static bool parse_ending(struct client *c, const struct end_job *e, struct ending *x) {
    size_t at = (e->single ? 1 : 2) + e->pos * e->step;
    *x = (struct ending){.key = c->argv[at], .crc = -1, .failed = e->failed};
    if (!key_valid(c, x->key)) return false;
    if (!parse_token(c, c->argv[at + 1], &x->token)) return false;
    if (e->receipts_at) x->receipts = c->argv[e->receipts_at + e->pos];
    if (e->revoke) return true;
    if (!parse_crc(c, c->argv[at + 2], &x->crc)) return false;
    if (e->faileds_at && !parse_failed(c, c->argv[e->faileds_at + e->pos], &x->failed))
        return false;
    if (e->values_at) {
        x->value = c->argv[e->values_at + e->pos];
        if (!e->single && x->value.len == 0)
            x->value.data = NULL; /* an empty one in a list: this key has none */
    }
    if (e->crcs_at) x->crcs = c->argv[e->crcs_at + e->pos];
    if (x->crcs.len % sizeof(uint32_t) != 0) {
        reply_error(c, "CRCS must be a multiple of 4 bytes");
        return false;
    }
    return true;
}

/* CRCS are as long as the value has MiB, up to 4 MiB of them; the argument need not be aligned. */
static tarn_status put_end(const struct end_job *e, const struct ending *x) {
    const struct span *value = x->value.data ? &x->value : NULL;
    size_t n = x->crcs.len / sizeof(uint32_t);
    if (n == 0)
        return store_put_end(server.store, x->key, x->token, x->crc, x->failed, NULL, 0, value);
    uint32_t small[64], *crcs = n <= ARRAY_LEN(small) ? small : xmalloc(x->crcs.len);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *b = (const unsigned char *)x->crcs.data + i * sizeof(uint32_t);
        crcs[i] =
            (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    tarn_status status =
        store_put_end(server.store, x->key, x->token, x->crc, x->failed, crcs, n, value);
    if (crcs != small) free(crcs);
    return status;
}

/* A writer who is not trusted with the segment shows his hosts' word that the value is all there
 * and stays as it is: else readers would see what somebody else left in that space, or what comes
 * later. Who revokes shows it to have the space free at once. */
static bool end_receipts(struct client *c, const struct end_job *e, const struct ending *x) {
    struct store_put *put = store_put_find(server.store, x->key, x->token);
    bool needed = put && store_put_once(put) && !store_put_is_inline(put);
    if (!needed || (e->revoke && x->receipts.len == 0)) return true;
    if (!location_receipts_fit(put, x->receipts)) {
        reply_error(
            c,
            "RECEIPTS must be %u bytes for each extent of the put, as the data port answered when "
            "its grants were "
            "sealed (users without @direct)",
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

static void end_one(struct client *c, struct end_job *e) {
    struct ending x;
    if (!parse_ending(c, e, &x) || !end_receipts(c, e, &x)) return;
    tarn_status status;
    if (e->revoke) {
        status = store_put_revoke(server.store, x.key, x.token);
    } else if (x.value.data && x.crc >= 0 &&
               crc32c(0, x.value.data, x.value.len) != (uint32_t)x.crc) {
        reply_error(c, "VALUE does not match its crc");
        return;
    } else {
        status = put_end(e, &x);
    }
    if (status == TARN_OK)
        reply_ok(c);
    else if (status == TARN_EINVAL)
        reply_error(
            c,
            "VALUE, CRCS or FAILED does not fit the put (a value of up to %u bytes is handed over "
            "with VALUE)",
            STORE_INLINE_MAX);
    else if (status == TARN_EIO)
        reply_error(c, "-STALE no replica of the put is left; it is revoked");
    else
        reply_status(c, status, NULL);
}

static bool end_step(struct client *c, struct job *job, unsigned *budget) {
    struct end_job *e = CONTAINER_OF(job, struct end_job, job);
    for (; e->pos < e->n; e->pos++) {
        if (*budget == 0) return false;
        /* for its prefetching */
        key_window_hash(&e->window, c, e->single ? 1 : 2, e->step, e->pos, e->n);
        end_one(c, e);
        spend(budget, 1);
    }
    return true;
}

static struct end_job *end_create(bool single, bool revoke, size_t n) {
    struct end_job *e = xcalloc(1, sizeof(*e));
    e->job = (struct job){.step = end_step, .runnable = true};
    e->single = single;
    e->revoke = revoke;
    e->n = n;
    e->step = revoke ? 2 : 3;
    return e;
}

static bool failed_option(struct client *c, size_t *at_p, uint32_t *failed_p) {
    uint64_t replica;
    if (!option_number(c, at_p, "FAILED", 0, STORE_REPLICAS_MAX - 1, &replica)) return false;
    *failed_p |= UINT32_C(1) << replica;
    return true;
}

/* A keyword and the n arguments behind it. */
static bool list_option(struct client *c, size_t *at_p, const char *name, size_t n,
                        size_t *first_p) {
    if (c->argc - *at_p - 1 < n) {
        if (n == 1)
            reply_error(c, "%s needs a value", name);
        else
            reply_error(c, "%s needs %zu values", name, n);
        return false;
    }
    *first_p = *at_p + 1;
    *at_p += 1 + n;
    return true;
}

static bool end_options(struct client *c, size_t at, struct end_job *e) {
    const char *value_name = e->single ? "VALUE" : "VALUES";
    while (at < c->argc) {
        bool ok;
        if (!e->revoke && arg_is(c, at, value_name))
            ok = list_option(c, &at, value_name, e->n, &e->values_at);
        else if (arg_is(c, at, "receipts"))
            ok = list_option(c, &at, "RECEIPTS", e->n, &e->receipts_at);
        else if (!e->revoke && arg_is(c, at, "crcs"))
            ok = list_option(c, &at, "CRCS", e->n, &e->crcs_at);
        else if (e->single && !e->revoke && arg_is(c, at, "failed"))
            ok = failed_option(c, &at, &e->failed);
        else if (!e->single && !e->revoke && arg_is(c, at, "faileds"))
            ok = list_option(c, &at, "FAILEDS", e->n, &e->faileds_at);
        else {
            option_unknown(c, at);
            return false;
        }
        if (!ok) return false;
    }
    return true;
}

static void end_run(struct client *c, bool single, bool revoke) {
    size_t n = 1, step = revoke ? 2 : 3;
    if (!single && !batch_count(c, step, &n)) return;
    struct end_job *e = end_create(single, revoke, n);
    if (!end_options(c, (single ? 1 : 2) + n * step, e)) {
        free(e);
        return;
    }
    if (!single) reply_array(c, n);
    job_start(c, &e->job);
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
