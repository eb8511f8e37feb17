/* What nodes tell about transports that need more than an address: packed keys of their segments,
 * and reports of their devices. Both are passed on as they are, to clients and to people; the
 * master makes nothing of them.
 *
 * Keys are worth something only in the process that made them, so they go when the node is down or
 * joins anew. All of them together are bounded, however many nodes there are. */
#include "cluster/internal.h"

#include <stdlib.h>
#include <string.h>

static size_t size_of(const struct cluster_key *k) {
    return sizeof(*k) + strlen(k->uri) + 1 + k->key[0].len + k->key[1].len;
}

/* --- keys of segments --- */

/* One block: the struct, the URI, both keys. */
static struct cluster_key *key_new(const struct cluster_node *n,
                                   const struct cluster_key_told *told) {
    struct uri u;
    uri_parse(told->uri, &u);
    char *uri = uri_resolve(told->uri, &u, node_host(n));
    size_t uri_size = strlen(uri) + 1;
    struct cluster_key *k = xmalloc(sizeof(*k) + uri_size + told->key[0].len + told->key[1].len);
    char *at = (char *)(k + 1);
    *k = (struct cluster_key){.uri = at,
                              .wildcard_port = uri_is_wildcard(&u) ? u.port : 0,
                              .scheme_len = u.scheme.len,
                              .refs = 1};
    memcpy(at, uri, uri_size);
    at += uri_size;
    for (int i = 0; i < 2; i++) {
        size_t len = told->key[i].len;
        if (len > 0) memcpy(at, told->key[i].data, len);
        k->key[i] = span_of(at, len);
        at += len;
    }
    free(uri);
    cluster.keys++;
    cluster.told_bytes += size_of(k);
    return k;
}

struct cluster_key *cluster_key_ref(const struct cluster_key *key) {
    struct cluster_key *k = (struct cluster_key *)(uintptr_t)key;
    k->refs++;
    return k;
}

void cluster_key_unref(struct cluster_key **key_p) {
    struct cluster_key *k = *key_p;
    *key_p = NULL;
    if (k == NULL || --k->refs > 0) return;
    cluster.keys--;
    cluster.told_bytes -= size_of(k);
    free(k);
}

bool cluster_key_is_of(const struct cluster_key *k, const char *scheme) {
    return span_eq(span_of(k->uri, k->scheme_len), span_str(scheme));
}

void keys_clear(struct node_segment *g) {
    while (g->n_keys > 0) cluster_key_unref(&g->key[--g->n_keys]);
}

void keys_set(struct node_segment *g, const struct cluster_key_told *keys, size_t n) {
    TARN_ASSERT(n <= CLUSTER_KEYS_MAX);
    keys_clear(g);
    for (size_t i = 0; i < n; i++) g->key[g->n_keys++] = key_new(g->node, &keys[i]);
}

static bool same_scheme(const struct cluster_key_told *a, const struct cluster_key_told *b) {
    struct uri u, v;
    return uri_parse(a->uri, &u) && uri_parse(b->uri, &v) && span_eq(u.scheme, v.scheme);
}

tarn_status keys_check(const struct cluster_key_told *keys, size_t n, const char **why_p) {
    struct uri u;
    if (n > CLUSTER_KEYS_MAX)
        return cluster_refuse(why_p, TARN_EINVAL, "a segment has at most 4 keys");
    for (size_t i = 0; i < n; i++) {
        if (!uri_parse(keys[i].uri, &u))
            return cluster_refuse(
                why_p, TARN_EINVAL,
                "the uri of a key must be scheme://host:port or scheme:///path, of up to "
                "255 characters");
        if (keys[i].key[0].len > CLUSTER_KEY_MAX || keys[i].key[1].len > CLUSTER_KEY_MAX)
            return cluster_refuse(why_p, TARN_EINVAL,
                                  "read-key and write-key must be of up to 65536 bytes");
        for (size_t j = 0; j < i; j++)
            if (same_scheme(&keys[i], &keys[j]))
                return cluster_refuse(why_p, TARN_EINVAL,
                                      "two keys of a segment must not be of one scheme");
    }
    return TARN_OK;
}

bool keys_fit(const struct cluster_key_told *keys, size_t n) {
    uint64_t bytes = cluster.told_bytes;
    for (size_t i = 0; i < n; i++)
        bytes += sizeof(struct cluster_key) + URI_MAX + 1 + keys[i].key[0].len + keys[i].key[1].len;
    return n == 0 || bytes <= CLUSTER_TOLD_MAX;
}

tarn_status cluster_segment_keys_set(struct cluster_node *node, struct span name,
                                     const struct cluster_key_told *keys, size_t n,
                                     const char **why_p) {
    struct store_segment_info info;
    struct node_segment *g =
        store_segment_by_name(cluster.store, name, &info) ? segment_at(info.id) : NULL;
    if (g == NULL || g->node != node || g->leaving || segment_is_far(g) || g->join != node->joins)
        return TARN_ENOSEGMENT;
    tarn_status status = keys_check(keys, n, why_p);
    if (status != TARN_OK) return status;
    if (!keys_fit(keys, n))
        return cluster_refuse(why_p, TARN_ELIMIT,
                              "keys and reports of all nodes take 128 MiB already");
    keys_set(g, keys, n);
    return TARN_OK;
}

size_t cluster_segment_keys(uint32_t id, const struct cluster_key *keys[CLUSTER_KEYS_MAX]) {
    const struct node_segment *g = segment_at(id);
    size_t n = g != NULL ? g->n_keys : 0;
    for (size_t i = 0; i < n; i++) keys[i] = g->key[i];
    return n;
}

const struct cluster_key *cluster_segment_key(uint32_t id, const char *scheme) {
    const struct node_segment *g = segment_at(id);
    for (size_t i = 0; g != NULL && i < g->n_keys; i++)
        if (cluster_key_is_of(g->key[i], scheme)) return g->key[i];
    return NULL;
}

/* --- reports of nodes --- */

static void report_free(struct node_report **report_p) {
    struct node_report *r = *report_p;
    *report_p = NULL;
    if (r == NULL) return;
    cluster.reports--;
    cluster.told_bytes -= sizeof(*r) + r->len;
    free(r);
}

void keys_of_node_clear(struct cluster_node *n) {
    struct node_segment *g;
    TAILQ_FOREACH(g, &n->segments, of_node) keys_clear(g);
    for (size_t i = 0; i < CLUSTER_REPORTS_MAX; i++) report_free(&n->report[i]);
}

/* It is shown on terminals. */
static bool valid_report(struct span s) {
    if (s.len > CLUSTER_REPORT_MAX) return false;
    for (size_t i = 0; i < s.len; i++)
        if ((s.data[i] < ' ' || s.data[i] > '~') && s.data[i] != '\n') return false;
    return true;
}

/* Where the report of that scheme is, or goes. NULL: others are in the way. */
static struct node_report **report_place(struct cluster_node *n, struct span scheme) {
    struct node_report **empty = NULL;
    for (size_t i = 0; i < CLUSTER_REPORTS_MAX; i++) {
        struct node_report *r = n->report[i];
        if (r != NULL && span_eq(span_str(r->scheme), scheme)) return &n->report[i];
        if (r == NULL && empty == NULL) empty = &n->report[i];
    }
    return empty;
}

tarn_status cluster_node_report(struct cluster_node *n, struct span scheme, struct span text,
                                const char **why_p) {
    if (scheme.len == 0 || scheme.len > CLUSTER_SCHEME_MAX || !bytes_within(scheme, 'a', 'z'))
        return cluster_refuse(why_p, TARN_EINVAL, "REPORT: a scheme is 1 to 15 of a-z");
    if (!valid_report(text))
        return cluster_refuse(why_p, TARN_EINVAL,
                              "REPORT must be lines of printable characters, of up to 32768 bytes");
    struct node_report **place = report_place(n, scheme);
    if (place == NULL)
        return cluster_refuse(why_p, TARN_EINVAL, "REPORT: a node reports of at most 4 schemes");
    report_free(place);
    if (text.len == 0) return TARN_OK;
    if (cluster.told_bytes + sizeof(struct node_report) + text.len > CLUSTER_TOLD_MAX) {
        cluster.figures.node_reports_dropped++; /* it is no reason to lose the node */
        return TARN_OK;
    }
    struct node_report *r = xmalloc(sizeof(*r) + text.len);
    *r = (struct node_report){.at_ms = cluster.now_ms, .len = text.len};
    memcpy(r->scheme, scheme.data, scheme.len);
    memcpy(r->text, text.data, text.len);
    *place = r;
    cluster.reports++;
    cluster.told_bytes += sizeof(*r) + r->len;
    return TARN_OK;
}

bool cluster_node_report_get(const struct cluster_node *n, size_t i,
                             struct cluster_report *report_p) {
    size_t seen = 0;
    for (size_t at = 0; at < CLUSTER_REPORTS_MAX; at++) {
        const struct node_report *r = n->report[at];
        if (r == NULL || seen++ < i) continue;
        *report_p = (struct cluster_report){.node = n->name,
                                            .machine = n->machine->name,
                                            .scheme = r->scheme,
                                            .age_ms = cluster.now_ms - r->at_ms,
                                            .text = span_of(r->text, r->len)};
        return true;
    }
    return false;
}

/* --- walks --- */

void cluster_each_key(const char *scheme,
                      bool (*each)(void *arg, uint32_t segment, const struct cluster_key *key),
                      void *arg) {
    for (uint32_t id = 0; id < cluster.segment_cap; id++) {
        const struct cluster_key *k = cluster_segment_key(id, scheme);
        if (k != NULL && !each(arg, id, k)) return;
    }
}

void cluster_each_report(const char *scheme,
                         bool (*each)(void *arg, const struct cluster_report *report), void *arg) {
    struct cluster_node *n;
    for (uint32_t at = 0; (n = cluster_node_next(&at)) != NULL;) {
        struct cluster_report r;
        for (size_t i = 0; cluster_node_report_get(n, i, &r); i++)
            if (strcmp(r.scheme, scheme) == 0 && !each(arg, &r)) return;
    }
}
