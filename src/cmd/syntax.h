/* A command's syntax line as a tree, for COMMAND DOCS: redis-cli builds its hints from that.
 *
 *   key size [REPLICAS replicas] [PREFER segment [PREFER segment ...]] [PIN <SOFT ms | HARD>]
 *
 * Upper-case words are tokens, lower-case words arguments; [..] may be left out, <..> groups, |
 * separates alternatives, "x ..." and "x [x ...]" may be repeated. */
#ifndef TARN_CMD_SYNTAX_H
#define TARN_CMD_SYNTAX_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

#define SYNTAX_NODES_MAX 96u

enum syntax_type { SYNTAX_ARGUMENT, SYNTAX_TOKEN, SYNTAX_ONEOF, SYNTAX_BLOCK };

struct syntax_node {
    enum syntax_type type;
    struct span name, token; /* token: in front of it; of SYNTAX_TOKEN, itself. len 0: none */
    bool optional, multiple;
    struct syntax_node *child, *next;
};

struct syntax {
    struct syntax_node node[SYNTAX_NODES_MAX];
    size_t used;
    struct syntax_node *first; /* NULL: no arguments */
};

/* text is borrowed by the tree. false: too large, or brackets that do not match. */
bool syntax_parse(struct syntax *s, const char *text);
/* What COMMAND DOCS calls the type of an argument: "key", "integer", "string", ... */
const char *syntax_type_name(const struct syntax_node *n);

#endif
