#include "base/traceparent.h"

#include <string.h>

/* n small hex digits; zeros: there may be nothing but zeros. */
static bool digits_fit(const char *at, size_t n, bool zeros) {
    bool other = zeros;
    for (size_t i = 0; i < n; i++) {
        if ((at[i] < '0' || at[i] > '9') && (at[i] < 'a' || at[i] > 'f')) return false;
        other = other || at[i] != '0';
    }
    return other;
}

bool traceparent_read(struct span text, struct traceparent *p) {
    const char *at = text.data;
    if (text.len < TRACEPARENT_LEN || at == NULL) return false;
    bool first = at[0] == '0' && at[1] == '0';
    if (text.len > TRACEPARENT_LEN && (first || at[TRACEPARENT_LEN] != '-')) return false;
    if (!digits_fit(at, 2, true) || (at[0] == 'f' && at[1] == 'f')) return false;
    if (at[2] != '-' || at[TRACEPARENT_SPAN - 1] != '-' || at[TRACEPARENT_FLAGS - 1] != '-')
        return false;
    if (!digits_fit(at + TRACEPARENT_TRACE, 32, false) ||
        !digits_fit(at + TRACEPARENT_SPAN, 16, false) ||
        !digits_fit(at + TRACEPARENT_FLAGS, 2, true))
        return false;
    memcpy(p->text, at, TRACEPARENT_LEN);
    memcpy(p->text, "00", 2);
    p->text[TRACEPARENT_LEN] = '\0';
    return true;
}
