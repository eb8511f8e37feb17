/* Requests against rules: which refusal is told, what a request means before it is whole, and the
 * rights that are asked for by name. */
#include "front.h"

static struct acl_user *user;

static void begin(void) {
    front_begin();
}

static void end(void) {
    front_end();
}

/* Rules between blanks. */
static void rules(const char *text) {
    struct span words[32];
    struct acl_fault fault = {0};
    size_t n = 0;
    for (const char *p = text; *p != '\0';) {
        size_t len = *p == '(' ? strcspn(p, ")") + 1 : strcspn(p, " ");
        words[n++] = span_of(p, len);
        p += len + (p[len] == ' ');
    }
    user = acl_set(acl_users, SPAN("ann"), words, n, &fault);
    if (user == NULL) printf("# %s: %s\n", text, fault.why);
    CHECK(user != NULL);
}

static struct span argv[32];
static size_t argc;

static const struct cmd *request(const char *line) {
    argc = 0;
    for (const char *p = line; *p != '\0';) {
        size_t len = strcspn(p, " ");
        argv[argc++] = span_of(p, len);
        p += len + (p[len] == ' ');
    }
    const struct cmd *cmd = table_find(argv[0]);
    if (cmd != NULL && cmd->sub != NULL && argc > 1) cmd = table_find_sub(cmd, argv[1]);
    return cmd;
}

static enum acl_verdict check(const char *line, size_t *at_p) {
    const struct cmd *cmd = request(line);
    CHECK(cmd != NULL);
    return acl_check(user, cmd, argv, argc, at_p);
}

static bool early(const char *line) {
    (void)request(line);
    return acl_check_early(user, argv, argc);
}

TEST(the_refusal_that_came_furthest) {
    size_t at;
    begin();
    rules("reset on nopass +get ~a* (+mget ~b* ~c*) (+publish +subscribe &news*)");
    CHECK_EQ(check("GET a1", &at), ACL_GRANTED);
    CHECK_EQ(check("SET a1 v", &at), ACL_DENIED_COMMAND);
    CHECK_EQ(check("GET b1", &at), ACL_DENIED_KEY);
    CHECK_EQ(at, 1);
    CHECK_EQ(check("MGET b1 c1", &at), ACL_GRANTED);
    CHECK_EQ(check("MGET b1 c1 d1 e1", &at), ACL_DENIED_KEY);
    CHECK_EQ(at, 3); /* the first one */
    CHECK_EQ(check("PUBLISH news1 x", &at), ACL_GRANTED);
    CHECK_EQ(check("PUBLISH other news1", &at), ACL_DENIED_CHANNEL);
    CHECK_EQ(at, 1);
    CHECK_EQ(check("SUBSCRIBE news1 news2 other", &at), ACL_DENIED_CHANNEL);
    CHECK_EQ(at, 3);
    rules("reset on nopass +get ~a* (+get ~b*)");
    CHECK_EQ(check("GET c", &at), ACL_DENIED_KEY);
    end();
}

TEST(patterns_are_subscribed_to_literally) {
    size_t at;
    begin();
    rules("reset on nopass +psubscribe &news*");
    CHECK_EQ(check("PSUBSCRIBE news*", &at), ACL_GRANTED);
    CHECK_EQ(check("PSUBSCRIBE news1*", &at), ACL_DENIED_CHANNEL);
    end();
}

TEST(what_its_keys_are_nobody_can_say) {
    size_t at;
    begin();
    rules("reset on nopass +@all ~a*");
    CHECK_EQ(check("MEXISTS x a", &at), ACL_DENIED_KEY);
    CHECK_EQ(at, 3); /* all of it */
    CHECK_EQ(check("MEXISTS 2 a", &at), ACL_DENIED_KEY);
    CHECK_EQ(check("FLUSHALL", &at), ACL_DENIED_KEY);
    CHECK_EQ(check("EVICT KEYS 1 a", &at), ACL_GRANTED);
    CHECK_EQ(check("EVICT", &at), ACL_DENIED_KEY);
    rules("reset on nopass +@all %R~*");
    CHECK_EQ(check("KEYS *", &at), ACL_GRANTED);
    CHECK_EQ(check("FLUSHALL", &at), ACL_DENIED_KEY);
    rules("reset on nopass +@all ~*");
    CHECK_EQ(check("MEXISTS x a", &at), ACL_GRANTED); /* the command says what is wrong */
    end();
}

TEST(pin_hard_by_any_of_its_names) {
    static const char *const hard[] = {"PIN a HARD", "PUTSTART a 100 PIN HARD",
                                       "PUTSTART a 100 TTL 5 pin hard",
                                       "MPUTSTART 2 a 1 a 2 PIN HARD"},
                             *const soft[] = {"PIN a SOFT 5",
                                              "PIN a",
                                              "PUTSTART a 100",
                                              "PUTSTART a 100 PIN SOFT 5",
                                              "PUTSTART a 100 PIN",
                                              "MPUTSTART 2 a 1 hard 2",
                                              "MPUTSTART 9 a 1 PIN HARD"};
    size_t at;
    begin();
    for (int may = 0; may < 2; may++) {
        rules(may ? "reset on nopass ~* +pin +putstart +mputstart +pinhard"
                  : "reset on nopass ~* +pin +putstart +mputstart");
        for (size_t i = 0; i < ARRAY_LEN(hard); i++) {
            const struct cmd *cmd = request(hard[i]);
            CHECK_EQ(acl_check(user, cmd, argv, argc, &at), may ? ACL_GRANTED : ACL_DENIED_COMMAND);
            CHECK_STR(acl_denied_name(user, cmd, argv, argc), "pinhard");
        }
        for (size_t i = 0; i < ARRAY_LEN(soft); i++) CHECK_EQ(check(soft[i], &at), ACL_GRANTED);
    }
    rules("reset on nopass ~* -@all");
    const struct cmd *cmd = request("PIN a HARD"); /* the command itself is what he lacks */
    CHECK_STR(acl_denied_name(user, cmd, argv, argc), "pin");
    end();
}

TEST(before_a_large_argument_is_taken) {
    begin();
    rules("reset on nopass +set +mset +config|set %W~a*");
    CHECK(acl_check_early(user, argv, 0)); /* the name itself is large */
    CHECK(early("SET a"));
    CHECK(!early("SET b"));
    CHECK(early("SET")); /* the key is the large one */
    CHECK(!early("GET a"));
    CHECK(!early("NOSUCH a"));
    CHECK(early("CONFIG"));
    CHECK(early("CONFIG SET x"));
    CHECK(!early("CONFIG GET"));
    CHECK(!early("CONFIG NOSUCH"));
    rules("reset on nopass +auth -@all");
    CHECK(early("AUTH x"));
    end();
}

TEST(rights_by_name) {
    struct client *c;
    begin();
    int fd = call(&c);
    CHECK(c->unrestricted && acl_client_may(c, "segment|attach"));
    rules("reset on nopass +get (+segment|attach)");
    CHECK(acl_client_login(c, SPAN("ann"), SPAN("any")));
    CHECK(!c->unrestricted && acl_client_may(c, "segment|attach") && !acl_client_may(c, "pinhard"));
    CHECK(acl_pin_owner(c) != 0);
    uint64_t ann = acl_pin_owner(c);
    CHECK(!acl_client_login(c, SPAN("nobody"), SPAN("any")));
    acl_client_reset(c);
    CHECK(acl_pin_owner(c) != ann);
    CHECK_STR(say(fd, "PING"), "+OK");
    close(fd);
    end();
}

TEST_MAIN()
