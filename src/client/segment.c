/* What the engine must know of a segment: fetched once per lane and (id, epoch) with SEGMENT INFO. The grants to attach by
 * shared memory live for a minute only, so a lane attaches right after it asked, and asks again to attach later. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "client/internal.h"

#define SEGMENT_ID_MAX  65536u
#define ATTACH_FRESH_MS 30000u /* of the minute that attach grants are good for */

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
    for (size_t i = 0; i < lane->segments; i++) lane->segment[i] = (struct segment_entry){0};
}

/* "tcp://host:port", "tcp://[v6]:port" */
static bool parse_tcp(struct arena *arena, const char *uri, const char **host_p, uint16_t *port_p) {
    const char *address = uri + strlen("tcp://"), *colon = strrchr(address, ':');
    uint64_t port;
    if (colon == NULL || !span_to_u64(span_str(colon + 1), &port) || port == 0 || port > 65535) return false;
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
    return *host == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 || strcmp(host, "*") == 0;
}

static const uint8_t *grant_of(const struct answer *info, const char *field) {
    const struct answer *g = answer_field(info, field);
    return g != NULL && g->type == ANSWER_STRING && g->len == GRANT_SIZE ? (const uint8_t *)g->str : NULL;
}

static tarn_status decode(struct lane *lane, const struct answer *info, struct engine_segment *s) {
    uint64_t id, epoch;
    const struct answer *endpoints = answer_field(info, "endpoints"), *host = answer_field(info, "host");
    if (!answer_u64(answer_field(info, "id"), &id) || !answer_u64(answer_field(info, "epoch"), &epoch) ||
        !answer_u64(answer_field(info, "size"), &s->size) || endpoints == NULL ||
        endpoints->type != ANSWER_ARRAY || id > UINT32_MAX || epoch > UINT32_MAX) {
        return fail(TARN_EPROTO, "SEGMENT INFO: the server's answer makes no sense");
    }
    s->id = (uint32_t)id;
    s->epoch = (uint32_t)epoch;
    bool same_host = host != NULL && host->type == ANSWER_STRING &&
                     segment_host_is(host->str, host->len, lane->client->own_host);
    for (size_t i = 0; i < endpoints->len; i++) {
        const struct answer *e = &endpoints->element[i];
        if (e->type != ANSWER_STRING) continue;
        if (strncmp(e->str, "shm://", 6) == 0) {
            const char *path = e->str + 6;
            if ((same_host || lane->ctl.loopback) && access(path, F_OK) == 0) s->shm_path = path;
        } else if (strncmp(e->str, "tcp://", 6) == 0 && s->tcp_host == NULL) {
            if (!parse_tcp(&lane->arena, e->str, &s->tcp_host, &s->tcp_port)) s->tcp_host = NULL;
        }
    }
    if (s->tcp_host != NULL && is_wildcard(s->tcp_host)) s->tcp_host = lane->client->host;
    s->attach_read = grant_of(info, "attach_read");
    s->attach_write = grant_of(info, "attach_write");
    return TARN_OK;
}

static tarn_status fetch(struct lane *lane, uint32_t id, uint64_t deadline, struct engine_segment *s) {
    struct answer *info;
    lane_begin(lane, "SEGMENT");
    lane_arg_str(lane, "INFO");
    lane_arg_u64(lane, id);
    tarn_status status = lane_call(lane, &info, deadline);
    if (status != TARN_OK) return status;
    COUNT(lane, segment_fetches, 1);
    status = decode(lane, info, s);
    if (status != TARN_OK) return status;
    if (s->id != id) return fail(TARN_EPROTO, "SEGMENT INFO: asked for %u, got %u", id, s->id);
    return engine_segment_set(lane->engine, s);
}

tarn_status segment_ensure(struct lane *lane, uint32_t id, uint32_t epoch, bool write, uint64_t deadline) {
    struct segment_entry *entry = entry_of(lane, id);
    if (entry == NULL) return fail(TARN_EPROTO, "segment id %u is out of range", id);
    bool known = entry->known && entry->epoch == epoch && engine_segment_known(lane->engine, id, epoch);
    if (known && (!write || entry->write_attached)) return TARN_OK;

    bool fresh = known && now_ms() - entry->fetched_ms < ATTACH_FRESH_MS;
    if (!fresh) {
        struct engine_segment s = {0};
        uint64_t asked_ms = now_ms();
        tarn_status status = fetch(lane, id, deadline, &s);
        if (status != TARN_OK) return status;
        bool was_attached = known && entry->write_attached;
        *entry = (struct segment_entry){true, s.epoch, was_attached, asked_ms};
        if (s.epoch != epoch) return fail(TARN_ESTALE, "segment %u has epoch %u, not %u", id, s.epoch, epoch);
        engine_map(lane->engine, id, epoch, 0, 1, false); /* attaches now; NULL: there is tcp */
    }
    if (write) {
        engine_map(lane->engine, id, epoch, 0, 1, true);
        entry->write_attached = true;
    }
    return TARN_OK;
}
