/* Modules in the server: what they are given, and their commands. */
#ifndef TARN_FRONT_MODULES_H
#define TARN_FRONT_MODULES_H

#include "front/cmd.h"
#include "config/config.h"

/* After the table, before the first module. */
void modules_init(void);
/* Loads what the configuration names. false: logged. */
bool modules_load(void);
/* After the host and the clients are gone. */
void modules_deinit(void);
/* After the books. */
void modules_free(void);

/* The module that brought a command; NULL: it is built in. */
const char *modules_name_of(const struct cmd *cmd);
bool modules_owns(struct span module, const struct cmd *cmd);

#endif
