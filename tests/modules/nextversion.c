/* A module of a later interface: under another symbol. */
#include "plain.h"

SHOWN extern const struct tarn_module tarn_module_v2;
const struct tarn_module tarn_module_v2 = {PLAIN_MODULE("nextversion", loud_load)};
