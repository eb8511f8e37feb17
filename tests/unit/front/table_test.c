/* The command table: names are found in any case and no others, key specs find the keys. */
#include "acl/acl.h"
#include "front/table.h"

#include "../test.h"
#include "base/assert.h"

static size_t found[16], n_found;
static cmd_fn families[WIRE_COMMANDS];

static void run_nothing(struct client *c) {}

static void begin(void) {
    for (size_t i = 0; i < WIRE_COMMANDS; i++) families[i] = run_nothing;
    table_init(families);
}

static void note(void *arg, struct cmd_key_ref key) {
    if (n_found < 16) found[n_found] = key.index;
    n_found++;
}

static int64_t keys(const char *line) {
    struct span argv[16];
    size_t argc = 0;
    for (const char *p = line; *p != '\0';) {
        size_t n = strcspn(p, " ");
        argv[argc++] = span_of(p, n);
        p += n + (p[n] == ' ');
    }
    const struct cmd *cmd = table_find(argv[0]);
    if (cmd->sub != NULL) cmd = table_find_sub(cmd, argv[1]);
    n_found = 0;
    return table_keys(cmd, argv, argc, note, NULL);
}

TEST(every_name_is_found) {
    begin();
    for (size_t i = 0; i < table_count(); i++) {
        const char *name = table_at(i)->name;
        char upper[32];
        size_t n = strlen(name);
        for (size_t k = 0; k <= n; k++)
            upper[k] = (char)(name[k] >= 'a' && name[k] <= 'z' ? name[k] - 32 : name[k]);
        CHECK(table_find(span_of(name, n)) == table_at(i));
        CHECK(table_find(span_of(upper, n)) == table_at(i));
        CHECK(table_find(span_of(name, n - 1)) == NULL ||
              table_find(span_of(name, n - 1)) != table_at(i));
        upper[0] = '@';
        CHECK(table_find(span_of(upper, n)) == NULL);
    }
    CHECK(table_find(SPAN("")) == NULL);
    CHECK(table_find(SPAN("a-name-longer-than-any-command-there-is")) == NULL);
    CHECK(table_find_full(SPAN("config|get")) != NULL);
    CHECK(table_find_full(SPAN("config|nothing")) == NULL);
    table_free();
}

static bool in_category(const char *name, const char *category);

/* What users get with +@read, +@write and the like. */
TEST(categories) {
    static const struct {
        const char *name, *category;
        bool in;
    } rows[] = {
        {"get", "@read", true},
        {"get", "@fast", true},
        {"putstart", "@write", true},
        {"mexists", "@read", true},
        {"evict", "@admin", true},
        {"evict", "@write", false},
        {"quota|set", "@write", false},
        {"node|join", "@admin", true},
        {"node|list", "@read", false},
        {"segment|info", "@read", true},
        {"segment|list", "@read", false},
        {"segment|attach", "@direct", true},
        {"segment|attach", "@read", false},
        {"replica|report", "@read", true},
        {"replica|copy", "@write", false},
        {"config|get", "@admin", true},
        {"config", "@admin", false},
        {"keys", "@dangerous", true},
    };
    begin();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (in_category(rows[i].name, rows[i].category) != rows[i].in)
            printf("# %s %s\n", rows[i].name, rows[i].category);
        CHECK_EQ(in_category(rows[i].name, rows[i].category), rows[i].in);
    }
    for (size_t i = 0; i < table_stat_count(); i++) {
        const char *name = table_stat_at(i)->name;
        CHECK(in_category(name, "@fast") != in_category(name, "@slow"));
        CHECK(!in_category(name, "@admin") || in_category(name, "@dangerous"));
    }
    table_free();
}

struct wanted {
    const char *category;
    bool found;
};
static void look(void *arg, const char *name) {
    struct wanted *w = arg;
    unsigned i;
    CHECK(name[0] == '@' && acl_category_find(span_str(name + 1), &i));
    w->found |= strcmp(name, w->category) == 0;
}
static bool in_category(const char *name, const char *category) {
    struct wanted w = {category, false};
    const struct cmd *cmd = table_find_full(span_str(name));
    CHECK(cmd != NULL);
    table_categories(cmd, look, &w);
    return w.found;
}

static unsigned flags_seen;
static void note_flags(void *arg, struct cmd_key_ref key) {
    flags_seen = key.flags;
}

TEST(set_reads_only_with_get) {
    struct span plain[] = {SPAN("set"), SPAN("get"), SPAN("get"), SPAN("nx")},
                reads[] = {SPAN("SET"), SPAN("k"), SPAN("v"), SPAN("NX"), SPAN("Get")};
    begin();
    CHECK_EQ(table_keys(table_find(SPAN("set")), plain, 4, note_flags, NULL), 1);
    CHECK_EQ(flags_seen, (unsigned)(KEY_OW | KEY_UPDATE));
    CHECK_EQ(table_keys(table_find(SPAN("set")), reads, 5, note_flags, NULL), 1);
    CHECK_EQ(flags_seen, (unsigned)(KEY_RW | KEY_ACCESS | KEY_UPDATE));
    table_free();
}

static void note_index(void *arg, struct cmd_key_ref key) {
    size_t *sum = arg;
    *sum = *sum * 10 + key.index;
}

TEST(a_part_of_the_keys) {
    struct span argv[] = {SPAN("mset"), SPAN("a"), SPAN("1"), SPAN("b"),
                          SPAN("2"),    SPAN("c"), SPAN("3")};
    const struct {
        size_t from, n, told; /* their indexes, as digits */
    } parts[] = {{0, 0, 0}, {0, 2, 13}, {1, 1, 3}, {1, SIZE_MAX, 35}, {3, 5, 0}, {9, 9, 0}};
    begin();
    const struct cmd *mset = table_find(SPAN("mset"));
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        size_t told = 0;
        CHECK_EQ(table_keys_part(mset, argv, 7, parts[i].from, parts[i].n, note_index, &told), 3);
        CHECK_EQ(told, parts[i].told);
    }
    CHECK_EQ(table_keys_part(mset, argv, 1, 0, 9, note_index, NULL), -1);
    table_free();
}

TEST(keys_of_requests) {
    begin();
    CHECK_EQ(keys("get a"), INT64_C(1));
    CHECK_EQ(found[0], (size_t)1);
    CHECK_EQ(keys("mset a 1 b 2 c 3"), INT64_C(3));
    CHECK_EQ(found[2], (size_t)5);
    CHECK_EQ(keys("mputstart 2 a 10 b 20 TTL 5"), INT64_C(2));
    CHECK_EQ(found[1], (size_t)4);
    CHECK_EQ(keys("mputend 2 a 1 2 b 3 4"), INT64_C(2));
    CHECK_EQ(found[1], (size_t)5);
    CHECK_EQ(keys("prefixlen 3 a b c LEASE 5"), INT64_C(3));
    CHECK_EQ(keys("evict bytes 5 keys 2 a b"), INT64_C(2));
    CHECK_EQ(found[0], (size_t)5);
    CHECK_EQ(keys("evict bytes 5"), INT64_C(0));
    CHECK_EQ(keys("mputend 0 BATCH 7"), INT64_C(0));
    CHECK_EQ(keys("release 0"), INT64_C(0));
    CHECK_EQ(keys("mexists 3 a b"), INT64_C(-1));
    CHECK_EQ(keys("mexists 18446744073709551615 a b"), INT64_C(-1));
    CHECK_EQ(keys("mputstart 9223372036854775807 a 1"), INT64_C(-1));
    CHECK_EQ(keys("object encoding a"), INT64_C(1));
    CHECK_EQ(found[0], (size_t)2);
    CHECK_EQ(keys("ping"), INT64_C(0));
    table_free();
}

/* Commands of modules come and go; the others stay where they are, and so do the figures of those
 * that stay. */
TEST(commands_come_and_go) {
    static struct cmd added[TABLE_ADDED_MAX + 1];
    static char name[TABLE_ADDED_MAX + 1][24];
    begin();
    size_t fixed = table_count(), stats = table_stat_count();
    unsigned changes = table_changes;
    for (size_t i = 0; i <= TABLE_ADDED_MAX; i++) {
        snprintf(name[i], sizeof(name[i]), "mod.a-long-name-%zu", i);
        added[i] =
            (struct cmd){.name = name[i], .run = run_nothing, .arity = 1, .flags = CMD_MODULE};
        CHECK_EQ(table_add(&added[i]), i < TABLE_ADDED_MAX ? TARN_OK : TARN_ELIMIT);
        if (i < TABLE_ADDED_MAX) table_stat(&added[i])->calls = i + 1;
    }
    CHECK_EQ(table_count(), fixed + TABLE_ADDED_MAX);
    CHECK_EQ(table_stat_count(), stats + TABLE_ADDED_MAX);
    CHECK_EQ(table_add(&added[0]), TARN_EEXISTS);
    CHECK(table_find(SPAN("MOD.A-Long-NAME-7")) == &added[7]);
    CHECK(table_find(SPAN("mod.a-long-name-")) == NULL);
    CHECK(table_changes > changes);
    for (size_t i = 0; i < TABLE_ADDED_MAX; i += 2) table_remove(&added[i]);
    table_remove(&added[0]); /* is gone: nothing happens */
    CHECK_EQ(table_count(), fixed + TABLE_ADDED_MAX / 2);
    for (size_t i = 0; i < TABLE_ADDED_MAX; i++) {
        CHECK(table_find(span_str(name[i])) == (i % 2 ? &added[i] : NULL));
        if (i % 2 == 0) continue;
        CHECK_EQ(table_stat(&added[i])->calls, i + 1);
        CHECK_STR(table_stat(&added[i])->name, name[i]);
        CHECK(table_stat(&added[i])->cmd == &added[i]);
    }
    CHECK_EQ(table_add(&added[0]), TARN_OK);
    CHECK_EQ(table_stat(&added[0])->calls, 0); /* it begins anew */
    table_stat_latency(table_stat(&added[0]), 5, 1);
    for (size_t i = 0; i < TABLE_ADDED_MAX; i++) table_remove(&added[i]);
    CHECK_EQ(table_count(), fixed);
    CHECK_EQ(table_stat_count(), stats);
    for (size_t i = 0; i < fixed; i++)
        CHECK(table_find(span_str(table_at(i)->name)) == table_at(i));
    static struct cmd bad[] = {
        {.name = "get", .run = run_nothing, .arity = 1},
        {.name = "mod.a-name-that-is-too-long-for-the-figures", .run = run_nothing, .arity = 1}};
    CHECK_EQ(table_add(&bad[0]), TARN_EEXISTS);
    CHECK_EQ(table_add(&bad[1]), TARN_EINVAL);
    table_free();
}

TEST_MAIN()
