/* Times to live: EXPIRE PEXPIRE EXPIREAT PEXPIREAT TTL PTTL EXPIRETIME PEXPIRETIME PERSIST. Wall
 * time, as in Redis. */
#include "front/families.h"

#include "front/notify.h"
#include "inband/string_write.h"
#include "front/watch.h"

enum { EXPIRE_NX = 1, EXPIRE_XX = 2, EXPIRE_GT = 4, EXPIRE_LT = 8 };

static bool expire_flags(struct client *c, unsigned *flags_p) {
    unsigned flags = 0;
    for (size_t i = 3; i < c->argc; i++) {
        if (arg_is(c, i, "nx"))
            flags |= EXPIRE_NX;
        else if (arg_is(c, i, "xx"))
            flags |= EXPIRE_XX;
        else if (arg_is(c, i, "gt"))
            flags |= EXPIRE_GT;
        else if (arg_is(c, i, "lt"))
            flags |= EXPIRE_LT;
        else {
            reply_error(c, "Unsupported option %.*s",
                        (int)(c->argv[i].len < 64 ? c->argv[i].len : 64), c->argv[i].data);
            return false;
        }
    }
    if ((flags & EXPIRE_NX) && (flags & ~(unsigned)EXPIRE_NX)) {
        reply_error(c, "NX and XX, GT or LT options at the same time are not compatible");
        return false;
    }
    if ((flags & EXPIRE_GT) && (flags & EXPIRE_LT)) {
        reply_error(c, "GT and LT options at the same time are not compatible");
        return false;
    }
    *flags_p = flags;
    return true;
}

/* now: what the key has, 0: no time, which is later than any. */
static bool expire_allowed(unsigned flags, uint64_t now, int64_t wall_ms) {
    if ((flags & EXPIRE_NX) && now) return false;
    if ((flags & EXPIRE_XX) && !now) return false;
    if ((flags & EXPIRE_GT) && (!now || wall_ms <= (int64_t)now)) return false;
    if ((flags & EXPIRE_LT) && now && wall_ms >= (int64_t)now) return false;
    return true;
}

/* Times in the past are allowed here: they remove the key. */
static void expire_key(struct client *c, int64_t unit, bool absolute) {
    int64_t v, wall_ms;
    unsigned flags;
    if (!expire_flags(c, &flags) || !arg_i64(c, 2, &v)) return;
    if (__builtin_mul_overflow(v, unit, &wall_ms) ||
        __builtin_add_overflow(wall_ms, absolute ? 0 : (int64_t)turn.wall_ms, &wall_ms)) {
        reply_error(c, "invalid expire time in '%s' command", c->cmd->name);
        return;
    }
    struct object *o = store_find(books, c->argv[1]);
    if (!o || !expire_allowed(flags, store_object_expire(books, o), wall_ms)) {
        reply_int(c, 0);
        return;
    }
    bool past = wall_ms <= (int64_t)turn.wall_ms;
    if (past)
        store_remove(books, c->argv[1]);
    else
        store_expire(books, o, (uint64_t)wall_ms);
    watch_touch(c->argv[1]);
    notify_key(NOTIFY_GENERIC, past ? "del" : "expire", c->argv[1]);
    reply_int(c, 1);
}

void cmd_expire(struct client *c) {
    expire_key(c, 1000, false);
}
void cmd_pexpire(struct client *c) {
    expire_key(c, 1, false);
}
void cmd_expireat(struct client *c) {
    expire_key(c, 1000, true);
}
void cmd_pexpireat(struct client *c) {
    expire_key(c, 1, true);
}

/* -2: no key, -1: no time; else the time left, or the time itself. */
static void expiry_reply(struct client *c, bool seconds, bool absolute) {
    struct object *o = store_find(books, c->argv[1]);
    uint64_t wall_ms = o ? store_object_expire(books, o) : 0;
    if (!o) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
    if (!o || wall_ms == 0) {
        reply_int(c, o ? -1 : -2);
        return;
    }
    uint64_t ms = absolute ? wall_ms : wall_ms > turn.wall_ms ? wall_ms - turn.wall_ms : 0;
    reply_int(c, (int64_t)(seconds ? (ms + 500) / 1000 : ms));
}

void cmd_ttl(struct client *c) {
    expiry_reply(c, true, false);
}
void cmd_pttl(struct client *c) {
    expiry_reply(c, false, false);
}
void cmd_expiretime(struct client *c) {
    expiry_reply(c, true, true);
}
void cmd_pexpiretime(struct client *c) {
    expiry_reply(c, false, true);
}

void cmd_persist(struct client *c) {
    struct object *o = store_find(books, c->argv[1]);
    bool timed = o && store_object_expire(books, o) != 0;
    if (timed) store_expire(books, o, 0);
    if (timed) watch_touch(c->argv[1]);
    if (timed) notify_key(NOTIFY_GENERIC, "persist", c->argv[1]);
    reply_int(c, timed);
}
