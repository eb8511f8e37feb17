/* A module with HTTP paths: it answers at once, later (WEB.ANSWER), in pieces, or never. Words:
 * "own open", "own token" and "own tls" give it a port of its own as well, "bind ADDRESS" where,
 * "second" another such port, "clash PATH" registers that one, "busy" makes it busy until
 * WEB.LETGO, "deadline MS" for its answers. */
#include <stdlib.h>
#include <string.h>

#include "base/figures.h"
#include "plain.h"

static const struct tarn_services *services;
static unsigned drops, closed; /* pieces that were dropped; answers that nobody waited for */
static bool busy;

/* --- answers --- */

static void answer(uint64_t id, unsigned status, const char *type, struct span body) {
    const struct tarn_http_answer a = {
        .size = sizeof(a), .status = status, .type = type, .body = body};
    if (services->http_answer(id, &a) != TARN_OK) closed++;
}

static void run_hello(const struct tarn_http_request *r) {
    char text[512];
    const char *name = r->argument(r, "name"), *word = r->header(r, "X-Word");
    (void)snprintf(text, sizeof(text), "{\"path\":\"%s\",\"name\":\"%s\",\"word\":\"%s\"}\n",
                   r->path, name != NULL ? name : "", word != NULL ? word : "");
    answer(r->id, 200, "application/json", span_str(text));
    answer(r->id, 500, NULL, SPAN("a second answer")); /* which nobody sees */
}

/* The body, in memory of its own. */
static void run_echo(const struct tarn_http_request *r) {
    struct buf copy = {malloc(r->body.len + 1), r->body.len, r->body.len + 1};
    memcpy(copy.data, r->body.data != NULL ? r->body.data : "", r->body.len);
    const struct tarn_http_answer a = {
        .size = sizeof(a), .status = r->method == TARN_HTTP_PUT ? 201 : 200, .taken = &copy};
    if (services->http_answer(r->id, &a) != TARN_OK || copy.data != NULL) closed++;
}

/* WEB.ANSWER does it, or nobody. */
static uint64_t waiting[64];
static size_t n_waiting;

static void run_later(const struct tarn_http_request *r) {
    if (n_waiting < 64) waiting[n_waiting++] = r->id;
}

static bool next_piece(void *arg, struct buf *out) {
    unsigned *left = arg;
    out->data = realloc(out->data, out->len + 10000);
    if (out->data == NULL) abort();
    memset(out->data + out->len, 'a' + (int)(*left % 26), 10000);
    out->cap = out->len += 10000;
    return --*left > 0;
}
static void drop_pieces(void *arg) {
    drops++;
    free(arg);
}

static void run_long(const struct tarn_http_request *r) {
    const char *n = r->argument(r, "pieces");
    unsigned *left = malloc(sizeof(*left));
    *left = n != NULL ? (unsigned)strtoul(n, NULL, 10) : 1;
    const struct tarn_http_answer a = {.size = sizeof(a),
                                       .status = 200,
                                       .type = "application/octet-stream",
                                       .next = next_piece,
                                       .drop = drop_pieces,
                                       .arg = left};
    if (services->http_answer(r->id, &a) != TARN_OK) closed++;
}

static void run_overload(const struct tarn_http_request *r) {
    const struct tarn_http_answer a = {
        .size = sizeof(a), .status = 429, .retry_after_s = 7, .body = SPAN("too much\n")};
    (void)services->http_answer(r->id, &a);
}

/* --- sites --- */

static const struct tarn_http_path paths[] = {
    {"/web/hello", TARN_HTTP_GET, 0, 0, run_hello},
    {"/web/open", TARN_HTTP_GET, TARN_HTTP_OPEN, 0, run_hello},
    {"/web/echo", TARN_HTTP_POST | TARN_HTTP_PUT, 0, 100000, run_echo},
    {"/web/query", TARN_HTTP_POST, TARN_HTTP_READS, 100000, run_echo},
    {"/web/later", TARN_HTTP_GET, 0, 0, run_later},
    {"/web/long", TARN_HTTP_GET, 0, 0, run_long},
    {"/web/overload", TARN_HTTP_GET, 0, 0, run_overload},
    {"/web/items/", TARN_HTTP_GET, 0, 0, run_hello},
    {"/web/items/", TARN_HTTP_DELETE, 0, 0, run_hello},
};
static struct tarn_http_site common = {.size = sizeof(common),
                                       .under_way_max = 4,
                                       .paths = sizeof(paths) / sizeof(*paths),
                                       .path = paths};

static const struct tarn_http_path own_paths[] = {
    {"/register", TARN_HTTP_POST, 0, 4096, run_echo},
    {"/query", TARN_HTTP_POST, TARN_HTTP_READS, 100000, run_echo},
    {"/later", TARN_HTTP_GET, 0, 0, run_later},
};
static struct tarn_http_site own, second;

static struct tarn_http_path clash_path;
static struct tarn_http_site clash;

/* --- commands --- */

static void cmd_answer(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    size_t n = n_waiting;
    n_waiting = 0;
    for (size_t i = 0; i < n; i++) answer(waiting[i], 200, NULL, argv[1]);
    services->reply_int(c, (int64_t)n);
}
static void cmd_letgo(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    busy = false;
    services->reply_int(c, 0);
}

static const struct tarn_command commands[] = {
    {"web.answer", 2, 0, "Answers all that wait.", "text", cmd_answer},
    {"web.letgo", 1, 0, "Is busy no more.", "", cmd_letgo},
};

/* --- the module --- */

/* NULL: everything was refused as it should be. */
static const char *try_strange(char *error, size_t cap) {
    static const struct tarn_http_path bad[] = {
        {"none", TARN_HTTP_GET, 0, 0, run_hello},
        {"/a b", TARN_HTTP_GET, 0, 0, run_hello},
        {"/a//b", TARN_HTTP_GET, 0, 0, run_hello},
        {"/none", 0, 0, 0, run_hello},
        {"/none", TARN_HTTP_GET, 0, 0, NULL},
        {"/metrics", TARN_HTTP_POST, 0, 0, run_hello},
        {"/api/web", TARN_HTTP_GET, 0, 0, run_hello},
        {"/", TARN_HTTP_GET, 0, 0, run_hello},
        {"/none", TARN_HTTP_GET, 0, TARN_HTTP_BODY_MAX + 1, run_hello},
        {"/web/echo", TARN_HTTP_PUT, 0, 0, run_hello},
    };
    static struct tarn_http_site site;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        site = (struct tarn_http_site){.size = sizeof(site), .paths = 1, .path = &bad[i]};
        if (services->http_register(&site, error, cap) == TARN_OK) return bad[i].path;
    }
    return NULL;
}

static tarn_status load(const struct tarn_services *given, size_t argc, const char *const *argv,
                        char *error, size_t error_cap) {
    services = given;
    n_waiting = drops = closed = 0;
    busy = false;
    common.deadline_ms = 200000; /* tests may be slow */
    own = (struct tarn_http_site){.size = sizeof(own),
                                  .paths = sizeof(own_paths) / sizeof(*own_paths),
                                  .path = own_paths,
                                  .connections = 8};
    clash = second = (struct tarn_http_site){.size = 0};
    for (size_t i = 0; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "busy") == 0) busy = true;
        if (strcmp(argv[i], "second") == 0) second = own;
        if (strcmp(argv[i], "own") == 0 && more) {
            if (own.bind == NULL) own.bind = "127.0.0.1";
            own.open = strcmp(argv[i + 1], "token") != 0;
            own.tls = strcmp(argv[i + 1], "tls") == 0;
        }
        if (strcmp(argv[i], "deadline") == 0 && more)
            common.deadline_ms = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "bind") == 0 && more) own.bind = argv[i + 1];
        if (strcmp(argv[i], "clash") == 0 && more) {
            clash_path = (struct tarn_http_path){argv[i + 1], TARN_HTTP_GET, 0, 0, run_hello};
            clash = (struct tarn_http_site){.size = sizeof(clash), .paths = 1, .path = &clash_path};
        }
    }
    own.deadline_ms = common.deadline_ms;
    tarn_status status = services->http_register(&common, error, error_cap);
    if (status == TARN_OK && own.bind != NULL)
        status = services->http_register(&own, error, error_cap);
    if (status == TARN_OK && second.size != 0)
        status = services->http_register(&second, error, error_cap);
    if (status == TARN_OK && clash.size != 0)
        status = services->http_register(&clash, error, error_cap);
    for (size_t i = 0; status == TARN_OK && i < sizeof(commands) / sizeof(*commands); i++)
        status = services->command_register(&commands[i]);
    if (status != TARN_OK) return status;
    const char *taken = try_strange(error, error_cap);
    if (taken == NULL) return TARN_OK;
    snprintf(error, error_cap, "%s was not refused", taken);
    return TARN_EINVAL;
}

static tarn_status unload(char *error, size_t error_cap) {
    if (!busy) return TARN_OK;
    snprintf(error, error_cap, "the web is busy");
    return TARN_EBUSY;
}

static void info(void (*field)(void *arg, const char *name, const char *value), void *arg) {
    char text[32];
    snprintf(text, sizeof(text), "%u", drops);
    field(arg, "drops", text);
    snprintf(text, sizeof(text), "%u", closed);
    field(arg, "closed", text);
    snprintf(text, sizeof(text), "%zu", n_waiting);
    field(arg, "waiting", text);
}

/* 100 numbers, ten in each call; with a name that only text can be; "of/N" has N alone. */
static enum tarn_rows rows(const char *table, uint64_t *from, struct figure_walk *walk) {
    unsigned one = 100;
    char number[24];
    if (strcmp(table, "numbers") != 0 && sscanf(table, "of/%u", &one) != 1)
        return TARN_ROWS_NO_TABLE;
    uint64_t n = one < 100 ? one : *from, end = one < 100 ? one + 1 : *from + 10;
    for (; n < end; n++) {
        snprintf(number, sizeof(number), "%u", (unsigned)n);
        figures_group(walk, "number", "number", number);
        FIGURE(walk, TEXT, name, "its name", "\"<b>\\\xff\n");
        FIGURE(walk, GAUGE, square, "of it", n * n);
        figures_group_end(walk);
    }
    *from = end;
    return end < 100 && one >= 100 ? TARN_ROWS_MORE : TARN_ROWS_OVER;
}

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {.size = sizeof(struct tarn_module),
                                           .version = TARN_MODULE_VERSION,
                                           .name = "web",
                                           .module_version = "1.2.3",
                                           .summary = "for tests",
                                           .load = load,
                                           .unload = unload,
                                           .info = info,
                                           .rows = rows};
