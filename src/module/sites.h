/* HTTP paths of modules (module.h: tarn_http_site), and the module that serves them, whichever of
 * them came first. The loader's: called with its lock held, but for sites_answer. */
#ifndef TARN_MODULE_SITES_H
#define TARN_MODULE_SITES_H

#include "module.h"

#define SITES_OF_ONE   4u
#define SITE_PATHS_MAX 64u

/* As http_register and http_serve (module.h), for the module of that name, which stays borrowed. */
tarn_status sites_add(const char *module, const struct tarn_http_site *site, char *error,
                      size_t error_cap);
tarn_status sites_serve(const char *module, const struct tarn_http_server *server, char *error,
                        size_t error_cap);
/* As http_answer. In the thread of the loop. */
tarn_status sites_answer(uint64_t request, const struct tarn_http_answer *answer);

/* It has unloaded, and its code is still there. */
void sites_forget(const char *module);

#endif
