/* BITFIELD BITFIELD_RO: integers of any width inside a value. All that one command names has to lie within WINDOW bytes, so that
 * the rest of the value, wherever it is, need not be looked at. */
#include "cmd/families.h"

#include <string.h>
#include "base/assert.h"
#include "cmd/config.h"
#include "cmd/notify.h"
#include "cmd/string_write.h"

enum { WINDOW = 64 };
enum overflow { OVERFLOW_WRAP, OVERFLOW_SAT, OVERFLOW_FAIL };

struct field {
    enum { FIELD_GET, FIELD_SET, FIELD_INCRBY } what;
    bool is_signed;
    unsigned bits;
    uint64_t offset; /* of its first bit */
    int64_t number;  /* to set or add */
    enum overflow overflow;
};

/* The window: which bytes all fields together lie in, and where the last one that is written ends. */
struct fields {
    uint64_t from, to, written_to; /* written_to 0: none is written */
};

/* --- arguments -------------------------------------------------------------------------------------------------------------- */

static bool field_type(struct client *c, size_t at, struct field *f) {
    struct span s = c->argv[at];
    uint64_t bits = 0;
    f->is_signed = s.len > 0 && s.data[0] == 'i';
    bool ok = s.len > 1 && (f->is_signed || s.data[0] == 'u') &&
              span_to_u64(span_of(s.data + 1, s.len - 1), &bits) && bits >= 1 &&
              bits <= (f->is_signed ? 64 : 63);
    if (!ok)
        reply_error(c, "Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported "
                       "but i64 is.");
    f->bits = (unsigned)bits;
    return ok;
}

static bool field_offset(struct client *c, size_t at, struct field *f) {
    struct span s = c->argv[at];
    bool counted = s.len > 0 && s.data[0] == '#'; /* in fields of this width */
    if (counted) s = span_of(s.data + 1, s.len - 1);
    int64_t v;
    bool ok = span_to_i64(s, &v) && v >= 0 &&
              !__builtin_mul_overflow((uint64_t)v, counted ? f->bits : 1, &f->offset) &&
              (f->offset >> 3) < server.config->proto_max_bulk_len;
    if (!ok) reply_error(c, "bit offset is not an integer or out of range");
    return ok;
}

/* The next field at *at_p; OVERFLOW before it is kept in f. 1: read, 0: there is none, -1: the error was answered. */
static int next_field(struct client *c, size_t *at_p, struct field *f) {
    size_t at = *at_p;
    for (; at + 1 < c->argc && arg_is(c, at, "overflow"); at += 2) {
        if (arg_is(c, at + 1, "wrap")) {
            f->overflow = OVERFLOW_WRAP;
        } else if (arg_is(c, at + 1, "sat")) {
            f->overflow = OVERFLOW_SAT;
        } else if (arg_is(c, at + 1, "fail")) {
            f->overflow = OVERFLOW_FAIL;
        } else {
            reply_error(c, "Invalid OVERFLOW type specified");
            return -1;
        }
    }
    if (at == c->argc) return 0;
    if (arg_is(c, at, "get") && at + 2 < c->argc) {
        f->what = FIELD_GET;
    } else if ((arg_is(c, at, "set") || arg_is(c, at, "incrby")) && at + 3 < c->argc) {
        f->what = arg_is(c, at, "set") ? FIELD_SET : FIELD_INCRBY;
    } else {
        reply_syntax(c);
        return -1;
    }
    if (!field_type(c, at + 1, f) || !field_offset(c, at + 2, f)) return -1;
    if (f->what != FIELD_GET && !arg_i64(c, at + 3, &f->number)) return -1;
    *at_p = at + (f->what == FIELD_GET ? 3 : 4);
    return 1;
}

/* Of arguments that were checked before. */
static size_t measure(struct client *c, struct fields *all) {
    struct field f = {0};
    size_t n = 0;
    *all = (struct fields){UINT64_MAX, 0, 0};
    for (size_t at = 2; next_field(c, &at, &f) > 0; n++) {
        uint64_t end = (f.offset + f.bits + 7) / 8;
        all->from = min_u64(all->from, f.offset / 8);
        all->to = max_u64(all->to, end);
        if (f.what != FIELD_GET) all->written_to = max_u64(all->written_to, end);
    }
    return n;
}

/* --- bits ------------------------------------------------------------------------------------------------------------------- */

static uint64_t read_bits(const uint8_t *window, uint64_t at, unsigned bits) {
    uint64_t v = 0;
    for (; bits > 0; bits--, at++) v = v << 1 | (window[at / 8] >> (7 - at % 8) & 1);
    return v;
}

static void write_bits(uint8_t *window, uint64_t at, unsigned bits, uint64_t v) {
    for (; bits > 0; bits--, at++) {
        uint8_t mask = (uint8_t)(0x80u >> (at % 8));
        window[at / 8] = (uint8_t)(v >> (bits - 1) & 1 ? window[at / 8] | mask : window[at / 8] & ~mask);
    }
}

static int64_t as_number(const struct field *f, uint64_t v) {
    bool negative = f->is_signed && v >> (f->bits - 1) & 1;
    return (int64_t)(negative && f->bits < 64 ? v | ~UINT64_C(0) << f->bits : v);
}

/* What is written where v was meant. false: nothing, by OVERFLOW FAIL. */
static bool fit(const struct field *f, __int128 v, uint64_t *bits_p) {
    __int128 span = (__int128)1 << f->bits, min = f->is_signed ? -(span / 2) : 0,
             max = f->is_signed ? span / 2 - 1 : span - 1;
    if (v < min || v > max) {
        if (f->overflow == OVERFLOW_FAIL) return false;
        if (f->overflow == OVERFLOW_SAT) v = v < min ? min : max;
    }
    *bits_p = (uint64_t)v; /* the low bits are all that is taken */
    return true;
}

/* Does all of it in the window; says the results when asked to. */
static void run_fields(struct client *c, const struct fields *all, uint8_t *window, bool say) {
    struct field f = {0};
    for (size_t at = 2; next_field(c, &at, &f) > 0;) {
        uint64_t where = f.offset - all->from * 8, bits;
        int64_t old = as_number(&f, read_bits(window, where, f.bits));
        if (f.what == FIELD_GET) {
            if (say) reply_int(c, old);
            continue;
        }
        __int128 number = f.what == FIELD_INCRBY ? (__int128)old + f.number : (__int128)f.number;
        if (f.what == FIELD_SET && !f.is_signed) number = (uint64_t)f.number; /* -1 is the largest */
        if (!fit(&f, number, &bits)) {
            if (say) reply_null(c);
            continue;
        }
        write_bits(window, where, f.bits, bits);
        if (say) reply_int(c, f.what == FIELD_SET ? old : as_number(&f, read_bits(window, where, f.bits)));
    }
}

/* --- the commands ----------------------------------------------------------------------------------------------------------- */

/* small[]: the window after it all, and behind it the window before, from which the answer is made. */
static void bitfield_answer(struct client *c, struct string_write *w) {
    struct fields all;
    reply_array(c, measure(c, &all));
    run_fields(c, &all, (uint8_t *)w->small + WINDOW, true);
}

static bool bitfield_plan(struct client *c, struct string_write *w) {
    static_assert(sizeof(w->small) >= 2 * WINDOW, "both windows fit");
    struct fields all;
    measure(c, &all);
    struct object *o = string_write_edit(c, w);
    uint64_t old = o ? store_object_size(server.store, o) : 0;
    size_t there = all.from < old ? min_u64(old, all.to) - all.from : 0;
    memset(w->small, 0, 2 * WINDOW);
    if (there > 0 && string_write_range(w, o, all.from, there, w->small) < 0) return true;
    memcpy(w->small + WINDOW, w->small, WINDOW);
    if (all.written_to == 0) {
        if (!o) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
        bitfield_answer(c, w);
        return false;
    }
    run_fields(c, &all, (uint8_t *)w->small, false);
    uint64_t size = max_u64(old, all.written_to), end = min_u64(size, all.to);
    if (o) string_write_keep_old(w, o);
    string_write_take_old(w, 0, all.from);
    if (all.from > old) string_write_part(w, (struct string_part){.from = PART_ZERO, .len = all.from - old});
    string_write_part(w, (struct string_part){.from = PART_SMALL, .len = end - all.from});
    string_write_take_old(w, end, UINT64_MAX);
    return true;
}

static void bitfield(struct client *c, bool read_only) {
    struct string_write w = {
        .plan = bitfield_plan, .event = "setbit", .answer = bitfield_answer, .key_arg = 1};
    struct field f = {0};
    struct fields all;
    int more;
    for (size_t at = 2; (more = next_field(c, &at, &f)) > 0;) {
    }
    if (more < 0) return;
    if (measure(c, &all) == 0) {
        if (!string_read(c->argv[1])) notify_key(NOTIFY_MISS, "keymiss", c->argv[1]);
        reply_array(c, 0);
    } else if (read_only && all.written_to > 0) {
        reply_error(c, "BITFIELD_RO only supports the GET subcommand");
    } else if (all.to - all.from > WINDOW) {
        reply_error(c, "the fields of one command must lie within %d bytes", WINDOW);
    } else if (all.written_to == 0 || (arg_key(c, 1) && string_size_allowed(c, all.written_to))) {
        string_write_run(c, &w);
    }
}

void cmd_bitfield(struct client *c) {
    bitfield(c, false);
}
void cmd_bitfield_ro(struct client *c) {
    bitfield(c, true);
}
