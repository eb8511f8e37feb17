/* Needs what nobody has. */
#include "plain.h"

extern int tarn_tests_nobody_has_this(void);
static tarn_status load(const struct tarn_services *services, size_t argc, const char *const *argv,
                        char *error, size_t error_cap) {
    return tarn_tests_nobody_has_this();
}
SHOWN extern const struct tarn_module tarn_module_v1;
const struct tarn_module tarn_module_v1 = {PLAIN_MODULE("undefined", load)};
