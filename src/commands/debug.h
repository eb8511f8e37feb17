/* Between the files of DEBUG, and for OBJECT. */
#ifndef TARN_COMMANDS_DEBUG_H
#define TARN_COMMANDS_DEBUG_H

#include "front/cmd.h"

/* "int", "embstr", "raw": what Redis would say of this value; tarn keeps all values alike. */
const char *object_encoding(const struct object *o);

/* The subcommands that have a file of their own: digest.c, debug_parts.c; reload.h has
 * more. */
void debug_digest(struct client *c);
void debug_populate(struct client *c);
void debug_protocol(struct client *c);
void debug_error(struct client *c);

#endif
