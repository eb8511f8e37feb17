/* Compiled when the struct ended with load: it works, and cannot be unloaded. */
#include "plain.h"

struct older {
    uint32_t size, version, transport_abi;
    const char *name, *module_version, *summary;
    tarn_status (*load)(const struct tarn_services *services, size_t argc, const char *const *argv,
                        char *error, size_t error_cap);
};
SHOWN extern const struct older tarn_module_v1;
const struct older tarn_module_v1 = {.size = sizeof(struct older),
                                     .version = TARN_MODULE_VERSION,
                                     .name = "older",
                                     .module_version = "old",
                                     .summary = "for tests",
                                     .load = plain_load};
