#include "module/sites.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "module/loader.h"

enum { PATH_MAX_LEN = 127, UNDER_WAY_MAX = 1024, CONNECTIONS_MAX = 1024 };

static struct registered {
    const char *module;
    const struct tarn_http_site *its;
} sites[MODULES_MAX * SITES_OF_ONE];
static unsigned n_sites;

static struct {
    const char *module;
    const struct tarn_http_server *its; /* NULL: there is none */
} server;

struct site_fault {
    char *text;
    size_t cap;
};

__attribute__((format(printf, 3, 4))) static tarn_status
site_refuse(const struct site_fault *f, tarn_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->text, f->cap, fmt, ap);
    va_end(ap);
    return status;
}

/* --- looking at a site --- */

static bool is_site_path(const char *path) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-._~";
    size_t len = strlen(path);
    return path[0] == '/' && len <= PATH_MAX_LEN && strspn(path, allowed) == len &&
           strstr(path, "//") == NULL;
}

/* On http.so's own port these are its own. */
static bool is_reserved(const char *path) {
    static const char *const taken[] = {"/", "/metrics", "/health", "/ready", "/version", "/api"};
    for (size_t i = 0; i < ARRAY_LEN(taken); i++)
        if (strcmp(path, taken[i]) == 0) return true;
    return strncmp(path, "/api/", 5) == 0;
}

static bool paths_clash(const struct tarn_http_path *a, const struct tarn_http_path *b) {
    return strcmp(a->path, b->path) == 0 && (a->methods & b->methods) != 0;
}

static const struct registered *owner_of(const struct tarn_http_path *p) {
    for (unsigned i = 0; i < n_sites; i++)
        for (unsigned k = 0; sites[i].its->bind == NULL && k < sites[i].its->paths; k++)
            if (paths_clash(p, &sites[i].its->path[k])) return &sites[i];
    return NULL;
}

static tarn_status path_check(const struct tarn_http_site *site, unsigned at,
                              const struct site_fault *f) {
    const unsigned all = TARN_HTTP_GET | TARN_HTTP_POST | TARN_HTTP_PUT | TARN_HTTP_DELETE;
    const struct tarn_http_path *p = &site->path[at];
    if (p->path == NULL || !is_site_path(p->path))
        return site_refuse(f, TARN_EINVAL,
                           "HTTP path %.40s: it must begin with /, and have up to "
                           "%d letters, digits, and / - . _ ~",
                           p->path != NULL ? p->path : "(none)", PATH_MAX_LEN);
    if (p->run == NULL || p->methods == 0 || (p->methods & ~all) != 0 ||
        (p->flags & ~(unsigned)(TARN_HTTP_OPEN | TARN_HTTP_READS)) != 0 ||
        p->body_max > TARN_HTTP_BODY_MAX)
        return site_refuse(f, TARN_EINVAL,
                           "HTTP path %s: no handler, no such method or flag, or body_max over %u",
                           p->path, TARN_HTTP_BODY_MAX);
    for (unsigned i = 0; i < at; i++)
        if (paths_clash(p, &site->path[i]))
            return site_refuse(f, TARN_EEXISTS, "HTTP path %s: it is there twice", p->path);
    if (site->bind != NULL) return TARN_OK;
    if (is_reserved(p->path))
        return site_refuse(f, TARN_EEXISTS, "HTTP path %s: it is one of http.so's own", p->path);
    const struct registered *other = owner_of(p);
    if (other == NULL) return TARN_OK;
    return site_refuse(f, TARN_EEXISTS, "HTTP path %s: the module %s has it", p->path,
                       other->module);
}

static tarn_status site_check(const char *module, const struct tarn_http_site *site,
                              const struct site_fault *f) {
    unsigned own = 0;
    for (unsigned i = 0; i < n_sites; i++) own += strcmp(sites[i].module, module) == 0;
    if (own == SITES_OF_ONE)
        return site_refuse(f, TARN_ELIMIT, "HTTP: a module has up to %u sites", SITES_OF_ONE);
    if (!TARN_HAS(site, connections) || site->path == NULL || site->paths == 0 ||
        site->paths > SITE_PATHS_MAX || site->deadline_ms > TARN_HTTP_DEADLINE_MAX ||
        site->under_way_max > UNDER_WAY_MAX || site->connections > CONNECTIONS_MAX)
        return site_refuse(f, TARN_EINVAL,
                           "HTTP: a site has up to %u paths, a deadline of up to %u ms, and up to "
                           "%d requests and %d connections",
                           SITE_PATHS_MAX, TARN_HTTP_DEADLINE_MAX, UNDER_WAY_MAX, CONNECTIONS_MAX);
    tarn_status status = TARN_OK;
    for (unsigned i = 0; status == TARN_OK && i < site->paths; i++) status = path_check(site, i, f);
    return status;
}

/* --- coming --- */

tarn_status sites_add(const char *module, const struct tarn_http_site *site, char *error,
                      size_t error_cap) {
    const struct site_fault f = {error, error_cap};
    tarn_status status = site_check(module, site, &f);
    if (status == TARN_OK && server.its != NULL)
        status = server.its->site_add(module, site, error, error_cap);
    if (status == TARN_OK) sites[n_sites++] = (struct registered){module, site};
    return status;
}

tarn_status sites_serve(const char *module, const struct tarn_http_server *its, char *error,
                        size_t error_cap) {
    const struct site_fault f = {error, error_cap};
    if (!TARN_HAS(its, answer) || its->site_add == NULL || its->site_remove == NULL ||
        its->answer == NULL)
        return site_refuse(&f, TARN_EINVAL, "HTTP: the server is not whole");
    if (server.its != NULL)
        return site_refuse(&f, TARN_EEXISTS, "HTTP: the module %s serves already", server.module);
    for (unsigned i = 0; i < n_sites; i++) {
        tarn_status status = its->site_add(sites[i].module, sites[i].its, error, error_cap);
        if (status == TARN_OK) continue;
        while (i-- > 0) its->site_remove(sites[i].its);
        return status;
    }
    server.module = module;
    server.its = its;
    return TARN_OK;
}

/* --- answers --- */

tarn_status sites_answer(uint64_t request, const struct tarn_http_answer *answer) {
    if (!TARN_HAS(answer, arg)) return TARN_EINVAL;
    if (server.its != NULL) return server.its->answer(request, answer);
    if (answer->taken != NULL) buf_free(answer->taken);
    if (answer->drop != NULL) answer->drop(answer->arg);
    return TARN_ECLOSED;
}

/* --- going --- */

void sites_forget(const char *module) {
    unsigned kept = 0;
    for (unsigned i = 0; i < n_sites; i++) {
        if (strcmp(sites[i].module, module) != 0)
            sites[kept++] = sites[i];
        else if (server.its != NULL)
            server.its->site_remove(sites[i].its);
    }
    n_sites = kept;
    if (server.its != NULL && strcmp(server.module, module) == 0) server.its = NULL;
}
