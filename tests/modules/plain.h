/* What most of the modules beside this file are made of: one that loads, does nothing, and goes. */
#ifndef TARN_TESTS_MODULES_PLAIN_H
#define TARN_TESTS_MODULES_PLAIN_H

#include <stdio.h>
#include "module.h"

#define SHOWN __attribute__((visibility("default")))

static inline tarn_status plain_load(const struct tarn_services *services, size_t argc,
                                     const char *const *argv, char *error, size_t error_cap) {
    return TARN_OK;
}

static inline tarn_status plain_unload(char *error, size_t error_cap) {
    return TARN_OK;
}

/* load() must not be called of a module that does not fit: this one tells. */
static inline tarn_status loud_load(const struct tarn_services *services, size_t argc,
                                    const char *const *argv, char *error, size_t error_cap) {
    snprintf(error, error_cap, "load() was called");
    return TARN_EIO;
}

#define PLAIN_MODULE(its_name, its_load)                                                           \
    .size = sizeof(struct tarn_module), .version = TARN_MODULE_VERSION, .name = its_name,          \
    .module_version = "1.2.3", .summary = "for tests", .load = its_load, .unload = plain_unload

#endif
