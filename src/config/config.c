/* Reading the configuration: files and includes; and CONFIG GET and SET. */
#include "config/config.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/file.h"
#include "config/table.h"
#include "base/glob.h"
#include "resp/resp.h"

#define FILE_MAX      (1024u * 1024)
#define INCLUDE_DEPTH 8u
#define INCLUDES_MAX  1000u /* of one pattern */

struct config *config;
const config_tell_fn *config_told;
const struct config_users_ops *config_users;

static char file_path[PATH_MAX];
const char *config_file(void) {
    return file_path;
}
void config_file_remember(const char *path) {
    snprintf(file_path, sizeof(file_path), "%s", path);
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
    config_lines_free(&c->modules);
    config_lines_free(&c->users);
    config_lines_free(&c->renames);
    buf_free(&c->ignored);
}

/* --- files --- */

void config_source_init(struct config_source *src, const char *name, unsigned depth,
                        struct config_faults *faults) {
    static unsigned last;
    *src = (struct config_source){name, depth, xcalloc(config_row_count, sizeof(unsigned)), ++last,
                                  faults};
}
void config_source_deinit(struct config_source *src) {
    free(src->line_of);
}

static bool load_source(struct config *c, const char *path, unsigned depth,
                        struct config_faults *faults);

bool config_fail_at(const struct config_source *src, unsigned line, char *why) {
    if (line > 0)
        config_fault(src->faults, "%s:%u: %s", src->name, line, why);
    else
        config_fault(src->faults, "%s: %s", src->name, why);
    free(why);
    return false;
}

/* A line of a file can be looked at; of a command line the words are shown as they were
 * understood. */
static char *mistake_text(const struct config_row *row, unsigned line, const struct span *words,
                          size_t n, const char *why) {
    struct buf b = {NULL, 0, 0};
    if (line == 0) {
        buf_printf(&b, "'%s", row->name);
        for (size_t i = 1; i < n && !(row->flags & CONFIG_SECRET); i++)
            buf_printf(&b, " \"%.*s\"", (int)min_u64(words[i].len, 64), words[i].data);
        buf_append_str(&b, "': ");
        if (n < 2 && !config_row_takes_words(row))
            buf_append_str(&b, "wrong number of arguments: ");
    }
    if (n > 2 && !config_row_takes_words(row)) buf_append_str(&b, "wrong number of arguments: ");
    buf_printf(&b, "%s %s", row->name, why);
    buf_append_char(&b, '\0');
    return b.data;
}

static void config_ignore(struct config *c, struct span name) {
    struct buf *list = &c->ignored;
    for (size_t i = 0; i + name.len <= list->len; i++) /* the same again */
        if (strncasecmp(list->data + i, name.data, name.len) == 0 &&
            (i == 0 || list->data[i - 1] == ' ') &&
            (i + name.len == list->len || list->data[i + name.len] == ','))
            return;
    if (c->n_ignored++ > 0) buf_append_str(list, ", ");
    buf_append(list, name.data, name.len);
}

/* No option here: one of Redis that does not matter, or a fault. */
static bool set_absent(struct config *c, struct config_source *src, unsigned line,
                       const struct span *words, size_t n) {
    bool matters = false;
    int len = (int)min_u64(words[0].len, 64);
    const char *name = words[0].data, *why = config_absent(words[0], &matters);
    if (why != NULL && !matters && n > 1) {
        config_ignore(c, words[0]);
        return true;
    }
    if (why != NULL && !matters)
        return config_fail_at(src, line, config_text("%.*s: wrong number of arguments", len, name));
    if (why != NULL) return config_fail_at(src, line, config_text("%.*s: %s", len, name, why));
    const char *near = config_near(words[0]);
    if (near != NULL)
        return config_fail_at(
            src, line, config_text("unknown option '%.*s', did you mean '%s'?", len, name, near));
    return config_fail_at(
        src, line,
        config_text("unknown option '%.*s' (tarn-server --help all has all)", len, name));
}

/* A value of Redis that changes nothing here. */
static bool is_idle(const struct config_row *row, const struct span *words, size_t n) {
    uint64_t number;
    if (row->type != CONFIG_ONLY || n != 2 || span_case_eq(words[1], row->initial)) return false;
    for (const char *const *word = row->words + 1; *word != NULL; word++)
        if (span_case_eq(words[1], *word) ||
            (strcmp(*word, CONFIG_ONLY_NUMBER) == 0 && span_to_u64(words[1], &number)))
            return true;
    return false;
}

/* Options that may be said again and again. false: it is none of them. */
static bool set_repeated(struct config *c, struct config_source *src, unsigned line,
                         const struct span *words, size_t n, bool *ok_p) {
    char *why = NULL;
    if (span_case_eq(words[0], "loadmodule")) /* line 0: one word may hold all */
        *ok_p = config_module_add(c, words + 1, n - 1, line == 0, &why);
    else if (span_case_eq(words[0], "user"))
        *ok_p = config_user_add(c, src->number, words + 1, n - 1, &why);
    else if (span_case_eq(words[0], "rename-command"))
        *ok_p = config_rename_add(c, words + 1, n - 1, &why);
    else
        return false;
    if (!*ok_p) config_fail_at(src, line, why);
    return true;
}

/* A path, or a pattern of several; one that matches none is no mistake. */
static bool load_include(struct config *c, struct config_source *src, unsigned line,
                         const struct span *words, size_t n) {
    glob_t found = {.gl_pathc = 0};
    if (n != 2 || words[1].len == 0 || words[1].len >= PATH_MAX)
        return config_fail_at(src, line,
                              xstrdup("include must name one file, or a pattern of some"));
    if (src->depth + 1 >= INCLUDE_DEPTH)
        return config_fail_at(
            src, line, config_text("include is nested more than %u deep", INCLUDE_DEPTH - 1));
    char *path = config_text("%.*s", (int)words[1].len, words[1].data);
    bool pattern = strpbrk(path, "*?[") != NULL, ok = true;
    if (!pattern) {
        ok = access(path, R_OK) == 0 ? load_source(c, path, src->depth + 1, src->faults)
                                     : config_fail_at(src, line,
                                                      config_text("include: %s: cannot be read: %s",
                                                                  path, strerror(errno)));
    } else if (glob(path, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && i < INCLUDES_MAX; i++)
            ok &= load_source(c, found.gl_pathv[i], src->depth + 1, src->faults);
        if (found.gl_pathc > INCLUDES_MAX)
            ok = config_fail_at(
                src, line,
                config_text("include: %s: it matches more than %u files", path, INCLUDES_MAX));
    }
    globfree(&found);
    free(path);
    return ok;
}

/* What a line gives, not yet believed. */
static bool parse_fresh(struct config *fresh, const struct config_row *row,
                        struct config_source *src, unsigned line, const struct span *words,
                        size_t n) {
    char *why = NULL;
    bool ok = config_row_parse(row, fresh, words + 1, n - 1, &why);
    if (!ok) config_fail_at(src, line, mistake_text(row, line, words, n, why));
    free(why);
    return ok;
}

bool config_set_option(struct config *c, struct config_source *src, unsigned line,
                       const struct span *words, size_t n) {
    bool ok;
    if (span_case_eq(words[0], "include")) return load_include(c, src, line, words, n);
    if (set_repeated(c, src, line, words, n, &ok)) return ok;
    const struct config_row *row = config_row_find(words[0]);
    if (row == NULL) return set_absent(c, src, line, words, n);
    if (is_idle(row, words, n)) {
        config_ignore(c, words[0]);
        return true;
    }
    struct config fresh;
    config_init(&fresh);
    unsigned *seen = &src->line_of[config_row_index(row)];
    ok = parse_fresh(&fresh, row, src, line, words, n);
    if (ok && row->type == CONFIG_SAVE) { /* those of a file and of the command line, too */
        ok = config_save_add(&c->save, &fresh.save);
        if (!ok)
            config_fail_at(src, line, config_text("save has more than %u rules", CONFIG_SAVE_MAX));
    } else if (ok && *seen != 0 && row->type != CONFIG_OUTPUT &&
               !config_row_equal(row, &fresh, c)) {
        ok = config_fail_at(src, line,
                            line == 0 || *seen == line
                                ? config_text("%s is given twice, with different values", row->name)
                                : config_text("%s contradicts line %u", row->name, *seen));
    } else if (ok) {
        char *why = NULL;
        ok = config_row_parse(row, c, words + 1, n - 1, &why);
        TARN_ASSERT(ok);
    }
    config_deinit(&fresh);
    if (ok) *seen = line > 0 ? line : 1;
    return ok;
}

static bool load_line(struct config *c, struct config_source *src, unsigned line,
                      struct span text) {
    while (text.len > 0 && (unsigned char)text.data[0] <= ' ') text.data++, text.len--;
    if (text.len == 0 || text.data[0] == '#') return true;
    struct buf store = {NULL, 0, 0};
    struct span *words = NULL;
    size_t n = 0;
    bool ok = resp_split_line(text.data, text.len, &store, &words, &n) == 0;
    if (!ok)
        config_fail_at(src, line, xstrdup("unbalanced quotes"));
    else if (n > 0)
        ok = config_set_option(c, src, line, words, n);
    free(words);
    buf_free(&store);
    return ok;
}

/* To its end, whatever is wrong on the way. */
static bool load_text(struct config *c, const char *name, unsigned depth, const char *text,
                      size_t len, struct config_faults *faults) {
    struct config_source src;
    config_source_init(&src, name, depth, faults);
    bool ok = true;
    unsigned line = 0;
    for (size_t pos = 0; pos < len && !config_faults_full(faults);) {
        const char *lf = memchr(text + pos, '\n', len - pos);
        size_t n = lf != NULL ? (size_t)(lf - text) - pos : len - pos;
        size_t body = n > 0 && text[pos + n - 1] == '\r' ? n - 1 : n;
        ok &= load_line(c, &src, ++line, span_of(text + pos, body));
        pos += n + 1;
    }
    config_source_deinit(&src);
    return ok;
}

bool config_load_text(struct config *c, const char *name, const char *text, size_t len,
                      char **why_p) {
    struct config_faults faults = {.n = 0};
    (void)load_text(c, name, 0, text, len, &faults);
    return config_faults_tell(&faults, why_p);
}

static bool load_source(struct config *c, const char *path, unsigned depth,
                        struct config_faults *faults) {
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *f = from_stdin ? stdin : fopen(path, "re");
    struct buf text = {NULL, 0, 0};
    bool ok = f != NULL && file_read_all(f, FILE_MAX, &text);
    if (!ok) config_fault(faults, "%s: cannot be read: %s", path, strerror(errno));
    if (f != NULL && !from_stdin) fclose(f);
    if (ok)
        ok = load_text(c, from_stdin ? "standard input" : path, depth, text.data, text.len, faults);
    buf_free(&text);
    return ok;
}

bool config_read(struct config *c, const char *path, struct config_faults *faults) {
    return load_source(c, path, 0, faults);
}

/* 0: there is none, or the system chooses. */
static int64_t fixed_data_port(const struct config *c) {
    if (c->pool_size == 0) return 0;
    return c->data_port >= 0 ? c->data_port : c->port > 0 ? c->port + 10000 : 0;
}

static void validate_files(const struct config *c, struct config_faults *f) {
    if (c->pool_path[0] != '\0' && c->pool_size == 0)
        config_fault(f, "pool-path is given, but pool-size is 0: there is no pool to keep there");
    if (c->dbfilename[0] == '\0' || strchr(c->dbfilename, '/') != NULL)
        config_fault(f, "dbfilename must be the name of a file in dir, without a path");
    if (c->appendfilename[0] == '\0' || strchr(c->appendfilename, '/') != NULL ||
        strcmp(c->appendfilename, c->dbfilename) == 0)
        config_fault(
            f,
            "appendfilename must be the name of a file in dir, without a path, and not dbfilename");
    if (strchr(c->appenddirname, '/') != NULL || strcmp(c->appenddirname, "..") == 0)
        config_fault(
            f, "appenddirname must be the name of a directory in dir, without a path, or empty");
    if (c->aclfile[0] != '\0' && c->users.n > 0)
        config_fault(f, "Configuring Redis with users defined in redis.conf and at the same "
                        "setting an ACL file path is "
                        "invalid. This setup is very likely to lead to configuration errors and "
                        "security holes, please "
                        "define either an ACL file or declare users directly in your redis.conf, "
                        "but not both.");
}

static void validate_ports(const struct config *c, struct config_faults *f) {
    if (c->port > 0 && c->data_port == c->port && c->pool_size > 0)
        config_fault(f, "port and data-port are both %lld", (long long)c->port);
    if (c->port > 55535 && c->data_port < 0 && c->pool_size > 0)
        config_fault(f, "data-port must be given: port + 10000 is above 65535");
    if (c->tls_port > 0 && (c->tls_port == c->port || c->tls_port == fixed_data_port(c)))
        config_fault(f, "tls-port is the same as port or data-port: %lld", (long long)c->tls_port);
}

bool config_validate(const struct config *c, char **why_p) {
    uint8_t id[16];
    struct config_faults f = {.n = 0};
    validate_files(c, &f);
    validate_ports(c, &f);
    if (!config_title_valid(c))
        config_fault(
            &f, "proc-title-template: template format is invalid or contains unknown variables");
    if (c->node_heartbeat_ms * 2 > c->node_timeout_ms)
        config_fault(&f, "node-timeout must be at least twice node-heartbeat");
    if (c->replicaof.n != 0 && c->pool_size > 0)
        config_fault(&f, "replicaof needs pool-size 0: a replica has no pool of its own");
    if (c->cluster_id[0] != '\0' && !config_cluster_id(c, id))
        config_fault(&f, "cluster-id must be 32 hex digits (openssl rand -hex 16), or empty");
    return config_faults_tell(&f, why_p);
}

/* --- CONFIG GET and SET --- */

bool config_is_guarded(struct span name) {
    const struct config_row *row = config_row_find(name);
    return row != NULL && row->flags & CONFIG_GUARDED;
}

void config_get(const struct config *c, const struct span *patterns, size_t n,
                void (*fn)(void *arg, const char *name, struct span value), void *arg) {
    struct buf text = {NULL, 0, 0};
    const struct config_row *row;
    for (size_t i = 0; (row = config_row_at(i)) != NULL; i++) {
        const char *name = config_name_at(i);
        bool match = false;
        for (size_t k = 0; k < n && !match; k++)
            match = glob_match_once(patterns[k], span_str(name), true);
        if (!match) continue;
        buf_clear(&text);
        config_row_format(row, c, &text);
        fn(arg, name, span_of(text.data, text.len));
    }
    buf_free(&text);
}

/* Who is told of several options is told once. */
static bool apply_all(const bool *touched, const char **why_p, size_t *failed_p) {
    for (size_t i = 0; i < config_row_count; i++) {
        enum config_tell tell = config_rows[i].tell;
        if (!touched[i] || tell == CONFIG_TELL_NOBODY || config_told == NULL) continue;
        bool told = false;
        for (size_t k = 0; k < i; k++) told |= touched[k] && config_rows[k].tell == tell;
        if (!told && !config_told[tell](why_p)) {
            *failed_p = i;
            return false;
        }
    }
    return true;
}

/* Takes lines, for an error reply. */
static char *one_line(char *lines) {
    struct buf b = {NULL, 0, 0};
    for (const char *at = lines; *at != '\0'; at++)
        if (*at == '\n')
            buf_append_str(&b, "; ");
        else
            buf_append_char(&b, *at);
    buf_append_char(&b, '\0');
    free(lines);
    return b.data;
}

static bool check_pairs(const struct config *now, const struct span *pairs, size_t n,
                        struct config *next, bool *touched, struct span *option_p, char **why_p) {
    for (size_t i = 0; i < n; i++) {
        const struct config_row *row = config_row_find(pairs[2 * i]);
        *option_p = pairs[2 * i];
        /* the caller has a text for it */
        if (row == NULL) return *why_p = xstrdup("unknown"), false;
        if (touched[config_row_index(row)]) return *why_p = xstrdup("duplicate parameter"), false;
        bool parsed = config_row_parse(row, next, &pairs[2 * i + 1], 1, why_p);
        /* What cannot be changed takes the value that it has: nothing changes. */
        if (!(row->flags & CONFIG_MUTABLE) && !(parsed && config_row_equal(row, next, now))) {
            free(*why_p);
            return *why_p = xstrdup("can't set immutable config"), false;
        }
        if (!parsed) return false;
        touched[config_row_index(row)] = true;
    }
    if (!config_validate(next, why_p)) {
        *why_p = one_line(*why_p);
        return false;
    }
    for (size_t i = 0; i < config_row_count; i++) /* who borrowed what cannot change keeps it */
        touched[i] = touched[i] && config_rows[i].flags & CONFIG_MUTABLE;
    return true;
}

bool config_set(struct config *c, const struct span *pairs, size_t n, struct span *option_p,
                char **why_p) {
    struct config old, next;
    bool *touched = xcalloc(config_row_count, sizeof(bool));
    config_init(&old);
    config_init(&next);
    for (size_t i = 0; i < config_row_count; i++) {
        config_row_copy(&config_rows[i], &old, c);
        config_row_copy(&config_rows[i], &next, c);
    }
    bool ok = check_pairs(c, pairs, n, &next, touched, option_p, why_p);
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
