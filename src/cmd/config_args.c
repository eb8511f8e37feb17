/* The command line: [FILE | -] [--option value ...] [-]. As with Redis, the word behind an option's name is its value even if it begins
 * with two dashes, further words may follow, and one word may hold name and value. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"
#include "cmd/config_table.h"
#include "module/loader.h"
#include "resp/resp.h"

#define WORDS_MAX (2 + MODULE_WORDS_MAX)

static bool is_option(const char *s) {
    return s[0] == '-' && s[1] == '-' && s[2] != '\0';
}

static bool is_stdin(const char *s) {
    return strcmp(s, "-") == 0;
}

/* One option: its name, which may bring words of its own, and what follows. Returns how many arguments that were. */
static int collect(int argc, char **argv, struct buf *store, struct span *words, size_t *n_p) {
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

static bool load_options(struct config *c, int argc, char **argv, char **why_p) {
    struct config_source src;
    config_source_init(&src, "command line", 0);
    bool ok = true;
    for (int i = 0; ok && i < argc;) {
        struct span words[WORDS_MAX];
        struct buf store = {NULL, 0, 0};
        size_t n = 0;
        int taken = collect(argc - i, argv + i, &store, words, &n);
        if (n == 0)
            ok = config_fail_at(&src, 0, config_text("'%s': unbalanced quotes, or no name", argv[i]), why_p);
        else if (n == WORDS_MAX && i + taken < argc && !is_option(argv[i + taken]))
            ok = config_fail_at(&src, 0, config_text("too many values for '%s'", argv[i]), why_p);
        else
            ok = config_set_option(c, &src, 0, words, n, why_p);
        buf_free(&store);
        i += taken;
    }
    config_source_deinit(&src);
    return ok;
}

bool config_load_args(struct config *c, int argc, char **argv, char **why_p) {
    int i = 0;
    char path[PATH_MAX] = "";
    bool from_stdin = false;
    if (i < argc && !is_option(argv[i])) {
        from_stdin = is_stdin(argv[i]);
        if (!from_stdin && realpath(argv[i], path) == NULL) {
            *why_p = argv[i][0] == '-'
                         ? config_text("%s: options begin with two dashes, as --port 6480 (--help)", argv[i])
                         : config_text("%s: cannot be read: %s", argv[i], strerror(errno));
            return false;
        }
        if (!from_stdin && !config_load_file(c, path, why_p)) return false;
        i++;
    }
    config_file_remember(path);
    if (i < argc && !from_stdin && is_stdin(argv[i])) from_stdin = true, i++;
    if (i < argc && !from_stdin && is_stdin(argv[argc - 1])) from_stdin = true, argc--;
    if (from_stdin && !config_load_file(c, "-", why_p)) return false;
    return load_options(c, argc - i, argv + i, why_p);
}
