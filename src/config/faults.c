/* What is wrong with a configuration, collected: who starts a server hears all of it at once. */
#include <stdarg.h>
#include <stdlib.h>
#include "config/table.h"

bool config_faults_full(const struct config_faults *f) {
    return f->n >= CONFIG_FAULTS_MAX;
}

bool config_fault(struct config_faults *f, const char *fmt, ...) {
    va_list ap;
    if (config_faults_full(f)) return false;
    if (f->n++ > 0) buf_append_char(&f->text, '\n');
    va_start(ap, fmt);
    buf_vprintf(&f->text, fmt, ap);
    va_end(ap);
    if (config_faults_full(f))
        buf_append_str(&f->text, "\nand perhaps more: this is as far as it was read");
    return false;
}

bool config_faults_tell(struct config_faults *f, char **why_p) {
    if (f->n == 0) return true;
    buf_append_char(&f->text, '\0');
    *why_p = f->text.data;
    *f = (struct config_faults){.n = 0};
    return false;
}
