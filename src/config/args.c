/* The command line: [FILE | -] [--option value ...] [-]. As with Redis, the word behind an option's
 * name is its value even if it begins with two dashes, further words may follow, and one word may
 * hold name and value. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"
#include "config/table.h"
#include "module/loader.h"
#include "resp/resp.h"

#define WORDS_MAX (2 + MODULE_WORDS_MAX)

static bool is_option(const char *s) {
    return s[0] == '-' && s[1] == '-' && s[2] != '\0';
}

static bool is_stdin(const char *s) {
    return strcmp(s, "-") == 0;
}

/* One option: its name, which may bring words of its own, and what follows. Returns how many
 * arguments that were. */
static int words_collect(int argc, char **argv, struct buf *store, struct span *words,
                         size_t *n_p) {
    struct span *split = NULL;
    size_t n = 0;
    const char *first = is_option(argv[0]) ? argv[0] + 2 : argv[0];
    int i = 1;
    *n_p = 0;
    if (resp_split_line(first, strlen(first), store, &split, &n) != 0) return 0;
    for (size_t k = 0; k < n && k < WORDS_MAX; k++) words[(*n_p)++] = split[k];
    free(split);
    bool valued = n > 1;
    /* "--save" alone says that there are no rules. */
    if (n == 1 && span_case_eq(words[0], "save") && (argc == 1 || is_option(argv[1]))) {
        words[(*n_p)++] = SPAN("");
        return 1;
    }
    for (; i < argc && *n_p < WORDS_MAX && (!valued || !is_option(argv[i])); i++, valued = true)
        words[(*n_p)++] = span_str(argv[i]);
    return i;
}

static void load_options(struct config *c, int argc, char **argv, struct config_faults *faults) {
    struct config_source src;
    config_source_init(&src, "command line", 0, faults);
    for (int i = 0; i < argc && !config_faults_full(faults);) {
        struct span words[WORDS_MAX];
        struct buf store = {NULL, 0, 0};
        size_t n = 0;
        int taken = words_collect(argc - i, argv + i, &store, words, &n);
        if (n == 0)
            config_fail_at(&src, 0, config_text("'%s': unbalanced quotes, or no name", argv[i]));
        else if (n == WORDS_MAX && i + taken < argc && !is_option(argv[i + taken]))
            config_fail_at(&src, 0, config_text("too many values for '%s'", argv[i]));
        else
            (void)config_set_option(c, &src, 0, words, n);
        buf_free(&store);
        i += taken > 0 ? taken : 1;
    }
    config_source_deinit(&src);
}

/* The file in front, and its absolute path. */
static void load_first(struct config *c, const char *arg, char path[PATH_MAX],
                       struct config_faults *faults) {
    if (realpath(arg, path) != NULL) {
        (void)config_read(c, path, faults);
        return;
    }
    config_fault(faults, "%s: cannot be read: %s", arg, strerror(errno));
    path[0] = '\0';
}

bool config_load_args(struct config *c, int argc, char **argv, char **why_p) {
    int i = 0;
    char path[PATH_MAX] = "";
    bool from_stdin = false;
    struct config_faults faults = {.n = 0};
    if (i < argc && argv[i][0] == '-' && !is_option(argv[i]) && !is_stdin(argv[i])) {
        config_fault(&faults, "%s: options begin with two dashes, as --port 6480 (--help)",
                     argv[i]);
        return config_faults_tell(&faults, why_p);
    }
    if (i < argc && !is_option(argv[i])) {
        from_stdin = is_stdin(argv[i]);
        if (!from_stdin) load_first(c, argv[i], path, &faults);
        i++;
    }
    config_file_remember(path);
    if (i < argc && !from_stdin && is_stdin(argv[i])) from_stdin = true, i++;
    if (i < argc && !from_stdin && is_stdin(argv[argc - 1])) from_stdin = true, argc--;
    if (from_stdin) (void)config_read(c, "-", &faults);
    load_options(c, argc - i, argv + i, &faults);
    return config_faults_tell(&faults, why_p);
}
