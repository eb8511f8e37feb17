/* Its struct ends before load. */
#include "plain.h"

struct small {
    uint32_t size, version, transport_abi;
    const char *name;
};
SHOWN extern const struct small tarn_module_v1;
const struct small tarn_module_v1 = {sizeof(struct small), TARN_MODULE_VERSION, 0, "small"};
