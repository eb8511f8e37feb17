/* The configuration: every option parses its own default, mistakes are told with their place,
 * REWRITE keeps what it should. */
#include "config/config.h"
#include "config/table.h"

#include <fcntl.h>
#include <unistd.h>
#include "../test.h"

static struct config values;
static char *why;

static bool load(const char *text) {
    free(why);
    why = NULL;
    config_init(&values);
    bool ok = config_load_text(&values, "test.conf", text, strlen(text), &why);
    return ok;
}

static bool load_words(int n, char **words) {
    free(why);
    why = NULL;
    config_init(&values);
    return config_load_args(&values, n, words, &why);
}

static bool told(const char *part) {
    return why != NULL && strstr(why, part) != NULL;
}

static struct span shown(const char *name) {
    static struct buf out;
    buf_clear(&out);
    config_row_format(config_row_find(span_str(name)), &values, &out);
    return span_of(out.data, out.len);
}

TEST(defaults_are_values) {
    config_init(&values);
    CHECK_EQ(values.port, 6479);
    CHECK_EQ(values.pool_size, UINT64_C(1) << 30);
    CHECK(config_validate(&values, &why));
    config_deinit(&values);
}

TEST(what_means_nothing_here_is_named_once) {
    CHECK(load("hash-max-listpack-entries 1\nmaxmemory-samples 10\nHASH-MAX-LISTPACK-ENTRIES 2\n"));
    CHECK_EQ(values.n_ignored, 2);
    CHECK(span_eq(span_of(values.ignored.data, values.ignored.len),
                  SPAN("hash-max-listpack-entries, maxmemory-samples")));
    config_deinit(&values);
}

TEST(faults_of_a_change_are_one_line) {
    struct span option,
        pairs[] = {SPAN("node-heartbeat"), SPAN("40000"), SPAN("proc-title-template"), SPAN("{x")};
    config_init(&values);
    why = NULL;
    CHECK(!config_set(&values, pairs, 2, &option, &why));
    CHECK(told("unknown variables; node-timeout must"));
    config_deinit(&values);
}

TEST(units) {
    CHECK(
        load("pool-size 2gb\nmax-lease 3s\nput-timeout 1min\nmaxmemory 100mb\nmax-objects 10k\n"));
    CHECK_EQ(values.pool_size, UINT64_C(2) << 30);
    CHECK_EQ(values.max_lease_ms, UINT64_C(3000));
    CHECK_EQ(values.put_timeout_ms, UINT64_C(60000));
    CHECK_EQ(values.maxmemory, UINT64_C(100) << 20);
    CHECK_EQ(values.max_objects, UINT64_C(10000));
    config_deinit(&values);
    uint64_t ms;
    CHECK(config_parse_ms(SPAN("1d"), &ms) && ms == 86400000);
    CHECK(!config_parse_ms(SPAN("1 s"), &ms) && !config_parse_ms(SPAN("s"), &ms) &&
          !config_parse_ms(SPAN("-1"), &ms));
    CHECK(!config_parse_ms(SPAN("18446744073709551615d"), &ms));
}

TEST(mistakes_name_their_place) {
    CHECK(!load("\n# comment\nprot 1\n") && told("test.conf:3: unknown option 'prot'"));
    config_deinit(&values);
    CHECK(!load("port 70000\n") &&
          told("test.conf:1: port must be auto or a port from 0 to 65535"));
    config_deinit(&values);
    CHECK(!load("port\n") && told("port must be"));
    config_deinit(&values);
    CHECK(!load("eviction-policy clock\n") &&
          told("must be one of the following: lru, fifo, lfu, sieve, s3fifo"));
    config_deinit(&values);
    CHECK(!load("eviction-ratio nan\n") && told("must be a number from"));
    config_deinit(&values);
    CHECK(!load("requirepass \"open\n") && told("unbalanced quotes"));
    config_deinit(&values);
    CHECK(!load("port 1\ntimeout 3\nport 2\n") && told("test.conf:3: port contradicts line 1"));
    config_deinit(&values);
    CHECK(load("port 1\nport 1\n"));
    config_deinit(&values);
    CHECK(!load("maxmemory-policy volatile-lru\n") && told("allkeys-lru, ") &&
          told("take allkeys-lru"));
    config_deinit(&values);
    CHECK(!load("maxmemory-policy lru\n"));
    config_deinit(&values);
    CHECK(!load("eviction-policy allkeys-lru\n"));
    config_deinit(&values);
    CHECK(!load("maxmemory-policy allkeys-lfu\neviction-policy sieve\n") &&
          told("test.conf:2: eviction-policy contradicts line 1"));
    config_deinit(&values);
    CHECK(load("maxmemory-policy allkeys-lfu\neviction-policy lfu\n"));
    CHECK_STR(config_policy_name(&values), "lfu");
    config_deinit(&values);
    CHECK(!load("appendonly perhaps\n") && told("must be"));
    config_deinit(&values);
    CHECK(!load("include /nowhere/at/all\n") &&
          told("test.conf:1: include: /nowhere/at/all: cannot be read"));
    config_deinit(&values);
}

TEST(values_that_contradict_each_other) {
    CHECK(load("pool-size 0\npool-path /tmp/x\n"));
    CHECK(!config_validate(&values, &why) && told("pool-path"));
    config_deinit(&values);
    CHECK(load("port 7000\ndata-port 7000\n"));
    CHECK(!config_validate(&values, &why) && told("both 7000"));
    config_deinit(&values);
}

TEST(output_limits_merge_by_class) {
    CHECK(load("client-output-buffer-limit pubsub 1mb 2kb 7\nclient-output-buffer-limit normal 5mb "
               "0 0\n"));
    CHECK_EQ(values.output_limit[CONFIG_OUTPUT_PUBSUB].hard, UINT64_C(1) << 20);
    CHECK_EQ(values.output_limit[CONFIG_OUTPUT_NORMAL].hard, UINT64_C(5) << 20);
    CHECK(span_eq(shown("client-output-buffer-limit"),
                  SPAN("normal 5242880 0 0 slave 268435456 67108864 60 pubsub 1048576 2048 7")));
    config_deinit(&values);
}

TEST(an_include_cannot_go_on_for_ever) {
    char path[] = "/tmp/tarn-config-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    char *text = config_text("include %s\n", path);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    CHECK(!load_words(1, (char *[]){path}) && told("nested more than"));
    unlink(path);
    free(text);
    config_deinit(&values);
}

/* As Redis has it: what a file says, at that place of the command line. */
TEST(an_include_on_the_command_line) {
    char path[] = "/tmp/tarn-config-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK(write(fd, "port 7003\ntimeout 9\n", 20) == 20);
    close(fd);
    char *args[] = {"--include", path, "--port", "7001"};
    CHECK(load_words(4, args));
    CHECK_EQ(values.port, 7001);
    CHECK_EQ(values.timeout_s, 9);
    config_deinit(&values);
    unlink(path);
    CHECK(!load_words(2, args) && told("command line: include: /tmp/tarn-config-") &&
          told("cannot be read"));
    config_deinit(&values);
    CHECK(!load_words(1, args) && told("include must name one file"));
    config_deinit(&values);
}

TEST(command_line) {
    char *args[] = {"--port", "7001", "--bind", "127.0.0.1", "::1", "--requirepass", ""};
    CHECK(load_words(7, args));
    CHECK_EQ(values.port, 7001);
    CHECK_EQ(values.bind.n, (size_t)2);
    config_deinit(&values);
    char *stray[] = {"--port", "7001", "7002"};
    CHECK(!load_words(3, stray) &&
          told("command line: 'port \"7001\" \"7002\"': wrong number of arguments: port must be"));
    config_deinit(&values);
}

static void read_back(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY);
    ssize_t n = read(fd, out, size - 1);
    close(fd);
    out[n > 0 ? n : 0] = '\0';
}

/* The server's file from now on: its name is written to the end of path, which the caller
 * unlinks. */
static void load_new_file(char *path, const char *text) {
    int fd = mkstemp(path);
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    CHECK(load_words(1, &path));
}

TEST(rewrite_keeps_comments_and_changes_lines) {
    char path[] = "/tmp/tarn-config-XXXXXX", after[2048];
    const char *text = "# a comment\nport 7001\n\ntimeout 5\n# the end\n";
    load_new_file(path, text);
    values.timeout_s = 9;
    values.max_lease_ms = 7000;
    CHECK(config_rewrite(&values, false, &why));
    read_back(path, after, sizeof(after));
    CHECK_STR(after, "# a comment\nport 7001\n\ntimeout 9\n# the end\n# Generated by CONFIG "
                     "REWRITE\nmax-lease 7000\n");
    CHECK(config_rewrite(&values, false, &why)); /* nothing more the second time */
    read_back(path, after, sizeof(after));
    CHECK_STR(after, "# a comment\nport 7001\n\ntimeout 9\n# the end\n# Generated by CONFIG "
                     "REWRITE\nmax-lease 7000\n");
    unlink(path);
    config_deinit(&values);
}

TEST(modules_are_a_list) {
    CHECK(load(
        "loadmodule a.so\nloadmodule b.so bind 10.0.0.1 \"two words\"\nloadmodule a.so\nloadmodule "
        "a.so x\n"));
    CHECK_EQ(values.modules.n, 3); /* the same twice is once */
    CHECK_STR(values.modules.line[1].word[0], "b.so");
    CHECK_EQ(values.modules.line[1].n - 1, 3);
    CHECK_STR(values.modules.line[1].word[3], "two words");
    CHECK_EQ(values.modules.line[0].n - 1, 0);
    config_deinit(&values);
    CHECK(load("loadmodule \"a b.so\"\n")); /* in a file a word is a word */
    CHECK_STR(values.modules.line[0].word[0], "a b.so");
    config_deinit(&values);
    CHECK(!load("port 7001\nloadmodule\n") && told("test.conf:2: loadmodule must name a file"));
    config_deinit(&values);
    CHECK(!load("loadmodule \"a\\x00b\"\n") && told("without NUL"));
    config_deinit(&values);
    struct buf many = {NULL, 0, 0};
    for (int i = 0; i < 17; i++) buf_printf(&many, "loadmodule m%d.so\n", i);
    buf_append_char(&many, '\0');
    CHECK(!load(many.data) && told("test.conf:17: loadmodule may be given 16 times"));
    config_deinit(&values);
    buf_clear(&many);
    buf_append_str(&many, "loadmodule m.so");
    for (int i = 0; i < 65; i++) buf_append_str(&many, " x");
    buf_append(&many, "\n", 2);
    CHECK(!load(many.data) && told("up to 64 words"));
    buf_free(&many);
    config_deinit(&values);

    char *args[] = {"--loadmodule", "a.so",         "x",         "y", "--port",
                    "7002",         "--loadmodule", "b.so 'x y'"};
    CHECK(load_words(8, args));
    CHECK_EQ(values.port, 7002);
    CHECK_EQ(values.modules.n, 2);
    CHECK_EQ(values.modules.line[0].n - 1, 2);
    CHECK_STR(values.modules.line[1].word[0], "b.so");
    CHECK_STR(values.modules.line[1].word[1], "x y");
    config_deinit(&values);
}

/* One option with two names has one line. */
TEST(rewrite_keeps_the_name_that_the_file_has) {
    char path[] = "/tmp/tarn-config-XXXXXX", after[2048];
    const char *text = "port 7001\nmaxmemory-policy allkeys-lru\neviction-policy lru\n";
    load_new_file(path, text);
    struct span pair[] = {SPAN("eviction-policy"), SPAN("s3fifo")};
    CHECK(config_row_parse(config_row_find(pair[0]), &values, &pair[1], 1, &why));
    CHECK(config_rewrite(&values, false, &why));
    read_back(path, after, sizeof(after));
    CHECK_STR(after, "port 7001\nmaxmemory-policy allkeys-s3fifo\n");
    CHECK(config_rewrite(&values, true, &why));
    read_back(path, after, sizeof(after));
    CHECK(strstr(after, "\nmaxmemory-policy allkeys-s3fifo\n") &&
          !strstr(after, "\neviction-policy "));
    unlink(path);
    config_deinit(&values);
}

/* None is loaded here. */
TEST(rewrite_drops_modules_that_are_gone) {
    char path[] = "/tmp/tarn-config-XXXXXX", after[2048];
    const char *text = "# modules\nloadmodule /tmp/a.so x\n# the end\n";
    load_new_file(path, text);
    CHECK_EQ(values.modules.n, 1);
    CHECK(config_rewrite(&values, false, &why));
    read_back(path, after, sizeof(after));
    CHECK_STR(after, "# modules\n# the end\n");
    unlink(path);
    config_deinit(&values);
}

TEST_MAIN()
