/* REMOVEMATCH GLOB|REGEX pattern [COUNT n]: one walk over the keyspace that removes what matches.
 * Objects that were put while it runs may stay. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "front/families.h"

#include <inttypes.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/glob.h"
#include "front/each.h"
#include "front/notify.h"
#include "wire/options.h"

/* A regular expression may take exponential time: one match gives up after so many steps (well
 * below a millisecond), and with it the command. */
enum { MATCH_LIMIT = 10000, HEAP_LIMIT_KIB = 256 };

struct match {
    struct each each;
    struct glob *glob; /* or */
    pcre2_code *code;
    pcre2_match_context *context;
    pcre2_match_data *data;
    bool too_hard;
    uint64_t cursor, limit, removed; /* limit 0: none */
    uint64_t work;                   /* of this step */
    struct buf keys;                 /* matching keys of one bucket: length (u32) and bytes */
};

static bool regex_match(struct match *m, struct span key) {
    uint64_t begin = clock_mono_ns();
    int rc = pcre2_match(m->code, (PCRE2_SPTR)key.data, key.len, 0, 0, m->data, m->context);
    m->work += (clock_mono_ns() - begin) / 1000; /* PCRE2 does not tell its steps */
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT)
        m->too_hard = true;
    return rc >= 0;
}

static void match_see(void *arg, struct object *o) {
    struct match *m = arg;
    struct span key = store_object_key(o);
    size_t steps = 0;
    m->work++;
    if (m->too_hard) return;
    bool matched = m->glob ? glob_match(m->glob, key, &steps) : regex_match(m, key);
    m->work += steps / 256;
    if (!matched) return;
    uint32_t len = (uint32_t)key.len;
    buf_append(&m->keys, &len, sizeof(len));
    buf_append(&m->keys, key.data, key.len);
}

/* Not from inside the walk: it must not see its table change. */
static void remove_seen(struct match *m) {
    for (size_t at = 0; at < m->keys.len && (m->limit == 0 || m->removed < m->limit);) {
        uint32_t len;
        memcpy(&len, m->keys.data + at, sizeof(len));
        struct span key = span_of(m->keys.data + at + sizeof(len), len);
        if (store_remove(books, key)) {
            m->removed++;
            notify_key(NOTIFY_GENERIC, "del", key);
        }
        at += sizeof(len) + len;
        m->work++;
    }
    buf_clear(&m->keys);
}

static enum each_next match_one(struct client *c, struct each *each, unsigned *budget) {
    struct match *m = CONTAINER_OF(each, struct match, each);
    m->work = 0;
    /* what is away must not come back */
    m->cursor = store_scan_all(books, m->cursor, match_see, m);
    remove_seen(m);
    spend(budget, m->work);
    bool over = m->cursor == 0 || m->too_hard || (m->limit > 0 && m->removed >= m->limit);
    return over ? EACH_OVER : EACH_ON;
}

static void match_end(struct client *c, struct each *each) {
    struct match *m = CONTAINER_OF(each, struct match, each);
    if (m->too_hard)
        reply_error(c, "REGEX takes too many steps on a key; %" PRIu64 " were removed before",
                    m->removed);
    else
        reply_int(c, (int64_t)m->removed);
}

static void match_close(struct client *c, struct job *job) {
    struct match *m = CONTAINER_OF(job, struct match, each.job);
    glob_destroy(&m->glob);
    if (m->data) pcre2_match_data_free(m->data);
    if (m->context) pcre2_match_context_free(m->context);
    if (m->code) pcre2_code_free(m->code);
    buf_free(&m->keys);
}

/* No JIT: its machine code counts no steps. */
static bool regex_compile(struct client *c, struct match *m, struct span pattern) {
    int code;
    PCRE2_SIZE offset;
    m->code =
        pcre2_compile((PCRE2_SPTR)pattern.data, pattern.len, PCRE2_NEVER_UTF, &code, &offset, NULL);
    if (!m->code) {
        char text[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof(text));
        reply_error(c, "REGEX is not valid at byte %zu: %s", (size_t)offset, text);
        return false;
    }
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    TARN_ASSERT(m->data && m->context);
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    pcre2_set_depth_limit(m->context, MATCH_LIMIT);
    pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    return true;
}

void cmd_removematch(struct client *c) {
    struct wire_match args = {0};
    if (!arg_bind(c, &args)) return;
    struct span pattern = c->argv[args.pattern];
    struct match m = {
        .each = {.job.close = match_close, .one = match_one, .end = match_end, .n = EACH_ENDLESS},
        .limit = args.count};
    if (args.kind == WIRE_MATCH_GLOB)
        m.glob = glob_create(pattern, false);
    else if (!regex_compile(c, &m, pattern))
        return; /* there is nothing yet */
    each_run(c, &m.each, sizeof(m));
}
