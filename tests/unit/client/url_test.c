/* URLs and the options they carry. */
#include "client/internal.h"

#include "../test.h"

struct parsed {
    tarn_options o;
    char *host, *port;
};

static tarn_status parse(const char *url, struct parsed *p) {
    *p = (struct parsed){0};
    url_options_copy(&p->o, NULL);
    return url_parse(url, &p->o, &p->host, &p->port);
}

static void done(struct parsed *p) {
    url_options_free(&p->o);
    free(p->host);
    free(p->port);
}

TEST(plain_host_gets_the_default_port) {
    struct parsed p;
    CHECK_EQ(parse("tarn://example.org", &p), TARN_OK);
    CHECK_STR(p.host, "example.org");
    CHECK_STR(p.port, "6479");
    CHECK(p.o.user == NULL && p.o.password == NULL);
    done(&p);
}

TEST(user_password_and_options) {
    struct parsed p;
    CHECK_EQ(parse("TARN://a%40b:p%3Aw%2f@[::1]:7000/?transport=tcp&verify=0&batch_keys=16&name=x%20y", &p),
             TARN_OK);
    CHECK_STR(p.host, "::1");
    CHECK_STR(p.port, "7000");
    CHECK_STR(p.o.user, "a@b");
    CHECK_STR(p.o.password, "p:w/");
    CHECK_STR(p.o.transport, "tcp");
    CHECK_STR(p.o.name, "x y");
    CHECK_EQ(p.o.verify, 0);
    CHECK_EQ(p.o.batch_keys, 16);
    done(&p);
}

TEST(password_without_user) {
    struct parsed p;
    CHECK_EQ(parse("tarn://:secret@h:1", &p), TARN_OK);
    CHECK(p.o.user == NULL);
    CHECK_STR(p.o.password, "secret");
    done(&p);
}

TEST(bad_urls_are_refused) {
    static const char *const bad[] = {
        "",
        "redis://h",
        "tarn://",
        "tarn://:1",
        "tarn://h:0",
        "tarn://h:65536",
        "tarn://h:x",
        "tarn://h:",
        "tarn://::1:6479",
        "tarn://[::1",
        "tarn://[::1]6479",
        "tarn://h/0",
        "tarn://h?verify",
        "tarn://h?verify=2",
        "tarn://h?verify=-1",
        "tarn://h?colour=red",
        "tarn://h?name=%",
        "tarn://h?name=%4",
        "tarn://h?name=%zz",
        "tarn://h?name=%00",
        "tarn://us%er@h",
        "tarn://h?max_lanes=0",
        "tarn://h?batch_keys=99999999999999999999",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct parsed p;
        tarn_status status = parse(bad[i], &p);
        if (status != TARN_EINVAL) printf("# %s was taken\n", bad[i]);
        CHECK_EQ(status, TARN_EINVAL);
        CHECK(tarn_last_error()[0] != '\0');
        done(&p);
    }
}

TEST(options_of_an_older_size_get_defaults) {
    tarn_options old, copy;
    tarn_options_init(&old);
    old.size = offsetof(tarn_options, workers);
    old.workers = 77;
    old.max_lanes = 3;
    url_options_copy(&copy, &old);
    CHECK_EQ(copy.workers, 2);
    CHECK_EQ(copy.max_lanes, 3);
    CHECK_STR(copy.transport, "auto");
    url_options_free(&copy);
}

TEST(connect_says_what_is_wrong) {
    tarn_client *c = NULL;
    CHECK_EQ(tarn_connect("tarn://127.0.0.1:1?retries=0", NULL, &c), TARN_EIO);
    CHECK(strstr(tarn_last_error(), "tarn-server") != NULL);
    CHECK(c == NULL);
    CHECK_EQ(tarn_connect("tarn://h?transport=pigeon", NULL, &c), TARN_EINVAL);
    CHECK_EQ(tarn_connect("tarn://no-such-host.invalid", NULL, &c), TARN_EINVAL);
}

TEST(host_names_with_and_without_boot_id) {
    char own[80], both[200], boot[64] = "";
    segment_host_name(own, sizeof(own));
    CHECK(segment_host_is(own, strlen(own), own));
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (f == NULL) SKIP("no boot id");
    CHECK(fgets(boot, sizeof(boot), f) != NULL);
    fclose(f);
    boot[strcspn(boot, "\n")] = '\0';
    snprintf(both, sizeof(both), "%s|%s", own, boot);
    CHECK(segment_host_is(both, strlen(both), own));
    both[strlen(both) - 1] ^= 1;
    CHECK(!segment_host_is(both, strlen(both), own));
    CHECK(!segment_host_is("other", 5, own) || strcmp(own, "other") == 0);
}

TEST_MAIN()
