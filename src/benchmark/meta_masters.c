/* The masters that meta asks: those of the server's map of slots, or it alone. */
#include <stdio.h>
#include <stdlib.h>

#include "benchmark/meta.h"
#include "slots/map.h"

/* The bulk string that a request is answered with, for free(); NULL: it is nil or an error. */
static char *wire_ask(struct wire *w, const char *request) {
    size_t len;
    wire_send(w, request, strlen(request));
    const char *line = wire_line(w, &len);
    int64_t n = line[0] == '$' ? wire_int(w, line, len) : -1;
    if (n < 0) return NULL;
    char *text = xmalloc((size_t)n + 1);
    wire_bulk(w, text, (size_t)n);
    text[n] = '\0';
    return text;
}

static struct slot_map *map_ask(const struct bench *b) {
    struct wire *w = wire_open(b);
    char error[SLOT_MAP_ERROR_SIZE], *text = wire_ask(w, "*2\r\n$7\r\nCLUSTER\r\n$3\r\nMAP\r\n");
    wire_close(&w);
    if (text == NULL) return NULL; /* one that is alone, or from before there were maps */
    struct slot_map *map = slot_map_read(span_str(text), error);
    free(text);
    if (map == NULL) die("CLUSTER MAP: %s", error);
    return map;
}

void meta_masters_open(struct meta *m) {
    m->masters = m->b;
    m->n_masters = 1;
    m->map = map_ask(m->b);
    if (m->map == NULL) return;
    struct bench *masters = xcalloc(m->map->shards, sizeof(*masters));
    uint8_t number[SLOT_SHARDS_MAX] = {0};
    m->n_masters = 0;
    for (unsigned i = 0; i < m->map->shards; i++) {
        const struct slot_shard *shard = &m->map->shard[i];
        if (slot_map_owned(m->map, i) == 0) continue;
        if (shard->servers == 0) die("nobody knows an address of the master %s", shard->name);
        number[i] = (uint8_t)m->n_masters;
        masters[m->n_masters] = *m->b;
        masters[m->n_masters].host = shard->server[0].host;
        masters[m->n_masters++].port = shard->server[0].port;
    }
    m->masters = masters;
    m->owner = xmalloc(SLOT_COUNT);
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        if (m->map->owner[slot] == SLOT_NOBODY) die("no master has slot %u", slot);
        m->owner[slot] = number[m->map->owner[slot]];
    }
}

void meta_masters_close(struct meta *m) {
    if (m->map == NULL) return;
    free((void *)(uintptr_t)m->masters);
    free(m->owner);
    slot_map_destroy(&m->map);
}

static double master_info(const struct bench *master, const char *section, const char *field) {
    char request[64];
    snprintf(request, sizeof(request), "*2\r\n$4\r\nINFO\r\n$%zu\r\n%s\r\n", strlen(section),
             section);
    struct wire *w = wire_open(master);
    char *text = wire_ask(w, request);
    wire_close(&w);
    double v = text != NULL ? info_field(text, field) : 0;
    free(text);
    return v;
}

double meta_masters_sum(const struct meta *m, const char *section, const char *field) {
    double sum = 0;
    for (unsigned i = 0; i < m->n_masters; i++) sum += master_info(&m->masters[i], section, field);
    return sum;
}

double meta_masters_most(const struct meta *m, const char *section, const char *field) {
    double most = 0;
    for (unsigned i = 0; i < m->n_masters; i++) {
        double v = master_info(&m->masters[i], section, field);
        if (v > most) most = v;
    }
    return most;
}

double meta_masters_cpu_s(const struct meta *m) {
    return meta_masters_sum(m, "cpu", "used_cpu_user") + meta_masters_sum(m, "cpu", "used_cpu_sys");
}

void meta_masters_tell(const struct meta *m, const char *request) {
    for (unsigned i = 0; i < m->n_masters; i++) {
        struct wire *w = wire_open(&m->masters[i]);
        wire_send(w, request, strlen(request));
        wire_skip(w, 1);
        if (w->errors > 0) die("%s", w->error);
        wire_close(&w);
    }
}
