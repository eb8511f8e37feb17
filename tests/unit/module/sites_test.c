/* HTTP paths of modules, and a server of them that only writes down what it is told. */
#include "../test.h"

#include "module/sites.h"

static char told[512], why[256];
static tarn_status add_status;
static unsigned dropped;

static void tell(const char *what, const struct tarn_http_site *site) {
    size_t len = strlen(told);
    snprintf(told + len, sizeof(told) - len, "%s%s ", what, site->path[0].path);
}

static tarn_status fake_add(const char *module, const struct tarn_http_site *site, char *error,
                            size_t cap) {
    (void)module;
    if (add_status != TARN_OK) {
        snprintf(error, cap, "there is no place");
        return add_status;
    }
    tell("+", site);
    return TARN_OK;
}
static void fake_remove(const struct tarn_http_site *site) {
    tell("-", site);
}
static tarn_status fake_answer(uint64_t request, const struct tarn_http_answer *answer) {
    (void)answer;
    return request == 7 ? TARN_OK : TARN_ECLOSED;
}
static void run(const struct tarn_http_request *r) {
    (void)r;
}
static void drop(void *arg) {
    (void)arg;
    dropped++;
}

static const struct tarn_http_server server = {sizeof(server), fake_add, fake_remove, fake_answer};

#define PATH(name, its_path, its_methods)                                                          \
    static const struct tarn_http_path name##_path = {its_path, its_methods, 0, 0, run};           \
    static const struct tarn_http_site name = {                                                    \
        .size = sizeof(name), .paths = 1, .path = &name##_path}
PATH(one, "/one", TARN_HTTP_GET);
PATH(one_post, "/one", TARN_HTTP_POST | TARN_HTTP_PUT);
PATH(one_put, "/one", TARN_HTTP_PUT);
PATH(two, "/two/", TARN_HTTP_GET);

static tarn_status add(const char *module, const struct tarn_http_site *site) {
    why[0] = '\0';
    return sites_add(module, site, why, sizeof(why));
}
static void start(void) {
    told[0] = why[0] = '\0';
    add_status = TARN_OK;
    dropped = 0;
}
/* Nothing is left for the next test. */
static void finish(void) {
    sites_forget("server");
    sites_forget("a");
    sites_forget("b");
}

TEST(a_server_is_told_of_sites_before_and_after_it) {
    start();
    CHECK_EQ(add("a", &one), TARN_OK);
    CHECK_STR(told, "");
    CHECK_EQ(sites_serve("server", &server, why, sizeof(why)), TARN_OK);
    CHECK_EQ(add("b", &two), TARN_OK);
    CHECK_STR(told, "+/one +/two/ ");
    CHECK_EQ(sites_serve("other", &server, why, sizeof(why)), TARN_EEXISTS);
    CHECK(strstr(why, "the module server serves already") != NULL);
    sites_forget("b");
    CHECK_STR(told, "+/one +/two/ -/two/ ");
    /* the server goes and comes back */
    sites_forget("server");
    CHECK_EQ(sites_serve("server", &server, why, sizeof(why)), TARN_OK);
    CHECK_STR(told, "+/one +/two/ -/two/ +/one ");
    finish();
}

TEST(a_server_that_has_no_place_serves_nothing) {
    start();
    CHECK_EQ(add("a", &one), TARN_OK);
    add_status = TARN_EIO;
    CHECK_EQ(sites_serve("server", &server, why, sizeof(why)), TARN_EIO);
    CHECK_STR(why, "there is no place");
    add_status = TARN_OK;
    CHECK_EQ(sites_serve("server", &server, why, sizeof(why)), TARN_OK);
    add_status = TARN_EIO;
    CHECK_EQ(add("b", &two), TARN_EIO);
    add_status = TARN_OK;
    sites_forget("b"); /* it has none */
    CHECK_STR(told, "+/one ");
    finish();
}

TEST(paths_belong_to_one) {
    start();
    CHECK_EQ(add("a", &one), TARN_OK);
    CHECK_EQ(add("b", &one), TARN_EEXISTS);
    CHECK_STR(why, "HTTP path /one: the module a has it");
    CHECK_EQ(add("b", &one_post), TARN_OK); /* other methods */
    CHECK_EQ(add("a", &one_put), TARN_EEXISTS);
    struct tarn_http_site own = one;
    own.bind = "127.0.0.1"; /* on a port of its own */
    CHECK_EQ(add("b", &own), TARN_OK);
    finish();
}

TEST(what_makes_no_sense_is_refused) {
    static const struct {
        struct tarn_http_path path;
        tarn_status status;
    } bad[] = {
        {{NULL, TARN_HTTP_GET, 0, 0, run}, TARN_EINVAL},
        {{"", TARN_HTTP_GET, 0, 0, run}, TARN_EINVAL},
        {{"one", TARN_HTTP_GET, 0, 0, run}, TARN_EINVAL},
        {{"/a?b", TARN_HTTP_GET, 0, 0, run}, TARN_EINVAL},
        {{"/a//b", TARN_HTTP_GET, 0, 0, run}, TARN_EINVAL},
        {{"/a", 16, 0, 0, run}, TARN_EINVAL},
        {{"/a", TARN_HTTP_GET, 4, 0, run}, TARN_EINVAL},
        {{"/a", TARN_HTTP_GET, 0, TARN_HTTP_BODY_MAX + 1, run}, TARN_EINVAL},
        {{"/a", TARN_HTTP_GET, 0, 0, NULL}, TARN_EINVAL},
        {{"/", TARN_HTTP_GET, 0, 0, run}, TARN_EEXISTS},
        {{"/ready", TARN_HTTP_POST, 0, 0, run}, TARN_EEXISTS},
        {{"/api", TARN_HTTP_GET, 0, 0, run}, TARN_EEXISTS},
        {{"/api/mine", TARN_HTTP_GET, 0, 0, run}, TARN_EEXISTS},
    };
    start();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct tarn_http_site site = {.size = sizeof(site), .paths = 1, .path = &bad[i].path};
        CHECK_EQ(add("a", &site), bad[i].status);
        CHECK(why[0] != '\0');
    }
    struct tarn_http_site site = one;
    site.deadline_ms = TARN_HTTP_DEADLINE_MAX + 1;
    CHECK_EQ(add("a", &site), TARN_EINVAL);
    site = one;
    site.paths = 0;
    CHECK_EQ(add("a", &site), TARN_EINVAL);
    site = one;
    site.size = offsetof(struct tarn_http_site, bind); /* of a time before there was more */
    CHECK_EQ(add("a", &site), TARN_EINVAL);
    struct tarn_http_site own[SITES_OF_ONE + 1];
    for (unsigned i = 0; i <= SITES_OF_ONE; i++) {
        own[i] = one;
        own[i].bind = "127.0.0.1";
        CHECK_EQ(add("a", &own[i]), i < SITES_OF_ONE ? TARN_OK : TARN_ELIMIT);
    }
    finish();
}

TEST(answers_go_to_the_server_or_are_dropped) {
    struct buf taken = {malloc(4), 4, 4};
    struct tarn_http_answer a = {.size = sizeof(a), .taken = &taken, .drop = drop};
    start();
    CHECK_EQ(sites_answer(7, &a), TARN_ECLOSED);
    CHECK(taken.data == NULL);
    CHECK_EQ(dropped, 1u);
    CHECK_EQ(sites_serve("server", &server, why, sizeof(why)), TARN_OK);
    CHECK_EQ(sites_answer(7, &a), TARN_OK);
    CHECK_EQ(sites_answer(8, &a), TARN_ECLOSED);
    a.size = 8;
    CHECK_EQ(sites_answer(7, &a), TARN_EINVAL);
    finish();
}

TEST_MAIN()
