/* Counters and histograms of a client: the sum over its lanes, read while they work. */
#include <stdio.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/shards.h"

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

static void client_add(struct tarn_client *client, void *arg) {
    tarn_stats *sum = arg;
    struct lane *direct = direct_of(client);
    if (direct != NULL) add_counters(sum, &direct->counters);
    pthread_mutex_lock(&client->mutex);
    sum->lanes += client->n_lanes;
    sum->outages += client->outages.n;
    for (size_t i = 0; i < client->n_lanes; i++) {
        add_counters(sum, &client->lanes[i]->counters);
        sum->lanes_busy += client->lanes[i]->busy;
    }
    pthread_mutex_unlock(&client->mutex);
    sum->views_open += __atomic_load_n(&client->n_views, __ATOMIC_RELAXED);
    sum->writers_open += __atomic_load_n(&client->n_writers, __ATOMIC_RELAXED);
    sum->async_pending += __atomic_load_n(&client->async_pending, __ATOMIC_RELAXED);
}

tarn_status tarn_get_stats(tarn_client *client, tarn_stats *stats) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (stats == NULL || stats->size < sizeof(size_t))
        return fail(TARN_EINVAL, "set stats->size first");
    tarn_stats s = {.size = stats->size};
    client_add(client, &s);
    if (client->shards != NULL) {
        shards_each(client, client_add, &s);
        pthread_mutex_lock(&client->shards->mutex);
        add_counters(&s, &client->shards->past);
        pthread_mutex_unlock(&client->shards->mutex);
    }
    name_transports(&s);
    memcpy(stats, &s, s.size < sizeof(s) ? s.size : sizeof(s));
    return TARN_OK;
}

struct hists {
    struct hist *sum;
    int kind;
};

static void hists_add(struct tarn_client *client, void *arg) {
    const struct hists *h = arg;
    struct lane *direct = direct_of(client);
    if (direct != NULL) hist_merge(h->sum, &direct->hist[h->kind]);
    pthread_mutex_lock(&client->mutex);
    for (size_t i = 0; i < client->n_lanes; i++)
        hist_merge(h->sum, &client->lanes[i]->hist[h->kind]);
    pthread_mutex_unlock(&client->mutex);
}

void stats_keep(struct tarn_client *client, tarn_stats *counters, struct hist *requests) {
    tarn_stats s = {.size = sizeof(s)};
    client_add(client, &s);
    s.lanes = s.lanes_busy = s.outages = 0;
    s.views_open = s.writers_open = s.async_pending = 0;
    add_counters(counters, &s);
    hists_add(client, &(struct hists){requests, TARN_HIST_REQUEST});
}

/* Of a front the calls are its own, whole; the requests are those of its masters. */
void timing_merge(struct tarn_client *client, int kind, struct hist *sum) {
    struct hists h = {sum, kind};
    hists_add(client, &h);
    if (client->shards == NULL) return;
    bool requests = kind == TARN_HIST_REQUEST;
    if (requests) shards_each(client, hists_add, &h);
    pthread_mutex_lock(&client->shards->mutex);
    hist_merge(sum, requests ? &client->shards->past_requests : &client->shards->hist[kind]);
    pthread_mutex_unlock(&client->shards->mutex);
}

static void hist_add_call(struct hist hist[TARN_HISTS], int kind, size_t n, uint64_t started_us) {
    uint64_t took_us = clock_mono_us() - started_us;
    static_assert(TARN_HIST_LOOKUP == 2, "kinds of calls are the first three");
    hist_add(&hist[kind], took_us);
    if (n > 1) hist_add(&hist[TARN_HIST_GET_BATCH + kind], took_us);
}

void shards_timing(struct tarn_client *front, int kind, size_t n, uint64_t started_us) {
    pthread_mutex_lock(&front->shards->mutex);
    hist_add_call(front->shards->hist, kind, n, started_us);
    pthread_mutex_unlock(&front->shards->mutex);
}

void timing_add(struct lane *lane, int kind, size_t n, uint64_t started_us) {
    hist_add_call(lane->hist, kind, n, started_us);
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
