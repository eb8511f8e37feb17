/* The rows of the configuration table; private to config*.c. */
#ifndef TARN_CONFIG_TABLE_H
#define TARN_CONFIG_TABLE_H

#include <string.h>
#include "config/config.h"

enum config_type {
    CONFIG_BOOL,         /* yes | no: bool */
    CONFIG_INT,          /* int64_t */
    CONFIG_OCTAL,        /* int64_t, as file permissions are written */
    CONFIG_BYTES,        /* uint64_t: 512, 4kb, 1gb */
    CONFIG_COUNT,        /* uint64_t: 0, 1000000, 10m */
    CONFIG_MS,           /* uint64_t: 500, 500ms, 10s, 5min, 1h, 1d */
    CONFIG_RATIO,        /* double */
    CONFIG_STRING,       /* char * */
    CONFIG_BINARY,       /* struct config_binary */
    CONFIG_LIST,         /* struct config_list */
    CONFIG_ENUM,         /* int: index in words */
    CONFIG_OUTPUT,       /* client-output-buffer-limit */
    CONFIG_PORT_OR_AUTO, /* int64_t: a port, or auto: -1 */
    CONFIG_SAVE,         /* struct config_save; lines of a file add up */
    CONFIG_NOTIFY,       /* unsigned: letters, notify.h */
    CONFIG_PERCENTILES,  /* struct config_percentiles: numbers from 0 to 100 */
    CONFIG_FLAGS,        /* int: a set of words, bit i for words[i + 1]; words[0] is none of them */
    CONFIG_INTS,         /* int64_t[CONFIG_INTS_N] */
    CONFIG_SHARE,        /* int64_t: bytes, or -N: N per cent */
    /* Of Redis, and one value says what tarn does: no field. words[0] says why; the others are
     * values that a file may have all the same, as nothing that anybody was promised depends on
     * them. CONFIG_ONLY_NUMBER among them: any number. */
    CONFIG_ONLY,
};

#define CONFIG_ONLY_NUMBER "0..."

enum config_row_flag {
    CONFIG_MUTABLE = 1, /* by CONFIG SET */
    CONFIG_SECRET = 2,  /* not shown by MONITOR and SLOWLOG */
    CONFIG_GUARDED = 4, /* enable-protected-configs says who may */
};

struct config_row {
    const char *name;
    enum config_type type;
    size_t offset; /* in struct config */
    const char *initial;
    int64_t min, max; /* CONFIG_INT, CONFIG_BYTES, ... */
    double min_ratio, max_ratio;
    const char *const *words; /* of CONFIG_ENUM, ended by NULL */
    unsigned flags;
    enum config_tell tell;
};

extern const struct config_row config_rows[];
extern const size_t config_row_count;

const struct config_row *config_row_find(struct span name);
/* The option that may have been meant; NULL: none is near. */
const char *config_near(struct span name);
/* Its number in config_rows; that of another row if it says what that one does in other words. */
size_t config_row_index(const struct config_row *row);
/* By number, options and then their older names; NULL: there are no more. */
const struct config_row *config_row_at(size_t i);
const char *config_name_at(size_t i);
/* May its value be several words of a line? */
bool config_row_takes_words(const struct config_row *row);
/* Parses words into the field of *c. false: *why_p (caller frees) says what is allowed. */
bool config_row_parse(const struct config_row *row, struct config *c, const struct span *words,
                      size_t n, char **why_p);
/* Appends the value as CONFIG GET shows it. */
void config_row_format(const struct config_row *row, const struct config *c, struct buf *out);
bool config_row_equal(const struct config_row *row, const struct config *a, const struct config *b);
void config_row_copy(const struct config_row *row, struct config *to, const struct config *from);
void config_row_free(const struct config_row *row, struct config *c);

static inline bool config_has_nul(struct span s) {
    return s.len > 0 && memchr(s.data, '\0', s.len) != NULL;
}

/* What another line says, too. false: there are too many. */
bool config_save_add(struct config_save *to, const struct config_save *from);

/* --- faults.c: what is wrong, all of it --- */

/* Zero-initialised is none. Beyond CONFIG_FAULTS_MAX nothing more is read. */
#define CONFIG_FAULTS_MAX 20u
struct config_faults {
    struct buf text; /* a line each */
    unsigned n;
};
/* Always false. */
bool config_fault(struct config_faults *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
bool config_faults_full(const struct config_faults *f);
/* true: there are none. Else *why_p gets them, for the caller to free. */
bool config_faults_tell(struct config_faults *f, char **why_p);

/* --- config.c: one source of options --- */

/* Which options it has set, and where, so that it cannot contradict itself. */
struct config_source {
    const char *name;
    unsigned depth;    /* of includes */
    unsigned *line_of; /* by row; 0: not set here */
    unsigned number;   /* no two have the same */
    struct config_faults *faults;
};
void config_source_init(struct config_source *src, const char *name, unsigned depth,
                        struct config_faults *faults);
void config_source_deinit(struct config_source *src);
/* A file, or "-". false: some of the faults are its. */
bool config_read(struct config *c, const char *path, struct config_faults *faults);
/* words[0] is the name; line 0: of the command line. false: it is one of the faults. */
bool config_set_option(struct config *c, struct config_source *src, unsigned line,
                       const struct span *words, size_t n);
/* A fault with its place; takes why. Always false. */
bool config_fail_at(const struct config_source *src, unsigned line, char *why);
/* The absolute path for REWRITE; "": none. */
void config_file_remember(const char *path);

/* --- absent.c --- */

/* Why an option of Redis is none here; NULL: it is not one that is known. *matters_p: to go on
 * without it would break a promise, so that a file may not have it. */
const char *config_absent(struct span name, bool *matters_p);

/* --- lines.c: what may be said several times --- */

void config_lines_free(struct config_lines *lines);
/* Takes the line of these words out. false: there is none. */
bool config_lines_take(struct config_lines *lines, const struct span *words, size_t n);
/* One line without its first word; the same twice is once. false: *why_p. */
#define CONFIG_RENAME_MAX 64u /* bytes of a name */
bool config_rename_add(struct config *c, const struct span *words, size_t n, char **why_p);
/* whole: all of it may be in one word. */
bool config_module_add(struct config *c, const struct span *words, size_t n, bool whole,
                       char **why_p);
/* What a later source says takes the place of what an earlier one said. */
bool config_user_add(struct config *c, unsigned source, const struct span *words, size_t n,
                     char **why_p);
/* The modules that are loaded, as lines; freed by the caller. */
struct config_lines config_modules_now(void);

#endif
