/* Command-line options, in any order, "--name value" or "--name=value". */
#include <stdio.h>
#include <stdlib.h>

#include "base/near.h"
#include "benchmark/bench.h"

int parse_block_size(const char *s, size_t len, uint64_t *bytes_p) {
    uint64_t unit = 1;
    if (len > 1 && (s[len - 1] == 'b' || s[len - 1] == 'B')) len--;
    switch (len > 0 ? s[len - 1] | 0x20 : 0) {
    case 'k': unit = UINT64_C(1) << 10; break;
    case 'm': unit = UINT64_C(1) << 20; break;
    case 'g': unit = UINT64_C(1) << 30; break;
    default: break;
    }
    uint64_t n;
    if (!span_to_u64(span_of(s, len - (unit > 1)), &n) || n > (UINT64_C(1) << 40) / unit) return 0;
    *bytes_p = n * unit;
    return 1;
}

const char *size_text(uint64_t bytes, char out[24]) {
    static const char units[] = "kmg";
    int unit = -1;
    while (unit < 2 && bytes >= 1024 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 24, unit < 0 ? "%llu" : "%llu%c", (unsigned long long)bytes,
             unit < 0 ? 0 : units[unit]);
    return out;
}

static uint64_t spec_number(const struct option_spec *spec, const char *s, size_t len) {
    bool bytes = spec->kind == OPT_BYTES || spec->kind == OPT_BYTES_LIST;
    uint64_t v;
    if (!(bytes ? parse_block_size(s, len, &v) : span_to_u64(span_of(s, len), &v)) ||
        v < spec->min || v > spec->max) {
        die("%s must be %s from %llu to %llu, not \"%.*s\"", spec->name,
            bytes ? "a size" : "a number", (unsigned long long)spec->min,
            (unsigned long long)spec->max, (int)len, s);
    }
    return v;
}

static void spec_set_list(const struct option_spec *spec, const char *s) {
    struct number_list *list = spec->value;
    list->n = 0;
    for (;;) {
        size_t len = strcspn(s, ",");
        if (list->n == LIST_MAX) die("%s takes at most %d values", spec->name, LIST_MAX);
        list->v[list->n++] = spec_number(spec, s, len);
        if (s[len] == '\0') return;
        s += len + 1;
    }
}

static void spec_set(const struct option_spec *spec, const char *s) {
    char *end;
    switch (spec->kind) {
    case OPT_FLAG: *(bool *)spec->value = true; break;
    case OPT_STRING: *(const char **)spec->value = s; break;
    case OPT_U64:
    case OPT_BYTES: *(uint64_t *)spec->value = spec_number(spec, s, strlen(s)); break;
    case OPT_DOUBLE:
        *(double *)spec->value = strtod(s, &end);
        if (end == s || *end != '\0' || !(*(double *)spec->value >= (double)spec->min) ||
            *(double *)spec->value > (double)spec->max) {
            die("%s must be a number from %llu to %llu, not \"%s\"", spec->name,
                (unsigned long long)spec->min, (unsigned long long)spec->max, s);
        }
        break;
    case OPT_U64_LIST:
    case OPT_BYTES_LIST: spec_set_list(spec, s); break;
    }
}

static const struct option_spec *spec_find(const struct option_spec *specs, const char *arg,
                                           const char **value_p) {
    for (; specs->name != NULL; specs++) {
        size_t len = strlen(specs->name);
        if (strncmp(arg, specs->name, len) != 0) continue;
        if (arg[len] == '\0') *value_p = NULL;
        if (arg[len] == '=' && specs->kind != OPT_FLAG) *value_p = arg + len + 1;
        if (arg[len] == '\0' || (arg[len] == '=' && specs->kind != OPT_FLAG)) return specs;
    }
    return NULL;
}

static void spec_refuse(const struct option_spec *specs, const struct option_spec *global,
                        const char *arg) {
    struct near near;
    size_t len = strcspn(arg, "=");
    near_begin(&near, span_of(arg, len));
    for (; specs->name != NULL; specs++) near_offer(&near, specs->name);
    for (; global->name != NULL; global++) near_offer(&near, global->name);
    if (near.word != NULL)
        die("there is no option %.*s here, did you mean %s?", (int)len, arg, near.word);
    die("there is no option %.*s here (tarn-benchmark --help)", (int)len, arg);
}

size_t options_parse(struct bench *b, const struct option_spec *specs, int argc, char **argv,
                     bool stop_at_plain, int *used_p) {
    uint64_t port = b->port;
    const struct option_spec global[] = {
        {"-h", OPT_STRING, &b->host, 0, 0},
        {"-p", OPT_U64, &port, 1, 65535},
        {"-a", OPT_STRING, &b->password, 0, 0},
        {"--user", OPT_STRING, &b->user, 0, 0},
        {"--json", OPT_FLAG, &b->json, 0, 0},
        {"--tls", OPT_FLAG, &b->tls, 0, 0},
        {"--cacert", OPT_STRING, &b->ca_file, 0, 0},
        {"--cacertdir", OPT_STRING, &b->ca_dir, 0, 0},
        {"--cert", OPT_STRING, &b->cert, 0, 0},
        {"--key", OPT_STRING, &b->key, 0, 0},
        {"--sni", OPT_STRING, &b->sni, 0, 0},
        {"--insecure", OPT_FLAG, &b->insecure, 0, 0},
        {"--tls-verify-name", OPT_STRING, &b->verify_name, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    size_t plain = 0;
    int i = 0;
    for (; i < argc; i++) {
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            if (stop_at_plain) {
                plain++;
                i++;
                break;
            }
            argv[plain++] = argv[i];
            continue;
        }
        const char *value = NULL;
        const struct option_spec *spec = spec_find(specs, argv[i], &value);
        if (spec == NULL) spec = spec_find(global, argv[i], &value);
        if (spec == NULL) spec_refuse(specs, global, argv[i]);
        /* cppcheck-suppress nullPointerRedundantCheck; die() does not return */
        if (spec->kind != OPT_FLAG && value == NULL) {
            if (i + 1 == argc) die("%s needs a value", spec->name);
            value = argv[++i];
        }
        spec_set(spec, value);
    }
    b->port = (uint16_t)port;
    if (!stop_at_plain) bench_secure(b); /* the last ones */
    if (used_p != NULL) *used_p = i;
    return plain;
}
