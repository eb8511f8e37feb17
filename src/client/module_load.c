/* modules/rdma.so, which libtarn loads by itself when there is somebody to talk to by RDMA. A
 * program that has loaded it before (tarn-node) has done all of this. */
#include <limits.h>
#include <stdio.h>

#include "base/log.h"
#include "client/internal.h"
#include "module/loader.h"
#include "transport/transport.h"

struct search {
    struct buf tried; /* what was wrong with each */
    bool found;
};

static bool try_directory(void *arg, const char *directory, size_t len) {
    struct search *s = arg;
    char path[PATH_MAX], error[MODULE_ERROR_SIZE];
    if (snprintf(path, sizeof(path), "%.*s/rdma.so", (int)len, directory) >= (int)sizeof(path))
        return false;
    tarn_status status = module_load(path, 0, NULL, error, sizeof(error));
    s->found = transport_find("rdma") != NULL; /* perhaps of another thread, just now */
    if (s->found) return true;
    if (status == TARN_OK) { /* something else of that name */
        (void)module_unload("rdma", error, sizeof(error));
        snprintf(error, sizeof(error), "%.*s: it brings no rdma transport", (int)sizeof(error) / 2,
                 path);
    }
    buf_printf(&s->tried, "%s%s", s->tried.len > 0 ? "; " : "", error);
    return false;
}

static bool load(const char *module_path, struct search *s) {
    static const struct tarn_services services = {.program = TARN_PROGRAM_CLIENT};
    s->found = transport_find("rdma") != NULL;
    if (s->found) return true;
    (void)module_init(&services, NULL); /* unless the program did */
    if (module_path != NULL && module_path[0] != '\0')
        (void)module_directories_of(module_path, try_directory, s);
    else
        (void)module_directories(try_directory, s);
    buf_append_char(&s->tried, '\0');
    return s->found;
}

bool client_module_rdma(struct tarn_client *client) {
    const char *wanted = client->options.transport;
    if (strcmp(wanted, "shm") == 0 || strcmp(wanted, "tcp") == 0) return false;
    if (transport_find("rdma") != NULL) return true;
    if (__atomic_load_n(&client->rdma_failed, __ATOMIC_RELAXED)) return false;
    struct search s = {0};
    if (!load(client->options.module_path, &s) &&
        !__atomic_exchange_n(&client->rdma_failed, true, __ATOMIC_RELAXED))
        log_verbose("A host offers RDMA, and its module cannot be had: %s", s.tried.data);
    buf_free(&s.tried);
    return s.found;
}

tarn_status client_module_require(const char *module_path) {
    struct search s = {0};
    tarn_status status = TARN_OK;
    if (!load(module_path, &s))
        status = fail(TARN_ENOTSUP, "transport=rdma: its module cannot be had (module_path): %s",
                      s.tried.data);
    buf_free(&s.tried);
    return status;
}
