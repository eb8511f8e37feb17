/* HTTP as Mooncake's Conductor has it, through modules/http.so (module.h: tarn_http_site):
 *
 *   http_site.c      the paths, and where they are
 *   http_register.c  /register and /unregister
 *   http_query.c     /query and /query_by_hash
 *   http_body.c      bodies and answers, in JSON, or in msgpack where the body is in it
 *
 * Bodies are objects of named members; those that nobody here knows are passed over, so that what
 * later versions say beside does no harm. */
#ifndef TARN_CONDUCTOR_HTTP_H
#define TARN_CONDUCTOR_HTTP_H

#include "base/json_object.h"
#include "conductor/conductor.h"
#include "route/route.h"

/* --- http_site.c --- */

/* From load(). */
tarn_status http_paths_register(const struct conductor_options *o, char *error, size_t cap);

/* --- http_body.c --- */

/* A text that a member holds, empty before; its row in a table of members, of up to max bytes. */
struct http_member {
    struct json_text is;
    char bytes[ROUTE_URL_MAX];
};
static inline struct json_text *http_member_into(struct http_member *m, size_t max) {
    m->is = (struct json_text){m->bytes, max, 0};
    return &m->is;
}
static inline struct span http_member_of(const struct http_member *m) {
    return span_of(m->bytes, m->is.len);
}
#define HTTP_NEEDED(name, member, max)                                                             \
    { name, JSON_TEXT, http_member_into(&(member), max), 0, false, false }
#define HTTP_MAYBE(name, member, max)                                                              \
    { name, JSON_TEXT, http_member_into(&(member), max), 0, true, false }
/* "default" is as nothing: everybody. */
static inline struct span http_tenant_of(const struct http_member *m) {
    struct span tenant = http_member_of(m);
    return span_eq(tenant, SPAN("default")) ? SPAN("") : tenant;
}

/* As json_object_read, of either format. JSON_WHOLES with a max of UINT32_MAX may be, in msgpack,
 * bytes: 4 of each number, little-endian. */
const char *http_body_read(const struct tarn_http_request *r, struct json_field *fields, size_t n,
                           char error[JSON_ERROR_SIZE]);

/* An answer, in the format of its request. */
struct http_answer {
    uint64_t request;
    bool msgpack, first;
    struct buf out;
};
void http_answer_begin(struct http_answer *a, const struct tarn_http_request *r);
/* Maps of so many members; each is a name and what follows it. */
void http_map(struct http_answer *a, size_t members);
void http_map_end(struct http_answer *a);
void http_name(struct http_answer *a, struct span name);
void http_number(struct http_answer *a, uint64_t n);
void http_text(struct http_answer *a, struct span text);
/* Lists of one text. */
void http_text_list(struct http_answer *a, struct span text);
void http_answer_send(struct http_answer *a, unsigned status);
/* {"error": text}, counted as a request that is wrong. */
void http_refuse(const struct tarn_http_request *r, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* --- http_register.c, http_query.c --- */

void http_run_register(const struct tarn_http_request *r);
void http_run_unregister(const struct tarn_http_request *r);
void http_run_query(const struct tarn_http_request *r);
void http_run_query_by_hash(const struct tarn_http_request *r);
void http_query_free(void);

#endif
