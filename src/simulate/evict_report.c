/* What came of `evict`: tables and JSON. */
#include "base/json_text.h"
#include "simulate/evict.h"

static const struct evict_row *row_at(const struct evict_plan *p, const struct evict_sheet *s,
                                      size_t policy, size_t size) {
    return &s->rows[policy * p->sizes.n + size];
}

static double share_of(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

/* seconds: as a share of all prefills, instead of hits. */
static void text_table(const struct evict_plan *p, const struct evict_sheet *s, bool seconds,
                       struct buf *out) {
    buf_printf(out, "%-24s", seconds ? "prefill saved" : "prefix hit ratio");
    for (size_t k = 0; k < p->sizes.n; k++) buf_printf(out, "%8.0f", p->sizes.v[k]);
    buf_append_str(out, "  blocks\n");
    for (size_t i = 0; i <= p->policies.n; i++) {
        buf_printf(out, "  %-22s", row_at(p, s, i, 0)->policy);
        for (size_t k = 0; k < p->sizes.n; k++) {
            const struct evict_score *score = &row_at(p, s, i, k)->score;
            buf_printf(out, "%8.4f",
                       seconds ? share_of(score->saved_s, s->prefill_s) : evict_ratio(s, score));
        }
        buf_append_char(out, '\n');
    }
    buf_printf(out, "  %-22s%8.4f\n", "unlimited",
               seconds ? share_of(s->unlimited.saved_s, s->prefill_s)
                       : evict_ratio(s, &s->unlimited));
}

void evict_text(const struct evict_plan *p, struct buf *out) {
    for (size_t i = 0; i < p->n; i++) {
        const struct evict_sheet *s = &p->sheets[i];
        buf_printf(out, "%s%s, %s: %llu requests in %.0f s, %llu blocks, %llu of them different\n",
                   i > 0 ? "\n" : "", s->name, trace_transform_name(s->transform),
                   (unsigned long long)s->requests, s->span_s, (unsigned long long)s->blocks,
                   (unsigned long long)s->ids);
        text_table(p, s, false, out);
        buf_printf(out, "of %.0f s on %u %s, %s:\n", s->prefill_s, p->speed.gpus,
                   p->speed.gpu->name, p->speed.model->name);
        text_table(p, s, true, out);
    }
}

static void json_score(struct buf *out, const struct evict_sheet *s,
                       const struct evict_score *score) {
    buf_printf(out, "\"hit_blocks\":%llu,\"hit_ratio\":%.6f,\"prefill_saved_s\":%.3f",
               (unsigned long long)score->hits, evict_ratio(s, score), score->saved_s);
}

static void json_sheet(const struct evict_plan *p, const struct evict_sheet *s, struct buf *out) {
    buf_append_str(out, "{\"trace\":");
    json_text_put(out, span_str(s->name));
    buf_printf(out,
               ",\"transform\":\"%s\",\"requests\":%llu,\"blocks\":%llu,\"different\":%llu,"
               "\"span_s\":%.3f,\"prefill_s\":%.3f,\"unlimited\":{",
               trace_transform_name(s->transform), (unsigned long long)s->requests,
               (unsigned long long)s->blocks, (unsigned long long)s->ids, s->span_s, s->prefill_s);
    json_score(out, s, &s->unlimited);
    buf_append_str(out, "},\"rows\":[");
    for (size_t i = 0; i < evict_rows(p); i++) {
        const struct evict_row *row = &s->rows[i];
        buf_printf(out, "%s\n{\"policy\":\"%s\",\"pool_blocks\":%llu,", i > 0 ? "," : "",
                   row->policy, (unsigned long long)row->blocks);
        json_score(out, s, &row->score);
        buf_printf(out, ",\"evictions\":%llu}", (unsigned long long)row->score.evictions);
    }
    buf_append_str(out, "\n]}");
}

void evict_json(const struct evict_plan *p, struct buf *out) {
    buf_printf(out, "{\"model\":\"%s\",\"gpu\":\"%s\",\"gpus\":%u,\"seed\":%llu,\"sheets\":[",
               p->speed.model->name, p->speed.gpu->name, p->speed.gpus,
               (unsigned long long)p->how.seed);
    for (size_t i = 0; i < p->n; i++) {
        if (i > 0) buf_append_str(out, ",\n");
        json_sheet(p, &p->sheets[i], out);
    }
    buf_append_str(out, "]}\n");
}
