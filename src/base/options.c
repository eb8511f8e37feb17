#include "base/options.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/near.h"
#include "base/status.h"

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

static const char *spec_number(const struct option_spec *spec, const char *s, size_t len,
                               uint64_t *v) {
    bool bytes = spec->kind == OPT_BYTES || spec->kind == OPT_BYTES_LIST;
    const char *why = NULL;
    if (!(bytes ? parse_block_size(s, len, v) : span_to_u64(span_of(s, len), v)) ||
        *v < spec->min || *v > spec->max)
        status_fail(TARN_EINVAL, &why, "%s must be %s from %llu to %llu, not \"%.*s\"", spec->name,
                    bytes ? "a size" : "a number", (unsigned long long)spec->min,
                    (unsigned long long)spec->max, (int)len, s);
    return why;
}

static const char *spec_set_list(const struct option_spec *spec, const char *s) {
    struct number_list *list = spec->value;
    const char *why = NULL;
    list->n = 0;
    for (;;) {
        size_t len = strcspn(s, ",");
        if (list->n == LIST_MAX) {
            status_fail(TARN_EINVAL, &why, "%s takes at most %d values", spec->name, LIST_MAX);
            return why;
        }
        why = spec_number(spec, s, len, &list->v[list->n++]);
        if (why != NULL || s[len] == '\0') return why;
        s += len + 1;
    }
}

static const char *spec_set_double(const struct option_spec *spec, const char *s) {
    char *end;
    double v = strtod(s, &end);
    const char *why = NULL;
    *(double *)spec->value = v;
    if (end == s || *end != '\0' || !(v >= (double)spec->min) || v > (double)spec->max)
        status_fail(TARN_EINVAL, &why, "%s must be a number from %llu to %llu, not \"%s\"",
                    spec->name, (unsigned long long)spec->min, (unsigned long long)spec->max, s);
    return why;
}

static const char *spec_set(const struct option_spec *spec, const char *s) {
    switch (spec->kind) {
    case OPT_FLAG: *(bool *)spec->value = true; return NULL;
    case OPT_STRING: *(const char **)spec->value = s; return NULL;
    case OPT_U64:
    case OPT_BYTES: return spec_number(spec, s, strlen(s), spec->value);
    case OPT_DOUBLE: return spec_set_double(spec, s);
    case OPT_U64_LIST:
    case OPT_BYTES_LIST: return spec_set_list(spec, s);
    }
    return NULL;
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

static const char *spec_refuse(const struct option_spec *const *tables, const char *arg) {
    struct near near;
    const char *why;
    int len = (int)strcspn(arg, "=");
    near_begin(&near, span_of(arg, (size_t)len));
    for (; *tables != NULL; tables++)
        for (const struct option_spec *s = *tables; s->name != NULL; s++)
            near_offer(&near, s->name);
    if (near.word != NULL)
        status_fail(TARN_EINVAL, &why, "there is no option %.*s here, did you mean %s?", len, arg,
                    near.word);
    else
        status_fail(TARN_EINVAL, &why, "there is no option %.*s here (see --help)", len, arg);
    return why;
}

const char *options_read(const struct option_spec *const *tables, int argc, char **argv,
                         bool stop_at_plain, size_t *plain_p, int *used_p) {
    const char *why = NULL;
    int i = 0;
    *plain_p = 0;
    for (; i < argc && why == NULL; i++) {
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            argv[(*plain_p)++] = argv[i];
            if (!stop_at_plain) continue;
            i++;
            break;
        }
        const char *value = NULL;
        const struct option_spec *spec = NULL;
        for (size_t t = 0; spec == NULL && tables[t] != NULL; t++)
            spec = spec_find(tables[t], argv[i], &value);
        if (spec == NULL) return spec_refuse(tables, argv[i]);
        if (spec->kind != OPT_FLAG && value == NULL) {
            if (i + 1 == argc) {
                status_fail(TARN_EINVAL, &why, "%s needs a value", spec->name);
                return why;
            }
            value = argv[++i];
        }
        why = spec_set(spec, value);
    }
    if (used_p != NULL) *used_p = i;
    return why;
}
