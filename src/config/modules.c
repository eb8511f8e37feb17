/* loadmodule: what the file and the command line name, and what CONFIG REWRITE writes. */
#include <stdlib.h>
#include "config/table.h"
#include "module/loader.h"
#include "resp/resp.h"

static bool same(const struct config_module *m, const struct span *words, size_t n) {
    if (n != m->words + 1 || !span_eq(span_str(m->path), words[0])) return false;
    for (size_t i = 0; i < m->words; i++)
        if (!span_eq(span_str(m->word[i]), words[i + 1])) return false;
    return true;
}

static void add(struct config_module **list_p, size_t *n_p, const struct span *words, size_t n) {
    *list_p = xrealloc(*list_p, (*n_p + 1) * sizeof(**list_p));
    struct config_module *m = &(*list_p)[(*n_p)++];
    *m = (struct config_module){.path = span_dup(words[0]), .words = n - 1};
    m->word = xcalloc(n, sizeof(char *));
    for (size_t i = 0; i < m->words; i++) m->word[i] = span_dup(words[i + 1]);
}

static void list_free(struct config_module **list_p, size_t *n_p) {
    for (size_t i = 0; i < *n_p; i++) {
        struct config_module *m = &(*list_p)[i];
        for (size_t k = 0; k < m->words; k++) free(m->word[k]);
        free(m->word);
        free(m->path);
    }
    free(*list_p);
    *list_p = NULL;
    *n_p = 0;
}

/* NULL: as it should be. */
static char *fault_of(const struct config *c, const struct span *words, size_t n) {
    if (n == 0 || words[0].len == 0)
        return config_text("loadmodule must name a file, and may have words for it");
    if (n - 1 > MODULE_WORDS_MAX)
        return config_text("loadmodule takes up to %u words", MODULE_WORDS_MAX);
    for (size_t i = 0; i < n; i++)
        if (words[i].len > MODULE_WORD_MAX ||
            (words[i].len > 0 && memchr(words[i].data, '\0', words[i].len)))
            return config_text("loadmodule takes words of up to %u bytes without NUL",
                               MODULE_WORD_MAX);
    if (c->modules == MODULES_MAX)
        return config_text("loadmodule may be given %u times", MODULES_MAX);
    return NULL;
}

/* The path counts from where the program was started: it goes to its `dir` later. */
static void add_new(struct config *c, const struct span *words, size_t n) {
    struct span whole[1 + MODULE_WORDS_MAX];
    char *given = span_dup(words[0]), *path = module_path(given);
    memcpy(whole, words, n * sizeof(*words));
    whole[0] = span_str(path);
    bool there = false;
    for (size_t i = 0; i < c->modules; i++) there |= same(&c->module[i], whole, n);
    if (!there) add(&c->module, &c->modules, whole, n);
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
    *why_p = fault_of(c, words, n);
    if (*why_p == NULL) add_new(c, words, n);
    free(split);
    buf_free(&store);
    return *why_p == NULL;
}

void config_modules_free(struct config *c) {
    list_free(&c->module, &c->modules);
}

/* --- REWRITE --- */

struct config_modules_now {
    struct config_module *module;
    size_t n;
    bool written[MODULES_MAX];
};

static bool note(void *arg, const struct module_info *m) {
    struct config_modules_now *now = arg;
    struct span words[1 + MODULE_WORDS_MAX] = {span_str(m->path)};
    for (size_t i = 0; i < m->argc; i++) words[i + 1] = span_str(m->argv[i]);
    add(&now->module, &now->n, words, m->argc + 1);
    return true;
}

struct config_modules_now *config_modules_now(void) {
    struct config_modules_now *now = xcalloc(1, sizeof(*now));
    module_each(note, now);
    return now;
}

bool config_modules_written(struct config_modules_now *now, const struct span *words, size_t n) {
    for (size_t i = 0; i < now->n; i++) {
        if (now->written[i] || !same(&now->module[i], words, n)) continue;
        now->written[i] = true;
        return true;
    }
    return false;
}

void config_modules_rest(struct config_modules_now *now, struct buf *out,
                         void (*before)(struct buf *out)) {
    for (size_t i = 0; i < now->n; i++) {
        const struct config_module *m = &now->module[i];
        if (now->written[i]) continue;
        before(out);
        buf_append_str(out, "loadmodule ");
        config_append_word(out, span_str(m->path));
        for (size_t k = 0; k < m->words; k++) {
            buf_append_char(out, ' ');
            config_append_word(out, span_str(m->word[k]));
        }
        buf_append_char(out, '\n');
    }
}

void config_modules_now_free(struct config_modules_now **now_p) {
    list_free(&(*now_p)->module, &(*now_p)->n);
    free(*now_p);
    *now_p = NULL;
}
