#include "store/policy.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"

const struct policy_ops *policy_find(const char *name) {
#define POLICY(policy) &policy_##policy,
    static const struct policy_ops *const all[] = {&policy_noeviction, STORE_POLICIES(POLICY)};
#undef POLICY
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}

bool policy_open(struct policy *p, const struct policy_ops *ops, struct records *records,
                 const struct store_config *config) {
    TARN_ASSERT(ops->open && ops->close && ops->insert && ops->access && ops->unlink && ops->pop &&
                ops->give_back && ops->evicted && ops->memory);
    *p = (struct policy){.ops = ops, .records = records, .config = config, .seed = 2463534242u};
    p->state = xcalloc(1, ops->state_size);
    ops->open(p);
    return true;
}

void policy_close(struct policy *p) {
    if (!p->ops) return;
    p->ops->close(p);
    free(p->state);
    *p = (struct policy){0};
}

object_ref list_new(struct records *r) {
    struct object *o = record_alloc(r, sizeof(struct object));
    TARN_ASSERT(o != NULL);
    memset(o, 0, sizeof(*o));
    o->prev = o->next = record_ref(r, o);
    return o->prev;
}

void list_free(struct records *r, object_ref head) {
    record_free(r, record_get(r, head), sizeof(struct object));
}
