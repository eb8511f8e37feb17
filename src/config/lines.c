/* Lines that may come several times, and are no options of the table: loadmodule, user,
 * rename-command. */
#include <stdlib.h>
#include "acl/acl.h"
#include "base/assert.h"
#include "config/table.h"
#include "module/loader.h"
#include "resp/resp.h"

/* --- any of them --- */

static void line_free(struct config_line *line) {
    for (size_t i = 0; i < line->n; i++) free(line->word[i]);
    free(line->word);
}

static struct config_line line_make(const struct span *words, size_t n, unsigned source) {
    struct config_line line = {xcalloc(n, sizeof(char *)), n, source};
    for (size_t i = 0; i < n; i++) line.word[i] = span_dup(words[i]);
    return line;
}

static void line_add(struct config_lines *lines, struct config_line line) {
    lines->line = xrealloc(lines->line, (lines->n + 1) * sizeof(line));
    lines->line[lines->n++] = line;
}

/* The line of the same words; NULL: none. */
static struct config_line *line_find(const struct config_lines *lines, const struct span *words,
                                     size_t n) {
    for (struct config_line *line = lines->line; line < lines->line + lines->n; line++) {
        size_t same = 0;
        while (same < n && line->n == n && span_eq(span_str(line->word[same]), words[same])) same++;
        if (same == n && line->n == n) return line;
    }
    return NULL;
}

void config_lines_free(struct config_lines *lines) {
    for (size_t i = 0; i < lines->n; i++) line_free(&lines->line[i]);
    free(lines->line);
    *lines = (struct config_lines){NULL, 0};
}

bool config_lines_take(struct config_lines *lines, const struct span *words, size_t n) {
    struct config_line *line = line_find(lines, words, n);
    if (line == NULL) return false;
    line_free(line);
    lines->n--;
    memmove(line, line + 1, (size_t)(lines->line + lines->n - line) * sizeof(*line));
    return true;
}

/* --- rename-command OLD NEW --- */

bool config_rename_add(struct config *c, const struct span *words, size_t n, char **why_p) {
    bool fits = n == 2 && words[0].len > 0, again = false; /* in another source, perhaps */
    for (size_t i = 0; fits && i < n; i++)
        fits = words[i].len <= CONFIG_RENAME_MAX && !config_has_nul(words[i]);
    for (size_t i = 0; fits && i < c->renames.n; i++) {
        char *const *other = c->renames.line[i].word;
        again |= span_case_eq(words[0], other[0]) && span_eq(words[1], span_str(other[1]));
    }
    if (!fits)
        *why_p = config_text("rename-command: wrong number of arguments: it must be OLD NEW, each "
                             "of up to %u bytes; NEW is \"\" to take the command away",
                             CONFIG_RENAME_MAX);
    else if (!again)
        line_add(&c->renames, line_make(words, n, 0));
    return fits;
}

/* --- user NAME [rule ...] --- */

/* NULL: as it should be. Which commands there are is not known yet: modules come later. */
static char *user_fault(const struct span *words, size_t n) {
    char *why = NULL;
    struct acl *nobody = acl_create();
    struct acl_fault f = {0};
    int len = (int)min_u64(words[0].len, 128);
    bool nul = false;
    for (size_t i = 1; i < n; i++) nul |= config_has_nul(words[i]);
    if (nul)
        why = config_text("Error in user declaration '%.*s': its rules must not hold NUL; give a "
                          "password that does by its hash",
                          len, words[0].data);
    else if (acl_set(nobody, words[0], words + 1, n - 1, &f) == NULL)
        why = config_text("Error in user declaration '%.*s': %s", len, words[0].data,
                          f.unmatched ? "Unmatched parenthesis in selector definition." : f.why);
    acl_fault_free(&f);
    acl_destroy(&nobody);
    return why;
}

bool config_user_add(struct config *c, unsigned source, const struct span *words, size_t n,
                     char **why_p) {
    struct config_line *u = c->users.line, *end = u + c->users.n;
    while (u < end && n > 0 && !span_eq(words[0], span_str(u->word[0]))) u++;
    if (n == 0)
        *why_p = config_text("user must name a user, and may have rules for it");
    else if (u < end && u->source == source)
        *why_p = config_text("Error in user declaration '%s': Duplicate user found. A user can "
                             "only be defined once in config files",
                             u->word[0]);
    else if (u == end && c->users.n == ACL_USERS_MAX)
        *why_p = config_text("user may be given %u times", ACL_USERS_MAX);
    else
        *why_p = user_fault(words, n);
    if (*why_p != NULL) return false;
    if (u == end) {
        line_add(&c->users, line_make(words, n, source));
    } else {
        line_free(u);
        *u = line_make(words, n, source);
    }
    return true;
}

/* --- loadmodule FILE [word ...] --- */

/* NULL: as it should be. */
static char *module_fault(const struct config *c, const struct span *words, size_t n) {
    if (n == 0 || words[0].len == 0)
        return config_text("loadmodule must name a file, and may have words for it");
    if (n - 1 > MODULE_WORDS_MAX)
        return config_text("loadmodule takes up to %u words", MODULE_WORDS_MAX);
    for (size_t i = 0; i < n; i++)
        if (words[i].len > MODULE_WORD_MAX || config_has_nul(words[i]))
            return config_text("loadmodule takes words of up to %u bytes without NUL",
                               MODULE_WORD_MAX);
    if (c->modules.n == MODULES_MAX)
        return config_text("loadmodule may be given %u times", MODULES_MAX);
    return NULL;
}

/* The path counts from where the program was started: it goes to its `dir` later. */
static void module_line_add(struct config *c, const struct span *words, size_t n) {
    struct span whole[1 + MODULE_WORDS_MAX];
    char *given = span_dup(words[0]), *path = module_path(given);
    memcpy(whole, words, n * sizeof(*words));
    whole[0] = span_str(path);
    if (line_find(&c->modules, whole, n) == NULL) line_add(&c->modules, line_make(whole, n, 0));
    free(given);
    free(path);
}

bool config_module_add(struct config *c, const struct span *words, size_t n, bool whole,
                       char **why_p) {
    struct buf store = {NULL, 0, 0};
    struct span *split = NULL;
    if (whole && n == 1) {
        if (resp_split_line(words[0].data, words[0].len, &store, &split, &n) != 0) {
            *why_p = config_text("loadmodule has unbalanced quotes");
            buf_free(&store);
            return false;
        }
        words = split;
    }
    *why_p = module_fault(c, words, n);
    if (*why_p == NULL) module_line_add(c, words, n);
    free(split);
    buf_free(&store);
    return *why_p == NULL;
}

static bool module_note(void *arg, const struct module_info *m) {
    struct span words[1 + MODULE_WORDS_MAX] = {span_str(m->path)};
    for (size_t i = 0; i < m->argc; i++) words[i + 1] = span_str(m->argv[i]);
    line_add(arg, line_make(words, m->argc + 1, 0));
    return true;
}

struct config_lines config_modules_now(void) {
    struct config_lines now = {NULL, 0};
    module_each(module_note, &now);
    return now;
}
