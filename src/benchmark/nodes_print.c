/* How `nodes` shows what it has measured. */
#include <ctype.h>
#include <stdio.h>

#include "benchmark/nodes.h"

static void json_beats(struct buf *out, const char *rate, const char *prefix,
                       const struct beat_figures *f) {
    json_add(out, rate, f->per_s);
    json_latency(out, prefix, &f->hist);
}

static double get_cpu_ns(const struct nodes_figures *f) {
    return f->gets.servers_cpu_s * 1e9 / (double)max_u64(1, f->gets.done_keys);
}

/* "SEGMENT LIST": segment_list_cpu_ms and so on. */
static void json_asked(struct buf *out, const struct nodes_asked *a) {
    char spec[128], name[40];
    size_t len = strlen(a->name);
    for (size_t i = 0; i <= len; i++)
        name[i] = a->name[i] == ' ' ? '_' : (char)tolower((unsigned char)a->name[i]);
    snprintf(spec, sizeof(spec), "%s_cpu_ms:2 %s_longest_turn_ms:2", name, name);
    json_add(out, spec, a->cpu_ms, a->longest_ms);
}

static void nodes_print_json(const struct nodes_figures *f) {
    struct buf out = {0};
    json_add(&out,
             "nodes:u masters:u segments:u objects:u replicas:u join_ms:1 join_cpu_us:1 "
             "join_longest_turn_ms:1 bytes_per_node:0 rss_per_node:0 beat_cpu_us:2 "
             "beats_processor_share:4 heartbeats_per_s:1 put_keys_per_s:0 put_cpu_ns:0 "
             "bytes_per_object:1 get_keys_per_s:0 get_cpu_ns:0 hits:u keys_done:u errors:u",
             f->nodes, f->masters, f->segments, f->objects, f->replicas, f->join_ms, f->join_cpu_us,
             f->join_longest_ms, f->bytes_per_session, f->rss_per_session, f->beat_cpu_us,
             f->beats_share, f->beats.per_s, (double)f->objects / f->put_seconds, f->put_cpu_ns,
             f->bytes_per_object, (double)f->gets.done_keys / f->gets.seconds, get_cpu_ns(f),
             f->gets.hits, f->gets.done_keys, f->gets.errors);
    for (unsigned i = 0; i < NODES_ASKED; i++) json_asked(&out, &f->asked[i]);
    json_latency(&out, "get_", &f->gets.hist);
    json_beats(&out, "heartbeats_per_s_loading:1", "heartbeat_loading_", &f->beats_loading);
    json_beats(&out, "heartbeats_per_s_reading:1", "heartbeat_reading_", &f->beats_reading);
    json_add(&out, "heartbeat_ms:u node_timeout_ms:u closed_ms:1 back_ms:1 silent_ms:1",
             f->heartbeat_ms, f->timeout_ms, f->closed_ms, f->back_ms, f->silent_ms);
    json_add(&out,
             "dying:u dying_cpu_ms:2 dying_longest_turn_ms:2 back_cpu_ms:2 back_longest_turn_ms:2",
             f->dying, f->dying_cpu_ms, f->dying_longest_ms, f->back_cpu_ms, f->back_longest_ms);
    json_print(&out);
}

static void print_beats(const char *when, const struct beat_figures *f) {
    printf("heartbeats while %s: %.0f/s, answered in ", when, f->per_s);
    print_latency(&f->hist);
}

static void print_joins(const struct nodes_figures *f) {
    printf("%" PRIu64 " nodes joined %" PRIu64 " masters, mounted %" PRIu64
           " segments at each and were up in %.0f ms\n",
           f->nodes, f->masters, f->segments, f->join_ms);
    printf("a node at a master: joining %.0f us of its processor, longest turn %.1f ms; "
           "%.0f bytes, %.0f resident\n",
           f->join_cpu_us, f->join_longest_ms, f->bytes_per_session, f->rss_per_session);
    printf("heartbeats alone: %.0f/s, %.2f us of a master's processor each, %.2f %% of it\n",
           f->beats.per_s, f->beat_cpu_us, 100 * f->beats_share);
    for (unsigned i = 0; i < NODES_ASKED; i++)
        printf("%s: %.2f ms of a master's processor, longest turn %.2f ms\n", f->asked[i].name,
               f->asked[i].cpu_ms, f->asked[i].longest_ms);
}

static void print_load(const struct nodes_figures *f) {
    printf("%" PRIu64 " objects with %" PRIu64 " replicas put at %.0f keys/s, %.0f ns of a "
           "master's processor each; %.1f bytes of books per object\n",
           f->objects, f->replicas, (double)f->objects / f->put_seconds, f->put_cpu_ns,
           f->bytes_per_object);
    printf("looked up at %.0f keys/s, %.0f ns each, %" PRIu64 " of %" PRIu64 " found; a call ",
           (double)f->gets.done_keys / f->gets.seconds, get_cpu_ns(f), f->gets.hits,
           f->gets.done_keys);
    print_latency(&f->gets.hist);
    print_beats("putting", &f->beats_loading);
    print_beats("looking up", &f->beats_reading);
}

static void print_deaths(const struct nodes_figures *f) {
    printf("a node's connection closed: its objects were handed out for %.1f ms more\n",
           f->closed_ms);
    printf("it came back with its content: they were there again after %.1f ms\n", f->back_ms);
    printf("a node fell silent: its objects were handed out for %.0f ms more (heartbeat %" PRIu64
           " ms, node-timeout %" PRIu64 " ms)\n",
           f->silent_ms, f->heartbeat_ms, f->timeout_ms);
    if (f->dying == 0) return;
    printf("%" PRIu64 " nodes closed at once: %.1f ms of a master's processor, longest turn %.2f "
           "ms; back: %.1f ms, %.2f ms\n",
           f->dying, f->dying_cpu_ms, f->dying_longest_ms, f->back_cpu_ms, f->back_longest_ms);
}

void nodes_print(const struct bench *b, const struct nodes_figures *f) {
    if (b->json) {
        nodes_print_json(f);
        return;
    }
    print_joins(f);
    print_load(f);
    print_deaths(f);
}
