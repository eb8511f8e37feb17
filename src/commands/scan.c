/* Walks over the keyspace: KEYS and SCAN. Both go in slices: at ten million keys a walk takes
 * seconds, of which the loop gives it a slice at a time. Keys that come and go meanwhile may or may
 * not be seen; the others are seen at least once. */
#include "front/families.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/glob.h"
#include "front/each.h"

enum { PATTERN_MAX = 256 * 1024 };
/* Steps of the matcher that count as one unit of work. */
enum { STEPS_PER_UNIT = 256 };

static bool pattern_arg(struct client *c, size_t index, struct glob **glob_p) {
    if (c->argv[index].len > PATTERN_MAX) {
        reply_error(c, "pattern may have at most %d bytes", PATTERN_MAX);
        return false;
    }
    *glob_p = glob_create(c->argv[index], false);
    return true;
}

/* --- KEYS --- */

struct key_walk {
    struct each each;
    struct client *client;
    struct glob *glob;
    void *reply; /* the array's length is known at the end */
    uint64_t cursor;
    size_t found, seen, steps;
};

static void keys_see(void *arg, struct object *o) {
    struct key_walk *k = arg;
    struct span key = store_object_key(o);
    k->seen++;
    if (!glob_match(k->glob, key, &k->steps)) return;
    reply_bulk(k->client, key);
    k->found++;
}

static enum each_next keys_one(struct client *c, struct each *each, unsigned *budget) {
    struct key_walk *k = CONTAINER_OF(each, struct key_walk, each);
    k->seen = k->steps = 0;
    k->cursor = store_scan(books, k->cursor, keys_see, k);
    spend(budget, k->seen + k->steps / STEPS_PER_UNIT);
    return k->cursor == 0 ? EACH_OVER : EACH_ON;
}

static void keys_end(struct client *c, struct each *each) {
    struct key_walk *k = CONTAINER_OF(each, struct key_walk, each);
    reply_deferred_array(c, k->reply, k->found);
}

static void keys_close(struct client *c, struct job *job) {
    glob_destroy(&CONTAINER_OF(job, struct key_walk, each.job)->glob);
}

void cmd_keys(struct client *c) {
    struct key_walk k = {
        .each = {.job.close = keys_close, .one = keys_one, .end = keys_end, .n = EACH_ENDLESS},
        .client = c};
    if (!pattern_arg(c, 1, &k.glob)) return;
    k.reply = reply_deferred(c);
    each_run(c, &k.each, sizeof(k));
}

/* --- SCAN --- */

struct scan {
    struct each each;
    struct glob *glob; /* NULL: all */
    bool nothing;      /* of a type that does not exist here: walks, finds nothing */
    uint64_t cursor, count, turns;
    struct buf keys; /* length (u32) and bytes of each: the cursor goes out before them */
    size_t found, sent, seen, steps;
};

static void scan_see(void *arg, struct object *o) {
    struct scan *s = arg;
    struct span key = store_object_key(o);
    s->seen++;
    if (s->nothing || (s->glob && !glob_match(s->glob, key, &s->steps))) return;
    uint32_t len = (uint32_t)key.len;
    buf_append(&s->keys, &len, sizeof(len));
    buf_append(&s->keys, key.data, key.len);
    s->found++;
}

static enum each_next scan_send(struct client *c, struct each *each, unsigned *budget) {
    struct scan *s = CONTAINER_OF(each, struct scan, each);
    uint32_t len;
    memcpy(&len, s->keys.data + s->sent, sizeof(len));
    reply_bulk(c, span_of(s->keys.data + s->sent + sizeof(len), len));
    s->sent += sizeof(len) + len;
    return s->sent < s->keys.len ? EACH_ON : EACH_OVER;
}

/* As in Redis: until COUNT keys are found, but at most 10 COUNT steps, so that a rare pattern comes
 * back now and then. */
static enum each_next scan_walk(struct client *c, struct each *each, unsigned *budget) {
    struct scan *s = CONTAINER_OF(each, struct scan, each);
    s->seen = s->steps = 0;
    s->cursor = store_scan(books, s->cursor, scan_see, s);
    spend(budget, s->seen + s->steps / STEPS_PER_UNIT);
    if (s->cursor != 0 && --s->turns > 0 && s->found < s->count) return EACH_ON;
    char cursor[24];
    reply_array(c, 2);
    reply_bulk(c, span_of(cursor, u64_to_dec(s->cursor, cursor)));
    reply_array(c, s->found);
    each->one = scan_send;
    return s->found > 0 ? EACH_ON : EACH_OVER;
}

static void scan_close(struct client *c, struct job *job) {
    struct scan *s = CONTAINER_OF(job, struct scan, each.job);
    glob_destroy(&s->glob);
    buf_free(&s->keys);
}

void cmd_scan(struct client *c) {
    struct scan s = {.each = {.job.close = scan_close, .one = scan_walk, .n = EACH_ENDLESS}};
    struct wire_scan args = {0};
    if (!arg_bind(c, &args)) return;
    if (args.count < 1) {
        reply_syntax(c);
        return;
    }
    if (args.match > 0 && !pattern_arg(c, args.match, &s.glob)) return;
    s.nothing = args.type > 0 && !arg_is(c, args.type, "string");
    s.cursor = args.cursor;
    s.count = (uint64_t)args.count;
    s.turns = s.count > UINT64_MAX / 10 ? UINT64_MAX : s.count * 10;
    each_run(c, &s.each, sizeof(s));
}
