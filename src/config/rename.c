/* rename-command OLD NEW. It is no option: there may be many, and only the start can say it. */
#include <stdlib.h>
#include "config/table.h"

static bool fits(struct span s) {
    return s.len <= CONFIG_RENAME_MAX && (s.len == 0 || memchr(s.data, '\0', s.len) == NULL);
}

bool config_rename_add(struct config *c, const struct span *words, size_t n, char **why_p) {
    if (n != 2 || words[0].len == 0 || !fits(words[0]) || !fits(words[1])) {
        *why_p = config_text("rename-command: wrong number of arguments: it must be OLD NEW, each "
                             "of up to %u bytes; "
                             "NEW is \"\" to take the command away",
                             CONFIG_RENAME_MAX);
        return false;
    }
    for (size_t i = 0; i < c->renames; i++) /* the same line again, in another source */
        if (span_case_eq(words[0], c->rename[i].from) &&
            span_eq(words[1], span_str(c->rename[i].to)))
            return true;
    c->rename = xrealloc(c->rename, (c->renames + 1) * sizeof(*c->rename));
    c->rename[c->renames++] = (struct config_rename){span_dup(words[0]), span_dup(words[1])};
    return true;
}

void config_renames_free(struct config *c) {
    for (size_t i = 0; i < c->renames; i++) {
        free(c->rename[i].from);
        free(c->rename[i].to);
    }
    free(c->rename);
    c->rename = NULL;
    c->renames = 0;
}
