#include "module/loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/log.h"
#include "module/sites.h"
#include "transport/transport.h"

struct module {
    const struct tarn_module *its; /* in its file */
    void *handle;
    char *path;
    char *word[MODULE_WORDS_MAX];
    size_t words;
    const struct transport_ops *transport[MODULE_TRANSPORTS_MAX];
    struct tarn_command_declaration command[MODULE_COMMANDS_MAX];
    unsigned transports, commands;
};

/* Where to write what went wrong. */
struct fault {
    char *text;
    size_t cap;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct module *modules[MODULES_MAX];
static size_t n_modules;
static struct module *loading; /* whose load() runs: registrations are its */
static struct tarn_services services;
static struct module_hooks hooks;
static enum tarn_rows (*program_rows)(const char *table, uint64_t *from, struct figure_walk *walk);

static tarn_status fault_say(const struct fault *f, tarn_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static tarn_status fault_say(const struct fault *f, tarn_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->text, f->cap, fmt, ap);
    va_end(ap);
    return status;
}

/* --- what modules are given --- */

static void log_to_program(enum tarn_log_level level, const char *text) {
    static_assert((int)TARN_LOG_DEBUG == (int)LOG_LEVEL_DEBUG, "levels");
    static_assert((int)TARN_LOG_WARNING == (int)LOG_LEVEL_WARNING, "levels");
    log_write((enum log_level)level, "%s", text);
}

/* Lower case letters, digits and others, from 1 to max. */
static bool is_module_name(const char *s, const char *others, size_t max) {
    size_t n = 0;
    for (; s[n] != '\0'; n++) {
        bool ok =
            (s[n] >= 'a' && s[n] <= 'z') || (s[n] >= '0' && s[n] <= '9') || strchr(others, s[n]);
        if (!ok || n == max) return false;
    }
    return n > 0;
}

/* As it may stand in a URI. */
static bool is_uri_scheme(const char *name) {
    size_t len = name != NULL ? strspn(name, "abcdefghijklmnopqrstuvwxyz") : 0;
    return len > 0 && len <= TRANSPORT_SCHEME_MAX && name[len] == '\0';
}

/* It becomes everybody's when load() has succeeded: until then nobody must find it. */
static tarn_status add_transport(const struct transport_ops *ops) {
    struct module *m = loading;
    if (m == NULL || ops == NULL) return TARN_EINVAL;
    if (ops->abi != TRANSPORT_ABI || m->its->transport_abi != TRANSPORT_ABI) return TARN_EPROTO;
    if (!is_uri_scheme(ops->scheme) ||
        (ops->secure_scheme != NULL && !is_uri_scheme(ops->secure_scheme)) ||
        !transport_is_whole(ops))
        return TARN_EINVAL;
    if (transport_find(ops->scheme) != NULL ||
        (ops->secure_scheme != NULL && transport_find(ops->secure_scheme) != NULL))
        return TARN_EEXISTS;
    for (unsigned i = 0; i < m->transports; i++)
        if (strcmp(m->transport[i]->scheme, ops->scheme) == 0) return TARN_EEXISTS;
    if (m->transports == MODULE_TRANSPORTS_MAX) return TARN_ELIMIT;
    m->transport[m->transports++] = ops;
    return TARN_OK;
}

static bool command_is_whole(const struct tarn_command_declaration *x) {
    return x->name != NULL && x->run != NULL && x->arity != 0 && x->summary != NULL &&
           x->syntax != NULL && (x->n_keys == 0 || x->keys != NULL);
}

/* Fields that it does not reach to stay zero. */
static tarn_status declare_command(const struct tarn_command_declaration *given) {
    struct module *m = loading;
    struct tarn_command_declaration x = {.size = 0};
    if (m == NULL || given == NULL || !TARN_HAS(given, run)) return TARN_EINVAL;
    memcpy(&x, given, given->size < sizeof(x) ? given->size : sizeof(x));
    x.size = sizeof(x);
    if (!command_is_whole(&x)) return TARN_EINVAL;
    size_t len = strlen(m->its->name);
    if (strncmp(x.name, m->its->name, len) != 0 || x.name[len] != '.' ||
        !is_module_name(x.name + len + 1, "-_", MODULE_NAME_MAX))
        return TARN_EINVAL;
    if (hooks.command_add == NULL) return TARN_ENOTSUP;
    if (m->commands == MODULE_COMMANDS_MAX) return TARN_ELIMIT;
    m->command[m->commands] = x;
    tarn_status status = hooks.command_add(m->its->name, &m->command[m->commands]);
    if (status == TARN_OK) m->commands++;
    return status;
}

static tarn_status add_command(const struct tarn_command *command) {
    if (command == NULL || command->flags & ~(unsigned)(TARN_COMMAND_ADMIN | TARN_COMMAND_FAST))
        return TARN_EINVAL;
    const struct tarn_command_declaration x = {.size = sizeof(x),
                                               .flags = command->flags,
                                               .name = command->name,
                                               .arity = command->arity,
                                               .summary = command->summary,
                                               .syntax = command->syntax,
                                               .run = command->run};
    return declare_command(&x);
}

static tarn_status open_durable(struct tarn_durable **durable_p) {
    struct module *m = loading;
    if (m == NULL || durable_p == NULL) return TARN_EINVAL;
    if (hooks.durable_open == NULL) return TARN_ENOTSUP;
    return hooks.durable_open(m->its->name, durable_p);
}

static tarn_status add_site(const struct tarn_http_site *site, char *error, size_t error_cap) {
    if (loading == NULL || site == NULL) return TARN_EINVAL;
    return sites_add(loading->its->name, site, error, error_cap);
}

static tarn_status add_server(const struct tarn_http_server *server, char *error,
                              size_t error_cap) {
    if (loading == NULL || server == NULL) return TARN_EINVAL;
    return sites_serve(loading->its->name, server, error, error_cap);
}

/* Those of modules are asked without the lock, as modules are told things below. */
static enum tarn_rows next_rows(const char *table, uint64_t *from, struct figure_walk *walk) {
    const char *slash = strchr(table, '/');
    if (slash == NULL) return program_rows(table, from, walk);
    const struct span name = span_of(table, (size_t)(slash - table));
    const struct tarn_module *its = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_modules; i++)
        if (span_eq(name, span_str(modules[i]->its->name))) its = modules[i]->its;
    pthread_mutex_unlock(&lock);
    if (its == NULL || !TARN_HAS(its, rows) || its->rows == NULL) return TARN_ROWS_NO_TABLE;
    return its->rows(slash + 1, from, walk);
}

bool module_init(const struct tarn_services *given, const struct module_hooks *given_hooks) {
    pthread_mutex_lock(&lock);
    bool first = services.size == 0;
    if (first) {
        services = *given;
        services.size = sizeof(services);
        services.version = TARN_MODULE_VERSION;
        services.program_version = TARN_VERSION;
        services.transport_register = add_transport;
        services.command_register = add_command;
        services.http_register = add_site;
        services.http_answer = sites_answer;
        services.http_serve = add_server;
        services.command_declare = declare_command;
        services.durable_open = open_durable;
        program_rows = services.rows_next;
        if (program_rows != NULL) services.rows_next = next_rows;
        if (services.log == NULL) services.log = log_to_program;
        if (given_hooks != NULL) hooks = *given_hooks;
    }
    pthread_mutex_unlock(&lock);
    return first;
}

/* --- looking at a module before it is called --- */

/* The one symbol, whatever its version. */
static tarn_status find_symbol(void *handle, const char *path, const struct fault *f,
                               const struct tarn_module **module_p) {
    void *symbol = dlsym(handle, TARN_MODULE_SYMBOL);
    for (unsigned v = 2; symbol == NULL && v < 10; v++) {
        char name[32];
        snprintf(name, sizeof(name), "tarn_module_v%u", v);
        if (dlsym(handle, name) != NULL)
            return fault_say(
                f, TARN_EPROTO,
                "%s has version %u of the module interface, this program wants version %u", path, v,
                TARN_MODULE_VERSION);
    }
    if (symbol == NULL)
        return fault_say(f, TARN_EINVAL,
                         "%s is no module of tarn: it does not show " TARN_MODULE_SYMBOL, path);
    Dl_info where;
    const ElfW(Sym) *entry = NULL;
    const struct tarn_module *m = symbol;
    bool known =
        dladdr1(symbol, &where, (void **)(void *)&entry, RTLD_DL_SYMENT) != 0 && entry != NULL;
    if (known && (entry->st_info & 0xf) != STT_OBJECT)
        return fault_say(f, TARN_EINVAL,
                         "%s is no module of tarn: its " TARN_MODULE_SYMBOL " is not data", path);
    if (known &&
        (entry->st_size < offsetof(struct tarn_module, transport_abi) || entry->st_size < m->size))
        return fault_say(f, TARN_EINVAL, "%s: its " TARN_MODULE_SYMBOL " is smaller than it says",
                         path);
    *module_p = m;
    return TARN_OK;
}

static struct module *module_find(const char *name) {
    for (size_t i = 0; i < n_modules; i++)
        if (strcmp(modules[i]->its->name, name) == 0) return modules[i];
    return NULL;
}

static tarn_status module_check(const struct tarn_module *m, const char *path,
                                const struct fault *f) {
    if (m->version != TARN_MODULE_VERSION)
        return fault_say(
            f, TARN_EPROTO,
            "%s was built for version %u of the module interface, this program wants version %u",
            path, m->version, TARN_MODULE_VERSION);
    if (!TARN_HAS(m, load))
        return fault_say(
            f, TARN_EPROTO,
            "%s: its struct tarn_module has %u bytes, and this program needs the first %zu", path,
            m->size, offsetof(struct tarn_module, load) + sizeof(m->load));
    if (m->transport_abi != 0 && m->transport_abi != TRANSPORT_ABI)
        return fault_say(
            f, TARN_EPROTO,
            "%s was built for version %u of the transport interface, this program has version %u",
            path, m->transport_abi, TRANSPORT_ABI);
    if (m->name == NULL || !is_module_name(m->name, "", MODULE_NAME_MAX) || m->load == NULL ||
        m->module_version == NULL || m->summary == NULL)
        return fault_say(f, TARN_EINVAL,
                         "%s: its " TARN_MODULE_SYMBOL " has no proper name, version or load",
                         path);
    const struct module *there = module_find(m->name);
    if (there != NULL)
        return fault_say(f, TARN_EEXISTS, "%s: a module named %s is loaded already, from %s", path,
                         m->name, there->path);
    return TARN_OK;
}

/* --- coming --- */

/* The first n of them; all or none. TARN_EBUSY: somebody has a domain of one. */
static tarn_status forget_transports(struct module *m, unsigned n) {
    tarn_status status = TARN_OK;
    for (unsigned i = 0; i < n && status == TARN_OK; i++) {
        status = transport_unregister(m->transport[i]);
        for (unsigned k = 0; status != TARN_OK && k < i; k++)
            (void)transport_register(m->transport[k]);
    }
    return status;
}

static void forget_offers(struct module *m) {
    for (unsigned i = 0; i < m->commands; i++) hooks.command_remove(&m->command[i]);
    m->commands = 0;
    sites_forget(m->its->name);
}

static void tell_added(const struct module *m) {
    for (unsigned i = 0; i < m->transports && hooks.transport_added != NULL; i++)
        hooks.transport_added(m->transport[i]->scheme);
}

static tarn_status start_transports(struct module *m, const struct fault *f) {
    for (unsigned i = 0; i < m->transports; i++) {
        tarn_status status = transport_register(m->transport[i]);
        if (status == TARN_OK) continue;
        (void)forget_transports(m, i);
        return fault_say(f, status, "%s: its transport %s could not be registered: %s", m->path,
                         m->transport[i]->scheme, tarn_status_text(status));
    }
    return TARN_OK;
}

static tarn_status module_start(struct module *m, const struct fault *f) {
    char text[MODULE_ERROR_SIZE / 2] = "";
    loading = m;
    tarn_status status = m->its->load(
        &services, m->words, (const char *const *)(const void *)m->word, text, sizeof(text));
    loading = NULL;
    text[sizeof(text) - 1] = '\0';
    if (status != TARN_OK) {
        fault_say(f, status, "%s: %s", m->path, text[0] != '\0' ? text : tarn_status_text(status));
    } else {
        status = start_transports(m, f);
        if (status == TARN_OK) return TARN_OK;
        /* Some were there for a moment, and whoever was quick has a domain: then its code stays
         * where it is. */
        bool idle = TARN_HAS(m->its, unload) && m->its->unload != NULL &&
                    m->its->unload(text, sizeof(text)) == TARN_OK;
        if (!idle) m->handle = NULL;
    }
    forget_offers(m);
    return status;
}

static void module_free(struct module *m) {
    if (m->handle != NULL) dlclose(m->handle);
    for (size_t i = 0; i < m->words; i++) free(m->word[i]);
    free(m->path);
    free(m);
}

static tarn_status module_open(struct module *m, const struct fault *f) {
    char whole[PATH_MAX]; /* without a slash the dynamic linker would look elsewhere */
    if (!module_file_check(m->path, f->text, f->cap)) return TARN_EINVAL;
    if (realpath(m->path, whole) == NULL)
        return fault_say(f, TARN_EINVAL, "%s: its real path is not known", m->path);
    m->handle = dlopen(whole, RTLD_NOW | RTLD_LOCAL);
    if (m->handle == NULL) {
        const char *why = dlerror();
        return fault_say(f, TARN_EINVAL, "%s cannot be opened: %s", m->path,
                         why != NULL ? why : "no reason given");
    }
    tarn_status status = find_symbol(m->handle, m->path, f, &m->its);
    return status == TARN_OK ? module_check(m->its, m->path, f) : status;
}

static tarn_status load_locked(struct module *m, const struct fault *f) {
    TARN_ASSERT(services.size != 0); /* module_init */
    if (n_modules == MODULES_MAX)
        return fault_say(f, TARN_ELIMIT, "%s: %u modules are loaded already", m->path, MODULES_MAX);
    tarn_status status = module_open(m, f);
    if (status == TARN_OK) status = module_start(m, f);
    if (status != TARN_OK) return status;
    modules[n_modules++] = m;
    log_notice("Module %s %s is loaded from %s", m->its->name, m->its->module_version, m->path);
    tell_added(m);
    return TARN_OK;
}

tarn_status module_load(const char *path, size_t argc, const char *const *argv, char *error,
                        size_t error_cap) {
    const struct fault f = {error, error_cap};
    if (argc > MODULE_WORDS_MAX)
        return fault_say(&f, TARN_EINVAL, "%s: a module takes up to %u words", path,
                         MODULE_WORDS_MAX);
    for (size_t i = 0; i < argc; i++)
        if (strlen(argv[i]) > MODULE_WORD_MAX)
            return fault_say(&f, TARN_EINVAL, "%s: word %zu has more than %u bytes", path, i + 1,
                             MODULE_WORD_MAX);
    struct module *m = xcalloc(1, sizeof(*m));
    m->path = xstrdup(path);
    while (m->words < argc) m->word[m->words] = xstrdup(argv[m->words]), m->words++;
    pthread_mutex_lock(&lock);
    tarn_status status = load_locked(m, &f);
    pthread_mutex_unlock(&lock);
    if (status != TARN_OK) module_free(m);
    return status;
}

/* --- going --- */

static tarn_status module_stop(struct module *m, const struct fault *f) {
    char text[MODULE_ERROR_SIZE / 2] = "";
    if (!TARN_HAS(m->its, unload) || m->its->unload == NULL)
        return fault_say(f, TARN_ENOTSUP, "module %s cannot be unloaded", m->its->name);
    for (unsigned i = 0; i < m->transports && hooks.transport_removing != NULL; i++)
        hooks.transport_removing(m->transport[i]->scheme);
    tarn_status status = forget_transports(m, m->transports);
    if (status == TARN_OK) {
        status = m->its->unload(text, sizeof(text));
        if (status == TARN_OK) return TARN_OK;
        text[sizeof(text) - 1] = '\0';
        for (unsigned i = 0; i < m->transports; i++) {
            /* the lock is ours: there is room */
            tarn_status again = transport_register(m->transport[i]);
            TARN_ASSERT(again == TARN_OK);
        }
    } else {
        snprintf(text, sizeof(text), "connections of this process use %s", m->its->name);
    }
    fault_say(f, status, "%s", text[0] != '\0' ? text : tarn_status_text(status));
    tell_added(m);
    return status;
}

static tarn_status unload_locked(size_t at, const struct fault *f) {
    struct module *m = modules[at];
    tarn_status status = module_stop(m, f);
    if (status != TARN_OK) return status;
    forget_offers(m);
    log_notice("Module %s is unloaded", m->its->name);
    n_modules--;
    memmove(&modules[at], &modules[at + 1], (n_modules - at) * sizeof(modules[0]));
    module_free(m);
    return TARN_OK;
}

tarn_status module_unload(const char *name, char *error, size_t error_cap) {
    const struct fault f = {error, error_cap};
    size_t at = 0;
    pthread_mutex_lock(&lock);
    while (at < n_modules && strcmp(modules[at]->its->name, name) != 0) at++;
    tarn_status status = at < n_modules
                             ? unload_locked(at, &f)
                             : fault_say(&f, TARN_ENOTFOUND, "no module named %s is loaded", name);
    pthread_mutex_unlock(&lock);
    return status;
}

void module_unload_all(void) {
    char text[MODULE_ERROR_SIZE];
    const struct fault f = {text, sizeof(text)};
    pthread_mutex_lock(&lock);
    for (size_t at = n_modules; at-- > 0;) {
        const char *name = modules[at]->its->name;
        tarn_status status = unload_locked(at, &f);
        if (status != TARN_OK && status != TARN_ENOTSUP)
            log_warning("Module %s stays to the end: %s", name, text);
    }
    pthread_mutex_unlock(&lock);
}

/* --- looking --- */

bool module_loaded(const char *name) {
    pthread_mutex_lock(&lock);
    bool there = module_find(name) != NULL;
    pthread_mutex_unlock(&lock);
    return there;
}

static unsigned version_number(const char *text) {
    unsigned major, minor, patch;
    int end = 0;
    if (sscanf(text, "%2u.%2u.%2u%n", &major, &minor, &patch, &end) != 3 || text[end] != '\0')
        return 0;
    return major * 10000 + minor * 100 + patch;
}

void module_each(bool (*fn)(void *arg, const struct module_info *info), void *arg) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_modules; i++) {
        const struct module *m = modules[i];
        const struct module_info info = {
            .name = m->its->name,
            .version = m->its->module_version,
            .summary = m->its->summary,
            .version_number = version_number(m->its->module_version),
            .path = m->path,
            .argc = m->words,
            .argv = (const char *const *)(const void *)m->word,
            .transports = m->transports,
            .commands = m->commands,
            .fields = TARN_HAS(m->its, info) ? m->its->info : NULL,
            .figures = TARN_HAS(m->its, figures) ? m->its->figures : NULL,
        };
        if (!fn(arg, &info)) break;
    }
    pthread_mutex_unlock(&lock);
}

/* --- telling ---
 *
 * Without the lock: who is told may ask for anything. It stays loaded meanwhile, for it is told by
 * the thread that loads and unloads. */

void module_tell_durable(struct span module, const struct span *name, const struct span *value) {
    void (*fn[MODULES_MAX])(const struct span *name, const struct span *value);
    size_t n = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_modules; i++) {
        const struct tarn_module *its = modules[i]->its;
        if ((module.len == 0 || span_eq(module, span_str(its->name))) &&
            TARN_HAS(its, durable_changed) && its->durable_changed != NULL)
            fn[n++] = its->durable_changed;
    }
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < n; i++) fn[i](name, value);
}

void module_tell_role(bool leads) {
    void (*fn[MODULES_MAX])(bool leads);
    size_t n = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_modules; i++) {
        const struct tarn_module *its = modules[i]->its;
        if (TARN_HAS(its, role_changed) && its->role_changed != NULL) fn[n++] = its->role_changed;
    }
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < n; i++) fn[i](leads);
}
