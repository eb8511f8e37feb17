/* How much memory is left. A pool that does not fit is killed by the kernel in the middle of the
 * night, page by page; so we ask first. Limits come from the machine and from every cgroup on the
 * way up, both hierarchies. */
#include "pool/pool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

/* First number in dir/file, or fallback. "max" is a fallback, too. */
static uint64_t memory_number(const char *dir, const char *file, uint64_t fallback) {
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, file) >= sizeof(path)) return fallback;
    FILE *f = fopen(path, "re");
    if (f == NULL) return fallback;
    unsigned long long v;
    int got = fscanf(f, "%llu", &v);
    fclose(f);
    return got == 1 ? v : fallback;
}

/* The sum of the named lines ("name value") of a file such as memory.stat or meminfo; 0 when it is
 * not there.
 */
static uint64_t memory_sum_lines(const char *dir, const char *file, const char *const *names,
                                 size_t n) {
    char path[PATH_MAX], line[256];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, file) >= sizeof(path)) return 0;
    FILE *f = fopen(path, "re");
    if (f == NULL) return 0;
    uint64_t sum = 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        for (size_t i = 0; i < n; i++) {
            size_t len = strlen(names[i]);
            if (strncmp(line, names[i], len) == 0 && (line[len] == ' ' || line[len] == ':')) {
                sum += strtoull(line + len + 1, NULL, 10);
            }
        }
    }
    fclose(f);
    return sum;
}

struct hierarchy {
    const char *mount, *limit, *usage;
    const char *cache[2]; /* reclaimable page cache in memory.stat; shmem is not in these lists */
};
static const struct hierarchy v1 = {"/memory",
                                    "memory.limit_in_bytes",
                                    "memory.usage_in_bytes",
                                    {"total_inactive_file", "total_active_file"}};
static const struct hierarchy v2 = {
    "", "memory.max", "memory.current", {"inactive_file", "active_file"}};

/* Walks from the process' own cgroup to the root; each may have a limit. In a container without the
 * host's tree the path does not exist and only the root, which is then our own group, answers. */
static uint64_t hierarchy_left(const struct hierarchy *h, const char *cgroup, const char *path) {
    char dir[PATH_MAX];
    int len = snprintf(dir, sizeof(dir), "%s%s%s", cgroup, h->mount, path);
    if (len < 0 || (size_t)len >= sizeof(dir)) return UINT64_MAX;
    size_t root = strlen(cgroup) + strlen(h->mount);
    uint64_t least = UINT64_MAX;
    for (;;) {
        uint64_t limit = memory_number(dir, h->limit, UINT64_MAX);
        if (limit < (uint64_t)INT64_MAX / 2) { /* v1 writes a number near 2^63 for "none" */
            uint64_t used = memory_number(dir, h->usage, 0);
            uint64_t cache = memory_sum_lines(dir, "memory.stat", h->cache, 2);
            used = used > cache ? used - cache : 0;
            least = min_u64(least, limit > used ? limit - used : 0);
        }
        char *slash = strrchr(dir, '/');
        if (strlen(dir) <= root || slash == NULL) return least;
        *slash = '\0';
        if (strlen(dir) < root) return least;
    }
}

uint64_t pool_memory_available(const char *proc, const char *cgroup, const char **limiter_p) {
    static const char *const available[] = {"MemAvailable"};
    uint64_t kb = memory_sum_lines(proc, "meminfo", available, 1);
    uint64_t least = kb == 0 ? UINT64_MAX : kb * 1024;
    *limiter_p = "available memory";

    char path[PATH_MAX], line[PATH_MAX + 64];
    if ((size_t)snprintf(path, sizeof(path), "%s/self/cgroup", proc) >= sizeof(path)) return least;
    FILE *f = fopen(path, "re");
    if (f == NULL) return least;
    while (fgets(line, sizeof(line), f) != NULL) { /* "4:memory:/path" or "0::/path" */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) continue;
        *group++ = '\0';
        controllers++;
        bool is_v2 = strcmp(line, "0:") == 0 || (line[0] == '0' && *controllers == '\0');
        if (!is_v2 && strcmp(controllers, "memory") != 0) continue;
        uint64_t left = hierarchy_left(is_v2 ? &v2 : &v1, cgroup, group);
        if (left < least) {
            least = left;
            *limiter_p = is_v2 ? "the cgroup's memory.max" : "the cgroup's memory.limit_in_bytes";
        }
    }
    fclose(f);
    return least;
}
