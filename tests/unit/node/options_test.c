#include "../test.h"

#include <errno.h>
#include <unistd.h>

#include "node/options.h"

static struct node_options o;
static char why[512];

/* Words of a command line, parted by blanks. */
static bool parse(const char *line) {
    static char text[512];
    char *argv[64], *save = NULL;
    int argc = 0;
    node_options_free(&o);
    snprintf(text, sizeof(text), "%s", line);
    for (char *w = strtok_r(text, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    why[0] = '\0';
    return node_options_parse(&o, argc, argv, why, sizeof(why));
}

#define MASTER "--master tarn://m:6479 "

TEST(the_least) {
    CHECK(parse(MASTER "--segment 8gb"));
    CHECK_STR(o.master, "tarn://m:6479");
    CHECK_EQ(o.host.n_segments, 1);
    CHECK_EQ(o.host.segments[0].bytes, UINT64_C(8) << 30);
    CHECK_EQ(o.host.segments[0].numa_node, -1);
    CHECK(o.host.segments[0].path == NULL && o.host.segments[0].huge_pages == 0);
    CHECK(o.host.name == NULL && o.host.bind == NULL && o.host.shm_socket == NULL);
    CHECK_EQ(o.host.populate, 1);
    CHECK(!o.keeps && !o.drain_on_exit);
    CHECK_EQ(o.log_level, LOG_LEVEL_NOTICE);
}

TEST(segments) {
    CHECK(parse(
        MASTER
        "--segment 8gb@numa1 --segment=512mb,path=/dev/shm/x,huge --segment 4096@numa0,huge"));
    CHECK_EQ(o.host.n_segments, 3);
    CHECK_EQ(o.host.segments[0].numa_node, 1);
    CHECK_EQ(o.host.segments[1].bytes, UINT64_C(512) << 20);
    CHECK_STR(o.host.segments[1].path, "/dev/shm/x");
    CHECK_EQ(o.host.segments[1].huge_pages, 1);
    CHECK_EQ(o.host.segments[2].numa_node, 0);
    CHECK_EQ(o.host.segments[2].huge_pages, 1);
    CHECK(o.keeps);
    static const char *const bad[] = {
        "8",         "8gigs",      "-1gb",         "8gb@1",
        "8gb@numa",  "8gb@numa-1", "8gb@numa5000", "8gb,cold",
        "8gb,path=", "8gb,path",   "gb",           "@numa0",
        ",huge",     "8gb,,huge",  "8gb,hugest",   "99999999999999999tb"};
    char line[256];
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        snprintf(line, sizeof(line), MASTER "--segment %s", bad[i]);
        CHECK(!parse(line));
        CHECK(strstr(why, "--segment") != NULL);
    }
}

TEST(tiers) {
    CHECK(parse(MASTER "--segment 1gb --ssd /var/lib/tarn:100gb --file=/mnt/a:b:1tb --queue 64mb"));
    CHECK_STR(o.host.ssd_path, "/var/lib/tarn");
    CHECK_EQ(o.host.ssd_bytes, UINT64_C(100) << 30);
    CHECK_STR(o.host.file_path, "/mnt/a:b");
    CHECK_EQ(o.host.file_bytes, UINT64_C(1) << 40);
    CHECK_EQ(o.host.queue_bytes, UINT64_C(64) << 20);
    CHECK(o.keeps);
    CHECK(!o.host.ssd_create && !o.host.file_create);
    CHECK(parse(MASTER "--ssd /a:1gb --file /b:2gb,create"));
    CHECK(!o.host.ssd_create && o.host.file_create && o.host.file_bytes == UINT64_C(2) << 30);
    CHECK(parse(MASTER "--ssd /a,create:1gb,create") && o.host.ssd_create);
    CHECK_STR(o.host.ssd_path, "/a,create");
    CHECK(!parse(MASTER "--ssd /a:,create") && strstr(why, "--ssd is PATH:SIZE") != NULL);
    CHECK(!parse(MASTER "--ssd /a:1gb,make") && strstr(why, "PATH:SIZE,create") != NULL);
    CHECK(!parse(MASTER "--ssd /var/lib/tarn") && strstr(why, "--ssd is PATH:SIZE") != NULL);
    CHECK(!parse(MASTER "--file :1gb") && strstr(why, "--file") != NULL);
    CHECK(!parse(MASTER "--ssd /a:1gb --ssd /b:1gb") && strstr(why, "once") != NULL);
    CHECK(!parse(MASTER "--ssd /a:1gb --queue 5") && strstr(why, "--queue") != NULL);
    CHECK(parse(MASTER "--ssd /a:1gb")); /* without memory is odd, not wrong */
}

TEST(all_the_others) {
    CHECK(parse(MASTER "--segment 1gb --name n1 --rack r1 --bind 10.0.0.1 --bind=::1 --data-port "
                       "16000 --announce a:1 "
                       "--threads 4 --host-name h --shm-socket none --shm-perm 660 --file-perm 640 "
                       "--copies 8 --no-populate "
                       "--shrink "
                       "--port-file p "
                       "--log-level debug --log-file l --user u --drain-on-exit --exit-timeout 3 "
                       "--max-connections 7"));
    CHECK_STR(o.host.name, "n1");
    CHECK_STR(o.host.rack, "r1");
    CHECK_EQ(o.host.binds, 2);
    CHECK_STR(o.host.bind[1], "::1");
    CHECK_EQ(o.host.data_port, 16000);
    CHECK_STR(o.host.announce, "a:1");
    CHECK_EQ(o.host.threads, 4);
    CHECK_STR(o.client.host_name, "h");
    CHECK_STR(o.host.shm_socket, "");
    CHECK_EQ(o.host.shm_mode, 0660);
    CHECK_EQ(o.host.file_mode, 0640);
    CHECK_EQ(o.host.copies, 8);
    CHECK_EQ(o.host.populate, 0);
    CHECK_STR(o.port_file, "p");
    CHECK_EQ(o.log_level, LOG_LEVEL_DEBUG);
    CHECK_STR(o.client.user, "u");
    CHECK(o.drain_on_exit && o.host.shrink);
    CHECK_EQ(o.exit_timeout_ms, 3000);
    CHECK_EQ(o.host.max_connections, 7);
    CHECK(parse(MASTER "--segment 1gb --shm-socket auto") && o.host.shm_socket == NULL);
    CHECK(parse(MASTER "--segment 1gb --shm-socket /run/x") &&
          strcmp(o.host.shm_socket, "/run/x") == 0);
}

TEST(a_url_of_tls_is_one_however_it_is_written) {
    CHECK(parse(MASTER "--segment 1gb") && !o.secure);
    CHECK(parse("--master tarns://m --segment 1gb --tls-data") && o.secure);
    CHECK(parse("--master TarnS+Sentinel://m/p --segment 1gb --tls-data") && o.secure);
    CHECK(!parse(MASTER "--segment 1gb --tls-data") && strstr(why, "--master") != NULL);
}

TEST(tls_is_for_the_data_port_and_for_modules) {
    CHECK(parse("--master tarns://m --segment 1gb --tls-data --tls-cert-file c --tls-key-file k "
                "--tls-auth-clients optional"));
    CHECK_STR(o.host.tls_cert_file, "c");
    CHECK_STR(o.tls.key_file, "k");
    CHECK_EQ(o.tls.auth, TLS_AUTH_OPTIONAL);
    /* without tls_data the host takes none of them */
    CHECK(parse(MASTER "--segment 1gb --tls-cert-file c --tls-ca-cert-dir d --loadmodule x"));
    CHECK_STR(o.tls.cert_file, "c");
    CHECK_STR(o.tls.ca_dir, "d");
    CHECK_EQ(o.tls.auth, TLS_AUTH_YES);
    CHECK(o.host.tls_cert_file == NULL && o.host.tls_ca_dir == NULL);
    CHECK(!parse(MASTER "--segment 1gb --tls-cert-file c") && strstr(why, "--loadmodule") != NULL);
    CHECK(!parse(MASTER "--segment 1gb --tls-auth-clients perhaps --loadmodule x") &&
          strstr(why, "--tls-auth-clients perhaps") != NULL);
}

TEST(help_and_version_need_nothing_else) {
    CHECK(parse("--help") && o.help);
    CHECK(parse("--version") && o.version);
}

TEST(refusals_name_the_option) {
    static const char *const bad[][2] = {
        {"--segment 1gb", "--master"},
        {MASTER, "--segment"},
        {MASTER "--segment", "--segment"},
        {MASTER "--segments 1gb", "--segments"},
        {MASTER "1gb", "\"1gb\""},
        {MASTER "--data-port 65536", "--data-port"},
        {MASTER "--data-port x", "--data-port"},
        {MASTER "--threads 0", "--threads"},
        {MASTER "--copies 65", "--copies"},
        {MASTER "--help=yes", "--help"},
        {MASTER "--name=", "--name"},
        {MASTER "--bind=", "--bind"},
        {MASTER "--shm-perm 999", "--shm-perm"},
        {MASTER "--file-perm rw", "--file-perm"},
        {MASTER "--shm-perm 1777", "--shm-perm"},
        {MASTER "--log-level loud", "--log-level"},
        {MASTER "--exit-timeout -1", "--exit-timeout"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        CHECK(!parse(bad[i][0]));
        CHECK(strstr(why, bad[i][1]) != NULL);
    }
}

TEST(too_many) {
    char line[8192] = MASTER;
    for (int i = 0; i < 63; i++) strcat(line, "--segment=4kb ");
    char *argv[80], *save = NULL;
    int argc = 0;
    node_options_free(&o);
    for (char *w = strtok_r(line, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    CHECK(!node_options_parse(&o, argc, argv, why, sizeof(why)));
    CHECK(strstr(why, "--segment") != NULL);
    node_options_free(&o);
    CHECK(node_options_parse(&o, 2, argv, why, sizeof(why)) == false); /* the master alone */
}

TEST(passwords) {
    char path[256], line[512];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof(path), "%s/tarn-node-XXXXXX", dir != NULL ? dir : "/tmp");
    CHECK(parse(MASTER "--segment 1gb"));
    CHECK(node_options_password(&o, NULL, why, sizeof(why)) && o.client.password == NULL);
    CHECK(node_options_password(&o, "from env", why, sizeof(why)));
    CHECK_STR(o.client.password, "from env");
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "from file\nmore\n", 15) == 15);
    close(fd);
    snprintf(line, sizeof(line), MASTER "--segment 1gb --password-file %s", path);
    CHECK(parse(line));
    CHECK(node_options_password(&o, "from env", why, sizeof(why)));
    CHECK_STR(o.client.password, "from file");
    CHECK_EQ(truncate(path, 0), 0);
    CHECK(!node_options_password(&o, NULL, why, sizeof(why)));
    unlink(path);
    CHECK(!node_options_password(&o, NULL, why, sizeof(why)));
    CHECK(strstr(why, "--password-file") != NULL);
    CHECK(parse(MASTER "--segment 1gb --password-file /"));
    CHECK(!node_options_password(&o, NULL, why, sizeof(why)));
    CHECK(strstr(why, strerror(EISDIR)) != NULL);
    node_options_free(&o);
}

TEST(modules_have_words) {
    CHECK(parse(
        MASTER
        "--segment 1gb --loadmodule a.so bind 10.0.0.1 device -x --threads 3 --loadmodule=b.so"));
    CHECK_EQ(o.modules, 2);
    CHECK_STR(o.module[0].path, "a.so");
    CHECK_EQ(o.module[0].words, 4);
    CHECK_STR(o.module[0].word[0], "bind");
    CHECK_STR(o.module[0].word[3], "-x");
    CHECK_EQ(o.host.threads, 3);
    CHECK_STR(o.module[1].path, "b.so");
    CHECK_EQ(o.module[1].words, 0);
    char *quoted[] = {"--master", "tarn://m",     "--segment",
                      "1gb",      "--loadmodule", "\"/a b/c.so\" bind 'x y'"};
    node_options_free(&o);
    CHECK(node_options_parse(&o, 6, quoted, why, sizeof(why)));
    CHECK_STR(o.module[0].path, "/a b/c.so");
    CHECK_EQ(o.module[0].words, 2);
    CHECK_STR(o.module[0].word[1], "x y");
    quoted[5] = "c.so \"x";
    node_options_free(&o);
    CHECK(!node_options_parse(&o, 6, quoted, why, sizeof(why)));
    CHECK(strstr(why, "unbalanced quotes") != NULL);
    CHECK(!parse(MASTER "--segment 1gb --loadmodule"));
    CHECK(strstr(why, "--loadmodule needs a value") != NULL);
    CHECK(!parse(MASTER "--segment 1gb --loadmodule= --threads 3"));
    CHECK(strstr(why, "--loadmodule names a file") != NULL);
    static char *many[80] = {"--master", "tarn://m", "--segment", "1gb", "--loadmodule", "a.so"};
    for (size_t i = 6; i < 80; i++) many[i] = "x";
    node_options_free(&o);
    CHECK(node_options_parse(&o, 6 + MODULE_WORDS_MAX, many, why, sizeof(why)));
    CHECK_EQ(o.module[0].words, MODULE_WORDS_MAX);
    node_options_free(&o);
    CHECK(!node_options_parse(&o, 7 + MODULE_WORDS_MAX, many, why, sizeof(why)));
    CHECK(strstr(why, "--loadmodule takes up to 64 words") != NULL);
    node_options_free(&o);
    CHECK(!node_options_parse(&o, 9 + MODULE_WORDS_MAX, many, why, sizeof(why)));
    node_options_free(&o);
}

TEST_MAIN()
