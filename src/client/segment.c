/* What the engine must know of a segment: fetched once per lane and (id, epoch) with SEGMENT INFO.
 * The grants to attach by shared memory or RDMA live for a minute only, so a lane attaches right
 * after it asked, and asks again to attach later.
 *
 * A host has no RDMA key as long as it registers its memory, or has lost its device. Then bytes go
 * by tcp, and now and then the master is asked whether there is one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/htab.h"
#include "base/log.h"
#include "base/segment_header.h"
#include "client/internal.h"

#define SEGMENT_ID_MAX  65536u
#define ATTACH_FRESH_MS 30000u /* of the minute that attach grants are good for */
#define KEY_AGAIN_MS    500u   /* doubled up to */
#define KEY_AGAIN_MAX   32000u
#define UNREACHABLE_MS  30000u /* a host will hardly offer other ways within so long */
#define PROBES_MAX      64u    /* segments that are asked for RDMA when a client connects */

void segment_host_name(char *out, size_t cap) {
    char name[65] = "";
    gethostname(name, sizeof(name) - 1);
    snprintf(out, cap, "%s", name);
}

static void boot_id(char *out, size_t cap) {
    out[0] = '\0';
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f == NULL) return;
    if (fgets(out, (int)cap, f) == NULL) out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    fclose(f);
}

/* Servers report a host name, or host name and boot id with one character between. */
bool segment_host_is(const char *reported, size_t len, const char *own) {
    size_t own_len = strlen(own);
    if (own_len == 0 || len < own_len || memcmp(reported, own, own_len) != 0) return false;
    if (len == own_len) return true;
    char boot[64];
    boot_id(boot, sizeof(boot));
    size_t boot_len = strlen(boot);
    return boot_len > 0 && len == own_len + 1 + boot_len &&
           memcmp(reported + own_len + 1, boot, boot_len) == 0;
}

static struct segment_entry *entry_of(struct lane *lane, uint32_t id) {
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

/* "tcp://host:port", "tcp://[v6]:port", or the same with tcps */
static bool parse_tcp(struct arena *arena, const char *uri, const char **host_p, uint16_t *port_p) {
    const char *address = strchr(uri, '/') + 2, *colon = strrchr(address, ':');
    uint64_t port;
    if (colon == NULL || !span_to_u64(span_str(colon + 1), &port) || port == 0 || port > 65535)
        return false;
    const char *end = colon;
    if (*address == '[' && end[-1] == ']') {
        address++;
        end--;
    }
    size_t len = (size_t)(end - address);
    char *host = arena_alloc(arena, len + 1);
    memcpy(host, address, len);
    host[len] = '\0';
    *host_p = host;
    *port_p = (uint16_t)port;
    return true;
}

/* A host that listens on every address says so; then it is reached where the master is. */
static bool is_wildcard(const char *host) {
    return *host == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
           strcmp(host, "*") == 0;
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

static bool bytes_of(const struct answer *a, const void **data_p, size_t *len_p) {
    if (a == NULL || a->type != ANSWER_STRING || a->len == 0) return false;
    *data_p = a->str;
    *len_p = a->len;
    return true;
}

/* keys: [[uri, read key, write key], ...]. Other transports than RDMA are of a later time. */
static bool decode_keys(const struct answer *info, struct engine_segment *s) {
    const struct answer *keys = answer_field(info, "keys");
    for (size_t i = 0; keys != NULL && keys->type == ANSWER_ARRAY && i < keys->len; i++) {
        const struct answer *uri = answer_at(&keys->element[i], 0);
        if (uri == NULL || uri->type != ANSWER_STRING || strncmp(uri->str, "rdma://", 7) != 0 ||
            strlen(uri->str) != uri->len)
            continue;
        bool any = false;
        for (size_t w = 0; w < 2; w++)
            any |=
                bytes_of(answer_at(&keys->element[i], 1 + w), &s->rdma_key[w], &s->rdma_key_len[w]);
        if (any) s->rdma_uri = uri->str;
        return any;
    }
    return false;
}

static bool host_has_rdma(const struct answer *info) {
    const struct answer *list = answer_field(info, "transports");
    for (size_t i = 0; list != NULL && list->type == ANSWER_ARRAY && i < list->len; i++) {
        const struct answer *a = &list->element[i];
        if (a->type == ANSWER_STRING && strcmp(a->str, "rdma") == 0) return true;
    }
    return false;
}

/* It has keys, or its host has the module, and will have some. */
static bool offers_rdma(const struct answer *info) {
    struct engine_segment s = {0};
    return decode_keys(info, &s) || host_has_rdma(info);
}

/* Memory of this machine that can be mapped is not reached faster by anything. */
static void decode_rdma(struct lane *lane, const struct answer *info, struct engine_segment *s,
                        struct segment_entry *entry) {
    entry->again_ms = 0;
    bool offered = decode_keys(info, s), later = !offered && host_has_rdma(info);
    if (!offered && !later) return;
    if (!client_module_rdma(lane->client)) {
        s->rdma_uri = NULL;
    } else if (offered) {
        entry->asked = 0;
    } else if (s->shm_path == NULL || strcmp(lane->client->options.transport, "rdma") == 0) {
        unsigned shift = entry->asked < 6 ? entry->asked : 6;
        entry->again_ms = now_ms() + min_u64((uint64_t)KEY_AGAIN_MS << shift, KEY_AGAIN_MAX);
        entry->asked++;
    }
}

/* The same for all segments that go down together: of a node, or behind one address. */
static uint64_t home_of(const char *node, const struct engine_segment *s) {
    uint64_t home;
    if (*node != '\0') {
        home = hash_bytes(node, strlen(node));
    } else if (s->tcp_host != NULL) {
        home = hash_bytes(s->tcp_host, strlen(s->tcp_host)) ^ hash_u64(s->tcp_port);
    } else {
        home = hash_u64(s->id);
    }
    return home == 0 ? 1 : home;
}

/* A socket of this machine that we may connect to. Whoever wonders why his bytes take the longer
 * way is told once. */
static bool can_attach(struct lane *lane, const char *path) {
    if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS) == 0) return true;
    int error = errno;
    COUNT(lane, shm_unreachable, 1);
    if (strcmp(lane->client->options.transport, "tcp") == 0) return false;
    if (!__atomic_exchange_n(&lane->client->told_no_shm, true, __ATOMIC_RELAXED))
        log_warning(
            "The pool's memory is on this machine, but its bytes go by tcp: shm socket %s: %s. %s",
            path, strerror(error),
            error == ENOENT ? "(Does it run in another container? Share the folder of the socket)"
                            : "(Run as its user, or let it say shm-socket and shm-socket-perm)");
    return false;
}

/* The first one of each kind that we can use. */
static void decode_endpoints(struct lane *lane, const struct answer *endpoints, bool same_host,
                             struct engine_segment *s, bool *wants_tls_p) {
    *wants_tls_p = false;
    for (size_t i = 0; i < endpoints->len; i++) {
        const struct answer *e = &endpoints->element[i];
        if (e->type != ANSWER_STRING) continue;
        bool tls = strncmp(e->str, "tcps://", 7) == 0;
        if (strncmp(e->str, "shm://", 6) == 0) {
            const char *path = e->str + 6;
            if (same_host && can_attach(lane, path)) s->shm_path = path;
        } else if (tls && !lane->client->master.secure.on) {
            *wants_tls_p = true;
        } else if ((tls || strncmp(e->str, "tcp://", 6) == 0) && s->tcp_host == NULL) {
            if (!parse_tcp(&lane->arena, e->str, &s->tcp_host, &s->tcp_port)) s->tcp_host = NULL;
            s->tcp_tls = tls;
        }
    }
    if (s->tcp_host != NULL && is_wildcard(s->tcp_host)) s->tcp_host = lane->ctl.host;
}

static tarn_status unreachable(struct segment_entry *entry, uint32_t epoch, tarn_status status) {
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

static tarn_status fail_no_rdma(const struct answer *info) {
    char ways[64];
    const char *node = text_of(info, "node"), *host = text_of(info, "host");
    ways_of(answer_field(info, "endpoints"), ways, sizeof(ways));
    return fail(TARN_ENOTSUP,
                "transport=rdma: segment %s of %s%s on host %s offers no rdma (it offers %s). Load "
                "the module there "
                "(%s rdma.so), or leave transport=rdma away",
                text_of(info, "name"), *node == '\0' ? "the server" : "node ", node, host,
                ways[0] == '\0' ? "nothing" : ways,
                *node == '\0' ? "loadmodule" : "tarn-node --loadmodule");
}

static tarn_status decode(struct lane *lane, const struct answer *info, struct engine_segment *s,
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
    bool same_host = host != NULL && host->type == ANSWER_STRING &&
                     segment_host_is(host->str, host->len, lane->client->own_host);
    /* The master's own memory is here if the master is, whatever name it goes by. */
    same_host = same_host || (*node == '\0' && lane->ctl.loopback);
    bool wants_tls;
    decode_endpoints(lane, endpoints, same_host, s, &wants_tls);
    s->attach_read = grant_of(info, "attach_read");
    s->attach_write = grant_of(info, "attach_write");
    decode_rdma(lane, info, s, entry);
    uint64_t address = home_of("", s);
    bool moved = entry->home != 0 && entry->address != address;
    entry->address = address;
    entry->home = home_of(node, s);
    if (moved) outage_over(lane, s->id); /* what failed was another address */
    snprintf(entry->name, sizeof(entry->name), "%s", text_of(info, "name"));
    entry->unreachable.until_ms = 0;
    if (strcmp(lane->client->options.transport, "rdma") == 0 && !offers_rdma(info))
        return unreachable(entry, s->epoch, fail_no_rdma(info));
    if (!wants_tls || s->tcp_host != NULL || s->shm_path != NULL || s->rdma_uri != NULL)
        return TARN_OK;
    return unreachable(entry, s->epoch,
                       fail(TARN_EPERM,
                            "segment %s is reached over TLS only: connect with tarns:// and the "
                            "tls_ options (TLS.md)",
                            entry->name));
}

static tarn_status fetch(struct lane *lane, uint32_t id, uint64_t deadline,
                         struct engine_segment *s, struct segment_entry *entry) {
    struct answer *info;
    lane_begin(lane, "SEGMENT");
    lane_arg_str(lane, "INFO");
    lane_arg_u64(lane, id);
    tarn_status status = lane_call(lane, &info, deadline);
    if (status != TARN_OK) return status;
    COUNT(lane, segment_fetches, 1);
    status = decode(lane, info, s, entry);
    if (status != TARN_OK) return status;
    if (s->id != id) return fail(TARN_EPROTO, "SEGMENT INFO: asked for %u, got %u", id, s->id);
    return engine_segment_set(lane->engine, s);
}

tarn_status segment_ensure(struct lane *lane, uint32_t id, uint32_t epoch, bool write,
                           uint64_t deadline) {
    struct segment_entry *entry = entry_of(lane, id);
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
        uint64_t asked_ms = now_ms();
        tarn_status status = fetch(lane, id, deadline, &s, entry);
        if (status != TARN_OK) return status;
        bool was_attached = known && entry->write_attached && s.rdma_uri == NULL;
        entry->known = true;
        entry->epoch = s.epoch;
        entry->write_attached = was_attached;
        entry->fetched_ms = asked_ms;
        if (s.epoch != epoch)
            return fail(TARN_ESTALE, "segment %u has epoch %u, not %u", id, s.epoch, epoch);
        engine_attach(lane->engine, id, epoch, false); /* now; where that fails there is tcp */
    }
    if (write) {
        engine_attach(lane->engine, id, epoch, true);
        entry->write_attached = true;
    }
    return TARN_OK;
}

/* --- transport=rdma --- */

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

tarn_status segment_require_rdma(struct lane *lane, uint64_t deadline) {
    struct answer *a;
    uint32_t ids[PROBES_MAX];
    lane_begin(lane, "INFO");
    lane_arg_str(lane, "pool");
    if (lane_call(lane, &a, deadline) != TARN_OK || a->type != ANSWER_STRING) return TARN_OK;
    size_t n = shown_segments(a->str, ids);
    const struct answer *without = NULL;
    for (size_t i = 0; i < n; i++) {
        lane_begin(lane, "SEGMENT");
        lane_arg_str(lane, "INFO");
        lane_arg_u64(lane, ids[i]);
        if (lane_call(lane, &a, deadline) != TARN_OK) return TARN_OK; /* the first use will tell */
        if (!is_up_memory(a)) continue;
        if (offers_rdma(a)) return TARN_OK;
        if (without == NULL) without = a;
    }
    return without == NULL ? TARN_OK : fail_no_rdma(without);
}
