#include "config/notify_class.h"

#include "base/assert.h"

/* In the order in which CONFIG GET shows them. */
static const struct {
    char letter;
    unsigned class;
} letters[] = {
    {'g', NOTIFY_GENERIC},  {'$', NOTIFY_STRING}, {'l', NOTIFY_LIST},    {'s', NOTIFY_SET},
    {'h', NOTIFY_HASH},     {'z', NOTIFY_ZSET},   {'x', NOTIFY_EXPIRED}, {'e', NOTIFY_EVICTED},
    {'t', NOTIFY_STREAM},   {'d', NOTIFY_MODULE}, {'n', NOTIFY_NEW},     {'K', NOTIFY_KEYSPACE},
    {'E', NOTIFY_KEYEVENT}, {'m', NOTIFY_MISS},   {'P', NOTIFY_POOL},    {'N', NOTIFY_NODES},
};

bool notify_parse(struct span s, unsigned *classes_p) {
    unsigned classes = 0;
    for (size_t i = 0; i < s.len; i++) {
        unsigned class = s.data[i] == 'A' ? NOTIFY_ALL : 0;
        for (size_t k = 0; k < ARRAY_LEN(letters) && class == 0; k++)
            if (letters[k].letter == s.data[i]) class = letters[k].class;
        if (class == 0) return false;
        classes |= class;
    }
    *classes_p = classes;
    return true;
}

void notify_format(unsigned classes, struct buf *out) {
    bool all = (classes & NOTIFY_ALL) == NOTIFY_ALL;
    if (all) buf_append_char(out, 'A');
    for (size_t k = 0; k < ARRAY_LEN(letters); k++)
        if (classes & letters[k].class && !(all && letters[k].class & NOTIFY_ALL))
            buf_append_char(out, letters[k].letter);
}
