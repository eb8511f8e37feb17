/* What modules.c is put together from: each part fills in its services (module.h). */
#ifndef TARN_FRONT_MODULE_PARTS_H
#define TARN_FRONT_MODULE_PARTS_H

#include "module.h"

/* --- module_commands.c --- */

void module_commands_services(struct tarn_services *s);
/* As module_hooks (module/loader.h) asks for. */
tarn_status module_command_add(const char *module, const struct tarn_command_declaration *its);
void module_command_remove(const struct tarn_command_declaration *its);
/* May the module's code that runs now change something? TARN_EPERM: it is a command that was not
 * declared to write. TARN_ELATER: it is no command, and writes are held back (CLIENT PAUSE,
 * FAILOVER). */
tarn_status module_command_write_status(void);
/* All modules are gone that will go. */
void module_commands_deinit(void);

/* --- module_pool.c --- */

void module_pool_services(struct tarn_services *s);

/* --- module_durable.c --- */

void module_durable_services(struct tarn_services *s);
/* As module_hooks asks for. */
tarn_status module_durable_open(const char *module, struct tarn_durable **durable_p);
/* Behind the last module, and the books. */
void module_durable_deinit(void);

#endif
