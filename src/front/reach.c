#include "front/reach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "front/client.h"
#include "config/config.h"
#include "front/core.h"
#include "host/host.h"
#include "transport/transport.h"
#include "transport/uri.h"
#include "front/embedded.h"

/* --- addresses --- */

/* Where this client reaches this machine: what the administrator announces, else the address it
 * came to. */
static void own_address(struct client *c, char *out, size_t size) {
    const char *announced = config->announce_host;
    snprintf(out, size, "%s", announced != NULL && *announced ? announced : "127.0.0.1");
    if ((announced != NULL && *announced) || c->io->flags & CLIENT_UNIX) return;
    client_local(c, out, size);
    char *colon = strrchr(out, ':');
    if (colon != NULL) *colon = '\0';
}

static void reply_own(struct client *c, struct span scheme, uint16_t port) {
    char host[192];
    own_address(c, host, sizeof(host));
    char *uri = uri_make(scheme, host, port);
    reply_bulk_str(c, uri);
    free(uri);
}

/* Does it take a grant for every transfer? */
static bool is_granted(const char *uri) {
    const struct transport_ops *t = transport_find(uri);
    return t != NULL && (t->flags & TRANSPORT_GRANTED) != 0;
}

static void reply_own_endpoints(struct client *c, bool direct) {
    const char *shm = direct && embedded.host != NULL ? host_shm_uri(embedded.host) : NULL;
    uint16_t port = embedded.host != NULL ? host_data_port(embedded.host) : 0;
    reply_array(c, (size_t)(shm != NULL) + (port != 0));
    if (shm != NULL) reply_bulk_str(c, shm);
    if (port != 0) reply_own(c, span_str(host_data_scheme(embedded.host)), port);
}

/* A node on this machine that came over the loopback: others reach it where they reached us. */
static void reply_uri(struct client *c, const struct cluster_segment *g, const char *uri,
                      uint16_t wildcard_port) {
    if (g->loopback && wildcard_port != 0)
        reply_own(c, span_of(uri, strcspn(uri, ":")), wildcard_port);
    else
        reply_bulk_str(c, uri);
}

void reach_reply_endpoints(struct client *c, const struct cluster_segment *g, bool direct) {
    if (g->embedded) {
        reply_own_endpoints(c, direct);
        return;
    }
    size_t n = 0;
    void *cookie = reply_deferred(c);
    for (size_t i = 0; i < g->n_endpoints; i++) {
        if (!direct && !is_granted(g->endpoints[i])) continue;
        reply_uri(c, g, g->endpoints[i], g->wildcard_port[i]);
        n++;
    }
    reply_deferred_array(c, cookie, n);
}

/* --- keys --- */

/* How the embedded segment is reached by a transport that announces itself. */
struct own_key {
    struct buf uri, key[2];
};

static void own_key_free(struct own_key *k) {
    buf_free(&k->uri);
    for (int i = 0; i < 2; i++) buf_free(&k->key[i]);
}

/* false: not by that one. */
static bool own_key_get(uint32_t segment, const char *scheme, struct own_key *k) {
    struct host_segment_info info;
    *k = (struct own_key){0};
    if (embedded.host == NULL) return false;
    for (unsigned slot = 0; host_slot_get(embedded.host, slot, &info); slot++) {
        if (info.segment_epoch == 0 || info.id != segment) continue;
        tarn_status s = host_slot_key(embedded.host, slot, scheme, &k->uri, &k->key[0], &k->key[1]);
        buf_append_char(&k->uri, '\0');
        if (s == TARN_OK) return true;
        own_key_free(k);
        return false;
    }
    return false;
}

static void reply_key(struct client *c, bool may, struct span key) {
    reply_bulk(c, may ? key : span_of(NULL, 0));
}

static void reply_own_keys(struct client *c, uint32_t segment, bool direct, bool may_read,
                           bool may_write) {
    void *cookie = reply_deferred(c);
    const struct transport_ops *ops;
    size_t n = 0;
    for (size_t i = 0; (ops = transport_at(i)) != NULL; i++) {
        struct own_key k;
        if (!direct && !is_granted(ops->scheme)) continue;
        if (!own_key_get(segment, ops->scheme, &k)) continue;
        reply_array(c, 3);
        reply_bulk_str(c, k.uri.data);
        reply_key(c, may_read, span_of(k.key[0].data, k.key[0].len));
        reply_key(c, may_write, span_of(k.key[1].data, k.key[1].len));
        own_key_free(&k);
        n++;
    }
    reply_deferred_array(c, cookie, n);
}

void reach_reply_keys(struct client *c, const struct cluster_segment *g, bool direct, bool may_read,
                      bool may_write) {
    const struct cluster_key *keys[CLUSTER_KEYS_MAX];
    if (g->embedded) {
        reply_own_keys(c, g->id, direct, may_read, may_write);
        return;
    }
    void *cookie = reply_deferred(c);
    size_t shown = 0, n = cluster_segment_keys(g->id, keys);
    for (size_t i = 0; i < n; i++) {
        if (!direct && !is_granted(keys[i]->uri)) continue;
        shown++;
        reply_array(c, 3);
        reply_uri(c, g, keys[i]->uri, keys[i]->wildcard_port);
        reply_key(c, may_read, keys[i]->key[0]);
        reply_key(c, may_write, keys[i]->key[1]);
    }
    reply_deferred_array(c, cookie, shown);
}

/* Clients that found no key ask again only where there may be one some time. */
void reach_reply_transports(struct client *c, const struct cluster_segment *g, bool direct) {
    const struct transport_ops *ops;
    struct cluster_report r;
    void *cookie = reply_deferred(c);
    size_t n = 0;
    if (g->embedded) {
        for (size_t i = 0; (ops = transport_at(i)) != NULL; i++) {
            if ((ops->flags & TRANSPORT_ANNOUNCES) == 0) continue;
            if (!direct && !is_granted(ops->scheme)) continue;
            reply_bulk_str(c, ops->scheme);
            n++;
        }
    } else {
        const struct cluster_node *node = cluster_node_find(span_str(g->node));
        for (size_t i = 0; node != NULL && cluster_node_report_get(node, i, &r); i++) {
            if (!direct && !is_granted(r.scheme)) continue;
            reply_bulk_str(c, r.scheme);
            n++;
        }
    }
    reply_deferred_array(c, cookie, n);
}

/* --- for modules --- */

struct segment_walk {
    bool (*each)(void *arg, const struct tarn_segment *segment);
    void *arg;
};

static bool reach_tell_segment(const struct segment_walk *w, uint32_t id, const char *uri,
                               struct span read_key, struct span write_key) {
    struct store_segment_info s;
    struct cluster_segment g;
    if (!store_segment_get(books, id, &s) || !cluster_segment_get(id, &g)) return true;
    struct tarn_segment segment = {.id = id,
                                   .epoch = g.epoch,
                                   .size = s.size,
                                   .name = g.name,
                                   .node = g.node,
                                   .machine = g.machine,
                                   .uri = uri,
                                   .key = {read_key, write_key}};
    return w->each(w->arg, &segment);
}

static bool node_segment(void *arg, uint32_t id, const struct cluster_key *k) {
    return reach_tell_segment(arg, id, k->uri, k->key[0], k->key[1]);
}

void reach_each_segment(const char *scheme,
                        bool (*each)(void *arg, const struct tarn_segment *segment), void *arg) {
    struct segment_walk w = {each, arg};
    struct host_segment_info info;
    for (unsigned slot = 0; embedded.host != NULL && host_slot_get(embedded.host, slot, &info);
         slot++) {
        struct own_key k;
        if (info.segment_epoch == 0 || !own_key_get(info.id, scheme, &k)) continue;
        bool more =
            reach_tell_segment(&w, info.id, k.uri.data, span_of(k.key[0].data, k.key[0].len),
                               span_of(k.key[1].data, k.key[1].len));
        own_key_free(&k);
        if (!more) return;
    }
    cluster_each_key(scheme, node_segment, &w);
}

struct report_walk {
    bool (*each)(void *arg, const char *node, const char *machine, uint64_t age_ms,
                 struct span report);
    void *arg;
};

static bool node_report(void *arg, const struct cluster_report *r) {
    const struct report_walk *w = arg;
    return w->each(w->arg, r->node, r->machine, r->age_ms, r->text);
}

void reach_each_report(const char *scheme,
                       bool (*each)(void *arg, const char *node, const char *machine,
                                    uint64_t age_ms, struct span report),
                       void *arg) {
    struct report_walk w = {each, arg};
    struct buf own = {NULL, 0, 0};
    bool more = true;
    if (embedded.host != NULL) host_describe(embedded.host, scheme, &own);
    if (own.len > 0) more = each(arg, "", core_machine(), 0, span_of(own.data, own.len));
    buf_free(&own);
    if (more) cluster_each_report(scheme, node_report, &w);
}
