/* LCS: the longest common subsequence of two values, by the classic table of the lengths for all pairs of prefixes. Both
 * values are brought into memory; the table is filled, and walked back, in slices. */
#include "cmd/families.h"
#include "cmd/notify.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "cmd/config.h"
#include "cmd/keys.h"
#include "cmd/string_write.h"
#include "cmd/value_fetch.h"

#define VALUE_MAX (UINT64_C(4) << 20)
/* About a microsecond. */
enum { CELLS_PER_UNIT = 512 };

struct lcs_job {
    struct job job;
    bool want_len, want_ranges, with_match_len;
    uint64_t min_match_len;
    struct value_fetch value[2];
    size_t fetched;
    uint64_t table_bytes;
    uint32_t *table;    /* (a.len + 1) x (b.len + 1); the first row and column are zero */
    size_t row, column; /* the cell to be filled next; then, walking back, the one we are at */
    bool filled;
    char *common; /* the result, from its end */
    size_t common_at;
    void *reply; /* of the ranges */
    size_t ranges;
    struct lcs_range {
        size_t a, b, len; /* begins; len 0: none is open */
    } range;
};

static struct span value_at(const struct lcs_job *l, size_t i) {
    return value_fetch_bytes(&l->value[i]);
}

static uint32_t *cell(const struct lcs_job *l, size_t a, size_t b) {
    return &l->table[a * (value_at(l, 1).len + 1) + b];
}

/* --- the table --------------------------------------------------------------------------------------------------------------- */

/* Of the tables of all clients, which are filled side by side. */
static uint64_t table_bytes;

static bool make_table(struct client *c, struct lcs_job *l) {
    size_t a = value_at(l, 0).len, b = value_at(l, 1).len;
    uint64_t bytes = (uint64_t)(a + 1) * (b + 1) * sizeof(*l->table),
             limit = server.config->proto_max_bulk_len;
    if (bytes > limit || table_bytes > limit - bytes) {
        reply_error(c, "Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len");
        return false;
    }
    l->table = calloc((a + 1) * (b + 1), sizeof(*l->table));
    if (!l->table) {
        reply_error(c, "Insufficient memory, failed allocating transient memory for LCS");
        return false;
    }
    l->table_bytes = bytes;
    table_bytes += bytes;
    l->row = l->column = 1;
    return true;
}

/* false: the budget is used up. */
static bool fill(struct lcs_job *l, unsigned *budget) {
    struct span a = value_at(l, 0), b = value_at(l, 1);
    while (l->row <= a.len && b.len > 0) {
        if (*budget == 0) return false;
        size_t end = min_u64(b.len, l->column + (uint64_t)*budget * CELLS_PER_UNIT - 1), from = l->column;
        uint32_t *above = cell(l, l->row - 1, 0), *row = cell(l, l->row, 0);
        char letter = a.data[l->row - 1];
        for (size_t j = from; j <= end; j++) {
            if (letter == b.data[j - 1])
                row[j] = above[j - 1] + 1;
            else
                row[j] = above[j] > row[j - 1] ? above[j] : row[j - 1];
        }
        spend(budget, (end - from) / CELLS_PER_UNIT + 1);
        l->column = end + 1;
        if (end == b.len) {
            l->row++;
            l->column = 1;
        }
    }
    l->filled = true;
    l->row = a.len;
    l->column = b.len;
    return true;
}

/* --- walking back ------------------------------------------------------------------------------------------------------------ */

static void reply_pair(struct client *c, size_t from, size_t len) {
    reply_array(c, 2);
    reply_int(c, (int64_t)from);
    reply_int(c, (int64_t)(from + len - 1));
}

static void close_range(struct client *c, struct lcs_job *l) {
    struct lcs_range r = l->range;
    l->range.len = 0;
    if (r.len == 0 || !l->want_ranges || r.len < l->min_match_len) return;
    reply_array(c, l->with_match_len ? 3 : 2);
    reply_pair(c, r.a, r.len);
    reply_pair(c, r.b, r.len);
    if (l->with_match_len) reply_int(c, (int64_t)r.len);
    l->ranges++;
}

/* From the end of both: a common letter extends the range that is open, if it touches it in both values. */
static bool walk(struct client *c, struct lcs_job *l, unsigned *budget) {
    struct span a = value_at(l, 0), b = value_at(l, 1);
    for (size_t steps = 1; l->row > 0 && l->column > 0; steps++) {
        if (*budget == 0) return false;
        if (steps % CELLS_PER_UNIT == 0) spend(budget, 1);
        size_t i = l->row, j = l->column;
        if (a.data[i - 1] == b.data[j - 1]) {
            if (l->range.len > 0 && (l->range.a != i || l->range.b != j)) close_range(c, l);
            l->range = (struct lcs_range){i - 1, j - 1, l->range.len + 1};
            if (l->common) l->common[--l->common_at] = a.data[i - 1];
            l->row--;
            l->column--;
        } else if (*cell(l, i - 1, j) > *cell(l, i, j - 1)) {
            l->row--;
        } else {
            l->column--;
        }
    }
    close_range(c, l);
    return true;
}

/* --- the job ----------------------------------------------------------------------------------------------------------------- */

static bool fetch(struct lcs_job *l, unsigned *budget) {
    for (; l->fetched < 2; l->fetched++) {
        struct value_fetch *f = &l->value[l->fetched];
        if (!value_fetch_step(f, budget)) {
            l->job.runnable = f->runnable;
            return false;
        }
    }
    return true;
}

static void begin_reply(struct client *c, struct lcs_job *l) {
    size_t len = *cell(l, value_at(l, 0).len, value_at(l, 1).len);
    if (l->want_ranges) {
        reply_map(c, 2);
        reply_bulk_str(c, "matches");
        l->reply = reply_deferred(c);
    } else {
        l->common = xmalloc(len + 1);
        l->common_at = len;
    }
}

static void end_reply(struct client *c, struct lcs_job *l) {
    size_t len = *cell(l, value_at(l, 0).len, value_at(l, 1).len);
    if (!l->want_ranges) {
        reply_bulk(c, span_of(l->common, len));
        return;
    }
    reply_deferred_array(c, l->reply, l->ranges);
    reply_bulk_str(c, "len");
    reply_int(c, (int64_t)len);
}

static bool lcs_step(struct client *c, struct job *job, unsigned *budget) {
    struct lcs_job *l = CONTAINER_OF(job, struct lcs_job, job);
    if (!fetch(l, budget)) return false;
    job->runnable = true;
    if (!l->table && !make_table(c, l)) return true;
    if (!l->filled) {
        if (!fill(l, budget)) return false;
        if (l->want_len) {
            reply_int(c, *cell(l, l->row, l->column));
            return true;
        }
        begin_reply(c, l);
    }
    if (!walk(c, l, budget)) return false;
    end_reply(c, l);
    return true;
}

static void lcs_destroy(struct client *c, struct job *job) {
    struct lcs_job *l = CONTAINER_OF(job, struct lcs_job, job);
    value_fetch_close(&l->value[0]);
    value_fetch_close(&l->value[1]);
    table_bytes -= l->table_bytes;
    free(l->table);
    free(l->common);
    free(l);
}

static bool lcs_options(struct client *c, struct lcs_job *l) {
    for (size_t at = 3; at < c->argc; at++) {
        int64_t n;
        if (arg_is(c, at, "len")) {
            l->want_len = true;
        } else if (arg_is(c, at, "idx")) {
            l->want_ranges = true;
        } else if (arg_is(c, at, "withmatchlen")) {
            l->with_match_len = true;
        } else if (arg_is(c, at, "minmatchlen") && at + 1 < c->argc) {
            if (!arg_i64(c, ++at, &n)) return false;
            l->min_match_len = n < 0 ? 0 : (uint64_t)n;
        } else {
            reply_syntax(c);
            return false;
        }
    }
    if (!l->want_len || !l->want_ranges) return true;
    reply_error(c, "If you want both the length and indexes, please just use IDX.");
    return false;
}

void cmd_lcs(struct client *c) {
    struct lcs_job options = {.job = {.step = lcs_step, .destroy = lcs_destroy, .runnable = true}};
    struct object *o[2] = {string_read(c->argv[1]), string_read(c->argv[2])};
    for (size_t i = 0; i < 2; i++)
        if (!o[i]) notify_key(NOTIFY_MISS, "keymiss", c->argv[1 + i]);
    if (!lcs_options(c, &options)) return;
    for (size_t i = 0; i < 2; i++)
        if (o[i] && store_object_size(server.store, o[i]) > VALUE_MAX) {
            reply_error(c, "String too long for LCS");
            return;
        }
    struct lcs_job *l = xmemdup(&options, sizeof(options));
    for (size_t i = 0; i < 2; i++) {
        uint64_t len = o[i] ? store_object_size(server.store, o[i]) : 0;
        if (len > 0) value_fetch_open(&l->value[i], c, o[i], 0, len, &l->job);
    }
    job_start(c, &l->job);
}
