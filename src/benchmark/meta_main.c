/* meta as a subcommand: its options, and what it says. */
#include <stdio.h>

#include "benchmark/meta.h"

static void meta_print(const struct meta *m, const struct meta_result *sum) {
    double rate = (double)sum->done_keys / sum->seconds;
    double per_key = 1e9 / (double)max_u64(1, sum->done_keys + sum->put_keys); /* ns of a second */
    if (m->b->json) {
        struct buf out = {0};
        json_add(
            &out,
            "op:s batch:u keys:u value_size:u key_size:u stretch:u clients:u threads:u pipeline:u "
            "lease_ms:u puts:u rate:0 random:b seconds:3 requests:u keys_done:u hits:u "
            "errors:u keys_per_s:0 masters:u client_ns_per_key:1 servers_ns_per_key:1",
            meta_op_names[m->op], m->batch, m->keys, m->value_size, m->key_size, m->stretch,
            m->clients, m->threads, m->pipeline, m->op == META_GET ? m->lease_ms : 0, m->puts,
            m->rate, m->random, sum->seconds, sum->requests, sum->done_keys, sum->hits, sum->errors,
            rate, (uint64_t)m->n_masters, per_key * sum->client_cpu_s,
            per_key * sum->servers_cpu_s);
        json_latency(&out, "", &sum->hist);
        if (m->puts > 0) {
            json_add(&out, "puts_done:u put_keys:u", sum->put_hist.count, sum->put_keys);
            json_latency(&out, "put_", &sum->put_hist);
        }
        if (m->rate > 0) json_latency(&out, "late_", &sum->late_hist);
        json_print(&out);
        return;
    }
    const char *how = m->op != META_GET ? ""
                      : m->lease_ms > 0 ? ", leased and released"
                                        : ", without leases";
    printf("%s, %" PRIu64 " keys a call%s, %" PRIu64 " clients, %u masters: %.0f keys/s\n"
           "processor time of a key: %.0f ns here, %.0f ns of the masters\ncall: ",
           meta_op_names[m->op], m->batch, how, m->clients * m->threads, m->n_masters, rate,
           per_key * sum->client_cpu_s, per_key * sum->servers_cpu_s);
    print_latency(&sum->hist);
    printf("%" PRIu64 " of %" PRIu64 " keys %s, %" PRIu64 " errors\n", sum->hits, sum->done_keys,
           m->op == META_PUT ? "stored" : "found", sum->errors);
    if (m->puts > 0) {
        printf("%" PRIu64 " keys put among them: ", sum->put_keys);
        print_latency(&sum->put_hist);
    }
    if (m->rate > 0) {
        printf("sent after they were due: ");
        print_latency(&sum->late_hist);
    }
}

static enum meta_op parse_op(const char *name) {
    for (size_t i = 0; meta_op_names[i] != NULL; i++) {
        if (strcmp(name, meta_op_names[i]) == 0) return (enum meta_op)i;
    }
    die("--op is put, get, exists or prefix, not \"%s\"", name);
}

int meta_main(struct bench *b, int argc, char **argv) {
    const char *op = "put";
    struct meta m = {.b = b,
                     .batch = 128,
                     .keys = 100000,
                     .value_size = 4096,
                     .key_size = 64,
                     .replicas = 1,
                     .clients = 1,
                     .threads = 1,
                     .pipeline = 2,
                     .lease_ms = 5000,
                     .seconds = 5};
    const struct option_spec specs[] = {
        {"--op", OPT_STRING, &op, 0, 0},
        {"--batch", OPT_U64, &m.batch, 1, 65536},
        {"--keys", OPT_U64, &m.keys, 1, 1000000000},
        {"--value-size", OPT_BYTES, &m.value_size, 1, UINT64_C(1) << 40},
        {"--key-size", OPT_U64, &m.key_size, META_DIGITS, 1024},
        {"--stretch", OPT_U64, &m.stretch, 0, 65536},
        {"--replicas", OPT_U64, &m.replicas, 1, 64},
        {"--clients", OPT_U64, &m.clients, 1, 10000},
        {"--threads", OPT_U64, &m.threads, 1, 256},
        {"--pipeline", OPT_U64, &m.pipeline, 1, 64},
        {"--lease-ms", OPT_U64, &m.lease_ms, 0, 600000},
        {"--puts", OPT_U64, &m.puts, 0, 99},
        {"--rate", OPT_DOUBLE, &m.rate, 0, 1000000000},
        {"--random", OPT_FLAG, &m.random, 0, 0},
        {"--no-grants", OPT_FLAG, &m.no_grants, 0, 0},
        {"--seconds", OPT_DOUBLE, &m.seconds, 0, 86400},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    if (options_parse(b, specs, argc, argv, false, NULL) > 0)
        die("meta takes no argument \"%s\"", argv[0]);
    if (m.stretch > 0 && m.key_size < META_DIGITS + META_TAG)
        die("--stretch: keys of %d bytes or more", META_DIGITS + META_TAG);
    m.op = parse_op(op);
    if (m.random && m.rate == 0) die("--random goes with --rate");
    m.run = clock_wall_us() << 12;
    meta_masters_open(&m);
    if (m.op != META_PUT) meta_fill(&m);
    struct meta_result sum;
    meta_measure(&m, &sum);
    meta_print(&m, &sum);
    meta_masters_close(&m);
    return sum.errors > 0;
}
