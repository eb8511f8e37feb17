#include "commands/families.h"

#include "front/families.h"

#define COMMAND(id, ...)     [WIRE_##id] = cmd_##id,
#define SHARED(id, run, ...) [WIRE_##id] = cmd_##run,
#define CONTAINER(id, ...)   [WIRE_##id] = NULL,
const cmd_fn families[WIRE_COMMANDS] = {
#include "wire/commands.h"
};
#undef COMMAND
#undef SHARED
#undef CONTAINER
