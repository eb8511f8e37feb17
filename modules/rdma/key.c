/* Remote memory: what a host packed, checked as the bytes of a stranger, and the rails that lead
 * there. Rails come when there is work: one at first, more when there are more bytes; another pair
 * of devices where one does not answer. When none can be had the operations that wait are answered,
 * and the next one starts over. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "rdma/work.h"

#define PAIR_BAD_MS 1000u /* while there are others */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed keys are little-endian");

/* --- packed keys --- */

static bool is_device_name(const char name[32]) {
    if (name[0] == '\0' || memchr(name, '\0', 32) == NULL) return false;
    for (const char *p = name; *p != '\0'; p++) {
        if (*p <= ' ' || *p > '~' || *p == '=') return false; /* reports are made of words */
    }
    return true;
}

static bool is_unicast(const struct rdma_address *a) {
    uint32_t v4 = ntohl(a->ip.s6_addr32[3]);
    if (rdma_address_is_v4(a))
        return v4 != INADDR_ANY && !IN_MULTICAST(v4) && v4 != INADDR_BROADCAST;
    return !IN6_IS_ADDR_UNSPECIFIED(&a->ip) && !IN6_IS_ADDR_MULTICAST(&a->ip);
}

static size_t packed_device_size(const struct rdma_key_header *h) {
    return sizeof(struct rdma_key_device) + h->n_chunks * sizeof(uint32_t);
}

bool rdma_packed_parse(struct span packed, enum rdma_right right, struct rdma_key_header *h) {
    if (packed.len < sizeof(*h) || packed.len > TRANSPORT_PACKED_MAX) return false;
    memcpy(h, packed.data, sizeof(*h));
    return h->magic == RDMA_KEY_MAGIC && h->version == RDMA_WIRE_VERSION && h->right == right &&
           h->n_chunks > 0 && h->n_chunks <= RDMA_CHUNKS_MAX && h->n_devices > 0 &&
           h->n_devices <= RDMA_DEVICES_MAX &&
           packed.len == sizeof(*h) + h->n_devices * packed_device_size(h);
}

const char *rdma_packed_device(struct span packed, const struct rdma_key_header *h, size_t i,
                               struct rdma_key_device *device_p) {
    const char *at = packed.data + sizeof(*h) + i * packed_device_size(h);
    memcpy(device_p, at, sizeof(*device_p));
    return at + sizeof(*device_p);
}

static bool is_range(uint64_t address, uint64_t length) {
    return address != 0 && length <= UINT64_MAX - address;
}

/* Does the header describe what was asked for, and hang together? */
static tarn_status check_header(struct rdma_key_header *h,
                                const struct transport_key_config *config) {
    if (h->size != config->size || h->size == 0 || h->generation == 0) return TARN_EPROTO;
    if (h->chunk_size < SEGMENT_HEADER_SIZE || h->chunk_size % SEGMENT_HEADER_SIZE != 0)
        return TARN_EPROTO;
    if (h->n_chunks != (h->size - 1) / h->chunk_size + 1) return TARN_EPROTO;
    if (!is_range(h->address, h->size)) return TARN_EPROTO;
    if (h->header_address == 0) /* no segment: it is this memory as long as its queue pairs live */
        h->segment_epoch = config->segment_epoch;
    else if (!is_range(h->header_address, SEGMENT_HEADER_SIZE))
        return TARN_EPROTO;
    /* Else its host serves that memory under another name by now. */
    bool same = h->segment == config->segment && h->segment_epoch == config->segment_epoch;
    return same ? TARN_OK : TARN_ESTALE;
}

static tarn_status key_take_packed(struct transport_key *k,
                                   const struct transport_key_config *config) {
    struct span packed = span_of(config->packed, config->packed_len);
    if (!rdma_packed_parse(packed, config->writable ? RDMA_WRITE : RDMA_READ, &k->h))
        return TARN_EPROTO;
    tarn_status status = check_header(&k->h, config);
    for (uint32_t i = 0; i < k->h.n_devices && status == TARN_OK; i++) {
        struct rdma_key_device d;
        struct rdma_remote *r = &k->remote[i];
        const char *rkeys = rdma_packed_device(packed, &k->h, i, &d);
        r->address = rdma_address_of(d.address);
        r->port = d.port;
        r->header_rkey = d.header_rkey;
        r->rkey = xmemdup(rkeys, k->h.n_chunks * sizeof(uint32_t));
        if (!is_device_name(d.name) || d.port == 0 || !is_unicast(&r->address))
            status = TARN_EPROTO;
    }
    return status;
}

static void key_free(struct transport_key *k) {
    for (unsigned i = 0; i < RDMA_DEVICES_MAX; i++) free(k->remote[i].rkey);
    k->magic = 0;
    free(k);
}

tarn_status rdma_key_unpack(struct transport_endpoint *e, const struct transport_key_config *config,
                            struct transport_key **key_p) {
    MAGIC_CHECK(e, RDMA_ENDPOINT_MAGIC);
    if (config->grant == NULL) return TARN_EINVAL;
    if (config->packed == NULL || config->packed_len == 0)
        return TARN_ECLOSED; /* its host has nothing to offer now */
    struct transport_key *k = xcalloc(1, sizeof(*k));
    k->magic = RDMA_KEY_OPEN_MAGIC;
    k->domain = e->domain;
    k->writable = config->writable;
    memcpy(k->grant, config->grant, GRANT_SIZE);
    k->last_failure = TARN_ECLOSED;
    TAILQ_INIT(&k->rails);
    TAILQ_INIT(&k->queue);
    TAILQ_INIT(&k->retry);
    tarn_status status = key_take_packed(k, config);
    if (status != TARN_OK) {
        log_verbose("Key of segment %u: %s", config->segment, tarn_status_text(status));
        key_free(k);
        return status;
    }
    LIST_INSERT_HEAD(&k->domain->keys, k, link);
    *key_p = k;
    return TARN_OK;
}

tarn_status rdma_key_check(struct transport_key *k) {
    MAGIC_CHECK(k, RDMA_KEY_OPEN_MAGIC);
    /* Once its grant is refused it is of no use either: whoever asks has a newer one. */
    return k->refused == TARN_OK ? TARN_OK : TARN_ESTALE;
}

void rdma_key_close(struct transport_key **key_p) {
    struct transport_key *k = *key_p;
    if (k == NULL) return;
    MAGIC_CHECK(k, RDMA_KEY_OPEN_MAGIC);
    TARN_ASSERT(k->n_tasks == 0);
    *key_p = NULL;
    struct rdma_work *w = k->domain->work;
    rdma_rails_bury(w);
    struct rdma_rail *r;
    while ((r = TAILQ_FIRST(&k->rails)) != NULL) rdma_rail_close(r);
    if (k->active) TAILQ_REMOVE(&w->active, k, active_link);
    LIST_REMOVE(k, link);
    key_free(k);
}

/* --- its work --- */

void rdma_key_activate(struct transport_key *k) {
    k->domain->work->more = true;
    if (k->active) return;
    k->active = true;
    TAILQ_INSERT_TAIL(&k->domain->work->active, k, active_link);
}

bool rdma_key_idle(const struct transport_key *k) {
    if (!TAILQ_EMPTY(&k->queue) || !TAILQ_EMPTY(&k->retry) || k->doubtful > 0) return false;
    const struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) {
        if (!TAILQ_EMPTY(&r->needed)) return false;
    }
    return true;
}

void rdma_key_fail_waiting(struct transport_key *k, tarn_status status) {
    struct rdma_task *t;
    struct rdma_slice *s;
    struct rdma_rail *r, *next;
    while ((t = TAILQ_FIRST(&k->queue)) != NULL) rdma_task_fail(t, status);
    while ((s = TAILQ_FIRST(&k->retry)) != NULL) rdma_task_fail(s->task, status);
    TAILQ_FOREACH_SAFE(r, &k->rails, link, next) {
        if (r->state == RDMA_RAIL_DOUBT) rdma_rail_give_up(r, status);
    }
    memset(k->pair, 0, sizeof(k->pair)); /* who comes next starts over */
    TAILQ_FOREACH(r, &k->rails, link) k->pair[r->device->index][r->remote].live++;
}

void rdma_key_refused(struct transport_key *k, tarn_status status) {
    if (k->refused == TARN_ESTALE) return;
    if (status == TARN_ESTALE) k->domain->counters.stale++;
    k->refused = status;
    rdma_key_activate(k);
}

/* --- rails --- */

struct crowd { /* rails of a key by a device here and to one there */
    unsigned here, there;
};

static struct crowd crowd_of(const struct transport_key *k, const struct rdma_device *d,
                             unsigned remote) {
    struct crowd c = {0, 0};
    const struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) {
        c.here += r->device == d;
        c.there += r->remote == remote;
    }
    return c;
}

/* The less the better: pairs that are not in use yet, then near ones, then those of the same number
 * on both sides, which share a switch where networks are built for it. */
static unsigned pair_score(const struct transport_key *k, const struct rdma_device *d,
                           unsigned remote, int numa_node) {
    struct crowd c = crowd_of(k, d, remote);
    unsigned skew = (remote + k->h.n_devices - d->index % k->h.n_devices) % k->h.n_devices;
    const struct rdma_pair *p = &k->pair[d->index][remote];
    return (p->live * 16 + c.here + c.there) * 1024 + p->loop * 512 +
           rdma_device_distance(d, numa_node) * 64 + skew;
}

/* A rail that can go when there is one more by this pair: its devices have others then. newest:
 * that one, if it is there. NULL: none. */
static struct rdma_rail *rail_crowded(const struct transport_key *k, const struct rdma_device *d,
                                      unsigned remote, const struct rdma_rail *newest) {
    struct rdma_rail *r, *best = NULL;
    unsigned most = 0;
    TAILQ_FOREACH(r, &k->rails, link) {
        if (r == newest || !rdma_rail_ready(r) || r->retiring) continue;
        struct crowd c = crowd_of(k, r->device, r->remote);
        if (newest == NULL)
            c = (struct crowd){c.here + (r->device == d), c.there + (r->remote == remote)};
        if (c.here < 2 || c.there < 2 || c.here + c.there <= most) continue;
        most = c.here + c.there;
        best = r;
    }
    return best;
}

/* Has one of the two devices no part in it, as when it was away while others took its place? */
static bool is_missing(const struct transport_key *k, const struct rdma_device *d,
                       unsigned remote) {
    struct crowd c = crowd_of(k, d, remote);
    return (c.here == 0 || c.there == 0) && rail_crowded(k, d, remote, NULL) != NULL;
}

void rdma_key_make_way(struct transport_key *k, struct rdma_rail *newest) {
    unsigned working = 0;
    struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) working += rdma_rail_ready(r) && !r->retiring;
    if (working <= rdma_options.rails) return;
    r = rail_crowded(k, newest->device, newest->remote, newest);
    if (r == NULL) r = newest;
    r->retiring = true;
    rdma_work_due(k->domain->work, k->domain->now_ms);
}

/* A device to itself: not every one can, and it is no second path. Only where nothing else
 * works. */
static void find_loops(struct transport_key *k) {
    struct rdma_address address[RDMA_ADDRESSES_MAX];
    for (unsigned i = 0; i < rdma_devices_count(); i++) {
        size_t n = rdma_device_addresses(rdma_device_at(i), address);
        for (unsigned j = 0; j < k->h.n_devices; j++) {
            k->pair[i][j].loop = false;
            for (size_t a = 0; a < n; a++)
                k->pair[i][j].loop |= rdma_address_same(&address[a], &k->remote[j].address);
        }
    }
}

static bool has_real_rail(const struct transport_key *k) {
    const struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) {
        if (rdma_rail_ready(r) && !k->pair[r->device->index][r->remote].loop) return true;
    }
    return false;
}

static bool pair_open(const struct transport_key *k, const struct rdma_pair *p, bool mending) {
    if (k->up > 0)
        return p->bad_until_ms <= k->domain->now_ms && (mending || p->live < rdma_options.qps);
    return !p->tried;
}

enum rail_want { WANT_ANY, WANT_MENDING, WANT_MISSING };

static struct rdma_device *pick_pair(struct transport_key *k, enum rail_want want,
                                     unsigned *remote_p) {
    find_loops(k);
    bool no_loops = has_real_rail(k);
    const struct rdma_task *t = TAILQ_FIRST(&k->queue);
    int numa_node = t != NULL ? t->numa_node : -1;
    struct rdma_device *best = NULL;
    unsigned best_score = UINT32_MAX, n = rdma_devices_count();
    for (unsigned i = 0; i < n; i++) {
        struct rdma_device *d = rdma_device_at(i);
        if (!rdma_device_usable(d)) continue;
        for (unsigned j = 0; j < k->h.n_devices; j++) {
            if (!pair_open(k, &k->pair[i][j], want == WANT_MENDING)) continue;
            if (no_loops && k->pair[i][j].loop) continue;
            if (want == WANT_MISSING && !is_missing(k, d, j)) continue;
            unsigned this_score = pair_score(k, d, j, numa_node);
            if (this_score >= best_score) continue;
            best_score = this_score;
            best = d;
            *remote_p = j;
        }
    }
    return best;
}

/* false: there is no further pair of devices to try. */
static bool open_one(struct transport_key *k, enum rail_want want, struct rdma_rail *mends) {
    unsigned remote = 0;
    struct rdma_device *d;
    while ((d = pick_pair(k, want, &remote)) != NULL) {
        struct rdma_pair *p = &k->pair[d->index][remote];
        p->tried = true;
        tarn_status status = rdma_rail_open(k, d, remote, mends);
        if (status == TARN_OK) return true;
        k->last_failure = status;
        p->bad_until_ms = k->domain->now_ms + PAIR_BAD_MS;
    }
    return false;
}

static struct rdma_rail *in_doubt(const struct transport_key *k) {
    struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) {
        if (r->state == RDMA_RAIL_DOUBT && r->mender == NULL) return r;
    }
    return NULL;
}

static uint64_t newest_start(const struct transport_key *k) {
    uint64_t newest = 0;
    const struct rdma_rail *r;
    TAILQ_FOREACH(r, &k->rails, link) {
        if (r->state < RDMA_RAIL_UP) newest = max_u64(newest, r->started_ms);
    }
    return newest;
}

/* While there is none: one pair after the other, the next one as soon as the last has failed or is
 * slow. */
static void want_first(struct transport_key *k) {
    uint64_t next_ms = newest_start(k) + RDMA_NEXT_PAIR_MS;
    if (k->coming > 0 && k->domain->now_ms < next_ms) {
        rdma_work_due(k->domain->work, next_ms);
        return;
    }
    struct rdma_rail *doubt = in_doubt(k);
    if (k->up + k->coming < rdma_options.rails &&
        open_one(k, doubt != NULL ? WANT_MENDING : WANT_ANY, doubt)) {
        rdma_work_due(k->domain->work, k->domain->now_ms + RDMA_NEXT_PAIR_MS);
        return;
    }
    if (k->coming == 0) rdma_key_fail_waiting(k, k->last_failure);
}

void rdma_key_want_rails(struct transport_key *k) {
    if (rdma_key_idle(k)) return;
    if (k->refused != TARN_OK && (k->refused == TARN_ESTALE || k->up == 0)) {
        rdma_key_fail_waiting(k, k->refused);
        return;
    }
    if (k->refused != TARN_OK) return;
    if (k->up == 0) {
        want_first(k);
        return;
    }
    struct rdma_rail *doubt = in_doubt(k);
    if (doubt != NULL && k->coming < rdma_options.rails) (void)open_one(k, WANT_MENDING, doubt);
    uint64_t wanted = 1 + (k->waiting + k->outstanding) / RDMA_BYTES_A_RAIL;
    while (k->up + k->coming < min_u64(wanted, rdma_options.rails)) {
        if (!open_one(k, WANT_ANY, NULL)) break;
    }
    if (wanted <= rdma_options.rails || k->coming > 0 || k->up != rdma_options.rails) return;
    if (k->domain->now_ms < k->look_ms) return;
    k->look_ms = k->domain->now_ms + RDMA_NEXT_PAIR_MS;
    (void)open_one(k, WANT_MISSING, NULL);
}
