/* Words of a line with quotes: inside src/resp only. */
#ifndef TARN_RESP_LINE_H
#define TARN_RESP_LINE_H

#include <stdbool.h>

#include "base/buf.h"

static inline bool line_is_blank(char c) {
    /* isspace() of the C locale, whatever the locale */
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Appends the next word, decoded, to store, which must have room for the rest of the line: a word
 * is never longer than its text. 1: a word; 0: only blanks were left; -1: unbalanced quotes. */
int line_next_word(const char **cursor_p, const char *end, struct buf *store);

#endif
