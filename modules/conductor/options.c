/* The words behind conductor.so: name and value, in any order. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "conductor/conductor.h"

/* Of struct route_options. A size of 8: uint64_t; else uint32_t. */
#define WORD(w, m, least, most)                                                                    \
    { w, offsetof(struct route_options, m), sizeof(((struct route_options *)0)->m), least, most }
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
};

static bool policy_known(const char *name) {
    for (const char *const *p = route_policies; *p != NULL; p++)
        if (strcmp(*p, name) == 0) return true;
    return false;
}

static bool policy_parse(const char *value, struct route_options *options, char *error,
                         size_t cap) {
    options->policy = value;
    if (policy_known(value)) return true;
    int len = snprintf(error, cap, "policy %s: must be one of", value);
    for (const char *const *p = route_policies; *p != NULL && len > 0 && (size_t)len < cap; p++)
        len +=
            snprintf(error + len, cap - (size_t)len, "%s %s", p == route_policies ? "" : ",", *p);
    return false;
}

static bool word_parse(size_t i, const char *value, struct route_options *options, char *error,
                       size_t cap) {
    uint64_t v;
    struct span text = span_str(value);
    bool size = words[i].offset == offsetof(struct route_options, index_bytes);
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

bool conductor_options_parse(size_t argc, const char *const *argv, struct route_options *options,
                             char *error, size_t cap) {
    *options = route_options_default;
    /* Nobody would carry out what is planned so. */
    options->fetch = false;
    options->copy_share = 0;
    for (size_t at = 0; at < argc; at += 2) {
        size_t i = 0;
        while (i < ARRAY_LEN(words) && strcmp(words[i].name, argv[at]) != 0) i++;
        bool policy = strcmp(argv[at], "policy") == 0;
        if (i == ARRAY_LEN(words) && !policy) {
            int len = snprintf(error, cap, "unknown word '%s': policy NAME", argv[at]);
            for (i = 0; i < ARRAY_LEN(words) && len > 0 && (size_t)len < cap; i++)
                len += snprintf(error + len, cap - (size_t)len, ", %s N", words[i].name);
            if (len > 0 && (size_t)len < cap)
                snprintf(error + len, cap - (size_t)len, " are known");
            return false;
        }
        if (at + 1 == argc) {
            snprintf(error, cap, "'%s' wants a value", argv[at]);
            return false;
        }
        if (!(policy ? policy_parse(argv[at + 1], options, error, cap)
                     : word_parse(i, argv[at + 1], options, error, cap)))
            return false;
    }
    return true;
}
