#include "front/location.h"

#include <string.h>
#include <stdio.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "front/acl_users.h"
#include "front/reply.h"
#include "front/stats.h"
#include "pool/tier.h"
#include "transport/place.h"
#include "config/config.h"

static_assert(LOCATION_TEXT_MAX + 512 <= sizeof(((struct text *)0)->data), "a whole element fits");
static_assert(LOCATION_PATH_MAX + 64 <= STORE_EXTENTS_MAX * 160,
              "a file takes no more than extents do");
static_assert(LOCATION_PATH_MAX >= CLUSTER_DIRECTORY_MAX + 160, "a directory and a name in it");

static void text_char(struct text *t, char c) {
    *t->at++ = c;
}

static void text_crlf(struct text *t) {
    *t->at++ = '\r';
    *t->at++ = '\n';
}

void text_array(struct text *t, size_t n) {
    text_char(t, '*');
    t->at += u64_to_dec(n, t->at);
    text_crlf(t);
}

void text_int(struct text *t, int64_t v) {
    text_char(t, ':');
    t->at += i64_to_dec(v, t->at);
    text_crlf(t);
}

void text_bulk(struct text *t, const void *data, size_t len) {
    TARN_ASSERT((size_t)(t->data + sizeof(t->data) - t->at) >= len + 32);
    text_char(t, '$');
    t->at += u64_to_dec(len, t->at);
    text_crlf(t);
    if (len) memcpy(t->at, data, len);
    t->at += len;
    text_crlf(t);
}

void text_null(struct text *t, int proto) {
    memcpy(t->at, proto == 3 ? "_\r\n" : "$-1\r\n", proto == 3 ? 3 : 5);
    t->at += proto == 3 ? 3 : 5;
}

void text_send(struct client *c, struct text *t) {
    TARN_ASSERT(t->at <= t->data + sizeof(t->data));
    reply_raw(c, t->data, (size_t)(t->at - t->data));
}

bool location_trusted(const struct client *c) {
    return acl_client_may(c, "segment|attach");
}

static bool extent_seal(const struct location_grant *grant, const struct grant_extent *e,
                        uint8_t out[GRANT_SIZE]) {
    static struct { /* the last one's; at first it says nothing that a grant says */
        uint8_t key[GRANT_KEY_SIZE];
        struct grant g;
        struct grant_sealer sealer;
    } last;
    const uint8_t *key = cluster_grant_key(e->segment);
    if (key == NULL) return false;
    struct grant g = location_grant_of(grant);
    if (memcmp(&g, &last.g, sizeof(g)) != 0 || memcmp(key, last.key, sizeof(last.key)) != 0) {
        last.g = g;
        memcpy(last.key, key, sizeof(last.key));
        grant_sealer_init(&last.sealer, key, &g);
    }
    grant_sealer_seal(&last.sealer, e, out);
    stats.grants_sealed++;
    return true;
}

uint64_t location_session_grants_ms(uint64_t session) {
    uint64_t reads_ms = max_u64(config->max_lease_ms, LOCATION_ATTACH_MS);
    return max_u64(reads_ms, store_session_grants_ms(books, session));
}

bool location_seal(enum grant_op op, uint64_t session, uint64_t expiry_ms,
                   const struct grant_extent *e, uint8_t out[GRANT_SIZE]) {
    struct location_grant grant = {.op = op, .session = session, .expiry_ms = expiry_ms};
    return extent_seal(&grant, e, out);
}

struct location_grant location_put_grant(const struct store_put *put) {
    bool once = store_put_once(put);
    return (struct location_grant){.op = once ? GRANT_WRITE_ONCE : GRANT_WRITE,
                                   .session = store_put_session(put),
                                   .expiry_ms = store_put_deadline_ms(put),
                                   .token = once ? store_put_token(put) : 0};
}

struct grant location_grant_of(const struct location_grant *grant) {
    return (struct grant){.op = grant->op,
                          .master_epoch = server.master_epoch,
                          .session = grant->session,
                          .expiry_ms = grant->expiry_ms,
                          .put = grant->token & GRANT_PUT_MASK};
}

static bool receipt_right(const struct grant *g, const struct store_extent *x, bool whole,
                          const uint8_t receipt[GRANT_RECEIPT_SIZE]) {
    struct grant_extent e = {x->segment, x->segment_epoch, x->offset, x->length};
    const uint8_t *key = cluster_grant_key(x->segment);
    if (key == NULL) return false;
    return grant_receipt_check(key, g, &e, true, receipt) ||
           (!whole && grant_receipt_check(key, g, &e, false, receipt));
}

bool location_receipts_fit(const struct store_put *put, struct span receipts) {
    struct store_layout layout;
    size_t extents = 0;
    store_put_layout(books, put, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) extents += layout.replica[i].extents;
    return receipts.len == extents * GRANT_RECEIPT_SIZE;
}

bool location_receipts(const struct store_put *put, uint32_t without, bool whole,
                       struct span receipts) {
    struct store_layout layout;
    struct location_grant grant = location_put_grant(put);
    struct grant g = location_grant_of(&grant);
    const uint8_t *at = (const uint8_t *)receipts.data;
    store_put_layout(books, put, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++) {
        const struct store_replica *r = &layout.replica[i];
        struct store_segment_info seg;
        bool leaves =
            !store_segment_get(books, r->extent[0].segment, &seg) || seg.state == SEGMENT_LEAVING;
        if (leaves) without |= UINT32_C(1) << i; /* as PUTEND does */
        for (uint32_t j = 0; j < r->extents; j++, at += GRANT_RECEIPT_SIZE)
            if (!(without >> i & 1) && !receipt_right(&g, &r->extent[j], whole, at)) return false;
    }
    return true;
}

uint32_t location_host(struct client *c) {
    if (c->host_name[0] == '\0') return STORE_HOST_NONE;
    uint32_t version = cluster_machines_version();
    if (c->machines_version != version) {
        c->host = cluster_host_of(span_str(c->host_name));
        c->machines_version = version;
    }
    return c->host;
}

const char *location_tier_name(enum store_tier tier) {
    static const char *const names[] = {"memory", "ssd", "file"};
    return names[tier];
}

static void text_extent(struct text *t, const struct store_extent *x,
                        const struct location_grant *grant) {
    memcpy(t->at, "*5\r\n", 4);
    t->at += 4;
    text_int(t, x->segment);
    text_int(t, x->segment_epoch);
    text_int(t, (int64_t)x->offset);
    text_int(t, (int64_t)x->length);
    uint8_t sealed[GRANT_SIZE];
    bool granted = false;
    if (grant != NULL) {
        struct grant_extent e = {x->segment, x->segment_epoch, x->offset, x->length};
        granted = extent_seal(grant, &e, sealed);
    }
    text_bulk(t, sealed, granted ? GRANT_SIZE : 0);
}

/* "[[path, size]]": what every client that has that file system reads by itself. */
static void text_file(struct text *t, const struct store_extent *x, struct span key,
                      uint64_t version) {
    char path[LOCATION_PATH_MAX] = "";
    struct cluster_segment g;
    if (cluster_segment_get(x->segment, &g) && g.directory != NULL) {
        int n = snprintf(path, sizeof(path), "%s/", g.directory);
        TARN_ASSERT(n > 0 && (size_t)n < sizeof(path));
        tier_file_path(key, version, path + n, sizeof(path) - (size_t)n);
    }
    text_array(t, 1);
    text_array(t, 2);
    text_bulk(t, path, strlen(path));
    text_int(t, (int64_t)x->length);
}

static void text_tier(struct text *t, enum store_tier tier) {
    static const struct span heads[] = {
        {"*2\r\n$6\r\nmemory\r\n", 16}, {"*2\r\n$3\r\nssd\r\n", 13}, {"*2\r\n$4\r\nfile\r\n", 14}};
    memcpy(t->at, heads[tier].data, heads[tier].len);
    t->at += heads[tier].len;
}

void text_replicas(struct text *t, const struct store_layout *layout, struct span key,
                   uint64_t version, const struct location_grant *grant) {
    size_t outside = 0; /* a value in the books has no replica to fetch */
    for (uint32_t i = 0; i < layout->replicas; i++) outside += layout->replica[i].extents > 0;
    text_array(t, outside);
    for (uint32_t i = 0; i < layout->replicas; i++) {
        const struct store_replica *r = &layout->replica[i];
        if (r->extents == 0) continue;
        text_tier(t, r->tier);
        if (r->tier == STORE_TIER_FILE) {
            text_file(t, &r->extent[0], key, version);
            continue;
        }
        text_array(t, r->extents);
        for (uint32_t j = 0; j < r->extents; j++) text_extent(t, &r->extent[j], grant);
    }
}

static char *put_u32(char *at, uint32_t v) {
    memcpy(at, &v, sizeof(v));
    return at + sizeof(v);
}
static char *put_u64(char *at, uint64_t v) {
    memcpy(at, &v, sizeof(v));
    return at + sizeof(v);
}

/* Straight into the reply, and field by field: a processor waits where it is to read in one piece
 * what was just written in several, and batches have thousands of these. */
static void place_reply(struct client *c, const struct place_packed *place, bool granted) {
    size_t size = granted ? sizeof(*place) : PLACE_NO_GRANT_SIZE;
    char *at = reply_room(c, 5 + size + 2);
    memcpy(at, granted ? "$88\r\n" : "$48\r\n", 5);
    at = put_u64(at + 5, place->number);
    at = put_u32(at, place->lease_ms);
    at = put_u32(at, place->flags);
    at = put_u32(at, place->crc);
    at = put_u32(at, place->zero);
    at = put_u32(at, place->extent.segment);
    at = put_u32(at, place->extent.segment_epoch);
    at = put_u64(at, place->extent.offset);
    at = put_u64(at, place->extent.length);
    if (granted) memcpy(at, place->grant, GRANT_SIZE);
    memcpy(at + (granted ? GRANT_SIZE : 0), "\r\n", 2);
}

bool location_packed(struct client *c, const struct store_layout *layout,
                     const struct location_grant *grant, struct place_packed *place) {
    const struct store_replica *r = &layout->replica[0];
    if (layout->replicas != 1 || r->tier != STORE_TIER_MEMORY || r->extents != 1) return false;
    const struct store_extent *x = &r->extent[0];
    place->extent = (struct grant_extent){x->segment, x->segment_epoch, x->offset, x->length};
    if (grant != NULL && !extent_seal(grant, &place->extent, place->grant)) return false;
    place_reply(c, place, grant != NULL);
    return true;
}
