/* Built for another transport interface. */
#include "plain.h"

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {PLAIN_MODULE("wrongabi", loud_load),
                                           .transport_abi = 99};
