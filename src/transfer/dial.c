/* Connecting to a peer, and reading what it says of its memory. Whatever it says may be
 * nonsense. */
#include <sodium.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "transfer/transfer.h"
#include "transport/uri.h"

bool transfer_split_address(struct span text, char **host_p, char **port_p) {
    struct span host;
    uint16_t port;
    if (!span_to_address(text, &host, &port) || port == 0 || host.len > 255) return false;
    *host_p = span_dup(host);
    *port_p = xcalloc(1, 6);
    u64_to_dec(port, *port_p);
    return true;
}

#define GREETING_MAX 4096u /* bytes that are taken from who has not proved anything */
#define ANSWERS_MAX                                                                                \
    (TRANSFER_OUT_MAX + (1u << 20)) /* of one answer: what an end lets pile up, and some more */

/* --- hello --- */

/* One request and its answer on a connection that nobody else uses yet. */
static tarn_status greeting_ask(struct tarn_transfer_peer *p, const char *name,
                                const struct span *args, size_t n, uint64_t deadline,
                                const struct answer **payload_p) {
    struct answer *a;
    tarn_status status = transfer_request(&p->ctl, name, ++p->last_id, args, n);
    if (status == TARN_OK) status = ctl_receive(&p->ctl, &p->arena, &a, deadline);
    if (status != TARN_OK) return status;
    if (a->type == ANSWER_ERROR) {
        status = answer_error_status(a->str);
        if (status == TARN_ERR) status = TARN_EPROTO;
        /* what version 1 says to HELLO */
        bool old = strcmp(a->str, "ERR wrong number of arguments") == 0;
        return fail(status, "%s:%s says: %s%s", p->host, p->port, a->str,
                    old ? " (it is of an older version: both ends need the same one)" : "");
    }
    const struct answer *result = answer_at(a, 1);
    if (a->type != ANSWER_ARRAY || a->len != 3 || result->type != ANSWER_INTEGER ||
        result->integer != TARN_OK)
        return fail(TARN_EPROTO, "%s:%s is no transfer end of this version", p->host, p->port);
    *payload_p = answer_at(a, 2);
    return TARN_OK;
}

static bool is_string(const struct answer *a, size_t min, size_t max) {
    return a != NULL && a->type == ANSWER_STRING && a->len >= min && a->len <= max;
}

static struct span span_of_answer(const struct answer *a) {
    return a != NULL && a->type == ANSWER_STRING ? span_of(a->str, a->len) : span_of("", 0);
}

/* Its greeting: version, nonce, identity, proof, name. party: by role; ours is there. */
static tarn_status peer_authenticate(struct tarn_transfer *t, struct tarn_transfer_peer *p,
                                     const struct answer *hello, struct transfer_party party[2],
                                     uint64_t deadline) {
    struct transfer_party *peer = &party[TRANSFER_SERVER];
    const struct answer *proof = answer_at(hello, 3);
    uint64_t version;
    if (!answer_u64(answer_at(hello, 0), &version) || version != TRANSFER_VERSION ||
        !is_string(proof, 0, TRANSFER_PROOF) ||
        !transfer_party_take(peer, span_of_answer(answer_at(hello, 1)),
                             span_of_answer(answer_at(hello, 2)),
                             span_of_answer(answer_at(hello, 4))))
        return fail(TARN_EPROTO, "%s:%s: its greeting makes no sense", p->host, p->port);
    memcpy(p->name, peer->name, sizeof(p->name));
    if (proof->len == 0 && !t->has_secret) return TARN_OK;
    if (proof->len == 0 || !t->has_secret)
        return fail(TARN_EPERM, "%s:%s has %s secret, and this end has %s", p->host, p->port,
                    proof->len == 0 ? "no" : "a", t->has_secret ? "one" : "none");
    if (transfer_party_same(peer, &party[TRANSFER_CLIENT]))
        return fail(TARN_EPERM,
                    "%s:%s leads back to this end: it is not its own peer, or is being deceived",
                    p->host, p->port);
    uint8_t own[TRANSFER_PROOF];
    transfer_proof_make(t->secret, TRANSFER_SERVER, party, own);
    if (!transfer_proof_same(own, proof->str, proof->len))
        return fail(TARN_EPERM, "%s:%s has another secret", p->host, p->port);
    transfer_proof_make(t->secret, TRANSFER_CLIENT, party, own);
    const struct answer *payload;
    return greeting_ask(p, "AUTH", &(struct span){(const char *)own, sizeof(own)}, 1, deadline,
                        &payload);
}

tarn_status transfer_dial(struct tarn_transfer *t, struct tarn_transfer_peer *p,
                          uint64_t deadline) {
    struct transfer_party party[2];
    struct transfer_party *own = &party[TRANSFER_CLIENT];
    tarn_status status = ctl_open(&p->ctl, NULL, p->host, p->port, deadline);
    if (status == TARN_EIO || status == TARN_ETIMEOUT)
        return fail(status, "nobody answers at tarn-transfer://%s:%s", p->host, p->port);
    if (status != TARN_OK) return status;
    p->ctl.answer_max = GREETING_MAX;
    transfer_party_init(own, t);
    const struct span args[] = {SPAN("2"), span_of(own->nonce, TRANSFER_NONCE),
                                span_of(own->identity, TRANSFER_IDENTITY), span_str(own->name)};
    const struct answer *hello;
    static_assert(TRANSFER_VERSION == 2, "as HELLO says");
    status = greeting_ask(p, "HELLO", args, ARRAY_LEN(args), deadline, &hello);
    if (status == TARN_OK) status = peer_authenticate(t, p, hello, party, deadline);
    arena_reset(&p->arena);
    p->ctl.answer_max = ANSWERS_MAX;
    return status;
}

/* --- its memory --- */

void transfer_map_put(struct transfer_map **map_p) {
    struct transfer_map *m = *map_p;
    *map_p = NULL;
    if (m == NULL || --m->refs > 0) return;
    for (size_t i = 0; i < m->n; i++) {
        free(m->regions[i].key_uri);
        for (int w = 0; w < 2; w++) free(m->regions[i].key[w]);
    }
    free(m->regions);
    free(m->data_uri);
    free(m->shm_uri);
    free(m);
}

static bool get_grant(const struct answer *a, bool expected, uint8_t out[GRANT_SIZE]) {
    if (!expected) return a != NULL && a->type == ANSWER_STRING;
    if (!is_string(a, GRANT_SIZE, GRANT_SIZE)) return false;
    memcpy(out, a->str, GRANT_SIZE);
    return true;
}

/* NULL, or what of it makes no sense. */
static const char *key_parse(const struct answer *a, const char *host, struct transfer_far *f) {
    const struct answer *uri = answer_at(a, 11);
    if (!is_string(uri, 0, 300) || strlen(uri->str) != uri->len) return "the URI of a key";
    if (uri->len == 0) return NULL;
    for (size_t w = 0; w < 2; w++) {
        const struct answer *key = answer_at(a, 12 + w);
        if (!is_string(key, 0, TRANSPORT_PACKED_MAX)) return "a key";
        if (key->len == 0) continue;
        f->key[w] = xmemdup(key->str, key->len);
        f->key_len[w] = key->len;
    }
    /* A host that listens on every address says so; then it is where we have reached it. */
    struct span text = span_of(uri->str, uri->len);
    struct uri parts;
    if (!uri_parse(text, &parts)) return "the URI of a key";
    f->key_uri = uri_resolve(text, &parts, host);
    return NULL;
}

static const char *region_parse(const struct answer *a, const char *host, struct transfer_far *f) {
    uint64_t id, epoch, rights, file;
    const struct answer *address = answer_at(a, 2), *name = answer_at(a, 6);
    if (a->type != ANSWER_ARRAY || a->len != 14 || !answer_u64(answer_at(a, 0), &id) || id == 0 ||
        id > UINT32_MAX || !answer_u64(answer_at(a, 1), &epoch) || epoch == 0 ||
        epoch > UINT32_MAX || !is_string(address, 1, 20) ||
        !span_to_u64(span_of(address->str, address->len), &f->address) ||
        !answer_u64(answer_at(a, 3), &f->length) || f->length == 0 ||
        f->address + f->length < f->address || !answer_u64(answer_at(a, 4), &rights) ||
        rights == 0 || rights > (TARN_TRANSFER_READ | TARN_TRANSFER_WRITE) ||
        !answer_u64(answer_at(a, 5), &file) || !is_string(name, 0, sizeof(f->name) - 1)) {
        return "the id, bounds, rights or name of a region";
    }
    f->id = (uint32_t)id;
    f->epoch = (uint32_t)epoch;
    f->rights = (int)rights;
    f->file = (file & 1) != 0;
    f->device = (file & 2) != 0;
    memcpy(f->name, name->str, name->len);
    static const int right[] = {TARN_TRANSFER_READ, TARN_TRANSFER_WRITE};
    for (size_t w = 0; w < 2; w++) {
        bool has = (f->rights & right[w]) != 0;
        if (!get_grant(answer_at(a, 7 + w), has, f->grant[w]) ||
            !get_grant(answer_at(a, 9 + w), has, f->attach[w]))
            return "a grant";
    }
    return key_parse(a, host, f);
}

static int by_address(const void *a, const void *b) {
    const struct transfer_far *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

tarn_status transfer_map_parse(const struct answer *a, const char *own, const char *host,
                               struct transfer_map **map_p) {
    uint64_t port;
    const struct answer *shm = answer_at(a, 1), *machine = answer_at(a, 2), *list = answer_at(a, 3);
    if (!answer_u64(answer_at(a, 0), &port) || port == 0 || port > 65535 ||
        !is_string(shm, 0, 300) || strlen(shm->str) != shm->len || !is_string(machine, 0, 300) ||
        list == NULL || list->type != ANSWER_ARRAY || list->len > TRANSFER_REGIONS_MAX)
        return fail(TARN_EPROTO, "the peer makes no sense: its port, socket, machine or regions");
    struct transfer_map *m = xcalloc(1, sizeof(*m));
    m->refs = 1;
    m->data_uri = uri_make(span_str(transport_tcp.scheme), host, (unsigned)port);
    m->regions = xcalloc(list->len + 1, sizeof(*m->regions));
    m->same_host = machine->len == strlen(own) && memcmp(machine->str, own, machine->len) == 0;
    if (m->same_host && shm->len > 0 && access(shm->str, F_OK) == 0)
        m->shm_uri = uri_of_path(transport_shm.scheme, shm->str);
    for (size_t i = 0; i < list->len; i++) {
        m->n++; /* also of half a region there is something to free */
        const char *what = region_parse(&list->element[i], host, &m->regions[i]);
        if (what == NULL) continue;
        transfer_map_put(&m);
        return fail(TARN_EPROTO, "the peer makes no sense: %s", what);
    }
    qsort(m->regions, m->n, sizeof(*m->regions), by_address);
    *map_p = m;
    return TARN_OK;
}
