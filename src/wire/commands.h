/* Every command, in the order of COMMAND. Included with these three macros defined, as often as
 * something is to be made of the list, so there is no guard:
 *
 *   COMMAND(id, name, flags, summary, group, ...)       its function is cmd_<id>
 *   SHARED(id, run, name, flags, summary, group, ...)   its function is cmd_<run>
 *   CONTAINER(id, name, summary, group)                 subcommands follow
 *
 * What the other words mean is in commands.c, the only place that expands them. */
#define HELP(id, name, ...)                                                                        \
    SHARED(id, help, name, CMD_LOADING | CMD_STALE, "Lists the subcommands.", __VA_ARGS__,         \
           REPLY("an array of lines"))

#include "wire/commands_string.h"

#include "wire/commands_generic.h"

#include "wire/commands_pool.h"

#include "wire/commands_connection.h"

#include "wire/commands_transaction.h"

#include "wire/commands_server.h"

#include "wire/commands_cluster.h"

#undef HELP
