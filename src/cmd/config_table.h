/* The rows of the configuration table; private to config*.c. */
#ifndef TARN_CMD_CONFIG_TABLE_H
#define TARN_CMD_CONFIG_TABLE_H

#include "cmd/config.h"

enum config_type {
    CONFIG_BOOL,         /* yes | no: bool */
    CONFIG_INT,          /* int64_t */
    CONFIG_OCTAL,        /* int64_t, as file permissions are written */
    CONFIG_BYTES,        /* uint64_t: 512, 4kb, 1gb */
    CONFIG_COUNT,        /* uint64_t: 0, 1000000, 10m */
    CONFIG_MS,           /* uint64_t: 500, 500ms, 10s, 5min, 1h, 1d */
    CONFIG_RATIO,        /* double */
    CONFIG_STRING,       /* char * */
    CONFIG_LIST,         /* struct config_list */
    CONFIG_ENUM,         /* int: index in words */
    CONFIG_OUTPUT,       /* client-output-buffer-limit */
    CONFIG_PORT_OR_AUTO, /* int64_t: a port, or auto: -1 */
};

enum config_row_flag {
    CONFIG_MUTABLE = 1, /* by CONFIG SET */
    CONFIG_SECRET = 2,  /* not shown by MONITOR and SLOWLOG */
    CONFIG_FIXED = 4,   /* only its default is possible: for clients that ask */
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
    /* Tells the server; NULL: the value is read where it is used. false: *why_p is static text, the old value returns. */
    bool (*apply)(const char **why_p);
};

extern const struct config_row config_rows[];
extern const size_t config_row_count;

const struct config_row *config_row_find(struct span name);
/* Parses words into the field of *c. false: *why_p (caller frees) says what is allowed. */
bool config_row_parse(const struct config_row *row, struct config *c, const struct span *words, size_t n,
                      char **why_p);
/* Appends the value as CONFIG GET shows it. */
void config_row_format(const struct config_row *row, const struct config *c, struct buf *out);
bool config_row_equal(const struct config_row *row, const struct config *a, const struct config *b);
void config_row_copy(const struct config_row *row, struct config *to, const struct config *from);
void config_row_free(const struct config_row *row, struct config *c);

/* printf to a new string. */
char *config_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
