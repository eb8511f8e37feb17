/* The command table: look-up by name, figures per command, and where the keys of a request are. */
#ifndef TARN_CMD_TABLE_H
#define TARN_CMD_TABLE_H

#include "base/hist.h"
#include "cmd/cmd.h"

/* Of one command or subcommand, by cmd->stat_index. */
struct cmd_stat {
    const struct cmd *cmd;
    const struct cmd *parent; /* container, NULL */
    char name[40];            /* "get", "config|get" */
    uint64_t calls, ns;
    uint64_t rejected, failed; /* refused before it ran; answered an error */
    struct hist *latency;      /* us; NULL until called. The caller of table_stat_add need not care */
};

/* Once, before anything else. Aborts on a contradictory table. */
void table_init(void);
void table_free(void);

/* The command of that name, any case; NULL: unknown. A container when it has subcommands. */
const struct cmd *table_find(struct span name);
/* NULL: no such subcommand. */
const struct cmd *table_find_sub(const struct cmd *container, struct span name);
/* "config|get" or "get". */
const struct cmd *table_find_full(struct span name);

/* Top-level commands in table order; i < table_count(). */
size_t table_count(void);
const struct cmd *table_at(size_t i);

struct cmd_stat *table_stat(const struct cmd *cmd);
size_t table_stat_count(void);
struct cmd_stat *table_stat_at(size_t i);
void table_stat_reset(void);
void table_stat_latency(struct cmd_stat *stat, uint64_t us);

/* The positions of all keys of argv[0..argc), through fn. -1: the request does not fit the key specs. Returns
 * how many. */
struct cmd_key_ref {
    size_t index;
    unsigned flags; /* enum cmd_key_flag */
};
typedef void (*table_key_fn)(void *arg, struct cmd_key_ref key);
int64_t table_keys(const struct cmd *cmd, const struct span *argv, size_t argc, table_key_fn fn, void *arg);

/* The category names ("@read" ...) of cmd, through fn. */
void table_categories(const struct cmd *cmd, void (*fn)(void *arg, const char *name), void *arg);
/* "write", "readonly" ... of each flag, through fn. */
void table_flags(const struct cmd *cmd, void (*fn)(void *arg, const char *name), void *arg);

/* The parts, ended by a NULL name. Not const: table_init writes stat_index. */
extern struct cmd table_string[], table_generic[], table_pool[], table_connection[], table_server[];

#define ONE_KEY(f)                                                                                           \
    {                                                                                                        \
        { (f), 1, false, 0, 1, 0, NULL }                                                                     \
    }
#define SUB_KEY(f)                                                                                           \
    {                                                                                                        \
        { (f), 2, false, 0, 1, 0, NULL }                                                                     \
    }
#define ALL_KEYS(f)                                                                                          \
    {                                                                                                        \
        { (f), 1, false, -1, 1, 0, NULL }                                                                    \
    }
#define KEY_VALUES(f)                                                                                        \
    {                                                                                                        \
        { (f), 1, false, -1, 2, 0, NULL }                                                                    \
    }
#define COUNTED(f, step)                                                                                     \
    {                                                                                                        \
        { (f), 1, true, 0, (step), 0, NULL }                                                                 \
    }
#define COUNTED_AFTER(f, word)                                                                               \
    {                                                                                                        \
        { (f), 1, true, 0, 1, 0, (word) }                                                                    \
    }
#define NO_KEYS                                                                                              \
    {                                                                                                        \
        { 0, 0, false, 0, 0, 0, NULL }                                                                       \
    }
#define TABLE_END                                                                                            \
    { NULL, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NO_KEYS, NULL, 0 }
#define HELP_ROW(grp)                                                                                        \
    {                                                                                                        \
        "help", cmd_help, 2, CMD_LOADING | CMD_STALE, NULL, grp, "5.0.0", "Lists the subcommands.", "",      \
            NO_KEYS, NULL, 0                                                                                 \
    }

#endif
