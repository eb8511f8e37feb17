/* Says that it is larger than it is. */
#include "plain.h"

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {.size = 4096,
                                           .version = TARN_MODULE_VERSION,
                                           .name = "liar",
                                           .module_version = "1.2.3",
                                           .summary = "for tests",
                                           .load = loud_load};
