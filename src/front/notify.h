/* Keyspace notifications: who subscribed to the channels of a key or of an event hears what
 * happened (docs/EVENTS.md). Costs one branch while notify-keyspace-events is empty.
 *
 * Commands tell what Redis' commands tell, by the same names; what happens by itself (expired,
 * evicted) and tarn's own events come from the books (store_news). A replica tells of misses only:
 * its books are made by records, which do not say what was asked for. */
#ifndef TARN_FRONT_NOTIFY_H
#define TARN_FRONT_NOTIFY_H

#include <stdbool.h>
#include "base/buf.h"
#include "config/notify_class.h"
#include "store/store.h"

/* The option changed. */
void notify_apply(void);
/* Wants news from the books. */
bool notify_listens(void);
void notify_news(const struct store_news *news);
/* event: of a node, which has no key: to the channel of the event only. */
void notify_node(const char *event, const char *name);

/* Classes that are sent now: 0 without K or E. */
extern unsigned notify_classes;
void notify_send(const char *event, struct span key);

static inline void notify_key(enum notify_class class, const char *event, struct span key) {
    if (__builtin_expect((notify_classes & (unsigned)class) != 0, 0)) notify_send(event, key);
}

#endif
