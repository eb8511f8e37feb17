/* Look-up by name must cost nothing: a name is folded into four words, and a multiplication of
 * those finds its slot in a small open table. Everything else here is for COMMAND and INFO, and may
 * take its time. */
#include "front/table.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "acl/acl.h"
#include "base/assert.h"
#include "base/near.h"
#include "wire/options.h"

#define SLOTS        512u /* power of two, at least four times the top-level commands */
#define NAME_LEN_MAX 16u  /* two words tell longer names apart no more */

struct command_slot {
    /* the name's first and last eight bytes, lower case, zero-padded; they may overlap */
    uint64_t word[2];
    size_t len;
    const struct cmd *cmd;
};

static const cmd_fn *runs; /* by enum wire_id */

/* The top-level ones; then the subcommands of each container, ended by a NULL name. */
static struct cmd *commands;

static struct command_slot slots[SLOTS];
static const struct cmd **top;
static size_t top_count, top_fixed; /* fixed: declared; the rest was added */
static struct cmd_stat *stats;
static size_t stat_count, stat_fixed; /* added ones in the order of top */
/* one for all that were removed, for those who still point to them */
static size_t stat_gone;
unsigned table_changes;
static struct {
    char *name;
    const struct cmd *cmd;
} renamed[TABLE_RENAMED_MAX];
static size_t renamed_count;

static inline uint64_t word_load(const char *p, size_t n) {
    uint64_t w = 0;
    memcpy(&w, p, n);
    return w;
}

/* Setting bit 5 maps letters of both cases to lower case, and nothing that is not a letter becomes
 * one: top-level names are letters only. Bytes are gathered without a loop, for this runs before
 * every command. */
static inline void name_fold(struct span name, uint64_t word[2]) {
    const uint64_t bit5 = UINT64_C(0x2020202020202020);
    const char *p = name.data;
    size_t n = name.len;
    if (n >= 8) {
        word[0] = word_load(p, 8) | bit5;
        word[1] = word_load(p + n - 8, 8) | bit5;
    } else {
        if (n >= 4)
            word[0] = word_load(p, 4) | word_load(p + n - 4, 4) << 8 * (n - 4);
        else
            word[0] = word_load(p, 1) | word_load(p + n / 2, 1) << 8 * (n / 2) |
                      word_load(p + n - 1, 1) << 8 * (n - 1);
        word[0] |= bit5 >> 8 * (8 - n);
        word[1] = 0;
    }
}

static inline size_t name_slot(const uint64_t word[2], size_t len) {
    return (size_t)(((word[0] ^ (word[1] * 31) ^ len) * UINT64_C(0x9E3779B97F4A7C15)) >> 40) &
           (SLOTS - 1);
}

/* What is not in the slots: commands of modules, and those that have another name than their
 * own. */
static const struct cmd *find_added(struct span name) {
    for (size_t i = top_fixed; i < top_count; i++)
        if (span_case_eq(name, top[i]->name)) return top[i];
    for (size_t i = 0; i < renamed_count; i++)
        if (span_case_eq(name, renamed[i].name)) return renamed[i].cmd;
    return NULL;
}

const struct cmd *table_find(struct span name) {
    uint64_t word[2];
    if (UNLIKELY(name.len - 1 >= NAME_LEN_MAX || name.data == NULL))
        return name.len > 0 && name.data != NULL ? find_added(name) : NULL;
    name_fold(name, word);
    for (size_t i = name_slot(word, name.len);; i = (i + 1) & (SLOTS - 1)) {
        const struct command_slot *s = &slots[i];
        if (s->cmd == NULL) return find_added(name);
        if (LIKELY(s->word[0] == word[0] && s->word[1] == word[1] && s->len == name.len))
            return s->cmd;
    }
}

const struct cmd *table_find_sub(const struct cmd *container, struct span name) {
    if (UNLIKELY(name.data == NULL)) return NULL;
    for (const struct cmd *s = container->sub; s != NULL && s->name != NULL; s++)
        if (span_case_eq(name, s->name)) return s;
    return NULL;
}

const char *table_near(struct span name) {
    struct near n;
    near_begin(&n, name);
    for (size_t i = 0; i < top_count; i++)
        if (table_find(span_str(top[i]->name)) == top[i]) near_offer(&n, top[i]->name);
    return n.word == NULL || acl_absent(name) || acl_absent_container(name) ? NULL : n.word;
}

const char *table_near_sub(const struct cmd *container, struct span name) {
    struct near n;
    near_begin(&n, name);
    for (const struct cmd *s = container->sub; s != NULL && s->name != NULL; s++)
        near_offer(&n, s->name);
    return n.word;
}

/* "config|get": what find says of the first part, and its subcommand. */
static const struct cmd *find_parts(struct span name, const struct cmd *(*find)(struct span name)) {
    const char *bar = name.len > 0 ? memchr(name.data, '|', name.len) : NULL;
    if (bar == NULL) return find(name);
    const struct cmd *c = find(span_of(name.data, (size_t)(bar - name.data)));
    return c == NULL
               ? NULL
               : table_find_sub(c, span_of(bar + 1, (size_t)(name.data + name.len - bar - 1)));
}

const struct cmd *table_find_full(struct span name) {
    return find_parts(name, table_find);
}

static const struct cmd *find_top(struct span name) {
    for (size_t i = 0; i < top_count; i++)
        if (span_case_eq(name, top[i]->name)) return top[i];
    return NULL;
}

const struct cmd *table_declared(struct span name) {
    return find_parts(name, find_top);
}

static struct cmd_stat *stat_init(struct cmd *cmd, const struct cmd *parent, const char *name) {
    struct cmd_stat *s = &stats[stat_count];
    cmd->stat_index = (unsigned)stat_count++;
    s->cmd = cmd;
    s->parent = parent;
    snprintf(s->name, sizeof(s->name), "%s", name);
    return s;
}

static void slot_insert(const struct cmd *cmd) {
    struct command_slot slot = {.len = strlen(cmd->name), .cmd = cmd};
    TARN_ASSERT(slot.len > 0 && slot.len <= NAME_LEN_MAX);
    name_fold(span_of(cmd->name, slot.len), slot.word);
    size_t i = name_slot(slot.word, slot.len);
    while (slots[i].cmd != NULL) i = (i + 1) & (SLOTS - 1);
    slots[i] = slot;
}

static void command_declare(struct cmd *cmd, enum wire_id id, const struct cmd *parent) {
    const struct wire_command *w = &wire_commands[id];
    *cmd = (struct cmd){.run = runs[id],
                        .arity = wire_arity(w),
                        .flags = w->flags,
                        .categories = w->categories,
                        .group = w->group,
                        .since = w->since,
                        .summary = w->summary,
                        .id = id,
                        .declared = w,
                        .block = wire_block(w)};
    wire_keys(w, cmd->keys);
    wire_plan(w, &cmd->plan);
    struct cmd_stat *stat = stat_init(cmd, parent, w->name);
    for (char *p = stat->name; *p != '\0'; p++) *p = (char)tolower(*p);
    cmd->name = parent != NULL ? strchr(stat->name, '|') + 1 : stat->name;
}

static bool is_sub(enum wire_id id) {
    return strchr(wire_commands[id].name, '|') != NULL;
}

void table_init(const cmd_fn *functions) {
    runs = functions;
    top_count = stat_count = 0;
    for (enum wire_id id = 0; id < WIRE_COMMANDS; id++) top_count += !is_sub(id);
    TARN_ASSERT(top_count * 4 <= SLOTS);
    top = xcalloc(top_count + TABLE_ADDED_MAX, sizeof(struct cmd *));
    commands = xcalloc(WIRE_COMMANDS + top_count, sizeof(*commands));
    stat_gone = WIRE_COMMANDS + TABLE_ADDED_MAX;
    stats = xcalloc(stat_gone + 1, sizeof(*stats));
    top_fixed = top_count;
    memset(slots, 0, sizeof(slots));
    struct cmd *next = commands, *next_sub = commands + top_count, *parent = NULL;
    for (enum wire_id id = 0; id < WIRE_COMMANDS; id++) {
        if (is_sub(id)) {
            if (parent->sub == NULL) parent->sub = next_sub;
            command_declare(next_sub++, id, parent);
            continue;
        }
        if (parent != NULL && parent->sub != NULL) next_sub++; /* the end of them */
        parent = next++;
        command_declare(parent, id, NULL);
        TARN_ASSERT(table_find(span_str(parent->name)) == NULL);
        top[parent - commands] = parent;
        slot_insert(parent);
    }
    stat_fixed = stat_count;
}

/* No name has that length, so the slot is passed over. */
static void slot_close(const struct cmd *cmd) {
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].cmd == cmd) slots[i].len = 0;
}

tarn_status table_rename(struct span from, struct span to) {
    const struct cmd *cmd = table_find(from);
    size_t own = 0;
    if (cmd == NULL) return TARN_ENOTFOUND;
    if (to.len > 0 && table_find(to) != NULL) return TARN_EEXISTS;
    while (own < renamed_count && !span_case_eq(from, renamed[own].name)) own++;
    if (own == renamed_count && to.len > 0 && own == TABLE_RENAMED_MAX) return TARN_ELIMIT;
    if (own < renamed_count) { /* for the second time */
        free(renamed[own].name);
        renamed[own] = renamed[--renamed_count];
    }
    slot_close(cmd);
    if (to.len == 0) return TARN_OK;
    char *name = xmalloc(to.len + 1);
    memcpy(name, to.data, to.len);
    name[to.len] = '\0';
    renamed[renamed_count].name = name;
    renamed[renamed_count++].cmd = cmd;
    return TARN_OK;
}

tarn_status table_add(struct cmd *cmd) {
    cmd->id = WIRE_COMMANDS;
    if (strlen(cmd->name) >= sizeof(stats->name)) return TARN_EINVAL;
    if (table_find(span_str(cmd->name)) != NULL) return TARN_EEXISTS;
    if (top_count - top_fixed == TABLE_ADDED_MAX) return TARN_ELIMIT;
    top[top_count++] = cmd;
    stats[stat_count] = (struct cmd_stat){0};
    stat_init(cmd, NULL, cmd->name);
    table_changes++;
    return TARN_OK;
}

/* The last one takes its place. */
void table_remove(struct cmd *cmd) {
    size_t i = top_fixed;
    while (i < top_count && top[i] != cmd) i++;
    if (i >= top_count) return;
    struct cmd_stat *s = &stats[stat_fixed + (i - top_fixed)];
    free(s->latency);
    top[i] = top[--top_count];
    *s = stats[--stat_count];
    struct cmd *moved = (struct cmd *)(uintptr_t)top[i]; /* added ones are no const objects */
    moved->stat_index = (unsigned)(s - stats);
    cmd->stat_index = (unsigned)stat_gone;
    table_changes++;
}

void table_free(void) {
    for (size_t i = 0; i < stat_count; i++) free(stats[i].latency);
    if (stats != NULL) free(stats[stat_gone].latency);
    free(stats);
    free(top);
    free(commands);
    while (renamed_count > 0) free(renamed[--renamed_count].name);
    stats = NULL, top = NULL, commands = NULL, stat_count = 0, top_count = 0, top_fixed = 0;
}

size_t table_count(void) {
    return top_count;
}
const struct cmd *table_at(size_t i) {
    return top[i];
}
struct cmd_stat *table_stat(const struct cmd *cmd) {
    return &stats[cmd->stat_index];
}
size_t table_stat_count(void) {
    return stat_count;
}
struct cmd_stat *table_stat_at(size_t i) {
    return &stats[i];
}

void table_stat_reset(void) {
    for (size_t i = 0; i < stat_count; i++) {
        struct cmd_stat *s = &stats[i];
        s->calls = s->ns = s->rejected = s->failed = 0;
        if (s->latency != NULL) hist_init(s->latency);
    }
}

void table_stat_latency(struct cmd_stat *stat, uint64_t ns, unsigned times) {
    if (UNLIKELY(stat->latency == NULL)) stat->latency = xcalloc(1, sizeof(*stat->latency));
    hist_add_many(stat->latency, ns, times);
}

/* --- keys --- */

/* Which of the keys are told: those numbered from `from` on, before `to`. */
struct key_window {
    size_t from, to;
    table_key_fn fn;
    void *arg;
};

static int64_t spec_keys(const struct cmd_key_spec *k, const struct span *argv, size_t argc,
                         size_t before, const struct key_window *w) {
    size_t first = (size_t)k->begin_index;
    if (k->keyword != NULL) {
        while (first < argc && !span_case_eq(argv[first], k->keyword)) first++;
        if (first++ >= argc) return 0; /* the optional part is not there */
    }
    if (first >= argc) return -1;
    size_t n, step = (size_t)k->step;
    if (k->keynum) {
        uint64_t count;
        if (!span_to_u64(argv[first], &count)) return -1;
        first++;
        if (count == 0) return 0; /* those of a batch are in its number */
        if (count > (argc - first) / step + 1 || first + (count - 1) * step >= argc) return -1;
        n = (size_t)count;
    } else {
        int64_t last = k->last < 0 ? (int64_t)argc + k->last : (int64_t)first + k->last;
        if (last < (int64_t)first || last >= (int64_t)argc) return -1;
        n = ((size_t)last - first) / step + 1;
    }
    size_t i = w->from > before ? w->from - before : 0;
    for (; i < n && before + i < w->to; i++)
        w->fn(w->arg, (struct cmd_key_ref){first + i * step, k->flags});
    return (int64_t)n;
}

static bool request_says(const struct span *argv, size_t argc, size_t from, const char *word) {
    for (size_t i = from; i < argc; i++)
        if (argv[i].data != NULL && span_case_eq(argv[i], word)) return true;
    return false;
}

/* SET with GET reads, without it only writes. */
static unsigned variable_flags(unsigned flags, const struct span *argv, size_t argc) {
    flags &= ~(unsigned)KEY_VARIABLE;
    return request_says(argv, argc, 3, "get") ? flags
                                              : (flags & ~(unsigned)(KEY_RW | KEY_ACCESS)) | KEY_OW;
}

size_t table_kv_groups(const struct cmd *cmd, const struct span *argv, size_t argc, size_t *n_p) {
    uint64_t n;
    *n_p = 0;
    if (cmd->id != WIRE_prefixlen && cmd->id != WIRE_mgetreplicas) return 0;
    if (argc < 2 || !span_to_u64(argv[1], &n) || n > argc - 2) return 0;
    for (size_t i = 2 + (size_t)n; i < argc; i++) {
        if (!span_case_eq(argv[i], "kvgroups")) continue;
        if (++i == argc || !span_to_u64(argv[i], &n) || n > (argc - i - 1) / WIRE_KV_GROUP_WORDS)
            return argc;
        *n_p = (size_t)n;
        return i + 1;
    }
    return 0;
}

int64_t table_keys_part(const struct cmd *cmd, const struct span *argv, size_t argc, size_t from,
                        size_t n_part, table_key_fn fn, void *arg) {
    const struct key_window w = {from, from + min_u64(n_part, SIZE_MAX - from), fn, arg};
    int64_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(cmd->keys) && cmd->keys[i].flags != 0; i++) {
        struct cmd_key_spec spec = cmd->keys[i];
        if (UNLIKELY(spec.flags & KEY_VARIABLE))
            spec.flags = variable_flags(spec.flags, argv, argc);
        int64_t k = spec_keys(&spec, argv, argc, (size_t)n, &w);
        if (k < 0) return -1;
        n += k;
    }
    return n;
}

int64_t table_keys(const struct cmd *cmd, const struct span *argv, size_t argc, table_key_fn fn,
                   void *arg) {
    size_t groups;
    if (table_kv_groups(cmd, argv, argc, &groups) > 0) return 0;
    return table_keys_part(cmd, argv, argc, 0, SIZE_MAX, fn, arg);
}

/* --- names of flags and categories --- */

void table_categories(const struct cmd *cmd, void (*fn)(void *arg, const char *name), void *arg) {
    char name[48]; /* of a module's own: as long as its name */
    bool admin = cmd->categories != NULL && strstr(cmd->categories, "@admin") != NULL;
    /* What is the operator's is no reading and writing of values: who may do that may not do
     * this. */
    bool values = cmd->run != NULL && !admin && !(cmd->flags & CMD_ADMIN);
    if (values && cmd->flags & CMD_WRITE) fn(arg, "@write");
    if (values && cmd->flags & CMD_READONLY) fn(arg, "@read");
    for (const char *p = cmd->categories; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, " ");
        snprintf(name, sizeof(name), "%.*s", (int)n, p);
        fn(arg, name);
        p += n + strspn(p + n, " ");
    }
    if (cmd->flags & CMD_ADMIN && !admin) fn(arg, "@admin"), fn(arg, "@dangerous");
    if (cmd->flags & CMD_BLOCKING) fn(arg, "@blocking");
    fn(arg, cmd->flags & CMD_FAST ? "@fast" : "@slow");
}

void table_flags(const struct cmd *cmd, void (*fn)(void *arg, const char *name), void *arg) {
    static const struct {
        unsigned flag;
        const char *name;
    } names[] = {
        {CMD_WRITE, "write"},
        {CMD_READONLY, "readonly"},
        {CMD_DENYOOM, "denyoom"},
        {CMD_MODULE, "module"},
        {CMD_ADMIN, "admin"},
        {CMD_PUBSUB, "pubsub"},
        {CMD_NOSCRIPT, "noscript"},
        {CMD_BLOCKING, "blocking"},
        {CMD_LOADING, "loading"},
        {CMD_STALE, "stale"},
        {CMD_SKIP_MONITOR, "skip_monitor"},
        {CMD_SKIP_SLOWLOG, "skip_slowlog"},
        {CMD_FAST, "fast"},
        {CMD_NO_AUTH, "no_auth"},
        {CMD_MOVABLE_KEYS, "movablekeys"},
        {CMD_NO_MULTI, "no_multi"},
        {CMD_ALLOW_BUSY, "allow_busy"},
    };
    unsigned flags =
        cmd->flags | (cmd->keys[0].keynum || cmd->keys[0].keyword != NULL ? CMD_MOVABLE_KEYS : 0u);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (flags & names[i].flag) fn(arg, names[i].name);
}
