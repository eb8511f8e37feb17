#include "base/near.h"

#define ROW (NEAR_LEN_MAX + 1)

void near_begin(struct near *n, struct span typed) {
    *n = (struct near){.len = typed.data != NULL ? typed.len : 0};
    if (n->len == 0 || n->len > NEAR_LEN_MAX) return;
    for (size_t i = 0; i < n->len; i++) n->typed[i] = ascii_lower(typed.data[i]);
    n->limit = n->len < 5 ? 2 : n->len < 10 ? 3 : 4;
}

static unsigned near_least(unsigned a, unsigned b) {
    return a < b ? a : b;
}

/* The rows of the table are letters of a, and only the cells within limit of its diagonal are
 * looked at. limit: that or more. */
static unsigned near_distance(const char *a, size_t n, const char *b, size_t m, unsigned limit) {
    unsigned char rows[3][ROW + 1];
    unsigned char *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= m; j++) last[j] = (unsigned char)j;
    for (size_t i = 1; i <= n; i++) {
        size_t from = i > limit ? i - limit : 1, to = i + limit < m ? i + limit : m;
        unsigned best = limit;
        now[from - 1] = (unsigned char)(from == 1 ? i : limit);
        for (size_t j = from; j <= to; j++) {
            unsigned wrong = last[j - 1] + (a[i - 1] != ascii_lower(b[j - 1]));
            unsigned d = near_least(wrong, near_least(now[j - 1], last[j]) + 1u);
            if (i > 1 && j > 1 && a[i - 1] == ascii_lower(b[j - 2]) &&
                a[i - 2] == ascii_lower(b[j - 1]))
                d = near_least(d, before[j - 2] + 1u);
            now[j] = (unsigned char)d;
            best = near_least(best, d);
        }
        if (to < m) now[to + 1] = (unsigned char)limit;
        if (best >= limit) return limit;
        unsigned char *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return near_least(last[m], limit);
}

void near_offer(struct near *n, const char *word) {
    size_t len = strnlen(word, NEAR_LEN_MAX + 1);
    size_t apart = len > n->len ? len - n->len : n->len - len;
    if (len > NEAR_LEN_MAX || apart >= n->limit) return;
    unsigned d = near_distance(n->typed, n->len, word, len, n->limit);
    if (d >= n->limit) return;
    n->limit = d;
    n->word = word;
}
