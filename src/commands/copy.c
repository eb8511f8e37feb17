/* COPY RENAME RENAMENX. Values are immutable and belong to their key, so both write a new object
 * with the bytes of the old one, wherever those lie; RENAME removes the source in the same turn in
 * which the new object becomes visible. Pins, groups and leases stay with the old object. */
#include "front/families.h"

#include "config/config.h"
#include "front/notify.h"
#include "inband/string_write.h"

enum { SOURCE = 1, DESTINATION = 2 };

static bool same_key(const struct client *c) {
    return span_eq(c->argv[SOURCE], c->argv[DESTINATION]);
}

/* The whole of the source, which is there, as the value of the destination. */
static void take_source(struct client *c, struct string_write *w, struct object *source) {
    struct object *o = store_find(books, c->argv[DESTINATION]);
    w->flags |= STRING_CHECK | STRING_TAKETTL;
    w->base_version = o ? store_object_version(o) : 0;
    if (string_write_keep_old(w, source)) string_write_take_old(w, 0, UINT64_MAX);
}

/* --- COPY --- */

static bool copy_plan(struct client *c, struct string_write *w) {
    struct object *source = string_read(c->argv[SOURCE]);
    if (!source) notify_key(NOTIFY_MISS, "keymiss", c->argv[SOURCE]);
    if (!source || ((w->flags & STRING_NX) && store_find(books, c->argv[DESTINATION]))) {
        reply_int(c, 0);
        return false;
    }
    take_source(c, w, source);
    return true;
}

static void copy_answer(struct client *c, struct string_write *w) {
    notify_key(NOTIFY_GENERIC, "copy_to", c->argv[DESTINATION]);
    reply_int(c, 1);
}

void cmd_copy(struct client *c) {
    struct string_write w = {
        .plan = copy_plan, .answer = copy_answer, .key_arg = DESTINATION, .old_arg = SOURCE};
    struct wire_copy args = {0};
    if (!arg_bind(c, &args)) return;
    if (!args.replace) w.flags = STRING_NX;
    if (args.db < 0 || args.db >= config->databases) /* all of them mean the one */
        reply_error(c, "DB index is out of range");
    else if (same_key(c))
        reply_error(c, "source and destination objects are the same");
    else
        string_write_run(c, &w);
}

/* --- RENAME --- */

static bool rename_plan(struct client *c, struct string_write *w) {
    struct object *source = string_read(c->argv[SOURCE]);
    bool nx = w->flags & STRING_NX;
    if (!source) {
        reply_error(c, "no such key");
        return false;
    }
    if (nx && store_find(books, c->argv[DESTINATION])) { /* also when it is the source */
        reply_int(c, 0);
        return false;
    }
    if (same_key(c)) {
        reply_ok(c);
        return false;
    }
    take_source(c, w, source);
    return true;
}

static void rename_answer(struct client *c, struct string_write *w) {
    /* the version that was copied: the commit has looked */
    store_remove(books, c->argv[SOURCE]);
    notify_key(NOTIFY_GENERIC, "rename_from", c->argv[SOURCE]);
    notify_key(NOTIFY_GENERIC, "rename_to", c->argv[DESTINATION]);
    if (w->flags & STRING_NX)
        reply_int(c, 1);
    else
        reply_ok(c);
}

static void rename_run(struct client *c, unsigned flags) {
    struct string_write w = {.plan = rename_plan,
                             .answer = rename_answer,
                             .key_arg = DESTINATION,
                             .old_arg = SOURCE,
                             .flags = flags};
    if (arg_key(c, DESTINATION)) string_write_run(c, &w);
}

void cmd_rename(struct client *c) {
    rename_run(c, 0);
}
void cmd_renamenx(struct client *c) {
    rename_run(c, STRING_NX);
}
