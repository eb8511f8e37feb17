/* What observed times teach. A time that is exactly as expected teaches nothing new: so where a
 * test lets happen what the prior says, the weights must stay 1, and the observation be counted. */
#include <math.h>
#include "util.h"
#include "base/rng.h"
#include "route/internal.h"

#define MS ((double)UTIL_MS)

static struct route_engine *engine_of(struct route *r, const char *id) {
    return engine_find(r, span_str(id));
}

static bool as_expected(const struct model *m, uint64_t seen) {
    if (m->seen != seen) return false;
    for (unsigned i = 0; i < MODEL_TERMS; i++)
        if (fabs(m->weight[i] - 1) > 1e-3) return false;
    return true;
}

/* One whose steps depend on what runs: 10 ms, 1 ms a sequence, 1 us a token of context. */
static struct route *decoding(void) {
    struct route *r = util_route("tarn", 0);
    struct route_engine_spec s = util_spec("e0");
    s.prior.decode_sequence_us = 1000;
    s.prior.decode_context_us = 1;
    CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    return r;
}

static void begin(struct route *r, const char *id, uint64_t now_us) {
    util_decide(r, id, 950, now_us); /* and half of 100: a context of 1000 */
    CHECK_EQ(route_first(r, span_str(id), now_us), TARN_OK);
}

static void end(struct route *r, const char *id, uint32_t output, uint64_t now_us) {
    CHECK_EQ(route_done(r, span_str(id), output, false, now_us), TARN_OK);
}

/* --- what ran, by the time --- */

/* x from 10 ms on, another's two from 30, y from 40, x no more from 50. */
TEST(areas_are_sums_over_time) {
    struct route *r = decoding();
    const struct worker *w = &r->workers[0];
    struct route_load load = {ROUTE_UNKNOWN, ROUTE_UNKNOWN, 3, ROUTE_UNKNOWN, ROUTE_UNKNOWN};
    util_decide(r, "x", 950, UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 10 * UTIL_MS), TARN_OK);
    CHECK_EQ(w->running_area, 0);
    CHECK_EQ(w->busy_area, 10 * MS);
    CHECK_EQ(w->context_area, 1000 * 10 * MS);
    util_decide(r, "y", 1950, UTIL_BEGIN + 20 * UTIL_MS);
    CHECK_EQ(w->running_area, 10 * MS);
    CHECK_EQ(w->busy_area, 10 * MS);
    CHECK_EQ(w->context_area, 1000 * 20 * MS);
    CHECK_EQ(route_engine_load(r, SPAN("e0"), 0, &load, UTIL_BEGIN + 30 * UTIL_MS), TARN_OK);
    CHECK_EQ(w->running_area, 20 * MS);
    CHECK_EQ(w->busy_area, 20 * MS);
    CHECK_EQ(w->context_area, 20000 * MS + 3000 * 10 * MS);
    CHECK_EQ(route_first(r, SPAN("y"), UTIL_BEGIN + 40 * UTIL_MS), TARN_OK);
    CHECK_EQ(w->running_area, 50 * MS);
    CHECK_EQ(w->busy_area, 30 * MS);
    end(r, "x", 0, UTIL_BEGIN + 50 * UTIL_MS);
    CHECK_EQ(w->running_area, 90 * MS);
    CHECK_EQ(w->busy_area, 30 * MS);
    CHECK_EQ(w->context_area, 20000 * MS + 3000 * 30 * MS);
    end(r, "y", 0, UTIL_BEGIN + 60 * UTIL_MS);
    CHECK_EQ(w->running_area, 120 * MS);
    CHECK_EQ(w->context_area, 20000 * MS + 3000 * 30 * MS + 2000 * 10 * MS);
    route_destroy(&r);
}

/* --- prefills --- */

/* What those that decode beside it take of a prefill is not its own. */
TEST(a_prefill_is_learnt_without_those_that_decode) {
    struct route *r = decoding();
    uint64_t now = UTIL_BEGIN;
    begin(r, "a", now);
    begin(r, "b", now);
    const struct model *m = &engine_of(r, "e0")->prefill;
    uint64_t before = m->seen;
    for (int i = 0; i < 20; i++) {
        now += 1000 * UTIL_MS;
        util_decide(r, "x", 1024, now); /* 1 + 10.24 ms, and 4 of a step, 1.5 times */
        CHECK_EQ(route_first(r, SPAN("x"), now + 17240), TARN_OK);
        end(r, "x", 0, now + 20 * UTIL_MS);
    }
    CHECK(as_expected(m, before + 19)); /* the last one may be part of a batch */
    route_destroy(&r);
}

/* 11 ms each. y's first token is told before x's: what x took counts from then on. */
TEST(first_tokens_out_of_order_teach_the_right_times) {
    struct route *r = util_route("tarn", 1);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    util_decide(r, "y", 1000, UTIL_BEGIN);
    util_decide(r, "z", 1000, UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("y"), UTIL_BEGIN + 11 * UTIL_MS), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 22 * UTIL_MS), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("z"), UTIL_BEGIN + 33 * UTIL_MS), TARN_OK);
    CHECK(as_expected(&engine_of(r, "e0")->prefill, 2)); /* the third may share its batch */
    route_destroy(&r);
}

/* Two that have first tokens 1 ms apart were no batch: that is more than 2 % of 11 ms. */
TEST(a_batch_ends_where_time_has_passed) {
    struct route *r = util_route("tarn", 1);
    util_decide(r, "x", 1000, UTIL_BEGIN);
    util_decide(r, "y", 1, UTIL_BEGIN);
    util_decide(r, "z", 1000, UTIL_BEGIN);
    CHECK_EQ(route_first(r, SPAN("x"), UTIL_BEGIN + 11 * UTIL_MS), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("y"), UTIL_BEGIN + 12 * UTIL_MS + 10), TARN_OK);
    CHECK_EQ(route_first(r, SPAN("z"), UTIL_BEGIN + 23 * UTIL_MS + 10), TARN_OK);
    CHECK(as_expected(&engine_of(r, "e0")->prefill, 2));
    route_destroy(&r);
}

TEST(what_ran_beside_unknown_work_teaches_nothing) {
    struct route *r = util_route("tarn", 1);
    struct route_load load = {5000, 5, 0, 0, ROUTE_UNKNOWN};
    CHECK_EQ(route_engine_load(r, SPAN("e0"), 0, &load, UTIL_BEGIN), TARN_OK);
    uint64_t now = UTIL_BEGIN;
    for (int i = 0; i < 3; i++) {
        util_decide(r, "x", 1000, now);
        now += 100 * UTIL_MS;
        CHECK_EQ(route_first(r, SPAN("x"), now), TARN_OK);
        end(r, "x", 0, now);
    }
    CHECK_EQ(engine_of(r, "e0")->prefill.seen, 0);
    CHECK_EQ(route_figures_get(r)->route_odd_times, 0);
    route_destroy(&r);
}

/* --- decodes --- */

/* y joins half way: means of 1.5 sequences and 1500 tokens, 13 ms a step, 10 steps. */
TEST(a_step_is_learnt_by_what_ran_meanwhile) {
    struct route *r = decoding();
    uint64_t now = UTIL_BEGIN + 5000 * UTIL_MS;
    for (int i = 0; i < 5; i++) { /* what ran before does not count */
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        begin(r, id, UTIL_BEGIN);
    }
    for (int i = 0; i < 5; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        end(r, id, 0, now);
    }
    begin(r, "x", now);
    begin(r, "y", now + 65 * UTIL_MS);
    end(r, "x", 11, now + 130 * UTIL_MS);
    CHECK(as_expected(&engine_of(r, "e0")->decode, 1));
    end(r, "y", 7, now + 150 * UTIL_MS); /* so few say nothing */
    CHECK_EQ(engine_of(r, "e0")->decode.seen, 1);
    route_destroy(&r);
}

/* y is computed from 60 to 80 ms, and decodes stand still for that: x takes T, of which
 * T - 20 = 10 (10 + (2 - 80 / T) + (2 - 60 / T)). */
TEST(prefills_stop_decodes_and_are_taken_off) {
    struct route *r = decoding();
    begin(r, "x", UTIL_BEGIN);
    util_decide(r, "y", 950, UTIL_BEGIN + 60 * UTIL_MS);
    CHECK_EQ(route_first(r, SPAN("y"), UTIL_BEGIN + 80 * UTIL_MS), TARN_OK);
    end(r, "x", 11, UTIL_BEGIN + 150711);
    CHECK(as_expected(&engine_of(r, "e0")->decode, 1));
    route_destroy(&r);
}

TEST(a_decode_that_mostly_stood_still_teaches_nothing) {
    struct route *r = decoding();
    begin(r, "x", UTIL_BEGIN);
    util_decide(r, "y", 950, UTIL_BEGIN + 1 * UTIL_MS);
    end(r, "x", 11, UTIL_BEGIN + 1000 * UTIL_MS);
    CHECK_EQ(engine_of(r, "e0")->decode.seen, 0);
    route_destroy(&r);
}

/* The engine that decodes at last is asked what ran on it, from when it was chosen: x's first token
 * is there at 0, and d0, where ten have run for long, was to decode it; at 30 ms it goes to d1. */
TEST(who_decodes_at_last_is_learnt_of) {
    struct route *r = util_route("tarn", 0);
    const char *const ids[] = {"p", "d0", "d1"};
    for (int i = 0; i < 3; i++) {
        struct route_engine_spec s = util_spec(ids[i]);
        s.role = i == 0 ? ROUTE_PREFILL : ROUTE_DECODE;
        s.prior.decode_sequence_us = 1000;
        s.prior.decode_context_us = 1;
        s.prior.latency_us[ROUTE_FAR] = 1;
        s.prior.rate[ROUTE_FAR] = 1e9;
        CHECK_EQ(route_engine_add(r, &s, UTIL_BEGIN), TARN_OK);
    }
    CHECK_EQ(route_engine_drain(r, SPAN("d1"), true, UTIL_BEGIN), TARN_OK);
    for (int i = 0; i < 10; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", i);
        begin(r, id, UTIL_BEGIN);
    }
    uint64_t now = UTIL_BEGIN + 10000 * UTIL_MS;
    begin(r, "x", now);
    CHECK_EQ(route_engine_drain(r, SPAN("d1"), false, now), TARN_OK);
    CHECK_STR(util_decide(r, "x", 950, now + 30 * UTIL_MS).decode, "d1");
    end(r, "x", 11, now + 150 * UTIL_MS); /* one sequence, 1000 tokens: 12 ms a step */
    CHECK(as_expected(&engine_of(r, "d1")->decode, 1));
    CHECK_EQ(engine_of(r, "d0")->decode.seen, 0);
    route_destroy(&r);
}

/* Neither of steps nor of lengths: who knows how it failed. */
TEST(a_failed_request_teaches_nothing) {
    struct route *r = decoding();
    struct route_request q = util_request("y", 1000);
    struct route_decision d;
    q.output_tokens = 0;
    begin(r, "x", UTIL_BEGIN);
    CHECK_EQ(route_done(r, SPAN("x"), 1000, true, UTIL_BEGIN + 100 * UTIL_MS), TARN_OK);
    CHECK_EQ(engine_of(r, "e0")->decode.seen, 0);
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN + 100 * UTIL_MS, &d), TARN_OK);
    CHECK_EQ(util_view(r, "e0").context_tokens, 1000 + 128);
    route_destroy(&r);
}

/* Where nothing is said of an answer's length it is as long as answers are. */
TEST(how_long_answers_are_is_learnt) {
    struct route *r = util_route("tarn", 1);
    struct route_request q = util_request("y", 1000);
    struct route_decision d;
    q.output_tokens = 0;
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(util_view(r, "e0").context_tokens, 1000 + 128);
    end(r, "y", 256, UTIL_BEGIN);
    for (int i = 0; i < 1000; i++) {
        begin(r, "x", UTIL_BEGIN);
        end(r, "x", 1000, UTIL_BEGIN + 1);
    }
    CHECK_EQ(route_decide(r, &q, UTIL_BEGIN, &d), TARN_OK);
    CHECK_EQ(util_view(r, "e0").context_tokens, 1000 + 499);
    route_destroy(&r);
}

/* --- transfers --- */

static void loads_begin(struct util_loads *l) {
    struct route_prior prior = UTIL_PRIOR;
    prior.disk_rate = 500;
    util_loads_begin(l, &prior);
}

static void load(struct util_loads *l, uint64_t now_us, uint64_t takes_us) {
    CHECK_EQ(route_decide(l->r, &l->q, now_us, &l->d), TARN_OK);
    CHECK_EQ(l->d.load_tokens, 960);
    CHECK_EQ(route_first(l->r, l->q.id, now_us + takes_us), TARN_OK);
    end(l->r, "x", 0, now_us + takes_us);
}

/* 0.1 ms and 960 kB at 1 GB/s; from a disk another 960 kB at 0.5 GB/s. */
TEST(a_transfer_is_learnt_by_place_and_tier) {
    struct util_loads l;
    loads_begin(&l);
    const struct model *m = engine_of(l.r, "e0")->transfer;
    load(&l, UTIL_BEGIN, 1060 + 1010);
    CHECK(as_expected(&m[ROUTE_FAR], 1));
    l.run[0].rack = SPAN("r0");
    load(&l, UTIL_BEGIN + 10000 * UTIL_MS, 1060 + 1010);
    CHECK(as_expected(&m[ROUTE_SAME_RACK], 1));
    l.run[0].host = SPAN("h0");
    l.run[0].tier = ROUTE_TIER_DISK;
    load(&l, UTIL_BEGIN + 20000 * UTIL_MS, 1060 + 1920 + 1010);
    CHECK(as_expected(&m[ROUTE_SAME_HOST], 1));
    CHECK_EQ(m[ROUTE_FAR].seen, 1);
    /* What had to be loaded is not taken for a time of computing. */
    CHECK_EQ(engine_of(l.r, "e0")->prefill.seen, 0);
    for (int i = 0; i < 50; i++) load(&l, UTIL_BEGIN + (30000 + 10000ull * i) * UTIL_MS, 6990);
    double took = model_predict(&m[0], (double[MODEL_TERMS]){1, 960000, 960000});
    CHECK(fabs(took / (6990 - 1010) - 1) < 0.05);
    route_destroy(&l.r);
}

TEST(transfers_that_cannot_be_told_apart_teach_nothing) {
    struct util_loads l;
    loads_begin(&l);
    const struct model *m = engine_of(l.r, "e0")->transfer;
    l.run[0].tokens = 480;
    l.run[1] = (struct route_pool_run){.begin = 480, .tokens = 480, .host = SPAN("h0")};
    l.q.pools[0].run_count = 2;
    load(&l, UTIL_BEGIN, 5000); /* from two places */
    l.q.pools[0].run_count = 1;
    l.run[0].tokens = 960;
    util_decide(l.r, "y", 100, UTIL_BEGIN + 10000 * UTIL_MS); /* while another waits */
    CHECK_EQ(route_decide(l.r, &l.q, UTIL_BEGIN + 10000 * UTIL_MS, &l.d), TARN_OK);
    CHECK_EQ(route_first(l.r, l.q.id, UTIL_BEGIN + 10010 * UTIL_MS), TARN_OK);
    for (int i = 0; i < ROUTE_PLACES; i++) CHECK_EQ(m[i].seen, 0);
    route_destroy(&l.r);
}

/* --- all at once --- */

/* An engine that computes prompts first, and meanwhile decodes none of the others. */
struct small_engine {
    struct route *r;
    struct rng rng;
    uint64_t now_us, next_us; /* next_us: when the next request comes */
    struct small_request {
        char id[12];
        uint32_t prompt, output, made;
        bool decoding;
    } queue[64];
    uint32_t count, number;
};

static double prefill_truth(double n) {
    return 3000 + 25 * n;
}
static double step_truth(double running, double context) {
    return 6000 + 400 * running + 0.4 * context;
}

static void arrive(struct small_engine *s, uint64_t until_us) {
    for (; s->next_us <= until_us; s->next_us += 1 + rng_below(&s->rng, 600000)) {
        if (s->count == 64) continue;
        struct small_request *q = &s->queue[s->count++];
        *q = (struct small_request){.prompt = 100 + (uint32_t)rng_below(&s->rng, 3000),
                                    .output = 20 + (uint32_t)rng_below(&s->rng, 60)};
        snprintf(q->id, sizeof(q->id), "%u", s->number++);
        struct route_request asked = util_request(q->id, q->prompt);
        struct route_decision d;
        asked.output_tokens = q->output;
        CHECK_EQ(route_decide(s->r, &asked, s->next_us, &d), TARN_OK);
    }
}

static void pass(struct small_engine *s, double us) {
    s->now_us += (uint64_t)us;
    arrive(s, s->now_us);
}

static bool prefill(struct small_engine *s) {
    for (uint32_t i = 0; i < s->count; i++) {
        struct small_request *q = &s->queue[i];
        if (q->decoding) continue;
        q->decoding = true;
        q->made = 1;
        pass(s, prefill_truth(q->prompt));
        CHECK_EQ(route_first(s->r, span_str(q->id), s->now_us), TARN_OK);
        return true;
    }
    return false;
}

static void step(struct small_engine *s) {
    double context = 0;
    uint32_t running = s->count, kept = 0;
    for (uint32_t i = 0; i < running; i++) context += s->queue[i].prompt + s->queue[i].made;
    pass(s, step_truth(running, context));
    for (uint32_t i = 0; i < s->count; i++) {
        struct small_request *q = &s->queue[i];
        if (i < running && ++q->made == q->output)
            end(s->r, q->id, q->output, s->now_us);
        else
            s->queue[kept++] = *q;
    }
    s->count = kept;
}

TEST(a_busy_engine_s_times_are_found_out) {
    struct small_engine s = {.r = decoding(), .now_us = UTIL_BEGIN, .next_us = UTIL_BEGIN};
    rng_seed(&s.rng, 1);
    for (int i = 0; i < 40000; i++) {
        if (s.count == 0) s.now_us = max_u64(s.now_us, s.next_us);
        arrive(&s, s.now_us);
        if (!prefill(&s)) step(&s);
    }
    const struct route_engine *e = engine_of(s.r, "e0");
    CHECK(e->prefill.seen > 1000 && e->decode.seen > 1000);
    for (double n = 1000; n <= 3000; n += 500)
        CHECK(fabs(model_predict(&e->prefill, (double[]){1, n, n * n}) / prefill_truth(n) - 1) <
              0.2); /* some waited for a step to end */
    for (double b = 2; b <= 16; b *= 2)
        CHECK(fabs(step_us(e, b, 1600 * b) / step_truth(b, 1600 * b) - 1) < 0.1);
    CHECK_EQ(route_figures_get(s.r)->route_odd_times, 0);
    route_destroy(&s.r);
}

TEST_MAIN()
