/* What has to be told when an option of the process changes. */
#include "cmd/config_apply.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <limits.h>
#include "base/buf.h"
#include "base/crash.h"
#include "cmd/client.h"
#include "cmd/heap.h"
#include "cmd/persistence.h"
#include "cmd/process.h"

bool apply_dir(const char **why_p) {
    char path[PATH_MAX];
    if (!persistence_chdir(server.config->dir, why_p)) return false;
    if (getcwd(path, sizeof(path)) == NULL) return true;
    free(server.config->dir);
    server.config->dir = xstrdup(path);
    return true;
}

bool apply_title(const char **why_p) {
    if (!process_title_valid(server.config->proc_title_template)) {
        *why_p = "template format is invalid or contains unknown variables";
        return false;
    }
    process_title_update(server.config);
    return true;
}

bool apply_oom_score(const char **why_p) {
    return process_oom_score(server.config, why_p);
}

bool apply_crash_log(const char **why_p) {
    crash_catch(server.config->crash_log_enabled);
    return true;
}

bool apply_bg_thread(const char **why_p) {
    if (heap_background(server.config->jemalloc_bg_thread)) return true;
    *why_p = "this program's allocator has no background thread";
    return false;
}

bool apply_source(const char **why_p) {
    if (net_set_source(server.config->bind_source_addr)) return true;
    *why_p = "it must be an IPv4 or IPv6 address of this machine, or empty";
    return false;
}

bool apply_maxmemory_clients(const char **why_p) {
    clients_weigh_all();
    return true;
}
