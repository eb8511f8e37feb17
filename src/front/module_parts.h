/* What modules.c is put together from: each part fills in its services (module.h). */
#ifndef TARN_FRONT_MODULE_PARTS_H
#define TARN_FRONT_MODULE_PARTS_H

#include "module.h"

/* --- module_commands.c --- */

void module_commands_services(struct tarn_services *s);
/* As module_hooks (module/loader.h) asks for. */
tarn_status module_command_add(const char *module, const struct tarn_command *its);
void module_command_remove(const struct tarn_command *its);
/* All modules are gone that will go. */
void module_commands_deinit(void);

#endif
