/* Channels, patterns of channels, and who listens to them. No clients and no replies here: see
 * pubsub.c. */
#ifndef TARN_FRONT_CHANNELS_H
#define TARN_FRONT_CHANNELS_H

#include <sys/queue.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

enum channel_kind { CHANNEL_PLAIN, CHANNEL_PATTERN, CHANNEL_SHARD, CHANNEL_KINDS };

/* Bounds: a message is compared with every pattern, and who listens to much costs memory until he
 * goes. */
#define CHANNEL_NAME_MAX       4096u
#define CHANNEL_PATTERN_MAX    1024u  /* bytes of a pattern */
#define CHANNEL_PATTERNS_MAX   10000u /* different ones */
#define CHANNEL_PER_SUBSCRIBER 100000u

TAILQ_HEAD(subscriptions, subscription);

/* One listener. Zero-initialised listens to nothing. */
struct subscriber {
    void *owner;
    struct subscriptions own[CHANNEL_KINDS]; /* TAILQ_INIT with the first */
    size_t count[CHANNEL_KINDS], bytes;
};

enum channel_result { CHANNEL_ADDED, CHANNEL_KNOWN, CHANNEL_FULL, CHANNEL_TOO_LONG };

enum channel_result channel_subscribe(struct subscriber *s, enum channel_kind kind,
                                      struct span name);
/* false: it did not listen to that. */
bool channel_unsubscribe(struct subscriber *s, enum channel_kind kind, struct span name);
/* The oldest of those it listens to; borrowed until it is unsubscribed. false: none. */
bool channel_first(const struct subscriber *s, enum channel_kind kind, struct span *name_p);
/* All of them. */
void channel_each(const struct subscriber *s, enum channel_kind kind,
                  void (*fn)(void *arg, struct span name), void *arg);
void channel_clear(struct subscriber *s);

/* fn for everyone who listens to name: directly first (pattern.data NULL), then for each pattern
 * that matches, oldest first. A shard channel has no patterns. fn must not change any subscription.
 * Returns how often fn was called. */
typedef void (*channel_fn)(void *arg, struct subscriber *s, struct span pattern);
size_t channel_publish(enum channel_kind kind, struct span name, channel_fn fn, void *arg);

/* Channels with subscribers. */
size_t channel_count(enum channel_kind kind);
size_t channel_subscribers(enum channel_kind kind, struct span name);
/* A walk over the names, as htab_scan: 0 begins and ends. */
uint64_t channel_scan(enum channel_kind kind, uint64_t cursor,
                      void (*fn)(void *arg, struct span name), void *arg);

#endif
