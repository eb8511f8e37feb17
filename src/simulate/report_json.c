/* The same as JSON. */
#include "base/json_text.h"
#include "simulate/plan.h"

static void json_times(struct buf *out, const char *name, const struct sim_times *t) {
    buf_printf(out, "\"%s\":{\"mean\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f},", name,
               t->mean * 1e3, t->p50 * 1e3, t->p90 * 1e3, t->p99 * 1e3);
}

static void json_counts(struct buf *out, const struct cell *c) {
    const struct sim_result *r = &c->result;
    buf_printf(out, "\"requests\":%llu,\"done\":%llu,\"rejected\":%llu,\"rejected_share\":%.6f,",
               (unsigned long long)r->requests, (unsigned long long)r->done,
               (unsigned long long)(r->refused + r->too_long + r->lost), cell_rejected(c));
    buf_printf(out,
               "\"refused\":%llu,\"too_long\":%llu,\"lost\":%llu,\"restarted\":%llu,"
               "\"preempted\":%llu,",
               (unsigned long long)r->refused, (unsigned long long)r->too_long,
               (unsigned long long)r->lost, (unsigned long long)r->restarted,
               (unsigned long long)r->preempted);
}

static void json_cell(struct buf *out, const struct sim_plan *p, const struct cell *c) {
    const struct sim_result *r = &c->result;
    char where[64];
    buf_append_str(out, "{\"route\":");
    json_text_put(out, span_str(c->route));
    buf_printf(out, ",\"deployment\":\"%s\",\"pool_blocks\":%llu,\"eviction\":\"%s\",",
               cell_deployment(p, c, where), (unsigned long long)c->pool_blocks, c->eviction);
    if (c->load > 0)
        buf_printf(out, "\"load\":%.4f,\"limit_requests_s\":%.6f,", c->load, c->rate / c->load);
    else
        buf_append_str(out, "\"load\":null,\"limit_requests_s\":null,");
    buf_printf(out, "\"pace\":%.6f,\"requests_s\":%.6f,", c->pace, c->rate);
    json_counts(out, c);
    json_times(out, "ttft_ms", &r->ttft);
    json_times(out, "tbt_ms", &r->tbt);
    json_times(out, "gap_ms", &r->gap);
    buf_printf(out, "\"goodput\":%.6f,\"kept\":%llu,\"tokens_s\":%.3f,", r->goodput,
               (unsigned long long)r->kept, r->tokens_s);
    if (p->config.masters > 0 && c->pool_blocks > 0) json_times(out, "lookup_ms", &r->lookup);
    buf_printf(out, "\"hit_ratio\":{\"device\":%.6f,\"host\":%.6f,\"pool\":%.6f},", r->device,
               r->host, r->pool);
    buf_printf(out,
               "\"prefill_saved_s\":%.3f,\"prefill_s\":%.3f,\"copies\":%llu,"
               "\"copied_bytes\":%.0f,\"moved_bytes\":%.0f,\"local_bytes\":%.0f,"
               "\"pool\":{\"blocks\":%llu,\"evicted\":%llu}}",
               r->saved_s, r->prefill_s, (unsigned long long)r->copies, r->copied_bytes,
               r->moved_bytes, r->local_bytes, (unsigned long long)r->pool_blocks,
               (unsigned long long)r->pool_evicted);
}

void report_json(const struct sim_plan *p, struct buf *out) {
    const struct sim_config *c = &p->config;
    buf_append_str(out, "{\"trace\":");
    json_text_put(out, span_str(p->trace_name));
    buf_printf(out, ",\"block_tokens\":%u,\"trace_requests_s\":%.6f,\"model\":\"%s\",",
               p->trace.block, p->trace_rate, c->speed.model->name);
    buf_printf(out, "\"gpu\":\"%s\",\"gpus\":%u,\"chunk\":%u,\"seed\":%llu,", c->speed.gpu->name,
               c->speed.gpus, c->speed.chunk, (unsigned long long)c->seed);
    if (c->masters > 0) buf_printf(out, "\"masters\":%u,", c->masters);
    buf_printf(out, "\"slo_ms\":{\"ttft\":%g,\"tbt\":%g},\"kept_share_at_load_1\":%g,\"rows\":[",
               c->slo_ttft_s * 1e3, c->slo_tbt_s * 1e3, SIM_KEPT_SHARE);
    for (size_t i = 0; i < p->n; i++) {
        if (i > 0) buf_append_char(out, ',');
        buf_append_char(out, '\n');
        json_cell(out, p, &p->cells[i]);
    }
    buf_append_str(out, "\n]}\n");
}
