/* modules/http.so: HTTP for probes and Prometheus, on the server's loop.
 *
 *   module.c   words, load, unload, INFO modules
 *   server.c   GNU libmicrohttpd (its own epoll descriptor in the loop), limits on connections
 *   gather.c   /metrics and /api/info: all figures, in slices of the loop
 *   page.c     the page at /, which page/ is joined to
 *   history.c  the last minutes and the last day; api_history.c samples it and answers with it */
#ifndef TARN_HTTP_HTTP_H
#define TARN_HTTP_HTTP_H

#include <microhttpd.h>
#include "module.h"

#define HTTP_BINDS_MAX 8u
#define HTTP_PIECE     16384u /* of an answer that is made as it is sent */

struct http_options {
    const char *bind[HTTP_BINDS_MAX]; /* owned by the loader, as long as the module is loaded */
    unsigned n_bind;
    uint16_t port;
    unsigned connections;
    unsigned timeout_s; /* of a request, with its answer */
    char token[256];    /* "": none */
};

extern const struct tarn_services *http_services;
extern struct http_options http_options;
extern struct http_figures {
    uint64_t requests, refused, slow, scrapes, scrape_turns;
} http_figures;

/* --- options.c --- */

/* false: error names the word and says what to do. */
tarn_status http_options_parse(size_t argc, const char *const *argv, char *error, size_t cap);

/* --- server.c --- */

tarn_status http_server_start(char *error, size_t cap);
void http_server_stop(void);
uint16_t http_server_port(void);
unsigned http_server_connections(void);
/* At the next turn of the loop there is something to do: a connection was resumed. */
void http_server_wake(void);

/* --- gather.c --- */

/* A request that waits for its page. */
struct http_waiting;
/* The connection is suspended until the page is there; *own is an http_waiting from then on. */
enum MHD_Result http_metrics(struct MHD_Connection *connection, void **own);
enum MHD_Result http_api_info(struct MHD_Connection *connection, void **own);
/* It goes on: the answer. */
enum MHD_Result http_gathered(struct MHD_Connection *connection, struct http_waiting *w);
/* The request is over, answered or not. */
void http_gathered_over(struct http_waiting *w);
/* Nobody is answered any more. */
void http_gather_stop(void);

/* --- page.c --- */

enum MHD_Result http_page(struct MHD_Connection *connection, void **own);

/* --- api_history.c --- */

void http_history_start(void);
void http_history_stop(void); /* after the server: answers under way read from it */
enum MHD_Result http_history(struct MHD_Connection *connection, void **own);

/* Queues a whole text; type: "text/plain; charset=utf-8". */
enum MHD_Result http_answer(struct MHD_Connection *connection, unsigned status, const char *type,
                            const char *text, size_t len);

#endif
