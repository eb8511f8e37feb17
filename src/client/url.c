/* tarn:// and tarns:// URLs and the options they carry. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "base/assert.h"
#include "base/hex.h"
#include "base/near.h"
#include "client/client.h"

enum url_option_kind { OPTION_STRING, OPTION_SECRET, OPTION_NUMBER, OPTION_SWITCH };
/* What a URL may say, and the defaults; a secret has a place of its own there. */
static const struct url_option {
    const char *name;
    enum url_option_kind kind;
    size_t offset, size;
    uint64_t initial, min, max;
} url_options[] = {
#define MEMBER(field) offsetof(tarn_options, field), sizeof(((tarn_options *)0)->field)
#define STRING(field)                                                                              \
    { #field, OPTION_STRING, MEMBER(field), 0, 0, 0 }
#define NUMBER(field, initial, min, max)                                                           \
    { #field, OPTION_NUMBER, MEMBER(field), initial, min, max }
    NUMBER(verify, 1, 0, 1),
    NUMBER(max_lanes, 8, 1, 1024),
    NUMBER(streams, 2, 1, 64),
    NUMBER(connect_timeout_ms, 5000, 1, 86400000),
    NUMBER(timeout_ms, 10000, 1, 86400000),
    NUMBER(lease_ms, 5000, 1, 86400000),
    NUMBER(retries, 3, 0, 100),
    NUMBER(backoff_min_ms, 100, 1, 3600000),
    NUMBER(backoff_max_ms, 5000, 1, 3600000),
    NUMBER(batch_keys, 4096, 1, 65536),
    NUMBER(piece_bytes, UINT64_C(64) << 20, 1u << 20, UINT64_C(1) << 40),
    NUMBER(workers, 2, 1, 256),
    NUMBER(failover_ms, 1000, 1, 3600000),
    NUMBER(log_figures_s, 0, 0, 86400),
    NUMBER(busy_poll_us, 100, 0, 10000),
    STRING(transport),
    STRING(host_name),
    STRING(name),
    STRING(rack),
    STRING(module_path),
    STRING(cluster),
    STRING(tls_ca_file),
    STRING(tls_ca_dir),
    STRING(tls_cert_file),
    STRING(tls_key_file),
    STRING(tls_server_name),
    {"tls_verify", OPTION_SWITCH, MEMBER(tls_verify), 1, 0, 1},
    {"tls_verify_name", OPTION_SWITCH, MEMBER(tls_verify_name), 1, 0, 1},
    {"user", OPTION_SECRET, MEMBER(user), 0, 0, 0},
    {"password", OPTION_SECRET, MEMBER(password), 0, 0, 0},
};

static void *option_at(tarn_options *o, const struct url_option *option) {
    return (char *)o + option->offset;
}

static void option_put(tarn_options *o, const struct url_option *option, uint64_t value) {
    if (option->size == sizeof(value))
        *(uint64_t *)option_at(o, option) = value;
    else
        *(unsigned *)option_at(o, option) = (unsigned)value;
}

void tarn_options_init_sized(tarn_options *o, size_t size) {
    tarn_options all = {.transport = "auto"};
    for (size_t i = 0; i < ARRAY_LEN(url_options); i++)
        if (url_options[i].kind >= OPTION_NUMBER)
            option_put(&all, &url_options[i], url_options[i].initial);
    init_sized(o, size, &all, sizeof(all));
}

void(tarn_options_init)(tarn_options *o) {
    tarn_options_init_sized(o, offsetof(tarn_options, cluster)); /* as in 0.1 */
}

/* The next string from *i_p on, NULL: there is none. All of them are owned in a client's copy. */
static const char **option_string(tarn_options *o, size_t *i_p) {
    while (*i_p < ARRAY_LEN(url_options)) {
        const struct url_option *option = &url_options[(*i_p)++];
        if (option->kind <= OPTION_SECRET) return option_at(o, option);
    }
    return NULL;
}

void url_options_copy(tarn_options *to, const tarn_options *from) {
    tarn_options_init(to);
    if (from != NULL) {
        memcpy(to, from, min_u64(from->size, sizeof(*to)));
        to->size = sizeof(*to);
    }
    const char **s;
    for (size_t i = 0; (s = option_string(to, &i)) != NULL;) *s = xstrdup(*s);
}

void url_options_free(tarn_options *o) {
    const char **s;
    for (size_t i = 0; (s = option_string(o, &i)) != NULL;) {
        free((void *)(uintptr_t)*s);
        *s = NULL;
    }
}

static void set_string(const char **slot, char *value) {
    free((void *)(uintptr_t)*slot);
    *slot = value;
}

/* A percent-decoded copy, NULL: a bad escape or a NUL. */
static char *percent_decode(const char *s, size_t len) {
    char *out = xmalloc(len + 1), *w = out;
    for (size_t i = 0; i < len; i++) {
        if (s[i] != '%') {
            *w++ = s[i];
            continue;
        }
        if (i + 2 >= len || !hex_decode(span_of(s + i + 1, 2), w, 1) || *w == '\0') {
            free(out);
            return NULL;
        }
        w++;
        i += 2;
    }
    *w = '\0';
    return out;
}

static tarn_status option_set_number(tarn_options *o, const struct url_option *option,
                                     const char *text) {
    uint64_t value;
    bool is_switch = option->kind == OPTION_SWITCH, yes = strcmp(text, "yes") == 0;
    if (is_switch && !yes && strcmp(text, "no") != 0)
        return fail(TARN_EINVAL, "URL option %s is yes or no, not \"%s\"", option->name, text);
    if (is_switch) {
        value = yes;
    } else if (!span_to_u64(span_str(text), &value) || value < option->min || value > option->max) {
        return fail(TARN_EINVAL,
                    "URL option %s must be a number from %" PRIu64 " to %" PRIu64 ", not \"%s\"",
                    option->name, option->min, option->max, text);
    }
    option_put(o, option, value);
    return TARN_OK;
}

static tarn_status option_set(tarn_options *o, const char *name, const char *value) {
    struct near near;
    near_begin(&near, span_str(name));
    for (size_t i = 0; i < ARRAY_LEN(url_options); i++) {
        const struct url_option *option = &url_options[i];
        if (option->kind == OPTION_SECRET) continue;
        near_offer(&near, option->name);
        if (strcmp(name, option->name) != 0) continue;
        if (option->kind != OPTION_STRING) return option_set_number(o, option, value);
        set_string(option_at(o, option), xstrdup(value));
        return TARN_OK;
    }
    return fail(TARN_EINVAL, "URL option \"%s\" is unknown%s%s%s", name,
                near.word != NULL ? ", did you mean " : "", near.word != NULL ? near.word : "",
                near.word != NULL ? "?" : "");
}

static tarn_status parse_query(tarn_options *o, const char *query) {
    while (*query != '\0') {
        size_t len = strcspn(query, "&");
        const char *eq = memchr(query, '=', len);
        if (eq == NULL)
            return fail(TARN_EINVAL, "URL options are name=value, joined by &: \"%s\"", query);
        char *name = percent_decode(query, (size_t)(eq - query));
        char *value = percent_decode(eq + 1, len - (size_t)(eq + 1 - query));
        tarn_status status = name == NULL || value == NULL
                                 ? fail(TARN_EINVAL, "bad %%-escape in the URL's options")
                                 : option_set(o, name, value);
        free(name);
        free(value);
        if (status != TARN_OK) return status;
        query += len;
        if (*query == '&') query++;
    }
    return TARN_OK;
}

/* "[user][:password]"; without a password that of the options stays. */
static tarn_status parse_user(tarn_options *o, const char *s, size_t len) {
    const char *colon = memchr(s, ':', len);
    size_t user_len = colon == NULL ? len : (size_t)(colon - s);
    char *user = percent_decode(s, user_len);
    char *password = colon == NULL ? NULL : percent_decode(colon + 1, len - user_len - 1);
    if (user == NULL || (colon != NULL && password == NULL)) {
        free(user);
        free(password);
        return fail(TARN_EINVAL, "bad %%-escape in the URL's user or password");
    }
    if (*user == '\0') {
        free(user);
        user = NULL;
    }
    set_string(&o->user, user);
    if (colon != NULL) set_string(&o->password, password);
    return TARN_OK;
}

/* "host[:port]", "[v6][:port]" */
static tarn_status address_parse(const char *s, size_t len, uint64_t number, struct address *at) {
    const char *end = s + len, *host = s, *host_end, *port = NULL;
    if (len > 0 && *s == '[') {
        host = s + 1;
        host_end = memchr(s, ']', len);
        if (host_end == NULL) return fail(TARN_EINVAL, "the URL's IPv6 address lacks its ]");
        if (host_end + 1 < end) {
            if (host_end[1] != ':')
                return fail(TARN_EINVAL, "only a :port may follow the ] of the URL");
            port = host_end + 2;
        }
    } else {
        host_end = memchr(s, ':', len);
        if (host_end != NULL) port = host_end + 1;
        if (host_end == NULL) host_end = end;
        if (port != NULL && memchr(port, ':', (size_t)(end - port)) != NULL) {
            return fail(TARN_EINVAL, "IPv6 addresses stand in brackets: tarn://[::1]:6479");
        }
    }
    if (host == host_end) return fail(TARN_EINVAL, "the URL names no host (tarn://host:port)");
    if (port != NULL && (!span_to_u64(span_of(port, (size_t)(end - port)), &number) ||
                         number == 0 || number > 65535)) {
        return fail(TARN_EINVAL, "the URL's port must be a number from 1 to 65535");
    }
    char *name = percent_decode(host, (size_t)(host_end - host));
    if (name == NULL) return fail(TARN_EINVAL, "bad %%-escape in the URL's host");
    int n = snprintf(at->host, sizeof(at->host), "%s", name);
    snprintf(at->port, sizeof(at->port), "%u", (unsigned)number);
    free(name);
    return n < (int)sizeof(at->host) ? TARN_OK : fail(TARN_EINVAL, "the URL's host is too long");
}

/* "host[:port],host[:port]...", of Sentinels or servers. */
static tarn_status addresses_parse(const char *s, size_t len, bool sentinel, uint64_t number,
                                   struct whereabouts *m) {
    unsigned max = sentinel ? SENTINELS_MAX : SERVERS_MAX;
    for (const char *end = s + len; s < end;) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        size_t n = comma != NULL ? (size_t)(comma - s) : (size_t)(end - s);
        if (m->n == max)
            return fail(TARN_EINVAL, "the URL names more than %u %s", max,
                        sentinel ? "Sentinels" : "servers");
        tarn_status status = address_parse(s, n, number, &m->server[m->n]);
        if (status != TARN_OK) return status;
        m->n++;
        s += n + (comma != NULL);
    }
    return m->n > 0 ? TARN_OK
                    : fail(TARN_EINVAL,
                           "the URL names no Sentinel (tarn+sentinel://host:port,host:port/name)");
}

static tarn_status parse_where(const char *s, size_t len, bool sentinel, uint64_t port,
                               struct whereabouts *m) {
    if (sentinel || memchr(s, ',', len) != NULL) {
        m->scouts = scouts_create();
        return addresses_parse(s, len, sentinel, port, m);
    }
    m->n = 1;
    return address_parse(s, len, port, &m->server[0]);
}

static tarn_status parse_rest(const char *rest, bool sentinel, tarn_options *o,
                              struct whereabouts *m) {
    size_t name = 0;
    if (*rest == '/') name = strcspn(++rest, "?");
    if (sentinel && name == 0)
        return fail(
            TARN_EINVAL,
            "name the master as the Sentinels know it: tarn+sentinel://host:port,host:port/name");
    if (!sentinel && name > 0)
        return fail(TARN_EINVAL, "there is one pool behind a tarn URL; drop the path \"/%s\"",
                    rest);
    if (sentinel && (m->name = percent_decode(rest, name)) == NULL)
        return fail(TARN_EINVAL, "bad %%-escape in the master's name");
    rest += name;
    return *rest == '?' ? parse_query(o, rest + 1) : TARN_OK;
}

/* What must be there for TLS, and only for TLS: settings that would have no effect are a mistake
 * that nobody would notice. */
static tarn_status check_tls(const tarn_options *o, bool tls) {
    bool any = o->tls_ca_file != NULL || o->tls_ca_dir != NULL || o->tls_cert_file != NULL ||
               o->tls_key_file != NULL || o->tls_server_name != NULL || !o->tls_verify ||
               !o->tls_verify_name;
    if (!tls && any)
        return fail(TARN_EINVAL,
                    "the tls_ options need a URL that begins with tarns:// (or tarns+sentinel://)");
    if ((o->tls_cert_file == NULL) != (o->tls_key_file == NULL))
        return fail(TARN_EINVAL, "tls_cert_file and tls_key_file are given together: %s is missing",
                    o->tls_cert_file == NULL ? "tls_cert_file" : "tls_key_file");
    return TARN_OK;
}

tarn_status url_parse(const char *url, tarn_options *o, struct whereabouts *m) {
    static const struct {
        const char *prefix;
        bool sentinel, tls;
        uint64_t port;
    } schemes[] = {{"tarn://", false, false, 6479},
                   {"tarns://", false, true, 6479},
                   {"tarn+sentinel://", true, false, 26379},
                   {"tarns+sentinel://", true, true, 26379}};
    size_t k = 0;
    while (k < ARRAY_LEN(schemes) &&
           strncasecmp(url, schemes[k].prefix, strlen(schemes[k].prefix)) != 0)
        k++;
    *m = (struct whereabouts){0};
    if (k == ARRAY_LEN(schemes)) {
        return fail(TARN_EINVAL,
                    "a tarn URL looks like "
                    "tarn://[user:password@]host[:port][,host[:port]]...[?option=value], or "
                    "tarn+sentinel://[user:password@]host[:port],host[:port]/name; tarns://, "
                    "tarns+sentinel:// with TLS");
    }
    bool sentinel = schemes[k].sentinel;
    const char *s = url + strlen(schemes[k].prefix);
    size_t len = strcspn(s, "/?");
    const char *rest = s + len;
    const char *at = memrchr(s, '@', len);
    tarn_status status = TARN_OK;
    if (at != NULL) {
        status = parse_user(o, s, (size_t)(at - s));
        len -= (size_t)(at + 1 - s);
        s = at + 1;
    }
    if (status == TARN_OK) status = parse_rest(rest, sentinel, o, m);
    if (status == TARN_OK) status = check_tls(o, schemes[k].tls);
    if (status == TARN_OK) status = parse_where(s, len, sentinel, schemes[k].port, m);
    m->tls = schemes[k].tls;
    m->options = o;
    if (status != TARN_OK) master_free(m);
    return status;
}
