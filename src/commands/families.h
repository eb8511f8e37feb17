/* Which function runs a command. */
#ifndef TARN_COMMANDS_FAMILIES_H
#define TARN_COMMANDS_FAMILIES_H

#include "front/cmd.h"

/* By enum wire_id, for table_init. */
extern const cmd_fn families[WIRE_COMMANDS];

#endif
