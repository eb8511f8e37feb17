/* What the chain policy knows of the latest requests (chain_request.c), and where it puts the
 * blocks that they bring (chain_put.c). */
#ifndef TARN_STORE_CHAIN_REQUEST_H
#define TARN_STORE_CHAIN_REQUEST_H

#include "store/chain.h"

#define CHAIN_RECENT      256u /* requests */
#define CHAIN_SESSIONS    512u
#define CHAIN_ANCESTORS   64u /* runs that are looked at from one of them upwards */
#define CHAIN_YOUNG_MARKS 4u
#define CHAIN_CHILDREN    ((1u << 24) - 1 - CHAIN_RUN_BLOCKS)
#define CHAIN_FIT_MIN     16u /* requests between fits: few at first, and more the more was seen */

struct chain_request {
    uint32_t number;
    uint32_t run;              /* the deepest that it has used or made; 0: none */
    uint32_t last;             /* that of its last block, behind run; 0: none */
    uint32_t top;              /* the first that it has made; 0: none */
    uint32_t known;            /* blocks from the start that had been here before */
    uint32_t length;           /* blocks of its prompt, as far as it has told */
    uint32_t came;             /* of these have been used or put */
    uint32_t read, deepest;    /* blocks up to the deepest that it has used, and put */
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
 * these change is noted (chain_puts_over) before anybody looks at it; if that is the end of their
 * request, the run comes into a list once, as what it is then. */
struct chain_puts {
    uint32_t request, run;
    uint32_t depth, end; /* of those to come; not the last block of the prompt */
    uint32_t session;
    uint32_t room, came; /* blocks that the run still takes, 0: there is none; not noted yet */
};

struct chain_policy {
    struct chain_books chain; /* first: chain_runs.c finds it here */
    struct chain_request recent[CHAIN_RECENT];
    struct chain_request late; /* one that has fallen out of recent */
    struct chain_request *open;
    struct chain_puts puts;
    struct chain_session sessions[CHAIN_SESSIONS];
    uint32_t mark[CHAIN_YOUNG_MARKS]; /* clock, each time that a part of the young was put */
    uint32_t marks, unmarked;         /* ever made; puts since the last one */
    uint32_t loose[CHAIN_RECENT];     /* by request: the run of blocks that came later than it */
    uint32_t seen, fit_in;
    uint64_t last_ms;
    float request_ms; /* between two requests */
};

static inline struct chain_policy *chain_state(const struct policy *p) {
    return *(struct chain_policy **)p->state;
}

/* --- chain_request.c --- */

/* Returns false if it was there already. 0 is no request, and the first may have any number. */
bool chain_clock_reach(struct policy *p, uint32_t request);
/* NULL: it is not among the latest. */
struct chain_request *chain_request_find(struct chain_policy *s, uint32_t number);
/* That of the event, which may begin it. */
struct chain_request *chain_request_of(struct policy *p, const struct policy_event *e);
/* Its run is there, and was last used by it. */
bool chain_request_has_run(const struct chain_books *c, const struct chain_request *q);
/* So many blocks of it have come, behind so many that had to come before. */
void chain_request_came(struct chain_request *q, uint32_t before, uint32_t blocks);
/* An empty run behind that one holds what its puts will follow. */
void chain_request_await(struct chain_books *c, struct chain_request *q, uint32_t behind);
/* It reads no further in its run. */
void chain_request_leave_run(struct policy *p, struct chain_request *q);
/* What it has used and made becomes what it is now, and the youngest. */
void chain_request_finish(struct policy *p, struct chain_request *q);
/* Another request takes a run, or its last block goes: what the one which has used it last still
 * puts comes behind it all the same (behind), or behind its parent. */
void chain_run_change_hands(struct chain_policy *s, uint32_t i, uint32_t behind);
void chain_run_describe(struct chain_books *c, const struct chain_request *q, uint32_t i,
                        uint32_t turn, bool begins);
static inline uint8_t chain_turn_after(const struct chain_run *r) {
    return r->turn < CHAIN_TURN_MAX ? (uint8_t)(r->turn + 1) : (uint8_t)CHAIN_TURN_MAX;
}

/* --- chain_put.c --- */

/* A block comes that is in no order yet, and not the next of the puts. */
void chain_put(struct policy *p, struct object *o, const struct policy_event *e);
/* Before anybody looks at what puts change: their run comes into a list, too. */
void chain_puts_end(struct chain_policy *s);
static inline void chain_puts_over(struct chain_policy *s) {
    if (s->puts.room > 0) chain_puts_end(s);
}
/* Takes the block if it is the next. */
static inline bool chain_puts_next(struct policy *p, struct chain_puts *n, struct object *o,
                                   const struct policy_event *e) {
    if (n->request != e->request || n->came == n->room) return false;
    if (e->depth < n->depth || e->depth + 1 >= n->end) return false;
    if (!e->put || e->next || e->return_ms) return false;
    if (e->session != n->session && e->session != 0) return false;
    if (e->depth - e->position + e->length > n->end) return false;
    struct chain_run *r = chain_run(&chain_state(p)->chain, n->run);
    if (!r->last) return false;
    o->request = n->run;
    o->bits &= ~(uint32_t)OBJECT_Q1;
    chain_run_append(p, r, o);
    p->count++;
    n->depth = e->depth + 1;
    n->came++;
    return true;
}

#endif
