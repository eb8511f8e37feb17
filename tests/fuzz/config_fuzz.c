/* The configuration: any text is either refused with a message, or its values, written out as
 * CONFIG GET shows them and read again, are the same values. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Other files are no part of the input. */
static bool has_include(const char *text, size_t len) {
    for (size_t i = 0; i + 7 <= len; i++)
        if (span_case_eq(span_of(text + i, 7), "include")) return true;
    return false;
}

static void add_line(void *arg, const char *name, struct span value) {
    buf_printf(arg, "%s ", name);
    buf_append_quoted(arg, value);
    buf_append_char(arg, '\n');
}

static struct buf dump(const struct config *c) {
    struct buf out = {NULL, 0, 0};
    struct span all = SPAN("*");
    config_get(c, &all, 1, add_line, &out);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    struct config first, second;
    char *why = NULL;
    if (size > 65536 || has_include(text, size)) return 0;
    config_init(&first);
    if (config_load_text(&first, "fuzz", text, size, &why)) {
        struct buf a = dump(&first), b;
        config_init(&second);
        TARN_ASSERT(config_load_text(&second, "again", a.data, a.len, &why));
        b = dump(&second);
        TARN_ASSERT(span_eq(span_of(a.data, a.len), span_of(b.data, b.len)));
        TARN_ASSERT(config_validate(&first, &why) || why != NULL);
        buf_free(&a);
        buf_free(&b);
        config_deinit(&second);
    } else {
        TARN_ASSERT(why != NULL && strncmp(why, "fuzz:", 5) == 0);
    }
    free(why);
    config_deinit(&first);
    return 0;
}
