/* Engines that answer, and those that do anything else, over real sockets. */
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>
#include "../test.h"
#include "base/clock.h"
#include "scrape/scraper.h"
#include "web.h"

#define VLLM                                                                                       \
    "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"0\"} 1\n"

/* A name server that says nothing, until it is told to. */
static atomic_bool stuck;
static _Atomic unsigned waiting_for_name;
__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **res) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (node == NULL || strcmp(node, "stuck.test") != 0) return real(node, service, hints, res);
    waiting_for_name++;
    while (stuck) usleep(1000);
    waiting_for_name--;
    return EAI_AGAIN;
}

static struct scraper *scraper;
static void begin(uint32_t timeout_ms) {
    struct scraper_config config;
    scraper_defaults(&config);
    config.every_ms = 20;
    config.timeout_ms = timeout_ms;
    config.answer_max_bytes = 100000;
    config.sources_max = 16;
    CHECK_EQ(scraper_create(&config, &scraper), TARN_OK);
}
static struct scraper_source *ask(uint16_t port, void *owner) {
    struct scraper_source *x = NULL;
    char url[64];
    int n = snprintf(url, sizeof(url), "http://127.0.0.1:%u/metrics", port);
    CHECK_EQ(scraper_add(scraper, span_of(url, (size_t)n), owner, &x), TARN_OK);
    return x;
}
static struct scraper_info info_of(const struct scraper_source *x) {
    struct scraper_info info;
    scraper_info(x, &info);
    return info;
}
#define UNTIL(what)                                                                                \
    do {                                                                                           \
        for (uint64_t end = clock_mono_ms() + TEST_PATIENCE_MS; !(what);) {                        \
            CHECK(clock_mono_ms() < end);                                                          \
            usleep(1000);                                                                          \
        }                                                                                          \
    } while (0)
static bool answers_more(const struct scraper_source *x, uint64_t than) {
    return info_of(x).figures.scrape_answers > than;
}
/* It goes on being answered, whatever the others do. */
static void goes_on(const struct scraper_source *x) {
    uint64_t now = info_of(x).figures.scrape_answers;
    UNTIL(answers_more(x, now + 2));
}

TEST(an_answer_is_taken) {
    struct web w;
    struct scrape_load load;
    void *owner;
    web_start(&w, WEB_ANSWERS, 0, VLLM);
    begin(TEST_PATIENCE_MS);
    struct scraper_source *x = ask(w.port, &w);
    for (int i = 0; i < 3; i++) {
        struct pollfd p = {.fd = scraper_fd(scraper), .events = POLLIN};
        CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
        CHECK(scraper_take(scraper, &owner, &load));
        CHECK(owner == &w && load.count == 1 && load.rank[0].running == 3);
        UNTIL(!scraper_take(scraper, &owner, &load));
    }
    struct scraper_info info = info_of(x);
    CHECK(info.state == SCRAPER_UP && info.why[0] == '\0' && info.answered_ms > 0);
    CHECK(info.figures.scrape_answers >= 3 && info.figures.scrape_failures == 0);
    CHECK(info.figures.scrape_bytes >= 3 * strlen(VLLM));
    /* The last one that nobody took is all that waits. */
    goes_on(x);
    CHECK(scraper_take(scraper, &owner, &load));
    scraper_remove(&x);
    CHECK(x == NULL && !scraper_take(scraper, &owner, &load));
    scraper_destroy(&scraper);
    web_stop(&w);
}

static void fails(enum web_mode mode, uint32_t timeout_ms, const char *why) {
    struct web good, bad;
    web_start(&good, WEB_ANSWERS, 0, VLLM);
    web_start(&bad, mode, 0, VLLM);
    begin(timeout_ms);
    struct scraper_source *x = ask(bad.port, &bad), *y = ask(good.port, &good);
    UNTIL(info_of(x).state == SCRAPER_FAILING);
    struct scraper_info info = info_of(x);
    CHECK(strstr(info.why, why) != NULL || (printf("# %s\n", info.why), false));
    CHECK(info.failing_ms > 0 && info.answered_ms == 0 && info.figures.scrape_answers == 0);
    goes_on(y);
    bad.mode = WEB_ANSWERS;
    UNTIL(answers_more(x, 0));
    info = info_of(x);
    CHECK(info.state == SCRAPER_UP && info.why[0] == '\0' && info.failing_ms == 0);
    scraper_destroy(&scraper);
    web_stop(&good);
    web_stop(&bad);
}

TEST(another_status) {
    fails(WEB_NOT_FOUND, TEST_PATIENCE_MS, "it answers with status 404");
}
TEST(redirects_are_not_followed) {
    fails(WEB_REDIRECTS, TEST_PATIENCE_MS, "it answers with status 302");
}
TEST(an_answer_that_is_cut_off_counts_for_nothing) {
    fails(WEB_CUT, TEST_PATIENCE_MS, "1 bytes");
}
TEST(one_that_says_nothing) {
    fails(WEB_SILENT, 300, "no whole answer within 300 ms");
}
TEST(one_that_is_slow) {
    fails(WEB_DRIPS, 300, "no whole answer within 300 ms");
}
TEST(a_body_without_an_end) {
    fails(WEB_ENDLESS, TEST_PATIENCE_MS, "its answer has more than 100000 bytes");
}
TEST(a_head_without_an_end) {
    fails(WEB_HEADERS, TEST_PATIENCE_MS, "its answer has more than 100000 bytes");
}
TEST(garbage) {
    fails(WEB_GARBAGE, TEST_PATIENCE_MS, "HTTP/0.9");
}

TEST(one_that_dies_and_comes_back) {
    struct web w;
    web_start(&w, WEB_ANSWERS, 0, VLLM);
    begin(TEST_PATIENCE_MS);
    struct scraper_source *x = ask(w.port, &w);
    UNTIL(answers_more(x, 0));
    web_stop(&w);
    UNTIL(strcmp(info_of(x).why, "connection refused") == 0);
    uint64_t since = info_of(x).failing_ms, failed = info_of(x).figures.scrape_failures;
    UNTIL(info_of(x).figures.scrape_failures > failed);
    CHECK_EQ(info_of(x).failing_ms, since);
    web_start(&w, WEB_ANSWERS, w.port, VLLM);
    UNTIL(info_of(x).state == SCRAPER_UP);
    scraper_destroy(&scraper);
    web_stop(&w);
}

TEST(while_it_pauses_nobody_is_asked) {
    struct web w;
    struct scrape_load load;
    void *owner;
    web_start(&w, WEB_ANSWERS, 0, VLLM);
    begin(TEST_PATIENCE_MS);
    scraper_pause(scraper, true);
    struct scraper_source *x = ask(w.port, &w);
    CHECK_EQ(info_of(x).state, SCRAPER_PAUSED);
    usleep(100000);
    CHECK_EQ(w.requests, 0);
    scraper_pause(scraper, false);
    goes_on(x);
    scraper_pause(scraper, true);
    CHECK(!scraper_take(scraper, &owner, &load));
    scraper_destroy(&scraper);
    web_stop(&w);
}

/* Who resolves a name in vain keeps nobody waiting, not even who ends it all. */
TEST(a_name_server_that_says_nothing) {
    struct web w;
    struct scraper_source *x, *y;
    stuck = true;
    web_start(&w, WEB_ANSWERS, 0, VLLM);
    begin(300);
    y = ask(w.port, &w);
    CHECK_EQ(scraper_add(scraper, SPAN("http://stuck.test/metrics"), NULL, &x), TARN_OK);
    UNTIL(waiting_for_name > 0);
    UNTIL(info_of(x).state == SCRAPER_FAILING);
    goes_on(y);
    CHECK(waiting_for_name > 0);
    scraper_destroy(&scraper);
    stuck = false;
    web_stop(&w);
    UNTIL(waiting_for_name == 0);
}

TEST(what_is_no_url) {
    static const char *const good[] = {"http://a/metrics", "https://[::1]:8000/m?x=1", "http://a"};
    static const char *const bad[] = {"",
                                      "http://",
                                      "https:///m",
                                      "ftp://a/m",
                                      "file:///etc/passwd",
                                      "a:8000/metrics",
                                      "http://u:p@a/m",
                                      "http://a/\n",
                                      "http://a b/",
                                      "http://:80/",
                                      "HTTP://a/"};
    struct scraper_source *x;
    char longest[SCRAPER_URL + 1];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        CHECK(scraper_url_valid(span_str(good[i])));
    begin(1000);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_EQ(scraper_add(scraper, span_str(bad[i]), NULL, &x), TARN_EINVAL);
    memset(longest, 'a', sizeof(longest));
    memcpy(longest, "http://", 7);
    CHECK(scraper_url_valid(span_of(longest, SCRAPER_URL - 1)));
    CHECK(!scraper_url_valid(span_of(longest, SCRAPER_URL)));
    scraper_pause(scraper, true);
    for (int i = 0; i < 17; i++)
        CHECK_EQ(scraper_add(scraper, SPAN("http://127.0.0.1:1/"), NULL, &x),
                 i < 16 ? TARN_OK : TARN_ELIMIT);
    scraper_remove(&x);
    CHECK_EQ(scraper_add(scraper, SPAN("http://127.0.0.1:1/"), NULL, &x), TARN_OK);
    scraper_destroy(&scraper);
}

TEST_MAIN()
