/* RDMA.*: what the master knows of RDMA in its pool. Hosts report lines of "kind field=value ..."
 * (report.c) and send packed keys; here they are taken apart. Both come from other machines, so
 * nothing about them is taken for granted. */
#include <stdio.h>
#include <stdlib.h>

#include "rdma/rdma.h"

#define FIELDS_MAX 64u /* of a line; more are left out */

/* --- reports --- */

struct field {
    struct span name, value;
};

/* The next word of *rest, which ends at a blank or at its own end. */
static struct span next_word(struct span *rest, char end) {
    while (rest->len > 0 && rest->data[0] == end) rest->data++, rest->len--;
    const char *at = rest->len > 0 ? memchr(rest->data, end, rest->len) : NULL;
    struct span word = {rest->data, at != NULL ? (size_t)(at - rest->data) : rest->len};
    rest->data += word.len;
    rest->len -= word.len;
    return word;
}

static size_t split_fields(struct span line, struct field out[FIELDS_MAX]) {
    size_t n = 0;
    for (struct span word; n < FIELDS_MAX && (word = next_word(&line, ' ')).len > 0;) {
        const char *eq = memchr(word.data, '=', word.len);
        if (eq == NULL || eq == word.data) continue;
        size_t len = (size_t)(eq - word.data);
        out[n++] = (struct field){{word.data, len}, {eq + 1, word.len - len - 1}};
    }
    return n;
}

struct rows { /* lines of some kinds, of all hosts: once to count, once to answer */
    struct tarn_call_context *c;
    const char *const *kinds; /* ends with NULL */
    bool answer, with_kind;
    size_t count;
};

static bool is_kind(const struct rows *r, struct span word) {
    for (const char *const *k = r->kinds; *k != NULL; k++) {
        if (span_eq(word, span_str(*k))) return true;
    }
    return false;
}

/* Numbers as numbers, but names stay names. */
static void reply_value(struct tarn_call_context *c, struct span name, struct span value) {
    int64_t number;
    if (!span_eq(name, SPAN("name")) && !span_eq(name, SPAN("device")) &&
        !span_eq(name, SPAN("generation")) && !span_eq(name, SPAN("gid")) &&
        span_to_i64(value, &number))
        rdma_services->reply_int(c, number);
    else
        rdma_services->reply_text(c, value);
}

static void reply_row(const struct rows *r, struct span kind, struct span line, const char *node,
                      const char *machine, uint64_t age_ms) {
    struct field f[FIELDS_MAX];
    size_t n = split_fields(line, f);
    const struct tarn_services *s = rdma_services;
    s->reply_map(r->c, n + 3 + r->with_kind);
    s->reply_text(r->c, SPAN("node"));
    s->reply_text(r->c, span_str(node));
    s->reply_text(r->c, SPAN("machine"));
    s->reply_text(r->c, span_str(machine));
    s->reply_text(r->c, SPAN("report_age_ms"));
    s->reply_int(r->c, (int64_t)min_u64(age_ms, INT64_MAX));
    if (r->with_kind) {
        s->reply_text(r->c, SPAN("kind"));
        s->reply_text(r->c, kind);
    }
    for (size_t i = 0; i < n; i++) {
        s->reply_text(r->c, f[i].name);
        reply_value(r->c, f[i].name, f[i].value);
    }
}

static bool take_report(void *arg, const char *node, const char *machine, uint64_t age_ms,
                        struct span report) {
    struct rows *r = arg;
    for (struct span line; (line = next_word(&report, '\n')).len > 0;) {
        struct span kind = next_word(&line, ' ');
        if (!is_kind(r, kind)) continue;
        if (r->answer)
            reply_row(r, kind, line, node != NULL ? node : "", machine != NULL ? machine : "",
                      age_ms);
        r->count++;
    }
    return true;
}

static void reply_rows(struct tarn_call_context *c, const char *const *kinds, bool with_kind) {
    struct rows r = {.c = c, .kinds = kinds, .with_kind = with_kind};
    bool pool = TARN_HAS(rdma_services, each_report) && rdma_services->each_report != NULL;
    if (pool) rdma_services->each_report("rdma", take_report, &r);
    rdma_services->reply_array(c, r.count);
    r.answer = true;
    if (pool) rdma_services->each_report("rdma", take_report, &r);
}

static void rdma_devices(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    (void)argv, (void)argc;
    static const char *const kinds[] = {"device", NULL};
    reply_rows(c, kinds, false);
}

static void rdma_connections(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    (void)argv, (void)argc;
    static const char *const kinds[] = {"peer", "rail", NULL};
    reply_rows(c, kinds, true);
}

static void rdma_stats(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    (void)argv, (void)argc;
    static const char *const kinds[] = {"stats", NULL};
    reply_rows(c, kinds, false);
}

/* --- regions --- */

struct key {
    struct rdma_key_header h;
    struct span packed;
};

static void reply_rkeys(struct tarn_call_context *c, const struct key *k, size_t i) {
    struct rdma_key_device d;
    const char *rkeys = rdma_packed_device(k->packed, &k->h, i, &d);
    rdma_services->reply_array(c, k->h.n_chunks);
    for (uint32_t n = 0; n < k->h.n_chunks; n++) {
        uint32_t rkey;
        memcpy(&rkey, rkeys + n * sizeof(rkey), sizeof(rkey));
        rdma_services->reply_int(c, rkey);
    }
}

static void reply_number(struct tarn_call_context *c, const char *name, int64_t value) {
    rdma_services->reply_text(c, span_str(name));
    rdma_services->reply_int(c, value);
}

static void reply_string(struct tarn_call_context *c, const char *name, const char *value) {
    rdma_services->reply_text(c, span_str(name));
    rdma_services->reply_text(c, span_str(value));
}

static void reply_device(struct tarn_call_context *c, const struct key key[2], const bool has[2],
                         const struct key *one, size_t i) {
    struct rdma_key_device d;
    (void)rdma_packed_device(one->packed, &one->h, i, &d);
    d.name[sizeof(d.name) - 1] = '\0';
    rdma_services->reply_map(c, 7 + (size_t)has[0] + (size_t)has[1]);
    reply_string(c, "name", d.name);
    reply_string(c, "address", rdma_address_of(d.address).text);
    reply_number(c, "port", d.port);
    reply_number(c, "numa", d.numa_node);
    reply_number(c, "speed_mbps", d.speed_mbps);
    reply_number(c, "mtu", d.mtu);
    reply_number(c, "header_rkey", d.header_rkey);
    for (unsigned w = 0; w < 2; w++) {
        if (!has[w]) continue;
        rdma_services->reply_text(c, w ? SPAN("write_rkeys") : SPAN("read_rkeys"));
        reply_rkeys(c, &key[w], i);
    }
}

static void reply_hex(struct tarn_call_context *c, const char *name, uint64_t value) {
    char text[24];
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)value);
    reply_string(c, name, text);
}

static void reply_segment(struct tarn_call_context *c, const struct tarn_segment *s,
                          const struct key key[2], const bool has[2]) {
    const struct key *one = has[0] ? &key[0] : &key[1];
    rdma_services->reply_map(c, 14);
    reply_number(c, "segment", s->id);
    reply_string(c, "name", s->name);
    reply_string(c, "node", s->node);
    reply_string(c, "machine", s->machine);
    reply_number(c, "epoch", s->epoch);
    reply_number(c, "size", (int64_t)s->size);
    reply_string(c, "uri", s->uri != NULL ? s->uri : "");
    reply_hex(c, "address", one->h.address);
    reply_hex(c, "header_address", one->h.header_address);
    reply_hex(c, "generation", one->h.generation);
    reply_number(c, "wire_version", one->h.version);
    reply_number(c, "chunk_size", (int64_t)one->h.chunk_size);
    reply_number(c, "chunks", one->h.n_chunks);
    rdma_services->reply_text(c, SPAN("devices"));
    rdma_services->reply_array(c, one->h.n_devices);
    for (size_t i = 0; i < one->h.n_devices; i++) reply_device(c, key, has, one, i);
}

struct regions {
    struct tarn_call_context *c;
    const struct span *which; /* NULL: all */
    bool answer;
    size_t count;
};

static bool is_which(const struct regions *r, const struct tarn_segment *s) {
    uint64_t id;
    if (r->which == NULL || span_eq(*r->which, span_str(s->name))) return true;
    return span_to_u64(*r->which, &id) && id == s->id;
}

static bool take_segment(void *arg, const struct tarn_segment *s) {
    struct regions *r = arg;
    struct key key[2];
    bool has[2];
    if (!is_which(r, s)) return true;
    for (unsigned w = 0; w < 2; w++) {
        key[w].packed = s->key[w];
        has[w] = rdma_packed_parse(s->key[w], w ? RDMA_WRITE : RDMA_READ, &key[w].h);
    }
    /* Two that disagree are of different moments: the reader's is enough. */
    if (has[0] && has[1] &&
        (key[0].h.generation != key[1].h.generation || key[0].h.n_devices != key[1].h.n_devices ||
         key[0].h.n_chunks != key[1].h.n_chunks)) {
        has[1] = false;
    }
    if (!has[0] && !has[1]) return true;
    if (r->answer) reply_segment(r->c, s, key, has);
    r->count++;
    return true;
}

static void rdma_regions(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct regions r = {.c = c, .which = argc > 1 ? &argv[1] : NULL};
    if (argc > 2) {
        rdma_services->reply_error(c, "ERR RDMA.REGIONS takes one segment, or none");
        return;
    }
    bool pool = TARN_HAS(rdma_services, each_segment) && rdma_services->each_segment != NULL;
    if (pool) rdma_services->each_segment("rdma", take_segment, &r);
    if (r.which != NULL && r.count == 0) {
        char text[160];
        snprintf(text, sizeof(text),
                 "ERR segment '%.*s': there is none of that name or number that RDMA reaches",
                 (int)min_u64(r.which->len, 64), r.which->data);
        for (char *p = text; *p != '\0'; p++) {
            if ((unsigned char)*p < ' ') *p = '?';
        }
        rdma_services->reply_error(c, text);
        return;
    }
    rdma_services->reply_array(c, r.count);
    r.answer = true;
    if (pool) rdma_services->each_segment("rdma", take_segment, &r);
}

/* --- the table --- */

tarn_status rdma_commands_register(void) {
    static const struct tarn_command table[] = {
        {"rdma.devices", 1, 0, "RDMA devices of all hosts", "RDMA.DEVICES", rdma_devices},
        {"rdma.regions", -1, TARN_COMMAND_ADMIN, "Segments that RDMA reaches, and with which keys",
         "RDMA.REGIONS [segment]", rdma_regions},
        {"rdma.connections", 1, 0, "Queue pairs of all hosts", "RDMA.CONNECTIONS",
         rdma_connections},
        {"rdma.stats", 1, 0, "Counters of all hosts", "RDMA.STATS", rdma_stats},
        {"rdma.doctor", 1, TARN_COMMAND_ADMIN,
         "What keeps RDMA from working on the server's machine", "RDMA.DOCTOR", rdma_doctor},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        tarn_status s = rdma_services->command_register(&table[i]);
        if (s == TARN_ENOTSUP) return TARN_OK; /* no commands in this program */
        if (s != TARN_OK) return s;
    }
    return TARN_OK;
}
