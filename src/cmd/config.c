/* Reading the configuration: files, includes, the command line; and CONFIG GET and SET. */
#include "cmd/config.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "base/assert.h"
#include "cmd/config_table.h"
#include "cmd/core.h"
#include "cmd/glob.h"
#include "resp/resp.h"

#define FILE_MAX      (1024u * 1024)
#define INCLUDE_DEPTH 8u

static char file_path[PATH_MAX];
const char *config_file(void) {
    return file_path;
}

void config_init(struct config *c) {
    memset(c, 0, sizeof(*c));
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        struct span s = span_str(row->initial);
        char *why = NULL;
        bool ok = config_row_parse(row, c, &s, 1, &why);
        TARN_ASSERT(ok);
    }
}

void config_deinit(struct config *c) {
    for (size_t i = 0; i < config_row_count; i++) config_row_free(&config_rows[i], c);
}

/* --- files -------------------------------------------------------------------------------------------------------------------- */

/* One source: which options it has set, and where, so that it cannot contradict itself. */
struct source {
    const char *name;
    unsigned depth;
    unsigned *line_of; /* by row; 0: not set here */
};

static bool load_source(struct config *c, const char *path, unsigned depth, char **why_p);

static bool fail_at(const struct source *src, unsigned line, char *why, char **why_p) {
    *why_p =
        line > 0 ? config_text("%s:%u: %s", src->name, line, why) : config_text("%s: %s", src->name, why);
    free(why);
    return false;
}

static bool set_option(struct config *c, struct source *src, unsigned line, const struct span *words,
                       size_t n, char **why_p) {
    const struct config_row *row = config_row_find(words[0]);
    int name_len = (int)min_u64(words[0].len, 64);
    if (row == NULL)
        return fail_at(src, line, config_text("unknown option '%.*s'", name_len, words[0].data), why_p);
    struct config fresh;
    config_init(&fresh);
    char *why = NULL;
    bool ok = config_row_parse(row, &fresh, words + 1, n - 1, &why);
    if (ok && row->flags & CONFIG_FIXED) {
        struct config initial;
        config_init(&initial);
        ok = config_row_equal(row, &fresh, &initial);
        if (!ok) why = config_text("can only be '%s' in this version", row->initial);
        config_deinit(&initial);
    }
    if (!ok) {
        char *full = config_text("%s %s", row->name, why);
        free(why);
        config_deinit(&fresh);
        return fail_at(src, line, full, why_p);
    }
    unsigned *seen = &src->line_of[row - config_rows];
    if (*seen != 0 && row->type != CONFIG_OUTPUT && !config_row_equal(row, &fresh, c)) {
        char *full = line == 0 || *seen == line
                         ? config_text("%s is given twice, with different values", row->name)
                         : config_text("%s contradicts line %u", row->name, *seen);
        config_deinit(&fresh);
        return fail_at(src, line, full, why_p);
    }
    config_deinit(&fresh);
    *seen = line > 0 ? line : 1;
    return config_row_parse(row, c, words + 1, n - 1, why_p);
}

static bool load_line(struct config *c, struct source *src, unsigned line, struct span text, char **why_p) {
    while (text.len > 0 && (unsigned char)text.data[0] <= ' ') text.data++, text.len--;
    if (text.len == 0 || text.data[0] == '#') return true;
    struct buf store = {NULL, 0, 0};
    struct span *words = NULL;
    size_t n = 0;
    bool ok = true;
    if (resp_split_line(text.data, text.len, &store, &words, &n) != 0) {
        buf_free(&store);
        return fail_at(src, line, xstrdup("unbalanced quotes"), why_p);
    }
    if (n > 0 && span_case_eq(words[0], "include")) {
        if (n != 2 || words[1].len == 0 || words[1].len >= PATH_MAX) {
            ok = fail_at(src, line, xstrdup("include must name one file"), why_p);
        } else if (src->depth + 1 >= INCLUDE_DEPTH) {
            ok = fail_at(src, line, config_text("include is nested more than %u deep", INCLUDE_DEPTH - 1),
                         why_p);
        } else {
            char *path = config_text("%.*s", (int)words[1].len, words[1].data);
            char *why = NULL;
            ok = load_source(c, path, src->depth + 1, &why);
            if (!ok) fail_at(src, line, config_text("include: %s", why), why_p);
            free(why);
            free(path);
        }
    } else if (n > 0) {
        ok = set_option(c, src, line, words, n, why_p);
    }
    free(words);
    buf_free(&store);
    return ok;
}

static bool load_text(struct config *c, const char *name, unsigned depth, const char *text, size_t len,
                      char **why_p) {
    struct source src = {name, depth, xcalloc(config_row_count, sizeof(unsigned))};
    bool ok = true;
    unsigned line = 0;
    for (size_t pos = 0; ok && pos < len;) {
        const char *lf = memchr(text + pos, '\n', len - pos);
        size_t n = lf != NULL ? (size_t)(lf - text) - pos : len - pos;
        size_t body = n > 0 && text[pos + n - 1] == '\r' ? n - 1 : n;
        ok = load_line(c, &src, ++line, span_of(text + pos, body), why_p);
        pos += n + 1;
    }
    free(src.line_of);
    return ok;
}

bool config_load_text(struct config *c, const char *name, const char *text, size_t len, char **why_p) {
    return load_text(c, name, 0, text, len, why_p);
}

static bool read_all(FILE *f, struct buf *text) {
    char piece[4096];
    size_t n;
    while ((n = fread(piece, 1, sizeof(piece), f)) > 0) {
        buf_append(text, piece, n);
        if (text->len > FILE_MAX) {
            errno = EFBIG;
            return false;
        }
    }
    return !ferror(f);
}

static bool load_source(struct config *c, const char *path, unsigned depth, char **why_p) {
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *f = from_stdin ? stdin : fopen(path, "re");
    struct buf text = {NULL, 0, 0};
    bool ok = f != NULL && read_all(f, &text);
    if (!ok) *why_p = config_text("%s: cannot be read: %s", path, strerror(errno));
    if (f != NULL && !from_stdin) fclose(f);
    if (ok) ok = load_text(c, from_stdin ? "standard input" : path, depth, text.data, text.len, why_p);
    buf_free(&text);
    return ok;
}

bool config_load_file(struct config *c, const char *path, char **why_p) {
    return load_source(c, path, 0, why_p);
}

/* --- the command line ----------------------------------------------------------------------------------------------------------- */

static bool is_option(const char *s) {
    return s[0] == '-' && s[1] == '-' && s[2] != '\0';
}

static bool load_options(struct config *c, int argc, char **argv, char **why_p) {
    struct source src = {"command line", 0, xcalloc(config_row_count, sizeof(unsigned))};
    bool ok = true;
    for (int i = 0; ok && i < argc;) {
        struct span words[CONFIG_WORDS_MAX + 1];
        size_t n = 0;
        words[n++] = span_str(argv[i++] + 2);
        while (i < argc && !is_option(argv[i])) {
            if (n == ARRAY_LEN(words)) {
                ok = fail_at(&src, 0, config_text("too many values for '%s'", words[0].data), why_p);
                break;
            }
            words[n++] = span_str(argv[i++]);
        }
        if (ok) ok = set_option(c, &src, 0, words, n, why_p);
    }
    free(src.line_of);
    return ok;
}

bool config_load_args(struct config *c, int argc, char **argv, char **why_p) {
    int i = 0;
    file_path[0] = '\0';
    if (i < argc && !is_option(argv[i])) {
        if (strcmp(argv[i], "-") != 0 && realpath(argv[i], file_path) == NULL) {
            *why_p = config_text("%s: cannot be read: %s", argv[i], strerror(errno));
            return false;
        }
        if (!config_load_file(c, argv[i], why_p)) return false;
        i++;
    }
    if (i < argc && strcmp(argv[i], "-") == 0) {
        if (!config_load_file(c, argv[i], why_p)) return false;
        i++;
    }
    if (i < argc && !is_option(argv[i])) {
        *why_p = config_text("command line: '%s' is not an option: they begin with --", argv[i]);
        return false;
    }
    return load_options(c, argc - i, argv + i, why_p);
}

bool config_validate(const struct config *c, char **why_p) {
    if (c->pool_path[0] != '\0' && c->pool_size == 0)
        *why_p = config_text("pool-path is given, but pool-size is 0: there is no pool to keep there");
    else if (c->port != 0 && c->data_port == c->port && c->pool_size > 0)
        *why_p = config_text("port and data-port are both %lld", (long long)c->port);
    else if (c->port > 55535 && c->data_port < 0 && c->pool_size > 0)
        *why_p = config_text("data-port must be given: port + 10000 is above 65535");
    else if (c->proto_max_bulk_len > c->client_query_buffer_limit)
        *why_p = config_text("proto-max-bulk-len is larger than client-query-buffer-limit");
    else
        return true;
    return false;
}

/* --- CONFIG GET and SET ------------------------------------------------------------------------------------------------------------ */

bool config_is_secret(struct span name) {
    const struct config_row *row = config_row_find(name);
    return row != NULL && row->flags & CONFIG_SECRET;
}

void config_get(const struct config *c, const struct span *patterns, size_t n,
                void (*fn)(void *arg, const char *name, struct span value), void *arg) {
    struct buf text = {NULL, 0, 0};
    for (size_t i = 0; i < config_row_count; i++) {
        bool match = false;
        for (size_t k = 0; k < n && !match; k++)
            match = glob_match_once(patterns[k], span_str(config_rows[i].name), true);
        if (!match) continue;
        buf_clear(&text);
        config_row_format(&config_rows[i], c, &text);
        fn(arg, config_rows[i].name, span_of(text.data, text.len));
    }
    buf_free(&text);
}

/* Options whose apply function is the same are told once. */
static bool apply_all(const bool *touched, const char **why_p, size_t *failed_p) {
    for (size_t i = 0; i < config_row_count; i++) {
        if (!touched[i] || config_rows[i].apply == NULL) continue;
        bool told = false;
        for (size_t k = 0; k < i; k++) told |= touched[k] && config_rows[k].apply == config_rows[i].apply;
        if (!told && !config_rows[i].apply(why_p)) {
            *failed_p = i;
            return false;
        }
    }
    return true;
}

static bool check_pairs(const struct span *pairs, size_t n, struct config *next, bool *touched,
                        struct span *option_p, char **why_p) {
    for (size_t i = 0; i < n; i++) {
        const struct config_row *row = config_row_find(pairs[2 * i]);
        *option_p = pairs[2 * i];
        if (row == NULL) return *why_p = xstrdup("unknown"), false; /* the caller has a text for it */
        if (!(row->flags & CONFIG_MUTABLE)) return *why_p = xstrdup("can't set immutable config"), false;
        if (touched[row - config_rows]) return *why_p = xstrdup("duplicate parameter"), false;
        if (!config_row_parse(row, next, &pairs[2 * i + 1], 1, why_p)) return false;
        touched[row - config_rows] = true;
    }
    return config_validate(next, why_p);
}

bool config_set(struct config *c, const struct span *pairs, size_t n, struct span *option_p, char **why_p) {
    struct config old, next;
    bool *touched = xcalloc(config_row_count, sizeof(bool));
    config_init(&old);
    config_init(&next);
    for (size_t i = 0; i < config_row_count; i++) {
        config_row_copy(&config_rows[i], &old, c);
        config_row_copy(&config_rows[i], &next, c);
    }
    bool ok = check_pairs(pairs, n, &next, touched, option_p, why_p);
    if (ok) {
        const char *why = "it could not be applied";
        size_t failed = 0;
        for (size_t i = 0; i < config_row_count; i++)
            if (touched[i]) config_row_copy(&config_rows[i], c, &next);
        ok = apply_all(touched, &why, &failed);
        if (!ok) {
            *option_p = span_str(config_rows[failed].name);
            *why_p = xstrdup(why);
            for (size_t i = 0; i < config_row_count; i++)
                if (touched[i]) config_row_copy(&config_rows[i], c, &old);
            apply_all(touched, &why, &failed);
        }
    }
    config_deinit(&old);
    config_deinit(&next);
    free(touched);
    return ok;
}
