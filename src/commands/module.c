/* MODULE: loading, listing and unloading while the server runs. */
#include <stdlib.h>
#include "base/log.h"
#include "front/client.h"
#include "config/config.h"
#include "front/families.h"
#include "module/loader.h"

static bool module_count(void *arg, const struct module_info *m) {
    ++*(size_t *)arg;
    return true;
}

static bool module_list_one(void *arg, const struct module_info *m) {
    struct client *c = arg;
    reply_map(c, 4);
    reply_bulk_str(c, "name");
    reply_bulk_str(c, m->name);
    reply_bulk_str(c, "ver");
    reply_int(c, m->version_number);
    reply_bulk_str(c, "path");
    reply_bulk_str(c, m->path);
    reply_bulk_str(c, "args");
    reply_array(c, m->argc);
    for (size_t i = 0; i < m->argc; i++) reply_bulk_str(c, m->argv[i]);
    return true;
}

/* HELLO shows the same. */
void cmd_module_list(struct client *c) {
    size_t n = 0;
    module_each(module_count, &n);
    reply_array(c, n);
    module_each(module_list_one, c);
}

static bool module_allowed(struct client *c) {
    if (client_allowed(c, config->enable_module_command)) return true;
    reply_error(c, "MODULE command not allowed. If the enable-module-command option is set to "
                   "\"local\", you can run it from a local connection, otherwise you need to set "
                   "this option in the configuration file, and then restart the server.");
    return false;
}

/* NULL: it has a NUL in it. */
static char *to_string(struct span s) {
    return s.data == NULL || memchr(s.data, '\0', s.len) != NULL ? NULL : span_dup(s);
}

static void module_refuse(struct client *c, const char *why) {
    log_warning("MODULE LOAD: %s", why);
    reply_error(c, "Error loading the extension. Please check the server logs. (%s)", why);
}

/* words from first on. */
static void module_load_words(struct client *c, size_t first) {
    char error[MODULE_ERROR_SIZE] = "a word has a NUL in it", *word[MODULE_WORDS_MAX];
    size_t n = 0, wanted = c->argc - first;
    if (wanted > MODULE_WORDS_MAX) {
        module_refuse(c, "too many words");
        return;
    }
    char *given = to_string(c->argv[2]), *path = given != NULL ? module_path(given) : NULL;
    while (n < wanted && (word[n] = to_string(c->argv[first + n])) != NULL) n++;
    tarn_status status = TARN_EINVAL;
    if (path != NULL && n == wanted)
        status = module_load(path, n, (const char *const *)word, error, sizeof(error));
    if (status == TARN_OK)
        reply_ok(c);
    else
        module_refuse(c, error);
    while (n > 0) free(word[--n]);
    free(path);
    free(given);
}

void cmd_module_load(struct client *c) {
    if (module_allowed(c)) module_load_words(c, 3);
}

void cmd_module_loadex(struct client *c) {
    if (!module_allowed(c)) return;
    if (c->argc == 3 || arg_is(c, 3, "ARGS"))
        module_load_words(c, c->argc == 3 ? 3 : 4);
    else if (arg_is(c, 3, "CONFIG"))
        module_refuse(c, "modules of tarn have no options for CONFIG: give them words behind ARGS");
    else
        module_refuse(c, "ARGS is missing");
}

void cmd_module_unload(struct client *c) {
    char error[MODULE_ERROR_SIZE];
    if (!module_allowed(c)) return;
    char *name = to_string(c->argv[2]);
    tarn_status status = name != NULL ? module_unload(name, error, sizeof(error)) : TARN_ENOTFOUND;
    if (status == TARN_OK)
        reply_ok(c);
    else
        reply_error(c, "Error unloading module: %s",
                    status == TARN_ENOTFOUND ? "no such module with that name" : error);
    free(name);
}
