/* Paths of other modules (module.h: tarn_http_site).
 *
 *   site.c      which there are, and which one a request is for
 *   exchange.c  a request to one, from its body to its answer */
#ifndef TARN_HTTP_SITE_H
#define TARN_HTTP_SITE_H

#include "base/queue.h"
#include "http/http.h"

struct http_site {
    const char *module;
    const struct tarn_http_site *its;
    struct http_port *port; /* of its own; NULL: it is on the common one */
    unsigned under_way;     /* requests that it has not answered yet */
    size_t bodies;          /* bytes of those that come in */
    LIST_ENTRY(http_site) link;
};

/* --- site.c --- */

/* As in struct tarn_http_server. One that is not there is removed already. */
tarn_status http_site_add(const char *module, const struct tarn_http_site *its, char *error,
                          size_t cap);
void http_site_remove(const struct tarn_http_site *its);
void http_sites_stop(void); /* after the daemon: nobody asks any more */

struct http_route {
    const char *url;
    unsigned method;  /* of enum tarn_http_method; 0: one that nothing has */
    unsigned allowed; /* methods of that path */
    struct http_site *site;
    const struct tarn_http_path *path; /* NULL: it has not this method */
    size_t len;
};
/* false: there is no such path. */
bool http_route_find(struct http_route *r, const struct http_port *port, const char *url,
                     const char *method);
void http_sites_info(void (*field)(void *arg, const char *name, const char *value), void *arg);

/* --- exchange.c --- */

/* A request that may be asked; whole: it has no body. *own is an http_task from then on. */
enum MHD_Result http_exchange_begin(struct MHD_Connection *connection, void **own,
                                    const struct http_route *r, bool whole);
tarn_status http_exchange_answer(uint64_t id, const struct tarn_http_answer *answer);
/* Nothing of that site is called after it. */
void http_exchanges_end(struct http_site *s);
void http_exchanges_start(void);
/* Before the daemon: whoever waits for an answer is let go. */
void http_exchanges_stop(void);

#endif
