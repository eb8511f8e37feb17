/* CONDUCTOR.KEYS: how an engine calls its blocks in the pool. */
#include "conductor/command.h"
#include "conductor/kept.h"
#include "conductor/pool_names.h"
#include "wire/options.h"

static bool word_prints(struct span word) {
    for (size_t i = 0; i < word.len; i++)
        if ((uint8_t)word.data[i] <= ' ' || word.data[i] == 0x7f) return false;
    return true;
}

/* false: it has answered what is wrong. */
static bool group_take(struct tarn_call_context *c, const struct conductor_keys *args,
                       const struct span *argv, size_t i, struct pool_names *x) {
    static const enum tarn_pool_kind group_kinds[] = {[WIRE_KV_FULL] = TARN_POOL_FULL,
                                                      [WIRE_KV_WINDOW] = TARN_POOL_WINDOW,
                                                      [WIRE_KV_STATE] = TARN_POOL_STATE};
    struct wire_kv_group g = {0};
    char error[WIRE_ERROR_SIZE];
    size_t at = args->kv_groups.at + i * WIRE_KV_GROUP_WORDS;
    if (!wire_bind_block(conductor_group_words(), argv, at, &g, error)) {
        conductor_fail(c, "KV group %zu of %u: %s", i + 1, args->kv_groups.n, error);
        return false;
    }
    if (!word_prints(argv[g.name])) {
        conductor_fail(c, "the name of KV group %zu has blanks or control characters", i + 1);
        return false;
    }
    pool_names_add(x, argv[g.name],
                   (struct tarn_pool_group){.kind = group_kinds[g.kind],
                                            .block = g.block,
                                            .unit = g.unit,
                                            .window = g.window,
                                            .drop = g.drop != 0});
    return true;
}

static bool names_take(struct tarn_call_context *c, const struct conductor_keys *args,
                       const struct span *argv, struct pool_names *x) {
    x->hashing = (enum pool_hashing)args->hash;
    x->unit = args->unit;
    x->align = args->align;
    x->revision = args->revision != 0 ? argv[args->revision] : span_of(NULL, 0);
    if (args->revision != 0 && x->hashing != POOL_HASH_TARN) {
        conductor_fail(c, "REVISION goes with HASH TARN");
        return false;
    }
    if (!word_prints(x->revision)) {
        conductor_fail(c, "REVISION has blanks or control characters");
        return false;
    }
    for (size_t i = 0; i < args->kv_groups.n; i++)
        if (!group_take(c, args, argv, i, x)) return false;
    return true;
}

/* Whether the books could look for such parts. */
static bool names_check(struct tarn_call_context *c, const struct pool_names *x) {
    struct tarn_pool_run run;
    struct tarn_pool_question q = {.size = sizeof(q),
                                   .unit = x->unit,
                                   .align = x->align,
                                   .n_groups = x->n,
                                   .names = x->name,
                                   .groups = x->group};
    uint64_t tokens;
    size_t n = 1;
    const char *why = NULL;
    if (conductor_services->pool_prefix(&q, &tokens, &run, &n, &why) == TARN_OK) return true;
    conductor_fail(c, "KVGROUPS: %s", why);
    return false;
}

void cmd_keys(struct tarn_call_context *c, const struct span *argv, size_t argc) {
    struct conductor_keys args = {0};
    struct pool_names names = {0};
    struct buf text = {NULL, 0, 0};
    if (!conductor_bind(c, CONDUCTOR_KEYS, argv, argc, &args)) return;
    bool right = args.hash == 0 || (names_take(c, &args, argv, &names) && names_check(c, &names));
    if (right && args.hash != 0) pool_names_write(&names, &text);
    if (right && text.len > ROUTE_KEYS_MAX) {
        conductor_fail(c, "the names of the KV groups are %zu bytes together, at most %u may be",
                       text.len, ROUTE_KEYS_MAX);
    } else if (right) {
        tarn_status status = kept_keys(argv[args.id], span_of(text.data, text.len));
        if (status == TARN_OK)
            conductor_services->reply_simple(c, "OK");
        else if (status == TARN_ENOTFOUND)
            conductor_fail_unknown(c, argv[args.id], CONDUCTOR_UNTOLD);
        else
            conductor_fail_kept(c, status);
    }
    buf_free(&text);
    pool_names_free(&names);
}
