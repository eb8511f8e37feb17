/* URLs and the options they carry. */
#include "base/assert.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lane.h"
#include "client/master.h"
#include "client/secure.h"

#include "../test.h"

struct parsed {
    tarn_options o;
    struct whereabouts m;
};

static tarn_status parse(const char *url, struct parsed *p) {
    *p = (struct parsed){0};
    url_options_copy(&p->o, NULL);
    return url_parse(url, &p->o, &p->m);
}

static void done(struct parsed *p) {
    url_options_free(&p->o);
    master_free(&p->m);
}

TEST(plain_host_gets_the_default_port) {
    struct parsed p;
    CHECK_EQ(parse("tarn://example.org", &p), TARN_OK);
    CHECK_STR(p.m.server[0].host, "example.org");
    CHECK_STR(p.m.server[0].port, "6479");
    CHECK(p.o.user == NULL && p.o.password == NULL);
    done(&p);
}

TEST(user_password_and_options) {
    struct parsed p;
    CHECK_EQ(parse("TARN://a%40b:p%3Aw%2f@[::1]:7000/"
                   "?transport=tcp&verify=0&batch_keys=16&name=x%20y&rack=r%2F1&failover_ms=70&"
                   "busy_poll_us=7&module_path=/"
                   "a:/b%20c",
                   &p),
             TARN_OK);
    CHECK_STR(p.m.server[0].host, "::1");
    CHECK_STR(p.m.server[0].port, "7000");
    CHECK_STR(p.o.user, "a@b");
    CHECK_STR(p.o.password, "p:w/");
    CHECK_STR(p.o.transport, "tcp");
    CHECK_STR(p.o.name, "x y");
    CHECK_STR(p.o.rack, "r/1");
    CHECK_STR(p.o.module_path, "/a:/b c");
    CHECK_EQ(p.o.failover_ms, 70);
    CHECK_EQ(p.o.busy_poll_us, 7);
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

TEST(the_options_password_with_the_urls_user) {
    struct parsed p = {0};
    tarn_options o;
    tarn_options_init(&o);
    o.password = "from a file";
    url_options_copy(&p.o, &o);
    CHECK_EQ(url_parse("tarn://bob@h", &p.o, &p.m), TARN_OK);
    CHECK_STR(p.o.user, "bob");
    CHECK_STR(p.o.password, "from a file");
    done(&p);
}

TEST(several_servers) {
    struct parsed p;
    CHECK_EQ(parse("tarn://u:p@a:1,b,[::1]:3?retries=5", &p), TARN_OK);
    CHECK_EQ(p.m.n, 3);
    CHECK(master_may_change(&p.m) && p.m.name == NULL);
    CHECK_STR(p.m.server[0].host, "a");
    CHECK_STR(p.m.server[0].port, "1");
    CHECK_STR(p.m.server[1].port, "6479");
    CHECK_STR(p.m.server[2].host, "::1");
    CHECK_EQ(p.o.retries, 5);
    done(&p);
    CHECK_EQ(parse("tarn://a,b,c,d,e,f,g,h,i", &p), TARN_EINVAL);
    done(&p);
    CHECK_EQ(parse("tarn://a,,b", &p), TARN_EINVAL);
    done(&p);
}

TEST(sentinels) {
    struct parsed p;
    CHECK_EQ(parse("tarn+sentinel://u:p@a:1,b,[::1]:3/my%20pool?retries=5", &p), TARN_OK);
    CHECK_EQ(p.m.n, 3);
    CHECK(master_may_change(&p.m));
    CHECK_STR(p.m.name, "my pool");
    CHECK_STR(p.m.server[0].host, "a");
    CHECK_STR(p.m.server[0].port, "1");
    CHECK_STR(p.m.server[1].port, "26379");
    CHECK_STR(p.m.server[2].host, "::1");
    CHECK_STR(p.o.password, "p");
    CHECK_EQ(p.o.retries, 5);
    done(&p);
}

TEST(tls) {
    struct parsed p;
    CHECK_EQ(parse("tarns://h:7?tls_ca_file=/a%20b&tls_ca_dir=/d&tls_cert_file=/c&tls_key_file=/"
                   "k&tls_server_name=n"
                   "&tls_verify=no&tls_verify=yes&tls_verify_name=no",
                   &p),
             TARN_OK);
    CHECK(p.m.tls && p.m.secure.context == NULL);
    CHECK_STR(p.m.server[0].port, "7");
    CHECK_STR(p.o.tls_ca_file, "/a b");
    CHECK_STR(p.o.tls_ca_dir, "/d");
    CHECK_STR(p.o.tls_cert_file, "/c");
    CHECK_STR(p.o.tls_key_file, "/k");
    CHECK_STR(p.o.tls_server_name, "n");
    CHECK_EQ(p.o.tls_verify, 1);
    CHECK_EQ(p.o.tls_verify_name, 0);
    done(&p);
    CHECK_EQ(parse("TARNS+sentinel://u:p@a,[::1]:3/pool?tls_verify=no", &p), TARN_OK);
    CHECK(p.m.tls);
    CHECK_EQ(p.m.n, 2);
    CHECK_STR(p.m.server[0].port, "26379");
    CHECK_EQ(p.o.tls_verify, 0);
    CHECK_EQ(p.o.tls_verify_name, 1);
    CHECK(p.o.tls_ca_file == NULL);
    done(&p);
    CHECK_EQ(parse("tarn://h", &p), TARN_OK);
    CHECK(!p.m.tls && p.o.tls_verify == 1);
    done(&p);
}

/* A setting that does nothing would look as if it protected something. */
TEST(tls_options_want_tls) {
    struct parsed p = {0};
    tarn_options o;
    tarn_options_init(&o);
    o.tls_ca_file = "/ca";
    url_options_copy(&p.o, &o);
    CHECK_EQ(url_parse("tarn://h", &p.o, &p.m), TARN_EINVAL);
    CHECK(strstr(tarn_last_error(), "tarns://") != NULL);
    CHECK_EQ(url_parse("tarns://h?tls_key_file=/k", &p.o, &p.m), TARN_EINVAL);
    CHECK(strstr(tarn_last_error(), "tls_cert_file is missing") != NULL);
    /* the key is there by now */
    CHECK_EQ(url_parse("tarns://h?tls_cert_file=/c", &p.o, &p.m), TARN_OK);
    CHECK_STR(p.o.tls_ca_file, "/ca");
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
        "tarn://h?failover_ms=0",
        "tarn://h?busy_poll_us=10001",
        "tarn://h?batch_keys=99999999999999999999",
        "tarns:/h",
        "tarn://h?tls_verify=no",
        "tarn://h?tls_verify_name=no",
        "tarns://h?tls_verify_name=1",
        "tarn://h?tls_server_name=x",
        "tarns://h?tls_verify=1",
        "tarns://h?tls_verify=",
        "tarns://h?tls_cert_file=/c",
        "tarns://h?tls_key=/c",
        "tarns+sentinel://h",
        "tarn+sentinel://h/n?tls_ca_dir=/d",
        "tarn+sentinel://h",
        "tarn+sentinel://h/",
        "tarn+sentinel:///name",
        "tarn+sentinel://h,:3/name",
        "tarn+sentinel://h,/name?x=1",
        "tarn+sentinel://a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q/name",
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
    CHECK_EQ(tarn_connect("tarn://h?transport=pigeon", NULL, &c), TARN_ENOTSUP);
    /* a scheme of URIs, but no transport: nobody shall take it for a promise of TLS */
    CHECK_EQ(tarn_connect("tarn://h?transport=tcps", NULL, &c), TARN_EINVAL);
    CHECK_EQ(tarn_connect("tarn://h?timout_ms=5", NULL, &c), TARN_EINVAL);
    CHECK_STR(tarn_last_error(), "URL option \"timout_ms\" is unknown, did you mean timeout_ms?");
    CHECK_EQ(tarn_connect("tarn://h?pigeon=5", NULL, &c), TARN_EINVAL);
    CHECK_STR(tarn_last_error(), "URL option \"pigeon\" is unknown");
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
