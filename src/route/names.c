/* Names of models and adapters, each kept once. */
#include <stdlib.h>
#include "route/internal.h"

static bool name_same(const struct htab_node *node, const void *key) {
    const struct route_name *n = CONTAINER_OF(node, const struct route_name, node);
    return span_eq(span_str(n->text), *(const struct span *)key);
}

struct route_name *name_find(const struct route *r, struct span text) {
    struct htab_node *node =
        htab_find(&r->names, hash_bytes(text.data, text.len), name_same, &text);
    return node == NULL ? NULL : CONTAINER_OF(node, struct route_name, node);
}

struct route_name *name_get(struct route *r, struct span text) {
    struct route_name *n = name_find(r, text);
    if (n == NULL) {
        n = xcalloc(1, sizeof(*n) + text.len + 1);
        if (text.len > 0) memcpy(n->text, text.data, text.len);
        htab_insert(&r->names, &n->node, hash_bytes(text.data, text.len));
    }
    n->uses++;
    return n;
}

void name_put(struct route *r, struct route_name **name_p) {
    struct route_name *n = *name_p;
    *name_p = NULL;
    if (--n->uses > 0) return;
    htab_remove(&r->names, &n->node);
    free(n);
}
