/* The module as a program sees it: load, unload, INFO, RDMA.* with what hosts report, which is not
 * to be trusted. */
#include <sys/wait.h>
#include <unistd.h>

#include "../../fake_verbs/fake_verbs.h"
#include "../test.h"
#include "base/log.h"
#include "rdma/rdma.h"

extern const struct tarn_module tarn_module_v1;

/* --- a program --- */

struct host_report {
    const char *node, *text;
};

static struct {
    struct buf log, reply;
    size_t n_commands;
    const struct tarn_command *command[16];
    tarn_status transport, commands; /* what registering answers */
    const struct host_report *reports;
    size_t n_reports;
    const struct tarn_segment *segments;
    size_t n_segments;
} p;

static void take_log(enum tarn_log_level level, const char *text) {
    buf_printf(&p.log, "%d %s\n", level, text);
}
static tarn_status take_transport(const struct transport_ops *ops) {
    return ops == &rdma_transport && ops->abi == TRANSPORT_ABI ? p.transport : TARN_EINVAL;
}
static tarn_status take_command(const struct tarn_command *command) {
    if (p.commands == TARN_OK) p.command[p.n_commands++] = command;
    return p.commands;
}
static void reply_error(struct tarn_call_context *c, const char *text) {
    (void)c;
    buf_printf(&p.reply, "-%s ", text);
}
static void reply_text(struct tarn_call_context *c, struct span text) {
    (void)c;
    buf_printf(&p.reply, "%.*s ", (int)text.len, text.data);
}
static void reply_int(struct tarn_call_context *c, int64_t value) {
    (void)c;
    buf_printf(&p.reply, ":%lld ", (long long)value);
}
static void reply_array(struct tarn_call_context *c, size_t elements) {
    (void)c;
    buf_printf(&p.reply, "*%zu ", elements);
}
static void reply_map(struct tarn_call_context *c, size_t pairs) {
    (void)c;
    buf_printf(&p.reply, "%%%zu ", pairs);
}
static void each_segment(const char *scheme,
                         bool (*each)(void *arg, const struct tarn_segment *segment), void *arg) {
    CHECK_STR(scheme, "rdma");
    for (size_t i = 0; i < p.n_segments && each(arg, &p.segments[i]); i++) {
    }
}
static void each_report(const char *scheme,
                        bool (*each)(void *arg, const char *node, const char *machine,
                                     uint64_t age_ms, struct span report),
                        void *arg) {
    CHECK_STR(scheme, "rdma");
    for (size_t i = 0; i < p.n_reports; i++) {
        if (!each(arg, p.reports[i].node, "m1", 12, span_str(p.reports[i].text))) return;
    }
}

static const struct tarn_services services = {
    .size = sizeof(services),
    .version = TARN_MODULE_VERSION,
    .program = TARN_PROGRAM_SERVER,
    .program_version = "0",
    .log = take_log,
    .transport_register = take_transport,
    .command_register = take_command,
    .reply_error = reply_error,
    .reply_text = reply_text,
    .reply_int = reply_int,
    .reply_array = reply_array,
    .reply_map = reply_map,
    .each_segment = each_segment,
    .each_report = each_report,
};

static tarn_status load(const char *fake, size_t argc, const char *const *argv, char *error,
                        size_t cap) {
    struct buf log = p.log, reply = p.reply;
    buf_clear(&log);
    buf_clear(&reply);
    memset(&p, 0, sizeof(p));
    p.log = log;
    p.reply = reply;
    fake_configure(fake);
    return tarn_module_v1.load(&services, argc, argv, error, cap);
}

static void begin(const char *fake) {
    char error[200] = "";
    CHECK_EQ(load(fake, 0, NULL, error, sizeof(error)), TARN_OK);
    CHECK_STR(error, "");
}

static void end(void) {
    char error[200];
    CHECK_EQ(tarn_module_v1.unload(error, sizeof(error)), TARN_OK);
    CHECK_EQ(fake_count_all(), 0);
    CHECK_EQ(rdma_total(&rdma_totals.regions), 0);
    buf_free(&p.log);
    buf_free(&p.reply);
}

static bool logged(const char *text) {
    return p.log.len > 0 && memmem(p.log.data, p.log.len, text, strlen(text)) != NULL;
}

/* Runs a command; what it answered is p.reply, and returned as a string. */
static const char *run(const char *name, const char *arg) {
    struct span argv[] = {span_str(name), arg != NULL ? span_str(arg) : (struct span){0}};
    buf_clear(&p.reply);
    for (size_t i = 0; i < p.n_commands; i++) {
        if (strcmp(p.command[i]->name, name) != 0) continue;
        p.command[i]->run(NULL, argv, arg != NULL ? 2 : 1);
        buf_append_char(&p.reply, '\0');
        return p.reply.data;
    }
    return "none of that name";
}

/* --- load --- */

TEST(without_a_device_one_line_says_so) {
    begin("devices=0");
    CHECK(logged("RDMA: no device that can be used; tcp serves"));
    size_t lines = 0;
    for (size_t i = 0; i < p.log.len; i++) lines += p.log.data[i] == '\n';
    CHECK_EQ(lines, 1);
    CHECK(strncmp(run("rdma.doctor", NULL), "*", 1) == 0);
    CHECK(strstr(p.reply.data, "error no RDMA device can be used") != NULL);
    CHECK_STR(run("rdma.devices", NULL), "*0 ");
    end();
}

TEST(wrong_arguments_are_named) {
    const char *argv[] = {"qps", "99"};
    char error[200] = "";
    CHECK_EQ(load(NULL, 2, argv, error, sizeof(error)), TARN_EINVAL);
    CHECK_STR(error, "qps is a number from 1 to 16, not '99'");
    CHECK_EQ(fake_count_all(), 0);
}

TEST(a_load_that_fails_leaves_nothing) {
    struct tarn_services refusing = services;
    char error[200] = "";
    fake_configure(NULL);
    memset(&p, 0, sizeof(p));
    p.transport = TARN_EEXISTS;
    CHECK_EQ(tarn_module_v1.load(&refusing, 0, NULL, error, sizeof(error)), TARN_EEXISTS);
    CHECK(error[0] != '\0');
    CHECK_EQ(fake_count_all(), 0);
    p.transport = TARN_OK;
    p.commands = TARN_ENOTSUP; /* a client has none: the module goes on without */
    CHECK_EQ(tarn_module_v1.load(&refusing, 0, NULL, error, sizeof(error)), TARN_OK);
    end();
}

TEST(devices_are_chosen_by_name) {
    const char *argv[] = {"device", "fake1", "device", "fake7"};
    char error[200];
    CHECK_EQ(load("devices=3", 4, argv, error, sizeof(error)), TARN_OK);
    CHECK_EQ(rdma_devices_count(), 1);
    CHECK_STR(rdma_device_at(0)->name, "fake1");
    CHECK(logged("RDMA device fake7: there is none of that name"));
    end();
}

TEST(it_is_not_unloaded_while_it_is_used) {
    begin(NULL);
    struct transport_domain_config config = {0};
    struct transport_domain *d;
    char error[200] = "";
    CHECK_EQ(rdma_transport.domain_open(&config, &d), TARN_OK);
    CHECK_EQ(tarn_module_v1.unload(error, sizeof(error)), TARN_EBUSY);
    CHECK_STR(error, "hosts or clients of this process use rdma");
    rdma_transport.domain_close(&d);
    end();
}

static void take_field(void *arg, const char *name, const char *value) {
    buf_printf(arg, "%s:%s\n", name, value);
}

TEST(info_says_what_is) {
    begin("devices=2");
    struct buf b = {0};
    tarn_module_v1.info(take_field, &b);
    buf_append_char(&b, '\0');
    CHECK(strstr(b.data, "rdma_state:2 devices: fake0 up 127.0.0.1, fake1 up 127.0.0.2\n") != NULL);
    CHECK(strstr(b.data, "rdma_devices:2\nrdma_devices_up:2\nrdma_domains:0\n") != NULL);
    fake_port("fake1", false);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && rdma_device_usable(rdma_device_at(1)); i++)
        usleep(1000);
    buf_clear(&b);
    tarn_module_v1.info(take_field, &b);
    buf_append_char(&b, '\0');
    CHECK(strstr(b.data, "fake1 down") != NULL);
    CHECK(strstr(b.data, "rdma_devices_up:1\n") != NULL);
    buf_free(&b);
    end();
}

/* --- RDMA. --- */

TEST(reports_of_hosts_are_taken_apart) {
    begin("devices=0");
    static const struct host_report reports[] = {
        {"n1", "stats connections=3 regions=6\ndevice name=7 state=up mtu=1024 gid=00\npeer "
               "session=5 qp=17\n"},
        {"", "device name=b state=down numa=-1\nrail qp=18 remote_qp=17\n"},
    };
    p.reports = reports;
    p.n_reports = 2;
    CHECK_STR(run("rdma.devices", NULL),
              "*2 %7 node n1 machine m1 report_age_ms :12 name 7 state up mtu :1024 gid 00 "
              "%6 node  machine m1 report_age_ms :12 name b state down numa :-1 ");
    CHECK_STR(run("rdma.connections", NULL),
              "*2 %6 node n1 machine m1 report_age_ms :12 kind peer session :5 qp :17 "
              "%6 node  machine m1 report_age_ms :12 kind rail qp :18 remote_qp :17 ");
    CHECK_STR(run("rdma.stats", NULL),
              "*1 %5 node n1 machine m1 report_age_ms :12 connections :3 regions :6 ");
    end();
}

TEST(nonsense_from_hosts_does_no_harm) {
    begin("devices=0");
    static const struct host_report reports[] = {
        {"n1", ""},
        {"n2", "\n\n  \ndevice\ndevice \ndevice = =x a= b\nnonsense x=1\ndevices x=1"},
        {"n3", "device x=99999999999999999999"},
    };
    p.reports = reports;
    p.n_reports = 3;
    CHECK_STR(run("rdma.devices", NULL),
              "*4 %3 node n2 machine m1 report_age_ms :12 "
              "%3 node n2 machine m1 report_age_ms :12 "
              "%4 node n2 machine m1 report_age_ms :12 a  "
              "%4 node n3 machine m1 report_age_ms :12 x 99999999999999999999 ");
    struct buf many = {0};
    buf_append_str(&many, "device");
    for (int i = 0; i < 1000; i++) buf_printf(&many, " f%d=1", i);
    buf_append_char(&many, '\0');
    struct host_report long_one = {"n4", many.data};
    p.reports = &long_one;
    p.n_reports = 1;
    CHECK(strncmp(run("rdma.devices", NULL), "*1 %67 ", 7) == 0);
    buf_free(&many);
    end();
}

static struct span packed(struct buf *b, unsigned right, uint32_t chunks, uint32_t devices) {
    struct rdma_key_header h = {.magic = RDMA_KEY_MAGIC,
                                .version = RDMA_WIRE_VERSION,
                                .right = (uint16_t)right,
                                .segment = 4,
                                .segment_epoch = 2,
                                .size = chunks * RDMA_CHUNK_SIZE,
                                .chunk_size = RDMA_CHUNK_SIZE,
                                .address = 0x7f0000001000,
                                .header_address = 0x7f0000000000,
                                .generation = 0xabc,
                                .n_chunks = chunks,
                                .n_devices = devices};
    buf_append(b, &h, sizeof(h));
    for (uint32_t i = 0; i < devices; i++) {
        struct rdma_key_device d = {.name = "mlx5_0",
                                    .port = 4791,
                                    .numa_node = 1,
                                    .speed_mbps = 100000,
                                    .mtu = 4096,
                                    .header_rkey = 8};
        memcpy(d.address, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x00\x00\x01", 16);
        buf_append(b, &d, sizeof(d));
        for (uint32_t k = 0; k < chunks; k++) {
            uint32_t rkey = 100 * right + k;
            buf_append(b, &rkey, sizeof(rkey));
        }
    }
    return (struct span){b->data, b->len};
}

TEST(regions_are_shown_with_their_keys) {
    begin("devices=0");
    struct buf r = {0}, w = {0};
    struct tarn_segment s[2] = {
        {.id = 4,
         .epoch = 2,
         .size = 2 * RDMA_CHUNK_SIZE,
         .name = "n1.0",
         .node = "n1",
         .machine = "m1",
         .uri = "rdma://10.0.0.1:4791"},
        {.id = 5, .name = "n2.0", .node = "n2", .machine = "m2", .uri = ""}};
    s[0].key[0] = packed(&r, RDMA_READ, 2, 1);
    s[0].key[1] = packed(&w, RDMA_WRITE, 2, 1);
    p.segments = s;
    p.n_segments = 2;
    const char *expected = "*1 %14 segment :4 name n1.0 node n1 machine m1 epoch :2 size "
                           ":2147483648 uri rdma://10.0.0.1:4791 "
                           "address 00007f0000001000 header_address 00007f0000000000 generation "
                           "0000000000000abc wire_version "
                           ":1 "
                           "chunk_size :1073741824 chunks :2 devices *1 %9 name mlx5_0 address "
                           "10.0.0.1 port :4791 numa :1 "
                           "speed_mbps :100000 mtu :4096 header_rkey :8 read_rkeys *2 :100 :101 "
                           "write_rkeys *2 :200 :201 ";
    CHECK_STR(run("rdma.regions", NULL), expected);
    CHECK_STR(run("rdma.regions", "4"), expected);
    CHECK_STR(run("rdma.regions", "n1.0"), expected);
    CHECK_STR(run("rdma.regions", "n\n9"),
              "-ERR segment 'n?9': there is none of that name or number that RDMA reaches ");
    for (size_t cut = 0; cut < r.len; cut++) { /* keys come from other machines, too */
        s[0].key[0].len = cut;
        s[0].key[1].len = 0;
        CHECK_STR(run("rdma.regions", NULL), "*0 ");
    }
    buf_free(&r);
    buf_free(&w);
    s[0].key[0] = packed(&r, RDMA_READ, 1, 1);
    ((struct rdma_key_header *)(void *)r.data)->n_chunks = UINT32_MAX;
    CHECK_STR(run("rdma.regions", NULL), "*0 ");
    ((struct rdma_key_header *)(void *)r.data)->n_chunks = 1;
    ((struct rdma_key_header *)(void *)r.data)->n_devices = UINT32_MAX;
    CHECK_STR(run("rdma.regions", NULL), "*0 ");
    buf_free(&r);
    end();
}

TEST(the_doctor_looks_at_devices) {
    begin("devices=2");
    run("rdma.doctor", NULL);
    CHECK(strstr(p.reply.data, "ok device fake0: 127.0.0.1, port up") != NULL);
    CHECK(strstr(p.reply.data, "takes dma-buf") != NULL);
    CHECK(strstr(p.reply.data, "nobody outside this machine can connect") != NULL);
    CHECK(strstr(p.reply.data, " memory: ") != NULL);
    fake_port("fake1", false);
    for (unsigned i = 0; i < TEST_PATIENCE_MS && rdma_device_usable(rdma_device_at(1)); i++)
        usleep(1000);
    run("rdma.doctor", NULL);
    CHECK(strstr(p.reply.data, "error device fake1: port 1 is down: ") != NULL);
    fake_device_remove("fake0", false);
    for (unsigned i = 0;
         i < TEST_PATIENCE_MS && strstr(run("rdma.doctor", NULL), "fake0: it broke") == NULL; i++)
        usleep(1000);
    CHECK(strstr(p.reply.data, "error device fake0: it broke or was taken away") != NULL);
    end();
}

/* Neither the devices nor the threads of a program are there in what it forks. */
TEST(a_child_has_no_devices) {
    struct transport_domain_config config = {0};
    struct transport_domain *d, *ours;
    struct transport_endpoint *e;
    begin("devices=2");
    CHECK_EQ(rdma_transport.domain_open(&config, &ours), TARN_OK);
    pid_t pid = fork();
    if (pid == 0) {
        char error[200];
        alarm(20);
        bool good = rdma_devices_count() == 0 &&
                    rdma_transport.domain_open(&config, &d) == TARN_OK &&
                    rdma_transport.connect(d, "rdma://127.0.0.1:5", 0, &e) == TARN_ECLOSED;
        if (good) rdma_transport.domain_close(&d);
        _exit(!(good && tarn_module_v1.unload(error, sizeof(error)) == TARN_OK));
    }
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    CHECK_EQ(rdma_devices_count(), 2);
    rdma_transport.domain_close(&ours);
    end();
}

TEST_MAIN()
