#include "front/notify.h"

#include <string.h>
#include "base/assert.h"
#include "front/above.h"
#include "front/cmd.h"
#include "config/config.h"
#include "front/pubsub.h"

#define KEYSPACE "__keyspace@0__:"
#define KEYEVENT "__keyevent@0__:"

unsigned notify_classes;

void notify_apply(void) {
    unsigned classes = config->notify_classes;
    notify_classes = classes & (NOTIFY_KEYSPACE | NOTIFY_KEYEVENT) ? classes : 0;
    above.relisten();
}

bool notify_listens(void) {
    return notify_classes & (NOTIFY_EXPIRED | NOTIFY_EVICTED | NOTIFY_NEW | NOTIFY_POOL);
}

/* --- sending --- */

static void send_to(const char *prefix, struct span name, struct span message) {
    char channel[sizeof(KEYSPACE) + STORE_KEY_MAX];
    size_t len = strlen(prefix);
    if (len + name.len > sizeof(channel)) return; /* of a look-up for a key that cannot be there */
    memcpy(channel, prefix, len);
    if (name.len > 0) memcpy(channel + len, name.data, name.len);
    pubsub_publish(span_of(channel, len + name.len), message);
}

void notify_send(const char *event, struct span key) {
    if (notify_classes & NOTIFY_KEYSPACE) send_to(KEYSPACE, key, span_str(event));
    if (notify_classes & NOTIFY_KEYEVENT) send_to(KEYEVENT, span_str(event), key);
}

void notify_node(const char *event, const char *name) {
    if (notify_classes & NOTIFY_NODES && notify_classes & NOTIFY_KEYEVENT)
        send_to(KEYEVENT, span_str(event), span_str(name));
}

void notify_news(const struct store_news *n) {
    struct span key = n->object ? store_object_key(n->object) : SPAN("");
    switch (n->kind) {
    case STORE_NEWS_PUT:
        if (!n->replaced) notify_key(NOTIFY_NEW, "new", key);
        notify_key(NOTIFY_POOL, "put", key);
        break;
    case STORE_NEWS_REMOVED: notify_key(NOTIFY_POOL, "removed", key); break;
    case STORE_NEWS_LOST: notify_key(NOTIFY_POOL, "lost", key); break;
    case STORE_NEWS_PROMOTED: notify_key(NOTIFY_POOL, "promoted", key); break;
    case STORE_NEWS_DEMOTED: notify_key(NOTIFY_POOL, "demoted", key); break;
    case STORE_NEWS_EVICTED: notify_key(NOTIFY_EVICTED, "evicted", key); break;
    case STORE_NEWS_EXPIRED: notify_key(NOTIFY_EXPIRED, "expired", key); break;
    case STORE_NEWS_FLUSHED:
        if (notify_classes & NOTIFY_POOL && notify_classes & NOTIFY_KEYEVENT)
            send_to(KEYEVENT, SPAN("flushed"), SPAN(""));
        break;
    case STORE_NEWS_NONE:
    case STORE_NEWS_REPLICA_ADDED:
    case STORE_NEWS_REPLICA_GONE:
    case STORE_NEWS_SEGMENT_UP:
    case STORE_NEWS_SEGMENT_DOWN:
    case STORE_NEWS_SEGMENT_GONE: break;
    }
}
