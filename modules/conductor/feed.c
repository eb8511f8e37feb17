#include "conductor/feed.h"

#include "base/assert.h"
#include "route/hash.h"

/* Of one piece, whatever they are: it ends in some tens of microseconds. */
#define PIECE_EVENTS 64u
#define PIECE_BLOCKS 512u
#define PIECE_LOOKED 1024u /* events that are left out */

void feed_init(struct feed *f, struct route_index *index, uint32_t holder,
               const struct route_engine_spec *spec) {
    *f = (struct feed){
        .index = index, .holder = holder, .rank = spec->rank, .block = spec->block_tokens};
    span_to_text(spec->model, f->model, sizeof(f->model));
    span_to_text(spec->lora, f->lora, sizeof(f->lora));
    span_to_text(spec->salt, f->salt, sizeof(f->salt));
}

void feed_lose(struct feed *f) {
    if (route_holder_blocks(f->index, f->holder) > 0) route_holder_clear(f->index, f->holder);
    for (size_t i = 0; i < ROUTE_GROUPS_MAX; i++) f->group[i].told = false;
}

/* --- what a group is --- */

static uint64_t scope_of(const struct feed *f, struct span lora, struct span salt, uint32_t block) {
    return route_hash_scope(span_str(f->model), lora, SPAN(""),
                            salt.len > 0 ? salt : span_str(f->salt), block);
}

/* Of a kind whose rule is unknown here, as of a window of unknown length, all blocks are needed:
 * the strictest rule. */
static struct route_group group_said(const struct feed *f, const struct kvevents_event *e) {
    struct route_group what = {ROUTE_GROUP_FULL, e->block != 0 ? e->block : f->block, 0};
    if (e->spec == KVEVENTS_SPEC_STATE) what.kind = ROUTE_GROUP_STATE;
    if (e->spec != KVEVENTS_SPEC_WINDOW || e->window < 2) return what;
    what.kind = ROUTE_GROUP_WINDOW;
    what.window = e->window;
    return what;
}

/* false: nothing can be known of its blocks. */
static bool group_fits(struct feed *f, const struct kvevents_event *e) {
    struct route_group what = group_said(f, e);
    if (e->group >= ROUTE_GROUPS_MAX) {
        feed_lose(f);
        f->unusable = true;
        return false;
    }
    struct feed_group *g = &f->group[e->group];
    if (g->told)
        return g->what.block == what.block &&
               (e->spec == KVEVENTS_SPEC_NONE ||
                (g->what.kind == what.kind && g->what.window == what.window));
    if (!route_holder_group(f->index, f->holder, e->group, &what)) return false;
    *g = (struct feed_group){true, what, scope_of(f, SPAN(""), SPAN(""), what.block)};
    return true;
}

/* --- an event --- */

static bool adapter_fits(const struct feed *f, struct span lora) {
    return strcmp(f->lora, "*") == 0 || span_eq(lora, span_str(f->lora));
}

/* What is odd about an event, but true. */
static void stored_count(struct feed *f, const struct kvevents_event *e) {
    uint32_t block = f->group[e->group].what.block;
    if (block != f->block) {
        f->figures.conductor_events_misfitting++;
        f->odd_block = block;
    }
    if (!adapter_fits(f, e->lora)) {
        f->figures.conductor_events_adapter++;
        span_to_text(e->lora, f->odd_lora, sizeof(f->odd_lora));
    }
    f->figures.conductor_events_salted += e->salt.len > 0;
}

/* Of blocks that were told of before by their tokens. */
static bool name_fits(const struct feed *f, const struct kvevents_event *e) {
    return e->group < ROUTE_GROUPS_MAX && f->group[e->group].told &&
           (e->block == 0 || e->block == f->group[e->group].what.block);
}

/* false: it is left out, and counted. */
static bool event_fits(struct feed *f, const struct kvevents_event *e) {
    uint64_t *why = NULL;
    if (f->unusable)
        why = &f->figures.conductor_events_groups;
    else if (e->elsewhere)
        why = &f->figures.conductor_events_elsewhere;
    else if (e->kind == KVEVENTS_REMOVED)
        return true;
    else if (e->local == NULL && name_fits(f, e))
        return true;
    else if (e->local == NULL)
        why = &f->figures.conductor_events_nameless;
    else if (!group_fits(f, e))
        why = &f->figures.conductor_events_groups;
    if (why != NULL)
        ++*why;
    else
        stored_count(f, e);
    return why == NULL;
}

/* n blocks of it from `at` on. */
static struct route_event event_part(const struct feed *f, const struct kvevents_event *e,
                                     size_t at, size_t n) {
    struct route_event out = {.removed = e->kind == KVEVENTS_REMOVED};
    out.what = (struct route_stored){.holder = f->holder,
                                     .group = e->group,
                                     .tier = e->tier,
                                     .has_parent = at > 0 || e->has_parent,
                                     .parent = at > 0 ? e->own[at - 1] : e->parent,
                                     .n = n,
                                     .own = e->own + at};
    if (out.removed || e->local == NULL) return out;
    const struct feed_group *g = &f->group[e->group];
    out.what.local = e->local + at;
    out.what.scope = e->lora.len == 0 && e->salt.len == 0
                         ? g->scope
                         : scope_of(f, e->lora, e->salt, g->what.block);
    return out;
}

/* --- a batch --- */

/* One rank of several, or one that is not the first, is told apart by its number; an engine that is
 * registered as one may be any rank of a crowd that calls itself so. */
static bool other_rank(struct feed *f, const struct kvevents_batch *b, bool lone) {
    if (b->rank < 0 || b->rank == f->rank || (lone && f->rank == 0)) return false;
    f->figures.conductor_events_rank++;
    f->odd_rank = b->rank;
    return true;
}

bool feed_take(struct feed *f, const struct kvevents_batch *b, bool lone, struct feed_place *at) {
    struct route_event events[PIECE_EVENTS];
    size_t n = 0, blocks = 0;
    if (at->event == 0 && at->block == 0 && other_rank(f, b, lone)) return true;
    for (size_t looked = 0;
         at->event < b->n && n < PIECE_EVENTS && blocks < PIECE_BLOCKS && looked < PIECE_LOOKED;
         looked++) {
        const struct kvevents_event *e = &b->events[at->event];
        if (e->kind == KVEVENTS_CLEARED) {
            if (n > 0) break; /* what was before it comes first */
            feed_lose(f);
            at->event++;
            break;
        }
        if (at->block == 0 && !event_fits(f, e)) {
            at->event++;
            continue;
        }
        size_t part = min_u64(e->n - at->block, PIECE_BLOCKS - blocks);
        events[n++] = event_part(f, e, at->block, part);
        blocks += part;
        at->block += part;
        if (at->block < e->n) continue;
        at->event++;
        at->block = 0;
    }
    if (!f->unusable) route_index_apply(f->index, events, n);
    return at->event == b->n;
}
