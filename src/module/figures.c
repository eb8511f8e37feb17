/* The figures of modules: INFO modules, and whatever else shows figures. */
#include <string.h>

#include "module/loader.h"

struct module_fields {
    struct figure_walk *walk;
    const char *module;
};

/* Whatever the module says, a line stays a line. */
static void module_show_field(void *arg, const char *name, const char *value) {
    struct module_fields *f = arg;
    struct buf line = {NULL, 0, 0};
    size_t len = strlen(f->module);
    if (strncmp(name, f->module, len) != 0 || name[len] != '_') buf_printf(&line, "%s_", f->module);
    for (; *name != '\0'; name++) {
        bool plain = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
                     (*name >= '0' && *name <= '9');
        buf_append_char(&line, plain ? *name : '_');
    }
    buf_append_char(&line, '\0');
    size_t at = line.len;
    for (; *value != '\0'; value++)
        buf_append_char(&line, (unsigned char)*value < ' ' ? ' ' : *value);
    buf_append_char(&line, '\0');
    struct figure figure = {line.data, "told by the module", FIGURE_TEXT, 0};
    union figure_value shown = figure_text(line.data + at);
    /* As a text each value of a counter would be a series of its own in Prometheus. */
    if (span_to_u64(span_str(shown.text), &shown.number))
        figure.type =
            at > 7 && strcmp(line.data + at - 7, "_bytes") == 0 ? FIGURE_BYTES : FIGURE_GAUGE;
    f->walk->show(f->walk, &figure, shown);
    buf_free(&line);
}

static bool module_show(void *arg, const struct module_info *m) {
    struct figure_walk *f = arg;
    struct module_fields fields = {f, m->name};
    figures_group(f, "module:", "module", m->name);
    FIGURE(f, TEXT, name, "of the module", m->name);
    FIGURE(f, GAUGE, ver, "its version as a number", m->version_number);
    FIGURE(f, GAUGE, api, "the version of module.h it was built with", TARN_MODULE_VERSION);
    FIGURE(f, TEXT, version, "of the module", m->version);
    FIGURE(f, GAUGE, args, "words it was given", m->argc);
    FIGURE(f, GAUGE, transports, "that it adds", m->transports);
    FIGURE(f, GAUGE, commands, "that it adds", m->commands);
    figures_group_end(f);
    if (m->fields != NULL) m->fields(module_show_field, &fields);
    if (m->figures != NULL) m->figures(f);
    return true;
}

void module_figures(struct figure_walk *walk) {
    module_each(module_show, walk);
}
