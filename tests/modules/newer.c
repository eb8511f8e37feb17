/* Compiled when the struct had grown: what this program does not know is left alone. */
#include "plain.h"

struct newer {
    struct tarn_module module;
    void (*later)(void);
};
SHOWN extern const struct newer tarn_module_v1;
const struct newer tarn_module_v1 = {.module = {.size = sizeof(struct newer),
                                                .version = TARN_MODULE_VERSION,
                                                .name = "newer",
                                                .module_version = "2.10.3",
                                                .summary = "for tests",
                                                .load = plain_load,
                                                .unload = plain_unload}};
