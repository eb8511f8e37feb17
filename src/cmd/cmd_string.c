/* In-band reads: GET GETEX GETDEL GETRANGE SUBSTR STRLEN MGET. What libtarn put is read here like what SET wrote. Large
 * values go from pool memory to the socket; a hold keeps their space until the last byte is sent. */
#include "cmd/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cmd/keys.h"
#include "cmd/string_write.h"

/* Below this a copy costs less than a piece of its own. */
#define COPY_MAX 4096u

void reply_value(struct client *c, struct object *o, uint64_t from, uint64_t len) {
    struct span pieces[STORE_EXTENTS_MAX];
    size_t n = pool_pieces(o, from, len, pieces);
    if (n == 1 && len <= COPY_MAX)
        reply_bulk(c, pieces[0]);
    else
        reply_pool(c, pieces, n, store_hold(server.store, o));
}

struct object *string_read(struct span key) {
    struct store_batch batch;
    store_batch_begin(server.store, &batch, NULL, STORE_BATCH_READ, 1);
    uint64_t hash = store_hash(key);
    struct object *o = store_find_hashed(server.store, key, hash);
    if (o)
        store_batch_hit(server.store, &batch, o);
    else
        store_batch_miss(server.store, &batch, hash);
    return o;
}

static void reply_whole(struct client *c, struct object *o) {
    struct span value;
    if (store_object_inline(o, &value))
        reply_bulk(c, value);
    else
        reply_value(c, o, 0, store_object_size(server.store, o));
}

void cmd_get(struct client *c) {
    struct object *o = string_read(c->argv[1]);
    if (o)
        reply_whole(c, o);
    else
        reply_null(c);
}

void cmd_getdel(struct client *c) {
    struct object *o = string_read(c->argv[1]);
    if (!o) {
        reply_null(c);
        return;
    }
    reply_whole(c, o);
    store_remove(server.store, c->argv[1]);
}

void cmd_getex(struct client *c) {
    uint64_t wall_ms = 0;
    bool persist = false, timed = false;
    for (size_t at = 2; at < c->argc;) {
        if (!timed && !persist && arg_is(c, at, "persist")) {
            persist = true;
            at++;
            continue;
        }
        int read = timed || persist ? 0 : expire_option(c, &at, &wall_ms);
        if (read < 0) return;
        if (read == 0) {
            reply_syntax(c);
            return;
        }
        timed = true;
    }
    struct object *o = string_read(c->argv[1]);
    if (!o) {
        reply_null(c);
        return;
    }
    reply_whole(c, o);
    if (timed && wall_ms <= server.wall_ms)
        store_remove(server.store, c->argv[1]);
    else if (timed || persist)
        store_expire(server.store, o, wall_ms);
}

void cmd_strlen(struct client *c) {
    struct object *o = store_find(server.store, c->argv[1]);
    reply_int(c, o ? (int64_t)store_object_size(server.store, o) : 0);
}

void cmd_getrange(struct client *c) {
    int64_t start, end;
    if (!arg_i64(c, 2, &start) || !arg_i64(c, 3, &end)) return;
    struct object *o = string_read(c->argv[1]);
    int64_t size = o ? (int64_t)store_object_size(server.store, o) : 0;
    bool backwards = start < 0 && end < 0 && start > end;
    if (start < 0) start = start < -size ? 0 : size + start;
    if (end < 0) end = end < -size ? 0 : size + end;
    if (end >= size) end = size - 1;
    if (size == 0 || backwards || start > end)
        reply_bulk(c, SPAN(""));
    else
        reply_value(c, o, (uint64_t)start, (uint64_t)(end - start) + 1);
}

void cmd_substr(struct client *c) {
    cmd_getrange(c);
}

/* --- MGET ------------------------------------------------------------------------------------------------------------------- */

struct mget_job {
    struct job job;
    size_t pos;
    struct key_window window;
};

static bool mget_step(struct client *c, struct job *job, unsigned *budget) {
    struct mget_job *m = CONTAINER_OF(job, struct mget_job, job);
    size_t n = c->argc - 1;
    for (; m->pos < n; m->pos++) {
        if (*budget == 0) return false;
        spend(budget, 1);
        uint64_t hash = key_window_hash(&m->window, c, 1, 1, m->pos, n);
        struct object *o = store_find_hashed(server.store, c->argv[1 + m->pos], hash);
        struct store_batch batch;
        store_batch_begin(server.store, &batch, NULL, STORE_BATCH_READ, 1);
        if (o) {
            store_batch_hit(server.store, &batch, o);
            reply_whole(c, o);
        } else {
            store_batch_miss(server.store, &batch, hash);
            reply_null(c);
        }
    }
    return true;
}

static void mget_destroy(struct client *c, struct job *job) {
    free(CONTAINER_OF(job, struct mget_job, job));
}

void cmd_mget(struct client *c) {
    struct mget_job *m = xcalloc(1, sizeof(*m));
    m->job = (struct job){.step = mget_step, .destroy = mget_destroy, .runnable = true};
    reply_array(c, c->argc - 1);
    job_start(c, &m->job);
}
