/* What a person at a terminal reads first. */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>
#include "server/server.h"

void welcome(const struct config *config) {
    bool wanted = config->welcome == CONFIG_YES ||
                  (config->welcome == CONFIG_AUTO && config->always_show_logo) ||
                  (config->welcome == CONFIG_AUTO && config->logfile[0] == '\0' && !config->daemonize &&
                   isatty(STDOUT_FILENO));
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

static void print_option(void *arg, const char *name, struct span value) {
    printf("  --%-28s %.*s%s\n", name, (int)value.len, value.data != NULL ? value.data : "",
           value.len == 0 ? "\"\"" : "");
}

void print_help(const char *program) {
    struct config defaults;
    struct span all = SPAN("*");
    printf("Usage: %s [FILE | -] [--option value ...] [-]\n"
           "       %s --version | --help\n\n"
           "FILE is a configuration file (redis.conf.sample describes every option), - reads it from "
           "standard input.\n"
           "Options of the command line win over the file:\n\n"
           "  %s --port 6479 --pool-size 4gb\n"
           "  %s /etc/tarn.conf --loglevel verbose\n"
           "  %s --loadmodule modules/rdma.so bind 10.0.0.1\n\n"
           "Options and their defaults:\n\n",
           program, program, program, program, program);
    config_init(&defaults);
    config_get(&defaults, &all, 1, print_option, NULL);
    config_deinit(&defaults);
}
