/* A module that asks what the pool has of a prompt: prefix.len ROOM, and the words of PREFIXLEN
 * with KVGROUPS behind its name. The reply: tokens, how many hashes were made, and the runs, for
 * which there is so much room. */
#include <stdlib.h>
#include <string.h>

#include "plain.h"

enum { GROUPS = 16, RUNS = 64, GROUP_WORDS = 6 };

static const struct tarn_services *services;

static uint32_t number(struct span s) {
    char text[16] = {0};
    memcpy(text, s.data, s.len < sizeof(text) ? s.len : sizeof(text) - 1);
    return (uint32_t)strtoul(text, NULL, 10);
}

static enum tarn_pool_kind kind_of(struct span s) {
    return s.data[0] == 'F'   ? TARN_POOL_FULL
           : s.data[0] == 'W' ? TARN_POOL_WINDOW
                              : TARN_POOL_STATE;
}

/* Hashes that are not made yet are none. */
struct making {
    const struct span *from;
    struct span *to;
    size_t made;
};

static void make(void *arg, size_t n) {
    struct making *m = arg;
    for (; m->made < n; m->made++) m->to[m->made] = m->from[m->made];
}

static void run_answer(struct tarn_call_context *c, const struct tarn_pool_run *run) {
    static const char *const kinds[] = {"FULL", "STATE", "WINDOW"};
    services->reply_array(c, 7);
    services->reply_text(c, span_str(kinds[run->kind]));
    services->reply_int(c, run->begin);
    services->reply_int(c, run->tokens);
    services->reply_int(c, run->disk);
    services->reply_text(c, span_str(run->machine != NULL ? run->machine : ""));
    services->reply_text(c, span_str(run->rack != NULL ? run->rack : ""));
    services->reply_int(c, (int64_t)run->bytes);
}

static void len_answer(struct tarn_call_context *c, const struct tarn_pool_question *q, size_t room,
                       const struct making *m) {
    struct tarn_pool_run runs[RUNS];
    uint64_t tokens;
    const char *why;
    if (services->pool_prefix(q, &tokens, runs, &room, &why) != TARN_OK) {
        services->reply_error(c, why);
        return;
    }
    services->reply_array(c, 2 + room);
    services->reply_int(c, (int64_t)tokens);
    services->reply_int(c, (int64_t)m->made);
    for (size_t i = 0; i < room; i++) run_answer(c, &runs[i]);
}

static void cmd_len(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct tarn_pool_group groups[GROUPS];
    struct span names[GROUPS];
    size_t n = number(argv[2]), room = number(argv[1]), at = 3 + n;
    struct making m = {argv + 3, calloc(n + 1, sizeof(struct span)), 0};
    struct tarn_pool_question q = {.size = sizeof(q),
                                   .unit = number(argv[at + 1]),
                                   .align = number(argv[at + 3]),
                                   .n_hashes = n,
                                   .hashes = m.to,
                                   .make = make,
                                   .arg = &m,
                                   .n_groups = number(argv[at + 5]),
                                   .names = names,
                                   .groups = groups};
    for (size_t i = 0; i < q.n_groups && i < GROUPS; i++) {
        const struct span *word = argv + at + 6 + i * GROUP_WORDS;
        names[i] = word[0];
        groups[i] = (struct tarn_pool_group){.kind = kind_of(word[1]),
                                             .block = number(word[2]),
                                             .unit = number(word[3]),
                                             .window = number(word[4]),
                                             .drop = number(word[5]) != 0};
    }
    len_answer(c, &q, room < RUNS ? room : RUNS, &m);
    free(m.to);
}

static const struct tarn_command len = {"prefix.len", -10, 0, "Asks the books.", "words", cmd_len};

static tarn_status load(const struct tarn_services *given, size_t argc, const char *const *argv,
                        char *error, size_t error_cap) {
    services = given;
    return services->command_register(&len);
}

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {PLAIN_MODULE("prefix", load)};
