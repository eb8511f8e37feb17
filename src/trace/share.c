#include "trace/share.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/draw.h"

void share_init(struct share_model *s, uint64_t seed) {
    *s = (struct share_model){0};
    rng_seed(&s->rng, seed);
    draw_zipf_init(s->zipf, SHARE_SYSTEMS, 1);
}

void share_free(struct share_model *s) {
    free(s->named);
    s->named = NULL;
    s->n_named = s->cap_named = 0;
}

static struct share_talk *named_talk(struct share_model *s, uint32_t named) {
    while (s->n_named <= named) {
        ARRAY_GROW(s->named, s->n_named, s->cap_named);
        s->named[s->n_named++] = (struct share_talk){.session = TRACE_SESSION_NONE};
    }
    return &s->named[named];
}

/* One of those that ended last, which fits into so many tokens; NULL: a new one begins. */
static struct share_talk *drawn_talk(struct share_model *s, uint32_t input) {
    if (s->n == 0 || draw_unit(&s->rng) > SHARE_CONTINUES) return NULL;
    for (unsigned i = 0; i < SHARE_TRIES; i++) {
        double back = draw_exponential(&s->rng, SHARE_RECENT / 8.0);
        if (back >= s->n) continue;
        struct share_talk *talk =
            &s->recent[(s->next + SHARE_RECENT - 1 - (uint32_t)back) % SHARE_RECENT];
        if (talk->tokens > 0 && talk->tokens <= input) return talk;
    }
    return NULL;
}

static uint64_t share_begin(struct share_model *s, struct trace *t, uint32_t blocks) {
    uint32_t system = (uint32_t)draw_zipf(&s->rng, s->zipf, SHARE_SYSTEMS);
    uint32_t common = SHARE_SYSTEM_TOKENS / t->block;
    if (s->next_id == 0) s->next_id = (uint64_t)SHARE_SYSTEMS * common;
    uint32_t n = common < blocks ? common : blocks;
    for (uint32_t i = 0; i < n; i++) t->ids[t->n_ids++] = (uint64_t)system * common + i;
    return n;
}

/* It is the latest now; where it was before, there is none. */
static void share_remember(struct share_model *s, struct share_talk talk, struct share_talk *old) {
    if (old != NULL) old->tokens = 0;
    s->recent[s->next] = talk;
    s->next = (s->next + 1) % SHARE_RECENT;
    if (s->n < SHARE_RECENT) s->n++;
}

bool share_ids(struct share_model *s, struct trace *t, uint32_t named, struct trace_request *q) {
    uint32_t blocks = (q->input + t->block - 1) / t->block;
    if (t->n_ids + blocks > TRACE_IDS_MAX) return false;
    while (t->cap_ids < t->n_ids + blocks) {
        t->cap_ids = t->cap_ids == 0 ? 1024 : 2 * t->cap_ids;
        t->ids = xrealloc(t->ids, t->cap_ids * sizeof(*t->ids));
    }
    q->first = t->n_ids;
    struct share_talk *old = named != UINT32_MAX ? named_talk(s, named) : drawn_talk(s, q->input);
    bool goes_on = old != NULL && old->session != TRACE_SESSION_NONE;
    if (goes_on) {
        uint32_t whole = old->n < q->input / t->block ? old->n : q->input / t->block;
        for (uint32_t i = 0; i < whole; i++) t->ids[t->n_ids++] = t->ids[old->first + i];
        q->session = old->session;
    } else {
        share_begin(s, t, blocks);
        q->session = s->sessions++;
    }
    while (t->n_ids < q->first + blocks) t->ids[t->n_ids++] = s->next_id++;
    q->n = blocks;
    struct share_talk talk = {.first = q->first,
                              .n = q->input / t->block,
                              .tokens = q->input + q->output,
                              .session = q->session};
    if (named != UINT32_MAX)
        *old = talk;
    else
        share_remember(s, talk, old);
    return true;
}
