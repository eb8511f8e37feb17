/* What changes in a turn of the loop, as one batch of records (store/effect.h), on its way to who
 * writes it down: the append-only file, before the replies of that turn are flushed, and the
 * replicas. */
#ifndef TARN_FRONT_EFFECTS_H
#define TARN_FRONT_EFFECTS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "store/effect.h"

/* Kinds of records that are the server's own. */
enum {
    EFFECT_END = 64,     /* of a snapshot: u64 objects in it */
    EFFECT_PUBLISH = 65, /* u32 length of the channel, channel, message */
    EFFECT_MODULE = 66,  /* what a module keeps: module/durable.h */
};

/* Who wants to be told. While nobody does, changes cost nothing. */
enum effects_sink { EFFECTS_APPEND, EFFECTS_REPLICAS, EFFECTS_SNAPSHOT, EFFECTS_SINKS };
/* batch: whole records, of one turn, up to EFFECTS_BATCH_MAX and one record, where only replicas
 * are told up to EFFECTS_PIECE; several for a turn in which more happened. In the order of enum
 * effects_sink. NULL: does not want any more. */
typedef void (*effects_fn)(void *arg, struct span batch);
void effects_want(enum effects_sink sink, effects_fn fn, void *arg);
/* The books are others now: tells them whether to tell. */
void effects_retell(void);
#define EFFECTS_BATCH_MAX (UINT32_C(1) << 20)
#define EFFECTS_PIECE     (UINT32_C(16) << 10) /* still in the first cache when it is copied */

/* For store_events.effect and cluster_options.effect. */
void effects_note(void *arg, const void *record, size_t len);
void effects_publish(struct span channel, struct span message);
/* On a replica: what came from the master, for its own append-only file. */
void effects_pass(struct span batch);
/* Hands over what was noted. At the end of a turn, and whenever somebody must not miss what was
 * said so far (a snapshot begins). */
void effects_turn(void);
/* Records that were noted so far. */
extern uint64_t effects_noted;
/* Something was noted that was not handed over yet. */
bool effects_pending(void);
void effects_deinit(void);

#endif
