/* What other machines and people tell the rdma module: reports and packed keys as RDMA.* shows
 * them, packed keys as a client takes them, and options. The first byte of the input says which. A
 * reply that counts its elements wrong would break a connection, so they are counted. */
#include <stdlib.h>
#include <string.h>

#include "../fake_verbs/fake_verbs.h"
#include "base/assert.h"
#include "base/log.h"
#include "rdma/rdma.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    const struct tarn_command *command[16];
    size_t n_commands;
    size_t due; /* elements that a reply still owes */
    struct span report;
    struct tarn_segment segment;
} w;

static void owe(size_t more) {
    TARN_ASSERT(w.due > 0);
    w.due += more - 1;
}
static void reply_error(struct tarn_call_context *c, const char *text) {
    (void)c;
    TARN_ASSERT(strpbrk(text, "\r\n") == NULL);
    owe(0);
}
static void reply_text(struct tarn_call_context *c, struct span text) {
    (void)c;
    volatile char last = text.len > 0 ? text.data[text.len - 1] : '\0';
    (void)last;
    owe(0);
}
static void reply_int(struct tarn_call_context *c, int64_t value) {
    (void)c, (void)value;
    owe(0);
}
static void reply_array(struct tarn_call_context *c, size_t elements) {
    (void)c;
    owe(elements);
}
static void reply_map(struct tarn_call_context *c, size_t pairs) {
    (void)c;
    owe(2 * pairs);
}
static tarn_status take_command(const struct tarn_command *command) {
    w.command[w.n_commands++] = command;
    return TARN_OK;
}
static void each_segment(const char *scheme,
                         bool (*each)(void *arg, const struct tarn_segment *segment), void *arg) {
    (void)scheme;
    (void)each(arg, &w.segment);
}
static void each_report(const char *scheme,
                        bool (*each)(void *arg, const char *node, const char *machine,
                                     uint64_t age_ms, struct span report),
                        void *arg) {
    (void)scheme;
    (void)each(arg, "n1", "m1", 1, w.report);
}

static const struct tarn_services services = {
    .size = sizeof(services),
    .version = TARN_MODULE_VERSION,
    .command_register = take_command,
    .reply_error = reply_error,
    .reply_text = reply_text,
    .reply_int = reply_int,
    .reply_array = reply_array,
    .reply_map = reply_map,
    .each_segment = each_segment,
    .each_report = each_report,
};

static void run(const char *name, const struct span *arg) {
    struct span argv[2] = {span_str(name), arg != NULL ? *arg : (struct span){0}};
    for (size_t i = 0; i < w.n_commands; i++) {
        if (strcmp(w.command[i]->name, name) != 0) continue;
        w.due = 1;
        w.command[i]->run(NULL, argv, arg != NULL ? 2 : 1);
        TARN_ASSERT(w.due == 0);
        return;
    }
    TARN_ASSERT(0);
}

/* --- the three --- */

static void reports(const char *data, size_t size) {
    w.report = span_of(data, size);
    run("rdma.devices", NULL);
    run("rdma.connections", NULL);
    run("rdma.stats", NULL);
}

static struct transport_domain *domain;
static struct transport_endpoint *endpoint;

/* A key for readers, and the same bytes as one for writers. */
static void keys(const char *data, size_t size) {
    struct span name = span_of(data, min_u64(size, 8));
    w.segment = (struct tarn_segment){
        .id = 4, .epoch = 2, .name = "s", .node = "n", .machine = "m", .uri = ""};
    char *exact = xmemdup(data, size); /* so that a byte too far is seen */
    char *other = xmemdup(data, size);
    if (size > 6) other[6] ^= RDMA_READ ^ RDMA_WRITE;
    w.segment.key[0] = span_of(exact, size);
    w.segment.key[1] = span_of(other, size);
    run("rdma.regions", NULL);
    run("rdma.regions", &name);
    static const uint8_t grant[GRANT_SIZE];
    struct transport_key_config config = {.segment = 4,
                                          .segment_epoch = 2,
                                          .size = 1u << 30,
                                          .grant = grant,
                                          .packed = exact,
                                          .packed_len = size};
    struct transport_key *k;
    if (rdma_transport.key_unpack(endpoint, &config, &k) == TARN_OK) rdma_transport.key_close(&k);
    free(exact);
    free(other);
}

static void options(const char *data, size_t size) {
    char *text = xmalloc(size + 1), error[200] = "", *rest = text;
    const char *argv[64];
    size_t argc = 0;
    memcpy(text, data, size);
    text[size] = '\0';
    for (char *word; argc < ARRAY_LEN(argv) && (word = strsep(&rest, " ")) != NULL;)
        argv[argc++] = word;
    tarn_status s = rdma_options_parse(argc, argv, error, sizeof(error));
    TARN_ASSERT((s == TARN_OK) == (error[0] == '\0'));
    TARN_ASSERT(rdma_options.qps >= 1 && rdma_options.slice <= rdma_options.slice_max);
    rdma_options_free();
    free(text);
}

static void start(void) {
    char error[200];
    struct transport_domain_config config = {0};
    log_set_level(LOG_LEVEL_NOTHING);
    rdma_services = &services;
    fake_configure("devices=1");
    TARN_ASSERT(rdma_options_parse(0, NULL, error, sizeof(error)) == TARN_OK);
    TARN_ASSERT(rdma_commands_register() == TARN_OK);
    rdma_devices_open();
    TARN_ASSERT(rdma_transport.domain_open(&config, &domain) == TARN_OK);
    TARN_ASSERT(rdma_transport.connect(domain, "rdma://127.0.0.1:9", 0, &endpoint) == TARN_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (domain == NULL) start();
    if (size == 0) return 0;
    const char *rest = (const char *)data + 1;
    switch (data[0] % 3) {
    case 0: reports(rest, size - 1); break;
    case 1: keys(rest, size - 1); break;
    default: options(rest, size - 1); break;
    }
    return 0;
}
