/* Transactions: what cannot be queued, what cannot be executed any more, and that nothing of it is
 * left. */
#include "front.h"
#include "front/multi.h"

static struct client *c, *d;
static int fd, other;

static void begin(void) {
    front_begin();
    fd = call(&c);
    other = call(&d);
}

static void end(void) {
    close(fd);
    close(other);
    front_end();
}

#define ABORTED "-EXECABORT Transaction discarded because of previous errors."

TEST(out_of_place) {
    begin();
    CHECK_STR(say(fd, "EXEC"), "-ERR EXEC without MULTI");
    CHECK_STR(say(fd, "DISCARD"), "-ERR DISCARD without MULTI");
    CHECK_STR(say(fd, "UNWATCH"), "+OK");
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "MULTI"), "-ERR MULTI calls can not be nested");
    CHECK_STR(say(fd, "WATCH k"), "-ERR WATCH inside MULTI is not allowed");
    CHECK_STR(say(fd, "EXEC"), "*0"); /* which is no fault of the transaction */
    CHECK(c->io->multi == NULL && multi_memory(c) == 0);
    end();
}

TEST(what_is_refused_aborts_it) {
    static const struct {
        const char *line, *answer;
    } rows[] = {
        {"NOSUCH", "-ERR unknown command 'NOSUCH'"},
        {"GET", "-ERR wrong number of arguments for 'get' command"},
        {"SHUTDOWN", "-ERR Command not allowed inside a transaction"},
    };
    begin();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        CHECK_STR(say(fd, "MULTI"), "+OK");
        CHECK_STR(say(fd, "SET k v"), "+QUEUED");
        const char *answer = say(fd, rows[i].line);
        CHECK(strncmp(answer, rows[i].answer, strlen(rows[i].answer)) == 0);
        CHECK(c->io->multi->failed && c->io->multi->first == NULL);
        CHECK_STR(say(fd, "PING"), "+QUEUED"); /* the client may not have noticed */
        CHECK(c->io->multi->first == NULL);
        CHECK_STR(say(fd, "EXEC"), ABORTED);
        CHECK_STR(say(fd, "PING"), "+OK");
    }
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "EXEC now"), "-EXECABORT Transaction discarded because of: wrong number of "
                                   "arguments for 'exec' command");
    CHECK_STR(say(fd, "EXEC"), "-ERR EXEC without MULTI");
    end();
}

TEST(larger_than_a_request_may_be) {
    static char line[600];
    begin();
    front_values.client_query_buffer_limit = 2000;
    memset(line, 'x', sizeof(line) - 1);
    memcpy(line, "ECHO ", 5);
    CHECK_STR(say(fd, "MULTI"), "+OK");
    for (int i = 0; i < 2; i++) CHECK_STR(say(fd, line), "+QUEUED");
    CHECK(multi_memory(c) > 1200);
    CHECK(!multi_over(c, 100) && multi_over(c, 1000));
    CHECK_STR(say(fd, line), "-ERR The transaction is larger than client-query-buffer-limit");
    CHECK(multi_memory(c) < 600 && multi_over(c, 1));
    CHECK_STR(say(fd, line), "+QUEUED");
    CHECK_STR(say(fd, "EXEC"), ABORTED);
    end();
}

TEST(books_that_take_nothing) {
    begin();
    struct store_config *sc = store_config(books);
    CHECK_STR(say(other, "MULTI"), "+OK");
    CHECK_STR(say(other, "SET k v"), "+QUEUED");
    CHECK_EQ(store_set_policy(books, "noeviction"), TARN_OK);
    sc->max_memory = 1;
    CHECK(store_takes_nothing(books));
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "GET k"), "+QUEUED");
    CHECK_STR(say(fd, "SET k v"), "-OOM command not allowed when used memory > 'maxmemory'.");
    CHECK_STR(say(fd, "EXEC"), ABORTED);
    CHECK_STR(say(other, "EXEC"), "-EXECABORT Transaction discarded because of: OOM command not "
                                  "allowed when used memory > 'maxmemory'.");
    end();
}

/* By the room above: a role, the files. */
TEST(refused_when_it_is_executed) {
    begin();
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "SET k v"), "+QUEUED");
    front_write_refusal = "MISCONF of the files";
    CHECK_STR(say(fd, "EXEC"), "-EXECABORT Transaction discarded because of: MISCONF of the files");
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "SET k v"), "-MISCONF of the files");
    front_write_refusal = NULL;
    CHECK_STR(say(fd, "EXEC"), ABORTED);
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "GET k"), "+QUEUED");
    front_refusal = "-READONLY of the role";
    CHECK_STR(say(fd, "EXEC"), "-EXECABORT Transaction discarded because of: READONLY of the role");
    CHECK_STR(say(fd, "MULTI"), "-READONLY of the role");
    front_refusal = NULL;
    CHECK_STR(say(fd, "PING"), "+OK");
    end();
}

static void loses_its_role(struct client *client) {
    front_refusal = "-READONLY since now";
    reply_ok(client);
}

TEST(refused_in_the_middle) {
    front_functions[WIRE_replicaof] = loses_its_role;
    begin();
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "REPLICAOF a 1"), "+QUEUED");
    CHECK_STR(say(fd, "SET k v"), "+QUEUED");
    CHECK_STR(say(fd, "EXEC"), "*2 +OK -READONLY since now");
    end();
}

static void run_mod(struct client *client) {
    reply_simple(client, "module");
}

TEST(a_module_that_went_meanwhile) {
    static struct cmd mod = {
        .name = "mod.do", .run = run_mod, .arity = 1, .flags = CMD_MODULE, .id = WIRE_COMMANDS};
    begin();
    CHECK_EQ(table_add(&mod), TARN_OK);
    acl_users_table_changed();
    for (int there = 1; there >= 0; there--) {
        CHECK_STR(say(fd, "MULTI"), "+OK");
        CHECK_STR(say(fd, "MOD.DO"), "+QUEUED");
        CHECK_STR(say(fd, "PING"), "+QUEUED");
        if (!there) {
            table_remove(&mod);
            acl_users_table_changed();
        }
        const char *answer = say(fd, "EXEC");
        if (there)
            CHECK_STR(answer, "*2 +module +OK");
        else
            CHECK(strncmp(answer, "*2 -ERR unknown command", 23) == 0);
    }
    end();
}

TEST(rights_that_were_lost_meanwhile) {
    begin();
    struct span all[] = {SPAN("on"), SPAN("nopass"), SPAN("~*"), SPAN("&*"), SPAN("+@all")},
                less[] = {SPAN("resetkeys"), SPAN("~a*"), SPAN("-echo")};
    struct acl_user *ann = acl_set(acl_users, SPAN("ann"), all, 5, &(struct acl_fault){0});
    CHECK(ann != NULL && acl_client_login(c, SPAN("ann"), SPAN("x")));
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "ECHO x"), "+QUEUED");
    CHECK_STR(say(fd, "GET b"), "+QUEUED");
    CHECK_STR(say(fd, "GET a"), "+QUEUED");
    CHECK(acl_set(acl_users, SPAN("ann"), less, 3, &(struct acl_fault){0}) == ann);
    acl_user_changed(ann);
    const char *answer = say(fd, "EXEC");
    CHECK(strncmp(answer, "*3 -NOPERM ACLs rules changed", 29) == 0);
    CHECK(strstr(answer, "no permission to execute the command or subcommand -NOPERM") != NULL);
    CHECK(strstr(answer, "no permission to touch the specified keys +OK") != NULL);
    end();
}

TEST(watched_keys) {
    begin();
    CHECK_STR(say(fd, "WATCH a b a"), "+OK");
    CHECK_EQ(watch_count, 2);
    watch_touch(SPAN("b"));
    CHECK_STR(say(fd, "WATCH c"), "+OK"); /* it is lost already: nothing more is kept */
    CHECK(watch_count <= 2);
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "SET k v"), "+QUEUED");
    CHECK(c->io->multi->first == NULL);
    CHECK_STR(say(fd, "EXEC"), "*-1");
    CHECK_EQ(watch_count, 0);
    CHECK_STR(say(fd, "WATCH a"), "+OK");
    CHECK_STR(say(fd, "UNWATCH"), "+OK");
    watch_touch(SPAN("a"));
    CHECK_STR(say(fd, "MULTI"), "+OK");
    CHECK_STR(say(fd, "UNWATCH"), "+QUEUED");
    CHECK_STR(say(fd, "EXEC"), "*1 +OK");
    CHECK_STR(say(fd, "WATCH a"), "+OK");
    client_close_soon(c);
    turns(1);
    CHECK_EQ(watch_count, 0);
    end();
}

TEST_MAIN()
