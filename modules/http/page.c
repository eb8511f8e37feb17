/* The page, at /: one file that Makefile joins from page/ (page/join.sh). It asks for /api/info and
 * /api/history of the same origin, with the token if there is one, and for nothing else: its
 * Content-Security-Policy allows nothing else, and no script but its own. */
#include <string.h>

#include "http/http.h"
#ifdef PAGE_TEXT
#include PAGE_TEXT
#else /* lint reads this file where nothing was built */
#define PAGE_STYLE  ""
#define PAGE_SCRIPT ""
#define PAGE_HASH   ""
static const unsigned char page_text[] = {0};
#endif

static const char policy[] = "default-src 'none'; connect-src 'self'; style-src 'sha256-" PAGE_STYLE
                             "'; script-src 'sha256-" PAGE_SCRIPT
                             "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
static const char etag[] = "\"" PAGE_HASH "\"";

enum MHD_Result http_page(struct MHD_Connection *connection, const char *url, void **own) {
    (void)own; /* answered at once */
    const char *has =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_IF_NONE_MATCH);
    bool same = has != NULL && strcmp(has, etag) == 0;
    struct MHD_Response *r = MHD_create_response_from_buffer(
        same ? 0 : sizeof(page_text), (void *)(uintptr_t)page_text, MHD_RESPMEM_PERSISTENT);
    if (r == NULL) return MHD_NO;
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, "text/html; charset=utf-8");
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    MHD_add_response_header(r, MHD_HTTP_HEADER_ETAG, etag);
    MHD_add_response_header(r, "Content-Security-Policy", policy);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    return http_response_send(connection, same ? MHD_HTTP_NOT_MODIFIED : MHD_HTTP_OK, r);
}
