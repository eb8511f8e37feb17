#include "simulate/lists.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/near.h"
#include "store/store.h"

const char *const eviction_names[] = {
#define NAME(policy) #policy,
    STORE_POLICIES(NAME)
#undef NAME
};
const size_t eviction_count = ARRAY_LEN(eviction_names);

const char *option_refuse(const char *option, const char *text, const char *what) {
    const char *why;
    status_fail(TARN_EINVAL, &why, "%s: \"%s\" %s", option, text, what);
    return why;
}

const char *name_refuse(const char *option, const char *name, const char *const *known, size_t n) {
    const char *why;
    struct near near;
    struct buf all = {0};
    near_begin(&near, span_str(name));
    for (size_t i = 0; i < n; i++) {
        near_offer(&near, known[i]);
        buf_printf(&all, "%s%s", i > 0 ? ", " : "", known[i]);
    }
    buf_append_char(&all, '\0');
    if (near.word != NULL)
        status_fail(TARN_EINVAL, &why, "%s: there is no %s, did you mean %s?", option, name,
                    near.word);
    else
        status_fail(TARN_EINVAL, &why, "%s: there is no %s; there are %s", option, name, all.data);
    buf_free(&all);
    return why;
}

const char *names_read(struct names *list, const char *option, const char *text,
                       const char *const *known, size_t n_known) {
    for (const char *s = text;; s++) {
        size_t len = strcspn(s, ",");
        char *word = span_dup(span_of(s, len));
        if (list->n == PLAN_LIST_MAX) {
            free(word);
            return option_refuse(option, text, "has too many names");
        }
        list->v[list->n++] = word;
        if (known == NULL && len == 0) return option_refuse(option, text, "has an empty name");
        size_t i = known == NULL ? n_known : 0;
        while (i < n_known && strcmp(word, known[i]) != 0) i++;
        if (known != NULL && i == n_known) return name_refuse(option, word, known, n_known);
        s += len;
        if (*s == '\0') return NULL;
    }
}

static const char *numbers_refuse(const char *option, const char *text, double least, double most) {
    const char *why;
    status_fail(TARN_EINVAL, &why, "%s: \"%s\" is no list of numbers from %g to %g", option, text,
                least, most);
    return why;
}

const char *numbers_read(struct numbers *list, const char *option, const char *text, double least,
                         double most) {
    for (const char *s = text;; s++) {
        char *end;
        double v = strtod(s, &end);
        if (end == s || (*end != ',' && *end != '\0') || !(v >= least) || v > most)
            return numbers_refuse(option, text, least, most);
        if (list->n == PLAN_LIST_MAX) return option_refuse(option, text, "has too many numbers");
        list->v[list->n++] = v;
        if (*end == '\0') return NULL;
        s = end;
    }
}

const char *blocks_read(struct numbers *list, const char *option, const char *text, double least,
                        double most) {
    const char *why = numbers_read(list, option, text, least, most);
    for (size_t i = 0; why == NULL && i < list->n; i++)
        if (list->v[i] != floor(list->v[i]))
            why = option_refuse(option, text, "has a part of a block");
    return why;
}

void names_free(struct names *list) {
    for (size_t i = 0; i < list->n; i++) free((char *)(uintptr_t)list->v[i]);
    list->n = 0;
}

const char *option_named(const char *option, const char *what) {
    char text[512];
    const char *why;
    snprintf(text, sizeof(text), "%s", what);
    status_fail(TARN_EINVAL, &why, "%s %s", option, text);
    return why;
}
