/* Keyspace notifications: who subscribed to the channels of a key or of an event hears what
 * happened (docs/EVENTS.md). Costs one branch while notify-keyspace-events is empty.
 *
 * Commands tell what Redis' commands tell, by the same names; what happens by itself (expired,
 * evicted) and tarn's own events come from the books (store_news). A replica tells of misses only:
 * its books are made by records, which do not say what was asked for. */
#ifndef TARN_CMD_NOTIFY_H
#define TARN_CMD_NOTIFY_H

#include <stdbool.h>
#include "base/buf.h"
#include "store/store.h"

/* The letters of notify-keyspace-events; those of types that tarn does not have are accepted and
 * never sent. */
enum notify_class {
    NOTIFY_GENERIC = 1 << 0, /* g */
    NOTIFY_STRING = 1 << 1,  /* $ */
    NOTIFY_LIST = 1 << 2,    /* l */
    NOTIFY_SET = 1 << 3,     /* s */
    NOTIFY_HASH = 1 << 4,    /* h */
    NOTIFY_ZSET = 1 << 5,    /* z */
    NOTIFY_EXPIRED = 1 << 6, /* x */
    NOTIFY_EVICTED = 1 << 7, /* e */
    NOTIFY_STREAM = 1 << 8,  /* t */
    NOTIFY_MODULE = 1 << 9,  /* d */
    NOTIFY_ALL = (1 << 10) - 1,
    NOTIFY_KEYSPACE = 1 << 10, /* K: to the channel of the key */
    NOTIFY_KEYEVENT = 1 << 11, /* E: to the channel of the event */
    NOTIFY_MISS = 1 << 12,     /* m */
    NOTIFY_NEW = 1 << 13,      /* n */
    NOTIFY_POOL = 1 << 14,     /* P, tarn's: put removed lost promoted demoted flushed */
    NOTIFY_NODES = 1 << 15,    /* N, tarn's: node-up node-down node-left */
};

/* false: s has a letter that means nothing. */
bool notify_parse(struct span s, unsigned *classes_p);
/* As Redis orders them, A for all of its types; tarn's letters at the end. */
void notify_format(unsigned classes, struct buf *out);
/* What must be mentioned when a letter is wrong. */
#define NOTIFY_LETTERS "KEg$lshzxetdmnAPN"

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
