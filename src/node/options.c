/* The command line of tarn-node: "--name value" or "--name=value", in any order. --loadmodule has
 * all the words up to the next option. */
#include "node/options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/near.h"
#include "resp/resp.h"

#define SEGMENTS_MAX 62u /* and two slow tiers */
#define BINDS_MAX    16u
#define PAGE         4096u

struct parser {
    struct node_options *o;
    char *why;
    size_t why_size;
};

static bool line_refuse(struct parser *p, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static bool line_refuse(struct parser *p, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->why, p->why_size, fmt, ap);
    va_end(ap);
    return false;
}

/* A copy that lives as long as the options. */
static char *keep_copy(struct node_options *o, const char *s, size_t len) {
    TARN_ASSERT(o->n_owned < ARRAY_LEN(o->owned));
    return o->owned[o->n_owned++] = span_dup(span_of(s, len));
}

static bool node_option_number(struct parser *p, const char *name, const char *text, uint64_t min,
                               uint64_t max, uint64_t *value_p) {
    if (span_to_u64(span_str(text), value_p) && *value_p >= min && *value_p <= max) return true;
    return line_refuse(p, "--%s must be a number from %llu to %llu, not \"%s\"", name,
                       (unsigned long long)min, (unsigned long long)max, text);
}

/* --- segments and tiers --- */

/* One of ",path=...", ",huge" behind a segment's size. */
static bool segment_extra(struct parser *p, tarn_host_segment *s, const char *text, size_t len) {
    if (len == 4 && memcmp(text, "huge", 4) == 0) {
        s->huge_pages = 1;
    } else if (len > 5 && memcmp(text, "path=", 5) == 0) {
        s->path = keep_copy(p->o, text + 5, len - 5);
    } else {
        return line_refuse(p, "--segment knows path=FILE and huge behind its size, not \"%.*s\"",
                           (int)len, text);
    }
    return true;
}

/* SIZE[@numaN][,path=FILE][,huge] */
static bool segment_add(struct parser *p, const char *text) {
    struct node_options *o = p->o;
    tarn_host_segment s = {.numa_node = -1};
    size_t whole = strcspn(text, ","), size = strcspn(text, "@,");
    if (!span_to_bytes(span_of(text, size), &s.bytes) || s.bytes < PAGE)
        return line_refuse(p, "--segment begins with its size, as in 8gb or 512mb, not \"%s\"",
                           text);
    if (size < whole) {
        const char *node = text + size + 1;
        uint64_t n;
        size_t len = whole - size - 1;
        if (len < 5 || memcmp(node, "numa", 4) != 0 ||
            !span_to_u64(span_of(node + 4, len - 4), &n) || n > 1023)
            return line_refuse(p, "--segment takes a NUMA node as @numa0, not \"@%.*s\"", (int)len,
                               node);
        s.numa_node = (int)n;
    }
    if (o->host.n_segments == SEGMENTS_MAX)
        return line_refuse(p, "--segment may be given %u times; make them larger instead",
                           SEGMENTS_MAX);
    while (text[whole] == ',') {
        const char *extra = text + whole + 1;
        size_t len = strcspn(extra, ",");
        if (!segment_extra(p, &s, extra, len)) return false;
        whole += 1 + len;
    }
    o->keeps = o->keeps || s.path != NULL;
    o->segments[o->host.n_segments++] = s;
    return true;
}

/* PATH:SIZE[,create] */
static bool set_tier(struct parser *p, const char *name, const char *text, const char **path_p,
                     uint64_t *bytes_p, int *create_p) {
    static const char create[] = ",create";
    const char *colon = strrchr(text, ':');
    struct span size = span_str(colon != NULL ? colon + 1 : "");
    if (*path_p != NULL) return line_refuse(p, "--%s may be given once", name);
    *create_p = size.len >= sizeof(create) &&
                strcmp(size.data + size.len - (sizeof(create) - 1), create) == 0;
    if (*create_p) size.len -= sizeof(create) - 1;
    if (colon == NULL || colon == text || !span_to_bytes(size, bytes_p) || *bytes_p < PAGE)
        return line_refuse(
            p, "--%s is PATH:SIZE or PATH:SIZE,create, as in /var/lib/tarn:100gb, not \"%s\"", name,
            text);
    *path_p = keep_copy(p->o, text, (size_t)(colon - text));
    p->o->keeps = true;
    return true;
}

static bool add_bind(struct parser *p, const char *text) {
    struct node_options *o = p->o;
    if (o->host.binds == BINDS_MAX)
        return line_refuse(p, "--bind may be given %u times", BINDS_MAX);
    if (*text == '\0') return line_refuse(p, "--bind needs an address");
    o->bind[o->host.binds++] = text;
    return true;
}

/* --- single values --- */

static bool set_level(struct parser *p, const char *text) {
    static const char *const names[] = {"debug", "verbose", "notice", "warning", "nothing"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(text, names[i]) != 0) continue;
        p->o->log_level = (enum log_level)i;
        return true;
    }
    return line_refuse(p, "--log-level is debug, verbose, notice, warning or nothing, not \"%s\"",
                       text);
}

static bool set_mode(struct parser *p, const char *name, const char *text, unsigned *mode_p) {
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 8);
    if (errno != 0 || end == text || *end != '\0' || v == 0 || v > 0777)
        return line_refuse(p, "--%s is an octal mode, as in 660, not \"%s\"", name, text);
    *mode_p = (unsigned)v;
    return true;
}

static bool set_queue(struct parser *p, const char *text) {
    if (span_to_bytes(span_str(text), &p->o->host.queue_bytes) &&
        p->o->host.queue_bytes >= UINT64_C(1) << 20)
        return true;
    return line_refuse(p, "--queue is a size of at least 1mb, not \"%s\"", text);
}

/* --- modules --- */

/* FILE and its words; all of them may stand in one word, with quotes as in a configuration file. */
static bool add_module(struct parser *p, const struct span *words, size_t n) {
    struct node_options *o = p->o;
    if (n == 0 || words[0].len == 0)
        return line_refuse(p, "--loadmodule names a file, and may have words for it");
    if (n - 1 > MODULE_WORDS_MAX)
        return line_refuse(p, "--loadmodule takes up to %u words", MODULE_WORDS_MAX);
    if (o->modules == NODE_MODULES_MAX)
        return line_refuse(p, "--loadmodule may be given %u times", NODE_MODULES_MAX);
    struct node_module *m = &o->module[o->modules++];
    char *given = span_dup(words[0]);
    *m = (struct node_module){.path = module_path(given)};
    free(given);
    for (size_t i = 1; i < n; i++) m->word[m->words++] = span_dup(words[i]);
    return true;
}

static bool split_module(struct parser *p, const char *text) {
    struct buf store = {NULL, 0, 0};
    struct span *words = NULL;
    size_t n = 0;
    bool ok = resp_split_line(text, strlen(text), &store, &words, &n) == 0
                  ? add_module(p, words, n)
                  : line_refuse(p, "--loadmodule has unbalanced quotes: %s", text);
    free(words);
    buf_free(&store);
    return ok;
}

/* value and the words behind it, up to the next option. Moves *at_p to the last of them. */
static bool set_module(struct parser *p, const char *value, int argc, char **argv, int *at_p) {
    struct span words[2 + MODULE_WORDS_MAX] = {span_str(value)};
    size_t n = 1;
    for (; *at_p + 1 < argc && strncmp(argv[*at_p + 1], "--", 2) != 0; ++*at_p) {
        if (n == ARRAY_LEN(words)) break;
        words[n++] = span_str(argv[*at_p + 1]);
    }
    return n == 1 ? split_module(p, value) : add_module(p, words, n);
}

enum spec_kind {
    KIND_FLAG,   /* bool */
    KIND_STRING, /* const char * */
    KIND_U16,
    KIND_UNSIGNED,
    KIND_SECONDS, /* uint64_t, in ms */
    KIND_MODE,    /* unsigned, of a file */
    KIND_CALL,    /* fn(p, text) */
    KIND_MODULE,  /* with the words behind it */
};
struct spec {
    const char *name;
    enum spec_kind kind;
    void *value;
    uint64_t min, max;
    bool (*fn)(struct parser *p, const char *text);
};

static bool set_ssd(struct parser *p, const char *text) {
    return set_tier(p, "ssd", text, &p->o->host.ssd_path, &p->o->host.ssd_bytes,
                    &p->o->host.ssd_create);
}

static bool set_file(struct parser *p, const char *text) {
    return set_tier(p, "file", text, &p->o->host.file_path, &p->o->host.file_bytes,
                    &p->o->host.file_create);
}

static bool node_option_set(struct parser *p, const struct spec *s, const char *text) {
    uint64_t v = 0;
    switch (s->kind) {
    case KIND_FLAG: *(bool *)s->value = true; return true;
    case KIND_STRING:
        if (*text == '\0') return line_refuse(p, "--%s is empty", s->name);
        *(const char **)s->value = text;
        return true;
    case KIND_CALL: return s->fn(p, text);
    case KIND_MODE: return set_mode(p, s->name, text, s->value);
    case KIND_MODULE:
    case KIND_U16:
    case KIND_UNSIGNED:
    case KIND_SECONDS: break;
    }
    if (!node_option_number(p, s->name, text, s->min, s->max, &v)) return false;
    if (s->kind == KIND_U16) *(uint16_t *)s->value = (uint16_t)v;
    if (s->kind == KIND_UNSIGNED) *(unsigned *)s->value = (unsigned)v;
    if (s->kind == KIND_SECONDS) *(uint64_t *)s->value = v * 1000;
    return true;
}

/* --- the line --- */

static const struct spec *node_option_find(const struct spec *specs, size_t n, const char *arg,
                                           const char **value_p) {
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(specs[i].name);
        if (strncmp(arg, specs[i].name, len) != 0 || (arg[len] != '\0' && arg[len] != '='))
            continue;
        *value_p = arg[len] == '=' ? arg + len + 1 : NULL;
        return &specs[i];
    }
    return NULL;
}

static bool line_refuse_unknown(struct parser *p, const struct spec *specs, size_t n,
                                const char *arg) {
    struct near near;
    size_t len = strcspn(arg, "=");
    near_begin(&near, span_of(arg + 2, len - 2));
    for (size_t i = 0; i < n; i++) near_offer(&near, specs[i].name);
    if (near.word == NULL)
        return line_refuse(p, "there is no option %.*s (tarn-node --help)", (int)len, arg);
    return line_refuse(p, "there is no option %.*s, did you mean --%s?", (int)len, arg, near.word);
}

/* The host wants none of them without tls_data. */
static bool line_check_tls(struct parser *p) {
    struct node_options *o = p->o;
    tarn_host_options *h = &o->host;
    bool tls = h->tls_cert_file != NULL || h->tls_key_file != NULL || h->tls_ca_file != NULL ||
               h->tls_ca_dir != NULL || h->tls_auth_clients != NULL;
    if (tls && !h->tls_data && o->modules == 0)
        return line_refuse(p, "the --tls options are for the data port and for modules: give "
                              "--tls-data, or --loadmodule");
    if (h->tls_data && !o->secure)
        return line_refuse(
            p, "--tls-data needs a --master that begins with tarns:// (or tarns+sentinel://)");
    enum tls_auth auth;
    if (!tls_auth_parse(h->tls_auth_clients, &auth))
        return line_refuse(p, "--tls-auth-clients %s: must be yes, optional or no",
                           h->tls_auth_clients);
    o->tls = (struct tls_options){.cert_file = h->tls_cert_file,
                                  .key_file = h->tls_key_file,
                                  .ca_file = h->tls_ca_file,
                                  .ca_dir = h->tls_ca_dir,
                                  .auth = auth};
    if (!h->tls_data)
        h->tls_cert_file = h->tls_key_file = h->tls_ca_file = h->tls_ca_dir = h->tls_auth_clients =
            NULL;
    return true;
}

static bool line_check(struct parser *p) {
    struct node_options *o = p->o;
    if (o->help || o->version) return true;
    if (o->master == NULL) return line_refuse(p, "--master is missing: --master tarn://HOST:PORT");
    if (o->host.n_segments == 0 && o->host.ssd_path == NULL && o->host.file_path == NULL)
        return line_refuse(p, "nothing is offered: give --segment SIZE, as in --segment 8gb");
    o->secure = strncasecmp(o->master, "tarns", 5) == 0;
    return line_check_tls(p);
}

static bool line_parse(struct parser *p, int argc, char **argv) {
    struct node_options *o = p->o;
    bool no_populate = false, tls_data = false, shrink = false;
    const struct spec specs[] = {
        {.name = "help", .kind = KIND_FLAG, .value = &o->help},
        {.name = "version", .kind = KIND_FLAG, .value = &o->version},
        {.name = "daemonize", .kind = KIND_FLAG, .value = &o->daemonize},
        {.name = "drain-on-exit", .kind = KIND_FLAG, .value = &o->drain_on_exit},
        {.name = "no-populate", .kind = KIND_FLAG, .value = &no_populate},
        {.name = "shrink", .kind = KIND_FLAG, .value = &shrink},
        {.name = "master", .kind = KIND_STRING, .value = &o->master},
        {.name = "name", .kind = KIND_STRING, .value = &o->host.name},
        {.name = "rack", .kind = KIND_STRING, .value = &o->host.rack},
        {.name = "announce", .kind = KIND_STRING, .value = &o->host.announce},
        {.name = "host-name", .kind = KIND_STRING, .value = &o->client.host_name},
        {.name = "tls-data", .kind = KIND_FLAG, .value = &tls_data},
        {.name = "tls-cert-file", .kind = KIND_STRING, .value = &o->host.tls_cert_file},
        {.name = "tls-key-file", .kind = KIND_STRING, .value = &o->host.tls_key_file},
        {.name = "tls-ca-cert-file", .kind = KIND_STRING, .value = &o->host.tls_ca_file},
        {.name = "tls-ca-cert-dir", .kind = KIND_STRING, .value = &o->host.tls_ca_dir},
        {.name = "tls-auth-clients", .kind = KIND_STRING, .value = &o->host.tls_auth_clients},
        {.name = "shm-socket", .kind = KIND_STRING, .value = &o->host.shm_socket},
        {.name = "user", .kind = KIND_STRING, .value = &o->client.user},
        {.name = "password-file", .kind = KIND_STRING, .value = &o->password_file},
        {.name = "port-file", .kind = KIND_STRING, .value = &o->port_file},
        {.name = "pid-file", .kind = KIND_STRING, .value = &o->pid_file},
        {.name = "log-file", .kind = KIND_STRING, .value = &o->log_file},
        {.name = "log-level", .kind = KIND_CALL, .fn = set_level},
        {.name = "segment", .kind = KIND_CALL, .fn = segment_add},
        {.name = "ssd", .kind = KIND_CALL, .fn = set_ssd},
        {.name = "file", .kind = KIND_CALL, .fn = set_file},
        {.name = "bind", .kind = KIND_CALL, .fn = add_bind},
        {.name = "loadmodule", .kind = KIND_MODULE},
        {.name = "queue", .kind = KIND_CALL, .fn = set_queue},
        {.name = "shm-perm", .kind = KIND_MODE, .value = &o->host.shm_mode},
        {.name = "file-perm", .kind = KIND_MODE, .value = &o->host.file_mode},
        {.name = "data-port", .kind = KIND_U16, .value = &o->host.data_port, .max = 65535},
        {.name = "threads", .kind = KIND_UNSIGNED, .value = &o->host.threads, .min = 1, .max = 256},
        {.name = "copies", .kind = KIND_UNSIGNED, .value = &o->host.copies, .min = 1, .max = 64},
        {.name = "max-connections",
         .kind = KIND_UNSIGNED,
         .value = &o->host.max_connections,
         .min = 1,
         .max = 1000000},
        {.name = "lend-interval",
         .kind = KIND_SECONDS,
         .value = &o->host.lend_interval_ms,
         .min = 1,
         .max = 86400},
        {.name = "exit-timeout", .kind = KIND_SECONDS, .value = &o->exit_timeout_ms, .max = 86400},
    };
    for (int i = 0; i < argc; i++) {
        const char *value = NULL;
        if (strncmp(argv[i], "--", 2) != 0)
            return line_refuse(p, "\"%s\" is no option (tarn-node --help)", argv[i]);
        const struct spec *s = node_option_find(specs, ARRAY_LEN(specs), argv[i] + 2, &value);
        if (s == NULL) return line_refuse_unknown(p, specs, ARRAY_LEN(specs), argv[i]);
        if (s->kind == KIND_FLAG && value != NULL)
            return line_refuse(p, "--%s takes no value", s->name);
        if (s->kind != KIND_FLAG && value == NULL) {
            if (i + 1 == argc) return line_refuse(p, "--%s needs a value", s->name);
            value = argv[++i];
        }
        if (s->kind == KIND_MODULE ? !set_module(p, value, argc, argv, &i)
                                   : !node_option_set(p, s, value))
            return false;
    }
    o->host.populate = !no_populate;
    o->host.tls_data = tls_data;
    o->host.shrink = shrink;
    if (o->host.shm_socket != NULL && strcmp(o->host.shm_socket, "none") == 0)
        o->host.shm_socket = "";
    if (o->host.shm_socket != NULL && strcmp(o->host.shm_socket, "auto") == 0)
        o->host.shm_socket = NULL;
    return line_check(p);
}

bool node_options_parse(struct node_options *o, int argc, char **argv, char *why, size_t why_size) {
    struct parser p = {o, why, why_size};
    *o = (struct node_options){.log_level = LOG_LEVEL_NOTICE, .exit_timeout_ms = 15000};
    tarn_options_init(&o->client);
    tarn_host_options_init(&o->host);
    o->segments = xcalloc(SEGMENTS_MAX, sizeof(*o->segments));
    o->bind = xcalloc(BINDS_MAX, sizeof(*o->bind));
    o->module = xcalloc(NODE_MODULES_MAX, sizeof(*o->module));
    bool ok = line_parse(&p, argc, argv);
    o->host.segments = o->segments;
    o->host.bind = o->host.binds > 0 ? o->bind : NULL;
    return ok;
}

bool node_options_password(struct node_options *o, const char *environment, char *why,
                           size_t why_size) {
    struct parser p = {o, why, why_size};
    char line[1024] = "";
    if (o->password_file == NULL) {
        if (environment != NULL && *environment != '\0')
            o->client.password = keep_copy(o, environment, strlen(environment));
        return true;
    }
    FILE *f = fopen(o->password_file, "re");
    if (f == NULL)
        return line_refuse(&p, "--password-file %s: %s", o->password_file, strerror(errno));
    bool ok = fgets(line, sizeof(line), f) != NULL;
    int failed = ferror(f) ? errno : 0;
    fclose(f);
    if (failed != 0)
        return line_refuse(&p, "--password-file %s: %s", o->password_file, strerror(failed));
    size_t len = strcspn(line, "\r\n");
    if (!ok || len == 0)
        return line_refuse(&p, "--password-file %s: its first line is empty", o->password_file);
    o->client.password = keep_copy(o, line, len);
    explicit_bzero(line, sizeof(line));
    return true;
}

void node_options_free(struct node_options *o) {
    for (size_t i = 0; i < o->n_owned; i++) {
        explicit_bzero(o->owned[i], strlen(o->owned[i]));
        free(o->owned[i]);
    }
    for (size_t i = 0; i < o->modules; i++) {
        for (size_t k = 0; k < o->module[i].words; k++) free(o->module[i].word[k]);
        free(o->module[i].path);
    }
    free(o->module);
    free(o->segments);
    free(o->bind);
    *o = (struct node_options){0};
}
