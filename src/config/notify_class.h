/* The classes of keyspace notifications, as notify-keyspace-events names them. */
#ifndef TARN_CONFIG_NOTIFY_CLASS_H
#define TARN_CONFIG_NOTIFY_CLASS_H

#include <stdbool.h>
#include "base/buf.h"

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

#endif
