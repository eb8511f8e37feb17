#include "commands/look.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "commands/hint.h"
#include "config/config.h"
#include "front/client.h"
#include "front/location.h"
#include "front/reply.h"
#include "store/effect.h"
#include "transport/place.h"

/* For who is not trusted: a host's thread that has looked at his grant and is just sending. */
#define LEASE_LATE_MS 1000u

/* --- terms --- */

void look_terms_init(const struct client *c, struct look_terms *t, const struct wire_look *args) {
    *t =
        (struct look_terms){.counts = !c->of_node && !(c->io->flags & CLIENT_NO_TOUCH),
                            .crcs = args->crcs,
                            .packed = args->packed,
                            .no_grant = location_no_grant(c, args->no_grant),
                            .session = hint_session(c, &args->hint),
                            .return_ms = args->hint.return_ms,
                            .spread = args->spread,
                            .lease_ms = min_u64(args->lease_ms, store_config(books)->max_lease_ms)};
    if (args->batch && t->lease_ms > 0) t->batch = store_batch_id(books);
    if (t->lease_ms > 0 && !location_trusted(c)) t->late_ms = LEASE_LATE_MS;
}

void look_terms_begin(struct client *c, struct look_terms *t, size_t keys) {
    if (!t->counts) return;
    enum store_batch_kind kind = t->lease_ms == 0 ? STORE_BATCH_LOOK
                                 : t->gets        ? STORE_BATCH_READ
                                                  : STORE_BATCH_LEASE;
    store_batch_begin(books, &t->request, &c->chain, kind, (uint32_t)keys);
    t->request.session = t->session;
    t->request.return_ms = t->return_ms;
}

uint64_t look_deadline_ms(const struct client *c, const struct wire_look *args) {
    if (args->wait_ms == 0 || c->io->flags & CLIENT_EXEC) return 0;
    return turn.mono_ms + args->wait_ms;
}

/* --- answers --- */

static void answer_crcs(struct text *t, struct client *c, const struct object *o, bool wanted) {
    size_t n = 0;
    const uint32_t *crcs = wanted ? store_object_crcs(books, o, &n) : NULL;
    if (!crcs || n == 0) {
        text_null(t, c->proto);
        text_send(c, t);
        return;
    }
    text_send(c, t);
    unsigned char *packed = xmalloc(n * sizeof(uint32_t));
    for (size_t i = 0; i < n; i++)
        for (unsigned b = 0; b < 4; b++) packed[i * 4 + b] = (unsigned char)(crcs[i] >> (8 * b));
    reply_bulk(c, span_of(packed, n * sizeof(uint32_t)));
    free(packed);
}

/* The short form. false: it has none, and nothing is answered. */
static bool answer_packed(struct client *c, struct object *o, uint64_t granted_ms,
                          const struct store_layout *layout, const struct look_terms *t) {
    struct location_grant grant = {
        .op = GRANT_READ, .session = c->id, .expiry_ms = turn.mono_ms + granted_ms};
    c->io->flags |= CLIENT_GRANTED;
    struct place_packed place = {.number = store_object_version(o),
                                 .lease_ms = (uint32_t)granted_ms};
    size_t n = 0;
    if (granted_ms == 0 || granted_ms > UINT32_MAX) return false;
    if (t->crcs && store_object_crcs(books, o, &n) != NULL && n > 0) return false;
    if (store_object_crc(o, &place.crc)) place.flags |= PLACE_HAS_CRC;
    if (store_object_suspect(books, o)) place.flags |= PLACE_SUSPECT;
    return location_packed(c, layout, t->no_grant ? NULL : &grant, &place);
}

/* [version, size, lease-ms, crc, [replica, ...], value or nil, crcs or nil, flags] */
static void answer_object(struct client *c, struct object *o, uint64_t granted_ms,
                          const struct look_terms *terms) {
    struct store_layout layout;
    struct span value;
    uint32_t crc = 0;
    bool has_crc = store_object_crc(o, &crc), in_books = store_object_inline(o, &value);
    struct text t;
    if (!in_books) store_object_layout(books, o, &layout);
    if (terms->packed && !in_books && answer_packed(c, o, granted_ms, &layout, terms)) return;
    text_begin(&t);
    text_array(&t, 8);
    text_int(&t, (int64_t)store_object_version(o));
    text_int(&t, (int64_t)store_object_size(books, o));
    text_int(&t, (int64_t)granted_ms);
    text_int(&t, has_crc ? (int64_t)crc : -1);
    if (in_books) {
        text_array(&t, 0);
        text_bulk(&t, value.data, value.len);
    } else {
        struct location_grant grant = {
            .op = GRANT_READ, .session = c->id, .expiry_ms = turn.mono_ms + granted_ms};
        bool granted = granted_ms > 0 && !terms->no_grant;
        c->io->flags |= CLIENT_GRANTED;
        if (layout.replicas > 1) cluster_order(&layout, location_host(c), span_str(c->rack));
        text_replicas(&t, &layout, store_object_key(o), store_object_version(o),
                      granted ? &grant : NULL);
        text_null(&t, c->proto);
    }
    answer_crcs(&t, c, o, terms->crcs);
    reply_int(c, !in_books && store_object_suspect(books, o) ? PLACE_SUSPECT : 0);
}

void look_refuse_lease(struct client *c) {
    reply_error(c,
                "-LIMIT this client holds %llu leases, which is max-leases-per-client: "
                "RELEASE some",
                (unsigned long long)config->max_leases_per_client);
}

void look_answer(struct client *c, struct look_terms *t, struct object *o, uint64_t hash) {
    uint64_t granted_ms = 0;
    if (t->counts) store_batch_hit(books, &t->request, o, hash);
    if (t->lease_ms) {
        if (t->counts) cluster_hit(o, false);
        tarn_status status =
            store_lease_in(books, o, c->id, t->batch, t->lease_ms + t->late_ms, &granted_ms);
        if (granted_ms > t->late_ms) granted_ms -= t->late_ms;
        if (status != TARN_OK) {
            look_refuse_lease(c);
            return;
        }
    }
    answer_object(c, o, granted_ms, t);
}
