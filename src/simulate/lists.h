/* Lists in options: names and numbers between commas. */
#ifndef TARN_SIMULATE_LISTS_H
#define TARN_SIMULATE_LISTS_H

#include <stddef.h>

#define PLAN_LIST_MAX 32u

struct names {
    const char *v[PLAN_LIST_MAX];
    size_t n;
};
struct numbers {
    double v[PLAN_LIST_MAX];
    size_t n;
};

/* All return NULL, or what is wrong, in words of this thread's own until the next call. */

/* A copy of text, cut at its commas; known NULL: any words. */
const char *names_read(struct names *list, const char *option, const char *text,
                       const char *const *known, size_t n_known);
const char *numbers_read(struct numbers *list, const char *option, const char *text, double least,
                         double most);
/* The same of blocks, which are whole. */
const char *blocks_read(struct numbers *list, const char *option, const char *text, double least,
                        double most);
void names_free(struct names *list);

/* OPTION: "TEXT" WHAT */
const char *option_refuse(const char *option, const char *text, const char *what);
/* OPTION WHAT, where `what` may be this thread's last words. */
const char *option_named(const char *option, const char *what);
/* There is no such name: what it may have meant, or which there are. */
const char *name_refuse(const char *option, const char *name, const char *const *known, size_t n);

/* The names of STORE_POLICIES. */
extern const char *const eviction_names[];
extern const size_t eviction_count;

#endif
