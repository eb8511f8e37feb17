/* Command-line options of programs, in any order, "--name value" or "--name=value". */
#ifndef TARN_BASE_OPTIONS_H
#define TARN_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_kind {
    OPT_FLAG,
    OPT_STRING,
    OPT_U64,
    OPT_BYTES,
    OPT_DOUBLE,
    OPT_U64_LIST,
    OPT_BYTES_LIST
};
#define LIST_MAX 32
struct number_list {
    uint64_t v[LIST_MAX];
    size_t n;
};
struct option_spec {
    const char *name; /* "--batch" */
    enum option_kind kind;
    void *value; /* bool, const char *, uint64_t, double, struct number_list */
    uint64_t min, max;
};

/* Reads argv by the tables (each ended by a NULL name, the array of them by NULL): of two that have
 * a name the first counts. Plain arguments are moved to the front of argv, and *plain_p is how many
 * there are. stop_at_plain: the first plain one ends the reading (and counts 1). *used_p: how many
 * arguments were read; NULL: nobody cares. NULL, or what is wrong, with the name of the option; the
 * text is this thread's own until its next call. */
const char *options_read(const struct option_spec *const *tables, int argc, char **argv,
                         bool stop_at_plain, size_t *plain_p, int *used_p);
/* "4k" and "4kb" are both 4096 here, as in other block benchmarks. 0: no size. */
int parse_block_size(const char *s, size_t len, uint64_t *bytes_p);

#endif
