/* What the engine must know of a segment: fetched once per lane and (id, epoch) with SEGMENT INFO.
 * The grants to attach (shm, rdma) live for a minute only, so a lane attaches right after it asked,
 * and asks again to attach later.
 *
 * A host has no key of a transport as long as it registers its memory, or has lost its device. Then
 * bytes go another way, and now and then the master is asked whether there is one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/htab.h"
#include "base/log.h"
#include "base/segment_header.h"
#include "client/client.h"
#include "transport/uri.h"

#define SEGMENT_ID_MAX  65536u
#define ATTACH_FRESH_MS 30000u /* of the minute that attach grants are good for */
#define KEY_AGAIN_MS    500u   /* doubled up to */
#define KEY_AGAIN_MAX   32000u
#define UNREACHABLE_MS  30000u /* a host will hardly offer other ways within so long */
#define PROBES_MAX      64u    /* segments that are asked what they offer when a client connects */

struct segment_ways {        /* what SEGMENT INFO offered, of use to us */
    bool any, mapped, keyed; /* ways; on this machine; with keys of their hosts */
    bool wants_tls;          /* one that we have no TLS for */
    uint64_t address;        /* hash of the first URI that leads to other machines; 0: none does */
};

void segment_host_name(char *out, size_t cap) {
    char name[65] = "";
    gethostname(name, sizeof(name) - 1);
    snprintf(out, cap, "%s", name);
}

/* Servers report a host name, or host name and boot id with one character between. */
bool segment_host_is(const char *reported, size_t len, const char *own) {
    size_t own_len = strlen(own);
    if (own_len == 0 || len < own_len || memcmp(reported, own, own_len) != 0) return false;
    if (len == own_len) return true;
    char boot[40];
    file_boot_id(boot);
    size_t boot_len = strlen(boot);
    return boot_len > 0 && len == own_len + 1 + boot_len &&
           memcmp(reported + own_len + 1, boot, boot_len) == 0;
}

static struct segment_entry *segment_entry_of(struct lane *lane, uint32_t id) {
    if (id >= SEGMENT_ID_MAX) return NULL;
    if (id >= lane->segments) {
        size_t n = lane->segments == 0 ? 8 : lane->segments;
        while (n <= id) n *= 2;
        lane->segment = xrealloc(lane->segment, n * sizeof(*lane->segment));
        memset(lane->segment + lane->segments, 0, (n - lane->segments) * sizeof(*lane->segment));
        lane->segments = n;
    }
    return &lane->segment[id];
}

void segment_forget(struct lane *lane, uint32_t id) {
    if (id < lane->segments) lane->segment[id].known = false;
}

void segment_forget_all(struct lane *lane) {
    for (size_t i = 0; i < lane->segments; i++) {
        lane->segment[i].known = lane->segment[i].write_attached = false;
        lane->segment[i].unreachable.until_ms = 0;
    }
}

void segment_free_all(struct lane *lane) {
    for (size_t i = 0; i < lane->segments; i++) free(lane->segment[i].unreachable.why);
    free(lane->segment);
}

const struct segment_entry *segment_find(const struct lane *lane, uint32_t id) {
    return id < lane->segments && lane->segment[id].home != 0 ? &lane->segment[id] : NULL;
}

const char *segment_name(const struct lane *lane, uint32_t id) {
    const struct segment_entry *entry = segment_find(lane, id);
    return entry != NULL ? entry->name : "?";
}

static const uint8_t *grant_of(const struct answer *info, const char *field) {
    const struct answer *g = answer_field(info, field);
    return g != NULL && g->type == ANSWER_STRING && g->len == GRANT_SIZE ? (const uint8_t *)g->str
                                                                         : NULL;
}

static const char *text_of(const struct answer *info, const char *field) {
    const struct answer *a = answer_field(info, field);
    return a != NULL && a->type == ANSWER_STRING && strlen(a->str) == a->len ? a->str : "";
}

static struct span bytes_of(const struct answer *a) {
    return a != NULL && a->type == ANSWER_STRING ? span_of(a->str, a->len) : span_of(NULL, 0);
}

/* --- ways to it --- */

/* A host that listens on every address says so; then it is reached where the master is. */
static struct engine_way *segment_add_way(struct lane *lane, struct engine_segment *s,
                                          const char *uri) {
    struct span text = span_str(uri);
    struct uri u;
    if (!uri_parse(text, &u)) return NULL;
    if (uri_is_wildcard(&u)) {
        char *resolved = uri_resolve(text, &u, lane->ctl.host);
        uri =
            memcpy(arena_alloc(&lane->arena, strlen(resolved) + 1), resolved, strlen(resolved) + 1);
        free(resolved);
    }
    return engine_segment_way(s, uri);
}

/* A socket of this machine that we may connect to. Whoever wonders why his bytes take the longer
 * way is told once. */
static bool can_attach(struct lane *lane, const struct transport_ops *t, const char *uri) {
    const char *path = uri + strlen(t->scheme);
    if (strncmp(path, "://", 3) != 0) return false;
    path += 3;
    if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0) return true;
    int error = errno;
    COUNT(lane, shm_unreachable, 1);
    if (lane->client->only != NULL && strcmp(lane->client->only, t->scheme) != 0) return false;
    if (!__atomic_exchange_n(&lane->client->told_no_shm, true, __ATOMIC_RELAXED))
        log_warning(
            "The pool's memory is on this machine, but its bytes go by tcp: %s socket %s: %s. %s",
            t->scheme, path, strerror(error),
            error == ENOENT ? "(Does it run in another container? Share the folder of the socket)"
                            : "(Run as its user, or let it say shm-socket and shm-socket-perm)");
    return false;
}

/* The first one of each transport that we can use. */
static void decode_endpoints(struct lane *lane, const struct answer *endpoints,
                             struct engine_segment *s, struct segment_ways *ways) {
    for (size_t i = 0; i < endpoints->len; i++) {
        const struct answer *a = &endpoints->element[i];
        const struct transport_ops *t = a->type == ANSWER_STRING ? transport_find(a->str) : NULL;
        if (t == NULL) continue;
        bool remote = (t->flags & TRANSPORT_REMOTE) != 0;
        if (transport_is_secure(a->str) && !lane->client->master.secure.on) {
            ways->wants_tls = true;
        } else if (remote || (s->same_host && can_attach(lane, t, a->str))) {
            const struct engine_way *way =
                remote ? segment_add_way(lane, s, a->str) : engine_segment_way(s, a->str);
            if (way == NULL) continue;
            ways->any = true;
            ways->mapped |= !remote;
            if (remote && ways->address == 0)
                ways->address = hash_bytes(way->uri, strlen(way->uri));
        }
    }
}

/* keys: [[uri, read key, write key], ...] */
static const struct answer *key_at(const struct answer *info, size_t i) {
    const struct answer *keys = answer_field(info, "keys");
    return keys != NULL && keys->type == ANSWER_ARRAY && i < keys->len ? &keys->element[i] : NULL;
}

/* "rdma" of such a key; "": it makes no sense, or nothing can be done with it. */
static const char *key_scheme(const struct answer *key, char out[TRANSPORT_SCHEME_MAX + 1]) {
    struct uri u;
    const struct transport_ops *t;
    out[0] = '\0';
    if (!uri_parse(bytes_of(answer_at(key, 0)), &u)) return out;
    memcpy(out, u.scheme.data, u.scheme.len);
    out[u.scheme.len] = '\0';
    bool any = bytes_of(answer_at(key, 1)).len + bytes_of(answer_at(key, 2)).len > 0;
    if (!any && ((t = transport_find(out)) == NULL || (t->flags & TRANSPORT_GRANTED) == 0))
        out[0] = '\0';
    return out;
}

/* transports: [scheme, ...], also of those that have no key at the moment. "": no more. */
static const char *transport_offered(const struct answer *info, size_t i) {
    const struct answer *list = answer_field(info, "transports");
    const struct answer *a =
        list != NULL && list->type == ANSWER_ARRAY && i < list->len ? &list->element[i] : NULL;
    return a != NULL && a->type == ANSWER_STRING ? a->str : "";
}

static bool has_key(const struct answer *info, const char *scheme) {
    char of[TRANSPORT_SCHEME_MAX + 1];
    const struct answer *key;
    for (size_t i = 0; (key = key_at(info, i)) != NULL; i++)
        if (strcmp(key_scheme(key, of), scheme) == 0) return true;
    return false;
}

/* It has keys, or its host has the module, and will have some. */
static bool offers(const struct answer *info, const char *scheme) {
    const char *offered;
    for (size_t i = 0; *(offered = transport_offered(info, i)) != '\0'; i++)
        if (strcmp(offered, scheme) == 0) return true;
    return has_key(info, scheme);
}

static void decode_keys(struct lane *lane, const struct answer *info, struct engine_segment *s,
                        struct segment_ways *ways) {
    char scheme[TRANSPORT_SCHEME_MAX + 1];
    const struct answer *key;
    for (size_t i = 0; (key = key_at(info, i)) != NULL; i++) {
        if (*key_scheme(key, scheme) == '\0' || !client_module_has(lane->client, scheme)) continue;
        struct engine_way *way = segment_add_way(lane, s, answer_at(key, 0)->str);
        if (way == NULL) continue;
        for (size_t w = 0; w < 2; w++) way->key[w] = bytes_of(answer_at(key, 1 + w));
        ways->any = ways->keyed = true;
    }
}

/* A host whose key is not there yet is asked again, by and by. Memory of this machine that can be
 * mapped is not reached faster by anything. */
static void ask_again(struct lane *lane, const struct answer *info, const struct segment_ways *ways,
                      struct segment_entry *entry) {
    bool later = false;
    const char *offered;
    for (size_t i = 0; *(offered = transport_offered(info, i)) != '\0'; i++)
        later |= !has_key(info, offered) && client_module_has(lane->client, offered);
    entry->again_ms = 0;
    if (ways->keyed) entry->asked = 0;
    if (!later || (ways->mapped && lane->client->only == NULL)) return;
    unsigned shift = entry->asked < 6 ? entry->asked : 6;
    entry->again_ms = now_ms() + min_u64((uint64_t)KEY_AGAIN_MS << shift, KEY_AGAIN_MAX);
    entry->asked++;
}

/* The same for all segments that go down together: of a node, or behind one address. */
static uint64_t segment_home(const char *node, uint64_t address) {
    return *node != '\0' ? hash_bytes(node, strlen(node)) | 1 : address;
}

static tarn_status segment_unreachable(struct segment_entry *entry, uint32_t epoch,
                                       tarn_status status) {
    free(entry->unreachable.why);
    entry->unreachable = (struct unreachable){.until_ms = now_ms() + UNREACHABLE_MS,
                                              .epoch = epoch,
                                              .status = status,
                                              .why = xstrdup(tarn_last_error())};
    return status;
}

/* "shm, tcp": each way once, in the order of the endpoints. */
static void ways_of(const struct answer *endpoints, char *out, size_t cap) {
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; endpoints != NULL && i < endpoints->len; i++) {
        const struct answer *e = &endpoints->element[i];
        char way[16];
        size_t len = e->type == ANSWER_STRING ? strcspn(e->str, ":") : 0;
        if (len == 0 || len >= sizeof(way)) continue;
        snprintf(way, sizeof(way), "%.*s", (int)len, e->str);
        if (strstr(out, way) != NULL || at + len + 3 > cap) continue;
        at += (size_t)snprintf(out + at, cap - at, "%s%s", at > 0 ? ", " : "", way);
    }
}

static tarn_status fail_not_offered(const struct answer *info, const char *scheme) {
    char ways[64];
    const char *node = text_of(info, "node"), *host = text_of(info, "host");
    ways_of(answer_field(info, "endpoints"), ways, sizeof(ways));
    return fail(TARN_ENOTSUP,
                "transport=%s: segment %s of %s%s on host %s offers no %s (it offers %s). Load the "
                "module there (%s %s.so), or leave transport=%s away",
                scheme, text_of(info, "name"), *node == '\0' ? "the server" : "node ", node, host,
                scheme, ways[0] == '\0' ? "nothing" : ways,
                *node == '\0' ? "loadmodule" : "tarn-node --loadmodule", scheme, scheme);
}

static tarn_status info_decode(struct lane *lane, const struct answer *info,
                               struct engine_segment *s, struct segment_ways *ways,
                               struct segment_entry *entry) {
    uint64_t id, epoch;
    const struct answer *endpoints = answer_field(info, "endpoints"),
                        *host = answer_field(info, "host");
    if (!answer_u64(answer_field(info, "id"), &id) ||
        !answer_u64(answer_field(info, "epoch"), &epoch) ||
        !answer_u64(answer_field(info, "size"), &s->size) || endpoints == NULL ||
        endpoints->type != ANSWER_ARRAY || id > UINT32_MAX || epoch > UINT32_MAX) {
        return fail(TARN_EPROTO, "SEGMENT INFO: the server's answer makes no sense");
    }
    s->id = (uint32_t)id;
    s->epoch = (uint32_t)epoch;
    uint8_t *content = arena_alloc(&lane->arena, SEGMENT_CONTENT_SIZE);
    if (answer_hex(answer_field(info, "content"), content, SEGMENT_CONTENT_SIZE))
        s->content = content;
    const char *node = text_of(info, "node");
    /* The master's own memory is here if the master is, whatever name it goes by. */
    s->same_host = (*node == '\0' && lane->ctl.loopback) ||
                   (host != NULL && host->type == ANSWER_STRING &&
                    segment_host_is(host->str, host->len, lane->client->own_host));
    s->attach[0] = grant_of(info, "attach_read");
    s->attach[1] = grant_of(info, "attach_write");
    decode_endpoints(lane, endpoints, s, ways);
    decode_keys(lane, info, s, ways);
    ask_again(lane, info, ways, entry);
    uint64_t address = (ways->address != 0 ? ways->address : hash_u64(s->id)) | 1;
    bool moved = entry->home != 0 && entry->address != address;
    entry->address = address;
    entry->home = segment_home(node, address);
    if (moved) outage_over(lane, s->id); /* what failed was another address */
    snprintf(entry->name, sizeof(entry->name), "%s", text_of(info, "name"));
    entry->unreachable.until_ms = 0;
    const char *wanted = client_module_wanted(lane->client);
    if (wanted != NULL && !offers(info, wanted))
        return segment_unreachable(entry, s->epoch, fail_not_offered(info, wanted));
    if (!ways->wants_tls || ways->any) return TARN_OK;
    return segment_unreachable(
        entry, s->epoch,
        fail(TARN_EPERM,
             "segment %s is reached over TLS only: connect with tarns:// and the "
             "tls_ options (TLS.md)",
             entry->name));
}

static void info_request(struct lane *lane, uint32_t id) {
    request_begin(&lane->request);
    struct wire_drain segment = {.name = request_number(&lane->request, id)};
    request_build(&lane->request, WIRE_segment_info, &segment);
}

static tarn_status info_fetch(struct lane *lane, uint32_t id, uint64_t deadline,
                              struct engine_segment *s, struct segment_ways *ways,
                              struct segment_entry *entry) {
    struct answer *info;
    info_request(lane, id);
    tarn_status status = lane_call(lane, &info, deadline);
    if (status != TARN_OK) return status;
    COUNT(lane, segment_fetches, 1);
    status = info_decode(lane, info, s, ways, entry);
    if (status != TARN_OK) return status;
    if (s->id != id) return fail(TARN_EPROTO, "SEGMENT INFO: asked for %u, got %u", id, s->id);
    return engine_segment_set(lane->engine, s);
}

tarn_status segment_ensure(struct lane *lane, uint32_t id, uint32_t epoch, bool write,
                           uint64_t deadline) {
    struct segment_entry *entry = segment_entry_of(lane, id);
    if (entry == NULL) return fail(TARN_EPROTO, "segment id %u is out of range", id);
    const struct unreachable *u = &entry->unreachable;
    if (u->until_ms > 0 && u->epoch == epoch && now_ms() < u->until_ms)
        return fail(u->status, "%s", u->why);
    bool known =
        entry->known && entry->epoch == epoch && engine_segment_known(lane->engine, id, epoch);
    bool again = known && entry->again_ms != 0 && now_ms() >= entry->again_ms;
    if (known && !again && (!write || entry->write_attached)) return TARN_OK;

    bool fresh = known && !again && now_ms() - entry->fetched_ms < ATTACH_FRESH_MS;
    if (!fresh) {
        struct engine_segment s = {0};
        struct segment_ways ways = {.any = false};
        uint64_t asked_ms = now_ms();
        tarn_status status = info_fetch(lane, id, deadline, &s, &ways, entry);
        if (status != TARN_OK) return status;
        bool was_attached = known && entry->write_attached && !ways.keyed;
        entry->known = true;
        entry->epoch = s.epoch;
        entry->write_attached = was_attached;
        entry->fetched_ms = asked_ms;
        if (s.epoch != epoch)
            return fail(TARN_ESTALE, "segment %u has epoch %u, not %u", id, s.epoch, epoch);
        /* now; where that fails there is another way */
        engine_attach(lane->engine, id, epoch, false);
    }
    if (write) {
        engine_attach(lane->engine, id, epoch, true);
        entry->write_attached = true;
    }
    return TARN_OK;
}

/* --- a transport that every host must offer --- */

/* Ids of the segments that INFO pool shows; 0: it does not show all. */
static size_t shown_segments(const char *info, uint32_t ids[PROBES_MAX]) {
    size_t n = 0;
    uint64_t all = 0, id;
    for (const char *at = info; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t name = strcspn(at, ":");
        if (strncmp(at, "segments:", 9) == 0)
            all = strtoull(at + 9, NULL, 10);
        else if (strncmp(at, "segment", 7) == 0 && n < PROBES_MAX &&
                 span_to_u64(span_of(at + 7, name - 7), &id))
            ids[n++] = (uint32_t)id;
    }
    return n == all ? n : 0;
}

static bool is_up_memory(const struct answer *info) {
    return strcmp(text_of(info, "tier"), "memory") == 0 &&
           strcmp(text_of(info, "state"), "up") == 0;
}

tarn_status segment_require(struct lane *lane, const char *scheme, uint64_t deadline) {
    struct answer *a;
    uint32_t ids[PROBES_MAX];
    ctl_words(&lane->ctl, "INFO", 2, (const char *[]){"INFO", "pool"}, NULL);
    if (lane_call(lane, &a, deadline) != TARN_OK || a->type != ANSWER_STRING) return TARN_OK;
    size_t n = shown_segments(a->str, ids);
    const struct answer *without = NULL;
    for (size_t i = 0; i < n; i++) {
        info_request(lane, ids[i]);
        if (lane_call(lane, &a, deadline) != TARN_OK) return TARN_OK; /* the first use will tell */
        if (!is_up_memory(a)) continue;
        if (offers(a, scheme)) return TARN_OK;
        if (without == NULL) without = a;
    }
    return without == NULL ? TARN_OK : fail_not_offered(without, scheme);
}
