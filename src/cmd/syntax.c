#include "cmd/syntax.h"

#include <string.h>
#include "base/assert.h"

struct parser {
    struct syntax *s;
    const char *at;
    bool bad;
    unsigned depth;
};

static struct syntax_node *parse_sequence(struct parser *p);
static struct syntax_node *parse_choice(struct parser *p);

static struct syntax_node *node(struct parser *p, enum syntax_type type) {
    static struct syntax_node spare;
    if (p->s->used == SYNTAX_NODES_MAX) {
        p->bad = true;
        memset(&spare, 0, sizeof(spare));
        return &spare;
    }
    struct syntax_node *n = &p->s->node[p->s->used++];
    memset(n, 0, sizeof(*n));
    n->type = type;
    return n;
}

static void blanks(struct parser *p) {
    while (*p->at == ' ') p->at++;
}

static bool is_upper_word(struct span w) {
    bool letter = false;
    for (size_t i = 0; i < w.len; i++) {
        if (w.data[i] >= 'a' && w.data[i] <= 'z') return false;
        letter |= w.data[i] >= 'A' && w.data[i] <= 'Z';
    }
    return letter;
}

static struct span word(struct parser *p) {
    size_t n = strcspn(p->at, " []<>|");
    struct span w = span_of(p->at, n);
    p->at += n;
    return w;
}

static bool at_dots(struct parser *p) {
    blanks(p);
    return strncmp(p->at, "...", 3) == 0;
}

/* A sequence of one is that one; of more, a block. */
static struct syntax_node *fold(struct parser *p, struct syntax_node *first,
                                enum syntax_type type) {
    if (first != NULL && first->next == NULL && type == SYNTAX_BLOCK) return first;
    struct syntax_node *n = node(p, type);
    n->name = type == SYNTAX_BLOCK ? SPAN("group") : SPAN("choice");
    n->child = first;
    return n;
}

static struct syntax_node *parse_group(struct parser *p, char close) {
    p->at++;
    if (++p->depth > 16) p->bad = true;
    struct syntax_node *n = p->bad ? NULL : parse_choice(p);
    p->depth--;
    blanks(p);
    if (p->bad || *p->at != close || n == NULL) {
        p->bad = true;
        return node(p, SYNTAX_BLOCK);
    }
    p->at++;
    return n;
}

static struct syntax_node *parse_item(struct parser *p) {
    struct syntax_node *n;
    if (*p->at == '<') return parse_group(p, '>');
    if (*p->at == '[') {
        n = parse_group(p, ']');
        n->optional = true;
        return n;
    }
    struct span w = word(p);
    if (w.len == 0) p->bad = true;
    if (!is_upper_word(w)) {
        n = node(p, SYNTAX_ARGUMENT);
        n->name = w;
        return n;
    }
    blanks(p);
    const char *after = p->at;
    bool group = *p->at == '<', takes = group;
    if (!group && *p->at != '\0' && strchr("[]|>", *p->at) == NULL && !at_dots(p)) {
        struct span value = word(p);
        takes = value.len > 0 && !is_upper_word(value);
        p->at = after;
    }
    n = takes ? parse_item(p) : node(p, SYNTAX_TOKEN);
    n->token = w;
    if (!takes) n->name = w;
    return n;
}

static bool same(const struct syntax_node *a, const struct syntax_node *b) {
    return a->type == b->type && span_eq(a->name, b->name) && span_eq(a->token, b->token);
}

/* "key value [key value ...]": the group repeats the last items, so they become one that may be
 * repeated. */
static bool merge_repeat(struct parser *p, struct syntax_node **first, struct syntax_node *repeat) {
    struct syntax_node *inner = repeat->type == SYNTAX_BLOCK ? repeat->child : repeat;
    size_t n = 0, have = 0;
    for (struct syntax_node *i = inner; i != NULL;
         i = repeat->type == SYNTAX_BLOCK ? i->next : NULL)
        n++;
    for (struct syntax_node *i = *first; i != NULL; i = i->next) have++;
    if (have < n) return false;
    struct syntax_node **from = first;
    for (size_t i = 0; i < have - n; i++) from = &(*from)->next;
    struct syntax_node *a = *from, *b = inner;
    for (size_t i = 0; i < n; i++, a = a->next, b = b->next)
        if (!same(a, b)) return false;
    if (n == 1) {
        (*from)->multiple = true;
        return true;
    }
    struct syntax_node *block = fold(p, *from, SYNTAX_BLOCK);
    block->multiple = true;
    *from = block;
    return true;
}

static struct syntax_node *parse_sequence(struct parser *p) {
    struct syntax_node *first = NULL, **end = &first;
    for (blanks(p); *p->at != '\0' && strchr("|]>", *p->at) == NULL && !p->bad; blanks(p)) {
        if (at_dots(p)) { /* repeats what is before it, in this sequence */
            p->at += 3;
            if (first == NULL) p->bad = true;
            for (struct syntax_node *n = first; n != NULL; n = n->next) n->multiple = true;
            continue;
        }
        struct syntax_node *n = parse_item(p);
        bool repeats = n->optional && (n->multiple || (n->child != NULL && n->child->multiple));
        if (repeats && merge_repeat(p, &first, n)) {
            for (end = &first; *end != NULL;) end = &(*end)->next;
            continue;
        }
        *end = n;
        end = &n->next;
    }
    return first;
}

static struct syntax_node *parse_choice(struct parser *p) {
    struct syntax_node *first = fold(p, parse_sequence(p), SYNTAX_BLOCK), *last = first;
    blanks(p);
    if (*p->at != '|') return first;
    while (*p->at == '|' && !p->bad) {
        p->at++;
        last->next = fold(p, parse_sequence(p), SYNTAX_BLOCK);
        last = last->next;
        blanks(p);
    }
    return fold(p, first, SYNTAX_ONEOF);
}

bool syntax_parse(struct syntax *s, const char *text) {
    struct parser p = {s, text, false, 0};
    s->used = 0;
    s->first = parse_sequence(&p);
    if (*p.at == '|' && !p.bad) { /* alternatives at the top */
        p.at = text;
        s->used = 0;
        s->first = parse_choice(&p);
    }
    return !p.bad && *p.at == '\0';
}

static bool ends_with(struct span s, const char *tail) {
    size_t n = strlen(tail);
    return s.len >= n && memcmp(s.data + s.len - n, tail, n) == 0;
}

const char *syntax_type_name(const struct syntax_node *n) {
    static const char *const integers[] = {
        "seconds", "milliseconds", "count",   "size",     "bytes",     "replicas", "start",
        "end",     "offset",       "cursor",  "numkeys",  "token",     "version",  "crc",
        "index",   "id",           "timeout", "protover", "decrement", NULL};
    switch (n->type) {
    case SYNTAX_TOKEN: return "pure-token";
    case SYNTAX_ONEOF: return "oneof";
    case SYNTAX_BLOCK: return "block";
    case SYNTAX_ARGUMENT: break;
    }
    if (span_eq(n->name, SPAN("key"))) return "key";
    if (span_eq(n->name, SPAN("pattern"))) return "pattern";
    if (span_eq(n->name, SPAN("ratio"))) return "double";
    if (n->name.len > 9 && memcmp(n->name.data, "unix-time", 9) == 0) return "unix-time";
    for (size_t i = 0; integers[i] != NULL; i++)
        if (ends_with(n->name, integers[i])) return "integer";
    return "string";
}
