/* Counters and histograms of a client: the sum over its lanes, read while they work. */
#include <stdio.h>

#include "base/assert.h"
#include "client/client.h"

/* Words lie between the size and the transports. */
static void add_counters(tarn_stats *sum, const tarn_stats *c) {
    static_assert(offsetof(tarn_stats, gets) == sizeof(uint64_t), "all members are words");
    static_assert(ARRAY_LEN(c->transport) >= TRANSPORTS_MAX, "a slot for each");
    uint64_t *to = (void *)sum;
    const uint64_t *from = (const void *)c;
    for (size_t i = 1; i < offsetof(tarn_stats, transport) / sizeof(uint64_t); i++)
        to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    for (size_t i = 0; i < TRANSPORTS_MAX; i++) {
        const tarn_transport_stats *t = &c->transport[i];
        sum->transport[i].bytes_read += __atomic_load_n(&t->bytes_read, __ATOMIC_RELAXED);
        sum->transport[i].bytes_written += __atomic_load_n(&t->bytes_written, __ATOMIC_RELAXED);
    }
}

uint64_t client_bytes_of(const uint64_t by_slot[TRANSPORTS_MAX], const char *scheme) {
    const char *name;
    for (unsigned i = 0; (name = transport_name(i)) != NULL; i++)
        if (strcmp(name, scheme) == 0) return by_slot[i];
    return 0;
}

static void name_transports(tarn_stats *s) {
    const char *name;
    uint64_t bytes_read[TRANSPORTS_MAX] = {0}, bytes_written[TRANSPORTS_MAX] = {0};
    static_assert(TRANSPORT_SCHEME_MAX < sizeof(s->transport[0].name), "schemes fit");
    for (unsigned i = 0; (name = transport_name(i)) != NULL; i++) {
        snprintf(s->transport[i].name, sizeof(s->transport[i].name), "%s", name);
        bytes_read[i] = s->transport[i].bytes_read;
        bytes_written[i] = s->transport[i].bytes_written;
    }
    /* Members of the time when these were all there were. */
    s->shm_bytes_read = client_bytes_of(bytes_read, "shm");
    s->shm_bytes_written = client_bytes_of(bytes_written, "shm");
    s->tcp_bytes_read = client_bytes_of(bytes_read, "tcp");
    s->tcp_bytes_written = client_bytes_of(bytes_written, "tcp");
    s->rdma_bytes_read = client_bytes_of(bytes_read, "rdma");
    s->rdma_bytes_written = client_bytes_of(bytes_written, "rdma");
}

/* The direct lane is created under another lock, but never goes before the client does. */
static struct lane *direct_of(struct tarn_client *client) {
    pthread_mutex_lock(&client->direct_mutex);
    struct lane *direct = client->direct;
    pthread_mutex_unlock(&client->direct_mutex);
    return direct;
}

tarn_status tarn_get_stats(tarn_client *client, tarn_stats *stats) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (stats == NULL || stats->size < sizeof(size_t))
        return fail(TARN_EINVAL, "set stats->size first");
    tarn_stats s = {.size = stats->size};
    struct lane *direct = direct_of(client);
    if (direct != NULL) add_counters(&s, &direct->counters);
    pthread_mutex_lock(&client->mutex);
    s.lanes = client->n_lanes;
    s.outages = client->outages.n;
    for (size_t i = 0; i < client->n_lanes; i++) {
        add_counters(&s, &client->lanes[i]->counters);
        s.lanes_busy += client->lanes[i]->busy;
    }
    pthread_mutex_unlock(&client->mutex);
    name_transports(&s);
    s.views_open = __atomic_load_n(&client->n_views, __ATOMIC_RELAXED);
    s.writers_open = __atomic_load_n(&client->n_writers, __ATOMIC_RELAXED);
    s.async_pending = __atomic_load_n(&client->async_pending, __ATOMIC_RELAXED);
    memcpy(stats, &s, s.size < sizeof(s) ? s.size : sizeof(s));
    return TARN_OK;
}

void timing_merge(struct tarn_client *client, int kind, struct hist *sum) {
    struct lane *direct = direct_of(client);
    if (direct != NULL) hist_merge(sum, &direct->hist[kind]);
    pthread_mutex_lock(&client->mutex);
    for (size_t i = 0; i < client->n_lanes; i++) hist_merge(sum, &client->lanes[i]->hist[kind]);
    pthread_mutex_unlock(&client->mutex);
}

void timing_add(struct lane *lane, int kind, size_t n, uint64_t started_us) {
    uint64_t took_us = clock_mono_us() - started_us;
    static_assert(TARN_HIST_LOOKUP == 2, "kinds of calls are the first three");
    hist_add(&lane->hist[kind], took_us);
    if (n > 1) hist_add(&lane->hist[TARN_HIST_GET_BATCH + kind], took_us);
}

tarn_status tarn_get_histogram(tarn_client *client, int kind, tarn_histogram *histogram) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (kind < 0 || kind >= TARN_HISTS) return fail(TARN_EINVAL, "kind is a TARN_HIST_*");
    if (histogram == NULL || histogram->size < sizeof(size_t))
        return fail(TARN_EINVAL, "set histogram->size first");
    struct hist h = {0};
    timing_merge(client, kind, &h);
    tarn_histogram out = {
        .size = histogram->size,
        .count = h.count,
        .sum_us = h.sum,
        .min_us = h.min,
        .max_us = h.max,
        .p50_us = hist_percentile(&h, 0.50),
        .p90_us = hist_percentile(&h, 0.90),
        .p95_us = hist_percentile(&h, 0.95),
        .p99_us = hist_percentile(&h, 0.99),
        .p999_us = hist_percentile(&h, 0.999),
    };
    while (hist_latency_bounds_us[out.n_bounds] != 0 && out.n_bounds < TARN_HIST_BOUNDS) {
        out.bound_us[out.n_bounds] = hist_latency_bounds_us[out.n_bounds];
        out.upto[out.n_bounds] = hist_count_upto(&h, hist_latency_bounds_us[out.n_bounds]);
        out.n_bounds++;
    }
    memcpy(histogram, &out, out.size < sizeof(out) ? out.size : sizeof(out));
    return TARN_OK;
}
