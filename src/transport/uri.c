#include "transport/uri.h"

#include <string.h>

static bool parse_port(struct span s, uint16_t *port_p) {
    uint64_t port;
    if (!span_to_u64(s, &port) || port == 0 || port > 65535) return false;
    *port_p = (uint16_t)port;
    return true;
}

bool uri_parse(struct span s, struct uri *u) {
    *u = (struct uri){.port = 0};
    if (s.len == 0 || s.len > URI_MAX || s.data == NULL) return false;
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] < '!' || s.data[i] > '~') return false;
    size_t scheme = 0;
    while (scheme < s.len && s.data[scheme] >= 'a' && s.data[scheme] <= 'z') scheme++;
    if (scheme == 0 || scheme > 15 || s.len < scheme + 4 || memcmp(s.data + scheme, "://", 3) != 0)
        return false;
    u->scheme = span_of(s.data, scheme);
    struct span rest = span_of(s.data + scheme + 3, s.len - scheme - 3);
    if (rest.data[0] == '/') return rest.len > 1;
    size_t colon = rest.len;
    while (colon > 0 && rest.data[colon - 1] != ':') colon--;
    if (colon == 0) return false;
    u->host = span_of(rest.data, colon - 1);
    return parse_port(span_of(rest.data + colon, rest.len - colon), &u->port);
}

bool uri_is_wildcard(const struct uri *u) {
    struct span host = u->host;
    if (u->port == 0) return false;
    return host.len == 0 || span_eq(host, SPAN("*")) || span_eq(host, SPAN("0.0.0.0")) ||
           span_eq(host, SPAN("[::]")) || span_eq(host, SPAN("::"));
}

char *uri_make(struct span scheme, const char *host, unsigned port) {
    struct buf b = {NULL, 0, 0};
    int mark = host[0] == '-';
    bool bare_v6 = strchr(host, ':') != NULL && host[mark] != '[';
    buf_printf(&b, bare_v6 ? "%.*s://%.*s[%s]:%u" : "%.*s://%.*s%s:%u", (int)scheme.len,
               scheme.data, mark, host, host + mark, port);
    buf_append_char(&b, '\0');
    return b.data;
}

char *uri_of_path(const char *scheme, const char *path) {
    struct buf b = {NULL, 0, 0};
    buf_printf(&b, "%s://%s", scheme, path);
    buf_append_char(&b, '\0');
    return b.data;
}

char *uri_resolve(struct span s, const struct uri *u, const char *host) {
    return uri_is_wildcard(u) ? uri_make(u->scheme, host, u->port) : span_dup(s);
}
