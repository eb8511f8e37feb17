/* Transports by name: those that are there, and modules/NAME.so, which libtarn loads by itself when
 * it is asked for by name, or when a host offers NAME://. A program that has loaded it before
 * (tarn-node) has done all of this. */
#include <limits.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "module/loader.h"

struct search {
    const char *scheme;
    struct buf tried; /* what was wrong with each */
    bool found;
};

static bool try_directory(void *arg, const char *directory, size_t len) {
    struct search *s = arg;
    char path[PATH_MAX], error[MODULE_ERROR_SIZE];
    if (snprintf(path, sizeof(path), "%.*s/%s.so", (int)len, directory, s->scheme) >=
        (int)sizeof(path))
        return false;
    tarn_status status = module_load(path, 0, NULL, error, sizeof(error));
    s->found = transport_find(s->scheme) != NULL; /* perhaps of another thread, just now */
    if (s->found) return true;
    if (status == TARN_OK) { /* something else of that name */
        (void)module_unload(s->scheme, error, sizeof(error));
        snprintf(error, sizeof(error), "%.*s: it brings no %s transport", (int)sizeof(error) / 2,
                 path, s->scheme);
    }
    buf_printf(&s->tried, "%s%s", s->tried.len > 0 ? "; " : "", error);
    return false;
}

static bool module_search(const char *module_path, struct search *s) {
    static const struct tarn_services services = {.program = TARN_PROGRAM_CLIENT};
    s->found = transport_find(s->scheme) != NULL;
    if (s->found) return true;
    (void)module_init(&services, NULL); /* unless the program did */
    if (module_path != NULL && module_path[0] != '\0')
        (void)module_directories_of(module_path, try_directory, s);
    else
        (void)module_directories(try_directory, s);
    buf_append_char(&s->tried, '\0');
    return s->found;
}

/* Could its module not be had before? Where add: is it noted now that it cannot? */
static bool scheme_failed(struct tarn_client *client, const char *scheme, bool add) {
    /* the last place is kept: a host may name what it likes */
    bool usual = strcmp(scheme, CLIENT_MODULE_USUAL) == 0;
    size_t i = 0, max = ARRAY_LEN(client->no_module) - !usual;
    pthread_mutex_lock(&client->mutex);
    while (i < max && client->no_module[i][0] != '\0' && strcmp(client->no_module[i], scheme) != 0)
        i++;
    bool failed = i == max || client->no_module[i][0] != '\0'; /* so many are not looked for */
    if (add && !failed) snprintf(client->no_module[i], sizeof(client->no_module[i]), "%s", scheme);
    pthread_mutex_unlock(&client->mutex);
    return failed;
}

static bool scheme_is_word(const char *name) {
    size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz");
    return len > 0 && len <= TRANSPORT_SCHEME_MAX && name[len] == '\0';
}

bool client_module_has(struct tarn_client *client, const char *scheme) {
    if (client->only != NULL && strcmp(client->only, scheme) != 0) return false;
    if (transport_find(scheme) != NULL) return true;
    if (!scheme_is_word(scheme) || scheme_failed(client, scheme, false)) return false;
    struct search s = {.scheme = scheme};
    if (!module_search(client->options.module_path, &s) && !scheme_failed(client, scheme, true))
        log_verbose("A host offers %s, and its module cannot be had: %s", scheme, s.tried.data);
    buf_free(&s.tried);
    return s.found;
}

tarn_status client_module_require(const char *scheme, const char *module_path) {
    struct search s = {.scheme = scheme};
    const struct transport_ops *t;
    struct buf there = {0};
    tarn_status status = TARN_OK;
    bool secure = (t = transport_find(scheme)) != NULL && strcmp(t->scheme, scheme) != 0;
    for (size_t i = 0; (t = transport_at(i)) != NULL; i++) buf_printf(&there, ", %s", t->scheme);
    buf_append_char(&there, '\0');
    if (!scheme_is_word(scheme) || secure)
        status = fail(TARN_EINVAL, "transport is one of auto%s, or of a module, not \"%s\"",
                      there.data, scheme);
    else if (!module_search(module_path, &s))
        status = fail(TARN_ENOTSUP,
                      "transport=%s: there are auto%s, and its module cannot be had (module_path): "
                      "%s",
                      scheme, there.data, s.tried.data);
    buf_free(&there);
    buf_free(&s.tried);
    return status;
}

tarn_status client_module_choose(const char *name, const char *module_path, const char **only_p) {
    *only_p = NULL;
    if (strcmp(name, "auto") == 0) return TARN_OK;
    tarn_status status = client_module_require(name, module_path);
    if (status == TARN_OK) *only_p = transport_name(transport_slot(transport_find(name)));
    return status;
}

const char *client_module_wanted(const struct tarn_client *client) {
    const struct transport_ops *t = client->only != NULL ? transport_find(client->only) : NULL;
    return t != NULL && (t->flags & TRANSPORT_ANNOUNCES) != 0 ? t->scheme : NULL;
}
