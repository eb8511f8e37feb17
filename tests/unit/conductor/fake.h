/* A server that has nothing but what modules/conductor asks of it: commands are called by their
 * words, replies are text, what is kept is a list, and the timer goes when it is told to. Some
 * descriptors can be watched, where `watches` was set before; fake_turn looks at them. The module's
 * own objects are linked; nothing is loaded from a file. The pool has so many leading blocks of any
 * prompt, under names that begin with pool_name. */
#ifndef TARN_TESTS_CONDUCTOR_FAKE_H
#define TARN_TESTS_CONDUCTOR_FAKE_H

#include <poll.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/buf.h"
#include "conductor/conductor.h"
#include "module.h"

extern const struct tarn_module tarn_module_v1;

#define FAKE_COMMANDS_MAX 32u
#define FAKE_WORDS_MAX    64u
#define FAKE_WATCHES_MAX  4u
#define FAKE_SITES_MAX    4u

struct tarn_call_context {
    size_t missing; /* elements of the reply */
};

struct fake_entry {
    char *name, *value;
    size_t name_len, value_len;
};

static struct fake {
    const struct tarn_command_declaration *command[FAKE_COMMANDS_MAX];
    size_t commands;
    struct buf reply;
    struct fake_entry *entry;
    size_t entries, room;
    uint64_t kept_max;
    bool leads, writes;
    tarn_status refuse; /* what changes are answered; TARN_OK: they are done */
    void (*tick)(void *arg);
    void *tick_arg;
    const char *pool_name; /* NULL: the pool is empty */
    size_t pool_blocks;
    unsigned pool_asked;
    size_t pool_hashes; /* of the last question */
    const struct tarn_http_site *site[FAKE_SITES_MAX];
    unsigned sites;
    const char *content_type; /* of the next request; NULL: it has none */
    unsigned answers;         /* to it */
    struct buf answer;        /* its status, a blank, what was answered */
    bool watches;
    struct fake_watch {
        int fd;
        void (*ready)(void *arg, unsigned events); /* NULL: it is free */
        void *arg;
    } watch[FAKE_WATCHES_MAX];
} fake;

/* --- replies, as one line: words are bare, an array begins with *N, a map with %N --- */

static void fake_element(struct tarn_call_context *c, size_t more) {
    TARN_ASSERT(c->missing > 0);
    c->missing += more - 1;
    if (fake.reply.len > 0) buf_append_char(&fake.reply, ' ');
}
static void fake_reply_error(struct tarn_call_context *c, const char *text) {
    fake_element(c, 0);
    TARN_ASSERT(strpbrk(text, "\r\n") == NULL && text[0] != '\0');
    buf_printf(&fake.reply, "-%s", text);
}
static void fake_reply_text(struct tarn_call_context *c, struct span text) {
    fake_element(c, 0);
    buf_append(&fake.reply, text.data, text.len);
}
static void fake_reply_simple(struct tarn_call_context *c, const char *text) {
    fake_reply_text(c, span_str(text));
}
static void fake_reply_int(struct tarn_call_context *c, int64_t value) {
    fake_element(c, 0);
    buf_printf(&fake.reply, "%lld", (long long)value);
}
static void fake_reply_array(struct tarn_call_context *c, size_t elements) {
    fake_element(c, elements);
    buf_printf(&fake.reply, "*%zu", elements);
}
static void fake_reply_map(struct tarn_call_context *c, size_t pairs) {
    fake_element(c, 2 * pairs);
    buf_printf(&fake.reply, "%%%zu", pairs);
}
static void fake_reply_null(struct tarn_call_context *c) {
    fake_reply_text(c, SPAN("nil"));
}
static void fake_reply_double(struct tarn_call_context *c, double value) {
    fake_element(c, 0);
    TARN_ASSERT(value - value == 0); /* finite */
    buf_printf(&fake.reply, "%.3f", value);
}
static void fake_reply_bool(struct tarn_call_context *c, bool value) {
    fake_reply_int(c, value);
}

/* --- what is kept --- */

static struct fake_entry *fake_find(struct span name) {
    for (size_t i = 0; i < fake.entries; i++)
        if (span_eq(span_of(fake.entry[i].name, fake.entry[i].name_len), name))
            return &fake.entry[i];
    return NULL;
}
static uint64_t fake_bytes(struct tarn_durable *d, uint64_t *max_p) {
    uint64_t n = 0;
    (void)d;
    *max_p = fake.kept_max;
    for (size_t i = 0; i < fake.entries; i++)
        n += fake.entry[i].name_len + fake.entry[i].value_len + 96;
    return n;
}
static void fake_forget(struct fake_entry *e) {
    free(e->name);
    free(e->value);
    *e = fake.entry[--fake.entries];
}
static void fake_keep(struct span name, struct span value) {
    struct fake_entry *e = fake_find(name);
    if (e != NULL) fake_forget(e);
    ARRAY_GROW(fake.entry, fake.entries, fake.room);
    fake.entry[fake.entries++] =
        (struct fake_entry){span_dup(name), span_dup(value), name.len, value.len};
}
static tarn_status fake_may_write(void) {
    if (!fake.leads) return TARN_EREADONLY;
    return fake.writes ? fake.refuse : TARN_EPERM;
}
static tarn_status fake_open(struct tarn_durable **durable_p) {
    *durable_p = (struct tarn_durable *)(void *)&fake;
    return TARN_OK;
}
static tarn_status fake_set(struct tarn_durable *d, struct span name, struct span value) {
    uint64_t max;
    tarn_status status = fake_may_write();
    if (status != TARN_OK) return status;
    TARN_ASSERT(name.len >= 1 && name.len <= 1024 && value.len <= 65536);
    if (fake_bytes(d, &max) + name.len + value.len + 96 > max) return TARN_ELIMIT;
    fake_keep(name, value);
    return TARN_OK;
}
static tarn_status fake_delete(struct tarn_durable *d, struct span name) {
    struct fake_entry *e = fake_find(name);
    tarn_status status = fake_may_write();
    (void)d;
    if (status != TARN_OK) return status;
    if (e == NULL) return TARN_ENOTFOUND;
    fake_forget(e);
    return TARN_OK;
}
static tarn_status fake_get(struct tarn_durable *d, struct span name, struct span *value_p) {
    const struct fake_entry *e = fake_find(name);
    (void)d;
    if (e == NULL) return TARN_ENOTFOUND;
    *value_p = span_of(e->value, e->value_len);
    return TARN_OK;
}
static void fake_each(struct tarn_durable *d,
                      bool (*each)(void *arg, struct span name, struct span value), void *arg) {
    size_t n = fake.entries;
    (void)d;
    for (size_t i = 0; i < n; i++) {
        const struct fake_entry *e = &fake.entry[i];
        if (!each(arg, span_of(e->name, e->name_len), span_of(e->value, e->value_len))) return;
        TARN_ASSERT(fake.entries == n); /* it changes nothing */
    }
}
static bool fake_leads(void) {
    return fake.leads;
}
static const char *fake_write_refusal(void) {
    return fake.leads ? NULL : "READONLY this server is a replica";
}

/* --- the pool: all of it in memory on machine h1, in rack r1, a byte a token --- */

static tarn_status fake_pool(const struct tarn_pool_question *q, uint64_t *tokens_p,
                             struct tarn_pool_run *runs, size_t *n_runs_p, const char **why_p) {
    size_t n = 0;
    *why_p = "ALIGN must be a multiple of unit";
    if (q->align % q->groups[0].unit != 0) return TARN_EINVAL;
    fake.pool_asked += q->n_hashes > 0;
    fake.pool_hashes = q->n_hashes;
    if (fake.pool_name != NULL && span_starts(q->names[0], span_str(fake.pool_name)))
        n = fake.pool_blocks < q->n_hashes ? fake.pool_blocks : q->n_hashes;
    if (n > 0) q->make(q->arg, n);
    for (size_t i = 0; i < n; i++) TARN_ASSERT(q->hashes[i].len == 66);
    *tokens_p = n * q->unit;
    *n_runs_p = n > 0;
    runs[0] = (struct tarn_pool_run){
        .tokens = (uint32_t)*tokens_p, .machine = "h1", .rack = "r1", .bytes = *tokens_p};
    return TARN_OK;
}

/* --- the rest --- */

static tarn_status fake_declare(const struct tarn_command_declaration *command) {
    TARN_ASSERT(fake.commands < FAKE_COMMANDS_MAX);
    fake.command[fake.commands++] = command;
    return TARN_OK;
}
static struct tarn_timer *fake_timer(void (*fn)(void *arg), void *arg) {
    fake.tick = fn;
    fake.tick_arg = arg;
    return (struct tarn_timer *)(void *)&fake;
}
static void fake_timer_start(struct tarn_timer *timer, uint64_t ms) {
    (void)timer, (void)ms;
}
static void fake_timer_destroy(struct tarn_timer **timer_p) {
    *timer_p = NULL;
    fake.tick = NULL;
}
static tarn_status fake_watch(int fd, void (*fn)(void *arg, unsigned events), void *arg,
                              struct tarn_watch **watch_p) {
    struct fake_watch *w = fake.watch;
    while (w->ready != NULL) TARN_ASSERT(++w < fake.watch + FAKE_WATCHES_MAX);
    *w = (struct fake_watch){fd, fn, arg};
    *watch_p = (struct tarn_watch *)(void *)w;
    return TARN_OK;
}
static tarn_status fake_watch_set(struct tarn_watch *watch, unsigned events) {
    TARN_ASSERT(events == TARN_WATCH_READ);
    return TARN_OK;
}
static void fake_watch_destroy(struct tarn_watch **watch_p) {
    ((struct fake_watch *)(void *)*watch_p)->ready = NULL;
    *watch_p = NULL;
}
static void fake_log(enum tarn_log_level level, const char *text) {
    (void)level, (void)text;
}

/* --- HTTP --- */

static tarn_status fake_http_register(const struct tarn_http_site *site, char *error,
                                      size_t error_cap) {
    TARN_ASSERT(fake.sites < FAKE_SITES_MAX);
    fake.site[fake.sites++] = site;
    return TARN_OK;
}
static tarn_status fake_http_answer(uint64_t request, const struct tarn_http_answer *answer) {
    TARN_ASSERT(request == 1 && fake.answers++ == 0 && answer->taken != NULL);
    buf_printf(&fake.answer, "%u ", answer->status);
    buf_append(&fake.answer, answer->taken->data, answer->taken->len);
    buf_free(answer->taken);
    return TARN_OK;
}
static const char *fake_http_header(const struct tarn_http_request *r, const char *name) {
    return strcmp(name, "Content-Type") == 0 ? fake.content_type : NULL;
}

static struct tarn_services fake_services = {.size = sizeof(fake_services),
                                             .version = TARN_MODULE_VERSION,
                                             .program = TARN_PROGRAM_SERVER,
                                             .log = fake_log,
                                             .reply_error = fake_reply_error,
                                             .reply_text = fake_reply_text,
                                             .reply_int = fake_reply_int,
                                             .reply_array = fake_reply_array,
                                             .reply_map = fake_reply_map,
                                             .reply_simple = fake_reply_simple,
                                             .reply_null = fake_reply_null,
                                             .reply_double = fake_reply_double,
                                             .reply_bool = fake_reply_bool,
                                             .command_declare = fake_declare,
                                             .timer_create = fake_timer,
                                             .timer_start = fake_timer_start,
                                             .timer_destroy = fake_timer_destroy,
                                             .watch_set = fake_watch_set,
                                             .watch_destroy = fake_watch_destroy,
                                             .durable_open = fake_open,
                                             .durable_set = fake_set,
                                             .durable_delete = fake_delete,
                                             .durable_get = fake_get,
                                             .durable_each = fake_each,
                                             .durable_bytes = fake_bytes,
                                             .http_register = fake_http_register,
                                             .http_answer = fake_http_answer,
                                             .leads = fake_leads,
                                             .pool_prefix = fake_pool,
                                             .write_refusal = fake_write_refusal};

/* With the words behind the file's name, ended by NULL; what is kept stays from the last time. */
static inline void fake_load(const char *const *words) {
    char error[512];
    size_t n = 0;
    while (words != NULL && words[n] != NULL) n++;
    fake.commands = 0;
    fake.sites = 0;
    fake.leads = true;
    fake.refuse = TARN_OK;
    fake_services.watch_create = fake.watches ? fake_watch : NULL;
    if (fake.kept_max == 0) fake.kept_max = 16u << 20;
    tarn_status status = tarn_module_v1.load(&fake_services, n, words, error, sizeof(error));
    TARN_ASSERT(status == TARN_OK);
}
static inline void fake_unload(void) {
    char error[512];
    fake.writes = true;
    TARN_ASSERT(tarn_module_v1.unload(error, sizeof(error)) == TARN_OK);
    fake.writes = false;
    buf_free(&fake.reply);
    buf_free(&fake.answer);
}
static inline void fake_kept_clear(void) {
    while (fake.entries > 0) fake_forget(&fake.entry[0]);
    free(fake.entry);
    fake.entry = NULL;
    fake.room = 0;
}

/* A small one, with what is kept; at the end it makes sense, and nothing is kept any more. */
static inline void fake_begin(void) {
    static const char *const small[] = {"ranks", "8", "requests", "16", "index-size", "1mb", NULL};
    fake_load(small);
}
static inline void fake_end(void) {
    route_check(conductor_route);
    fake_unload();
    fake_kept_clear();
}

/* The reply, until the next call; NULL: the server would not have called it. */
static inline const char *fake_call_words(const struct span *word, size_t n) {
    const struct tarn_command_declaration *its = NULL;
    struct tarn_call_context c = {1};
    for (size_t i = 0; i < fake.commands; i++)
        if (span_case_eq(word[0], fake.command[i]->name)) its = fake.command[i];
    if (its == NULL || (its->arity < 0 ? n < (size_t)-its->arity : n != (size_t)its->arity))
        return NULL;
    if (!fake.leads && its->flags & TARN_COMMAND_WRITE) return "-READONLY";
    buf_clear(&fake.reply);
    fake.writes = (its->flags & TARN_COMMAND_WRITE) != 0;
    its->run(&c, word, n);
    fake.writes = false;
    TARN_ASSERT(c.missing == 0);
    buf_append_char(&fake.reply, '\0');
    return fake.reply.data;
}
/* Words between blanks. */
static inline const char *fake_call(const char *line) {
    struct span word[FAKE_WORDS_MAX];
    size_t n = 0;
    while (*line != '\0') {
        size_t len = strcspn(line, " ");
        TARN_ASSERT(n < FAKE_WORDS_MAX);
        word[n++] = span_of(line, len);
        line += len + (line[len] == ' ');
    }
    return fake_call_words(word, n);
}
/* A POST; its answer, until the next one. NULL: no site has that path. */
static inline const struct buf *fake_post(const char *path, struct span body) {
    const struct tarn_http_request r = {
        .size = sizeof(r), .id = 1, .path = path, .body = body, .header = fake_http_header};
    for (unsigned i = 0; i < fake.sites; i++)
        for (unsigned k = 0; k < fake.site[i]->paths; k++) {
            const struct tarn_http_path *p = &fake.site[i]->path[k];
            if (strcmp(p->path, path) != 0 || !(p->methods & TARN_HTTP_POST)) continue;
            if (body.len > p->body_max) return NULL;
            buf_clear(&fake.answer);
            fake.answers = 0;
            fake.writes = true;
            p->run(&r);
            fake.writes = false;
            TARN_ASSERT(fake.answers == 1);
            return &fake.answer;
        }
    return NULL;
}
static inline void fake_tick(void) {
    fake.writes = true;
    fake.tick(fake.tick_arg);
    fake.writes = false;
}
/* The watched descriptors that are ready. false: none is. */
static inline bool fake_turn(void) {
    bool any = false;
    for (struct fake_watch *w = fake.watch; w < fake.watch + FAKE_WATCHES_MAX; w++) {
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        if (w->ready == NULL || poll(&p, 1, 0) != 1) continue;
        w->ready(w->arg, TARN_WATCH_READ);
        any = true;
    }
    return any;
}

/* For tests that include test.h. */
#define SAYS(line, reply) CHECK_STR(fake_call(line), reply)
#define HAS(line, part)   CHECK(strstr(fake_call(line), part) != NULL)

#endif
