/* In-band reads: GET GETEX GETDEL GETRANGE SUBSTR STRLEN MGET. What libtarn put is read here like
 * what SET wrote. Large values go from pool memory to the socket; a hold keeps their space until
 * the last byte is sent. Values that lie on other machines, or on disks, are fetched piece by piece
 * in a job (value_reply.h). */
#include "front/families.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "front/each.h"
#include "front/notify.h"
#include "inband/own_memory.h"
#include "inband/string_write.h"
#include "inband/value_reply.h"
#include "front/watch.h"

/* Below this a copy costs less than a piece of its own. */
#define COPY_MAX 4096u

/* From this process' own memory: from the pool to the socket without a copy. false: it is not
 * there, nothing was said. */
static bool reply_local(struct client *c, struct object *o, uint64_t from, uint64_t len) {
    struct span pieces[STORE_EXTENTS_MAX];
    size_t n = pool_pieces(o, from, len, pieces);
    if (n == 0) return false;
    if (n == 1 && len <= COPY_MAX)
        reply_bulk(c, pieces[0]);
    else
        reply_pool(c, pieces, n, store_hold(books, o));
    return true;
}

static bool reply_local_whole(struct client *c, struct object *o) {
    struct span value;
    if (store_object_inline(o, &value)) {
        reply_bulk(c, value);
        return true;
    }
    return reply_local(c, o, 0, store_object_size(books, o));
}

/* --- one value --- */

/* What becomes of the key once its value was read. */
struct read_then {
    enum { THEN_NOTHING, THEN_REMOVE, THEN_EXPIRE } what;
    uint64_t wall_ms;
};

static void do_then(struct client *c, struct object *o, const struct read_then *then) {
    struct span key = c->argv[1];
    if (then->what == THEN_REMOVE ||
        (then->what == THEN_EXPIRE && then->wall_ms && then->wall_ms <= turn.wall_ms)) {
        store_remove_object(books, o);
        notify_key(NOTIFY_GENERIC, "del", key);
    } else if (then->what == THEN_EXPIRE) {
        bool timed = store_object_expire(books, o) != 0;
        store_expire(books, o, then->wall_ms);
        watch_touch(key);
        if (then->wall_ms)
            notify_key(NOTIFY_GENERIC, "expire", key);
        else if (timed)
            notify_key(NOTIFY_GENERIC, "persist", key);
    }
}

struct read_job {
    struct job job;
    struct value_reply reply;
    struct read_then then;
    uint64_t version;
    bool range; /* a part of a value: a miss is an empty string */
};

/* The first bytes are on their way to the client. A key that has another value by now was written
 * after this read. */
static void read_begun(struct client *c, struct read_job *r) {
    struct object *o = r->then.what != THEN_NOTHING ? store_find(books, c->argv[1]) : NULL;
    if (o && store_object_version(o) == r->version) do_then(c, o, &r->then);
    r->then.what = THEN_NOTHING;
}

static bool read_step(struct client *c, struct job *job, unsigned *budget) {
    struct read_job *r = CONTAINER_OF(job, struct read_job, job);
    enum value_reply_state state = value_reply_step(c, &r->reply);
    spend(budget, 1);
    if (r->reply.begun) read_begun(c, r);
    switch (state) {
    case VALUE_REPLY_DONE: return true;
    case VALUE_REPLY_MISS:
        if (r->range)
            reply_bulk(c, SPAN(""));
        else
            reply_null(c);
        return true;
    case VALUE_REPLY_WAIT:
    case VALUE_REPLY_BROKEN: break;
    }
    job->runnable = false;
    return false;
}

static void read_close(struct client *c, struct job *job) {
    struct read_job *r = CONTAINER_OF(job, struct read_job, job);
    value_reply_close(&r->reply);
}

/* Bytes of o that are not in this process' memory. */
static void read_remote(struct client *c, struct object *o, uint64_t from, uint64_t len,
                        const struct read_then *then, bool range) {
    struct read_job *r = xcalloc(1, sizeof(*r));
    r->job = (struct job){.step = read_step, .close = read_close};
    r->then = *then;
    r->range = range;
    r->version = store_object_version(o);
    value_reply_open(c, &r->reply, o, from, len, NULL, &r->job);
    r->job.runnable = true; /* its first step starts the transfers */
    job_start(c, &r->job);
}

static void read_whole(struct client *c, const struct read_then *then) {
    struct object *o = string_read(c->argv[1]);
    if (!o) {
        notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
        reply_null(c);
    } else if (LIKELY(reply_local_whole(c, o))) {
        if (then->what != THEN_NOTHING) do_then(c, o, then);
    } else {
        read_remote(c, o, 0, store_object_size(books, o), then, false);
    }
}

void cmd_get(struct client *c) {
    static const struct read_then nothing = {THEN_NOTHING, 0};
    read_whole(c, &nothing);
}

void cmd_getdel(struct client *c) {
    static const struct read_then gone = {THEN_REMOVE, 0};
    read_whole(c, &gone);
}

void cmd_getex(struct client *c) {
    struct wire_set args = {0};
    if (!arg_bind(c, &args)) return;
    struct read_then then = {args.expiry > 0 ? THEN_EXPIRE : THEN_NOTHING, 0};
    /* of a key that is not there any number will do */
    if (args.time > 0 && store_find(books, c->argv[1]) &&
        !expire_time(c, args.time, args.expiry, &then.wall_ms))
        return;
    read_whole(c, &then);
}

void cmd_strlen(struct client *c) {
    struct object *o = store_find(books, c->argv[1]);
    if (!o) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
    reply_int(c, o ? (int64_t)store_object_size(books, o) : 0);
}

void cmd_getrange(struct client *c) {
    int64_t start, end;
    if (!arg_i64(c, 2, &start) || !arg_i64(c, 3, &end)) return;
    struct object *o = string_read(c->argv[1]);
    int64_t size = o ? (int64_t)store_object_size(books, o) : 0;
    if (!o) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
    bool backwards = start < 0 && end < 0 && start > end;
    if (start < 0) start = start < -size ? 0 : size + start;
    if (end < 0) end = end < -size ? 0 : size + end;
    if (end >= size) end = size - 1;
    if (size == 0 || backwards || start > end) {
        reply_bulk(c, SPAN(""));
        return;
    }
    static const struct read_then nothing = {THEN_NOTHING, 0};
    uint64_t from = (uint64_t)start, len = (uint64_t)(end - start) + 1;
    if (!reply_local(c, o, from, len)) read_remote(c, o, from, len, &nothing, true);
}

void cmd_substr(struct client *c) {
    cmd_getrange(c);
}

/* --- MGET --- */

/* Values that lie elsewhere are fetched ahead while an earlier one is awaited: so many keys, so
 * many bytes. */
enum { MGET_AHEAD = 16 };
#define MGET_AHEAD_BYTES (REMOTE_WINDOW * REMOTE_PIECE)

struct mget {
    struct each each;
    size_t looked; /* keys before it need not be looked at to fetch ahead */
    uint64_t ahead_bytes;
    struct value_reply ahead[MGET_AHEAD]; /* by key; those being read */
};

static struct object *mget_find(struct client *c, struct mget *m, size_t i) {
    return store_find_hashed(books, c->argv[1 + i], each_hash(c, &m->each, i));
}

static void mget_count(struct client *c, struct mget *m, size_t i, struct object *o) {
    struct store_batch batch;
    uint64_t hash = each_hash(c, &m->each, i);
    store_batch_begin(books, &batch, NULL, STORE_BATCH_READ, 1);
    if (o) {
        store_batch_hit(books, &batch, o, hash);
        cluster_hit(o, false);
    } else {
        store_batch_miss(books, &batch, c->argv[1 + i], hash);
    }
}

static void mget_open(struct client *c, struct mget *m, size_t pos, struct object *o) {
    uint64_t size = store_object_size(books, o);
    struct value_reply *v = &m->ahead[pos % MGET_AHEAD];
    m->ahead_bytes += remote_window(size);
    value_reply_open(c, v, o, 0, size, NULL, &m->each.job);
    value_reply_known(v); /* starts it */
}

static void mget_close(struct mget *m, struct value_reply *v) {
    m->ahead_bytes -= remote_window(v->len);
    value_reply_close(v);
}

static void mget_look_ahead(struct client *c, struct mget *m) {
    size_t end = min_u64(m->each.at + MGET_AHEAD, c->argc - 1);
    if (m->looked <= m->each.at) m->looked = m->each.at + 1;
    for (; m->looked < end && m->ahead_bytes < MGET_AHEAD_BYTES; m->looked++) {
        struct span value, pieces[STORE_EXTENTS_MAX];
        struct object *o = mget_find(c, m, m->looked);
        if (!o || store_object_inline(o, &value) || pool_pieces(o, 0, 1, pieces) > 0)
            continue; /* in its turn */
        mget_count(c, m, m->looked, o);
        mget_open(c, m, m->looked, o);
    }
}

/* The value, or its absence; EACH_AGAIN: it is on its way. */
static enum each_next mget_one(struct client *c, struct each *each, unsigned *budget) {
    struct mget *m = CONTAINER_OF(each, struct mget, each);
    struct value_reply *v = &m->ahead[each->at % MGET_AHEAD];
    if (!v->read) {
        struct object *o = mget_find(c, m, each->at);
        mget_count(c, m, each->at, o);
        if (!o) {
            notify_key(NOTIFY_MISS, "keymiss", *each_args(c, each));
            reply_null(c);
            return EACH_ON;
        }
        if (reply_local_whole(c, o)) return EACH_ON;
        mget_open(c, m, each->at, o);
    }
    mget_look_ahead(c, m);
    enum value_reply_state state = value_reply_step(c, v);
    if (state == VALUE_REPLY_WAIT || state == VALUE_REPLY_BROKEN) {
        each->job.runnable = false;
        return EACH_AGAIN;
    }
    if (state == VALUE_REPLY_MISS) reply_null(c);
    mget_close(m, v);
    return EACH_ON;
}

static void mget_close_all(struct client *c, struct job *job) {
    struct mget *m = CONTAINER_OF(job, struct mget, each.job);
    for (size_t i = 0; i < MGET_AHEAD; i++) value_reply_close(&m->ahead[i]);
}

/* On the heap: who reads ahead wakes it. */
void cmd_mget(struct client *c) {
    struct mget *m = xcalloc(1, sizeof(*m));
    m->each.job.close = mget_close_all;
    m->each.one = mget_one;
    each_keys(&m->each, (struct wire_list){1, (uint32_t)c->argc - 1}, 1);
    reply_array(c, c->argc - 1);
    each_start(c, &m->each);
}
