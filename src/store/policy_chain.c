/* chain: prefix caches hold chains, in which a block is worth nothing once one before it is gone,
 * and of which three quarters are never asked for again. What a request has used and added becomes
 * runs (chain.h); from what came back, and when, and from what did not, chain_value.c learns what a
 * run is worth; the one worth least loses its last block.
 *
 * What tells runs apart is in the requests themselves: which blocks were there before, how many
 * were new, how often this prompt went on, whether it left another one. A request begins another
 * prompt, if it leaves one where others did before it: what it shares with them is no turn of it.
 *
 * The blocks of a request come as look-ups (access, until prefix_done), and later, perhaps in turns
 * with those of other requests, as puts (insert). So the latest requests are kept, with the run
 * that each has come to. A look-up that found the beginning of its prompt only leaves an empty run
 * behind: until the puts come, or enough other requests have, it holds what they will follow. */
#include <math.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/buf.h"
#include "store/chain.h"

#define RECENT        256u /* requests */
#define GUARD_MIN     16u  /* requests for which a look-up waits for its puts; most: RECENT */
#define GUARD_SHARE   64u  /* and one for so many objects */
#define SESSIONS      512u
#define FIT_MIN       16u /* requests between fits: few at first, and more the more was seen */
#define FIT_MAX       128u
#define FIT_SHARE     32u
#define ANCESTORS_MAX 64u
#define OUT_LOOKS     8u
#define YOUNG_MARKS   4u
#define YOUNG_SHARE   4u /* one of so many objects that were put last is young */
#define CHILDREN_MAX  ((1u << 24) - 1 - CHAIN_RUN_BLOCKS)

struct chain_request {
    uint32_t number;
    uint32_t run;              /* the deepest that it has used or made; 0: none */
    uint32_t last;             /* that of its last block, behind run; 0: none */
    uint32_t known;            /* blocks from the start that had been here before */
    uint32_t length;           /* blocks of its prompt, as far as it has told */
    uint32_t came;             /* of these have been used or put */
    uint32_t session, returns; /* in so many requests; 0: not told */
    object_ref at;             /* the block of run that it has come to */
    uint8_t used;              /* blocks of run up to there */
    uint8_t turn;              /* 0: of a prompt that nobody knows */
    bool reading;              /* it is in run */
    bool shared;               /* behind run something else goes on */
    bool branched;
    bool made;    /* run is its own */
    bool unknown; /* what it puts now was never here */
    bool over;    /* nothing more is waited for */
    bool looked;  /* it has used nothing: run waits behind what it has found */
};

struct chain_session {
    uint32_t id, number, turn;
};

/* Most puts are of the next block of a run that their request makes, of which all is known. What
 * these change is noted (puts_over) before anybody looks at it. */
struct chain_puts {
    uint32_t request, run; /* 0: there is none */
    uint32_t depth, end;   /* of those to come; not the last block of the prompt */
    uint32_t session;
    uint32_t room, came; /* blocks that the run still takes; that were not noted yet */
};

struct chain_policy {
    struct chain_books chain; /* first: chain_runs.c finds it here */
    struct chain_request recent[RECENT];
    struct chain_request late; /* one that has fallen out of recent */
    struct chain_request *open;
    struct chain_puts puts;
    struct chain_session sessions[SESSIONS];
    uint32_t mark[YOUNG_MARKS]; /* clock, each time that a part of the young was put */
    uint32_t marks, unmarked;   /* ever made; puts since the last one */
    uint32_t loose[RECENT];     /* by request: the run of blocks that came later than it */
    uint32_t seen, fit_in;
    uint64_t last_ms;
    float request_ms; /* between two requests */
};

static struct chain_policy *state_of(const struct policy *p) {
    return *(struct chain_policy **)p->state;
}

/* Only policies that objects come to need it. */
static struct chain_policy *state_made(struct policy *p) {
    struct chain_policy *s = state_of(p);
    if (LIKELY(s != NULL)) return s;
    s = xcalloc(1, sizeof(*s));
    struct chain_books *c = &s->chain;
    size_t cells = (size_t)CHAIN_SORTS * CHAIN_SLOTS * sizeof(struct chain_cell);
    bool reserved =
        page_arena_init(&c->arena, (size_t)CHAIN_RUNS_MAX * sizeof(struct chain_run), false) &&
        page_arena_init(&c->cells.arena, cells, false);
    TARN_ASSERT(reserved);
    c->runs = 1;
    chain_value_init(&c->value);
    chain_cells_age(c, 0);
    c->ghosts.cap = 2 * CHAIN_GHOSTS;
    c->ghosts.ring = xcalloc(c->ghosts.cap, sizeof(uint32_t));
    c->ghosts.prints = 2 * c->ghosts.cap;
    c->ghosts.by_print = xcalloc(c->ghosts.prints, sizeof(uint32_t));
    s->fit_in = FIT_MIN;
    *(struct chain_policy **)p->state = s;
    return s;
}

static void chain_open(struct policy *p) {}

static void parked_free(void *arg, struct htab_node *node) {
    free(CONTAINER_OF(node, struct chain_parked, node));
}

static void chain_close(struct policy *p) {
    struct chain_policy *s = state_of(p);
    if (!s) return;
    page_arena_free(&s->chain.arena);
    page_arena_free(&s->chain.cells.arena);
    free(s->chain.ghosts.ring);
    free(s->chain.ghosts.by_print);
    free(s->chain.out);
    htab_each(&s->chain.parked, parked_free, NULL);
    htab_free(&s->chain.parked);
    free(s);
}

/* --- the latest requests --- */

static bool request_has_run(const struct chain_books *c, const struct chain_request *q) {
    const struct chain_run *r = chain_run(c, q->run);
    return q->run != 0 && r->born == q->number && !r->ghost;
}

/* Its puts do not come, or come too late. */
static void request_release(struct policy *p, struct chain_request *q) {
    const struct chain_books *c = &state_of(p)->chain;
    q->over = true;
    if (!request_has_run(c, q) || chain_run(c, q->run)->blocks > 0) return;
    uint32_t i = q->run;
    q->run = chain_run(c, i)->parent;
    chain_run_settle(p, i);
}

/* Returns false if it was there already. 0 is no request, and the first may have any number. */
static bool clock_reach(struct policy *p, uint32_t request) {
    struct chain_books *c = &state_of(p)->chain;
    bool first = c->clock == 0;
    if (request == 0 || (!first && (int32_t)(request - c->clock) <= 0)) return false;
    c->clock = request;
    if (first) chain_cells_begin(c);
    chain_cells_age(c, p->count);
    return true;
}

static void clock_set(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = state_of(p);
    struct chain_books *c = &s->chain;
    uint32_t before = c->clock;
    if (!clock_reach(p, e->request)) return;
    uint32_t step = c->clock - before;
    if (s->seen > 0 && e->now_ms >= s->last_ms)
        s->request_ms += ((float)(e->now_ms - s->last_ms) / (float)step - s->request_ms) / 64;
    s->last_ms = e->now_ms;
    if (s->seen < UINT32_MAX) s->seen++;
    uint64_t guard = min_u64(max_u64(p->count / GUARD_SHARE, GUARD_MIN), RECENT - 1);
    uint32_t late = c->clock - (uint32_t)guard;
    if (s->recent[late % RECENT].number == late) request_release(p, &s->recent[late % RECENT]);
    if (--s->fit_in == 0) {
        chain_value_fit(&c->value);
        chain_cells_changed(c);
        s->fit_in = (uint32_t)min_u64(FIT_MIN + s->seen / FIT_SHARE, FIT_MAX);
    }
}

/* NULL: it is not among the latest. */
static struct chain_request *request_find(struct chain_policy *s, uint32_t number) {
    struct chain_request *q = &s->recent[number % RECENT];
    if (q->number == number) return q;
    return s->late.number == number ? &s->late : NULL;
}

/* --- blocks that come one after the other --- */

static void request_came(struct chain_request *q, uint32_t before, uint32_t blocks) {
    if (q->came < before) q->came = before;
    q->came += blocks;
    if (q->came >= q->length) q->over = true;
}

static void puts_over(struct chain_policy *s) {
    struct chain_puts *n = &s->puts;
    if (n->came > 0) {
        struct chain_run *r = chain_run(&s->chain, n->run);
        chain_run_size(&s->chain, r, r->blocks + n->came);
        request_came(&s->recent[n->request % RECENT], 0, n->came);
        s->unmarked += n->came;
    }
    n->request = n->came = 0;
}

/* A block of the request has come into its run. */
static void puts_begin(const struct policy *p, const struct chain_request *q,
                       const struct object *o, const struct policy_event *e) {
    struct chain_policy *s = state_of(p);
    uint32_t i = o->request;
    const struct chain_run *r = chain_run(&s->chain, i);
    if (q->run != i || !q->made || q->last || !q->unknown || r->kind != CHAIN_NEW) return;
    if (!e->put || s->chain.parked.count > 0 || chain_run_last(p, r) != o) return;
    s->puts = (struct chain_puts){.request = q->number,
                                  .run = i,
                                  .depth = e->depth + 1,
                                  .end = q->length,
                                  .session = q->session,
                                  .room = CHAIN_RUN_BLOCKS - r->blocks};
}

static inline bool puts_next(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_policy *s = state_of(p);
    struct chain_puts *n = &s->puts;
    if (n->request != e->request || n->request == 0 || n->came == n->room) return false;
    if (e->depth < n->depth || e->depth + 1 >= n->end) return false;
    if (e->session != n->session || !e->put || e->next || e->return_ms) return false;
    if (e->depth - e->position + e->length > n->end) return false;
    const struct chain_run *r = chain_run(&s->chain, n->run);
    if (!r->first) return false;
    o->request = n->run;
    o->bits &= ~(uint32_t)OBJECT_Q1;
    list_push_back(p->records, r->first, o);
    p->count++;
    n->depth = e->depth + 1;
    n->came++;
    return true;
}

static void request_finish(struct policy *p, struct chain_request *q);

static struct chain_request *request_begin(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = state_of(p);
    if (s->open) request_finish(p, s->open);
    struct chain_request *q = &s->recent[e->request % RECENT];
    if (q->number != 0 && (int32_t)(q->number - e->request) > 0) q = &s->late;
    request_release(p, q);
    *q = (struct chain_request){.number = e->request};
    clock_set(p, e);
    return q;
}

static struct chain_request *request_of(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = state_of(p);
    puts_over(s);
    struct chain_request *q = request_find(s, e->request);
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

static uint8_t turn_after(const struct chain_run *r) {
    return r->turn < CHAIN_TURN_MAX ? (uint8_t)(r->turn + 1) : (uint8_t)CHAIN_TURN_MAX;
}

static void request_await(struct chain_books *c, struct chain_request *q, uint32_t behind) {
    q->run = chain_run_new(c, behind);
    chain_run(c, q->run)->born = q->number;
    q->made = true;
    q->looked = false;
}

/* Another request takes a run, or its last block goes: what the one which has used it last still
 * puts comes behind it all the same (behind), or behind its parent. */
static void run_change_hands(struct chain_policy *s, uint32_t i, uint32_t behind) {
    struct chain_request *q = &s->recent[chain_run(&s->chain, i)->born % RECENT];
    if (q->number != chain_run(&s->chain, i)->born || q->over) return;
    if (q->last == i)
        q->last = 0;
    else if (q->run != i)
        return;
    if (behind) request_await(&s->chain, q, behind);
}

static void request_leave_run(struct policy *p, struct chain_request *q) {
    struct chain_books *c = &state_of(p)->chain;
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
    q->turn = turn_after(r);
    chain_unlink(c, r);
    if (r->kind != CHAIN_SHARED) r->kind = CHAIN_REUSED;
    run_change_hands(state_of(p), q->run, q->run);
    r = chain_run(c, q->run);
    r->born = q->number;
}

/* Clients may say which requests are one session; that a session is new says nothing. */
static uint32_t session_turn(struct chain_policy *s, const struct chain_request *q, uint32_t turn) {
    if (q->session == 0) return turn;
    struct chain_session *x = &s->sessions[q->session % SESSIONS];
    if (x->id != q->session) *x = (struct chain_session){.id = q->session};
    if (x->number != q->number && x->turn >= turn)
        turn = x->turn < CHAIN_TURN_MAX ? x->turn + 1 : CHAIN_TURN_MAX;
    else if (x->number == q->number && x->turn > turn)
        turn = x->turn;
    x->number = q->number;
    x->turn = turn;
    return turn;
}

static void run_describe(struct chain_books *c, const struct chain_request *q, uint32_t i,
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

/* What it has used and made becomes what it is now, and the youngest. */
static void request_finish(struct policy *p, struct chain_request *q) {
    struct chain_policy *s = state_of(p);
    struct chain_books *c = &s->chain;
    puts_over(s);
    request_leave_run(p, q);
    if (s->open == q) s->open = NULL;
    bool begins = q->shared && q->known < q->length;
    uint32_t turn = session_turn(s, q, q->turn == 0 || begins ? 1 : q->turn);
    const struct chain_run *last = chain_run(c, q->last);
    if (q->last && last->born == q->number && !last->ghost)
        run_describe(c, q, q->last, turn, false);
    if (!request_has_run(c, q)) return;
    for (uint32_t i = q->run; i && chain_run(c, i)->born == q->number; i = chain_run(c, i)->parent)
        run_describe(c, q, i, turn, begins);
}

/* --- look-ups --- */

/* Runs that came in parts are one behind the other, as a request has used them. */
static void run_follow(struct policy *p, uint32_t parent, uint32_t i) {
    struct chain_books *c = &state_of(p)->chain;
    uint32_t before = chain_run(c, i)->parent;
    if (before == parent || chain_run(c, parent)->children >= CHILDREN_MAX) return;
    unsigned n = 0;
    for (uint32_t up = parent; up; up = chain_run(c, up)->parent)
        if (up == i || ++n == ANCESTORS_MAX) return;
    chain_run(c, i)->parent = parent;
    chain_run(c, parent)->children++;
    chain_relink(c, parent);
    if (before) chain_run_less(p, before);
}

/* A get after the look-up: it uses what it had found. */
static void request_unlook(struct policy *p, struct chain_request *q) {
    if (!q->looked) return;
    q->looked = false;
    const struct chain_books *c = &state_of(p)->chain;
    bool has_run = request_has_run(c, q);
    if (has_run && chain_run(c, q->run)->blocks > 0) return;
    uint32_t i = has_run ? q->run : 0;
    q->run = 0;
    q->made = q->branched = q->shared = false;
    q->turn = 0;
    if (i) chain_run_settle(p, i);
}

static void chain_access(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_policy *s = state_of(p);
    struct chain_books *c = &s->chain;
    struct chain_request *q = request_of(p, e);
    object_ref ref = record_ref(p->records, o);
    request_unlook(p, q);
    if (q->reading && q->run == o->request) {
        if (record_get(p->records, q->at)->next != ref || chain_run(c, q->run)->first == ref)
            return;
        q->used++;
    } else {
        if (chain_run(c, o->request)->born == e->request) return;
        if (s->open && s->open != q) request_finish(p, s->open);
        request_leave_run(p, q);
        if (chain_run(c, o->request)->first != ref)
            chain_run_split(p, o->request, record_get(p->records, o->prev));
        if (request_has_run(c, q)) {
            run_follow(p, q->run, o->request);
            /* what it has used so far is not to be found from the next run */
            if (chain_run(c, o->request)->parent != q->run) request_finish(p, q);
        }
        s->open = q;
        q->reading = true;
        q->run = o->request;
        q->used = 1;
    }
    q->came++;
    q->at = ref;
    q->known = e->depth + 1;
}

static void chain_prefix_done(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = state_of(p);
    struct chain_request *q = s ? request_find(s, e->request) : NULL;
    if (!q) return;
    (void)request_of(p, e); /* how long it is */
    if (s->open == q || e->put) request_finish(p, q);
    if (e->put || q->made || q->known >= q->length || !request_has_run(&s->chain, q)) return;
    request_await(&s->chain, q, q->run);
}

/* --- puts --- */

/* What was evicted and comes again is a return, and the blocks behind it may be, too. */
static void request_probe(struct policy *p, struct chain_request *q, const struct policy_event *e) {
    struct chain_books *c = &state_of(p)->chain;
    uint32_t i = chain_ghost_find(c, e->hash);
    q->unknown = i == 0;
    if (i == 0) return;
    struct chain_run *g = chain_run(c, i);
    chain_ghost_forget(c, i);
    unsigned lost = g->blocks;
    if (g->ghost) {
        if (g->list != CHAIN_NOWHERE) chain_run_returned(c, g, lost);
        chain_unlink(c, g);
        q->turn = turn_after(g);
        q->shared = g->grown;
    } else { /* the end of a run whose beginning this request has found */
        unsigned left = chain_run_count(p, g);
        lost = lost > left ? lost - left : 1;
        chain_run_size(c, g, left);
        q->shared = false;
    }
    q->known = e->depth + lost;
}

static uint32_t run_of_put(struct policy *p, struct chain_request *q, enum chain_kind kind) {
    struct chain_books *c = &state_of(p)->chain;
    uint32_t parent = request_has_run(c, q) ? q->run : 0;
    if (parent && chain_run(c, parent)->children >= CHILDREN_MAX) parent = 0;
    uint32_t i = chain_run_new(c, parent);
    struct chain_run *r = chain_run(c, i);
    r->kind = kind;
    r->born = q->number;
    if (kind == CHAIN_LAST) {
        q->last = i;
    } else {
        if (parent) chain_run(c, parent)->grown = 1;
        q->run = i;
        q->made = true;
    }
    return i;
}

/* The run of the request that a block of that kind and depth belongs to; 0: a new one. */
static uint32_t run_for_put(struct policy *p, struct chain_request *q, enum chain_kind kind,
                            uint32_t depth) {
    struct chain_books *c = &state_of(p)->chain;
    if (kind == CHAIN_LAST) return 0;
    if (q->last) { /* it was not the last */
        struct chain_run *last = chain_run(c, q->last);
        if (last->born != q->number || last->ghost) {
            q->last = 0;
        } else if (last->first && object_depth(chain_run_last(p, last)) < depth) {
            chain_unlink(c, last);
            last->kind = kind;
            q->run = q->last;
            q->last = 0;
            q->made = true;
            if (last->parent) chain_run(c, last->parent)->grown = 1;
        }
    }
    if (!q->made || !request_has_run(c, q)) return 0;
    struct chain_run *r = chain_run(c, q->run);
    if (r->blocks == CHAIN_RUN_BLOCKS) return 0;
    if (r->blocks == 0) {
        chain_unlink(c, r);
        r->kind = kind;
        if (r->parent) chain_run(c, r->parent)->grown = 1;
    }
    return r->kind == kind || r->kind == CHAIN_AWAITED ? q->run : 0;
}

static uint32_t first_depth(const struct policy *p, const struct chain_run *r) {
    return object_depth(record_get(p->records, r->first));
}

/* The first run of the request's prompt with blocks deeper than that; 0: none, as where puts end in
 * the order of their prompt. */
static uint32_t run_behind(const struct policy *p, const struct chain_request *q, uint32_t depth) {
    const struct chain_books *c = &state_of(p)->chain;
    const struct chain_run *last = chain_run(c, q->last);
    bool has_last = q->last && last->born == q->number && !last->ghost;
    uint32_t found = 0, i = has_last ? q->last : request_has_run(c, q) ? q->run : 0;
    for (unsigned n = 0; i && n < ANCESTORS_MAX; n++) {
        const struct chain_run *r = chain_run(c, i);
        if (r->first) {
            if (object_depth(chain_run_last(p, r)) <= depth) break;
            found = i;
            if (first_depth(p, r) <= depth) break;
        } else if (r->kind == CHAIN_LAST) { /* parked */
            found = i;
        }
        i = r->parent;
    }
    return found;
}

static bool run_takes(const struct chain_books *c, const struct chain_request *q, uint32_t i,
                      enum chain_kind kind) {
    const struct chain_run *r = chain_run(c, i);
    return i && kind != CHAIN_LAST && r->born == q->number && r->kind == kind && r->first &&
           r->blocks < CHAIN_RUN_BLOCKS;
}

/* Its puts do not end in order: into the runs that are there, or a new one between them. */
static uint32_t run_between(struct policy *p, const struct chain_request *q, uint32_t behind,
                            enum chain_kind kind, uint32_t depth) {
    struct chain_books *c = &state_of(p)->chain;
    struct chain_run *r = chain_run(c, behind);
    if (r->first && first_depth(p, r) <= depth) {
        if (r->blocks < CHAIN_RUN_BLOCKS) return behind;
        struct object *at = record_get(p->records, r->first);
        while (object_depth(record_get(p->records, at->next)) <= depth)
            at = record_get(p->records, at->next);
        return chain_run_split(p, behind, at);
    }
    if (run_takes(c, q, behind, kind)) return behind;
    if (run_takes(c, q, r->parent, kind)) return r->parent;
    uint32_t i = chain_run_new(c, r->parent);
    struct chain_run *between = chain_run(c, i);
    r = chain_run(c, behind);
    if (r->parent) chain_run(c, r->parent)->children--;
    r->parent = i;
    between->children = 1;
    between->grown = 1;
    between->kind = kind;
    between->born = q->number;
    return i;
}

/* --- in memory, but in no order --- */

static bool same_parked(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct chain_parked, node)->object == *(const object_ref *)key;
}

/* NULL: it is not parked. */
static struct chain_parked *parked_find(const struct policy *p, const struct object *o) {
    const struct chain_policy *s = state_of(p);
    if (LIKELY(!s || s->chain.parked.count == 0)) return NULL;
    object_ref ref = record_ref(p->records, o);
    struct htab_node *n = htab_find(&s->chain.parked, hash_u64(ref), same_parked, &ref);
    return n ? CONTAINER_OF(n, struct chain_parked, node) : NULL;
}

static void parked_drop(struct chain_books *c, struct chain_parked *k) {
    htab_remove(&c->parked, &k->node);
    free(k);
}

/* A child of run i is one of its blocks again, or one of what has been split from it since. */
static void run_regain(struct policy *p, uint32_t i, struct object *o) {
    struct chain_books *c = &state_of(p)->chain;
    uint32_t at = i, up;
    while ((up = chain_run(c, at)->parent) && chain_run(c, up)->first &&
           object_depth(chain_run_last(p, chain_run(c, up))) > object_depth(o))
        at = up;
    chain_run_add(p, at, o);
    chain_run_less(p, i);
}

static bool parked_back(struct policy *p, struct object *o) {
    struct chain_parked *k = parked_find(p, o);
    if (!k) return false;
    uint32_t i = k->run;
    parked_drop(&state_of(p)->chain, k);
    run_regain(p, i, o);
    return true;
}

/* The blocks of a run up to one of its own, or (held, parked) up to where that was, as a run. 0:
 * there is none. */
static uint32_t run_up_to(struct policy *p, uint32_t i, struct object *o, bool in_order) {
    const struct chain_run *r = chain_run(&state_of(p)->chain, i);
    if (!r->first) return i;
    struct object *last = chain_run_last(p, r), *at = o;
    if (!in_order) {
        const struct object *first = record_get(p->records, r->first);
        for (at = last; at != first && object_depth(at) > object_depth(o);)
            at = record_get(p->records, at->prev);
        if (object_depth(at) > object_depth(o)) return r->parent;
    }
    return at == last ? i : chain_run_split(p, i, at);
}

/* It is not used, so it gets no younger; but what is put behind it is not to be put in vain. */
static void chain_found(struct policy *p, struct object *o, bool parked,
                        const struct policy_event *e) {
    if (!state_of(p) || e->request == 0) return;
    struct chain_books *c = &state_of(p)->chain;
    struct chain_request *q = request_of(p, e);
    if (q->run || q->last) return;
    const struct chain_parked *k = parked ? parked_find(p, o) : NULL;
    if (parked && !k) return;
    uint32_t i = k ? k->run : o->request, u = run_up_to(p, i, o, !parked && list_linked(o));
    if (u == 0) return;
    const struct chain_run *r = chain_run(c, u);
    q->known = e->depth;
    q->turn = turn_after(r);
    q->branched = u != i;
    q->shared = u == i && r->grown;
    request_await(c, q, u);
    q->looked = true;
}

/* One that comes from another policy, or had no turn here: with others of the request that used it
 * last, in whatever order they come. */
static void insert_loose(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_policy *s = state_made(p);
    struct chain_books *c = &s->chain;
    uint32_t *loose = &s->loose[e->request % RECENT];
    const struct chain_run *of = chain_run(c, *loose);
    bool joins = *loose && of->kind == CHAIN_LEFT && of->first && of->born == e->request &&
                 e->request != 0 && of->blocks < CHAIN_RUN_BLOCKS;
    if (!joins) {
        *loose = chain_run_new(c, 0);
        struct chain_run *r = chain_run(c, *loose);
        r->kind = CHAIN_LEFT;
        r->turn = 1;
        r->born = e->request;
        clock_reach(p, r->born);
        chain_link(c, *loose);
    }
    struct chain_run *r = chain_run(c, *loose);
    chain_run_size(c, r, r->blocks + 1);
    chain_run_add(p, *loose, o);
}

/* It is back from a disk. */
static void ghost_over(struct chain_books *c, uint64_t hash) {
    uint32_t i = chain_ghost_find(c, hash);
    if (i == 0 || !chain_run(c, i)->ghost) return;
    chain_ghost_forget(c, i);
    chain_unlink(c, chain_run(c, i));
}

/* One block more was put. What a request puts says what it is worth, by all that is around it; a
 * block that is all of its request says nothing, and whoever put it may come for it at once. So the
 * last of these stay, whatever has been learnt. */
static void young_note(struct policy *p, struct chain_policy *s) {
    uint64_t parts = min_u64(max_u64(p->count / YOUNG_SHARE, 1), YOUNG_MARKS);
    if (++s->unmarked < max_u64(p->count / (YOUNG_SHARE * YOUNG_MARKS), 1)) return;
    s->unmarked = 0;
    s->mark[s->marks++ % YOUNG_MARKS] = s->chain.clock;
    s->chain.young = s->mark[(s->marks - parts) % YOUNG_MARKS];
}

static __attribute__((noinline)) void insert_any(struct policy *p, struct object *o,
                                                 const struct policy_event *e) {
    struct chain_policy *s = state_made(p);
    puts_over(s);
    if (parked_back(p, o)) return;
    if (e->next || e->request == 0) {
        insert_loose(p, o, e);
        return;
    }
    if (!e->put) ghost_over(&s->chain, e->hash);
    struct chain_request *q = request_of(p, e);
    if (s->open) request_finish(p, s->open);
    if (!q->made && q->known < e->depth) q->known = e->depth;
    if (!q->unknown && e->depth >= q->known) request_probe(p, q, e);
    enum chain_kind kind = e->depth < q->known ? CHAIN_REUSED : CHAIN_NEW;
    if (kind == CHAIN_NEW && e->put && e->depth > 0 && e->depth + 1 == q->length) kind = CHAIN_LAST;
    uint32_t behind = run_behind(p, q, e->depth);
    uint32_t i =
        behind ? run_between(p, q, behind, kind, e->depth) : run_for_put(p, q, kind, e->depth);
    if (i == 0) i = run_of_put(p, q, kind);
    struct chain_run *r = chain_run(&s->chain, i);
    chain_run_size(&s->chain, r, r->blocks + 1);
    chain_run_add(p, i, o);
    bool ends = e->depth + 1 == q->length && (i == q->run || i == q->last);
    if (!ends && r->list == CHAIN_NOWHERE)
        run_describe(&s->chain, q, i, q->turn ? q->turn : 1, false);
    young_note(p, s);
    request_came(q, e->length > 0 ? e->depth - e->position : 0, 1);
    if (e->depth + 1 == q->length)
        request_finish(p, q);
    else
        puts_begin(p, q, o, e);
}

static void chain_insert(struct policy *p, struct object *o, const struct policy_event *e) {
    if (!state_of(p) || !puts_next(p, o, e)) insert_any(p, o, e);
}

/* --- on disks --- */

/* What is there was here before, so it is a return, also of those behind it. Its ghost stays, as a
 * run of this request, since the next one may find it on the disk again. Returns how many. */
static uint32_t ghost_used(struct policy *p, struct chain_request *q, uint32_t i) {
    struct chain_books *c = &state_of(p)->chain;
    struct chain_run *g = chain_run(c, i);
    unsigned lost = g->blocks;
    if (!g->ghost) {
        unsigned left = chain_run_count(p, g);
        return lost > left ? lost - left : 1;
    }
    if (g->list != CHAIN_NOWHERE) chain_run_returned(c, g, lost);
    q->turn = turn_after(g);
    q->shared = g->grown;
    chain_unlink(c, g);
    if (g->kind != CHAIN_SHARED) g->kind = CHAIN_REUSED;
    g->born = q->number;
    run_describe(c, q, i, q->turn, false);
    return lost;
}

static void chain_far_access(struct policy *p, const struct policy_event *e) {
    struct chain_policy *s = state_made(p);
    if (e->request == 0) return;
    struct chain_request *q = request_of(p, e);
    if (s->open) request_finish(p, s->open);
    if (e->depth < q->known) return;
    uint32_t i = chain_ghost_find(&s->chain, e->hash);
    q->known = e->depth + (i ? ghost_used(p, q, i) : 1);
    if (q->turn == 0) q->turn = 2; /* what it was is forgotten */
}

static float chain_far_worth(struct policy *p, uint32_t request, bool again) {
    struct chain_policy *s = state_of(p);
    if (!s || request == 0) return -1;
    const struct chain_request *q = request_find(s, request);
    struct chain_value *v = &s->chain.value;
    int32_t age = (int32_t)(s->chain.clock - request);
    struct chain_bin at = chain_bin_at(v, age > 0 ? (uint32_t)age : 0);
    if (!q) {
        const struct chain_traits of_kind = {.kind = again ? CHAIN_REUSED : CHAIN_NEW};
        return chain_worth(v, chain_sort_find(v, &of_kind), at);
    }
    struct chain_traits t = {.kind = CHAIN_REUSED,
                             .turn = q->turn ? q->turn : 1,
                             .length = chain_length_class(q->length),
                             .growth = chain_growth_class(q->known, q->length),
                             .branched = q->branched};
    return chain_worth(v, chain_sort_find(v, &t), at);
}

/* --- going --- */

/* Runs behind i of which all is popped. */
static unsigned popped_children(const struct chain_books *c, uint32_t i) {
    unsigned n = 0;
    for (uint32_t k = 0; k < c->n_out; k++) {
        uint32_t j = c->out[k], first = 0;
        const struct chain_run *r = chain_run(c, j);
        if (r->parent != i || r->first) continue;
        while (c->out[first] != j) first++;
        n += first == k && popped_children(c, j) == r->children;
    }
    return n;
}

/* No leaf is left: then what is before those that are popped, if there is such. */
static uint32_t run_before_popped(const struct chain_books *c) {
    for (uint32_t k = c->n_out; k > 0 && k + OUT_LOOKS > c->n_out; k--) {
        uint32_t i = chain_run(c, c->out[k - 1])->parent;
        if (i && chain_run(c, i)->first && popped_children(c, i) == chain_run(c, i)->children)
            return i;
    }
    return 0;
}

static __attribute__((noinline)) void out_grow(struct chain_books *c) {
    c->cap_out = c->cap_out ? 2 * c->cap_out : 64;
    c->out = xrealloc(c->out, c->cap_out * sizeof(*c->out));
}

static struct object *chain_pop(struct policy *p, uint64_t now_ms) {
    struct chain_policy *s = state_of(p);
    if (p->count == 0) return NULL;
    if (s->open) request_finish(p, s->open);
    struct chain_books *c = &s->chain;
    uint32_t i = chain_cells_next(c);
    TARN_ASSERT(i != 0);
    if (UNLIKELY(chain_run(c, i)->children > 0) && c->n_out > 0) {
        uint32_t before = run_before_popped(c);
        if (before) i = before;
    }
    struct object *o = chain_run_pop(p, c, i);
    if (UNLIKELY(c->n_out == c->cap_out)) out_grow(c);
    c->out[c->n_out++] = i;
    return o;
}

/* Of one run the end is popped first. */
static bool chain_behind(const struct policy *p, const struct object *o,
                         const struct object *other) {
    const struct chain_books *c = &state_of(p)->chain;
    uint32_t i = o->request;
    if (i == other->request) return object_depth(o) > object_depth(other);
    for (unsigned n = 0; i && i != other->request && n < ANCESTORS_MAX; n++)
        i = chain_run(c, i)->parent;
    return i == other->request;
}

static struct object *chain_peek(const struct policy *p) {
    const struct chain_policy *s = state_of(p);
    uint32_t i = s ? s->chain.cells.goes : 0;
    return i ? chain_run_last(p, chain_run(&s->chain, i)) : NULL;
}

static void out_drop(struct chain_books *c, uint32_t i) {
    uint32_t k = c->n_out;
    do {
        TARN_ASSERT(k > 0);
    } while (c->out[--k] != i);
    c->out[k] = c->out[--c->n_out];
}

/* The flag bit: it is held, a child of its run. */
static void chain_held(struct policy *p, struct object *o) {
    struct chain_books *c = &state_of(p)->chain;
    out_drop(c, o->request);
    o->bits |= OBJECT_Q1;
    chain_run(c, o->request)->children++;
    chain_relink(c, o->request);
}

static void chain_give_back(struct policy *p, struct object *o) {
    struct chain_books *c = &state_of(p)->chain;
    uint32_t i = o->request;
    bool held = (o->bits & OBJECT_Q1) != 0;
    o->bits &= ~(uint32_t)OBJECT_Q1;
    if (held) {
        run_regain(p, i, o);
    } else {
        chain_run_add(p, i, o);
        out_drop(c, i);
    }
}

/* Whatever it was. Returns its run, which is still there. */
static uint32_t object_take(struct policy *p, struct object *o) {
    struct chain_policy *s = state_of(p);
    puts_over(s);
    if (s->open) request_finish(p, s->open);
    uint32_t i = o->request;
    if (list_linked(o)) {
        chain_run_take(p, i, o);
    } else if (!(o->bits & OBJECT_Q1)) {
        out_drop(&s->chain, i);
    }
    o->request = chain_run(&s->chain, i)->born;
    return i;
}

/* Returns the run that is left of it, or before it; 0: none. */
static uint32_t object_left(struct policy *p, struct object *o, uint32_t i) {
    struct chain_run *r = chain_run(&state_of(p)->chain, i);
    if (!r->first && r->children == 0) run_change_hands(state_of(p), i, r->parent);
    if (o->bits & OBJECT_Q1) r->children--;
    o->bits &= ~(uint32_t)OBJECT_Q1;
    return chain_run_settle(p, i);
}

static void chain_unlinked(struct policy *p, struct object *o) {
    uint32_t i = object_take(p, o);
    object_left(p, o, i);
}

static __attribute__((noinline)) void evicted_any(struct policy *p, struct object *o,
                                                  uint64_t hash) {
    struct chain_books *c = &state_of(p)->chain;
    uint32_t i = object_take(p, o);
    chain_ghost_print(c, i, hash);
    chain_cells_near(c, object_left(p, o, i));
}

/* Most often the one block that is popped, of a run that keeps others. */
static void chain_evicted(struct policy *p, struct object *o, uint64_t hash) {
    struct chain_policy *s = state_of(p);
    struct chain_books *c = &s->chain;
    uint32_t i = o->request;
    const struct chain_run *r = chain_run(c, i);
    bool only_out = c->n_out > 0 && c->out[c->n_out - 1] == i && !list_linked(o);
    if (UNLIKELY(!only_out || !r->first || o->bits & OBJECT_Q1 || s->open)) {
        evicted_any(p, o, hash);
        return;
    }
    c->n_out--;
    o->request = r->born;
    chain_ghost_print(c, i, hash);
    chain_cells_near(c, i);
}

/* Into its run's children, if it is not one already; its request is the books' again. */
static void run_park(struct chain_books *c, uint32_t i, struct object *o) {
    if (!(o->bits & OBJECT_Q1)) {
        chain_run(c, i)->children++;
        chain_relink(c, i);
    }
    o->bits &= ~(uint32_t)OBJECT_Q1;
}

static void chain_park(struct policy *p, struct object *o) {
    struct chain_books *c = &state_of(p)->chain;
    uint32_t i = object_take(p, o);
    if (chain_run(c, i)->children >= CHILDREN_MAX) {
        object_left(p, o, i);
        return;
    }
    run_park(c, i, o);
    struct chain_parked *k = xcalloc(1, sizeof(*k));
    k->object = record_ref(p->records, o);
    k->run = i;
    htab_insert(&c->parked, &k->node, hash_u64(k->object));
}

/* For the time of the access it is a block of its run, and in no list of the books'. */
static void chain_parked_access(struct policy *p, struct object *o, const struct policy_event *e) {
    struct chain_parked *k = parked_find(p, o);
    if (!k || e->request == 0) return;
    uint32_t request = o->request;
    object_ref prev = o->prev, next = o->next;
    run_regain(p, k->run, o);
    chain_access(p, o, e);
    k->run = object_take(p, o);
    run_park(&state_of(p)->chain, k->run, o);
    o->request = request;
    o->prev = prev;
    o->next = next;
}

static void chain_forget(struct policy *p, const struct object *o) {
    struct chain_parked *k = parked_find(p, o);
    if (!k) return;
    uint32_t i = k->run;
    parked_drop(&state_of(p)->chain, k);
    chain_run_less(p, i);
}

static uint32_t chain_request_of(const struct policy *p, const struct object *o) {
    return chain_run(&state_of(p)->chain, o->request)->born;
}

static float chain_object_worth(const struct policy *p, const struct object *o) {
    struct chain_books *c = &state_of(p)->chain;
    return chain_run_worth(c, chain_run(c, o->request));
}

static uint64_t chain_memory(const struct policy *p) {
    const struct chain_policy *s = state_of(p);
    if (!s) return sizeof(s);
    const struct chain_books *c = &s->chain;
    return sizeof(s) + sizeof(*s) + (uint64_t)c->runs * sizeof(struct chain_run) +
           (uint64_t)c->value.sorts * CHAIN_SLOTS * sizeof(struct chain_cell) +
           ((uint64_t)c->ghosts.cap + c->ghosts.prints + c->cap_out) * sizeof(uint32_t) +
           htab_memory(&c->parked) + c->parked.count * sizeof(struct chain_parked);
}

const struct policy_ops policy_chain = {
    .name = "chain",
    .state_size = sizeof(struct chain_policy *),
    .open = chain_open,
    .close = chain_close,
    .insert = chain_insert,
    .access = chain_access,
    .unlink = chain_unlinked,
    .park = chain_park,
    .parked_access = chain_parked_access,
    .forget = chain_forget,
    .pop = chain_pop,
    .behind = chain_behind,
    .peek = chain_peek,
    .held = chain_held,
    .give_back = chain_give_back,
    .evicted = chain_evicted,
    .prefix_done = chain_prefix_done,
    .request = chain_request_of,
    .worth = chain_object_worth,
    .far_access = chain_far_access,
    .found = chain_found,
    .far_worth = chain_far_worth,
    .memory = chain_memory,
    .for_small = &policy_lru,
    .chains = true,
};
