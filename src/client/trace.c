#include "client/trace.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/iov.h"
#include "client/client.h"

enum { STAGES_FIRST = 16 };

bool trace_used;
static _Thread_local struct trace_context thread_context;

/* --- of threads --- */

tarn_status tarn_set_traceparent(const char *traceparent) {
    struct traceparent p = {""};
    bool none = traceparent == NULL || *traceparent == '\0';
    if (!none && !traceparent_read(span_str(traceparent), &p))
        return fail(TARN_EINVAL, "a traceparent is " TRACEPARENT_FORM);
    thread_context.parent = p;
    if (!none) __atomic_store_n(&trace_used, true, __ATOMIC_RELAXED);
    return TARN_OK;
}

void trace_context_take(struct trace_context *to, struct tarn_client *client) {
    to->parent = thread_context.parent;
    to->queued_ns = client->options.on_span != NULL ? clock_mono_ns() : 0;
}

void trace_context_use(const struct trace_context *from) {
    thread_context = *from;
}

void trace_context_clear(void) {
    thread_context = (struct trace_context){.queued_ns = 0};
}

/* --- of calls --- */

static void hex_put(char *to, uint64_t number) {
    for (unsigned i = 0; i < 16; i++) to[i] = "0123456789abcdef"[number >> (60 - 4 * i) & 15];
}

/* The new span is the parent of what the server notes, where its spans are heard of. */
static void trace_name(struct call_trace *t) {
    uint64_t ids[3];
    randombytes_buf(ids, sizeof(ids));
    t->own = ids[0] | 1; /* no id is 0 */
    t->told = t->parent;
    if (t->parent.text[0] == '\0') {
        memcpy(t->parent.text, "00-", 3);
        hex_put(t->parent.text + TRACEPARENT_TRACE, ids[1] | 1);
        hex_put(t->parent.text + TRACEPARENT_TRACE + 16, ids[2]);
        t->parent.text[TRACEPARENT_SPAN] = '\0'; /* the first of its trace */
    } else {
        hex_put(t->told.text + TRACEPARENT_SPAN, t->own);
    }
}

void trace_begin_full(struct call_trace *t, struct tarn_client *client, const char *name,
                      size_t keys) {
    uint64_t now_ns = clock_mono_ns(), queued_ns = thread_context.queued_ns;
    const struct traceparent *parent = &thread_context.parent;
    *t = (struct call_trace){.client = client, .name = name, .keys = keys, .parent = *parent};
    t->spans = client->options.on_span != NULL &&
               (parent->text[0] == '\0' || traceparent_is_sampled(parent));
    t->on = t->spans || parent->text[0] != '\0';
    t->told = *parent;
    if (!t->spans) return;
    trace_name(t);
    t->began_ns = queued_ns != 0 ? queued_ns : now_ns;
    t->began_wall_ns = clock_ns(CLOCK_REALTIME) - (now_ns - t->began_ns);
    thread_context.queued_ns = 0; /* it is for the first call */
    if (queued_ns == 0) return;
    struct trace_stage *stage = trace_stage_of(t, "queue", queued_ns);
    stage->ends_ns = now_ns;
}

/* --- stages --- */

struct trace_stage *trace_stage_of(struct call_trace *t, const char *name, uint64_t began_ns) {
    if (t->stages == TRACE_STAGES) {
        t->left_out++;
        return NULL;
    }
    if (t->stages == t->stage_cap) {
        t->stage_cap = t->stage_cap == 0 ? STAGES_FIRST : t->stage_cap * 2;
        t->stage = xrealloc(t->stage, t->stage_cap * sizeof(*t->stage));
    }
    struct trace_stage *stage = &t->stage[t->stages++];
    *stage = (struct trace_stage){
        .name = name, .began_ns = began_ns, .ends_ns = clock_mono_ns(), .status = TARN_OK};
    return stage;
}

uint64_t trace_moment(const struct lane *lane) {
    return UNLIKELY(lane->trace != NULL) && lane->trace->spans ? clock_mono_ns() : 0;
}

struct trace_stage *trace_stage_add(struct lane *lane, const char *name, uint64_t began_ns) {
    return began_ns != 0 && lane->trace != NULL ? trace_stage_of(lane->trace, name, began_ns)
                                                : NULL;
}

void trace_connected(struct lane *lane, uint64_t began_ns, tarn_status status) {
    struct trace_stage *stage = trace_stage_add(lane, "connect", began_ns);
    if (stage == NULL) return;
    stage->status = status;
    snprintf(stage->host, sizeof(stage->host), "%.76s:%s", lane->at.host, lane->at.port);
}

void trace_sends(struct lane *lane) {
    if (lane->trace->spans)
        lane->trace->sent_ns[(lane->ctl.sent + 1) % CTL_NAMES] = clock_mono_ns();
}

/* From when it was sent; but what was sent ahead, while bytes moved, kept nobody waiting then. */
static uint64_t wait_began(const struct call_trace *t, uint64_t number, uint64_t began_ns) {
    uint64_t sent_ns = t->sent_ns[number % CTL_NAMES],
             before_ns = t->stages > 0 ? t->stage[t->stages - 1].ends_ns : t->began_ns;
    return sent_ns >= before_ns && sent_ns < began_ns ? sent_ns : began_ns;
}

void trace_answered(struct lane *lane, uint64_t began_ns, tarn_status status) {
    if (began_ns == 0 || lane->trace == NULL) return;
    uint64_t number = ctl_answered(&lane->ctl, status == TARN_OK);
    began_ns = wait_began(lane->trace, number, began_ns);
    struct trace_stage *stage = trace_stage_add(lane, "request", began_ns);
    if (stage == NULL) return;
    stage->status = status;
    stage->detail = ctl_name_of(&lane->ctl, number);
    snprintf(stage->host, sizeof(stage->host), "%.76s:%s", lane->at.host, lane->at.port);
}

/* The transport of all operations that came to one; "mixed". */
static const char *transport_used(const struct engine_op *ops, size_t n) {
    const char *used = NULL;
    for (size_t i = 0; i < n; i++) {
        const char *one = ops[i].used != TRANSPORT_NONE ? transport_name(ops[i].used) : NULL;
        if (one != NULL && used != NULL && strcmp(one, used) != 0) return "mixed";
        if (one != NULL) used = one;
    }
    return used;
}

/* The segment that the first one is in, and how many others there are. */
static void segments_put(const struct lane *lane, const struct engine_op *ops, size_t n, char *out,
                         size_t cap) {
    uint32_t first = ops[0].parts[0].extent.segment;
    size_t others = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < ops[i].n_parts; k++) {
            uint32_t id = ops[i].parts[k].extent.segment;
            others += id != first && (i == 0 || id != ops[i - 1].parts[0].extent.segment);
        }
    }
    if (others == 0)
        snprintf(out, cap, "%s", segment_name(lane, first));
    else
        snprintf(out, cap, "%.64s and others", segment_name(lane, first));
}

void trace_moved(struct lane *lane, uint64_t began_ns, const struct engine_op *ops, size_t n) {
    if (began_ns == 0 || n == 0) return;
    struct trace_stage *stage = trace_stage_add(lane, ops[0].write ? "write" : "read", began_ns);
    if (stage == NULL) return;
    for (size_t i = 0; i < n; i++) {
        if (ops[i].status == TARN_OK)
            stage->bytes += iov_total(ops[i].iov, ops[i].n_iov);
        else
            stage->status = ops[i].status;
    }
    stage->transport = transport_used(ops, n);
    segments_put(lane, ops, n, stage->host, sizeof(stage->host));
}

void trace_file_read(struct lane *lane, uint64_t began_ns, tarn_status status, uint64_t bytes) {
    struct trace_stage *stage = trace_stage_add(lane, "read", began_ns);
    if (stage == NULL) return;
    stage->status = status;
    stage->bytes = bytes;
    stage->transport = "file";
}

/* --- handing over --- */

static void span_hand_over(struct call_trace *t, tarn_span *span, uint64_t began_ns,
                           uint64_t ends_ns) {
    const tarn_options *o = &t->client->options;
    span->size = sizeof(*span);
    span->cluster = o->cluster;
    span->trace_id[32] = span->span_id[16] = span->parent_id[16] = '\0';
    memcpy(span->trace_id, t->parent.text + TRACEPARENT_TRACE, 32);
    span->start_ns = t->began_wall_ns + (began_ns - t->began_ns);
    span->duration_ns = ends_ns - began_ns;
    o->on_span(o->span_arg, span);
}

static void stages_hand_over(struct call_trace *t) {
    for (unsigned i = 0; i < t->stages; i++) {
        const struct trace_stage *stage = &t->stage[i];
        tarn_span span = {.name = stage->name,
                          .detail = stage->detail,
                          .stage = 1,
                          .bytes = stage->bytes,
                          .status = stage->status,
                          .transport = stage->transport,
                          .host = stage->host[0] != '\0' ? stage->host : NULL};
        uint64_t id = t->own + i + 1;
        hex_put(span.span_id, id != 0 ? id : UINT64_MAX / 3);
        hex_put(span.parent_id, t->own);
        span_hand_over(t, &span, stage->began_ns, stage->ends_ns);
    }
}

/* What all stages that moved bytes have in common. */
static const char *transport_common(const struct call_trace *t) {
    const char *common = NULL;
    for (unsigned i = 0; i < t->stages; i++) {
        const char *one = t->stage[i].transport;
        if (one != NULL && common != NULL && strcmp(one, common) != 0) return "mixed";
        if (one != NULL) common = one;
    }
    return common;
}

void trace_end_full(struct call_trace *t, tarn_status status, size_t done, uint64_t bytes) {
    if (!t->spans) return;
    stages_hand_over(t);
    tarn_span span = {.name = t->name,
                      .keys = t->keys,
                      .done = done,
                      .bytes = bytes,
                      .status = status,
                      .transport = transport_common(t),
                      .stages_left_out = t->left_out};
    hex_put(span.span_id, t->own);
    if (t->parent.text[TRACEPARENT_SPAN] != '\0')
        memcpy(span.parent_id, t->parent.text + TRACEPARENT_SPAN, 16);
    span_hand_over(t, &span, t->began_ns, clock_mono_ns());
    free(t->stage);
}

void trace_end_items(struct call_trace *t, tarn_status status, const tarn_item *items, size_t n) {
    size_t done = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        done += items[i].status == TARN_OK || items[i].status == TARN_EEXISTS;
        bytes += items[i].got;
        /* of one key that is what the call returns */
        if (n == 1 && status == TARN_OK) status = (tarn_status)items[i].status;
    }
    trace_end_full(t, status, done, bytes);
}
