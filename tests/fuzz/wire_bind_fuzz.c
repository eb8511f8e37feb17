/* Requests of any words to any command: the struct that they are bound to can be built again, and
 * is bound to the same. The first byte says which command; lines are words. */
#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "wire/options.h"
#include "wire/wire.h"

enum { WORDS = 256, ROOM = 1024 };

struct request {
    struct span word[WORDS];
    char digits[WORDS][24];
    size_t n;
};

static struct request request, built;

static void add_word(void *arg, struct span word) {
    struct request *r = arg;
    TARN_ASSERT(r->n < WORDS);
    r->word[r->n++] = word;
}

static void add_number(void *arg, int64_t value) {
    struct request *r = arg;
    char *digits = r->digits[r->n];
    add_word(r, span_of(digits, i64_to_dec(value, digits)));
}

/* Those of which every argument has a member. */
static bool is_bound(const struct wire_arg *args) {
    for (const struct wire_arg *a = args; a != NULL && a->kind != WIRE_END; a++)
        if (a->kind == WIRE_ONEOF && a->size == 0 ? !is_bound(a->args) : a->size == 0) return false;
    return args != NULL;
}

/* Those of KV groups are bound one by one, by whoever runs the request. */
static void bind_kv_groups(const struct wire_command *cmd, const struct wire_look *look) {
    const struct wire_arg *block = wire_named(cmd, "KVGROUPS");
    char error[WIRE_ERROR_SIZE];
    for (uint32_t i = 0; block != NULL && i < look->kv_groups.n; i++) {
        struct wire_kv_group g = {0};
        size_t at = look->kv_groups.at + i * WIRE_KV_GROUP_WORDS;
        if (!wire_bind_block(block, request.word, at, &g, error)) continue;
        TARN_ASSERT(g.name == at && g.block > 0 && g.unit > 0 && g.drop <= 1);
        TARN_ASSERT(g.kind >= WIRE_KV_FULL && g.kind <= WIRE_KV_STATE);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct wire_limits limits = {64, 60000};
    static _Alignas(16) char options[ROOM], again[ROOM];
    char error[WIRE_ERROR_SIZE];
    if (size == 0) return 0;
    const struct wire_command *cmd = &wire_commands[data[0] % WIRE_COMMANDS];
    const char *p = (const char *)data + 1, *end = (const char *)data + size;
    for (request.n = 0; p < end && request.n < WORDS / 2;) {
        const char *line = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((line != NULL ? line : end) - p);
        add_word(&request, span_of(p, len));
        p += len + 1;
    }
    struct wire_plan plan;
    wire_plan(cmd, &plan);
    memset(options, 0, ROOM);
    memset(again, 0, ROOM);
    if (request.n == 0 ||
        !wire_bind(cmd, &plan, request.word, request.n, &limits, options, error) ||
        !is_bound(cmd->args))
        return 0;
    bind_kv_groups(cmd, (const struct wire_look *)options);
    const struct wire_sink sink = {&built, add_word, add_number};
    built.n = 0;
    wire_build(cmd, options, request.word, &sink);
    TARN_ASSERT(wire_bind(cmd, NULL, built.word, built.n, &limits, again, error));
    size_t n = built.n;
    struct wire_sink count = {&request, add_word, add_number};
    request.n = 0;
    wire_build(cmd, again, built.word, &count);
    TARN_ASSERT(request.n == n);
    for (size_t i = 0; i < n; i++) TARN_ASSERT(span_eq(request.word[i], built.word[i]));
    return 0;
}
