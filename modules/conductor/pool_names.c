#include "conductor/pool_names.h"

#include <inttypes.h>
#include <stdlib.h>
#include "base/assert.h"

static const char *const hashings[] = {[POOL_HASH_TARN] = "TARN", [POOL_HASH_SGLANG] = "SGLANG"};
static const char *const kinds[] = {
    [TARN_POOL_FULL] = "FULL", [TARN_POOL_STATE] = "STATE", [TARN_POOL_WINDOW] = "WINDOW"};

int pool_kind_of(struct span word) {
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (span_case_eq(word, kinds[i])) return (int)i;
    return -1;
}

static enum pool_hashing hashing_of(struct span word) {
    return span_eq(word, SPAN("TARN"))     ? POOL_HASH_TARN
           : span_eq(word, SPAN("SGLANG")) ? POOL_HASH_SGLANG
                                           : 0;
}

size_t pool_names_add(struct pool_names *x, struct span name, struct tarn_pool_group group) {
    if (x->n == x->room) {
        x->room = x->room == 0 ? 8 : 2 * x->room;
        x->name = xrealloc(x->name, x->room * sizeof(*x->name));
        x->group = xrealloc(x->group, x->room * sizeof(*x->group));
    }
    x->name[x->n] = name;
    x->group[x->n] = group;
    return x->n++;
}

void pool_names_free(struct pool_names *x) {
    free(x->name);
    free(x->group);
    *x = (struct pool_names){0};
}

/* --- as text --- */

void pool_names_write(const struct pool_names *x, struct buf *out) {
    buf_printf(out, "%s %" PRIu32 " %" PRIu32 " %s", hashings[x->hashing], x->unit, x->align,
               x->revision.data != NULL ? "=" : "-");
    if (x->revision.data != NULL) buf_append(out, x->revision.data, x->revision.len);
    for (size_t i = 0; i < x->n; i++) {
        const struct tarn_pool_group *g = &x->group[i];
        buf_append_char(out, ' ');
        buf_append(out, x->name[i].data, x->name[i].len);
        buf_printf(out, " %s %" PRIu32 " %" PRIu32 " %" PRIu32 " %d", kinds[g->kind], g->block,
                   g->unit, g->window, g->drop);
    }
}

static struct span word_next(struct span *text) {
    const char *blank = text->len > 0 ? memchr(text->data, ' ', text->len) : NULL;
    size_t len = blank != NULL ? (size_t)(blank - text->data) : text->len;
    struct span word = span_of(text->data, len);
    len += blank != NULL;
    *text = span_of(text->data + len, text->len - len);
    return word;
}

static bool number_next(struct span *text, uint32_t *number_p) {
    uint64_t number;
    if (!span_to_u64(word_next(text), &number) || number > INT32_MAX) return false;
    *number_p = (uint32_t)number;
    return true;
}

static bool group_next(struct span *text, struct pool_names *x) {
    struct tarn_pool_group g = {0};
    uint32_t drop;
    struct span name = word_next(text);
    int kind = pool_kind_of(word_next(text));
    if (name.len == 0 || kind < 0 || !number_next(text, &g.block) || !number_next(text, &g.unit) ||
        !number_next(text, &g.window) || !number_next(text, &drop))
        return false;
    g.kind = (enum tarn_pool_kind)kind;
    g.drop = drop != 0;
    pool_names_add(x, name, g);
    return true;
}

bool pool_names_read(struct span text, struct pool_names *x) {
    x->n = 0;
    x->hashing = hashing_of(word_next(&text));
    if (x->hashing == 0 || !number_next(&text, &x->unit) || !number_next(&text, &x->align) ||
        x->unit == 0)
        return false;
    struct span revision = word_next(&text);
    if (revision.len == 0) return false;
    x->revision =
        revision.data[0] == '=' ? span_of(revision.data + 1, revision.len - 1) : span_of(NULL, 0);
    while (text.len > 0)
        if (!group_next(&text, x)) return false;
    return x->n > 0;
}
