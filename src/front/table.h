/* The command table: look-up by name, figures per command, and where the keys of a request are. */
#ifndef TARN_FRONT_TABLE_H
#define TARN_FRONT_TABLE_H

#include "base/hist.h"
#include "front/cmd.h"

/* Of one command or subcommand, by cmd->stat_index. */
struct cmd_stat {
    const struct cmd *cmd;
    const struct cmd *parent; /* container, NULL */
    char name[40];            /* "get", "config|get" */
    uint64_t calls, ns;
    uint64_t rejected, failed; /* refused before it ran; answered an error */
    /* ns; NULL until called. The caller of table_stat_add need not care */
    struct hist *latency;
};

/* Once, before anything else: made from the declarations of src/wire. */
void table_init(const cmd_fn *functions);
void table_free(void);

/* Commands that come and go: those of modules. cmd stays the caller's, and must be there until the
 * end of the process: somebody may have looked it up before it was removed (a queue of MULTI).
 * TARN_EEXISTS, TARN_ELIMIT; TARN_EINVAL: its name is too long. Removing one that is not there does
 * nothing. */
#define TABLE_ADDED_MAX 128u
tarn_status table_add(struct cmd *cmd);
void table_remove(struct cmd *cmd);
/* Grows when commands come or go: who has looked some up ahead looks again. */
extern unsigned table_changes;

/* From now on a command has another name for clients (to "": none); for rules of users, figures and
 * the log it keeps its own. TARN_ENOTFOUND, TARN_EEXISTS, TARN_ELIMIT. */
#define TABLE_RENAMED_MAX 256u
tarn_status table_rename(struct span from, struct span to);
/* The command that was declared with that name, whatever clients call it; NULL: unknown. */
const struct cmd *table_declared(struct span name);

/* The command of that name, any case; NULL: unknown. A container when it has subcommands. */
const struct cmd *table_find(struct span name);
/* NULL: no such subcommand. */
const struct cmd *table_find_sub(const struct cmd *container, struct span name);
/* What a client may have meant by a name that is no command, or none of container's; NULL:
 * nothing is near, or it is a command of Redis that is not here. Names that were given by
 * table_rename are not told. */
const char *table_near(struct span name);
const char *table_near_sub(const struct cmd *container, struct span name);
/* "config|get" or "get". */
const struct cmd *table_find_full(struct span name);

/* Top-level commands in table order, then those that were added; i < table_count(). */
size_t table_count(void);
const struct cmd *table_at(size_t i);

struct cmd_stat *table_stat(const struct cmd *cmd);
size_t table_stat_count(void);
struct cmd_stat *table_stat_at(size_t i);
void table_stat_reset(void);
void table_stat_latency(struct cmd_stat *stat, uint64_t ns, unsigned times);

/* The positions of all keys of argv[0..argc), through fn. -1: the request does not fit the key
 * specs. Returns how many. */
struct cmd_key_ref {
    size_t index;
    unsigned flags; /* enum cmd_key_flag */
};
/* Look-ups of KV groups name hashes; their keys are put together while they run, so that table_keys
 * finds none. Where the first group is, 0: it is none; argc: it does not fit. The name of each
 * begins its keys. */
size_t table_kv_groups(const struct cmd *cmd, const struct span *argv, size_t argc, size_t *n_p);
typedef void (*table_key_fn)(void *arg, struct cmd_key_ref key);
/* ... of those only n, from the one numbered from on, and of no KV groups. Returns how many there
 * are altogether. */
int64_t table_keys_part(const struct cmd *cmd, const struct span *argv, size_t argc, size_t from,
                        size_t n, table_key_fn fn, void *arg);
int64_t table_keys(const struct cmd *cmd, const struct span *argv, size_t argc, table_key_fn fn,
                   void *arg);

/* Which arguments of a request are passwords, keys of memory and the like. */
struct table_secrets {
    size_t from;  /* this one and all behind it */
    uint64_t one; /* these of the first 64 */
};
#define TABLE_SECRETS_DEPTH                                                                        \
    32u /* arguments before a command within commands, from where on all is secret */
struct table_secrets table_secrets(const struct span *argv, size_t argc);
static inline bool table_is_secret(const struct table_secrets *s, size_t index) {
    return index >= s->from || (index < 64 && s->one >> index & 1);
}

/* The category names ("@read" ...) of cmd, through fn. */
void table_categories(const struct cmd *cmd, void (*fn)(void *arg, const char *name), void *arg);
/* "write", "readonly" ... of each flag, through fn. */
void table_flags(const struct cmd *cmd, void (*fn)(void *arg, const char *name), void *arg);

#endif
