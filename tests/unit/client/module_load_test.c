/* Looking for modules/rdma.so: when, where, and how often. The file that is found here
 * (tests/modules/rdma.c) brings no transport. */
#include <limits.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "client/error.h"
#include "module/loader.h"

#include "../test.h"

static unsigned told;
static char last[4096];

static void note(void *arg, enum log_level level, const char *message) {
    if (level != LOG_LEVEL_VERBOSE) return;
    told++;
    snprintf(last, sizeof(last), "%s", message);
}

static struct tarn_client *make(const char *transport, const char *module_path) {
    struct tarn_client *c = calloc(1, sizeof(*c));
    CHECK(c != NULL);
    tarn_options o;
    tarn_options_init(&o);
    o.transport = transport;
    o.module_path = module_path;
    url_options_copy(&c->options, &o);
    CHECK_EQ(client_module_choose(transport, module_path, &c->only), TARN_OK);
    log_set_level(LOG_LEVEL_VERBOSE);
    log_set_sink(note, NULL);
    told = 0;
    return c;
}

static void drop(struct tarn_client *c) {
    url_options_free(&c->options);
    free(c);
}

/* tests/modules of this build, found from build/KIND/tests/unit/client/module_load_test. */
static const char *test_modules(void) {
    static char path[PATH_MAX + 16];
    char self[PATH_MAX];
    CHECK(realpath("/proc/self/exe", self) != NULL);
    for (int i = 0; i < 3; i++) *strrchr(self, '/') = '\0';
    snprintf(path, sizeof(path), "%s/modules", self);
    return path;
}

TEST(nobody_looks_who_does_not_want_it) {
    static const char *const others[] = {"shm", "tcp"};
    for (int i = 0; i < 2; i++) {
        struct tarn_client *c = make(others[i], "/nowhere");
        CHECK(!client_module_has(c, "rdma"));
        CHECK(told == 0 && c->no_module[0][0] == '\0');
        drop(c);
    }
}

TEST(a_failure_is_told_once_and_remembered) {
    struct tarn_client *c = make("auto", "/nowhere::/no/where:");
    for (int i = 0; i < 3; i++) CHECK(!client_module_has(c, "rdma"));
    CHECK_EQ(told, 1);
    CHECK_STR(last, "A host offers rdma, and its module cannot be had: /nowhere/rdma.so: No such "
                    "file or directory; "
                    "/no/where/rdma.so: No such file or directory");
    drop(c);
    c = make("auto", "/elsewhere"); /* another client may know better */
    CHECK(!client_module_has(c, "rdma"));
    CHECK_EQ(told, 1);
    CHECK(strstr(last, "/elsewhere/rdma.so") != NULL);
    drop(c);
}

/* Hosts name what they like: only so many are looked for, and none whose name could be a path. */
TEST(names_that_a_host_makes_up) {
    static const char *const bad[] = {"", "../rdma", "a/b", "Rdma", "rdma.so", "abcdefghijklmnop"};
    struct tarn_client *c = make("auto", "/nowhere");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) CHECK(!client_module_has(c, bad[i]));
    CHECK_EQ(told, 0);
    char name[] = "made";
    for (int i = 0; i < 20; i++, name[0]++) CHECK(!client_module_has(c, name));
    CHECK_EQ(told, TRANSPORTS_MAX - 1);
    CHECK(!client_module_has(c, "rdma")); /* the usual one is looked for, whatever was before */
    CHECK_EQ(told, TRANSPORTS_MAX);
    CHECK(client_module_has(c, "tcp"));
    drop(c);
}

TEST(who_insists_learns_what_there_is) {
    const char *only = "";
    CHECK_EQ(client_module_choose("none", "/nowhere", &only), TARN_ENOTSUP);
    CHECK_STR(tarn_last_error(),
              "transport=none: there are auto, shm, tcp, and its module cannot be had "
              "(module_path): /nowhere/none.so: No such file or directory");
    CHECK(only == NULL);
    CHECK_EQ(client_module_choose("no way", "/nowhere", &only), TARN_EINVAL);
    CHECK_STR(tarn_last_error(),
              "transport is one of auto, shm, tcp, or of a module, not \"no way\"");
    CHECK_EQ(client_module_choose("shm", "/nowhere", &only), TARN_OK);
    CHECK_STR(only, "shm");
}

TEST(a_file_of_that_name_without_rdma_is_let_go) {
    struct tarn_client *c = make("auto", test_modules());
    CHECK(!client_module_has(c, "rdma"));
    CHECK(strstr(last, "/modules/rdma.so: it brings no rdma transport") != NULL);
    CHECK(!module_loaded("rdma"));
    drop(c);
}

TEST(the_environment_comes_before_what_is_known) {
    CHECK_EQ(setenv("TARN_MODULE_PATH", test_modules(), 1), 0);
    struct tarn_client *c = make("auto", "/nowhere");
    CHECK(!client_module_has(c, "rdma"));
    CHECK(strstr(last, test_modules()) == NULL); /* who says where is not asked again */
    drop(c);
    char first[PATH_MAX + 64];
    snprintf(first, sizeof(first), "cannot be had: %s/rdma.so: it brings", test_modules());
    c = make("auto", NULL);
    if (client_module_has(c, "rdma")) SKIP("an installed module was found");
    CHECK(strstr(last, first) != NULL);
    CHECK(strstr(last, "/unit/client/modules/rdma.so: ") != NULL);
    CHECK(strstr(last, "/unit/client/../lib/tarn/rdma.so: ") != NULL);
    drop(c);
    unsetenv("TARN_MODULE_PATH");
}

TEST_MAIN()
