/* Has the name of another one. */
#include "plain.h"

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {PLAIN_MODULE("toy", loud_load)};
