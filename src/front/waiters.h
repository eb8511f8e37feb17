/* Clients that WAIT for a key to become complete. The books tell of each completed key; the waiters
 * of it are woken. */
#ifndef TARN_FRONT_WAITERS_H
#define TARN_FRONT_WAITERS_H
#include "front/cmd.h"

struct waiter; /* one job waiting for one key */
/* Wakes job (job_wake) when key becomes complete; keep the handle to take it back. */
struct waiter *waiter_add(struct job *job, struct span key);
void waiter_remove(struct waiter **waiter_p);
/* store_events.complete: notes the key; waiters_run wakes them outside the books. */
void waiters_notify(void *arg, struct span key);
/* What was away may be back: all of them look again. */
void waiters_wake_all(void);
size_t waiters_count(void);

#endif
