/* The names of categories. */
#include "acl/acl.h"

#include <string.h>
#include "base/assert.h"

static const char *const names[] = {
    "keyspace", "read",        "write",      "set",         "sortedset", "list",  "hash",  "string",
    "bitmap",   "hyperloglog", "geo",        "stream",      "pubsub",    "admin", "fast",  "slow",
    "blocking", "dangerous",   "connection", "transaction", "scripting", "pool",  "direct"};
static_assert(ARRAY_LEN(names) == ACL_CATEGORIES, "as many as the header says");

static char added[32 - ACL_CATEGORIES][ACL_CATEGORY_NAME_MAX + 1];
static unsigned n_added;

unsigned acl_categories(void) {
    return ACL_CATEGORIES + n_added;
}

const char *acl_category_name(unsigned i) {
    if (i < ARRAY_LEN(names)) return names[i];
    return i < acl_categories() ? added[i - ACL_CATEGORIES] : NULL;
}

bool acl_category_find(struct span name, unsigned *i_p) {
    for (unsigned i = 0; i < acl_categories(); i++)
        if (span_case_eq(name, acl_category_name(i))) {
            *i_p = i;
            return true;
        }
    return false;
}

tarn_status acl_category_add(const char *name) {
    unsigned i;
    if (span_case_eq(span_str(name), "all")) return TARN_EEXISTS;
    if (acl_category_find(span_str(name), &i)) return i < ACL_CATEGORIES ? TARN_EEXISTS : TARN_OK;
    if (n_added == ARRAY_LEN(added) || strlen(name) > ACL_CATEGORY_NAME_MAX) return TARN_ELIMIT;
    strcpy(added[n_added++], name);
    return TARN_OK;
}
