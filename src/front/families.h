/* The functions behind the command table.
 *
 * One function per command; it finds its arguments in c->argv and answers exactly once, or starts a
 * job that does. Their names are those of the declarations in src/wire. The table has checked
 * arity, authentication and the like before. */
#ifndef TARN_FRONT_FAMILIES_H
#define TARN_FRONT_FAMILIES_H

#include "front/cmd.h"

#define COMMAND(id, ...) void cmd_##id(struct client *c);
#define SHARED(...)
#define CONTAINER(...)
#include "wire/commands.h"
#undef COMMAND
#undef SHARED
#undef CONTAINER
void cmd_help(struct client *c); /* of any container */

#endif
