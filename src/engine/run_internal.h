/* What run.c (the life of an operation) and plan.c (slices) share.
 *
 *   op --plan--> slices, each in one segment        (large ones are striped: a slice per stream)
 *   ops of one length in one segment, each small --plan--> one slice: they travel, fail and are
 *                                                          taken apart together
 *   slice:  pending --stream, submit--> in flight --done--> over
 *              ^                            | the path failed
 *              +---- later, elsewhere ------+ */
#ifndef TARN_ENGINE_RUN_INTERNAL_H
#define TARN_ENGINE_RUN_INTERNAL_H

#include "engine/engine_internal.h"

/* Memory of one run, freed as a whole. */
struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

struct slice {
    struct transport_op top; /* parts and iov are the slice's own */
    struct op_run *run_op;
    /* All of its operations, run_op is the first; a merged one has several. */
    struct op_run **members;
    size_t n_members;
    struct engine_seg *seg;
    struct slice *next;      /* of the operation, in order */
    STAILQ_ENTRY(slice) due; /* pending */
    uint64_t at, length;     /* range of the value */
    struct engine_kind *kind;
    struct engine_stream *stream;
    bool spread; /* one of a stripe */
    unsigned tries;
    uint64_t since_ms; /* when it was submitted first */
    uint64_t not_before_ms;
};

struct op_run {
    struct engine_run *run;
    struct engine_op *op;
    struct slice *first, **last;
    size_t slices_left;
    uint64_t length;
    /* its local memory is a device's; NULL: the CPU may touch it */
    const struct engine_memory *device;
    bool planned;
    bool over;
};

struct engine_run {
    struct engine *e;
    struct op_run *ops;
    size_t n_ops, ops_left;
    size_t puts_in_flight; /* slices of writes */
    STAILQ_HEAD(, slice) pending;
    struct arena_chunk *arena;
    uint64_t deadline_ms; /* 0: none */
};

/* run.c */
void *run_alloc(struct engine_run *r, size_t size); /* until the run ends */
void run_slice_done(struct transport_op *top);

/* plan.c */
/* Slices of this operation alone, in o->first and not pending yet. Not TARN_OK: what the operation
 * ends with. */
tarn_status run_plan(struct engine_run *r, struct op_run *o, uint64_t now_ms);
/* One slice of the i'th operation and of later ones like it, which are planned with it. NULL: it is
 * one for run_plan. */
struct slice *run_plan_merged(struct engine_run *r, size_t i, uint64_t now_ms);

#endif
