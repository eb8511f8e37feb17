/* Keys, whatever their values: DEL UNLINK TOUCH TYPE RANDOMKEY DBSIZE FLUSHALL FLUSHDB, MEMORY
 * USAGE. */
#include "config/config.h"
#include "front/families.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "front/each.h"
#include "front/notify.h"
#include "inband/string_write.h"

/* --- one thing done to each key, and counted --- */

struct tally {
    struct each each;
    bool (*done)(struct span key);
    uint64_t count;
};

static enum each_next tally_one(struct client *c, struct each *each, unsigned *budget) {
    struct tally *e = CONTAINER_OF(each, struct tally, each);
    e->count += e->done(*each_args(c, each));
    return EACH_ON;
}

static void tally_end(struct client *c, struct each *each) {
    reply_int(c, (int64_t)CONTAINER_OF(each, struct tally, each)->count);
}

static void tally_keys(struct client *c, bool (*done)(struct span key)) {
    struct tally e = {
        .each = {.one = tally_one, .end = tally_end, .n = c->argc - 1, .first = 1, .width = 1},
        .done = done};
    each_run(c, &e.each, sizeof(e));
}

static bool remove_key(struct span key) {
    bool there = store_remove(books, key);
    if (there) notify_key(NOTIFY_GENERIC, "del", key);
    return there;
}

void cmd_del(struct client *c) {
    tally_keys(c, remove_key);
}

static bool touch_key(struct span key) {
    bool there = string_read(key) != NULL;
    if (!there) notify_key(NOTIFY_MISS, "keymiss", key);
    return there;
}

void cmd_touch(struct client *c) {
    tally_keys(c, touch_key);
}

/* --- looking at one key --- */

void cmd_type(struct client *c) {
    bool there = store_find(books, c->argv[1]) != NULL;
    if (!there) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
    reply_simple(c, there ? "string" : "none");
}

/* Books and value: what removing the key would give back. */
void cmd_memory_usage(struct client *c) {
    struct wire_choice samples; /* whatever they are */
    struct object *o = arg_bind(c, &samples) ? object_argument(c) : NULL;
    struct span value;
    if (!o) return;
    uint64_t bytes = store_object_memory(books, o);
    if (!store_object_inline(o, &value)) bytes += store_object_size(books, o);
    reply_int(c, (int64_t)bytes);
}

/* --- the whole keyspace --- */

static void random_see(void *arg, struct object *o) {
    struct object **found = arg;
    if (!*found) *found = o;
}

/* The books look at random places; where nearly all are empty, the next one that is not follows. */
void cmd_randomkey(struct client *c) {
    enum { STEPS_MAX = 1 << 16 };
    struct object *o = store_random(books);
    uint64_t cursor = turn.wall_us * UINT64_C(0x9e3779b97f4a7c15);
    for (unsigned i = 0; !o && i < STEPS_MAX && store_count(books) > 0; i++)
        cursor = store_scan(books, cursor, random_see, &o);
    if (o)
        reply_bulk(c, store_object_key(o));
    else
        reply_null(c);
}

void cmd_dbsize(struct client *c) {
    reply_int(c, (int64_t)store_count(books));
}

/* Looks again every millisecond: the sweep is background work of the loop. */
static bool flush_step(struct client *c, struct job *job, unsigned *budget) {
    if (store_flush_pending(books)) return job_look_again(job, 1);
    reply_ok(c);
    return true;
}

void cmd_flushall(struct client *c) {
    struct wire_choice mode = {0};
    if (!arg_bind(c, &mode)) return;
    bool async = mode.which == 0 ? config->lazy_user_flush : mode.which == WIRE_ASYNC;
    struct job job = {.step = flush_step};
    store_flush(books);
    if (async)
        reply_ok(c);
    else
        job_run(c, &job, sizeof(job));
}

/* Whoever chose another number than 0 would hardly think that it empties the databases of all
 * others. */
void cmd_flushdb(struct client *c) {
    if (c->db != 0)
        reply_error(c, "FLUSHDB would empty all databases, for they are one keyspace: FLUSHALL "
                       "says that this is meant");
    else
        cmd_flushall(c);
}
