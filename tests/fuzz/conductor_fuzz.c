/* Requests of any words to modules/conductor, what its master tells a replica, and time: every
 * request has exactly one reply, and the route adds up. No event stream is followed here: what
 * one brings is for conductor_feed_fuzz. A line is a request, its words between blanks; "@N" in it
 * stands for N bytes of a blob. Lines that begin otherwise:
 *
 *     !        the timer
 *     ~        this server begins or ceases to lead
 *     ?T N     the list T, from N on, to its end
 *     =N V     a change by the master: name N has value V, to the end of the line; =N: it
 *              is gone; = alone: all is another
 */
#include "../unit/conductor/fake.h"
#include "conductor/conductor.h"

static char blob[4096];

static struct span word_of(struct span s) {
    uint64_t n;
    if (s.len > 1 && s.data[0] == '@' && span_to_u64(span_of(s.data + 1, s.len - 1), &n))
        return span_of(blob, n < sizeof(blob) ? n : sizeof(blob));
    return s;
}

static size_t words_of(struct span line, struct span word[FAKE_WORDS_MAX]) {
    size_t n = 0;
    while (n < FAKE_WORDS_MAX && line.len > 0) {
        const char *blank = memchr(line.data, ' ', line.len);
        size_t len = blank != NULL ? (size_t)(blank - line.data) : line.len;
        size_t used = len + (blank != NULL);
        word[n++] = word_of(span_of(line.data, len));
        line = span_of(line.data + used, line.len - used);
    }
    return n;
}

static void change(struct span line) {
    struct span word[FAKE_WORDS_MAX];
    size_t n = words_of(line, word);
    if (fake.leads) return;
    if (n == 0 || word[0].len == 0) {
        tarn_module_v1.durable_changed(NULL, NULL);
        return;
    }
    struct fake_entry *e = fake_find(word[0]);
    const char *blank = memchr(line.data, ' ', line.len);
    struct span value =
        blank != NULL ? word_of(span_of(blank + 1, (size_t)(line.data + line.len - (blank + 1))))
                      : SPAN("");
    if (n > 1)
        fake_keep(word[0], value);
    else if (e != NULL)
        fake_forget(e);
    else
        return;
    tarn_module_v1.durable_changed(&word[0], n > 1 ? &value : NULL);
}

static size_t rows, shown;

static void show_one(struct figure_walk *walk, const struct figure *figure,
                     union figure_value value) {
    TARN_ASSERT(walk->group != NULL && figure->name[0] != '\0');
    if (figure->type == FIGURE_TEXT)
        shown += strlen(value.text);
    else if (figure_types[figure->type].form != NULL)
        TARN_ASSERT(value.real - value.real == 0); /* finite */
    else
        shown += (size_t)value.number;
}
static void count_row(struct figure_walk *walk, bool begins) {
    rows += begins;
}

static void list(struct span line) {
    struct figure_walk walk = {.show = show_one, .edge = count_row};
    struct span word[FAKE_WORDS_MAX];
    char table[64];
    uint64_t from = 0;
    size_t n = words_of(line, word);
    if (n == 0) return;
    span_to_text(word[0], table, sizeof(table));
    if (n > 1) (void)span_to_u64(word[1], &from);
    rows = 0;
    while (tarn_module_v1.rows(table, &from, &walk) == TARN_ROWS_MORE) TARN_ASSERT(rows < 1000);
}

static void one_line(struct span line) {
    struct span word[FAKE_WORDS_MAX];
    size_t n;
    switch (line.len > 0 ? line.data[0] : '\0') {
    case '!': fake_tick(); break;
    case '~':
        fake.leads = !fake.leads;
        tarn_module_v1.role_changed(fake.leads);
        break;
    case '?': list(span_of(line.data + 1, line.len - 1)); break;
    case '=': change(span_of(line.data + 1, line.len - 1)); break;
    default:
        n = words_of(line, word);
        if (n > 0) (void)fake_call_words(word, n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const words[] = {"ranks",      "8",   "requests", "6", "tenants",   "4",
                                        "decisions",  "4",   "lease-ms", "1", "silent-ms", "1",
                                        "index-size", "1mb", NULL};
    const char *at = (const char *)data, *stop = at + size;
    for (size_t i = 0; i < sizeof(blob); i++) blob[i] = (char)i;
    fake.kept_max = 4000;
    fake.pool_name = "m@";
    fake.pool_blocks = 3;
    fake_load(words);
    while (at < stop) {
        const char *nl = memchr(at, '\n', (size_t)(stop - at));
        size_t len = nl != NULL ? (size_t)(nl - at) : (size_t)(stop - at);
        one_line(span_of(at, len));
        at += len + (nl != NULL);
    }
    route_check(conductor_route);
    fake_unload();
    fake_kept_clear();
    return 0;
}
