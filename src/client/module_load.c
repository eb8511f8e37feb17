/* modules/rdma.so, which libtarn loads by itself when there is somebody to talk to by RDMA. A program that has loaded it before
 * (tarn-node) has done all of this. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "client/internal.h"
#include "module/loader.h"
#include "transport/transport.h"

#ifndef TARN_LIBDIR
#define TARN_LIBDIR "/usr/local/lib"
#endif

/* Beside the file that this code is in: the build's, a source tree's, and what `make install` makes of them. */
static const char *const beside[] = {"modules", "../modules", "tarn", "../lib/tarn"};

/* Directory of the library, or of the program that it is linked into. */
static bool own_directory(char out[PATH_MAX]) {
    Dl_info info;
    struct link_map *map = NULL;
    const char *path = "/proc/self/exe";
    if (dladdr1((void *)(uintptr_t)&client_module_rdma, &info, (void **)(void *)&map, RTLD_DL_LINKMAP) != 0 &&
        map != NULL && map->l_name[0] != '\0')
        path = map->l_name;
    if (realpath(path, out) == NULL) return false;
    char *slash = strrchr(out, '/');
    if (slash != NULL) *slash = '\0';
    return slash != NULL;
}

struct search {
    struct buf tried; /* what was wrong with each */
    bool found;
};

static void try_directory(struct search *s, const char *directory, size_t len) {
    char path[PATH_MAX], error[MODULE_ERROR_SIZE];
    if (s->found || len == 0) return;
    if (snprintf(path, sizeof(path), "%.*s/rdma.so", (int)len, directory) >= (int)sizeof(path)) return;
    tarn_status status = module_load(path, 0, NULL, error, sizeof(error));
    s->found = transport_find("rdma") != NULL; /* perhaps of another thread, just now */
    if (s->found) return;
    if (status == TARN_OK) { /* something else of that name */
        (void)module_unload("rdma", error, sizeof(error));
        snprintf(error, sizeof(error), "%.*s: it brings no rdma transport", (int)sizeof(error) / 2, path);
    }
    buf_printf(&s->tried, "%s%s", s->tried.len > 0 ? "; " : "", error);
}

/* "dir:dir" */
static void try_directories(struct search *s, const char *list) {
    while (list != NULL && *list != '\0') {
        size_t len = strcspn(list, ":");
        try_directory(s, list, len);
        list += len + (list[len] == ':');
    }
}

static void try_known(struct search *s) {
    char own[PATH_MAX], directory[PATH_MAX + 32];
    try_directories(s, secure_getenv("TARN_MODULE_PATH"));
    bool known = own_directory(own);
    for (size_t i = 0; known && i < ARRAY_LEN(beside); i++) {
        snprintf(directory, sizeof(directory), "%s/%s", own, beside[i]);
        try_directory(s, directory, strlen(directory));
    }
    try_directory(s, TARN_LIBDIR "/tarn", strlen(TARN_LIBDIR "/tarn"));
}

static bool load(const char *module_path, struct search *s) {
    static const struct tarn_services services = {.program = TARN_PROGRAM_CLIENT};
    s->found = transport_find("rdma") != NULL;
    if (s->found) return true;
    (void)module_init(&services, NULL); /* unless the program did */
    if (module_path != NULL && module_path[0] != '\0')
        try_directories(s, module_path);
    else
        try_known(s);
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
        status =
            fail(TARN_ENOTSUP, "transport=rdma: its module cannot be had (module_path): %s", s.tried.data);
    buf_free(&s.tried);
    return status;
}
