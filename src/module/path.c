/* Where modules are: the ways to write one down, and the directories of a build, a source tree and
 * an installation. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "module/loader.h"

#ifndef TARN_LIBDIR
#define TARN_LIBDIR "/usr/local/lib"
#endif

/* Beside the file that this code is in: the build's, a source tree's, and what `make install` makes
 * of them. */
static const char *const beside[] = {"modules", "../modules", "tarn", "../lib/tarn"};

/* Directory of the program, or of the library that this is linked into. */
static bool own_directory(char out[PATH_MAX]) {
    Dl_info info;
    struct link_map *map = NULL;
    const char *path = "/proc/self/exe";
    if (dladdr1((void *)(uintptr_t)&module_directories, &info, (void **)(void *)&map,
                RTLD_DL_LINKMAP) != 0 &&
        map != NULL && map->l_name[0] != '\0')
        path = map->l_name;
    if (realpath(path, out) == NULL) return false;
    char *slash = strrchr(out, '/');
    if (slash != NULL) *slash = '\0';
    return slash != NULL;
}

bool module_directories_of(const char *list, module_directory_fn fn, void *arg) {
    bool found = false;
    while (!found && list != NULL && *list != '\0') {
        size_t len = strcspn(list, ":");
        found = len > 0 && fn(arg, list, len);
        list += len + (list[len] == ':');
    }
    return found;
}

bool module_directories(module_directory_fn fn, void *arg) {
    char own[PATH_MAX], directory[PATH_MAX + 32];
    if (module_directories_of(secure_getenv("TARN_MODULE_PATH"), fn, arg)) return true;
    bool known = own_directory(own);
    for (size_t i = 0; known && i < ARRAY_LEN(beside); i++) {
        snprintf(directory, sizeof(directory), "%s/%s", own, beside[i]);
        if (fn(arg, directory, strlen(directory))) return true;
    }
    return fn(arg, TARN_LIBDIR "/tarn", strlen(TARN_LIBDIR "/tarn"));
}

struct path_search {
    const char *name;
    char path[PATH_MAX];
};

static bool is_in(void *arg, const char *directory, size_t len) {
    struct path_search *s = arg;
    int n = snprintf(s->path, sizeof(s->path), "%.*s/%s", (int)len, directory, s->name);
    return n < (int)sizeof(s->path) && access(s->path, R_OK) == 0;
}

char *module_path(const char *given) {
    struct path_search s = {.name = given};
    char here[PATH_MAX];
    if (given[0] == '/' || given[0] == '\0') return xstrdup(given);
    bool bare = strchr(given, '/') == NULL;
    bool found = (bare && module_directories(is_in, &s)) ||
                 (getcwd(here, sizeof(here)) != NULL && is_in(&s, here, strlen(here)));
    return xstrdup(found ? s.path : given);
}
