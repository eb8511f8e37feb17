/* The words behind conductor.so: name and value, in any order. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/assert.h"
#include "conductor/conductor.h"

/* Of struct conductor_options. A size of 8: uint64_t; else uint32_t. */
#define MEMBER(w, m, least, most)                                                                  \
    {                                                                                              \
        w, offsetof(struct conductor_options, m), sizeof(((struct conductor_options *)0)->m),      \
            least, most                                                                            \
    }
#define WORD(w, m, least, most) MEMBER(w, route.m, least, most)
static const struct {
    const char *name;
    size_t offset, size;
    uint64_t least, most;
} words[] = {
    WORD("ranks", workers_max, 1, ROUTE_HOLDERS_MAX),
    WORD("requests", requests_max, 1, 1u << 20),
    WORD("tenants", tenants_max, 1, 1u << 20),
    WORD("sessions", sessions_max, 1, 1u << 20),
    WORD("decisions", decisions_max, 0, 65536),
    WORD("index-size", index_bytes, ROUTE_INDEX_BYTES_MIN, UINT64_C(1) << 40),
    WORD("seed", index_seed, 0, UINT64_MAX),
    WORD("lease-ms", lease_ms, 1, 86400000),
    WORD("silent-ms", silent_ms, 0, 86400000),
    WORD("tenant-wait-ms", tenant_wait_ms, 0, 86400000),
    MEMBER("metrics-ms", metrics_ms, 10, 3600000),
    MEMBER("http-port", http_port, 0, UINT16_MAX),
};

static bool policy_known(const char *name) {
    for (const char *const *p = route_policies; *p != NULL; p++)
        if (strcmp(*p, name) == 0) return true;
    return false;
}

static bool policy_parse(const char *value, struct conductor_options *options, char *error,
                         size_t cap) {
    options->route.policy = value;
    if (policy_known(value)) return true;
    int len = snprintf(error, cap, "policy %s: must be one of", value);
    for (const char *const *p = route_policies; *p != NULL && len > 0 && (size_t)len < cap; p++)
        len +=
            snprintf(error + len, cap - (size_t)len, "%s %s", p == route_policies ? "" : ",", *p);
    return false;
}

/* Who may sign engines' certificates: a file that can be read now. */
static bool ca_parse(const char *value, struct conductor_options *options, char *error,
                     size_t cap) {
    options->metrics_ca = value;
    if (access(value, R_OK) == 0) return true;
    snprintf(error, cap, "metrics-ca %s: %s", value, strerror(errno));
    return false;
}

static bool bind_parse(const char *value, struct conductor_options *options, char *error,
                       size_t cap) {
    options->http_bind = value;
    return true;
}

static bool open_parse(const char *value, struct conductor_options *options, char *error,
                       size_t cap) {
    options->http_open = strcmp(value, "yes") == 0;
    if (options->http_open || strcmp(value, "no") == 0) return true;
    snprintf(error, cap, "http-open %s: must be yes or no", value);
    return false;
}

/* The words that are no numbers. */
static const struct {
    const char *name, *value;
    bool (*parse)(const char *value, struct conductor_options *options, char *error, size_t cap);
} texts[] = {{"policy", "NAME", policy_parse},
             {"metrics-ca", "FILE", ca_parse},
             {"http-bind", "ADDRESS", bind_parse},
             {"http-open", "yes", open_parse}};

static bool word_parse(size_t i, const char *value, struct conductor_options *options, char *error,
                       size_t cap) {
    uint64_t v;
    struct span text = span_str(value);
    bool size = words[i].offset == offsetof(struct conductor_options, route.index_bytes);
    if (!(size ? span_to_bytes(text, &v) : span_to_u64(text, &v)) || v < words[i].least ||
        v > words[i].most) {
        snprintf(error, cap, "%s %s: must be a %s from %" PRIu64 " to %" PRIu64, words[i].name,
                 value, size ? "size" : "number", words[i].least, words[i].most);
        return false;
    }
    char *member = (char *)options + words[i].offset;
    uint32_t half = (uint32_t)v;
    memcpy(member, words[i].size == sizeof(v) ? (const void *)&v : &half, words[i].size);
    return true;
}

static void fail_unknown_word(const char *word, char *error, size_t cap) {
    int len = snprintf(error, cap, "unknown word '%s': %s %s", word, texts[0].name, texts[0].value);
    for (size_t i = 0; i < ARRAY_LEN(words) && len > 0 && (size_t)len < cap; i++)
        len += snprintf(error + len, cap - (size_t)len, ", %s N", words[i].name);
    for (size_t i = 1; i < ARRAY_LEN(texts) && len > 0 && (size_t)len < cap; i++)
        len += snprintf(error + len, cap - (size_t)len, ", %s %s", texts[i].name, texts[i].value);
    if (len > 0 && (size_t)len < cap) snprintf(error + len, cap - (size_t)len, " are known");
}

bool conductor_options_parse(size_t argc, const char *const *argv,
                             struct conductor_options *options, char *error, size_t cap) {
    *options = (struct conductor_options){
        .route = route_options_default, .metrics_ms = 1000, .http_port = CONDUCTOR_NO_PORT};
    /* Nobody would carry out what is planned so. */
    options->route.fetch = false;
    options->route.copy_share = 0;
    for (size_t at = 0; at < argc; at += 2) {
        size_t i = 0, t = 0;
        while (i < ARRAY_LEN(words) && strcmp(words[i].name, argv[at]) != 0) i++;
        while (t < ARRAY_LEN(texts) && strcmp(texts[t].name, argv[at]) != 0) t++;
        if (i == ARRAY_LEN(words) && t == ARRAY_LEN(texts)) {
            fail_unknown_word(argv[at], error, cap);
            return false;
        }
        if (at + 1 == argc) {
            snprintf(error, cap, "'%s' wants a value", argv[at]);
            return false;
        }
        if (!(t < ARRAY_LEN(texts) ? texts[t].parse(argv[at + 1], options, error, cap)
                                   : word_parse(i, argv[at + 1], options, error, cap)))
            return false;
    }
    bool own = options->http_port != CONDUCTOR_NO_PORT;
    if (own || (options->http_bind == NULL && !options->http_open)) return true;
    snprintf(error, cap, "http-bind and http-open go with http-port");
    return false;
}
