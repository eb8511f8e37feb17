/* The suite over rdma: with the devices there are, or with the fake verbs library
 * (tests/fake_verbs). TARN_RDMA_MODULE names the module's file, TARN_RDMA_ARGS its arguments. */
#define SUITE "rdma"
#include "suite.h"

#include <dlfcn.h>

#include "module.h"

static void say(enum tarn_log_level level, const char *text) {
    if (getenv("TARN_TEST_LOG") != NULL) fprintf(stderr, "module %d: %s\n", level, text);
}

static tarn_status no_commands(const struct tarn_command *command) {
    (void)command;
    return TARN_ENOTSUP;
}

static const struct tarn_services services = {
    .size = sizeof(services),
    .version = TARN_MODULE_VERSION,
    .program = TARN_PROGRAM_CLIENT,
    .program_version = TARN_VERSION,
    .log = say,
    .transport_register = transport_register,
    .command_register = no_commands,
};

/* NULL: loaded. */
static const char *load(void) {
    static char error[400];
    const char *path = getenv("TARN_RDMA_MODULE"), *args = getenv("TARN_RDMA_ARGS"), *argv[16];
    size_t argc = 0;
    if (path == NULL) path = getenv("TARN_RDMA_FAKE");
    if (path == NULL) return "neither TARN_RDMA_MODULE nor TARN_RDMA_FAKE says where the module is";
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) return dlerror();
    const struct tarn_module *m = dlsym(file, TARN_MODULE_SYMBOL);
    if (m == NULL) return dlerror();
    char *words = strdup(args != NULL ? args : ""), *rest = words;
    for (char *word; (word = strsep(&rest, " ")) != NULL && argc < ARRAY_LEN(argv);) {
        if (*word != '\0') argv[argc++] = word;
    }
    tarn_status status = m->load(&services, argc, argv, error, sizeof(error));
    free(words); /* the module has copies of what it keeps */
    return status == TARN_OK ? NULL : error;
}

int main(int argc, char **argv) {
    const char *why = load();
    if (why != NULL) {
        printf("not ok the rdma module cannot be loaded: %s\n0 passed, 1 failed\n", why);
        return 1;
    }
    world_child_main(argc, argv, SUITE);
    return test_main(argc, argv);
}
