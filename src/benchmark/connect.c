#include "client/client.h"

#include <fcntl.h>
#include <stdio.h>

#include "benchmark/bench.h"

#define CONNECT_MS 60000u

/* What the options say to libtarn; strings are borrowed. */
static void bench_options(const struct bench *b, tarn_options *o) {
    tarn_options_init(o);
    o->user = b->user;
    o->password = b->password;
    o->name = "tarn-benchmark";
    o->tls_ca_file = b->ca_file;
    o->tls_ca_dir = b->ca_dir;
    o->tls_cert_file = b->cert;
    o->tls_key_file = b->key;
    o->tls_server_name = b->sni;
    o->tls_verify = !b->insecure;
    o->tls_verify_name = b->verify_name == NULL || strcmp(b->verify_name, "yes") == 0;
}

void bench_secure(struct bench *b) {
    bool any = b->ca_file != NULL || b->ca_dir != NULL || b->cert != NULL || b->key != NULL ||
               b->sni != NULL || b->insecure || b->verify_name != NULL;
    tarn_options o;
    bench_options(b, &o);
    if (any && !b->tls)
        die("--cacert, --cacertdir, --cert, --key, --sni, --insecure and --tls-verify-name need "
            "--tls");
    if (!o.tls_verify_name && strcmp(b->verify_name, "no") != 0)
        die("--tls-verify-name is yes or no, not \"%s\"", b->verify_name);
    if (b->tls && !b->secure.on && secure_open(&o, &b->secure) != TARN_OK)
        die("%s", tarn_last_error());
}

struct server_numbers bench_connect(const struct bench *b, struct ctl *c, struct arena *arena) {
    const struct greeting g = {.last = {"INFO", "server"}, .whom = "server"};
    uint64_t deadline = now_ms() + CONNECT_MS;
    tarn_options o;
    char port[8];
    struct answer *a;
    bench_options(b, &o);
    snprintf(port, sizeof(port), "%u", b->port);
    ctl_init(c);
    if (ctl_open(c, &b->secure, b->host, port, deadline) != TARN_OK) die("%s", tarn_last_error());
    if (ctl_greet(c, arena, &o, &g, deadline, &a) != TARN_OK)
        die("%s%s",
            strstr(tarn_last_error(), "NOAUTH") != NULL
                ? "the server wants a password (-a PASSWORD, --user NAME): "
                : "",
            tarn_last_error());
    struct server_numbers numbers = server_numbers(a);
    arena_reset(arena);
    return numbers;
}

tarn_client *client_open(const struct bench *b, const char *transport, bool verify) {
    tarn_options o;
    bench_options(b, &o);
    o.transport = transport;
    o.verify = verify;
    o.max_lanes = 1;
    char url[512];
    snprintf(url, sizeof(url), strchr(b->host, ':') != NULL ? "%s://[%s]:%u" : "%s://%s:%u",
             b->tls ? "tarns" : "tarn", b->host, b->port);
    tarn_client *c;
    if (tarn_connect(url, &o, &c) != TARN_OK) die("%s", tarn_last_error());
    return c;
}
