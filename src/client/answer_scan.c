/* Answers to batches, parsed by hand: arrays of short strings, numbers, nils and OKs, of which
 * thousands come in a call. hiredis' reader takes a stack of tasks and a callback to each, several
 * hundred instructions, which was most of what a small value's place cost. Whatever else comes, or
 * does not look as it should, is left to the reader, which begins it anew: only one of the two ever
 * says what an answer is.
 *
 *   nothing begun ──bytes──> scanned ──whole──> the answer, in the arena
 *        ^                     │ └──in part──> goes on with the element that was not whole
 *        │                     └──of another form──> the reader's, to its end
 *        └────────────────────────────────────────────────┘ */
#include <hiredis/read.h>

#include "base/assert.h"
#include "client/answer.h"

#define ELEMENTS_MAX 4096u
#define STRING_MAX   1024u
#define DIGITS_MAX   18u
#define SAME_HEAD    5u           /* "$48\r\n" */
#define PASSED_MIN   (16u << 10)  /* parsed bytes in the reader's buffer that are worth dropping */
#define PASSED_MAX   (256u << 10) /* ... that stay there before part of an answer */

enum found { FOUND_OTHER, FOUND_PART, FOUND_WHOLE };

/* "48\r\n" */
static inline enum found number_scan(const char **at, const char *end, uint64_t *value_p) {
    const char *p = *at, *digits = p;
    uint64_t value = 0;
    while (p < end && *p >= '0' && *p <= '9' && p - digits <= (ptrdiff_t)DIGITS_MAX)
        value = value * 10 + (uint64_t)(*p++ - '0');
    size_t n = (size_t)(p - digits);
    if (n > DIGITS_MAX || (n > 1 && *digits == '0')) return FOUND_OTHER;
    if (end - p < 2) return FOUND_PART;
    if (n == 0 || p[0] != '\r' || p[1] != '\n') return FOUND_OTHER;
    *at = p + 2;
    *value_p = value;
    return FOUND_WHOLE;
}

static inline enum found text_scan(const char **at, const char *end, const char *text, size_t n) {
    size_t there = (size_t)(end - *at) < n ? (size_t)(end - *at) : n;
    if (memcmp(*at, text, there) != 0) return FOUND_OTHER;
    if (there < n) return FOUND_PART;
    *at += n;
    return FOUND_WHOLE;
}

/* What is no array. Of a string it is noted where it begins, from base on. */
static inline enum found element_scan(const char *base, const char **at, const char *end,
                                      struct answer *a) {
    if (*at == end) return FOUND_PART;
    const char *p = *at + 1;
    uint64_t number = 0;
    enum found found = FOUND_OTHER;
    switch (**at) {
    case '$':
        if (p < end && *p == '-') {
            found = text_scan(&p, end, "-1\r\n", 4);
            *a = (struct answer){.type = ANSWER_NIL};
            break;
        }
        found = number_scan(&p, end, &number);
        if (found != FOUND_WHOLE) return found;
        if (number > STRING_MAX) return FOUND_OTHER;
        if ((uint64_t)(end - p) < number + 2) return FOUND_PART;
        if (p[number] != '\r' || p[number + 1] != '\n') return FOUND_OTHER;
        *a = (struct answer){.type = ANSWER_STRING, .integer = p - base, .len = number};
        p += number + 2;
        break;
    case ':':
        found = number_scan(&p, end, &number);
        *a = (struct answer){.type = ANSWER_INTEGER, .integer = (int64_t)number};
        break;
    case '+':
        found = text_scan(&p, end, "OK\r\n", 4);
        *a = (struct answer){.type = ANSWER_SIMPLE, .len = 2, .str = "OK"};
        break;
    default: break;
    }
    if (found == FOUND_WHOLE) *at = p;
    return found;
}

/* A string of as many bytes as the one before: mostly all of a batch are. */
static inline bool same_scan(const struct answer_scan *s, const char *base, const char **at,
                             const char *end, struct answer *a) {
    const char *p = *at + SAME_HEAD;
    size_t len = s->same;
    if (len == 0 || (size_t)(end - *at) < SAME_HEAD + len + 2 ||
        memcmp(*at, s->head, SAME_HEAD) != 0 || p[len] != '\r' || p[len + 1] != '\n')
        return false;
    *a = (struct answer){.type = ANSWER_STRING, .integer = p - base, .len = len};
    *at = p + len + 2;
    return true;
}

static inline enum found next_scan(struct answer_scan *s, const char *base, const char **at,
                                   const char *end, struct answer *a) {
    if (same_scan(s, base, at, end, a)) return FOUND_WHOLE;
    const char *head = *at;
    enum found found = element_scan(base, at, end, a);
    if (found == FOUND_WHOLE && a->type == ANSWER_STRING && a->len >= 10 && a->len < 100) {
        memcpy(s->head, head, SAME_HEAD);
        s->same = a->len;
    }
    return found;
}

/* The array's head, or an answer that is none. */
static enum found scan_begin(struct answer_scan *s, struct arena *arena, const char *base,
                             const char **at, const char *end) {
    struct answer a;
    uint64_t n;
    enum found found;
    if (**at == '*') {
        const char *p = *at + 1;
        found = number_scan(&p, end, &n);
        if (found != FOUND_WHOLE || n > ELEMENTS_MAX)
            return found == FOUND_PART ? FOUND_PART : FOUND_OTHER;
        *at = p;
        a = (struct answer){.type = ANSWER_ARRAY, .len = n};
        if (n > 0) a.element = arena_alloc(arena, n * sizeof(*a.element));
    } else {
        found = element_scan(base, at, end, &a);
        if (found != FOUND_WHOLE) return found;
    }
    s->root = arena_alloc(arena, sizeof(a));
    *s->root = a;
    return FOUND_WHOLE;
}

static void string_place(struct answer *a, char *copy) {
    if (a->type != ANSWER_STRING) return;
    char *str = copy + a->integer;
    str[a->len] = '\0'; /* where its line ended */
    a->str = str;
    a->integer = 0;
}

static enum found answer_scan(struct answer_scan *s, struct arena *arena, const char *bytes,
                              size_t n) {
    const char *at = bytes + s->used, *end = bytes + n;
    enum found found = s->root != NULL ? FOUND_WHOLE : scan_begin(s, arena, bytes, &at, end);
    if (found != FOUND_WHOLE) return found;
    struct answer *root = s->root;
    bool array = root->type == ANSWER_ARRAY;
    size_t i = s->elements, elements = array ? root->len : 0;
    while (i < elements && found == FOUND_WHOLE) {
        found = next_scan(s, bytes, &at, end, &root->element[i]);
        i += found == FOUND_WHOLE;
    }
    s->elements = i;
    s->used = (size_t)(at - bytes);
    if (found != FOUND_WHOLE) return found;
    char *copy = arena_alloc(arena, s->used);
    memcpy(copy, bytes, s->used);
    for (i = 0; i < elements; i++) string_place(&root->element[i], copy);
    if (!array) string_place(root, copy);
    return FOUND_WHOLE;
}

/* The reader drops what was parsed when it is asked for an answer, and begins one with the present
 * arena even if there are no bytes. So it is not asked then, but begun anew. */
static void reader_renew(struct redisReader **reader_p) {
    struct redisReader *old = *reader_p;
    if (old->pos < old->len || old->pos < PASSED_MIN) return;
    *reader_p = answer_reader_create();
    answer_reader_set_arena(*reader_p, old->privdata);
    redisReaderFree(old);
}

int answer_reader_next(struct redisReader **reader_p, struct answer_scan *s, void **answer_p) {
    struct redisReader *r = *reader_p;
    size_t left = r->len - r->pos;
    if (left == 0) return REDIS_OK;
    if (!s->left && answer_has_room(r->privdata, left)) {
        enum found found = answer_scan(s, r->privdata, r->buf + r->pos, left);
        if (found == FOUND_PART && r->pos <= PASSED_MAX) return REDIS_OK;
        if (found == FOUND_WHOLE) {
            *answer_p = s->root;
            r->pos += s->used;
            *s = (struct answer_scan){.root = NULL};
            reader_renew(reader_p);
            return REDIS_OK;
        }
    }
    *s = (struct answer_scan){.left = true};
    int status = redisReaderGetReply(r, answer_p);
    s->left = *answer_p == NULL;
    return status;
}
