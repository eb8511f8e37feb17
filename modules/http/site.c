/* Sites of other modules: which there are, and which of their paths a request is for. */
#include "http/site.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

enum { CONNECTIONS_DEFAULT = 64 };

static LIST_HEAD(, http_site) sites = LIST_HEAD_INITIALIZER(sites);

/* --- coming and going --- */

static tarn_status site_listen(struct http_site *s, char *error, size_t cap) {
    const struct http_port_plan plan = {
        .bind = &s->its->bind,
        .n_bind = 1,
        .port = s->its->port,
        .connections = s->its->connections != 0 ? s->its->connections : CONNECTIONS_DEFAULT,
        .tls = s->its->tls};
    return http_port_open(&plan, &s->port, error, cap);
}

tarn_status http_site_add(const char *module, const struct tarn_http_site *its, char *error,
                          size_t cap) {
    struct http_site *s = xcalloc(1, sizeof(*s));
    s->module = module;
    s->its = its;
    tarn_status status = its->bind != NULL ? site_listen(s, error, cap) : TARN_OK;
    if (status != TARN_OK)
        free(s);
    else
        LIST_INSERT_HEAD(&sites, s, link);
    return status;
}

static void site_destroy(struct http_site *s) {
    LIST_REMOVE(s, link);
    http_port_close(&s->port);
    free(s);
}

void http_site_remove(const struct tarn_http_site *its) {
    struct http_site *s, *next;
    LIST_FOREACH_SAFE(s, &sites, link, next) {
        if (s->its != its) continue;
        http_exchanges_end(s);
        site_destroy(s);
    }
}

void http_sites_stop(void) {
    while (!LIST_EMPTY(&sites)) site_destroy(LIST_FIRST(&sites));
}

/* --- which path --- */

static bool path_fits(const char *path, const char *url) {
    size_t len = strlen(path);
    return path[len - 1] == '/' ? strncmp(path, url, len) == 0 : strcmp(path, url) == 0;
}

static unsigned method_of(const char *name) {
    static const struct {
        const char *name;
        unsigned method;
    } known[] = {{"GET", TARN_HTTP_GET},
                 {"HEAD", TARN_HTTP_GET},
                 {"POST", TARN_HTTP_POST},
                 {"PUT", TARN_HTTP_PUT},
                 {"DELETE", TARN_HTTP_DELETE}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, name) == 0) return known[i].method;
    return 0;
}

/* The longest that fits wins; of several with one name, the one that has the method. */
static void route_try(struct http_route *r, struct http_site *s) {
    for (unsigned i = 0; i < s->its->paths; i++) {
        const struct tarn_http_path *p = &s->its->path[i];
        size_t len = strlen(p->path);
        if (!path_fits(p->path, r->url) || len < r->len) continue;
        if (len > r->len) r->allowed = 0, r->path = NULL;
        r->len = len;
        r->allowed |= p->methods;
        if (p->methods & r->method) r->site = s, r->path = p;
    }
}

bool http_route_find(struct http_route *r, const struct http_port *port, const char *url,
                     const char *method) {
    struct http_site *s;
    bool common = port == http_server_port();
    *r = (struct http_route){.url = url, .method = method_of(method)};
    LIST_FOREACH(s, &sites, link)
        if (common ? s->port == NULL : s->port == port) route_try(r, s);
    return r->allowed != 0;
}

/* --- figures --- */

/* "port_web"; "port_web_2" of the second site of that module with a port. */
static void port_field(char *name, size_t cap, const char *what, const struct http_site *s) {
    const struct http_site *before = s;
    unsigned n = 1;
    while ((before = LIST_NEXT(before, link)) != NULL)
        n += before->port != NULL && strcmp(before->module, s->module) == 0;
    int len = snprintf(name, cap, "%s_%s", what, s->module);
    if (n > 1) snprintf(name + len, cap - (size_t)len, "_%u", n);
}

void http_sites_info(void (*field)(void *arg, const char *name, const char *value), void *arg) {
    const struct http_site *s;
    unsigned paths = 0, under_way = 0;
    char name[80], value[24];
    struct tarn_tls_figures tls;
    LIST_FOREACH(s, &sites, link) {
        paths += s->its->paths;
        under_way += s->under_way;
        if (s->port == NULL) continue;
        port_field(name, sizeof(name), "port", s);
        snprintf(value, sizeof(value), "%u", http_port_number(s->port));
        field(arg, name, value);
        port_field(name, sizeof(name), "connections", s);
        snprintf(value, sizeof(value), "%u", http_port_connections(s->port, &tls));
        field(arg, name, value);
    }
    snprintf(value, sizeof(value), "%u", paths);
    field(arg, "module_paths", value);
    snprintf(value, sizeof(value), "%u", under_way);
    field(arg, "under_way", value);
}
