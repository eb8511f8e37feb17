/* What a person at a terminal reads first. */
#include <stdio.h>
#include <unistd.h>
#include "cmd/core.h"
#include "server/server.h"

void welcome(const struct config *config) {
    bool wanted =
        config->welcome == CONFIG_YES || (config->welcome == CONFIG_AUTO && config->logfile[0] == '\0' &&
                                          !config->daemonize && isatty(STDOUT_FILENO));
    if (!wanted) return;
    unsigned port = core_endpoints.port;
    const char *auth = config->requirepass[0] != '\0' ? " -a PASSWORD" : "";
    printf("\n  Try it from another terminal:\n"
           "    redis-cli -p %u%s set hello world            a value, as with Redis\n"
           "    redis-cli -p %u%s putstart block:1 1048576   room for a KV block: where to write it\n"
           "    redis-cli -p %u%s info pool                  how full the pool is\n\n",
           port, auth, port, auth, port, auth);
    fflush(stdout);
}

static void print_option(void *arg, const char *name, struct span value) {
    printf("  --%-28s %.*s%s\n", name, (int)value.len, value.data != NULL ? value.data : "",
           value.len == 0 ? "\"\"" : "");
}

void print_help(const char *program) {
    struct config defaults;
    struct span all = SPAN("*");
    printf("Usage: %s [FILE | -] [--option value ...]\n"
           "       %s --version | --help\n\n"
           "FILE is a configuration file (redis.conf.sample describes every option), - reads it from "
           "standard input.\n"
           "Options of the command line win over the file:\n\n"
           "  %s --port 6479 --pool-size 4gb\n"
           "  %s /etc/tarn.conf --loglevel verbose\n\n"
           "Options and their defaults:\n\n",
           program, program, program, program);
    config_init(&defaults);
    config_get(&defaults, &all, 1, print_option, NULL);
    config_deinit(&defaults);
}
