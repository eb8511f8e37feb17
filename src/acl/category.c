/* The names of categories. */
#include "acl/acl.h"
#include "base/assert.h"

static const char *const names[] = {
    "keyspace", "read",        "write",      "set",         "sortedset", "list",  "hash",  "string",
    "bitmap",   "hyperloglog", "geo",        "stream",      "pubsub",    "admin", "fast",  "slow",
    "blocking", "dangerous",   "connection", "transaction", "scripting", "pool",  "direct"};
static_assert(ARRAY_LEN(names) == ACL_CATEGORIES, "as many as the header says");

const char *acl_category_name(unsigned i) {
    return i < ARRAY_LEN(names) ? names[i] : NULL;
}

bool acl_category_find(struct span name, unsigned *i_p) {
    for (unsigned i = 0; i < ARRAY_LEN(names); i++)
        if (span_case_eq(name, names[i])) {
            *i_p = i;
            return true;
        }
    return false;
}
