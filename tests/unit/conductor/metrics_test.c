/* Engines' /metrics as load: from their sockets to the route, with a loop that turns by call. */
#include "../scrape/web.h"
#include "../test.h"
#include "base/clock.h"
#include "conductor/conductor.h"
#include "fake.h"

#include <unistd.h>

static const char *const small[] = {"ranks",      "8",  "requests",  "16",  "index-size", "16mb",
                                    "metrics-ms", "10", "silent-ms", "500", NULL};

#define TWO_RANKS                                                                                  \
    "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n"       \
    "vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{engine=\"1\"} 2\n"       \
    "vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n"                                                 \
    "vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"100\"} 1\n"

static bool has(const char *command, const char *text) {
    while (fake_turn()) continue;
    fake_tick();
    return strstr(fake_call(command), text) != NULL;
}
static bool becomes(const char *command, const char *text) {
    for (uint64_t end = clock_mono_ms() + TEST_PATIENCE_MS; !has(command, text);) {
        if (clock_mono_ms() > end) {
            printf("# %s\n", fake_call(command));
            return false;
        }
        usleep(1000);
    }
    return true;
}
static const char *add(const char *id, const char *words, const struct web *w) {
    char line[256];
    snprintf(line, sizeof(line), "conductor.add %s http://127.0.0.1:%u/v1/ MODEL m %s", id, w->port,
             words);
    return fake_call(line);
}

/* e1 answers with these. */
static void begin(struct web *w, const char *figures) {
    fake.watches = true;
    web_start(w, WEB_ANSWERS, 0, figures);
    fake_load(small);
    CHECK_STR(add("e1", "METRICS YES", w), "OK");
    CHECK(becomes("conductor.list", "metrics up"));
}
static void end(struct web *w) {
    fake_unload();
    web_stop(w);
    fake_kept_clear();
}

TEST(load_and_a_sign_of_life) {
    struct web w;
    begin(&w, "vllm:num_requests_running 7\nvllm:num_requests_waiting 2\n"
              "vllm:gpu_cache_usage_perc 0.25\n"
              "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n");
    CHECK(has("conductor.list", "prefill-tokens 1024 ") && has("conductor.list", "decodes 7 "));
    CHECK(has("conductor.info e1", "other-decodes 7 other-kvblocks 250 "));
    CHECK(has("conductor.info e1", "kvblocks 1000 "));
    CHECK(!has("conductor.list", "silent-ms -1") && !has("conductor.doctor", "/metrics of"));
    /* What it says later counts, and so do reports; which are the later ones is nobody's merit. */
    CHECK_STR(fake_call("conductor.load e1 RUNNING 1"), "OK");
    CHECK(becomes("conductor.info e1", "other-decodes 7 "));
    end(&w);
}

TEST(an_engine_that_dies_is_silent) {
    struct web w;
    begin(&w, "sglang:num_running_reqs 1\n");
    CHECK(becomes("conductor.list", "state up"));
    web_stop(&w);
    CHECK(becomes("conductor.list", "state silent"));
    CHECK(becomes("conductor.info e1", "state failing why connection refused"));
    CHECK(has("conductor.doctor", "/metrics): connection refused, for "));
    CHECK(strncmp(fake_call("conductor.route r MODEL m LENGTH 10"), "-ERR none of the 1 ranks",
                  23) == 0);
    web_start(&w, WEB_ANSWERS, w.port, "sglang:num_running_reqs 1\n");
    CHECK(becomes("conductor.list", "state up"));
    CHECK(becomes("conductor.route r MODEL m LENGTH 10", "*7 e1 "));
    end(&w);
}

/* Who is asked seldom is not silent in between. */
TEST(engines_are_asked_before_they_are_silent) {
    static const char *const seldom[] = {"ranks",   "8",         "index-size", "16mb", "metrics-ms",
                                         "3600000", "silent-ms", "100",        NULL};
    struct web w;
    web_start(&w, WEB_ANSWERS, 0, "sglang:num_running_reqs 1\n");
    fake_load(seldom);
    CHECK_STR(add("e1", "METRICS yes", &w), "OK");
    for (uint64_t end = clock_mono_ms() + TEST_PATIENCE_MS; w.requests < 3;) {
        CHECK(clock_mono_ms() < end);
        usleep(1000);
    }
    end(&w);
}

/* One URL is asked once for all of its ranks, each of which has its own figures. */
TEST(ranks_at_one_url) {
    struct web w, other;
    web_start(&w, WEB_ANSWERS, 0, TWO_RANKS);
    web_start(&other, WEB_ANSWERS, 0, "vllm:num_requests_running{engine=\"0\"} 5\n");
    fake_load(small);
    for (unsigned rank = 0; rank < 4; rank++) {
        char words[32];
        snprintf(words, sizeof(words), "METRICS YES RANK %u", rank);
        CHECK_STR(add("e1", words, rank < 3 ? &w : &other), "OK");
    }
    CHECK(becomes("conductor.info e1",
                  "other-prefill-tokens 1024 other-decodes 4 other-kvblocks 100"));
    CHECK(has("conductor.info e1", "other-prefill-tokens 0 other-decodes 3 other-kvblocks 0"));
    CHECK(becomes("conductor.info e1", "state failing why it says nothing of this rank"));
    CHECK(has("conductor.doctor", "/metrics of e1.2 (http://127.0.0.1:"));
    CHECK(becomes("conductor.info e1", "other-decodes 5 ")); /* alone, whatever it calls itself */
    CHECK_STR(fake_call("conductor.remove e1 RANK 0"), "OK");
    CHECK_STR(fake_call("conductor.remove e1"), "OK");
    while (fake_turn()) continue;
    CHECK_STR(fake_call("conductor.list"), "*0");
    fake_unload();
    web_stop(&w);
    web_stop(&other);
    fake_kept_clear();
}

TEST(who_does_not_lead_asks_nobody) {
    struct web w;
    begin(&w, "vllm:num_requests_running 1\n");
    fake_unload();
    fake_load(small); /* what is kept is asked again */
    CHECK(becomes("conductor.list", "metrics up"));
    fake.leads = false;
    tarn_module_v1.role_changed(false);
    CHECK(has("conductor.list", "metrics paused"));
    CHECK(becomes("conductor.list", "state silent")); /* of what is seen from here */
    fake.leads = true;
    tarn_module_v1.role_changed(true);
    CHECK(strstr(fake_call("conductor.list"), "state up") != NULL); /* before it is asked again */
    CHECK(becomes("conductor.list", "metrics up"));
    end(&w);
}

/* Those that report by themselves could not, while this server did not lead. */
TEST(who_was_heard_before_is_not_silent_at_promotion) {
    static const char *const words[] = {"ranks", "8", "silent-ms", "30", NULL};
    fake_load(words);
    CHECK_STR(fake_call("conductor.add e1 http://e1 MODEL m"), "OK");
    CHECK_STR(fake_call("conductor.load e1 RUNNING 1"), "OK");
    fake.leads = false;
    tarn_module_v1.role_changed(false);
    CHECK(becomes("conductor.list", "state silent"));
    fake.leads = true;
    tarn_module_v1.role_changed(true);
    CHECK(has("conductor.list", "state up"));
    fake_unload();
    fake_kept_clear();
}

/* It has never said how loaded it is. */
TEST(registering_twice_is_no_report) {
    static const char *const words[] = {"ranks", "8", "silent-ms", "1", NULL};
    fake_load(words);
    for (int i = 0; i < 2; i++) CHECK_STR(fake_call("conductor.add e1 http://e1 MODEL m"), "OK");
    CHECK(has("conductor.list", "silent-ms -1"));
    CHECK_STR(fake_call("conductor.load e1 RUNNING 1"), "OK");
    CHECK(!has("conductor.list", "silent-ms -1"));
    fake_unload();
    fake_kept_clear();
}

TEST(where_they_are_may_change) {
    struct web w, other;
    web_start(&w, WEB_NOT_FOUND, 0, "");
    web_start(&other, WEB_ANSWERS, 0,
              "vllm:num_requests_running NaN\nvllm:num_requests_waiting 1\n");
    fake_load(small);
    CHECK_STR(add("e1", "METRICS YES", &w), "OK");
    CHECK(becomes("conductor.info e1", "state failing why it answers with status 404"));
    char words[64];
    snprintf(words, sizeof(words), "METRICS http://127.0.0.1:%u/m", other.port);
    CHECK_STR(add("e1", words, &w), "OK");
    CHECK(becomes("conductor.list", "metrics up"));
    CHECK(has("conductor.doctor", "had figures that cannot be"));
    CHECK(has("conductor.info e1",
              "refused-why no figure that can be: vllm:num_requests_running NaN"));
    CHECK(!has("conductor.list", "silent-ms -1"));
    CHECK_STR(add("e1", "", &w), "OK");
    CHECK(has("conductor.list", "metrics none"));
    /* Nobody says how it is any more: as of an engine that never did. */
    CHECK(has("conductor.list", "silent-ms -1"));
    CHECK(has("conductor.info e1", "other-prefill-tokens 0 other-decodes 0 other-kvblocks 0"));
    CHECK(strstr(add("e2", "METRICS ftp://a/b", &w), "METRICS must be http://HOST:PORT/PATH") !=
          NULL);
    CHECK(strstr(fake_call("conductor.add e2 e2:80 MODEL m METRICS YES"),
                 "or YES where url is such") != NULL);
    CHECK(has("conductor.list", "*1 "));
    fake_unload();
    web_stop(&w);
    web_stop(&other);
    fake_kept_clear();
}

TEST(words_of_loadmodule) {
    static const char *const bad[][3] = {{"metrics-ms", "9", NULL},
                                         {"metrics-ca", "/nowhere/ca.pem", NULL},
                                         {"metrics-ca", NULL, NULL},
                                         {"metric", "1", NULL}};
    static const char *const texts[] = {"metrics-ms 9: must be a number from 10 to 3600000",
                                        "metrics-ca /nowhere/ca.pem: No such file or directory",
                                        "'metrics-ca' wants a value",
                                        "unknown word 'metric': policy NAME, ranks N, "};
    for (size_t i = 0; i < 4; i++) {
        char error[512];
        size_t n = bad[i][1] == NULL ? 1 : 2;
        CHECK_EQ(tarn_module_v1.load(&fake_services, n, bad[i], error, sizeof(error)), TARN_EINVAL);
        CHECK(strncmp(error, texts[i], strlen(texts[i])) == 0);
    }
}

TEST_MAIN()
