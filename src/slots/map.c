#include "slots/map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/assert.h"

#define FIRST_LINE "tarn-slots 1"

void slot_map_destroy(struct slot_map **map_p) {
    free(*map_p);
    *map_p = NULL;
}

/* --- servers --- */

bool slot_server_read(struct span text, struct slot_server *s) {
    struct span host;
    uint16_t port;
    if (!span_to_address(text, &host, &port) || port == 0 || host.len > SLOT_HOST_MAX) return false;
    for (size_t i = 0; i < host.len; i++)
        if (!span_is_name(span_of(&host.data[i], 1), 1) && host.data[i] != ':') return false;
    memset(s, 0, sizeof(*s));
    span_to_text(host, s->host, sizeof(s->host));
    s->port = port;
    return true;
}

void slot_server_write(const struct slot_server *s, struct buf *out) {
    bool v6 = strchr(s->host, ':') != NULL;
    buf_printf(out, "%s%s%s:%u", v6 ? "[" : "", s->host, v6 ? "]" : "", s->port);
}

bool slot_server_same(const struct slot_server *a, const struct slot_server *b) {
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}

/* --- reading --- */

struct map_reading {
    struct slot_map *map;
    char *error;
    unsigned line;
};

__attribute__((format(printf, 2, 3))) static bool wrong(struct map_reading *r, const char *fmt,
                                                        ...) {
    va_list ap;
    int n = snprintf(r->error, SLOT_MAP_ERROR_SIZE, "line %u of the map: ", r->line);
    va_start(ap, fmt);
    vsnprintf(r->error + n, SLOT_MAP_ERROR_SIZE - (size_t)n, fmt, ap);
    va_end(ap);
    return false;
}

/* What is before the next separator, which is dropped with it. false: there is nothing left. */
static bool part_next(struct span *rest, char separator, struct span *part_p) {
    if (rest->data == NULL) return false;
    const char *end = rest->len > 0 ? memchr(rest->data, separator, rest->len) : NULL;
    size_t n = end != NULL ? (size_t)(end - rest->data) : rest->len;
    *part_p = span_of(rest->data, n);
    *rest = end != NULL ? span_of(end + 1, rest->len - n - 1) : span_of(NULL, 0);
    return true;
}

static bool range_read(struct span text, uint32_t *from_p, uint32_t *to_p) {
    struct span first, last;
    uint64_t from, to;
    if (!part_next(&text, '-', &first) || !span_to_u64(first, &from)) return false;
    if (!part_next(&text, '-', &last)) last = first;
    if (text.data != NULL || !span_to_u64(last, &to) || from > to || to >= SLOT_COUNT) return false;
    *from_p = (uint32_t)from;
    *to_p = (uint32_t)to;
    return true;
}

/* "0-5460,7000" into of[], where nobody had them; owner: only its slots. */
static bool slots_read(struct map_reading *r, struct span text, uint8_t *of, unsigned shard,
                       unsigned owner) {
    struct span part;
    uint32_t from, to;
    while (part_next(&text, ',', &part)) {
        if (!range_read(part, &from, &to))
            return wrong(r, "slots are ranges as 0-5460,7000, below %u", SLOT_COUNT);
        for (uint32_t slot = from; slot <= to; slot++) {
            if (of[slot] != SLOT_NOBODY) return wrong(r, "slot %u is there twice", slot);
            if (owner != SLOT_NOBODY && r->map->owner[slot] != owner)
                return wrong(r, "slot %u moves from a shard that does not own it", slot);
            of[slot] = (uint8_t)shard;
        }
    }
    return true;
}

static bool servers_read(struct map_reading *r, struct span text, struct slot_shard *shard) {
    struct span part;
    if (span_eq(text, SPAN("-"))) return true;
    while (part_next(&text, ',', &part)) {
        struct slot_server *s = &shard->server[shard->servers];
        if (shard->servers == SLOT_SERVERS_MAX)
            return wrong(r, "a shard has at most %u servers", SLOT_SERVERS_MAX);
        if (!slot_server_read(part, s)) return wrong(r, "a server is a host:port");
        for (unsigned i = 0; i < shard->servers; i++)
            if (slot_server_same(s, &shard->server[i])) return wrong(r, "a server is there twice");
        shard->servers++;
    }
    return true;
}

static bool master_epoch_read(struct map_reading *r, struct span text, struct slot_shard *shard) {
    return (span_to_u64(text, &shard->master_epoch) &&
            shard->master_epoch <= SLOT_MASTER_EPOCH_MAX) ||
           wrong(r, "a master epoch is a number");
}

bool slot_servers_read(struct span master_epoch, struct span servers, struct slot_shard *row) {
    char error[SLOT_MAP_ERROR_SIZE];
    struct map_reading r = {NULL, error, 0};
    memset(row, 0, sizeof(*row));
    return master_epoch_read(&r, master_epoch, row) && servers_read(&r, servers, row);
}

static bool shard_read(struct map_reading *r, struct span rest) {
    struct slot_map *m = r->map;
    struct span name, epoch, servers, slots;
    struct slot_shard *shard = &m->shard[m->shards];
    if (m->shards == SLOT_SHARDS_MAX)
        return wrong(r, "there are at most %u shards", SLOT_SHARDS_MAX);
    if (!part_next(&rest, ' ', &name) || !part_next(&rest, ' ', &epoch) ||
        !part_next(&rest, ' ', &servers) || !part_next(&rest, ' ', &slots) || rest.data != NULL)
        return wrong(r, "it must be: shard NAME MASTER-EPOCH SERVERS SLOTS");
    /* directories of nodes are named like that */
    if (!span_is_name(name, SLOT_NAME_MAX) || span_eq(name, SPAN("-")) ||
        span_eq(name, SPAN(".")) || span_eq(name, SPAN("..")))
        return wrong(r, "a shard's name has 1 to %u of A-Z a-z 0-9 . _ -, and is not - . or ..",
                     SLOT_NAME_MAX);
    if (slot_map_shard(m, name) != SLOT_NOBODY) return wrong(r, "the shard is there twice");
    if (!master_epoch_read(r, epoch, shard) || !servers_read(r, servers, shard)) return false;
    if (!span_eq(slots, SPAN("-")) && !slots_read(r, slots, m->owner, m->shards, SLOT_NOBODY))
        return false;
    span_to_text(name, shard->name, sizeof(shard->name));
    m->shards++;
    return true;
}

static bool moving_read(struct map_reading *r, struct span rest) {
    struct slot_map *m = r->map;
    struct span from, to, slots;
    if (!part_next(&rest, ' ', &from) || !part_next(&rest, ' ', &to) ||
        !part_next(&rest, ' ', &slots) || rest.data != NULL)
        return wrong(r, "it must be: moving FROM TO SLOTS");
    unsigned source = slot_map_shard(m, from), target = slot_map_shard(m, to);
    if (source == SLOT_NOBODY || target == SLOT_NOBODY)
        return wrong(r, "it names no shard of a line above");
    if (source == target) return wrong(r, "slots move to another shard");
    return slots_read(r, slots, m->target, target, source);
}

static int shard_compare(const void *a, const void *b) {
    const struct slot_map *const *x = a, *const *y = b;
    return strcmp(((const struct slot_shard *)*x)->name, ((const struct slot_shard *)*y)->name);
}

/* They came in any order. */
static void shards_sort(struct slot_map *m) {
    const struct slot_shard *order[SLOT_SHARDS_MAX];
    uint8_t now[256];
    bool sorted = true;
    for (unsigned i = 0; i < m->shards; i++) {
        order[i] = &m->shard[i];
        sorted = sorted && (i == 0 || strcmp(m->shard[i - 1].name, m->shard[i].name) < 0);
    }
    if (sorted) return;
    qsort(order, m->shards, sizeof(order[0]), shard_compare);
    struct slot_shard *shard = xcalloc(m->shards, sizeof(*shard));
    memset(now, SLOT_NOBODY, sizeof(now));
    for (unsigned i = 0; i < m->shards; i++) {
        shard[i] = *order[i];
        now[order[i] - m->shard] = (uint8_t)i;
    }
    memcpy(m->shard, shard, m->shards * sizeof(*shard));
    free(shard);
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) {
        m->owner[slot] = now[m->owner[slot]];
        m->target[slot] = now[m->target[slot]];
    }
}

static bool line_read(struct map_reading *r, struct span line) {
    struct span word;
    r->line++;
    if (r->line == 1)
        return span_eq(line, SPAN(FIRST_LINE)) ||
               wrong(r, "a map begins with \"" FIRST_LINE "\", and this program knows no other");
    if (!part_next(&line, ' ', &word)) word = span_of(NULL, 0);
    if (r->line == 2)
        return (span_eq(word, SPAN("epoch")) && span_to_u64(line, &r->map->epoch) &&
                r->map->epoch > 0 && r->map->epoch <= INT64_MAX) ||
               wrong(r, "it must be: epoch NUMBER, from 1 on");
    if (span_eq(word, SPAN("shard"))) return shard_read(r, line);
    if (span_eq(word, SPAN("moving"))) return moving_read(r, line);
    return wrong(r, "it begins with neither shard nor moving");
}

struct slot_map *slot_map_read(struct span text, char error[SLOT_MAP_ERROR_SIZE]) {
    struct slot_map *m = xcalloc(1, sizeof(*m));
    struct map_reading r = {m, error, 0};
    struct span line;
    bool ok = true;
    memset(m->owner, SLOT_NOBODY, sizeof(m->owner));
    memset(m->target, SLOT_NOBODY, sizeof(m->target));
    if (text.len > SLOT_MAP_TEXT_MAX) {
        snprintf(error, SLOT_MAP_ERROR_SIZE, "the map is longer than %u bytes", SLOT_MAP_TEXT_MAX);
        ok = false;
    }
    if (ok && text.len > 0 && text.data[text.len - 1] == '\n') text.len--;
    while (ok && part_next(&text, '\n', &line)) ok = line_read(&r, line);
    if (ok && m->shards == 0) ok = wrong(&r, "there is no shard");
    if (ok)
        shards_sort(m);
    else
        slot_map_destroy(&m);
    return m;
}

/* --- writing --- */

bool slot_map_run(const uint8_t of[SLOT_COUNT], unsigned shard, uint32_t *from_p, uint32_t *to_p) {
    uint32_t from = *from_p, to;
    while (from < SLOT_COUNT && of[from] != shard) from++;
    if (from == SLOT_COUNT) return false;
    for (to = from; to + 1 < SLOT_COUNT && of[to + 1] == shard;) to++;
    *from_p = from;
    *to_p = to;
    return true;
}

static void run_write(struct buf *out, uint32_t from, uint32_t to, bool first) {
    buf_printf(out, from == to ? "%s%u" : "%s%u-%u", first ? " " : ",", from, to);
}

void slot_servers_write(const struct slot_shard *row, struct buf *out) {
    for (unsigned k = 0; k < row->servers; k++) {
        if (k > 0) buf_append_char(out, ',');
        slot_server_write(&row->server[k], out);
    }
    if (row->servers == 0) buf_append_char(out, '-');
}

static void shard_write(const struct slot_map *m, unsigned i, struct buf *out) {
    const struct slot_shard *shard = &m->shard[i];
    bool first = true;
    buf_printf(out, "shard %s %" PRIu64, shard->name, shard->master_epoch);
    buf_append_char(out, ' ');
    slot_servers_write(shard, out);
    for (uint32_t from = 0, to; slot_map_run(m->owner, i, &from, &to); from = to + 1, first = false)
        run_write(out, from, to, first);
    buf_append_str(out, first ? " -\n" : "\n");
}

static void moving_write(const struct slot_map *m, unsigned source, unsigned target,
                         struct buf *out) {
    uint8_t of[SLOT_COUNT];
    bool first = true;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++)
        of[slot] = m->owner[slot] == source ? m->target[slot] : SLOT_NOBODY;
    for (uint32_t from = 0, to; slot_map_run(of, target, &from, &to); from = to + 1) {
        if (first) buf_printf(out, "moving %s %s", m->shard[source].name, m->shard[target].name);
        run_write(out, from, to, first);
        first = false;
    }
    if (!first) buf_append_char(out, '\n');
}

void slot_map_write(const struct slot_map *m, struct buf *out) {
    bool moves[SLOT_SHARDS_MAX][SLOT_SHARDS_MAX] = {{false}};
    buf_printf(out, FIRST_LINE "\nepoch %" PRIu64 "\n", m->epoch);
    for (unsigned i = 0; i < m->shards; i++) shard_write(m, i, out);
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++)
        if (m->target[slot] != SLOT_NOBODY) moves[m->owner[slot]][m->target[slot]] = true;
    for (unsigned i = 0; i < m->shards; i++)
        for (unsigned k = 0; k < m->shards; k++)
            if (moves[i][k]) moving_write(m, i, k, out);
}

/* --- questions --- */

unsigned slot_map_shard(const struct slot_map *m, struct span name) {
    for (unsigned i = 0; i < m->shards; i++)
        if (span_eq(name, span_str(m->shard[i].name))) return i;
    return SLOT_NOBODY;
}

unsigned slot_map_owned(const struct slot_map *m, unsigned shard) {
    unsigned n = 0;
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++) n += m->owner[slot] == shard;
    return n;
}

static const char *name_of(const struct slot_map *m, unsigned shard) {
    return shard == SLOT_NOBODY ? "" : m->shard[shard].name;
}

bool slot_map_same_slots(const struct slot_map *a, const struct slot_map *b) {
    for (uint32_t slot = 0; slot < SLOT_COUNT; slot++)
        if (strcmp(name_of(a, a->owner[slot]), name_of(b, b->owner[slot])) != 0 ||
            strcmp(name_of(a, a->target[slot]), name_of(b, b->target[slot])) != 0)
            return false;
    return true;
}

/* --- changes --- */

static void servers_copy(struct slot_shard *to, const struct slot_shard *from) {
    to->master_epoch = from->master_epoch;
    to->servers = from->servers;
    memcpy(to->server, from->server, sizeof(to->server));
}

bool slot_map_learn(struct slot_map *m, unsigned shard, const struct slot_shard *row) {
    if (row->master_epoch <= m->shard[shard].master_epoch) return false;
    servers_copy(&m->shard[shard], row);
    return true;
}

void slot_shard_lead(struct slot_shard *shard, const struct slot_server *leader,
                     uint64_t master_epoch) {
    struct slot_server first = *leader; /* it may be one of them */
    unsigned at = 0;
    while (at < shard->servers && !slot_server_same(&shard->server[at], &first)) at++;
    if (at == shard->servers && at < SLOT_SERVERS_MAX) shard->servers++;
    if (at == SLOT_SERVERS_MAX) at--;
    memmove(&shard->server[1], &shard->server[0], at * sizeof(first));
    shard->server[0] = first;
    if (master_epoch <= shard->master_epoch) master_epoch = shard->master_epoch + 1;
    shard->master_epoch = min_u64(master_epoch, SLOT_MASTER_EPOCH_MAX);
}

/* Of each shard of m that other knows more of. */
static bool servers_merge(struct slot_map *m, const struct slot_map *other) {
    bool changed = false;
    for (unsigned i = 0; i < m->shards; i++) {
        unsigned k = slot_map_shard(other, span_str(m->shard[i].name));
        changed |= k != SLOT_NOBODY && slot_map_learn(m, i, &other->shard[k]);
    }
    return changed;
}

bool slot_map_merge(struct slot_map *m, const struct slot_map *other) {
    if (other->epoch <= m->epoch) return servers_merge(m, other);
    struct slot_map *before = xmemdup(m, sizeof(*m));
    *m = *other;
    (void)servers_merge(m, before);
    slot_map_destroy(&before);
    return true;
}

void slot_id(const struct slot_shard *shard, const struct slot_server *s,
             char id[SLOT_ID_LEN + 1]) {
    struct buf text = {NULL, 0, 0};
    buf_append_str(&text, shard->name);
    if (s != NULL) {
        buf_append_char(&text, ' ');
        slot_server_write(s, &text);
    }
    for (unsigned i = 0; i < SLOT_ID_LEN / 8; i++)
        u64_to_hex(XXH64(text.data, text.len, i), 8, id + (size_t)i * 8);
    id[SLOT_ID_LEN] = '\0';
    buf_free(&text);
}
