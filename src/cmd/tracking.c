#include "cmd/tracking.h"

#include <stdlib.h>
#include "base/assert.h"
#include "cmd/books.h"
#include "cmd/table.h"
#include "cmd/watch.h"

struct tracker {
    struct watcher watcher;
    struct client *client;
    struct tracker *prev, *next;
};

static struct tracker *first;
static size_t count;

#define INVALIDATE ">2\r\n$10\r\ninvalidate\r\n"

static void tell(struct watcher *w, struct span key) {
    struct client *c = CONTAINER_OF(w, struct tracker, watcher)->client;
    struct buf b = {0};
    buf_printf(&b, INVALIDATE "*1\r\n$%zu\r\n", key.len);
    buf_append(&b, key.data, key.len);
    buf_append_str(&b, "\r\n");
    client_push(c, b.data, b.len);
    buf_free(&b);
}

static void tell_all(struct tracker *t) {
    client_push(t->client, INVALIDATE "_\r\n", sizeof(INVALIDATE "_\r\n") - 1);
    watch_clear(&t->watcher);
}

void tracking_on(struct client *c) {
    if (c->io->tracker != NULL) return;
    struct tracker *t = xcalloc(1, sizeof(*t));
    *t = (struct tracker){.watcher.tell = tell, .client = c, .next = first};
    if (first != NULL) first->prev = t;
    first = c->io->tracker = t;
    if (count++ == 0) books_relisten();
}

void tracking_off(struct client *c) {
    struct tracker *t = c->io->tracker;
    if (t == NULL) return;
    c->io->tracker = NULL;
    watch_clear(&t->watcher);
    if (t->next != NULL) t->next->prev = t->prev;
    if (t->prev != NULL)
        t->prev->next = t->next;
    else
        first = t->next;
    free(t);
    if (--count == 0) books_relisten();
}

static void note(void *arg, struct cmd_key_ref key) {
    struct client *c = arg;
    struct tracker *t = c->io->tracker;
    if (c->argv[key.index].len > STORE_KEY_MAX) return; /* it cannot be there */
    if (t->watcher.count == TRACKING_KEYS_MAX) tell_all(t);
    watch_add(&t->watcher, c->argv[key.index], 0);
}

void tracking_note_keys(struct client *c, const struct cmd *cmd) {
    if (cmd->flags & CMD_READONLY) table_keys(cmd, c->argv, c->argc, note, c);
}

bool tracking_listens(void) {
    return count > 0;
}

void tracking_news(const struct store_news *n) {
    switch (n->kind) {
    case STORE_NEWS_REMOVED:
    case STORE_NEWS_EVICTED:
    case STORE_NEWS_EXPIRED:
    case STORE_NEWS_LOST: watch_touch_key(store_object_key(n->object), true); break;
    case STORE_NEWS_FLUSHED:
        for (struct tracker *t = first; t != NULL; t = t->next) tell_all(t);
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
    for (struct tracker *t = first; t != NULL; t = t->next) client_close_soon(t->client);
}

size_t tracking_count(void) {
    return count;
}

size_t tracking_memory(const struct client *c) {
    const struct tracker *t = c->io->tracker;
    return t == NULL ? 0 : sizeof(*t) + t->watcher.bytes;
}
