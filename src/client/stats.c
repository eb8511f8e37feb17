/* Counters and histograms of a client: the sum over its lanes, read while they work. */
#include <stdio.h>

#include "client/internal.h"

static void add_counters(uint64_t *sum, const struct counters *c) {
    const uint64_t *words = (const uint64_t *)(const void *)c;
    for (size_t i = 0; i < sizeof(*c) / sizeof(uint64_t); i++)
        sum[i] += __atomic_load_n(&words[i], __ATOMIC_RELAXED);
}

uint64_t client_bytes_of(const uint64_t by_slot[TRANSPORTS_MAX], const char *scheme) {
    const char *name;
    for (unsigned i = 0; (name = transport_name(i)) != NULL; i++)
        if (strcmp(name, scheme) == 0) return by_slot[i];
    return 0;
}

static void fill_transports(tarn_stats *s, const struct counters *c) {
    const char *name;
    static_assert(TRANSPORT_SCHEME_MAX < sizeof(s->transport[0].name), "schemes fit");
    for (unsigned i = 0; i < ARRAY_LEN(s->transport) && (name = transport_name(i)) != NULL; i++) {
        snprintf(s->transport[i].name, sizeof(s->transport[i].name), "%s", name);
        s->transport[i].bytes_read = c->bytes_read_by[i];
        s->transport[i].bytes_written = c->bytes_written_by[i];
    }
    /* Members of the time when these were all there were. */
    s->shm_bytes_read = client_bytes_of(c->bytes_read_by, "shm");
    s->shm_bytes_written = client_bytes_of(c->bytes_written_by, "shm");
    s->tcp_bytes_read = client_bytes_of(c->bytes_read_by, "tcp");
    s->tcp_bytes_written = client_bytes_of(c->bytes_written_by, "tcp");
    s->rdma_bytes_read = client_bytes_of(c->bytes_read_by, "rdma");
    s->rdma_bytes_written = client_bytes_of(c->bytes_written_by, "rdma");
}

static void fill(tarn_stats *s, const struct counters *c) {
#define COPY(field) s->field = c->field
    COPY(gets), COPY(get_hits), COPY(get_misses), COPY(get_failures);
    COPY(puts), COPY(put_stored), COPY(put_existed), COPY(put_failures);
    COPY(lookups), COPY(removes), COPY(bytes_read), COPY(bytes_written);
    fill_transports(s, c);
    COPY(shm_unreachable);
    COPY(requests), COPY(round_trips), COPY(connects), COPY(reconnects), COPY(retries),
        COPY(timeouts);
    COPY(leases), COPY(lease_renewals), COPY(lease_misses), COPY(epoch_misses),
        COPY(crc_mismatches);
    COPY(unverified), COPY(segment_fetches);
    COPY(failovers), COPY(replica_reports), COPY(put_replicas_failed), COPY(put_restarts);
#undef COPY
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
    struct counters sum = {0};
    tarn_stats s = {.size = stats->size};
    struct lane *direct = direct_of(client);
    if (direct != NULL) add_counters((uint64_t *)(void *)&sum, &direct->counters);
    pthread_mutex_lock(&client->mutex);
    s.lanes = client->n_lanes;
    s.outages = client->outages.n;
    for (size_t i = 0; i < client->n_lanes; i++) {
        add_counters((uint64_t *)(void *)&sum, &client->lanes[i]->counters);
        s.lanes_busy += client->lanes[i]->busy;
    }
    pthread_mutex_unlock(&client->mutex);
    fill(&s, &sum);
    s.views_open = __atomic_load_n(&client->n_views, __ATOMIC_RELAXED);
    s.writers_open = __atomic_load_n(&client->n_writers, __ATOMIC_RELAXED);
    s.async_pending = __atomic_load_n(&client->async_pending, __ATOMIC_RELAXED);
    memcpy(stats, &s, s.size < sizeof(s) ? s.size : sizeof(s));
    return TARN_OK;
}

tarn_status tarn_get_histogram(tarn_client *client, int kind, tarn_histogram *histogram) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (kind < 0 || kind >= TARN_HISTS) return fail(TARN_EINVAL, "kind is a TARN_HIST_*");
    if (histogram == NULL || histogram->size < sizeof(size_t))
        return fail(TARN_EINVAL, "set histogram->size first");
    struct hist h;
    hist_init(&h);
    struct lane *direct = direct_of(client);
    if (direct != NULL) hist_merge(&h, &direct->hist[kind]);
    pthread_mutex_lock(&client->mutex);
    for (size_t i = 0; i < client->n_lanes; i++) hist_merge(&h, &client->lanes[i]->hist[kind]);
    pthread_mutex_unlock(&client->mutex);
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
