/* Where the paths are. */
#include "base/assert.h"
#include "conductor/conductor.h"
#include "conductor/http.h"

#define BODY_MAX    65536u
#define CONNECTIONS 256u

static const struct tarn_http_path paths[] = {
    {"/register", TARN_HTTP_POST, 0, BODY_MAX, http_run_register},
    {"/unregister", TARN_HTTP_POST, 0, BODY_MAX, http_run_unregister},
    {"/query", TARN_HTTP_POST, TARN_HTTP_READS, TARN_HTTP_BODY_MAX, http_run_query},
    {"/query_by_hash", TARN_HTTP_POST, TARN_HTTP_READS, TARN_HTTP_BODY_MAX,
     http_run_query_by_hash}};

/* On http.so's own port, wherever that is loaded; and on one of their own, which is asked for. */
static const struct tarn_http_site common = {
    .size = sizeof(common), .paths = ARRAY_LEN(paths), .path = paths};
static struct tarn_http_site own;

tarn_status http_paths_register(const struct conductor_options *o, char *error, size_t cap) {
    own = (struct tarn_http_site){.size = sizeof(own),
                                  .paths = ARRAY_LEN(paths),
                                  .path = paths,
                                  .bind = o->http_bind != NULL ? o->http_bind : "127.0.0.1",
                                  .port = (uint16_t)o->http_port,
                                  .open = o->http_open,
                                  .connections = CONNECTIONS};
    tarn_status status = conductor_services->http_register(&common, error, cap);
    if (status == TARN_OK && o->http_port != CONDUCTOR_NO_PORT)
        status = conductor_services->http_register(&own, error, cap);
    return status;
}
