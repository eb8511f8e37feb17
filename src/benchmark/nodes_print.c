/* How `nodes` shows what it has measured. */
#include <stdio.h>

#include "benchmark/nodes.h"

static void json_beats(struct buf *out, const char *rate, const char *prefix,
                       const struct beat_figures *f) {
    json_add(out, rate, f->per_s);
    json_latency(out, prefix, &f->hist);
}

static void nodes_print_json(const struct nodes_figures *f) {
    struct buf out = {0};
    json_add(&out,
             "nodes:u objects:u replicas:u join_ms:1 put_keys_per_s:0 bytes_per_object:1 "
             "get_keys_per_s:0 hits:u keys_done:u errors:u",
             f->nodes, f->objects, f->replicas, f->join_ms, (double)f->objects / f->put_seconds,
             f->bytes_per_object, (double)f->gets.done_keys / f->gets.seconds, f->gets.hits,
             f->gets.done_keys, f->gets.errors);
    json_latency(&out, "get_", &f->gets.hist);
    json_beats(&out, "heartbeats_per_s_loading:1", "heartbeat_loading_", &f->beats_loading);
    json_beats(&out, "heartbeats_per_s_reading:1", "heartbeat_reading_", &f->beats_reading);
    json_add(&out, "heartbeat_ms:u node_timeout_ms:u closed_ms:1 back_ms:1 silent_ms:1",
             f->heartbeat_ms, f->timeout_ms, f->closed_ms, f->back_ms, f->silent_ms);
    json_print(&out);
}

static void print_beats(const char *when, const struct beat_figures *f) {
    printf("heartbeats while %s: %.0f/s, answered in ", when, f->per_s);
    print_latency(&f->hist);
}

void nodes_print(const struct bench *b, const struct nodes_figures *f) {
    if (b->json) {
        nodes_print_json(f);
        return;
    }
    printf("%" PRIu64 " nodes joined, mounted and were up in %.0f ms\n", f->nodes, f->join_ms);
    printf("%" PRIu64 " objects with %" PRIu64 " replicas put at %.0f keys/s; %.1f bytes of books "
           "per object\n",
           f->objects, f->replicas, (double)f->objects / f->put_seconds, f->bytes_per_object);
    printf("looked up at %.0f keys/s, %" PRIu64 " of %" PRIu64 " found; a call ",
           (double)f->gets.done_keys / f->gets.seconds, f->gets.hits, f->gets.done_keys);
    print_latency(&f->gets.hist);
    print_beats("putting", &f->beats_loading);
    print_beats("looking up", &f->beats_reading);
    printf("a node's connection closed: its objects were handed out for %.1f ms more\n",
           f->closed_ms);
    printf("it came back with its content: they were there again after %.1f ms\n", f->back_ms);
    printf("a node fell silent: its objects were handed out for %.0f ms more (heartbeat %" PRIu64
           " ms, node-timeout %" PRIu64 " ms)\n",
           f->silent_ms, f->heartbeat_ms, f->timeout_ms);
}
