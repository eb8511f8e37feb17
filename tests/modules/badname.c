/* A name that could not be told from others in a list. */
#include "plain.h"

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {PLAIN_MODULE("Bad name", loud_load)};
