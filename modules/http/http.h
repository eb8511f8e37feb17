/* modules/http.so: HTTP for probes and Prometheus, on the loop of tarn-server or tarn-node.
 *
 *   module.c   words, load, unload, INFO modules
 *   daemon.c   GNU libmicrohttpd, its own epoll descriptor in the loop
 *   port.c     listening ports: limits on connections and their time, TLS
 *   server.c   what is asked for: paths, methods, the token
 *   site.c     paths of other modules; exchange.c a request to one of them (site.h)
 *   gather.c   /metrics and /api/info: all figures, in slices of the loop
 *   api_rows.c /api/nodes and the like: lists of the program and of modules, likewise
 *   page.c     the page at /, which page/ is joined to
 *   history.c  the last minutes and the last day; api_history.c samples it and answers with it */
#ifndef TARN_HTTP_HTTP_H
#define TARN_HTTP_HTTP_H

#include <microhttpd.h>
#include "base/buf.h"
#include "module.h"

#define HTTP_BINDS_MAX 8u
#define HTTP_PIECE     16384u /* of an answer that is made as it is sent */

struct http_options {
    const char *bind[HTTP_BINDS_MAX]; /* owned by the loader, as long as the module is loaded */
    unsigned n_bind;
    uint16_t port;
    unsigned connections;
    unsigned timeout_s; /* of a request, with its answer */
    bool tls;
    char token[256]; /* "": none */
};

extern const struct tarn_services *http_services;
extern struct http_options http_options;
extern struct http_figures {
    uint64_t requests, refused, slow, late, scrapes, scrape_turns;
} http_figures;

/* --- options.c --- */

/* false: error names the word and says what to do. */
tarn_status http_options_parse(size_t argc, const char *const *argv, char *error, size_t cap);

/* --- a request under way --- */

/* What came of it with a call of libmicrohttpd. */
struct http_part {
    const char *url, *method, *body;
    size_t *body_size; /* 0: it is whole. What was taken of it is subtracted */
};
/* What waits for the rest of a request, or for its answer: the first member of whatever *own is. */
struct http_task {
    /* More of the request, or it is whole, or its connection was resumed. */
    enum MHD_Result (*go_on)(struct MHD_Connection *connection, void **own,
                             const struct http_part *part);
    void (*over)(struct http_task *task); /* answered or not; NULL: nothing to do */
};

/* --- daemon.c --- */

tarn_status http_server_start(char *error, size_t cap);
void http_server_stop(void);
const struct http_port *http_server_port(void);
/* At the next turn of the loop there is something to do: a connection was resumed. */
void http_server_wake(void);
/* A connection that came. false: refused, and closed. */
bool http_server_take(int fd, const struct sockaddr *peer, socklen_t len);
struct http_connection *http_connection_of(struct MHD_Connection *connection);

/* --- port.c --- */

struct http_port_plan {
    const char *const *bind; /* n_bind <= HTTP_BINDS_MAX */
    unsigned n_bind, connections;
    uint16_t port; /* 0: any, the same for all */
    bool tls;
};
struct http_port;
struct http_connection;

tarn_status http_port_open(const struct http_port_plan *plan, struct http_port **port_p,
                           char *error, size_t cap);
/* Its connections are cut off. */
void http_port_close(struct http_port **port_p);
uint16_t http_port_number(const struct http_port *port);
/* Those that there are, with what TLS has to say of them. */
unsigned http_port_connections(const struct http_port *port, struct tarn_tls_figures *tls_p);
/* The one of this descriptor, which libmicrohttpd has now. */
struct http_connection *http_connection_came(int fd);
void http_connection_over(struct http_connection *k);
/* NULL: it was closed. */
const struct http_port *http_connection_port(const struct http_connection *k);
/* Its answer is awaited of somebody else, and it is not cut off for that: gone is called once, when
 * the peer does not want it any more. NULL: no longer. */
void http_connection_waits(struct http_connection *k, void (*gone)(void *arg), void *arg);
/* Its request is over, and the time of the next one counts from now. */
void http_connection_rests(struct http_connection *k);
tarn_status http_ports_start(void);
void http_ports_stop(void);

/* --- server.c --- */

/* A request of which the head has come: it is answered, or *own is an http_task from then on. */
enum MHD_Result http_request_head(struct MHD_Connection *connection, const char *url,
                                  const char *method, void **own);

/* --- gather.c --- */

/* The connection is suspended until the page is there; *own is an http_task from then on. */
enum MHD_Result http_metrics(struct MHD_Connection *connection, const char *url, void **own);
enum MHD_Result http_api_info(struct MHD_Connection *connection, const char *url, void **own);
/* Nobody is answered any more. */
void http_gather_stop(void);

/* --- api_rows.c --- */

/* Lists of the program and of modules (module.h: rows_next, rows): /api/nodes, /api/NAME/TABLE. */
enum MHD_Result http_rows(struct MHD_Connection *connection, const char *url, void **own);
void http_rows_stop(void);

/* --- page.c --- */

enum MHD_Result http_page(struct MHD_Connection *connection, const char *url, void **own);

/* --- api_history.c --- */

void http_history_start(void);
void http_history_stop(void); /* after the server: answers under way read from it */
enum MHD_Result http_history(struct MHD_Connection *connection, const char *url, void **own);

/* --- answers: server.c --- */

/* Headers that every answer has. type NULL: plain text; retry_after_s 0: none of that. */
void http_response_dress(struct MHD_Response *r, const char *type, unsigned retry_after_s);
/* Queues it, and takes it. */
enum MHD_Result http_response_send(struct MHD_Connection *connection, unsigned status,
                                   struct MHD_Response *r);
/* A sentence, with what is wrong or missing. */
enum MHD_Result http_refuse(struct MHD_Connection *connection, unsigned status, const char *text,
                            unsigned retry_after_s);
/* Queues a whole text; type: "text/plain; charset=utf-8". */
enum MHD_Result http_answer(struct MHD_Connection *connection, unsigned status, const char *type,
                            const char *text, size_t len);
/* The same, of bytes that it frees. */
enum MHD_Result http_answer_owned(struct MHD_Connection *connection, const char *type,
                                  struct buf text);
/* 400, {"error":"text"}. */
enum MHD_Result http_answer_wrong(struct MHD_Connection *connection, const char *text);
/* 404, with all paths that there are. */
enum MHD_Result http_answer_missing(struct MHD_Connection *connection);

#endif
