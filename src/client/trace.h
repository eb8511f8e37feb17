/* Traces: what a thread's calls are done for (a traceparent), and what they consist of (spans).
 *
 *   trace_begin ─> (lane_take, or direct_run: lane->trace) ─> stages ... ─> lane_give ─> trace_end
 *
 * A struct call_trace lies on the stack of the call. Where no thread has a traceparent and nobody
 * hears of spans it is one byte that says so. Spans are handed over at the end, without any
 * lock. */
#ifndef TARN_CLIENT_TRACE_H
#define TARN_CLIENT_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/assert.h"
#include "base/traceparent.h"
#include "client/ctl.h"
#include "tarn.h"

#define TRACE_STAGES 256u

struct engine_op;
struct lane;

/* Of a thread. */
struct trace_context {
    struct traceparent parent; /* "": none */
    uint64_t queued_ns;        /* monotonic: when the call was handed to a queue, 0: it was not */
};
extern bool trace_used; /* atomic: a thread has had one */

/* What a queue takes along from who submits to who runs it. */
void trace_context_take(struct trace_context *to, struct tarn_client *client);
/* Until trace_context_clear. */
void trace_context_use(const struct trace_context *from);
void trace_context_clear(void);

struct trace_stage {
    const char *name, *detail;  /* static; detail NULL: none */
    uint64_t began_ns, ends_ns; /* monotonic */
    uint64_t bytes;
    const char *transport; /* NULL: does not apply */
    char host[96];         /* "": likewise */
    tarn_status status;
};

struct call_trace {
    bool on; /* else nothing else is set */
    bool spans;
    struct tarn_client *client;
    struct traceparent told; /* to the server; "": nothing */
    struct traceparent parent;
    const char *name;
    size_t keys;
    uint64_t own; /* the number of its span; those of its stages follow */
    uint64_t began_ns, began_wall_ns;
    uint64_t sent_ns[CTL_NAMES]; /* when the last requests were sent, by number */
    struct trace_stage *stage;   /* owned */
    unsigned stages, stage_cap, left_out;
};

void trace_begin_full(struct call_trace *t, struct tarn_client *client, const char *name,
                      size_t keys);
/* Ends it, and hands its spans over. done: of its keys, those that were found or are there. */
void trace_end_full(struct call_trace *t, tarn_status status, size_t done, uint64_t bytes);

void trace_end_items(struct call_trace *t, tarn_status status, const tarn_item *items, size_t n);

/* --- stages: of the lane's call, if it has one whose spans are wanted --- */

/* The moment at which a stage begins; 0: nobody wants to know. */
uint64_t trace_moment(const struct lane *lane);
/* One that began then and ends now; NULL: it is not wanted, or there are too many. */
struct trace_stage *trace_stage_add(struct lane *lane, const char *name, uint64_t began_ns);
struct trace_stage *trace_stage_of(struct call_trace *t, const char *name, uint64_t began_ns);
/* The same of what lanes do. */
void trace_connected(struct lane *lane, uint64_t began_ns, tarn_status status);
void trace_sends(struct lane *lane); /* ... its next request; where lane->trace is set */
void trace_answered(struct lane *lane, uint64_t began_ns, tarn_status status);
void trace_moved(struct lane *lane, uint64_t began_ns, const struct engine_op *ops, size_t n);
void trace_file_read(struct lane *lane, uint64_t began_ns, tarn_status status, uint64_t bytes);

#endif
