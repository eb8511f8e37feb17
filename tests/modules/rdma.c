/* Called rdma, and brings no transport: for those who look for it. */
#include "plain.h"

SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {PLAIN_MODULE("rdma", plain_load)};
