/* Single bits of values: SETBIT GETBIT. The first bit is the highest of the first byte, as in Redis. */
#include "cmd/families.h"
#include "cmd/notify.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cmd/config.h"
#include "cmd/string_write.h"
#include "cmd/value_fetch.h"

static bool bit_offset(struct client *c, int64_t *offset_p) {
    if (span_to_i64(c->argv[2], offset_p) && *offset_p >= 0 &&
        (uint64_t)*offset_p / 8 < server.config->proto_max_bulk_len)
        return true;
    reply_error(c, "bit offset is not an integer or out of range");
    return false;
}

static uint8_t bit_mask(int64_t offset) {
    return (uint8_t)(0x80u >> (offset % 8));
}

/* --- SETBIT ----------------------------------------------------------------------------------------------------------------- */

enum { SMALL_NEW, SMALL_OLD_BIT }; /* what is in small[] */

static bool setbit_plan(struct client *c, struct string_write *w) {
    struct object *o = string_write_edit(c, w);
    uint64_t at = (uint64_t)w->number / 8, old = o ? store_object_size(server.store, o) : 0;
    bool on = c->argv[3].data[0] == '1';
    char byte = 0;
    if (at < old && string_write_range(w, o, at, 1, &byte) < 0) return true;
    uint8_t mask = bit_mask(w->number), bits = (uint8_t)byte;
    bool was = bits & mask;
    if (at < old && was == on) { /* nothing to write */
        reply_int(c, was);
        return false;
    }
    w->small[SMALL_NEW] = (char)(on ? bits | mask : bits & ~mask);
    w->small[SMALL_OLD_BIT] = was;
    if (o) string_write_keep_old(w, o);
    string_write_take_old(w, 0, at);
    if (at > old) string_write_part(w, (struct string_part){.from = PART_ZERO, .len = at - old});
    string_write_part(w, (struct string_part){.from = PART_SMALL, .offset = SMALL_NEW, .len = 1});
    string_write_take_old(w, at + 1, UINT64_MAX);
    return true;
}

static void setbit_answer(struct client *c, struct string_write *w) {
    reply_int(c, w->small[SMALL_OLD_BIT]);
}

void cmd_setbit(struct client *c) {
    struct string_write w = {.plan = setbit_plan, .event = "setbit", .answer = setbit_answer, .key_arg = 1};
    int64_t bit;
    if (!arg_key(c, 1) || !bit_offset(c, &w.number)) return;
    if (!span_to_i64(c->argv[3], &bit) || (bit != 0 && bit != 1))
        reply_error(c, "bit is not an integer or out of range");
    else
        string_write_run(c, &w);
}

/* --- GETBIT ----------------------------------------------------------------------------------------------------------------- */

struct getbit_job {
    struct job job;
    struct value_fetch byte;
    int64_t offset;
};

static bool getbit_step(struct client *c, struct job *job, unsigned *budget) {
    struct getbit_job *g = CONTAINER_OF(job, struct getbit_job, job);
    if (!value_fetch_step(&g->byte, budget)) {
        job->runnable = g->byte.runnable;
        return false;
    }
    struct span got = value_fetch_bytes(&g->byte); /* none: the value cannot be had, a miss */
    reply_int(c, got.len > 0 && ((uint8_t)got.data[0] & bit_mask(g->offset)) != 0);
    return true;
}

static void getbit_destroy(struct client *c, struct job *job) {
    struct getbit_job *g = CONTAINER_OF(job, struct getbit_job, job);
    value_fetch_close(&g->byte);
    free(g);
}

void cmd_getbit(struct client *c) {
    int64_t offset;
    if (!bit_offset(c, &offset)) return;
    struct object *o = string_read(c->argv[1]);
    if (!o) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
    if (!o || (uint64_t)offset / 8 >= store_object_size(server.store, o)) {
        reply_int(c, 0);
        return;
    }
    struct getbit_job *g = xcalloc(1, sizeof(*g));
    g->job = (struct job){.step = getbit_step, .destroy = getbit_destroy, .runnable = true};
    g->offset = offset;
    value_fetch_open(&g->byte, c, o, (uint64_t)offset / 8, 1, &g->job);
    job_start(c, &g->job);
}
