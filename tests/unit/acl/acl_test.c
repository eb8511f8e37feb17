/* Rules, users, checks and their texts. */
#include "../test.h"

#include "acl/acl.h"
#include "base/assert.h"

enum { GET, SET, CONFIG, CONFIG_GET, CONFIG_SET, SELECT, PUBLISH, AUTH, COMMANDS };

static uint32_t bit(const char *name) {
    unsigned i = 0;
    CHECK(acl_category_find(span_str(name), &i));
    return UINT32_C(1) << i;
}

static const struct acl_command *commands(void) {
    static struct acl_command list[COMMANDS];
    list[GET] = (struct acl_command){"get", bit("read") | bit("string") | bit("fast"), -1, false};
    list[SET] = (struct acl_command){"set", bit("write") | bit("string") | bit("slow"), -1, false};
    list[CONFIG] = (struct acl_command){"config", bit("slow"), -1, true};
    list[CONFIG_GET] =
        (struct acl_command){"config|get", bit("admin") | bit("slow"), CONFIG, false};
    list[CONFIG_SET] =
        (struct acl_command){"config|set", bit("admin") | bit("slow"), CONFIG, false};
    list[SELECT] = (struct acl_command){"select", bit("fast") | bit("connection"), -1, false};
    list[PUBLISH] = (struct acl_command){"publish", bit("pubsub") | bit("fast"), -1, false};
    list[AUTH] = (struct acl_command){"auth", bit("connection") | bit("fast"), -1, false};
    return list;
}

static struct acl *fresh(void) {
    struct acl *acl = acl_create();
    acl_set_commands(acl, commands(), COMMANDS);
    return acl;
}

/* Words of text, as rules for name. The text of the fault, "" for none. */
static const char *set(struct acl *acl, const char *name, const char *text) {
    static char why[1024];
    struct span rules[256];
    size_t n = 0;
    char *copy = strdup(text);
    for (char *w = strtok(copy, " "); w != NULL; w = strtok(NULL, " ")) rules[n++] = span_str(w);
    struct acl_fault f = {0};
    why[0] = '\0';
    if (acl_set(acl, span_str(name), rules, n, &f) == NULL)
        snprintf(why, sizeof(why), "%.*s: %s", (int)f.rule.len, f.rule.len > 0 ? f.rule.data : "",
                 f.unmatched ? "unmatched" : f.why);
    acl_fault_free(&f);
    free(copy);
    return why;
}

static const char *text_of(struct acl *acl, const char *name) {
    static char text[8192];
    struct buf b = {NULL, 0, 0};
    acl_describe(acl_find(acl, span_str(name)), &b);
    snprintf(text, sizeof(text), "%.*s", (int)b.len, b.data);
    buf_free(&b);
    return text;
}

static bool may(struct acl *acl, const char *name, unsigned command) {
    const struct acl_user *u = acl_find(acl, span_str(name));
    for (size_t i = 0; i < acl_selectors(u); i++)
        if (acl_allows_command(u, i, command, span_of(NULL, 0))) return true;
    return false;
}

TEST(the_default_user_may_everything) {
    struct acl *acl = fresh();
    struct acl_user *u = acl_default(acl);
    CHECK(acl_user_unrestricted(u) && acl_user_on(u) && acl_user_nopass(u));
    CHECK_STR(text_of(acl, "default"), "on nopass ~* &* +@all");
    CHECK(acl_user_login(u, SPAN("anything")));
    CHECK(!acl_delete(acl, SPAN("default")));
    CHECK_EQ(acl_count(acl), 1);
    acl_destroy(&acl);
    CHECK(acl == NULL);
}

TEST(a_new_user_may_nothing) {
    struct acl *acl = fresh();
    CHECK_STR(set(acl, "u", ""), "");
    CHECK_STR(text_of(acl, "u"), "off resetchannels -@all");
    for (unsigned i = 0; i < COMMANDS; i++) CHECK(!may(acl, "u", i));
    struct acl_user *u = acl_find(acl, SPAN("u"));
    CHECK(!acl_allows_key(u, 0, SPAN("k"), 0) && !acl_allows_channel(u, 0, SPAN("c"), false));
    CHECK(!acl_user_login(u, SPAN("")));
    acl_destroy(&acl);
}

/* As redis-server 7.0.15 answers. */
TEST(faults_have_the_texts_of_redis) {
    static const char *const rows[][2] = {
        {"foo", "foo: Syntax error"},
        {"+foo", "+foo: Unknown command or category name in ACL"},
        {"+@foo", "+@foo: Unknown command or category name in ACL"},
        {"#x", "#x: The password hash must be exactly 64 characters and contain only lowercase "
               "hexadecimal "
               "characters"},
        {"!x", "!x: The password hash must be exactly 64 characters and contain only lowercase "
               "hexadecimal "
               "characters"},
        {"<x", "<(redacted): The password you are trying to remove from the user does not exist"},
        {"%~x", "%~x: Syntax error"},
        {"%X~", "%X~: Syntax error"},
        {"%", "%: Syntax error"},
        {"%RR~x", "%RR~x: Syntax error"},
        {"+", "+: Unknown command or category name in ACL"},
        {"+@", "+@: Unknown command or category name in ACL"},
        {"-", "-: Unknown command or category name in ACL"},
        {"-select|1", "-select|1: Unknown command or category name in ACL"},
        {"+config|get|x", "+config|get|x: Allowing first-arg of a subcommand is not supported"},
        {"+select|", "+select|: Syntax error"},
        {"+config|", "+config|: Syntax error"},
        {"+config|nope", "+config|nope: Unknown command or category name in ACL"},
        {"(", "(: unmatched"},
        {"on (~x +get", "(~x: unmatched"},
        {")", "): Syntax error"},
        {"(+get +foo)", "(+get +foo): Unknown command or category name in ACL"},
        {"(on)", "(on): Syntax error"},
        {"(~x +get &y))", "(~x +get &y)): Syntax error"},
        {"|", "|: Syntax error"},
        {"~* ~x",
         "~x: Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does "
         "not have any effect. Try "
         "'resetkeys' to start with an empty list of patterns"},
        {"allkeys %W~x",
         "%W~x: Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid "
         "and does not have any effect. "
         "Try 'resetkeys' to start with an empty list of patterns"},
        {"&* &y",
         "&y: Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and "
         "does not have any effect. "
         "Try 'resetchannels' to start with an empty list of channels"},
    };
    struct acl *acl = fresh();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CHECK_STR(set(acl, "u", rows[i][0]), rows[i][1]);
        CHECK(acl_find(acl, SPAN("u")) == NULL);
    }
    acl_destroy(&acl);
}

TEST(all_rules_or_none) {
    struct acl *acl = fresh();
    CHECK_STR(set(acl, "u", "on >p ~a* +get"), "");
    char before[1024];
    snprintf(before, sizeof(before), "%s", text_of(acl, "u"));
    struct acl_user *u = acl_find(acl, SPAN("u"));
    CHECK(set(acl, "u", "off resetpass allkeys +@all +nope")[0] != '\0');
    CHECK_STR(text_of(acl, "u"), before);
    CHECK(acl_find(acl, SPAN("u")) == u && acl_user_login(u, SPAN("p")));
    acl_destroy(&acl);
}

TEST(passwords) {
    struct acl *acl = fresh();
    CHECK_STR(set(acl, "u",
                  "on >x >x #2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881 >y"),
              "");
    struct acl_user *u = acl_find(acl, SPAN("u"));
    CHECK_EQ(acl_passwords(u), 2);
    CHECK(acl_user_login(u, SPAN("x")) && acl_user_login(u, SPAN("y")) &&
          !acl_user_login(u, SPAN("z")));
    CHECK_STR(set(acl, "u", "<x"), "");
    CHECK(!acl_user_login(u, SPAN("x")) && acl_user_login(u, SPAN("y")));
    CHECK_STR(set(acl, "u", "off"), "");
    CHECK(!acl_user_login(u, SPAN("y")) && acl_user_has_password(u, SPAN("y")));
    CHECK_STR(set(acl, "u", "nopass on"), "");
    CHECK(acl_passwords(u) == 0 && acl_user_login(u, SPAN("whatever")));
    CHECK_STR(set(acl, "u", "resetpass"), "");
    CHECK(!acl_user_login(u, SPAN("")) && !acl_user_login(u, SPAN("y")));
    acl_destroy(&acl);
}

TEST(rules_of_commands_hold_in_their_order) {
    struct acl *acl = fresh();
    set(acl, "u", "+@all -@string +get");
    CHECK(may(acl, "u", GET) && !may(acl, "u", SET) && may(acl, "u", CONFIG_SET));
    CHECK_STR(text_of(acl, "u"), "off resetchannels +@all -@string +get");
    set(acl, "u", "-@STRING"); /* again, so it is the last now */
    CHECK(!may(acl, "u", GET));
    CHECK_STR(text_of(acl, "u"), "off resetchannels +@all +get -@string");
    set(acl, "u", "nocommands +config|get +CONFIG");
    CHECK(may(acl, "u", CONFIG_SET) && !may(acl, "u", GET));
    CHECK_STR(text_of(acl, "u"), "off resetchannels -@all +config");
    set(acl, "u", "-config +config|get");
    CHECK(may(acl, "u", CONFIG_GET) && !may(acl, "u", CONFIG_SET) && !may(acl, "u", CONFIG));
    CHECK_STR(text_of(acl, "u"), "off resetchannels -@all +config|get");
    set(acl, "u", "+@all +get -@admin +config|get"); /* what changes nothing is not kept */
    CHECK_STR(text_of(acl, "u"), "off resetchannels +@all -@admin +config|get");
    set(acl, "u", "-@all -get -@read");
    CHECK_STR(text_of(acl, "u"), "off resetchannels -@all");
    set(acl, "u", "reset +@slow"); /* a container brings its subcommands along */
    CHECK(may(acl, "u", CONFIG) && may(acl, "u", CONFIG_GET) && may(acl, "u", SET) &&
          !may(acl, "u", GET));
    acl_destroy(&acl);
}

TEST(a_category_alone_is_told_as_it_was_given) {
    struct acl *acl = fresh();
    for (unsigned i = 0; i < ACL_CATEGORIES; i++) {
        char rules[64], text[64];
        snprintf(rules, sizeof(rules), "reset +@all -@%s", acl_category_name(i));
        snprintf(text, sizeof(text), "off resetchannels +@all -@%s", acl_category_name(i));
        CHECK_STR(set(acl, "u", rules), "");
        CHECK_STR(text_of(acl, "u"), text);
    }
    CHECK(acl_category_name(acl_categories()) == NULL);
    acl_destroy(&acl);
}

TEST(categories_that_come_later) {
    unsigned i;
    struct acl *acl = fresh();
    CHECK_STR(set(acl, "u", "reset +@later"), "+@later: Unknown command or category name in ACL");
    CHECK_EQ(acl_category_add("read"), TARN_EEXISTS);
    CHECK_EQ(acl_category_add("all"), TARN_EEXISTS);
    CHECK_EQ(acl_category_add("later"), TARN_OK);
    CHECK_EQ(acl_category_add("later"), TARN_OK);
    CHECK_EQ(acl_categories(), ACL_CATEGORIES + 1);
    CHECK(acl_category_find(SPAN("LATER"), &i) && i == ACL_CATEGORIES);
    CHECK_STR(acl_category_name(i), "later");
    CHECK_STR(set(acl, "u", "reset +@later"), "");
    CHECK_STR(text_of(acl, "u"), "off resetchannels -@all +@later");
    CHECK(!may(acl, "u", GET)); /* no command is in it */
    for (char name[] = "a"; acl_categories() < 32; name[0]++)
        CHECK_EQ(acl_category_add(name), TARN_OK);
    CHECK_EQ(acl_category_add("onemore"), TARN_ELIMIT);
    CHECK(acl_category_name(32) == NULL);
    acl_destroy(&acl);
}

TEST(first_arguments) {
    struct acl *acl = fresh();
    set(acl, "u", "+select|0 +select|Two");
    const struct acl_user *u = acl_find(acl, SPAN("u"));
    CHECK(acl_allows_command(u, 0, SELECT, SPAN("0")) &&
          acl_allows_command(u, 0, SELECT, SPAN("tWO")));
    CHECK(!acl_allows_command(u, 0, SELECT, SPAN("1")) &&
          !acl_allows_command(u, 0, SELECT, span_of(NULL, 0)));
    CHECK(!acl_allows_command(u, 0, GET, SPAN("0")));
    set(acl, "u", "-select");
    CHECK(!acl_allows_command(u, 0, SELECT, SPAN("0")));
    acl_destroy(&acl);
}

TEST(keys_by_what_is_done_to_them) {
    struct acl *acl = fresh();
    set(acl, "u", "~both:* %R~read:* %w~write:*");
    const struct acl_user *u = acl_find(acl, SPAN("u"));
    CHECK(acl_allows_key(u, 0, SPAN("both:1"), ACL_READ | ACL_WRITE));
    CHECK(acl_allows_key(u, 0, SPAN("read:1"), ACL_READ) &&
          !acl_allows_key(u, 0, SPAN("read:1"), ACL_WRITE));
    CHECK(acl_allows_key(u, 0, SPAN("write:1"), ACL_WRITE) &&
          !acl_allows_key(u, 0, SPAN("write:1"), ACL_READ));
    CHECK(!acl_allows_key(u, 0, SPAN("write:1"), ACL_READ | ACL_WRITE));
    CHECK(acl_allows_key(u, 0, SPAN("write:1"), 0) && !acl_allows_key(u, 0, SPAN("other"), 0));
    CHECK(!acl_allows_key(u, 0, span_of(NULL, 100), 0)); /* a large argument that is elsewhere */
    CHECK(!acl_allows_every_key(u, 0, ACL_READ));
    CHECK(acl_allows_beginning(u, 0, SPAN("read:1"), ACL_READ));
    CHECK(!acl_allows_beginning(u, 0, SPAN("read"), ACL_READ));
    CHECK(!acl_allows_beginning(u, 0, SPAN("write:1"), ACL_READ));
    CHECK_STR(text_of(acl, "u"), "off ~both:* %R~read:* %W~write:* resetchannels -@all");
    set(acl, "u", "%W~read:*"); /* the same pattern has more rights now */
    CHECK(acl_allows_key(u, 0, SPAN("read:1"), ACL_READ | ACL_WRITE));
    set(acl, "u", "%R~*");
    CHECK(acl_allows_every_key(u, 0, ACL_READ) && !acl_allows_every_key(u, 0, ACL_WRITE));
    CHECK(!acl_allows_all_keys(u, 0));
    set(acl, "u", "%RW~*");
    CHECK(acl_allows_all_keys(u, 0) && acl_allows_every_key(u, 0, ACL_WRITE));
    acl_destroy(&acl);
}

TEST(channels) {
    struct acl *acl = fresh();
    set(acl, "u", "&news:* &[a");
    const struct acl_user *u = acl_find(acl, SPAN("u"));
    CHECK(acl_allows_channel(u, 0, SPAN("news:1"), false) &&
          !acl_allows_channel(u, 0, SPAN("old"), false));
    CHECK(acl_allows_channel(u, 0, SPAN("news:*"), true) &&
          !acl_allows_channel(u, 0, SPAN("news:1"), true));
    CHECK_STR(text_of(acl, "u"), "off resetchannels &news:* &[a -@all");
    acl_destroy(&acl);
}

TEST(selectors) {
    struct acl *acl = fresh();
    CHECK_STR(set(acl, "u", "on ~a +get (~b +set) ( ~c  +get +publish &x ) ()"), "");
    const struct acl_user *u = acl_find(acl, SPAN("u"));
    CHECK_EQ(acl_selectors(u), 4);
    CHECK_STR(
        text_of(acl, "u"),
        "on ~a resetchannels -@all +get (~b resetchannels -@all +set) (~c resetchannels &x -@all "
        "+get +publish) (resetchannels -@all)");
    CHECK(acl_allows_command(u, 1, SET, span_of(NULL, 0)) &&
          acl_allows_key(u, 1, SPAN("b"), ACL_WRITE));
    CHECK(!acl_allows_key(u, 1, SPAN("a"), ACL_WRITE));
    CHECK(!acl_user_unrestricted(u));
    set(acl, "u", "(+@all ~* &*)");
    CHECK(acl_user_unrestricted(u));
    set(acl, "u", "clearselectors");
    CHECK(acl_selectors(u) == 1 && !acl_user_unrestricted(u));
    acl_destroy(&acl);
}

TEST(unrestricted_means_all) {
    static const struct {
        const char *rules;
        bool all;
    } rows[] = {{"+@all ~* &*", true},       {"+@all ~*", false},
                {"+@all &*", false},         {"+@read ~* &*", false},
                {"+@all -get ~* &*", false}, {"+@all -get +get ~* &*", true},
                {"+@all -@set ~* &*", false}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct acl *acl = fresh();
        CHECK_STR(set(acl, "u", rows[i].rules), "");
        CHECK_EQ(acl_user_unrestricted(acl_find(acl, SPAN("u"))), rows[i].all);
        acl_destroy(&acl);
    }
}

/* A module brings a command, and takes it away again. */
TEST(rules_outlive_the_table) {
    struct acl_command list[COMMANDS + 1];
    struct acl *acl = acl_create();
    memcpy(list, commands(), COMMANDS * sizeof(list[0]));
    list[COMMANDS] = (struct acl_command){"toy.ping", bit("read"), -1, false};
    CHECK_STR(set(acl, "early", "+toy.ping +nonsense +get"), ""); /* nobody knows yet */
    CHECK(!acl_user_unrestricted(acl_default(acl)));
    acl_set_commands(acl, list, COMMANDS + 1);
    CHECK(acl_user_unrestricted(acl_default(acl)));
    CHECK(may(acl, "early", COMMANDS) && may(acl, "early", GET) && !may(acl, "early", SET));
    set(acl, "all", "+@all");
    set(acl, "reader", "+@read");
    acl_set_commands(acl, list, COMMANDS);
    CHECK_STR(text_of(acl, "early"), "off resetchannels -@all +toy.ping +nonsense +get");
    acl_set_commands(acl, list, COMMANDS + 1);
    CHECK(may(acl, "all", COMMANDS) && may(acl, "reader", COMMANDS) && may(acl, "early", COMMANDS));
    acl_destroy(&acl);
}

TEST(names) {
    CHECK(acl_name_fault(SPAN("a b")) != NULL && acl_name_fault(SPAN("")) != NULL &&
          acl_name_fault(SPAN("a\0b")) != NULL);
    CHECK(acl_name_fault(SPAN("a\nb")) != NULL && acl_name_fault(SPAN("\xc3\xa9")) == NULL);
    struct acl *acl = fresh();
    static const char *const order[] = {"b", "a", "ab", "c", "B"};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) CHECK_STR(set(acl, order[i], ""), "");
    const char *sorted = "B a ab b c default";
    char text[64] = "";
    for (size_t i = 0; i < acl_count(acl); i++) {
        if (i > 0) strcat(text, " ");
        strcat(text, acl_user_name(acl_at(acl, i)));
    }
    CHECK_STR(text, sorted);
    CHECK(acl_delete(acl, SPAN("ab")) && !acl_delete(acl, SPAN("ab")) &&
          acl_find(acl, SPAN("ab")) == NULL);
    acl_destroy(&acl);
}

TEST(everything_is_bounded) {
    struct acl *acl = fresh();
    char word[32];
    const char *why = "";
    unsigned n = 0;
    for (; why[0] == '\0' && n < 2 * ACL_PATTERNS_MAX; n++) {
        snprintf(word, sizeof(word), "~k%u", n);
        why = set(acl, "u", word);
    }
    CHECK_EQ(n, ACL_PATTERNS_MAX + 1);
    for (n = 0, why = ""; why[0] == '\0' && n < 2 * ACL_PASSWORDS_MAX; n++) {
        snprintf(word, sizeof(word), ">%u", n);
        why = set(acl, "u", word);
    }
    CHECK_EQ(n, ACL_PASSWORDS_MAX + 1);
    for (n = 0, why = ""; why[0] == '\0' && n < 2 * ACL_SELECTORS_MAX; n++)
        why = set(acl, "u", "(~a)");
    CHECK_EQ(n, ACL_SELECTORS_MAX); /* its own is one */
    for (n = 0, why = ""; why[0] == '\0' && n < 2 * ACL_RULES_MAX; n++) {
        snprintf(word, sizeof(word), "+select|%u", n);
        why = set(acl, "u", word);
    }
    CHECK_EQ(n, ACL_RULES_MAX + 1);
    for (n = 0, why = ""; why[0] == '\0' && n < 2 * ACL_USERS_MAX; n++) {
        snprintf(word, sizeof(word), "user%u", n);
        why = set(acl, word, "on");
    }
    CHECK_EQ(n, ACL_USERS_MAX - 1); /* default and u */
    char *large = malloc(ACL_WORD_MAX + 2);
    memset(large, 'x', ACL_WORD_MAX + 1);
    large[0] = '~';
    large[ACL_WORD_MAX + 1] = '\0';
    CHECK(strstr(set(acl, "user1", large), "too long") != NULL);
    free(large);
    acl_destroy(&acl);
}

/* --- files --- */

static const char *read_text(struct acl *acl, const char *text) {
    static char errors[2048];
    struct buf b = {NULL, 0, 0};
    errors[0] = '\0';
    if (!acl_read_file(acl, "f", span_str(text), &b))
        snprintf(errors, sizeof(errors), "%.*s", (int)b.len, b.data);
    buf_free(&b);
    return errors;
}

TEST(a_file_is_what_was_written) {
    struct acl *acl = fresh(), *other = fresh();
    set(acl, "u", "on >p ~a\"b %R~c\\d &x' +get (~e +set) +select|0");
    set(acl, "v", "+select|\x01");
    set(acl, "default", "off resetpass");
    struct buf a = {NULL, 0, 0}, b = {NULL, 0, 0};
    acl_write_file(acl, &a);
    buf_append_char(&a, '\0');
    CHECK_STR(read_text(other, a.data), "");
    acl_write_file(other, &b);
    buf_append_char(&b, '\0');
    CHECK_STR(b.data, a.data);
    buf_free(&a);
    buf_free(&b);
    acl_destroy(&acl);
    acl_destroy(&other);
}

TEST(faults_of_a_file) {
    static const char *const rows[][2] = {
        {"foo", "f:1 should start with user keyword followed by the username. "},
        {"user", "f:1 should start with user keyword followed by the username. "},
        {"# c", "f:1 should start with user keyword followed by the username. "},
        {"user x on\nuser x off", "WARNING: Duplicate user 'x' found on line 2. "},
        {"user default on\nuser default off",
         "WARNING: Duplicate user 'default' found on line 2. "},
        {"user y (~a", "f:1: Unmatched parenthesis in selector definition. "},
        {"user x on +nope",
         "f:1: Error in applying operation '+nope': Unknown command or category name in ACL. "},
        {"user z on\n\n  \r\nuser zz #12",
         "f:4: The password hash must be exactly 64 characters and contain only lowercase "
         "hexadecimal characters. "},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct acl *acl = fresh();
        CHECK_STR(read_text(acl, rows[i][0]), rows[i][1]);
        acl_destroy(&acl);
    }
}

TEST(a_file_without_a_line_for_default_leaves_it_open) {
    struct acl *acl = fresh();
    CHECK_STR(read_text(acl, "user a on\n"), "");
    CHECK(acl_user_unrestricted(acl_default(acl)));
    acl_destroy(&acl);
}

/* --- one list in place of another --- */

TEST(replacing_all) {
    struct acl *acl = fresh(), *next = fresh();
    set(acl, "gone", "on");
    set(acl, "kept", "on >p +get");
    set(acl, "other", "on +get");
    struct acl_user *kept = acl_find(acl, SPAN("kept")), *other = acl_find(acl, SPAN("other"));
    CHECK_STR(read_text(next, "user kept on >p +get\nuser other on +set\nuser new on +get\n"), "");
    acl_replace(acl, &next);
    CHECK(next == NULL);
    CHECK(acl_find(acl, SPAN("kept")) == kept && acl_find(acl, SPAN("other")) == other);
    CHECK_EQ(acl_count(acl), 4);
    CHECK(may(acl, "new", GET) && may(acl, "other", SET) && !may(acl, "other", GET) &&
          may(acl, "kept", GET));
    acl_destroy(&acl);
}

TEST_MAIN()
