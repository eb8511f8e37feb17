#include "front/tracking.h"

#include <stdlib.h>
#include "base/assert.h"
#include "front/above.h"
#include "front/table.h"
#include "front/watch.h"
#include "config/config.h"

struct tracker {
    struct watcher watcher;
    struct client *client;
    LIST_ENTRY(tracker) link;
};

static LIST_HEAD(, tracker) trackers;
static struct tracker *hand; /* the next one that makes room for others; NULL: the first */
static size_t count, total;  /* of clients, of their keys */

#define INVALIDATE ">2\r\n$10\r\ninvalidate\r\n"

static void tracker_tell(struct watcher *w, struct span key) {
    struct client *c = CONTAINER_OF(w, struct tracker, watcher)->client;
    struct buf b = {0};
    total--;
    buf_printf(&b, INVALIDATE "*1\r\n$%zu\r\n", key.len);
    buf_append(&b, key.data, key.len);
    buf_append_str(&b, "\r\n");
    client_push(c, b.data, b.len);
    buf_free(&b);
}

static void tracker_forget(struct tracker *t) {
    total -= t->watcher.count;
    watch_clear(&t->watcher);
}

#define INVALIDATE_ALL INVALIDATE "_\r\n"

static void tracker_tell_all(struct tracker *t) {
    if (t->watcher.count == 0) return; /* it has nothing to forget */
    client_push(t->client, INVALIDATE_ALL, sizeof(INVALIDATE_ALL) - 1);
    tracker_forget(t);
}

void tracking_on(struct client *c) {
    if (c->io->tracker != NULL) return;
    struct tracker *t = xcalloc(1, sizeof(*t));
    *t = (struct tracker){.watcher.tell = tracker_tell, .client = c};
    LIST_INSERT_HEAD(&trackers, t, link);
    c->io->tracker = t;
    if (count++ == 0) above.relisten();
}

void tracking_off(struct client *c) {
    struct tracker *t = c->io->tracker;
    if (t == NULL) return;
    c->io->tracker = NULL;
    tracker_forget(t);
    if (hand == t) hand = LIST_NEXT(t, link);
    LIST_REMOVE(t, link);
    free(t);
    if (--count == 0) above.relisten();
}

static void tracker_note_key(void *arg, struct cmd_key_ref key) {
    struct client *c = arg;
    if (c->argv[key.index].len > STORE_KEY_MAX) return; /* it cannot be there */
    total += watch_add(&c->io->tracker->watcher, c->argv[key.index], 0) == WATCH_ADDED;
}

/* Before the first key of a command is noted, for all of them: what is told here comes before its
 * reply. */
static void tracker_make_room(struct tracker *t, size_t n) {
    size_t max = (size_t)config->tracking_table_max_keys;
    if (t->watcher.count + n > TRACKING_KEYS_MAX) tracker_tell_all(t);
    while (max != 0 && total > 0 && total + n > max) {
        if (hand == NULL) hand = LIST_FIRST(&trackers);
        tracker_tell_all(hand);
        hand = LIST_NEXT(hand, link);
    }
}

void tracking_note_keys(struct client *c, const struct cmd *cmd) {
    struct tracker *t = c->io->tracker;
    size_t n = c->argc - 1, groups; /* n: its keys, at most */
    if (!(cmd->flags & CMD_READONLY) || cmd->keys[0].flags == 0) return;
    if (table_kv_groups(cmd, c->argv, c->argc, &groups) > 0) return;
    if (n > TRACKING_COMMAND_MAX) {
        client_push_late(c, INVALIDATE_ALL, sizeof(INVALIDATE_ALL) - 1);
        tracker_forget(t);
        return;
    }
    tracker_make_room(t, n);
    table_keys(cmd, c->argv, c->argc, tracker_note_key, c);
}

bool tracking_listens(void) {
    return count > 0;
}

void tracking_news(const struct store_news *n) {
    struct tracker *t;
    switch (n->kind) {
    case STORE_NEWS_REMOVED:
    case STORE_NEWS_EVICTED:
    case STORE_NEWS_EXPIRED:
    case STORE_NEWS_LOST: watch_touch_key(store_object_key(n->object), true); break;
    case STORE_NEWS_FLUSHED:
        LIST_FOREACH(t, &trackers, link) tracker_tell_all(t);
        break;
    case STORE_NEWS_PUT: /* is told by store_events.complete */
    case STORE_NEWS_NONE:
    case STORE_NEWS_REPLICA_ADDED:
    case STORE_NEWS_REPLICA_GONE:
    case STORE_NEWS_PROMOTED:
    case STORE_NEWS_DEMOTED:
    case STORE_NEWS_SEGMENT_UP:
    case STORE_NEWS_SEGMENT_DOWN:
    case STORE_NEWS_SEGMENT_GONE: break;
    }
}

void tracking_end(void) {
    struct tracker *t;
    LIST_FOREACH(t, &trackers, link) client_close_soon(t->client);
}

size_t tracking_count(void) {
    return count;
}

size_t tracking_keys(void) {
    return total;
}

size_t tracking_memory(const struct client *c) {
    const struct tracker *t = c->io->tracker;
    return t == NULL ? 0 : sizeof(*t) + t->watcher.bytes;
}
