/* The options that all subcommands have. */
#include <stdio.h>

#include "benchmark/bench.h"

const char *size_text(uint64_t bytes, char out[24]) {
    static const char units[] = "kmg";
    int unit = -1;
    while (unit < 2 && bytes >= 1024 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, 24, unit < 0 ? "%llu" : "%llu%c", (unsigned long long)bytes,
             unit < 0 ? 0 : units[unit]);
    return out;
}

size_t options_parse(struct bench *b, const struct option_spec *specs, int argc, char **argv,
                     bool stop_at_plain, int *used_p) {
    uint64_t port = b->port;
    const struct option_spec global[] = {
        {"-h", OPT_STRING, &b->host, 0, 0},
        {"-p", OPT_U64, &port, 1, 65535},
        {"-a", OPT_STRING, &b->password, 0, 0},
        {"--user", OPT_STRING, &b->user, 0, 0},
        {"--json", OPT_FLAG, &b->json, 0, 0},
        {"--tls", OPT_FLAG, &b->tls, 0, 0},
        {"--cacert", OPT_STRING, &b->ca_file, 0, 0},
        {"--cacertdir", OPT_STRING, &b->ca_dir, 0, 0},
        {"--cert", OPT_STRING, &b->cert, 0, 0},
        {"--key", OPT_STRING, &b->key, 0, 0},
        {"--sni", OPT_STRING, &b->sni, 0, 0},
        {"--insecure", OPT_FLAG, &b->insecure, 0, 0},
        {"--tls-verify-name", OPT_STRING, &b->verify_name, 0, 0},
        {NULL, OPT_FLAG, NULL, 0, 0},
    };
    const struct option_spec *const tables[] = {specs, global, NULL};
    size_t plain;
    const char *why = options_read(tables, argc, argv, stop_at_plain, &plain, used_p);
    if (why != NULL) die("%s", why);
    b->port = (uint16_t)port;
    if (!stop_at_plain) bench_secure(b); /* the last ones */
    return plain;
}
