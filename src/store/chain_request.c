/* The blocks of a request come as look-ups (access, until prefix_done), and later, perhaps in turns
 * with those of other requests, as puts (insert). So the latest requests are kept, with the run
 * that each has come to. A look-up that found the beginning of its prompt only leaves an empty run
 * behind: until the puts come, or enough other requests have, it holds what they will follow. */
#include "store/chain_request.h"

#include <math.h>

#define GUARD_MIN   16u /* requests for which a look-up waits for its puts; most: CHAIN_RECENT */
#define GUARD_SHARE 64u /* and one for so many objects */
#define FIT_MAX     128u
#define FIT_SHARE   32u

bool chain_request_has_run(const struct chain_books *c, const struct chain_request *q) {
    const struct chain_run *r = chain_run(c, q->run);
    return q->run != 0 && r->born == q->number && !r->ghost;
}

/* Its puts do not come, or come too late. */
static void request_release(struct policy *p, struct chain_request *q) {
    const struct chain_books *c = &chain_state(p)->chain;
    q->over = true;
    if (!chain_request_has_run(c, q) || chain_run(c, q->run)->blocks > 0) return;
    uint32_t i = q->run;
    q->run = chain_run(c, i)->parent;
    chain_run_settle(p, i);
}

bool chain_clock_reach(struct policy *p, uint32_t request) {
    struct chain_books *c = &chain_state(p)->chain;
    bool first = c->clock == 0;
    if (request == 0 || (!first && (int32_t)(request - c->clock) <= 0)) return false;
    c->clock = request;
    if (first) chain_cells_begin(c);
    chain_cells_age(c, p->count);
    return true;
}

static void clock_set(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    struct chain_books *c = &s->chain;
    uint32_t before = c->clock;
    if (!chain_clock_reach(p, e->request)) return;
    uint32_t step = c->clock - before;
    if (s->seen > 0 && e->now_ms >= s->last_ms)
        s->request_ms += ((float)(e->now_ms - s->last_ms) / (float)step - s->request_ms) / 64;
    s->last_ms = e->now_ms;
    if (s->seen < UINT32_MAX) s->seen++;
    uint64_t guard = min_u64(max_u64(p->count / GUARD_SHARE, GUARD_MIN), CHAIN_RECENT - 1);
    uint32_t late = c->clock - (uint32_t)guard;
    if (s->recent[late % CHAIN_RECENT].number == late)
        request_release(p, &s->recent[late % CHAIN_RECENT]);
    if (--s->fit_in == 0) {
        chain_value_fit(&c->value);
        chain_cells_changed(c);
        s->fit_in = (uint32_t)min_u64(CHAIN_FIT_MIN + s->seen / FIT_SHARE, FIT_MAX);
    }
}

struct chain_request *chain_request_find(struct chain_policy *s, uint32_t number) {
    struct chain_request *q = &s->recent[number % CHAIN_RECENT];
    if (q->number == number) return q;
    return s->late.number == number ? &s->late : NULL;
}

void chain_request_came(struct chain_request *q, uint32_t before, uint32_t blocks) {
    if (q->came < before) q->came = before;
    q->came += blocks;
    if (q->came >= q->length) q->over = true;
}

static struct chain_request *request_begin(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    if (s->open) chain_request_finish(p, s->open);
    struct chain_request *q = &s->recent[e->request % CHAIN_RECENT];
    if (q->number != 0 && (int32_t)(q->number - e->request) > 0) q = &s->late;
    request_release(p, q);
    *q = (struct chain_request){.number = e->request};
    clock_set(p, e);
    return q;
}

struct chain_request *chain_request_of(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = chain_state(p);
    chain_puts_over(s);
    struct chain_request *q = chain_request_find(s, e->request);
    if (UNLIKELY(!q)) q = request_begin(p, e);
    uint32_t length = e->length > 0 ? e->depth - e->position + e->length : 0;
    if (length > q->length) q->length = length;
    if (e->session) q->session = e->session;
    if (e->return_ms)
        q->returns = (uint32_t)fminf((float)e->return_ms / fmaxf(s->request_ms, 0.001f), 1e9f) + 1;
    return q;
}

/* It has used run up to its block at: what is behind that is left, unless it is the end. */
static uint32_t run_leave_rest(struct policy *p, struct chain_books *c,
                               const struct chain_request *q) {
    uint32_t u = chain_run_split(p, q->run, record_get(p->records, q->at));
    struct chain_run *rest = chain_run(c, q->run);
    if (rest->list != CHAIN_NOWHERE) {
        chain_unlink(c, rest);
        rest->kind = CHAIN_LEFT;
        chain_link(c, q->run);
    }
    return u;
}

void chain_request_await(struct chain_books *c, struct chain_request *q, uint32_t behind) {
    q->run = chain_run_new(c, behind);
    if (!q->made) q->top = q->run;
    chain_run(c, q->run)->born = q->number;
    q->made = true;
    q->looked = false;
}

void chain_run_change_hands(struct chain_policy *s, uint32_t i, uint32_t behind) {
    struct chain_request *q = &s->recent[chain_run(&s->chain, i)->born % CHAIN_RECENT];
    if (q->number != chain_run(&s->chain, i)->born || q->over) return;
    if (q->last == i)
        q->last = 0;
    else if (q->run != i)
        return;
    uint32_t top = q->top == i && behind != i ? 0 : q->top;
    if (behind) chain_request_await(&s->chain, q, behind);
    q->top = top || !behind ? top : q->run;
}

void chain_request_leave_run(struct policy *p, struct chain_request *q) {
    struct chain_books *c = &chain_state(p)->chain;
    if (!q->reading) return;
    q->reading = false;
    struct chain_run *r = chain_run(c, q->run);
    if (r->list != CHAIN_NOWHERE) chain_run_returned(c, r, q->used);
    bool whole = chain_run_last(p, r) == record_get(p->records, q->at);
    if (!whole) {
        q->run = run_leave_rest(p, c, q);
        q->branched = true;
        r = chain_run(c, q->run);
    }
    q->shared = whole && r->grown;
    q->turn = chain_turn_after(r);
    chain_unlink(c, r);
    if (r->kind != CHAIN_SHARED) r->kind = CHAIN_REUSED;
    chain_run_change_hands(chain_state(p), q->run, q->run);
    r = chain_run(c, q->run);
    r->born = q->number;
}

/* Clients may say which requests are one session; that a session is new says nothing. */
static uint32_t session_turn(struct chain_policy *s, const struct chain_request *q, uint32_t turn) {
    if (q->session == 0) return turn;
    struct chain_session *x = &s->sessions[q->session % CHAIN_SESSIONS];
    if (x->id != q->session) *x = (struct chain_session){.id = q->session};
    if (x->number != q->number && x->turn >= turn)
        turn = x->turn < CHAIN_TURN_MAX ? x->turn + 1 : CHAIN_TURN_MAX;
    else if (x->number == q->number && x->turn > turn)
        turn = x->turn;
    x->number = q->number;
    x->turn = turn;
    return turn;
}

void chain_run_describe(struct chain_books *c, const struct chain_request *q, uint32_t i,
                        uint32_t turn, bool begins) {
    struct chain_run *r = chain_run(c, i);
    uint32_t part = r->kind == CHAIN_NEW && q->length > q->known ? q->length - q->known : q->known;
    if (r->kind == CHAIN_LAST) part = 1;
    if (r->kind != CHAIN_NEW && r->kind != CHAIN_LAST) {
        if (begins) r->kind = CHAIN_SHARED;
        if (r->kind == CHAIN_SHARED)
            part = r->blocks;
        else
            r->kind = q->branched ? CHAIN_BRANCHED : CHAIN_REUSED;
    }
    r->turn = turn;
    r->length = chain_length_class(q->length);
    r->growth = chain_growth_class(begins ? 0 : q->known, q->length);
    r->branched = q->branched;
    if (q->returns && r->kind != CHAIN_SHARED && r->kind != CHAIN_LAST) {
        r->kind = CHAIN_AWAITED;
        r->length = chain_return_class(&c->value, q->returns);
    }
    chain_describe(c, i, chain_weight(part));
}

void chain_request_finish(struct policy *p, struct chain_request *q) {
    struct chain_policy *s = chain_state(p);
    struct chain_books *c = &s->chain;
    chain_puts_over(s);
    chain_request_leave_run(p, q);
    if (s->open == q) s->open = NULL;
    bool begins = q->shared && q->known < q->length;
    uint32_t turn = session_turn(s, q, q->turn == 0 || begins ? 1 : q->turn);
    const struct chain_run *last = chain_run(c, q->last);
    if (q->last && last->born == q->number && !last->ghost)
        chain_run_describe(c, q, q->last, turn, false);
    if (!chain_request_has_run(c, q)) return;
    for (uint32_t i = q->run; i && chain_run(c, i)->born == q->number; i = chain_run(c, i)->parent)
        chain_run_describe(c, q, i, turn, begins);
}
