/* Who wants to know that a key was written: WATCH, and CLIENT TRACKING (tracking.c). Costs its
 * owner memory and the writers of keys nothing as long as nobody watches: then it is one comparison
 * with zero.
 *
 * News of values comes from the books (store_events.complete), news of times to live from the
 * commands that set them. That a key has gone is no news for WATCH: EXEC compares the version that
 * is there with the one that was there. */
#ifndef TARN_FRONT_WATCH_H
#define TARN_FRONT_WATCH_H

#include <sys/queue.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

#define WATCHES_MAX 100000u /* keys of one client */

struct watch;

/* All that one client watches. Zero-initialised watches nothing. */
struct watcher {
    LIST_HEAD(, watch) watches;
    size_t count, bytes;
    bool touched; /* one of its keys was written */
    /* NULL: touched says it all. Else it is told, of keys that have gone as well, and does not
     * watch the key any more. */
    void (*tell)(struct watcher *w, struct span key);
};

enum watch_result { WATCH_ADDED, WATCH_KNOWN, WATCH_FULL };

/* version: of the object that is there, 0: none. A key that it watches already keeps its first
 * version. */
enum watch_result watch_add(struct watcher *w, struct span key, uint64_t version);
/* Forgets all keys, and that one was touched. */
void watch_clear(struct watcher *w);
/* Whether fn says another version than at the time of watch_add for any of its keys. */
bool watch_differs(const struct watcher *w, uint64_t (*fn)(struct span key));
/* Marks, or tells, the watchers of key. gone: only those that are told. */
void watch_touch_key(struct span key, bool gone);
/* Watches of all clients. */
extern size_t watch_count;

static inline void watch_touch(struct span key) {
    if (__builtin_expect(watch_count > 0, 0)) watch_touch_key(key, false);
}

#endif
