/* OBJECT: how a value is kept, from the books. Looking is no access. */
#include <string.h>
#include "commands/debug.h"
#include "front/families.h"

struct object *object_argument(struct client *c) {
    struct object *o = store_find(books, c->argv[2]);
    if (!o) reply_null(c);
    return o;
}

const char *object_encoding(const struct object *o) {
    struct span value;
    int64_t number;
    enum { EMBSTR_MAX = 44 };
    if (store_object_inline(o, &value) && span_to_i64(value, &number)) return "int";
    return store_object_size(books, o) <= EMBSTR_MAX ? "embstr" : "raw";
}

void cmd_object_encoding(struct client *c) {
    struct object *o = object_argument(c);
    if (o) reply_bulk_str(c, object_encoding(o));
}

/* The books do not keep what the policy does not ask for. */
void cmd_object_freq(struct client *c) {
    struct object *o = object_argument(c);
    if (!o) return;
    if (!store_policy_counts(books))
        reply_error(c,
                    "An LFU maxmemory policy is not selected, access frequency not tracked. Please "
                    "note that eviction-policy is %s: lfu and s3fifo count.",
                    store_policy_name(books));
    else
        reply_int(c, store_object_freq(books, o));
}

/* With all policies: the time of the last access is in every record. */
void cmd_object_idletime(struct client *c) {
    struct object *o = object_argument(c);
    if (o) reply_int(c, (int64_t)(store_object_idle_ms(books, o) / 1000));
}

void cmd_object_refcount(struct client *c) {
    struct object *o = object_argument(c);
    if (o) reply_int(c, 1 + (int64_t)store_object_refs(books, o));
}
