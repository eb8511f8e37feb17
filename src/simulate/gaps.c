#include "simulate/gaps.h"

#include <math.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"

void gaps_add(struct gaps *g, double s, uint32_t n) {
    if (n == 0) return;
    if (g->n > 0 && g->v[g->n - 1].s == (float)s) {
        g->v[g->n - 1].n += n;
        return;
    }
    ARRAY_GROW(g->v, g->n, g->cap);
    g->v[g->n++] = (struct gap){(float)s, n};
}

/* Those longer than the middle one to the front, those as long behind them. */
static void gaps_part(struct gap *v, size_t n, size_t *longer_p, size_t *alike_p) {
    float middle = v[n / 2].s;
    size_t low = 0, i = 0, high = n;
    while (i < high) {
        struct gap x = v[i];
        if (x.s > middle) {
            v[i++] = v[low];
            v[low++] = x;
        } else if (x.s < middle) {
            v[i] = v[--high];
            v[high] = x;
        } else {
            i++;
        }
    }
    *longer_p = low;
    *alike_p = high - low;
}

static uint64_t gaps_count(const struct gap *v, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += v[i].n;
    return sum;
}

/* Quickselect (Hoare 1961) by weight: of three parts that is looked at again in which the tenth
 * ends. */
double gaps_worst_tenth(struct gaps *g) {
    uint64_t want = (gaps_count(g->v, g->n) + 9) / 10, left = want;
    double sum = 0;
    struct gap *v = g->v;
    size_t n = g->n;
    while (left > 0) {
        size_t longer, alike;
        gaps_part(v, n, &longer, &alike);
        uint64_t in = gaps_count(v, longer);
        if (in > left) {
            n = longer;
            continue;
        }
        for (size_t i = 0; i < longer; i++) sum += (double)v[i].s * v[i].n;
        left -= in;
        in = min_u64(gaps_count(v + longer, alike), left);
        sum += (double)v[longer].s * (double)in;
        left -= in;
        v += longer + alike;
        n -= longer + alike;
    }
    return want > 0 ? sum / (double)want : 0;
}

void samples_add(struct samples *s, double x) {
    ARRAY_GROW(s->v, s->n, s->cap);
    s->v[s->n++] = (float)x;
}

static int float_order(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static double sample_at(const struct samples *s, double p) {
    size_t i = (size_t)ceil(p * (double)s->n);
    return (double)s->v[i > 0 ? i - 1 : 0];
}

struct sim_times samples_times(struct samples *s) {
    if (s->n == 0) return (struct sim_times){0};
    qsort(s->v, s->n, sizeof(*s->v), float_order);
    double sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += (double)s->v[i];
    return (struct sim_times){sum / (double)s->n, sample_at(s, 0.5), sample_at(s, 0.9),
                              sample_at(s, 0.99)};
}

void samples_free(struct samples *s) {
    free(s->v);
    *s = (struct samples){0};
}

#define SPREAD_STEP  0.01
#define SPREAD_LEAST 1e-5

void spread_add(struct spread *s, double x, uint64_t n) {
    double at = x > SPREAD_LEAST ? log(x / SPREAD_LEAST) / SPREAD_STEP : 0;
    size_t i = at < SPREAD_BUCKETS - 1 ? (size_t)at : SPREAD_BUCKETS - 1;
    s->bucket[i] += n;
    s->n += n;
    s->sum += x * (double)n;
}

static double spread_at(const struct spread *s, double p) {
    uint64_t rank = (uint64_t)ceil(p * (double)s->n), seen = 0;
    for (size_t i = 0; i < SPREAD_BUCKETS; i++) {
        seen += s->bucket[i];
        if (seen >= rank) return SPREAD_LEAST * exp(SPREAD_STEP * ((double)i + 0.5));
    }
    return 0;
}

struct sim_times spread_times(const struct spread *s) {
    if (s->n == 0) return (struct sim_times){0};
    return (struct sim_times){s->sum / (double)s->n, spread_at(s, 0.5), spread_at(s, 0.9),
                              spread_at(s, 0.99)};
}
