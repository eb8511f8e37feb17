#include "module/durable.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/assert.h"
#include "base/htab.h"
#include "module/loader.h"

struct durable_entry {
    struct htab_node node; /* first: entries are found by it */
    XXH128_hash_t sum;     /* of its record */
    uint32_t value_len, value_cap;
    uint16_t name_len;
    char bytes[]; /* name, value */
};

struct durable_space {
    struct durable *all;
    struct htab entries;
    uint64_t bytes;
    size_t module_len;
    char module[MODULE_NAME_MAX];
};

struct durable {
    struct durable_space *space[DURABLE_SPACES_MAX];
    size_t spaces;
    XXH128_hash_t sum;  /* of all entries, xored */
    struct buf scratch; /* a record */
};

struct durable *durable_create(void) {
    return xcalloc(1, sizeof(struct durable));
}

void durable_destroy(struct durable **d_p) {
    struct durable *d = *d_p;
    *d_p = NULL;
    if (d == NULL) return;
    durable_clear(d);
    for (size_t i = 0; i < d->spaces; i++) {
        htab_free(&d->space[i]->entries);
        free(d->space[i]);
    }
    buf_free(&d->scratch);
    free(d);
}

/* --- spaces --- */

static bool is_space_name(struct span module) {
    if (module.len == 0 || module.len > MODULE_NAME_MAX) return false;
    for (size_t i = 0; i < module.len; i++) {
        char c = module.data[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9')) return false;
    }
    return true;
}

struct durable_space *durable_space_of(struct durable *d, struct span module) {
    for (size_t i = 0; i < d->spaces; i++)
        if (span_eq(module, durable_space_module(d->space[i]))) return d->space[i];
    if (d->spaces == DURABLE_SPACES_MAX || !is_space_name(module)) return NULL;
    struct durable_space *s = xcalloc(1, sizeof(*s));
    s->all = d;
    memcpy(s->module, module.data, module.len);
    s->module_len = module.len;
    return d->space[d->spaces++] = s;
}

struct durable_space *durable_space_at(const struct durable *d, size_t i) {
    return i < d->spaces ? d->space[i] : NULL;
}

struct span durable_space_module(const struct durable_space *s) {
    return span_of(s->module, s->module_len);
}

uint64_t durable_entries(const struct durable_space *s) {
    return s->entries.count;
}

uint64_t durable_bytes(const struct durable_space *s) {
    return s->bytes;
}

/* --- entries --- */

static struct span entry_name(const struct durable_entry *e) {
    return span_of(e->bytes, e->name_len);
}

static struct span entry_value(const struct durable_entry *e) {
    return span_of(e->bytes + e->name_len, e->value_len);
}

static uint64_t entry_bytes(size_t name, size_t value) {
    return DURABLE_ENTRY_OVERHEAD + name + value;
}

static bool entry_is(const struct htab_node *node, const void *key) {
    return span_eq(entry_name((const struct durable_entry *)(const void *)node),
                   *(const struct span *)key);
}

static struct durable_entry *entry_find(const struct durable_space *s, struct span name) {
    struct htab_node *n = htab_find(&s->entries, hash_bytes(name.data, name.len), entry_is, &name);
    return (struct durable_entry *)(void *)n;
}

static void sum_turn(struct durable *d, XXH128_hash_t sum) {
    d->sum.low64 ^= sum.low64;
    d->sum.high64 ^= sum.high64;
}

/* It is what it is from now on. */
static void entry_count(struct durable_space *s, struct durable_entry *e) {
    struct buf *b = &s->all->scratch;
    buf_clear(b);
    durable_record_write(b, &(struct durable_change){DURABLE_SET, durable_space_module(s),
                                                     entry_name(e), entry_value(e)});
    e->sum = XXH3_128bits(b->data, b->len);
    sum_turn(s->all, e->sum);
    s->bytes += entry_bytes(e->name_len, e->value_len);
}

static void entry_discount(struct durable_space *s, const struct durable_entry *e) {
    sum_turn(s->all, e->sum);
    s->bytes -= entry_bytes(e->name_len, e->value_len);
}

static void entry_free(struct durable_space *s, struct durable_entry *e) {
    entry_discount(s, e);
    htab_remove(&s->entries, &e->node);
    free(e);
}

/* A small value that changes often stays where it is. */
static struct durable_entry *entry_create(struct durable_space *s, struct span name, size_t value) {
    size_t cap = (value + 15) & ~(size_t)15;
    struct durable_entry *e = xcalloc(1, sizeof(*e) + name.len + cap);
    e->value_cap = (uint32_t)cap;
    e->name_len = (uint16_t)name.len;
    memcpy(e->bytes, name.data, name.len);
    htab_insert(&s->entries, &e->node, hash_bytes(name.data, name.len));
    return e;
}

tarn_status durable_set(struct durable_space *s, struct span name, struct span value,
                        uint64_t limit) {
    if (name.len == 0 || name.len > DURABLE_NAME_MAX || value.len > DURABLE_VALUE_MAX)
        return TARN_EINVAL;
    struct durable_entry *e = entry_find(s, name);
    uint64_t is = e != NULL ? entry_bytes(e->name_len, e->value_len) : 0,
             will = entry_bytes(name.len, value.len);
    if (will > is && s->bytes - is + will > limit) return TARN_ELIMIT;
    if (e != NULL && e->value_cap >= value.len && e->value_cap <= 2 * value.len + 64) {
        entry_discount(s, e);
    } else {
        struct durable_entry *fresh = entry_create(s, name, value.len);
        if (value.len > 0) memcpy(fresh->bytes + name.len, value.data, value.len);
        fresh->value_len = (uint32_t)value.len;
        if (e != NULL) entry_free(s, e); /* behind the copy: value may be of it */
        entry_count(s, fresh);
        return TARN_OK;
    }
    if (value.len > 0) memmove(e->bytes + e->name_len, value.data, value.len);
    e->value_len = (uint32_t)value.len;
    entry_count(s, e);
    return TARN_OK;
}

bool durable_remove(struct durable_space *s, struct span name) {
    struct durable_entry *e = entry_find(s, name);
    if (e != NULL) entry_free(s, e);
    return e != NULL;
}

bool durable_find(const struct durable_space *s, struct span name, struct span *value_p) {
    const struct durable_entry *e = entry_find(s, name);
    if (e != NULL) *value_p = entry_value(e);
    return e != NULL;
}

struct visit {
    bool (*fn)(void *arg, struct span name, struct span value);
    void *arg;
    bool stopped;
};

static void entry_visit(void *arg, struct htab_node *node) {
    struct visit *v = arg;
    const struct durable_entry *e = (const struct durable_entry *)(const void *)node;
    if (!v->stopped) v->stopped = !v->fn(v->arg, entry_name(e), entry_value(e));
}

void durable_each(const struct durable_space *s,
                  bool (*fn)(void *arg, struct span name, struct span value), void *arg) {
    struct visit v = {fn, arg, false};
    htab_each(&s->entries, entry_visit, &v);
}

static void entry_drop(void *arg, struct htab_node *node) {
    entry_free(arg, (struct durable_entry *)(void *)node);
}

void durable_clear(struct durable *d) {
    for (size_t i = 0; i < d->spaces; i++) {
        htab_each(&d->space[i]->entries, entry_drop, d->space[i]);
        htab_free(&d->space[i]->entries);
    }
}

void durable_digest(const struct durable *d, uint8_t sum[16]) {
    XXH128_canonical_t c = {{0}};
    if (d->sum.low64 != 0 || d->sum.high64 != 0) XXH128_canonicalFromHash(&c, d->sum);
    memcpy(sum, c.digest, sizeof(c.digest));
}

/* --- records --- */

struct durable_head {
    uint32_t length;
    uint8_t kind, format, what, module_len;
    uint16_t name_len;
} __attribute__((packed));
static_assert(sizeof(struct durable_head) == 10, "head");

void durable_record_write(struct buf *out, const struct durable_change *x) {
    size_t value = x->what == DURABLE_SET ? x->value.len : 0;
    struct durable_head h = {.length =
                                 (uint32_t)(sizeof(h) - 4 + x->module.len + x->name.len + value),
                             .kind = DURABLE_RECORD,
                             .format = DURABLE_FORMAT,
                             .what = (uint8_t)x->what,
                             .module_len = (uint8_t)x->module.len,
                             .name_len = (uint16_t)x->name.len};
    buf_append(out, &h, sizeof(h));
    buf_append(out, x->module.data, x->module.len);
    buf_append(out, x->name.data, x->name.len);
    if (value > 0) buf_append(out, x->value.data, value);
}

tarn_status durable_record_read(struct span record, struct durable_change *x, const char **why_p) {
    struct durable_head h;
    *why_p = "the record of a module's state makes no sense";
    if (record.len < sizeof(h)) return TARN_EPROTO;
    memcpy(&h, record.data, sizeof(h));
    if (h.format != DURABLE_FORMAT) {
        *why_p = "the record of a module's state is of another version than this program knows";
        return TARN_EPROTO;
    }
    size_t names = (size_t)h.module_len + h.name_len;
    if (record.len - sizeof(h) < names) return TARN_EPROTO;
    struct durable_change c = {
        .what = (enum durable_what)h.what,
        .module = span_of(record.data + sizeof(h), h.module_len),
        .name = span_of(record.data + sizeof(h) + h.module_len, h.name_len),
        .value = span_of(record.data + sizeof(h) + names, record.len - sizeof(h) - names)};
    if ((c.what != DURABLE_SET && c.what != DURABLE_GONE) || !is_space_name(c.module) ||
        c.name.len == 0 || c.name.len > DURABLE_NAME_MAX || c.value.len > DURABLE_VALUE_MAX ||
        (c.what == DURABLE_GONE && c.value.len > 0))
        return TARN_EPROTO;
    *x = c;
    return TARN_OK;
}

tarn_status durable_apply(struct durable *d, struct span record, struct durable_change *x,
                          const char **why_p) {
    tarn_status status = durable_record_read(record, x, why_p);
    if (status != TARN_OK) return status;
    struct durable_space *s = durable_space_of(d, x->module);
    if (s == NULL) {
        *why_p = "there is state of too many modules";
        return TARN_EPROTO;
    }
    if (x->what == DURABLE_GONE)
        (void)durable_remove(s, x->name);
    else
        status = durable_set(s, x->name, x->value, UINT64_MAX);
    TARN_ASSERT(status == TARN_OK); /* its lengths are right */
    return TARN_OK;
}

/* --- everything --- */

struct telling {
    struct span module;
    struct buf *out;
    unsigned n;
};

static void entry_tell(void *arg, struct htab_node *node) {
    struct telling *t = arg;
    const struct durable_entry *e = (const struct durable_entry *)(const void *)node;
    durable_record_write(
        t->out, &(struct durable_change){DURABLE_SET, t->module, entry_name(e), entry_value(e)});
    t->n += 1 + e->value_len / 4096;
}

bool durable_walk_step(const struct durable *d, struct durable_walk *x, struct buf *out,
                       unsigned *budget) {
    while (!x->over && *budget > 0) {
        const struct durable_space *s = durable_space_at(d, x->space);
        struct telling t = {.out = out, .n = 1};
        if (s == NULL) {
            x->over = true;
            break;
        }
        t.module = durable_space_module(s);
        if (s->entries.count > 0) x->cursor = htab_scan(&s->entries, x->cursor, entry_tell, &t);
        if (s->entries.count == 0 || x->cursor == 0) {
            x->cursor = 0;
            x->space++;
        }
        *budget -= t.n < *budget ? t.n : *budget;
    }
    return x->over;
}
