/* What a person at a terminal reads first. */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>
#include "base/assert.h"
#include "server/server.h"

void welcome(void) {
    bool wanted = config->welcome == CONFIG_YES ||
                  (config->welcome == CONFIG_AUTO && config->always_show_logo) ||
                  (config->welcome == CONFIG_AUTO && config->logfile[0] == '\0' &&
                   !config->daemonize && isatty(STDOUT_FILENO));
    if (!wanted) return;
    char to[PATH_MAX + 8];
    if (listeners_port(CLIENT_PORT_TCP) != 0)
        snprintf(to, sizeof(to), "-p %u", listeners_port(CLIENT_PORT_TCP));
    else if (config->unixsocket[0] != '\0')
        snprintf(to, sizeof(to), "-s %s", config->unixsocket);
    else
        snprintf(to, sizeof(to), "--tls -p %u", listeners_port(CLIENT_PORT_TLS));
    const char *auth = config->requirepass.len > 0 ? " -a PASSWORD" : "";
    printf("\n  Try it from another terminal:\n"
           "    redis-cli %s%s set hello world            a value, as with Redis\n"
           "    redis-cli %s%s putstart block:1 1048576   room for a KV block: where to write it\n"
           "    redis-cli %s%s info pool                  how full the pool is\n\n",
           to, auth, to, auth, to, auth);
    fflush(stdout);
}

/* The most used ones; their defaults are in the table of options. */
static const struct {
    const char *name, *argument, *what;
} most_used[] = {
    {"port", "PORT", "the port for commands; auto: any free one"},
    {"bind", "ADDRESS ...", "the addresses of this machine to listen on"},
    {"requirepass", "PASSWORD",
     "what clients must send; without one only this machine can connect"},
    {"pool-size", "SIZE",
     "memory that this server itself adds to the pool; 0: it only keeps the books"},
    {"pool-path", "FILE", "a file for that memory, so that a restart finds it again"},
    {"data-port", "PORT", "the port for the bytes of blocks; auto: port + 10000, 0: any free one"},
    {"eviction-policy", "NAME",
     "how room is made: lru, fifo, lfu, sieve, s3fifo, chain, noeviction"},
    {"replicaof", "HOST PORT", "the master to follow; needs --pool-size 0"},
    {"dir", "DIRECTORY", "for snapshots and the append-only file"},
    {"logfile", "FILE", "the log; without one it is standard output"},
};

static void print_option(void *arg, const char *name, struct span value) {
    printf("  --%-28s %.*s%s\n", name, (int)value.len, value.data != NULL ? value.data : "",
           value.len == 0 ? "\"\"" : "");
}

static void print_most_used(void) {
    char usage[48];
    for (size_t i = 0; i < ARRAY_LEN(most_used); i++) {
        const char *value = config_default(most_used[i].name);
        snprintf(usage, sizeof(usage), "--%s %s", most_used[i].name, most_used[i].argument);
        printf("  %-24s %s (%s)\n", usage, most_used[i].what, value[0] != '\0' ? value : "none");
    }
}

static void print_all(void) {
    struct config defaults;
    struct span any = SPAN("*");
    config_init(&defaults);
    config_get(&defaults, &any, 1, print_option, NULL);
    config_deinit(&defaults);
}

void print_help(const char *program, bool all) {
    if (all) {
        print_all();
        return;
    }
    printf("Usage: %s [FILE | -] [--option value ...] [-]\n"
           "       %s --version | --help [all]\n\n"
           "FILE is a configuration file, - reads it from standard input. The command line wins "
           "over the file:\n\n"
           "  %s --port 6479 --pool-size 4gb\n"
           "  %s /etc/tarn.conf --loglevel verbose\n\n"
           "The most used options and their defaults:\n\n",
           program, program, program, program);
    print_most_used();
    printf("\n--help all lists every option with its default. redis.conf.sample explains them,\n"
           "docs/CONFIG.md how they are read, and how tarn treats a redis.conf of Redis.\n");
}
