#include "base/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Switches without a default: a status that is not in the table does not compile. */
/* clang-format off */
#define ROW_TEXT(status, code, act, text) case status: return text;
#define ROW_CODE(status, code, act, text) case status: return code;
#define ROW_ACT(status, code, act, text)  case status: return act;
#define ROW_READ(status, code, act, text) {code, status},
#define ROW_ALIAS(code, status)           {code, status},
/* clang-format on */

const char *tarn_status_text(tarn_status status) {
    switch (status) { ERROR_STATUSES(ROW_TEXT) }
    return "unknown status";
}

tarn_status status_fail(tarn_status status, const char **why_p, const char *fmt, ...) {
    static __thread char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    *why_p = text;
    return status;
}

const char *error_code(tarn_status status) {
    switch (status) { ERROR_STATUSES(ROW_CODE) }
    return "";
}

enum error_act error_act(tarn_status status) {
    switch (status) { ERROR_STATUSES(ROW_ACT) }
    return ERROR_FINAL;
}

tarn_status error_read(const char *line) {
    static const struct {
        const char *code;
        tarn_status status;
    } rows[] = {ERROR_STATUSES(ROW_READ) ERROR_CODES(ROW_ALIAS)};
    size_t n = strcspn(line, " ");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && n > 0; i++) {
        if (strlen(rows[i].code) == n && memcmp(line, rows[i].code, n) == 0) return rows[i].status;
    }
    return TARN_ERR;
}

uint64_t error_later_ms(const char *line) {
    static const char code[] = "TRYAGAIN ";
    if (strncmp(line, code, sizeof(code) - 1) != 0) return 0;
    const char *digits = line + sizeof(code) - 1;
    uint64_t ms = 0;
    for (; *digits >= '0' && *digits <= '9' && ms <= ERROR_LATER_MAX_MS; digits++)
        ms = ms * 10 + (uint64_t)(*digits - '0');
    return ms < ERROR_LATER_MAX_MS ? ms : ERROR_LATER_MAX_MS;
}
