/* tarn-benchmark: measures look-ups and puts of metadata, the data paths, a master of many nodes,
 * transfers between engines, and replays request traces. */
#include <signal.h>
#include <stdio.h>

#include "base/near.h"
#include "benchmark/bench.h"

static const char usage[] =
    "tarn-benchmark [-h HOST] [-p PORT] [-a PASSWORD] [--user NAME] [--json] SUBCOMMAND\n"
    "               [--tls [--cacert FILE | --cacertdir DIR] [--cert FILE --key FILE] [--sni NAME] "
    "[--tls-verify-name no]\n"
    "                      [--insecure]]\n"
    "\n"
    "  meta    [--op put|get|exists|prefix] [--batch 128] [--keys N] [--value-size 4096] "
    "[--key-size 64]\n"
    "          [--replicas N] [--clients C] [--threads T] [--pipeline 2]\n"
    "          [--lease-ms 5000, 0 = plain look-ups] [--seconds S]\n"
    "          [--puts PERCENT]   so many of the calls are puts\n"
    "          [--no-grants]      puts and look-ups ask for places without grants\n"
    "          [--stretch KEYS]   so many in a row have a hash tag in common, and so a master\n"
    "          [--rate CALLS [--random]]   so many a second of all clients, evenly spaced or at "
    "random times;\n"
    "          latencies count from when a call was due;\n"
    "          a server with a map of slots: each call is split among all masters\n"
    "  data    [--transport NAME|resp] [--op get|put|mix] [--block-size "
    "4k,64k,1m,4m,..64m] [--batch "
    "1,16]\n"
    "          [--threads T] [--seconds S] [--warm-up S] [--check | --no-verify]\n"
    "  nodes   [--nodes 200] [--keys 5000000] [--replicas 2] [--value-size 4096] [--segment 256g]\n"
    "          [--batch 128] [--clients C] [--seconds S]   simulated nodes, for a master with "
    "--pool-size 0\n"
    "  transfer [--mode both|target|initiator] [--peer ENDPOINT] [--op read|write] [--transport "
    "NAME]\n"
    "          [--block-size 64k] [--batch 128] [--threads T] [--streams 2] [--buffer 256m] "
    "[--seconds 10 | "
    "--count BATCHES]\n"
    "          [--check] [--merge] [--foreign] [--bind ADDRESS] [--announce HOST] [--listen PORT] "
    "[--data-port PORT]\n"
    "          [--name NAME] [--master URL] [--secret SECRET]   without a server; a target waits "
    "until it is "
    "stopped\n"
    "  replay  TRACE [--block-size 4k] [--threads T] [--lease-ms 50] [--limit REQUESTS]\n"
    "          [--speed FACTOR, 0 = as fast as it goes] [--transport NAME]\n"
    "          [--hints]   the trace's sessions are sent, for the eviction policy\n"
    "          [--kv-groups KIND:BLOCK:BYTES[:WINDOW][,...] [--kv-interval TOKENS]\n"
    "          [--kv-together boundaries|groups|nothing]]   a hybrid model:\n"
    "          KV groups of kind full, window or state, blocks of BLOCK tokens and BYTES bytes "
    "(states:\n"
    "          of BYTES); windows and states are put at a prompt's end, and after every "
    "interval,\n"
    "          as parts of boundaries (the default), as groups that go together, or as neither\n"
    "\n"
    "The most used options and their defaults:\n"
    "\n"
    "  -h HOST, -p PORT  the server (127.0.0.1, 6479)\n"
    "  -a PASSWORD       its password; --user NAME for a user other than the default one (none)\n"
    "  --json            a line of JSON for each row (a table)\n"
    "  --op OP           what is measured (meta: put; data: get; transfer: read)\n"
    "  --transport WAY   how bytes move (data: shm; transfer, replay: auto)\n"
    "  --block-size N    bytes of a block; data takes a list (4k to 64m; transfer: 64k)\n"
    "  --batch N         keys or blocks in one call (meta, nodes, transfer: 128; data: 1 and 16)\n"
    "  --threads N       of this program (1)\n"
    "  --seconds N       of each row (data: 2; meta, nodes: 5; transfer: 10)\n"
    "  --check           data, transfer: every byte is compared\n"
    "\n"
    "docs/BENCHMARKS.md says what each subcommand measures, and what to compare it with.\n";

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    struct bench b = BENCH_INIT;
    bool help = false;
    const struct option_spec specs[] = {{"--help", OPT_FLAG, &help, 0, 0},
                                        {NULL, OPT_FLAG, NULL, 0, 0}};
    int used;
    size_t plain = options_parse(&b, specs, argc - 1, argv + 1, true, &used);
    if (help || strcmp(argv[argc - 1], "--help") == 0) { /* of a subcommand: it is all there is */
        fputs(usage, stdout);
        return 0;
    }
    if (plain == 0) {
        fputs(usage, stderr);
        return 2;
    }
    static const struct {
        const char *name;
        int (*run)(struct bench *b, int argc, char **argv);
    } commands[] = {{"meta", meta_main},
                    {"data", data_main},
                    {"nodes", nodes_main},
                    {"transfer", transfer_main},
                    {"replay", replay_main}};
    const char *name = argv[used];
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(name, commands[i].name) != 0) continue;
        int status = commands[i].run(&b, argc - used - 1, argv + used + 1);
        secure_close(&b.secure);
        return status;
    }
    struct near near;
    near_begin(&near, span_str(name));
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) near_offer(&near, commands[i].name);
    if (near.word != NULL)
        fprintf(stderr, "tarn-benchmark: there is no subcommand %s, did you mean %s?\n", name,
                near.word);
    else
        fprintf(stderr, "tarn-benchmark: there is no subcommand \"%s\"\n\n%s", name, usage);
    return 2;
}
