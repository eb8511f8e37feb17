/* CONDUCTOR.DOCTOR: why hits are few, and what else is amiss, in words: a line for each, with what
 * to do. Nothing is said that is not known. */
#include <inttypes.h>
#include <stdio.h>
#include "conductor/asked.h"
#include "base/clock.h"
#include "conductor/command.h"
#include "conductor/pool_names.h"
#include "conductor/metrics.h"
#include "conductor/streams.h"

#define NAMED_MOST 5u  /* names in a line */
#define FEW        20u /* requests, of which nothing follows yet */

/* "a, b and 3 more" */
struct name_list {
    struct buf text;
    size_t n;
};
static void list_add(struct name_list *l, const char *name) {
    if (l->n++ >= NAMED_MOST) return;
    if (l->n > 1) buf_append_str(&l->text, ", ");
    buf_append_str(&l->text, name[0] != '\0' ? name : "none");
}
/* Once each. */
static void list_add_new(struct name_list *l, const char *name) {
    struct span all = span_of(l->text.data, l->text.len);
    const char *shown = name[0] != '\0' ? name : "none";
    if (l->n > 0 && memmem(all.data, all.len, shown, strlen(shown)) != NULL) return;
    list_add(l, name);
}
static const char *list_text(struct name_list *l) {
    if (l->n > NAMED_MOST) buf_printf(&l->text, " and %zu more", l->n - NAMED_MOST);
    l->n = l->n < NAMED_MOST ? l->n : NAMED_MOST;
    buf_append_char(&l->text, '\0');
    l->text.len--;
    return l->text.data;
}

static bool next_view(uint32_t *at, struct route_engine_view *v) {
    return route_engine_next(conductor_route, at, conductor_now_us(), v);
}

/* "e1", of several ranks "e1.2": each has a stream of its own. */
static const char *rank_name(const struct route_engine_view *v, char out[ROUTE_NAME_MAX + 16]) {
    snprintf(out, ROUTE_NAME_MAX + 16, v->ranks == 1 ? "%s" : "%s.%u", v->id, v->rank);
    return out;
}
static void list_add_rank(struct name_list *l, const struct route_engine_view *v) {
    char name[ROUTE_NAME_MAX + 16];
    list_add(l, rank_name(v, name));
}

/* --- engines --- */

static void say_engines(struct buf *out, enum route_state state, const char *what) {
    struct route_engine_view v;
    struct name_list names = {0};
    for (uint32_t at = 0; next_view(&at, &v);)
        if (v.state == state) list_add_new(&names, v.id);
    if (names.n > 0) buf_printf(out, what, list_text(&names));
    buf_free(&names.text);
}

static void say_reports(struct buf *out) {
    struct route_engine_view v;
    struct name_list names = {0};
    for (uint32_t at = 0; next_view(&at, &v);)
        if (v.reports == 0 && v.routed >= FEW) list_add_new(&names, v.id);
    if (names.n > 0)
        buf_printf(
            out,
            "- No load was ever reported of %s: what others send there is not seen. Register "
            "with METRICS, or have CONDUCTOR.LOAD called, once a second or so.\n",
            list_text(&names));
    buf_free(&names.text);
}

static void say_metrics_of(struct buf *out, const char *name, const struct metrics_view *m) {
    uint64_t since = m->info.failing_ms;
    if (m->why[0] != '\0') {
        buf_printf(out, "- /metrics of %s (%s): %s", name, m->url, m->why);
        if (since != 0) buf_printf(out, ", for %" PRIu64 " s", (clock_mono_ms() - since) / 1000);
        buf_append_str(out, ". Its load is not known from there.\n");
    }
    if (m->info.figures.scrape_refused > 0)
        buf_printf(out, "- /metrics of %s had figures that cannot be: %" PRIu64 ", as %s\n", name,
                   m->info.figures.scrape_refused, m->info.why_refused);
}

static void say_metrics(struct buf *out) {
    struct route_engine_view v;
    struct metrics_view m;
    char name[ROUTE_NAME_MAX + 16];
    unsigned said = 0;
    for (uint32_t at = 0; said < NAMED_MOST && next_view(&at, &v);) {
        size_t before = out->len;
        metrics_get(v.worker, &m);
        say_metrics_of(out, rank_name(&v, name), &m);
        said += out->len > before;
    }
}

/* --- their events --- */

/* What a stream may be said to have; of those with it, their names. */
static bool stream_none(const struct route_engine_view *v, const struct streams_view *s) {
    return s->feed == NULL;
}
static bool stream_refused(const struct route_engine_view *v, const struct streams_view *s) {
    return s->feed != NULL && strcmp(s->state, "none") == 0;
}
static bool stream_away(const struct route_engine_view *v, const struct streams_view *s) {
    return strcmp(s->state, "none") != 0 && !s->info.connected;
}
static bool stream_silent(const struct route_engine_view *v, const struct streams_view *s) {
    return s->info.connected && s->info.figures.kvevents_batches == 0 && v->routed >= FEW;
}
static bool stream_nameless(const struct route_engine_view *v, const struct streams_view *s) {
    return s->feed != NULL && s->feed->figures.conductor_events_nameless > 0;
}
static bool stream_groups(const struct route_engine_view *v, const struct streams_view *s) {
    return s->feed != NULL && s->feed->figures.conductor_events_groups > 0;
}

static void say_streams(struct buf *out,
                        bool (*which)(const struct route_engine_view *v,
                                      const struct streams_view *s),
                        const char *what) {
    struct route_engine_view v;
    struct streams_view s;
    struct name_list names = {0};
    for (uint32_t at = 0; next_view(&at, &v);) {
        streams_get(v.worker, &s);
        if (which(&v, &s)) list_add_rank(&names, &v);
    }
    if (names.n > 0) buf_printf(out, what, list_text(&names));
    buf_free(&names.text);
}

static void say_partial(struct buf *out, const char *name, const struct streams_view *s) {
    const struct kvevents_info *i = &s->info;
    if (i->why_partial[0] != '\0')
        buf_printf(out,
                   "- Not all that %s has is known, so its hits may be fewer than they are: %s. "
                   "%s\n",
                   name, i->why_partial,
                   s->replay[0] != '\0'
                       ? "It is whole again once the engine clears its cache or starts anew."
                       : "Give REPLAY, and what is missing is asked for.");
    if (i->figures.kvevents_gaps > 0 && i->why_partial[0] == '\0')
        buf_printf(out,
                   "- Batches of %s were missing %" PRIu64 " times, and came again: %" PRIu64
                   ". Is its publisher's queue (hwm) too short, or its network bad?\n",
                   name, i->figures.kvevents_gaps, i->figures.kvevents_replayed);
    if (i->why_replay[0] != '\0' && i->figures.kvevents_replay_errors > 0)
        buf_printf(out, "- Replays of %s failed %" PRIu64 " times, the last one as: %s.\n", name,
                   i->figures.kvevents_replay_errors, i->why_replay);
    if (i->figures.kvevents_decode_errors > 0)
        buf_printf(out,
                   "- Batches of %s that could not be decoded, so that all before them counts for "
                   "nothing: %" PRIu64 ", the last one %s. Is that the stream of an engine?\n",
                   name, i->figures.kvevents_decode_errors, i->why_decode);
    if (i->figures.kvevents_left_out > 0)
        buf_printf(out,
                   "- Events of %s made no sense, and were left out: %" PRIu64
                   ", the last one in %s.\n",
                   name, i->figures.kvevents_left_out, i->why_left_out);
}

static void say_feed(struct buf *out, const char *name, const struct route_engine_view *v,
                     const struct feed *feed) {
    const struct feed_figures *f = &feed->figures;
    if (f->conductor_events_misfitting > 0)
        buf_printf(out,
                   "- Blocks of %s have %u tokens, and it is registered with BLOCK %u, by which "
                   "prompts are hashed: it has no hits. CONDUCTOR.REMOVE it, and let it come back "
                   "as it is.\n",
                   name, feed->odd_block, v->block_tokens);
    if (f->conductor_events_adapter > 0)
        buf_printf(out,
                   "- Events of %s are of adapter %s (%" PRIu64 "), and it is registered for %s: "
                   "is that its stream, and LORA the name that the engine itself has for it?\n",
                   name, feed->odd_lora[0] != '\0' ? feed->odd_lora : "none",
                   f->conductor_events_adapter, v->lora[0] != '\0' ? v->lora : "none");
    if (f->conductor_events_rank > 0)
        buf_printf(out,
                   "- The stream of %s, rank %u, is of rank %" PRId64 ": it is left out. Each rank "
                   "has an endpoint of its own.\n",
                   name, v->rank, feed->odd_rank);
}

static void say_events(struct buf *out) {
    struct route_engine_view v;
    struct streams_view s;
    unsigned said = 0;
    say_streams(out, stream_none,
                "- What lies in the caches of %s is not known, so nothing is found there. Register "
                "with EVENTS (and REPLAY), where the engine publishes its KV events.\n");
    say_streams(out, stream_refused,
                "- The event streams of %s cannot be followed: INFO has why (partial-why). It is "
                "tried again.\n");
    say_streams(out, stream_away,
                "- Nobody is there where the events of %s should come from: is EVENTS right, as "
                "seen from this machine, and does the engine publish?\n");
    say_streams(out, stream_silent,
                "- %s gets requests, and says nothing in its event stream: is prefix caching on, "
                "and the topic's port that of its KV events?\n");
    say_streams(
        out, stream_nameless,
        "- %s tells of blocks by names alone (offloading does), and not of the size of those "
        "of its device: what it has beyond these is not known.\n");
    say_streams(
        out, stream_groups,
        "- %s has KV groups that become others, or more than there may be: CONDUCTOR.REMOVE "
        "it, and let it come back.\n");
    for (uint32_t at = 0; said < NAMED_MOST && next_view(&at, &v);) {
        size_t before = out->len;
        streams_get(v.worker, &s);
        if (s.feed == NULL) continue;
        say_partial(out, v.id, &s);
        say_feed(out, v.id, &v, s.feed);
        said += out->len > before;
    }
}

/* --- what is asked for --- */

/* Engines of that model; those with that adapter; those with that salt, too. */
struct serving {
    size_t model, lora, salt;
    struct name_list salts, loras;
};

static void serving_count(const struct asked *a, struct serving *s) {
    struct route_engine_view v;
    *s = (struct serving){0};
    for (uint32_t at = 0; next_view(&at, &v);) {
        if (strcmp(v.model, a->model) != 0) continue;
        s->model++;
        list_add_new(&s->loras, v.lora);
        if (strcmp(v.lora, a->lora) != 0 && strcmp(v.lora, "*") != 0) continue;
        s->lora++;
        s->salt += strcmp(v.salt, a->salt) == 0;
        list_add_new(&s->salts, v.salt);
    }
}

static void say_models(struct buf *out) {
    struct route_engine_view v;
    struct name_list names = {0};
    for (uint32_t at = 0; next_view(&at, &v);) list_add_new(&names, v.model);
    buf_printf(out, "Engines serve %s.\n", names.n > 0 ? list_text(&names) : "nothing");
    buf_free(&names.text);
}

/* Where engines tell of each block's salt, what they are registered with is of no matter. */
static bool salted_events(void) {
    struct streams_sum sum;
    streams_sum(&sum);
    return sum.feeds.conductor_events_salted > 0;
}

/* Engines of that model that have said how they call their blocks in the pool, or those that have
 * not; and the name of a KV group, which keys begin with. */
static void pool_serving(const struct asked *a, bool with, struct name_list *engines, char *name,
                         size_t cap) {
    struct route_engine_view v;
    struct pool_names x = {0};
    const char *keys = NULL; /* in x; most engines have the same, which are kept once */
    bool told = false;
    for (uint32_t at = 0; next_view(&at, &v);) {
        /* Who only decodes loads nothing. */
        if (strcmp(v.model, a->model) != 0 || v.role == ROUTE_DECODE) continue;
        if (v.keys != keys) told = pool_names_read(span_str(v.keys), &x);
        keys = v.keys;
        if (told != with) continue;
        list_add_new(engines, v.id);
        if (told) span_to_text(x.name[0], name, cap);
    }
    pool_names_free(&x);
}

static void say_pool_empty(struct buf *out, const struct asked *a) {
    struct name_list with = {0};
    char name[256] = "";
    pool_serving(a, true, &with, name, sizeof(name));
    if (with.n > 0)
        buf_printf(out,
                   "- None of %" PRIu64 " prompts for model %s had a beginning in the pool. If "
                   "there are no keys that begin with %s (SCAN 0 MATCH), nobody writes there what "
                   "%s could read: do their connectors save to this pool, and are the names of "
                   "CONDUCTOR.KEYS theirs? If there are: HASH, UNIT, REVISION or the tokenizer is "
                   "another.\n",
                   a->pool_asked, a->model, name, list_text(&with));
    buf_free(&with.text);
}

static void say_pool_engines(struct buf *out, const struct asked *a) {
    struct name_list without = {0};
    pool_serving(a, false, &without, NULL, 0);
    if (without.n > 0)
        buf_printf(out,
                   "- What the pool has for %s, which serve model %s, is not known, though others "
                   "have told: CONDUCTOR.KEYS.\n",
                   list_text(&without), a->model);
    buf_free(&without.text);
}

static void say_pool(struct buf *out, const struct asked *a) {
    if (a->pool_asked >= FEW && a->pool_hits == 0) say_pool_empty(out, a);
    if (a->pool_untold >= FEW)
        buf_printf(out,
                   "- %" PRIu64 " requests for model %s came without TOKENS: what the pool has for "
                   "them is not known. HASHES do not lead to its keys.\n",
                   a->pool_untold, a->model);
    if (a->pool_asked + a->pool_untold > 0) say_pool_engines(out, a);
}

static void say_asked_one(struct buf *out, const struct asked *a, bool events) {
    struct serving s;
    serving_count(a, &s);
    if (s.model == 0) {
        buf_printf(out, "- No engine serves model %s (requests: %" PRIu64 "). ", a->model,
                   a->requests);
        say_models(out);
    } else if (s.lora == 0) {
        buf_printf(out,
                   "- No engine of model %s has adapter %s (requests: %" PRIu64
                   "), but %s. Register engines with LORA.\n",
                   a->model, a->lora[0] != '\0' ? a->lora : "none", a->requests,
                   list_text(&s.loras));
    } else if (s.salt == 0 && a->hits == 0 && !salted_events()) {
        buf_printf(out,
                   "- Requests for model %s have salt %s, its engines %s: their hashes cannot "
                   "agree, so there are no hits. Let SALT of ROUTE and of ADD be the same.\n",
                   a->model, a->salt[0] != '\0' ? a->salt : "none", list_text(&s.salts));
    } else if (events && a->hashed >= FEW && a->hits == 0) {
        buf_printf(out,
                   "- None of %" PRIu64 " prompts for model %s had a block anywhere, though blocks "
                   "are known. Does who asks use the engines' tokenizer, chat template and seed?\n",
                   a->hashed, a->model);
    }
    buf_free(&s.salts.text);
    buf_free(&s.loras.text);
}

static void say_asked(struct buf *out, bool events) {
    const struct asked *a;
    for (size_t i = 0; (a = asked_at(i)) != NULL; i++) {
        say_asked_one(out, a, events);
        say_pool(out, a);
    }
}

/* --- what callers do --- */

static void say_callers(struct buf *out, const struct route_figures *f) {
    const struct conductor_figures *own = &conductor_figures;
    if (own->conductor_prompts_cut > 0)
        buf_printf(out,
                   "- Prompts that were cut short: %" PRIu64 ". TOKENS is 4 bytes a token, "
                   "little-endian, and LENGTH, if it is given, their number.\n",
                   own->conductor_prompts_cut);
    if (own->conductor_prompts_misfitting > 0)
        buf_printf(out,
                   "- Requests with hashes of blocks of a size that the model's engines do not "
                   "have: %" PRIu64 ". Send TOKENS, or hash by the block of CONDUCTOR.LIST.\n",
                   own->conductor_prompts_misfitting);
    if (own->conductor_engines_differing > 0)
        buf_printf(out,
                   "- Engines that came back with other values than they are registered with, and "
                   "were refused: %" PRIu64 ". CONDUCTOR.REMOVE them first.\n",
                   own->conductor_engines_differing);
    if (f->route_decisions >= FEW && f->route_firsts == 0)
        buf_append_str(out, "- Nobody tells CONDUCTOR.FIRST: how fast engines are is not learnt, "
                            "and prefills count until their leases end.\n");
    if (f->route_decisions >= FEW && f->route_lease_ends > f->route_decisions / 10)
        buf_printf(out,
                   "- %" PRIu64 " of %" PRIu64
                   " reservations ended by their lease: gateways do not "
                   "tell CONDUCTOR.DONE.\n",
                   f->route_lease_ends, f->route_decisions);
    if (own->conductor_requests_unkept > 0)
        buf_printf(out,
                   "- Reservations that there was no room to keep, so that a restart would lose "
                   "them: %" PRIu64 ". Raise module-state-max.\n",
                   own->conductor_requests_unkept);
}

static void doctor_write(struct buf *out) {
    const struct route_figures *f = route_figures_get(conductor_route);
    bool events = route_index_stats(route_index(conductor_route)).route_stored > 0;
    if (f->route_engines == 0) buf_append_str(out, "- No engine is registered: CONDUCTOR.ADD.\n");
    say_events(out);
    say_asked(out, events);
    say_engines(out, ROUTE_SILENT,
                "- %s reported once, and then fell silent: nothing is sent there. Is it alive, and "
                "does its agent still call CONDUCTOR.LOAD, or its /metrics answer?\n");
    say_engines(out, ROUTE_BACKS_OFF,
                "- %s failed several requests in a row, and rests. Its log may say why.\n");
    say_engines(out, ROUTE_DRAINS,
                "- %s drains: nothing is sent there. CONDUCTOR.DRAIN id CANCEL takes that back.\n");
    say_reports(out);
    say_metrics(out);
    say_callers(out, f);
    if (out->len == 0) buf_append_str(out, "Nothing is amiss that could be seen from here.\n");
}

void cmd_doctor(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct buf out = {NULL, 0, 0};
    if (!conductor_bind(c, CONDUCTOR_DOCTOR, argv, argc, NULL)) return;
    doctor_write(&out);
    conductor_services->reply_text(c, span_of(out.data, out.len));
    buf_free(&out);
}
