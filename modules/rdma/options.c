/* The words behind the module's file name, in pairs of a name and a value. bind and device may come
 * several times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdma/rdma.h"

struct rdma_options rdma_options;

static const struct rdma_options defaults = {
    .slice = 64u << 10,
    .slice_max = 1u << 20,
    .qps = 2,
    .rails = 8,
    .send_queue = 128,
    .signal_every = 16,
    .inline_bytes = 220,
    .staging_bytes = 16u << 20,
    .max_connections = 1024,
    .max_rails = 256,
    .idle_ms = 60000,
    .connect_ms = 1000,
    .retries = 3,
    .qp_timeout = 14,
    .qp_retry = 5,
    .register_threads = 4,
    .relaxed_ordering = true,
};

enum word_kind { NUMBER16, NUMBER, NUMBER64, BYTES, YES_NO };

static const struct option {
    const char *name;
    enum word_kind kind;
    size_t offset;
    uint64_t min, max;
} table[] = {
#define OPTION(name, kind, member, min, max)                                                       \
    { name, kind, offsetof(struct rdma_options, member), min, max }
    OPTION("port", NUMBER16, port, 0, 65535),
    OPTION("slice", BYTES, slice, 4096, 1u << 30),
    OPTION("slice-max", BYTES, slice_max, 4096, 1u << 30),
    OPTION("qps", NUMBER, qps, 1, 16),
    OPTION("rails", NUMBER, rails, 1, 64),
    OPTION("send-queue", NUMBER, send_queue, 4, 16384),
    OPTION("signal-every", NUMBER, signal_every, 1, 16384),
    OPTION("inline", NUMBER, inline_bytes, 0, 1024),
    OPTION("staging", BYTES, staging_bytes, 1u << 20, UINT64_C(1) << 34),
    OPTION("max-connections", NUMBER, max_connections, 1, 65536),
    OPTION("max-rails", NUMBER, max_rails, 1, 65536),
    OPTION("idle-timeout-ms", NUMBER64, idle_ms, 100, 86400000),
    OPTION("connect-timeout-ms", NUMBER64, connect_ms, 10, 60000),
    OPTION("retries", NUMBER, retries, 0, 100),
    OPTION("qp-timeout", NUMBER, qp_timeout, 1, 31),
    OPTION("qp-retry", NUMBER, qp_retry, 0, 7),
    OPTION("poll-us", NUMBER, poll_us, 0, 1000000),
    OPTION("register-threads", NUMBER, register_threads, 1, 64),
    OPTION("relaxed-ordering", YES_NO, relaxed_ordering, 0, 1),
#undef OPTION
};

static void option_store(const struct option *o, uint64_t value) {
    void *at = (char *)&rdma_options + o->offset;
    switch (o->kind) {
    case NUMBER16: *(uint16_t *)at = (uint16_t)value; break;
    case NUMBER: *(unsigned *)at = (unsigned)value; break;
    case NUMBER64:
    case BYTES: *(uint64_t *)at = value; break;
    case YES_NO: *(bool *)at = value != 0; break;
    }
}

static bool option_set(const struct option *o, const char *text, char *error, size_t cap) {
    struct span s = span_str(text);
    uint64_t value = 0;
    if (o->kind == YES_NO) {
        value = (uint64_t)span_case_eq(s, "yes");
        if (!value && !span_case_eq(s, "no")) {
            snprintf(error, cap, "%s is 'yes' or 'no', not '%.64s'", o->name, text);
            return false;
        }
    } else if (!(o->kind == BYTES ? span_to_bytes(s, &value) : span_to_u64(s, &value)) ||
               value < o->min || value > o->max) {
        snprintf(error, cap, "%s is a number from %llu to %llu, not '%.64s'", o->name,
                 (unsigned long long)o->min, (unsigned long long)o->max, text);
        return false;
    }
    option_store(o, value);
    return true;
}

static bool words_add(const char **list, size_t *n_p, size_t max, const char *name,
                      const char *text, char *error, size_t cap) {
    if (*n_p == max) {
        snprintf(error, cap, "%s: at most %zu of them", name, max);
        return false;
    }
    list[(*n_p)++] = xstrdup(text);
    return true;
}

static bool set_bind(const char *text, char *error, size_t cap) {
    struct rdma_address ignored;
    if (!rdma_address_parse(text, &ignored)) {
        snprintf(error, cap, "bind takes an IPv4 or IPv6 address, not '%.64s'", text);
        return false;
    }
    return words_add(rdma_options.bind, &rdma_options.binds, RDMA_BINDS_MAX, "bind", text, error,
                     cap);
}

static bool set_device(const char *text, char *error, size_t cap) {
    if (text[0] == '\0' || strlen(text) > 31 || strchr(text, '/') != NULL) {
        snprintf(error, cap, "device takes the name of an RDMA device, not '%.64s'", text);
        return false;
    }
    return words_add(rdma_options.device, &rdma_options.devices, RDMA_DEVICES_MAX, "device", text,
                     error, cap);
}

static bool set_any(const char *name, const char *text, char *error, size_t cap) {
    if (strcmp(name, "bind") == 0) return set_bind(text, error, cap);
    if (strcmp(name, "device") == 0) return set_device(text, error, cap);
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (strcmp(name, table[i].name) == 0) return option_set(&table[i], text, error, cap);
    }
    snprintf(error, cap, "unknown option '%.64s'", name);
    return false;
}

/* What makes no sense together. */
static bool options_agree(char *error, size_t cap) {
    const struct rdma_options *o = &rdma_options;
    if (o->slice > o->slice_max)
        snprintf(error, cap, "slice is larger than slice-max");
    else if (o->signal_every > o->send_queue / 2)
        snprintf(error, cap, "signal-every is more than half of send-queue");
    else
        return true;
    return false;
}

tarn_status rdma_options_parse(size_t argc, const char *const *argv, char *error, size_t cap) {
    bool good = true;
    rdma_options_free();
    for (size_t i = 0; good && i < argc; i += 2) {
        good = i + 1 < argc;
        if (!good)
            snprintf(error, cap, "option '%.64s' has no value", argv[i]);
        else
            good = set_any(argv[i], argv[i + 1], error, cap);
    }
    if (good && options_agree(error, cap)) return TARN_OK;
    rdma_options_free();
    return TARN_EINVAL;
}

void rdma_options_free(void) {
    for (size_t i = 0; i < rdma_options.binds; i++) free((void *)(uintptr_t)rdma_options.bind[i]);
    for (size_t i = 0; i < rdma_options.devices; i++)
        free((void *)(uintptr_t)rdma_options.device[i]);
    rdma_options = defaults;
}
