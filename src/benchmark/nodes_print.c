/* How `nodes` shows what it has measured. */
#include <stdio.h>

#include "benchmark/nodes.h"

static void json_beats(struct buf *out, const char *when, const struct beat_figures *f) {
    char prefix[40];
    buf_printf(out, ",\"heartbeats_per_s_%s\":%.1f", when, f->per_s);
    snprintf(prefix, sizeof(prefix), "heartbeat_%s_", when);
    json_latency(out, prefix, &f->latency);
}

static void print_json(const struct nodes_figures *f) {
    struct buf out = {0};
    struct latency gets = latency_of(&f->gets.hist);
    buf_printf(&out,
               "{\"nodes\":%llu,\"objects\":%llu,\"replicas\":%llu,\"join_ms\":%.1f,\"put_keys_per_"
               "s\":%.0f,"
               "\"bytes_per_object\":%.1f,\"get_keys_per_s\":%.0f,\"hits\":%llu,\"keys_done\":%llu,"
               "\"errors\":%llu",
               (unsigned long long)f->nodes, (unsigned long long)f->objects,
               (unsigned long long)f->replicas, f->join_ms, (double)f->objects / f->put_seconds,
               f->bytes_per_object, (double)f->gets.done_keys / f->gets.seconds,
               (unsigned long long)f->gets.hits, (unsigned long long)f->gets.done_keys,
               (unsigned long long)f->gets.errors);
    json_latency(&out, "get_", &gets);
    json_beats(&out, "loading", &f->beats_loading);
    json_beats(&out, "reading", &f->beats_reading);
    printf("%.*s,\"heartbeat_ms\":%llu,\"node_timeout_ms\":%llu,\"closed_ms\":%.1f,\"back_ms\":%."
           "1f,\"silent_"
           "ms\":%.1f}\n",
           (int)out.len, out.data, (unsigned long long)f->heartbeat_ms,
           (unsigned long long)f->timeout_ms, f->closed_ms, f->back_ms, f->silent_ms);
    buf_free(&out);
}

static void print_beats(const char *when, const struct beat_figures *f) {
    printf("heartbeats while %s: %.0f/s, answered in avg %.0f us, p50 %.0f, p99 %.0f, p99.9 %.0f, "
           "max %.0f\n",
           when, f->per_s, f->latency.avg, f->latency.p50, f->latency.p99, f->latency.p999,
           f->latency.max);
}

void nodes_print(const struct bench *b, const struct nodes_figures *f) {
    if (b->json) {
        print_json(f);
        return;
    }
    struct latency gets = latency_of(&f->gets.hist);
    printf("%llu nodes joined, mounted and were up in %.0f ms\n", (unsigned long long)f->nodes,
           f->join_ms);
    printf("%llu objects with %llu replicas put at %.0f keys/s; %.1f bytes of books per object\n",
           (unsigned long long)f->objects, (unsigned long long)f->replicas,
           (double)f->objects / f->put_seconds, f->bytes_per_object);
    printf("looked up at %.0f keys/s, %llu of %llu found; a call p50 %.0f us, p99 %.0f, p99.9 "
           "%.0f, max %.0f\n",
           (double)f->gets.done_keys / f->gets.seconds, (unsigned long long)f->gets.hits,
           (unsigned long long)f->gets.done_keys, gets.p50, gets.p99, gets.p999, gets.max);
    print_beats("putting", &f->beats_loading);
    print_beats("looking up", &f->beats_reading);
    printf("a node's connection closed: its objects were handed out for %.1f ms more\n",
           f->closed_ms);
    printf("it came back with its content: they were there again after %.1f ms\n", f->back_ms);
    printf("a node fell silent: its objects were handed out for %.0f ms more (heartbeat %llu ms, "
           "node-timeout %llu ms)\n",
           f->silent_ms, (unsigned long long)f->heartbeat_ms, (unsigned long long)f->timeout_ms);
}
