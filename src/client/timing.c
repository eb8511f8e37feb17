/* The figures of a client as text, for Prometheus and for people, and the thread that logs the
 * latter.
 *
 * The reporter holds no lock while it gathers but those of the figures themselves, so that it can
 * wait for nobody who waits for it: tarn_close ends it before anything else goes. */
#include "client/timing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/figures.h"
#include "base/log.h"
#include "client/client.h"

enum { LABEL_MAX = 128 };

/* The members of tarn_stats, by the names of Prometheus: tarn_client_NAME, and _total behind
 * counters. Bytes by transport come from its table. */
#define TIMING_FIGURES(X)                                                                          \
    X(COUNTER, gets, gets, "Keys that gets asked for")                                             \
    X(COUNTER, get_hits, get_hits, "Keys that gets found")                                         \
    X(COUNTER, get_misses, get_misses, "Keys that gets did not find")                              \
    X(COUNTER, get_failures, get_failures, "Keys whose get failed")                                \
    X(COUNTER, puts, puts, "Keys that were to be put")                                             \
    X(COUNTER, put_stored, put_stored, "Keys that were put")                                       \
    X(COUNTER, put_existed, put_existed, "Keys that were there already")                           \
    X(COUNTER, put_failures, put_failures, "Keys whose put failed")                                \
    X(COUNTER, lookups, lookups, "Keys that were looked up")                                       \
    X(COUNTER, removes, removes, "Keys that were to be removed")                                   \
    X(COUNTER, bytes_read, read_bytes, "Bytes of values that gets returned")                       \
    X(COUNTER, bytes_written, written_bytes, "Bytes of values that were put")                      \
    X(COUNTER, requests, requests, "Requests sent to the server")                                  \
    X(COUNTER, round_trips, round_trips, "Times that a call waited for the server")                \
    X(COUNTER, connects, connects, "Connections opened to the server")                             \
    X(COUNTER, reconnects, reconnects, "Connections opened anew after a loss")                     \
    X(COUNTER, retries, retries, "Things tried again")                                             \
    X(COUNTER, timeouts, timeouts, "Requests that were not answered in time")                      \
    X(COUNTER, leases, leases, "Leases taken")                                                     \
    X(COUNTER, lease_renewals, lease_renewals, "Leases renewed")                                   \
    X(COUNTER, lease_misses, lease_misses, "Reads thrown away because the lease was over")         \
    X(COUNTER, epoch_misses, epoch_misses, "Reads thrown away because the segment had changed")    \
    X(COUNTER, crc_mismatches, crc_mismatches, "Reads thrown away because of their CRC")           \
    X(COUNTER, unverified, unverified, "Gets of values without a CRC")                             \
    X(COUNTER, segment_fetches, segment_fetches, "Questions where a segment is")                   \
    X(COUNTER, failovers, failovers, "Reads that went on with another replica")                    \
    X(COUNTER, replica_reports, replica_reports, "Damaged replicas reported to the server")        \
    X(COUNTER, put_replicas_failed, put_replicas_failed, "Replicas that puts went on without")     \
    X(COUNTER, put_restarts, put_restarts, "Puts that started again elsewhere")                    \
    X(COUNTER, shm_unreachable, shm_unreachable, "Segments of this machine that were not mapped")  \
    X(GAUGE, lanes, lanes, "Lanes open")                                                           \
    X(GAUGE, lanes_busy, lanes_busy, "Lanes in use")                                               \
    X(GAUGE, views_open, views_open, "Views open")                                                 \
    X(GAUGE, writers_open, writers_open, "Puts in place open")                                     \
    X(GAUGE, async_pending, async_pending, "Batches in async queues")                              \
    X(GAUGE, outages, outages, "Hosts that are passed over")
#define TIMING_ROW(type, member, name, help) FIGURE_ROW_NAMED(tarn_stats, type, member, name, help)
static const struct figure timing_figures[] = {TIMING_FIGURES(TIMING_ROW){.name = NULL}};

static const struct {
    const char *metric, *operation,
        *help; /* help: of the first of a metric; operation may be NULL */
    int kind;
} timing_hists[] = {
    {"call", "get", "Seconds of whole calls; a batch is one", TARN_HIST_GET},
    {"call", "put", NULL, TARN_HIST_PUT},
    {"call", "lookup", NULL, TARN_HIST_LOOKUP},
    {"batch", "get", "Seconds of those calls that had more than one key", TARN_HIST_GET_BATCH},
    {"batch", "put", NULL, TARN_HIST_PUT_BATCH},
    {"batch", "lookup", NULL, TARN_HIST_LOOKUP_BATCH},
    {"request", NULL, "Seconds of waiting for one answer of the server", TARN_HIST_REQUEST},
};

/* --- for Prometheus --- */

/* One more label, behind those that are there; braces are the caller's. */
static void label_put(struct buf *out, const char *name, const char *value) {
    if (value == NULL) return;
    if (out->data[out->len - 1] != '{') buf_append_char(out, ',');
    buf_append_str(out, name);
    buf_append_str(out, "=\"");
    for (; *value != '\0'; value++) {
        if (*value == '\\' || *value == '"') buf_append_char(out, '\\');
        buf_append_char(out, *value);
    }
    buf_append_char(out, '"');
}

/* Ends a sample that began with its metric's name and, where it has labels, a brace. */
static void labels_end(struct buf *out) {
    if (out->data[out->len - 1] == '{')
        out->len--;
    else
        buf_append_char(out, '}');
}

static void metric_head(struct buf *out, const char *name, const char *end, const char *type,
                        const char *help) {
    buf_printf(out, "# HELP tarn_client_%s%s %s.\n# TYPE tarn_client_%s%s %s\n", name, end, help,
               name, end, type);
}

static void seconds_put(struct buf *out, uint64_t us) {
    buf_printf(out, "%" PRIu64, us / 1000000);
    if (us % 1000000 == 0) return;
    buf_printf(out, ".%06" PRIu64, us % 1000000);
    while (out->data[out->len - 1] == '0') out->len--;
}

static void bucket_put(struct buf *out, size_t i, const char *cluster, const char *le, uint64_t n) {
    buf_printf(out, "tarn_client_%s_duration_seconds_bucket{", timing_hists[i].metric);
    label_put(out, "cluster", cluster);
    label_put(out, "operation", timing_hists[i].operation);
    label_put(out, "le", le);
    labels_end(out);
    buf_printf(out, " %" PRIu64 "\n", n);
}

static void hist_put(struct buf *out, size_t i, const char *cluster, const struct hist *h) {
    /* By the buckets: a call that ends right now may be in them, and not in the count. */
    uint64_t count = hist_count_upto(h, UINT64_MAX);
    for (const uint64_t *bound = hist_latency_bounds_us; *bound != 0; bound++) {
        struct buf le = {0};
        seconds_put(&le, *bound);
        buf_append_char(&le, '\0');
        bucket_put(out, i, cluster, le.data, hist_count_upto(h, *bound));
        buf_free(&le);
    }
    bucket_put(out, i, cluster, "+Inf", count);
    for (unsigned k = 0; k < 2; k++) {
        buf_printf(out, "tarn_client_%s_duration_seconds_%s{", timing_hists[i].metric,
                   k == 0 ? "sum" : "count");
        label_put(out, "cluster", cluster);
        label_put(out, "operation", timing_hists[i].operation);
        labels_end(out);
        buf_append_char(out, ' ');
        if (k == 0)
            seconds_put(out, h->sum);
        else
            buf_printf(out, "%" PRIu64, count);
        buf_append_char(out, '\n');
    }
}

static void transports_put(struct buf *out, const char *cluster, const tarn_stats *s,
                           bool written) {
    const char *name = written ? "transport_written_bytes" : "transport_read_bytes";
    metric_head(out, name, "_total", "counter",
                written ? "Bytes that went out by this transport"
                        : "Bytes that came by this transport");
    for (size_t i = 0; i < ARRAY_LEN(s->transport) && s->transport[i].name[0] != '\0'; i++) {
        const tarn_transport_stats *t = &s->transport[i];
        buf_printf(out, "tarn_client_%s_total{", name);
        label_put(out, "cluster", cluster);
        label_put(out, "transport", t->name);
        labels_end(out);
        buf_printf(out, " %" PRIu64 "\n", written ? t->bytes_written : t->bytes_read);
    }
}

static void text_for_prometheus(struct tarn_client *client, const tarn_stats *s, struct buf *out) {
    const char *cluster = client->options.cluster;
    for (const struct figure *f = timing_figures; f->name != NULL; f++) {
        bool counts = figure_types[f->type].kind == FIGURE_KIND_COUNTER;
        const char *end = counts ? "_total" : "";
        metric_head(out, f->name, end, counts ? "counter" : "gauge", f->help);
        buf_printf(out, "tarn_client_%s%s{", f->name, end);
        label_put(out, "cluster", cluster);
        labels_end(out);
        buf_printf(out, " %" PRIu64 "\n",
                   *(const uint64_t *)(const void *)((const char *)s + f->offset));
    }
    transports_put(out, cluster, s, false);
    transports_put(out, cluster, s, true);
    for (size_t i = 0; i < ARRAY_LEN(timing_hists); i++) {
        struct hist h = {0};
        timing_merge(client, timing_hists[i].kind, &h);
        if (timing_hists[i].help != NULL)
            metric_head(out, timing_hists[i].metric, "_duration_seconds", "histogram",
                        timing_hists[i].help);
        hist_put(out, i, cluster, &h);
    }
}

/* --- for people --- */

static void bytes_put(struct buf *out, uint64_t n) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    double v = (double)n;
    for (; v >= 1024 && unit + 1 < ARRAY_LEN(units); unit++) v /= 1024;
    buf_printf(out, unit == 0 ? "%.0f %s" : "%.1f %s", v, units[unit]);
}

static double ms_of(uint64_t us) {
    return (double)us / 1000;
}

static void times_put(struct buf *out, struct tarn_client *client, const char *name, int kind) {
    struct hist h = {0};
    timing_merge(client, kind, &h);
    if (h.count == 0) return;
    buf_printf(out, "%s: %" PRIu64 ", mean %.3f ms, p50 %.3f, p99 %.3f, p99.9 %.3f, longest %.3f\n",
               name, h.count, hist_mean(&h) / 1000, ms_of(hist_percentile(&h, 0.5)),
               ms_of(hist_percentile(&h, 0.99)), ms_of(hist_percentile(&h, 0.999)), ms_of(h.max));
}

/* What should be 0, where it is not. */
static void troubles_put(struct buf *out, const tarn_stats *s) {
    const struct {
        const char *name;
        uint64_t n;
    } troubles[] = {{"gets failed, or of too little memory", s->get_failures},
                    {"puts failed", s->put_failures},
                    {"tried again", s->retries},
                    {"timeouts", s->timeouts},
                    {"reconnects", s->reconnects},
                    {"leases lost", s->lease_misses},
                    {"segments changed", s->epoch_misses},
                    {"CRC mismatches", s->crc_mismatches},
                    {"failovers", s->failovers},
                    {"replicas not written", s->put_replicas_failed},
                    {"puts started again", s->put_restarts},
                    {"hosts passed over now", s->outages}};
    bool any = false;
    for (size_t i = 0; i < ARRAY_LEN(troubles); i++) {
        if (troubles[i].n == 0) continue;
        buf_printf(out, "%s%s %" PRIu64, any ? ", " : "trouble: ", troubles[i].name, troubles[i].n);
        any = true;
    }
    buf_append_str(out, any ? "\n" : "trouble: none\n");
}

static void text_for_people(struct tarn_client *client, const tarn_stats *s, struct buf *out) {
    uint64_t known = s->get_hits + s->get_misses;
    if (client->options.cluster != NULL) buf_printf(out, "cluster: %s\n", client->options.cluster);
    buf_printf(out, "gets: %" PRIu64 " keys, %" PRIu64 " found", s->gets, s->get_hits);
    if (known > 0) buf_printf(out, " (%.1f %%)", 100.0 * (double)s->get_hits / (double)known);
    buf_append_str(out, ", ");
    bytes_put(out, s->bytes_read);
    buf_printf(out, "\nputs: %" PRIu64 " keys, %" PRIu64 " stored, %" PRIu64 " there already, ",
               s->puts, s->put_stored, s->put_existed);
    bytes_put(out, s->bytes_written);
    buf_printf(out, "\nlook-ups: %" PRIu64 " keys\n", s->lookups);
    times_put(out, client, "calls of get", TARN_HIST_GET);
    times_put(out, client, "calls of put", TARN_HIST_PUT);
    times_put(out, client, "calls of look-up", TARN_HIST_LOOKUP);
    times_put(out, client, "batches of get", TARN_HIST_GET_BATCH);
    times_put(out, client, "batches of put", TARN_HIST_PUT_BATCH);
    times_put(out, client, "batches of look-up", TARN_HIST_LOOKUP_BATCH);
    times_put(out, client, "round trips", TARN_HIST_REQUEST);
    troubles_put(out, s);
}

tarn_status tarn_figures_text(tarn_client *client, int format, char **text_p, size_t *len_p) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (text_p == NULL) return fail(TARN_EINVAL, "tarn_figures_text needs a place for the text");
    if (format != TARN_FIGURES_PROMETHEUS && format != TARN_FIGURES_SUMMARY)
        return fail(TARN_EINVAL, "format is TARN_FIGURES_PROMETHEUS or TARN_FIGURES_SUMMARY");
    tarn_stats s = {.size = sizeof(s)};
    status = tarn_get_stats(client, &s);
    if (status != TARN_OK) return status;
    struct buf out = {0};
    if (format == TARN_FIGURES_PROMETHEUS)
        text_for_prometheus(client, &s, &out);
    else
        text_for_people(client, &s, &out);
    buf_append_char(&out, '\0');
    if (len_p != NULL) *len_p = out.len - 1;
    *text_p = out.data;
    return TARN_OK;
}

/* --- the summary in the log --- */

tarn_status timing_check(const tarn_options *o) {
    size_t len = o->cluster != NULL ? strlen(o->cluster) : 1;
    bool ok = len >= 1 && len <= LABEL_MAX;
    for (size_t i = 0; ok && o->cluster != NULL && i < len; i++)
        ok = (unsigned char)o->cluster[i] >= ' ';
    if (!ok)
        return fail(TARN_EINVAL,
                    "option cluster has 1 to %d bytes, none of them a line end or the like",
                    LABEL_MAX);
    if (o->log_figures_s > 86400)
        return fail(TARN_EINVAL, "option log_figures_s is %" PRIu64 ", and may be 0 to 86400",
                    o->log_figures_s);
    return TARN_OK;
}

static void summary_log(struct tarn_client *client) {
    char *text;
    if (tarn_figures_text(client, TARN_FIGURES_SUMMARY, &text, NULL) != TARN_OK) return;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        log_asked(line);
    }
    free(text);
}

static void *reporter_run(void *arg) {
    struct tarn_client *client = arg;
    struct reporter *r = &client->reporter;
    uint64_t every_ms = client->options.log_figures_s * 1000, next_ms = now_ms() + every_ms;
    pthread_mutex_lock(&r->mutex);
    while (!r->ends) {
        uint64_t now = now_ms();
        if (now < next_ms) {
            (void)thread_cond_wait(&r->wake, &r->mutex, next_ms - now);
            continue;
        }
        pthread_mutex_unlock(&r->mutex);
        summary_log(client);
        next_ms = now_ms() + every_ms;
        pthread_mutex_lock(&r->mutex);
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

void timing_start(struct tarn_client *client) {
    struct reporter *r = &client->reporter;
    if (client->options.log_figures_s == 0) return;
    pthread_mutex_init(&r->mutex, NULL);
    thread_cond_init(&r->wake);
    int err = thread_start(&r->thread, "tarn-figures", reporter_run, client);
    r->runs = err == 0;
    if (r->runs) return;
    log_warning("no figures will be logged (log_figures_s): no thread: %s", strerror(err));
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->mutex);
}

void timing_stop(struct tarn_client *client) {
    struct reporter *r = &client->reporter;
    /* A forked child has the struct and not the thread. */
    if (!r->runs || client->pid != getpid()) return;
    pthread_mutex_lock(&r->mutex);
    r->ends = true;
    pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->thread, NULL);
    r->runs = false;
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->mutex);
}
