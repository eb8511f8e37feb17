/* The command table: names are found in any case and no others, key specs find the keys, every syntax line is a tree. */
#include "cmd/syntax.h"
#include "cmd/table.h"

#include "../test.h"

static size_t found[16], n_found;

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
    table_init();
    for (size_t i = 0; i < table_count(); i++) {
        const char *name = table_at(i)->name;
        char upper[32];
        size_t n = strlen(name);
        for (size_t k = 0; k <= n; k++)
            upper[k] = (char)(name[k] >= 'a' && name[k] <= 'z' ? name[k] - 32 : name[k]);
        CHECK(table_find(span_of(name, n)) == table_at(i));
        CHECK(table_find(span_of(upper, n)) == table_at(i));
        CHECK(table_find(span_of(name, n - 1)) == NULL || table_find(span_of(name, n - 1)) != table_at(i));
        upper[0] = '@';
        CHECK(table_find(span_of(upper, n)) == NULL);
    }
    CHECK(table_find(SPAN("")) == NULL);
    CHECK(table_find(SPAN("a-name-longer-than-any-command-there-is")) == NULL);
    CHECK(table_find_full(SPAN("config|get")) != NULL);
    CHECK(table_find_full(SPAN("config|nothing")) == NULL);
    table_free();
}

TEST(every_syntax_parses) {
    static struct syntax s;
    table_init();
    for (size_t i = 0; i < table_stat_count(); i++) {
        const struct cmd *cmd = table_stat_at(i)->cmd;
        if (!syntax_parse(&s, cmd->syntax)) printf("# %s: %s\n", table_stat_at(i)->name, cmd->syntax);
        CHECK(syntax_parse(&s, cmd->syntax));
        CHECK(cmd->summary[0] != '\0' && cmd->arity != 0);
    }
    table_free();
}

TEST(syntax_trees) {
    static struct syntax s;
    CHECK(syntax_parse(&s, "key value [key value ...] [NX | XX] [EX seconds | KEEPTTL]"));
    CHECK_EQ(s.first->type, SYNTAX_BLOCK);
    CHECK(s.first->multiple && !s.first->optional);
    const struct syntax_node *nx = s.first->next, *ex = nx->next;
    CHECK(nx->type == SYNTAX_ONEOF && nx->optional && nx->child->type == SYNTAX_TOKEN);
    CHECK(ex->type == SYNTAX_ONEOF && span_eq(ex->child->token, SPAN("EX")) &&
          span_eq(ex->child->name, SPAN("seconds")));
    CHECK(syntax_parse(&s, "key [key ...]") && s.first->multiple && s.first->next == NULL);
    CHECK(syntax_parse(&s, "[PREFER segment [PREFER segment ...]]"));
    CHECK(s.first->multiple && s.first->optional && span_eq(s.first->token, SPAN("PREFER")));
    CHECK(!syntax_parse(&s, "key [value") && !syntax_parse(&s, "key ]") && !syntax_parse(&s, "<"));
}

TEST(keys_of_requests) {
    table_init();
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
    CHECK_EQ(keys("mexists 3 a b"), INT64_C(-1));
    CHECK_EQ(keys("mexists 18446744073709551615 a b"), INT64_C(-1));
    CHECK_EQ(keys("mputstart 9223372036854775807 a 1"), INT64_C(-1));
    CHECK_EQ(keys("object encoding a"), INT64_C(1));
    CHECK_EQ(found[0], (size_t)2);
    CHECK_EQ(keys("ping"), INT64_C(0));
    table_free();
}

TEST_MAIN()
