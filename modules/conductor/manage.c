/* CONDUCTOR.ADD, REMOVE, DRAIN, LIST, INFO, LOAD: which engines there are, and how loaded. */
#include <inttypes.h>
#include <stdio.h>
#include "base/clock.h"
#include "conductor/command.h"
#include "conductor/enroll.h"
#include "conductor/kept.h"
#include "conductor/metrics.h"
#include "conductor/streams.h"

static const char *const role_names[] = {"both", "prefill", "decode"};

void conductor_fail_unknown(struct tarn_call_context *c, struct span id, uint64_t rank) {
    int len = (int)min_u64(id.len, ROUTE_NAME_MAX);
    if (rank != CONDUCTOR_UNTOLD && kept_engine_there(id))
        conductor_fail(c, "engine '%.*s' has no rank %" PRIu64, len, id.data, rank);
    else
        conductor_fail(c, "no engine '%.*s' is registered; CONDUCTOR.LIST shows which are", len,
                       id.data);
}

/* --- ADD --- */

/* What a registration has that no word says as it is kept. */
struct made_words {
    char block[24], kv_blocks[24], bytes[24], metrics[ROUTE_URL_MAX + 16];
};
/* 0 is as not given. */
static struct span decimal(uint64_t v, char out[24]) {
    return span_of(out, v == 0 ? 0 : u64_to_dec(v, out));
}

/* YES: beside what the engine serves, whose url may have the version of its API. */
static struct span metrics_url(struct span given, struct span url, char out[ROUTE_URL_MAX + 16]) {
    if (!span_case_eq(given, "yes")) return given;
    if (url.len > 0 && url.data[url.len - 1] == '/') url.len--;
    if (url.len >= 3 && memcmp(url.data + url.len - 3, "/v1", 3) == 0) url.len -= 3;
    return span_of(
        out, (size_t)snprintf(out, ROUTE_URL_MAX + 16, "%.*s/metrics", (int)url.len, url.data));
}

static void add_registration(const struct conductor_add *args, const struct span *argv,
                             struct made_words *n, struct registration *x) {
    *x = (struct registration){.id = argv[args->id], .rank = (uint32_t)args->rank};
    x->field[ENGINE_URL] = argv[args->url];
    x->field[ENGINE_EVENTS] = word_at(argv, args->events);
    x->field[ENGINE_REPLAY] = word_at(argv, args->replay);
    x->field[ENGINE_METRICS] =
        metrics_url(word_at(argv, args->metrics), argv[args->url], n->metrics);
    if (args->role > 1) x->field[ENGINE_ROLE] = span_str(role_names[args->role - 1]);
    x->field[ENGINE_MODEL] = argv[args->model];
    x->field[ENGINE_LORA] = word_at(argv, args->lora);
    x->field[ENGINE_TENANT] = word_at(argv, args->tenant);
    x->field[ENGINE_SALT] = word_at(argv, args->salt);
    x->field[ENGINE_HOST] = word_at(argv, args->host);
    x->field[ENGINE_RACK] = word_at(argv, args->rack);
    x->field[ENGINE_BLOCK] = decimal(args->block, n->block);
    x->field[ENGINE_KVBLOCKS] = decimal(args->kv_blocks, n->kv_blocks);
    x->field[ENGINE_BYTES] = decimal(args->bytes, n->bytes);
}

void cmd_add(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_add args = {0};
    struct registration x;
    struct made_words made;
    struct refusal why;
    if (!conductor_bind(c, CONDUCTOR_ADD, argv, argc, &args)) return;
    add_registration(&args, argv, &made, &x);
    if (enroll(&x, &why))
        conductor_services->reply_simple(c, "OK");
    else
        conductor_refuse(c, &why);
}

/* --- REMOVE and DRAIN --- */

static void reply_done(struct tarn_call_context *c, struct span id, uint64_t rank,
                       tarn_status status) {
    if (status == TARN_OK)
        conductor_services->reply_simple(c, "OK");
    else if (status == TARN_ENOTFOUND)
        conductor_fail_unknown(c, id, rank);
    else
        conductor_fail_kept(c, status);
}

void cmd_remove(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_engine args = {0};
    if (!conductor_bind(c, CONDUCTOR_REMOVE, argv, argc, &args)) return;
    reply_done(c, argv[args.id], args.rank, kept_unregister(argv[args.id], args.rank));
    (void)kept_write();
}

void cmd_drain(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_engine args = {0};
    if (!conductor_bind(c, CONDUCTOR_DRAIN, argv, argc, &args)) return;
    reply_done(c, argv[args.id], CONDUCTOR_UNTOLD, kept_drain(argv[args.id], !args.cancel));
}

/* --- LIST and INFO --- */

const char *conductor_role_name(enum route_role role) {
    return role_names[role];
}

static bool has_work(const struct route_engine_view *v) {
    return v->prefills > 0 || v->decodes > 0 || v->context_tokens > 0;
}

const char *conductor_state_name(const struct route_engine_view *v) {
    switch (v->state) {
    case ROUTE_UP: return "up";
    case ROUTE_DRAINS: return has_work(v) ? "draining" : "drained";
    case ROUTE_SILENT: return "silent";
    case ROUTE_BACKS_OFF: return "failing";
    }
    return "";
}

/* -1: it has not said anything yet. */
static uint64_t silent_ms(const struct route_engine_view *v, uint64_t now_us) {
    return v->heard_us == 0 ? UINT64_MAX : (now_us - v->heard_us) / 1000;
}

enum { RANK_FIELDS = 9 };
static void rank_fields(struct tarn_call_context *c, const struct route_engine_view *v) {
    struct registration x;
    bool known = kept_registration(span_str(v->id), v->rank, &x);
    field_int(c, "rank", v->rank);
    conductor_services->reply_text(c, SPAN("url"));
    conductor_services->reply_text(c, known ? x.field[ENGINE_URL] : span_str(v->url));
    field_text(c, "state", conductor_state_name(v));
    field_int(c, "prefills", v->prefills);
    field_int(c, "prefill-tokens", v->prefill_tokens + v->foreign_prefill_tokens);
    field_int(c, "wait-ms", (uint64_t)(v->prefill_wait_us / 1000));
    field_int(c, "decodes", v->decodes);
    field_int(c, "routed", v->routed);
    field_int(c, "silent-ms", silent_ms(v, conductor_now_us()));
}

void cmd_list(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct route_engine_view v;
    struct streams_view stream;
    struct metrics_view metrics;
    uint64_t now_us = conductor_now_us();
    size_t n = route_figures_get(conductor_route)->route_workers;
    if (!conductor_bind(c, CONDUCTOR_LIST, argv, argc, NULL)) return;
    conductor_services->reply_array(c, n);
    for (uint32_t at = 0; route_engine_next(conductor_route, &at, now_us, &v);) {
        conductor_services->reply_map(c, RANK_FIELDS + 7);
        field_text(c, "id", v.id);
        field_text(c, "role", conductor_role_name(v.role));
        field_text(c, "model", v.model);
        field_int(c, "block", v.block_tokens);
        rank_fields(c, &v);
        streams_get(v.worker, &stream);
        field_text(c, "events", stream.state);
        field_int(c, "partial", stream.partial);
        metrics_get(v.worker, &metrics);
        field_text(c, "metrics", metrics.state);
    }
}

static void engine_fields(struct tarn_call_context *c, const struct route_engine_view *v) {
    field_text(c, "id", v->id);
    field_text(c, "role", conductor_role_name(v->role));
    field_text(c, "model", v->model);
    field_text(c, "lora", v->lora);
    field_text(c, "tenant", v->tenant);
    field_text(c, "salt", v->salt);
    field_text(c, "host", v->host);
    field_text(c, "rack", v->rack);
    field_text(c, "keys", v->keys);
    field_int(c, "block", v->block_tokens);
    field_int(c, "kvblocks", v->kv_blocks);
    field_int(c, "bytes", v->bytes_per_token);
    field_int(c, "failed", v->failed);
    field_double(c, "prefill-token-us", v->prefill_token_us);
    field_double(c, "prefill-error", v->prefill_error);
    field_int(c, "prefill-seen", v->prefill_seen);
    field_double(c, "decode-step-us", v->decode_step_us);
    field_double(c, "decode-error", v->decode_error);
    field_int(c, "decode-seen", v->decode_seen);
}
enum { ENGINE_INFO_FIELDS = 19 };

/* As a map of its own. */
static void reply_stream(struct tarn_call_context *c, uint32_t worker) {
    struct streams_view v;
    streams_get(worker, &v);
    const struct kvevents_figures *f = &v.info.figures;
    uint64_t now_ms = clock_mono_ms();
    conductor_services->reply_map(c, 17);
    field_text(c, "endpoint", v.events);
    field_text(c, "replay", v.replay);
    field_text(c, "state", v.state);
    field_int(c, "connected", v.info.connected);
    field_int(c, "partial", v.partial);
    field_text(c, "partial-why", v.why);
    field_int(c, "last", v.info.begun ? v.info.last : UINT64_MAX);
    field_int(c, "silent-ms", v.info.message_ms != 0 ? now_ms - v.info.message_ms : UINT64_MAX);
    field_int(c, "batches", f->kvevents_batches);
    field_int(c, "blocks", f->kvevents_blocks);
    field_int(c, "gaps", f->kvevents_gaps);
    field_int(c, "replays", f->kvevents_replays);
    field_int(c, "replay-errors", f->kvevents_replay_errors);
    field_int(c, "lost", f->kvevents_lost);
    field_int(c, "restarts", f->kvevents_restarts);
    field_int(c, "decode-errors", f->kvevents_decode_errors);
    field_text(c, "decode-why", v.info.why_decode);
}

/* Likewise. */
static void reply_metrics(struct tarn_call_context *c, uint32_t worker) {
    struct metrics_view v;
    metrics_get(worker, &v);
    const struct scraper_info *i = &v.info;
    uint64_t now_ms = clock_mono_ms();
    conductor_services->reply_map(c, 9);
    field_text(c, "url", v.url);
    field_text(c, "state", v.state);
    field_text(c, "why", v.why);
    field_int(c, "failing-ms", i->failing_ms != 0 ? now_ms - i->failing_ms : 0);
    field_int(c, "silent-ms", i->answered_ms != 0 ? now_ms - i->answered_ms : UINT64_MAX);
    field_int(c, "took-ms", i->took_ms);
    field_int(c, "answers", i->figures.scrape_answers);
    field_int(c, "failures", i->figures.scrape_failures);
    field_text(c, "refused-why", i->why_refused);
}

static void reply_rank(struct tarn_call_context *c, const struct route_engine_view *v) {
    struct route_index *index = route_index(conductor_route);
    conductor_services->reply_map(c, RANK_FIELDS + 8);
    rank_fields(c, v);
    field_int(c, "context-tokens", v->context_tokens);
    field_int(c, "other-prefill-tokens", v->foreign_prefill_tokens);
    field_int(c, "other-decodes", v->foreign_decodes);
    field_int(c, "other-kvblocks", v->foreign_kv_blocks);
    field_int(c, "reports", v->reports);
    field_int(c, "blocks",
              route_holder_blocks(index, route_worker_holder(conductor_route, v->worker)));
    conductor_services->reply_text(c, SPAN("events"));
    reply_stream(c, v->worker);
    conductor_services->reply_text(c, SPAN("metrics"));
    reply_metrics(c, v->worker);
}

void cmd_info(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_engine args = {0};
    struct route_engine_view v;
    uint64_t now_us = conductor_now_us();
    bool begun = false;
    if (!conductor_bind(c, CONDUCTOR_INFO, argv, argc, &args)) return;
    for (uint32_t rank = 0; rank < ROUTE_RANKS_MAX; rank++) {
        uint32_t at = route_worker_find(conductor_route, argv[args.id], rank);
        if (at == ROUTE_NO_WORKER || !route_engine_next(conductor_route, &at, now_us, &v)) continue;
        if (!begun) {
            conductor_services->reply_map(c, ENGINE_INFO_FIELDS + 1);
            engine_fields(c, &v);
            conductor_services->reply_text(c, SPAN("ranks"));
            conductor_services->reply_array(c, v.ranks);
            begun = true;
        }
        reply_rank(c, &v);
    }
    if (!begun) conductor_fail_unknown(c, argv[args.id], CONDUCTOR_UNTOLD);
}

/* --- LOAD --- */

void cmd_load(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_load args = {0};
    static_assert(CONDUCTOR_UNTOLD == ROUTE_UNKNOWN, "one word for it");
    if (!conductor_bind(c, CONDUCTOR_LOAD, argv, argc, &args)) return;
    struct route_load load = {.prefill_tokens = args.prefill,
                              .waiting = args.waiting,
                              .running = args.running,
                              .kv_blocks_used = args.kv_used,
                              .kv_blocks = args.kv_blocks};
    tarn_status status = route_engine_load(conductor_route, argv[args.id], (uint32_t)args.rank,
                                           &load, conductor_now_us());
    if (status == TARN_OK)
        conductor_services->reply_simple(c, "OK");
    else
        conductor_fail_unknown(c, argv[args.id], args.rank);
}
