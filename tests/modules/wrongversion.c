/* Says another version than its symbol. */
#include "plain.h"

SHOWN extern const struct { struct tarn_module module; } tarn_module_v1;
const __typeof__(tarn_module_v1) tarn_module_v1 = {.module = {.size = sizeof(struct tarn_module),
                                                              .version = 7,
                                                              .name = "wrongversion",
                                                              .module_version = "1.2.3",
                                                              .summary = "for tests",
                                                              .load = loud_load}};
