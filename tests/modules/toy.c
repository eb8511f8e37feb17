/* A whole module: a transport that serves by saying so, commands, figures. Words: "fail" ends
 * load() after all was registered, "strange" tries what must be refused, "hold" makes it busy until
 * TOY.LETGO, and others are shown by TOY.WORDS. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "plain.h"
#include "transport/transport.h"

static const struct tarn_services *services;
static size_t n_words;
static char words[8][64];
static bool held;
static int domains, listeners, memories; /* open now */

/* --- a transport --- */

struct transport_domain {
    int fd;
};
struct transport_memory {
    uint64_t length;
    uint32_t segment;
};
struct transport_listener {
    int unused;
};

static tarn_status domain_open(const struct transport_domain_config *config,
                               struct transport_domain **domain_p) {
    struct transport_domain *d = malloc(sizeof(*d));
    if (d == NULL) return TARN_ENOMEM;
    d->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    domains++;
    *domain_p = d;
    return TARN_OK;
}

static void domain_close(struct transport_domain **domain_p) {
    close((*domain_p)->fd);
    free(*domain_p);
    *domain_p = NULL;
    domains--;
}

static tarn_status memory_register(struct transport_domain *d,
                                   const struct transport_memory_config *config,
                                   struct transport_memory **memory_p) {
    struct transport_memory *m = malloc(sizeof(*m));
    if (m == NULL) return TARN_ENOMEM;
    *m = (struct transport_memory){config->length, config->segment};
    memories++;
    *memory_p = m;
    return TARN_OK;
}

static tarn_status key_pack(struct transport_memory *m, bool writable, struct buf *out) {
    char text[64];
    int len = snprintf(text, sizeof(text), "%s %u", writable ? "write" : "read", m->segment);
    if (out->cap - out->len < (size_t)len) {
        char *more = realloc(out->data, out->len + 64);
        if (more == NULL) return TARN_ENOMEM;
        out->data = more;
        out->cap = out->len + 64;
    }
    memcpy(out->data + out->len, text, (size_t)len);
    out->len += (size_t)len;
    return TARN_OK;
}

static uint64_t memory_version(const struct transport_memory *m) {
    return 1;
}

static void memory_deregister(struct transport_memory **memory_p) {
    free(*memory_p);
    *memory_p = NULL;
    memories--;
}

static tarn_status key_unpack(struct transport_endpoint *e,
                              const struct transport_key_config *config,
                              struct transport_key **key_p) {
    return TARN_ENOTSUP;
}
static tarn_status key_check(struct transport_key *k) {
    return TARN_ESTALE;
}
static void key_close(struct transport_key **key_p) {
    *key_p = NULL;
}

static tarn_status toy_listen(struct transport_domain *d,
                              const struct transport_listen_config *config,
                              struct transport_listener **listener_p) {
    *listener_p = malloc(sizeof(**listener_p));
    listeners++;
    return *listener_p != NULL ? TARN_OK : TARN_ENOMEM;
}
static tarn_status listener_uri(const struct transport_listener *l, struct buf *out) {
    static const char uri[] = "toy://127.0.0.1:1";
    char *more = realloc(out->data, out->len + 64);
    if (more == NULL) return TARN_ENOMEM;
    out->data = more;
    out->cap = out->len + 64;
    memcpy(out->data + out->len, uri, sizeof(uri) - 1);
    out->len += sizeof(uri) - 1;
    return TARN_OK;
}
static void listener_stats(const struct transport_listener *l,
                           struct transport_listener_stats *stats_p) {
    memset(stats_p, 0, sizeof(*stats_p));
}
static tarn_status listener_fence(struct transport_listener *l,
                                  const struct transport_fence *fence) {
    return TARN_OK;
}
static bool listener_lent(const struct transport_listener *l, const struct transport_memory *m,
                          uint32_t below_epoch) {
    return false;
}
static void listener_close(struct transport_listener **listener_p) {
    free(*listener_p);
    *listener_p = NULL;
    listeners--;
}

static tarn_status toy_connect(struct transport_domain *d, const char *uri,
                               uint64_t deadline_boot_ms, struct transport_endpoint **endpoint_p) {
    return TARN_ENOTSUP;
}
static tarn_status endpoint_status(const struct transport_endpoint *e) {
    return TARN_ECLOSED;
}
static void endpoint_close(struct transport_endpoint **endpoint_p) {
    *endpoint_p = NULL;
}
static tarn_status submit(struct transport_endpoint *e, struct transport_op *const *ops, size_t n,
                          size_t *accepted_p) {
    return TARN_ECLOSED;
}
static size_t progress(struct transport_domain *d, uint64_t budget) {
    return 0;
}
static tarn_status arm(struct transport_domain *d, int *fd_p) {
    *fd_p = d->fd;
    return TARN_OK;
}
static void describe(const struct transport_domain *d, struct buf *out) {
    static const char line[] = "device name=toy0 state=up\n";
    char *more = realloc(out->data, out->len + sizeof(line));
    if (more == NULL) return;
    out->data = more;
    out->cap = out->len + sizeof(line);
    memcpy(out->data + out->len, line, sizeof(line) - 1);
    out->len += sizeof(line) - 1;
}

#define TOY_OPS                                                                                    \
    .abi = TRANSPORT_ABI, .domain_open = domain_open, .domain_close = domain_close,                \
    .memory_register = memory_register, .key_pack = key_pack, .memory_version = memory_version,    \
    .key_unpack = key_unpack, .key_check = key_check, .key_close = key_close,                      \
    .memory_deregister = memory_deregister, .listen = toy_listen, .listener_uri = listener_uri,    \
    .listener_stats = listener_stats, .listener_fence = listener_fence,                            \
    .listener_lent = listener_lent, .listener_close = listener_close, .connect = toy_connect,      \
    .endpoint_status = endpoint_status, .endpoint_close = endpoint_close, .submit = submit,        \
    .progress = progress, .arm = arm

static const struct transport_ops toy_transport = {
    .scheme = "toy", TOY_OPS, .flags = TRANSPORT_ANNOUNCES, .describe = describe};
static const struct transport_ops taken_transport = {
    .scheme = "tcp", TOY_OPS, .flags = TRANSPORT_ANNOUNCES};
static const struct transport_ops hollow_transport = {
    .scheme = "hollow", TOY_OPS, .flags = TRANSPORT_ANNOUNCES | TRANSPORT_MAP};

/* --- commands --- */

static void cmd_words(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    services->reply_array(c, n_words);
    for (size_t i = 0; i < n_words; i++) services->reply_text(c, span_str(words[i]));
}

static void cmd_echo(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    services->reply_map(c, 2);
    services->reply_text(c, SPAN("said"));
    services->reply_text(c, argv[1]);
    services->reply_text(c, SPAN("words"));
    services->reply_int(c, (int64_t)argc);
}

static void cmd_fail(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    services->reply_error(c, argc > 1 ? "TOYBROKEN it is broken" : "it is broken");
}

/* Fewer elements, and more of them, than it said. */
static void cmd_short(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    services->reply_array(c, 3);
    services->reply_int(c, 1);
}
static void cmd_mute(struct tarn_call_context *c, const struct span *argv, size_t argc) {}
static void cmd_long(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    services->reply_array(c, 1);
    for (int i = 0; i < 3; i++) services->reply_int(c, i);
}

struct lines {
    char line[16][200];
    size_t n;
};

static bool one_segment(void *arg, const struct tarn_segment *s) {
    struct lines *l = arg;
    snprintf(l->line[l->n++], sizeof(l->line[0]), "%u %s %llu %s %.*s|%.*s", s->id, s->name,
             (unsigned long long)s->size, s->uri, (int)s->key[0].len, s->key[0].data,
             (int)s->key[1].len, s->key[1].data);
    return l->n < 16;
}

static bool one_report(void *arg, const char *node, const char *machine, uint64_t age_ms,
                       struct span report) {
    struct lines *l = arg;
    snprintf(l->line[l->n++], sizeof(l->line[0]), "\"%s\" %.*s", node, (int)report.len,
             report.data);
    return l->n < 16;
}

static void reply_lines(struct tarn_call_context *c, const struct lines *l) {
    services->reply_array(c, l->n);
    for (size_t i = 0; i < l->n; i++) services->reply_text(c, span_str(l->line[i]));
}

static void cmd_segments(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct lines l = {.n = 0};
    services->each_segment("toy", one_segment, &l);
    reply_lines(c, &l);
}

static void cmd_reports(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct lines l = {.n = 0};
    services->each_report("toy", one_report, &l);
    reply_lines(c, &l);
}

static void cmd_letgo(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    held = false;
    services->reply_int(c, domains);
}

static const struct tarn_command commands[] = {
    {"toy.words", 1, TARN_COMMAND_FAST, "Shows what it was loaded with.", "", cmd_words},
    {"toy.echo", 2, 0, "Says it again.", "message", cmd_echo},
    {"toy.fail", -1, 0, "Fails.", "[CODE]", cmd_fail},
    {"toy.short", 1, 0, "Says too little.", "", cmd_short},
    {"toy.long", 1, 0, "Says too much.", "", cmd_long},
    {"toy.mute", 1, 0, "Says nothing.", "", cmd_mute},
    {"toy.segments", 1, TARN_COMMAND_ADMIN, "Lists segments.", "", cmd_segments},
    {"toy.reports", 1, TARN_COMMAND_ADMIN, "Lists reports.", "", cmd_reports},
    {"toy.letgo", 1, 0, "Is busy no more.", "", cmd_letgo},
};

/* --- the module --- */

/* NULL: everything was refused as it should be. */
static const char *try_strange(void) {
    static const struct tarn_command bad[] = {
        {"other.name", 1, 0, "", "", cmd_words}, {"toyname", 1, 0, "", "", cmd_words},
        {"toy.", 1, 0, "", "", cmd_words},       {"toy.UPPER", 1, 0, "", "", cmd_words},
        {"toy.none", 0, 0, "", "", cmd_words},   {"toy.syntax", 1, 0, "", "[a", cmd_words},
    };
    bool has_commands = services->program == TARN_PROGRAM_SERVER;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        if (services->command_register(&bad[i]) == TARN_OK) return bad[i].name;
    if (has_commands && services->command_register(&commands[0]) != TARN_EEXISTS) return "twice";
    if (services->transport_register(&taken_transport) != TARN_EEXISTS) return "tcp";
    if (services->transport_register(&hollow_transport) != TARN_EINVAL) return "hollow";
    if (services->transport_register(&toy_transport) != TARN_EEXISTS) return "toy";
    return NULL;
}

static tarn_status load(const struct tarn_services *given, size_t argc, const char *const *argv,
                        char *error, size_t error_cap) {
    bool fail = false, strange = false;
    services = given;
    n_words = 0;
    for (size_t i = 0; i < argc && i < 8; i++) {
        snprintf(words[n_words++], sizeof(words[0]), "%s", argv[i]);
        if (strcmp(argv[i], "fail") == 0) fail = true;
        if (strcmp(argv[i], "strange") == 0) strange = true;
        if (strcmp(argv[i], "hold") == 0) held = true;
    }
    tarn_status status = services->transport_register(&toy_transport);
    for (size_t i = 0; status == TARN_OK && i < sizeof(commands) / sizeof(*commands); i++) {
        status = services->command_register(&commands[i]);
        if (status == TARN_ENOTSUP && services->program != TARN_PROGRAM_SERVER) status = TARN_OK;
    }
    if (status != TARN_OK) return status;
    const char *taken = strange ? try_strange() : NULL;
    if (taken != NULL) snprintf(error, error_cap, "%s was not refused", taken);
    if (fail) snprintf(error, error_cap, "the word \"fail\" makes it fail");
    services->log(TARN_LOG_NOTICE, "the toy says hello");
    return fail || taken != NULL ? TARN_EINVAL : TARN_OK;
}

static tarn_status unload(char *error, size_t error_cap) {
    if (domains > 0 || held) {
        snprintf(error, error_cap, "the toy is in use: %d domains%s", domains,
                 held ? ", held" : "");
        return TARN_EBUSY;
    }
    return TARN_OK;
}

static void info(void (*field)(void *arg, const char *name, const char *value), void *arg) {
    char text[32];
    snprintf(text, sizeof(text), "%d", domains);
    field(arg, "domains", text);
    snprintf(text, sizeof(text), "%d", listeners);
    field(arg, "toy_listeners", text);
    snprintf(text, sizeof(text), "%d", memories);
    field(arg, "memories", text);
    field(arg, "odd name", "two\r\nlines");
}

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {.size = sizeof(struct tarn_module),
                                           .version = TARN_MODULE_VERSION,
                                           .transport_abi = TRANSPORT_ABI,
                                           .name = "toy",
                                           .module_version = "1.2.3",
                                           .summary = "for tests",
                                           .load = load,
                                           .unload = unload,
                                           .info = info};
