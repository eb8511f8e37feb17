/* Walks over the keyspace: KEYS and SCAN. Both are jobs: at ten million keys a walk takes seconds,
 * of which the loop gives it a slice at a time. Keys that come and go meanwhile may or may not be
 * seen; the others are seen at least once. */
#include "cmd/families.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/glob.h"
#include "cmd/keys.h"

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

struct keys_job {
    struct job job;
    struct client *client;
    struct glob *glob;
    void *reply; /* the array's length is known at the end */
    uint64_t cursor;
    size_t found, seen, steps;
};

static void keys_see(void *arg, struct object *o) {
    struct keys_job *k = arg;
    struct span key = store_object_key(o);
    k->seen++;
    if (!glob_match(k->glob, key, &k->steps)) return;
    reply_bulk(k->client, key);
    k->found++;
}

static bool keys_step(struct client *c, struct job *job, unsigned *budget) {
    struct keys_job *k = CONTAINER_OF(job, struct keys_job, job);
    do {
        if (*budget == 0) return false;
        k->seen = k->steps = 0;
        k->cursor = store_scan(server.store, k->cursor, keys_see, k);
        spend(budget, 1 + k->seen + k->steps / STEPS_PER_UNIT);
    } while (k->cursor != 0);
    reply_deferred_array(c, k->reply, k->found);
    return true;
}

static void keys_close(struct client *c, struct job *job) {
    struct keys_job *k = CONTAINER_OF(job, struct keys_job, job);
    glob_destroy(&k->glob);
}

void cmd_keys(struct client *c) {
    struct glob *glob;
    if (!pattern_arg(c, 1, &glob)) return;
    struct keys_job *k = xcalloc(1, sizeof(*k));
    k->job = (struct job){.step = keys_step, .close = keys_close, .runnable = true};
    k->client = c;
    k->glob = glob;
    k->reply = reply_deferred(c);
    job_start(c, &k->job);
}

/* --- SCAN --- */

struct scan_job {
    struct job job;
    struct glob *glob; /* NULL: all */
    bool nothing;      /* of a type that does not exist here: walks, finds nothing */
    uint64_t cursor, count, turns;
    bool walked, announced;
    struct buf keys; /* length (u32) and bytes of each: the cursor goes out before them */
    size_t found, sent, seen, steps;
};

static void scan_see(void *arg, struct object *o) {
    struct scan_job *s = arg;
    struct span key = store_object_key(o);
    s->seen++;
    if (s->nothing || (s->glob && !glob_match(s->glob, key, &s->steps))) return;
    uint32_t len = (uint32_t)key.len;
    buf_append(&s->keys, &len, sizeof(len));
    buf_append(&s->keys, key.data, key.len);
    s->found++;
}

/* As in Redis: until COUNT keys are found, but at most 10 COUNT steps, so that a rare pattern comes
 * back now and then. */
static bool scan_walk(struct scan_job *s, unsigned *budget) {
    do {
        if (*budget == 0) return false;
        s->seen = s->steps = 0;
        s->cursor = store_scan(server.store, s->cursor, scan_see, s);
        spend(budget, 1 + s->seen + s->steps / STEPS_PER_UNIT);
    } while (s->cursor != 0 && --s->turns > 0 && s->found < s->count);
    return true;
}

static bool scan_send(struct client *c, struct scan_job *s, unsigned *budget) {
    while (s->sent < s->keys.len) {
        if (*budget == 0) return false;
        spend(budget, 1);
        uint32_t len;
        memcpy(&len, s->keys.data + s->sent, sizeof(len));
        reply_bulk(c, span_of(s->keys.data + s->sent + sizeof(len), len));
        s->sent += sizeof(len) + len;
    }
    return true;
}

static bool scan_step(struct client *c, struct job *job, unsigned *budget) {
    struct scan_job *s = CONTAINER_OF(job, struct scan_job, job);
    if (!s->walked && !scan_walk(s, budget)) return false;
    s->walked = true;
    if (!s->announced) {
        char cursor[24];
        size_t len = u64_to_dec(s->cursor, cursor);
        reply_array(c, 2);
        reply_bulk(c, span_of(cursor, len));
        reply_array(c, s->found);
        s->announced = true;
    }
    return scan_send(c, s, budget);
}

static void scan_free(struct scan_job *s) {
    glob_destroy(&s->glob);
    buf_free(&s->keys);
}

static void scan_close(struct client *c, struct job *job) {
    scan_free(CONTAINER_OF(job, struct scan_job, job));
}

static bool scan_options(struct client *c, struct scan_job *s) {
    for (size_t at = 2; at < c->argc; at += 2) {
        int64_t count;
        if (at + 1 == c->argc) {
            reply_syntax(c);
            return false;
        }
        if (arg_is(c, at, "count")) {
            if (!arg_i64(c, at + 1, &count)) return false;
            if (count < 1) {
                reply_syntax(c);
                return false;
            }
            s->count = (uint64_t)count;
        } else if (arg_is(c, at, "match")) {
            glob_destroy(&s->glob);
            if (!pattern_arg(c, at + 1, &s->glob)) return false;
        } else if (arg_is(c, at, "type")) {
            s->nothing = !arg_is(c, at + 1, "string");
        } else {
            reply_syntax(c);
            return false;
        }
    }
    return true;
}

void cmd_scan(struct client *c) {
    uint64_t cursor;
    if (!span_to_u64(c->argv[1], &cursor)) {
        reply_error(c, "invalid cursor");
        return;
    }
    struct scan_job *s = xcalloc(1, sizeof(*s));
    s->job = (struct job){.step = scan_step, .close = scan_close, .runnable = true};
    s->cursor = cursor;
    s->count = 10;
    if (!scan_options(c, s)) {
        scan_free(s);
        free(s);
        return;
    }
    s->turns = s->count > UINT64_MAX / 10 ? UINT64_MAX : s->count * 10;
    job_start(c, &s->job);
}
