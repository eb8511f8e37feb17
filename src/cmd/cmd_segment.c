/* SEGMENT LIST and SEGMENT INFO: what the pool consists of, and how to reach its bytes. libtarn fetches INFO once per
 * segment and epoch. */
#include "cmd/families.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/assert.h"
#include "cmd/client.h"
#include "cmd/config.h"
#include "cmd/core.h"
#include "cmd/location.h"
#include "host/host.h"

/* Attach grants are for use at once. */
enum { ATTACH_MS = 60 * 1000 };

static const char *own_host_name(void) {
    static char name[65];
    if (!name[0]) {
        gethostname(name, sizeof(name) - 1);
        if (!name[0]) strcpy(name, "localhost");
    }
    return name;
}

static void field_str(struct client *c, const char *name, const char *value) {
    reply_bulk_str(c, name);
    reply_bulk_str(c, value);
}

static void field_int(struct client *c, const char *name, uint64_t value) {
    reply_bulk_str(c, name);
    reply_int(c, (int64_t)value);
}

static uint64_t free_bytes(const struct store_segment_info *s) {
    return s->size - s->used - s->quarantined;
}

void cmd_segment_list(struct client *c) {
    size_t n = store_segment_count(server.store);
    reply_array(c, n);
    for (uint32_t id = 0; id < n; id++) {
        struct store_segment_info s;
        bool there = store_segment_get(server.store, id, &s);
        TARN_ASSERT(there); /* ids are dense */
        reply_map(c, 9);
        field_str(c, "name", s.name);
        field_int(c, "id", s.id);
        field_int(c, "epoch", s.epoch);
        field_int(c, "size", s.size);
        field_int(c, "used", s.used);
        field_int(c, "free", free_bytes(&s));
        field_int(c, "largest_free", s.largest_free);
        field_str(c, "host", own_host_name());
        field_str(c, "state", "mounted");
    }
}

/* Where this client reaches the data port: what the administrator announces, else the address it came to. */
static void reply_tcp_endpoint(struct client *c) {
    char local[128] = "", uri[256];
    const char *host = server.config->announce_host;
    client_local(c, local, sizeof(local));
    char *colon = strrchr(local, ':');
    if (!host || !*host) {
        if (colon) *colon = 0;
        /* A unix socket: local is its path. */
        host = colon && local[0] != '/' ? local : "127.0.0.1";
    }
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    snprintf(uri, sizeof(uri), bare_v6 ? "tcp://[%s]:%u" : "tcp://%s:%u", host, core_endpoints.data_port);
    reply_bulk_str(c, uri);
}

static void reply_endpoints(struct client *c) {
    const char *path = core_endpoints.shm_path;
    bool shm = path && *path, tcp = core_endpoints.data_port != 0;
    reply_bulk_str(c, "endpoints");
    reply_array(c, (size_t)shm + tcp);
    if (shm) {
        char uri[256];
        snprintf(uri, sizeof(uri), "shm://%s", path);
        reply_bulk_str(c, uri);
    }
    if (tcp) reply_tcp_endpoint(c);
}

static void reply_attach(struct client *c, const char *name, enum grant_op op,
                         const struct store_segment_info *s) {
    uint8_t sealed[GRANT_SIZE];
    struct grant_extent whole = {s->id, s->epoch, 0, s->size};
    location_seal(op, c->id, server.mono_ms + ATTACH_MS, &whole, sealed);
    reply_bulk_str(c, name);
    reply_bulk(c, span_of(sealed, sizeof(sealed)));
}

static bool find_segment(struct span which, struct store_segment_info *s) {
    uint64_t id;
    if (store_segment_by_name(server.store, which, s)) return true;
    return span_to_u64(which, &id) && id < store_segment_count(server.store) &&
           store_segment_get(server.store, (uint32_t)id, s);
}

void cmd_segment_info(struct client *c) {
    struct store_segment_info s;
    struct host_segment_info h = {.backing = "memfd", .numa_node = -1};
    if (!find_segment(c->argv[2], &s)) {
        reply_status(c, TARN_ENOSEGMENT, NULL);
        return;
    }
    if (server.host) host_segment_get(server.host, s.id, &h);
    reply_map(c, 17);
    field_str(c, "name", s.name);
    field_int(c, "id", s.id);
    field_int(c, "epoch", s.epoch);
    field_int(c, "master_epoch", server.master_epoch);
    field_int(c, "size", s.size);
    field_int(c, "used", s.used);
    field_int(c, "quarantined", s.quarantined);
    field_int(c, "free", free_bytes(&s));
    field_int(c, "largest_free", s.largest_free);
    field_int(c, "free_runs", s.free_runs);
    field_str(c, "tier", "memory");
    field_str(c, "host", own_host_name());
    field_str(c, "backing", h.backing);
    field_str(c, "huge_pages", h.huge ? "yes" : "no");
    reply_endpoints(c);
    reply_attach(c, "attach_read", GRANT_ATTACH_READ, &s);
    reply_attach(c, "attach_write", GRANT_ATTACH_WRITE, &s);
}
