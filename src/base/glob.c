#include "base/glob.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"

/* A pattern is an array of elements: a byte, any byte, any run of bytes, or one of the classes. */
enum { ELEMENT_ANY = 256, ELEMENT_STAR = 257, ELEMENT_CLASS = 258 };

struct glob_class {
    uint64_t bits[4];
};

struct glob {
    bool nocase;
    size_t count, fixed; /* elements; those that are no star: the shortest string that can match */
    uint32_t *element;
    struct glob_class *class;
    size_t classes;
};

static unsigned char glob_fold(bool nocase, unsigned char c) {
    return nocase ? (unsigned char)ascii_lower((char)c) : c;
}

static void class_add(struct glob_class *k, unsigned char c) {
    k->bits[c >> 6] |= UINT64_C(1) << (c & 63);
}

static void class_add_range(struct glob_class *k, unsigned from, unsigned to) {
    for (unsigned word = from >> 6; word <= to >> 6; word++) {
        unsigned low = word == from >> 6 ? from & 63 : 0, high = word == to >> 6 ? to & 63 : 63;
        k->bits[word] |= (UINT64_MAX << low) & (UINT64_MAX >> (63 - high));
    }
}

static bool class_has(const struct glob_class *k, unsigned char c) {
    return (k->bits[c >> 6] >> (c & 63)) & 1;
}

/* Reads the class whose '[' lies before at; returns the index behind it. */
static size_t class_read(struct span p, size_t at, bool nocase, struct glob_class *k) {
    bool negated = at < p.len && p.data[at] == '^';
    if (negated) at++;
    while (at < p.len) {
        unsigned char c = (unsigned char)p.data[at];
        if (c == '\\' && at + 1 < p.len) {
            class_add(k, glob_fold(nocase, (unsigned char)p.data[at + 1]));
            at += 2;
        } else if (c == ']') {
            break;
        } else if (at + 2 < p.len && p.data[at + 1] == '-') {
            unsigned char from = glob_fold(nocase, c),
                          to = glob_fold(nocase, (unsigned char)p.data[at + 2]);
            if (from > to) {
                unsigned char t = from;
                from = to;
                to = t;
            }
            class_add_range(k, from, to);
            at += 3;
        } else {
            class_add(k, glob_fold(nocase, c));
            at++;
        }
    }
    if (negated)
        for (size_t i = 0; i < ARRAY_LEN(k->bits); i++) k->bits[i] = ~k->bits[i];
    return at < p.len ? at + 1 : at; /* behind ']' */
}

static void glob_push(struct glob *g, uint32_t element) {
    if (element == ELEMENT_STAR && g->count > 0 && g->element[g->count - 1] == ELEMENT_STAR) return;
    g->element[g->count++] = element;
    if (element != ELEMENT_STAR) g->fixed++;
}

/* element and class have room for the longest result: one element per byte, one class per '['. */
static void glob_compile(struct glob *g, struct span p) {
    for (size_t at = 0; at < p.len;) {
        unsigned char c = (unsigned char)p.data[at++];
        if (c == '*') {
            glob_push(g, ELEMENT_STAR);
        } else if (c == '?') {
            glob_push(g, ELEMENT_ANY);
        } else if (c == '[') {
            struct glob_class *k = &g->class[g->classes];
            *k = (struct glob_class){{0}};
            at = class_read(p, at, g->nocase, k);
            glob_push(g, ELEMENT_CLASS + (uint32_t)g->classes++);
        } else {
            if (c == '\\' && at < p.len) c = (unsigned char)p.data[at++];
            glob_push(g, glob_fold(g->nocase, c));
        }
    }
}

static size_t count_classes(struct span p) {
    size_t n = 0;
    for (size_t i = 0; i < p.len; i++) n += p.data[i] == '[';
    return n;
}

struct glob *glob_create(struct span pattern, bool nocase) {
    struct glob *g = xcalloc(1, sizeof(*g));
    g->nocase = nocase;
    g->element = xmalloc((pattern.len + 1) * sizeof(*g->element));
    g->class = xmalloc((count_classes(pattern) + 1) * sizeof(*g->class));
    glob_compile(g, pattern);
    return g;
}

void glob_destroy(struct glob **glob_p) {
    struct glob *g = *glob_p;
    if (!g) return;
    free(g->element);
    free(g->class);
    free(g);
    *glob_p = NULL;
}

static bool glob_takes(const struct glob *g, uint32_t element, unsigned char c) {
    if (element < ELEMENT_ANY) return element == glob_fold(g->nocase, c);
    if (element == ELEMENT_ANY) return true;
    return class_has(&g->class[element - ELEMENT_CLASS], glob_fold(g->nocase, c));
}

bool glob_match(const struct glob *g, struct span s, size_t *work_p) {
    if (s.len < g->fixed) return false;
    size_t at = 0, element = 0, steps = 0;
    size_t star = SIZE_MAX, star_at = 0; /* the last star, and where what follows it was tried */
    bool matched = true;
    while (at < s.len) {
        steps++;
        if (element < g->count && g->element[element] == ELEMENT_STAR) {
            star = element++;
            star_at = at;
        } else if (element < g->count &&
                   glob_takes(g, g->element[element], (unsigned char)s.data[at])) {
            element++;
            at++;
        } else if (star != SIZE_MAX) {
            element = star + 1;
            at = ++star_at;
        } else {
            matched = false;
            break;
        }
        /* it ends with a star: the rest is taken */
        if (element == g->count && star == g->count - 1) break;
    }
    while (matched && element < g->count && g->element[element] == ELEMENT_STAR) element++;
    if (work_p) *work_p += steps;
    return matched && element == g->count;
}

bool glob_is_all(const struct glob *g) {
    return g->count == 1 && g->element[0] == ELEMENT_STAR;
}

bool glob_is_open(const struct glob *g) {
    return g->count > 0 && g->element[g->count - 1] == ELEMENT_STAR;
}

bool glob_match_once(struct span pattern, struct span s, bool nocase) {
    uint32_t elements[64];
    struct glob_class classes[8];
    struct glob small = {.nocase = nocase, .element = elements, .class = classes};
    if (pattern.len <= ARRAY_LEN(elements) && count_classes(pattern) <= ARRAY_LEN(classes)) {
        glob_compile(&small, pattern);
        return glob_match(&small, s, NULL);
    }
    struct glob *g = glob_create(pattern, nocase);
    bool matched = glob_match(g, s, NULL);
    glob_destroy(&g);
    return matched;
}
