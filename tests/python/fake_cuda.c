/* What stands in for libcuda.so.1 where there is no GPU. It holds the caller to the driver's rules:
 * a context is current, ranges are whole pages and registered once, read-only pages only with the
 * flag for them, copies stay inside one registered range or outside of all, and nothing is
 * unregistered or unmapped under a copy. Copies run as late as they may: when their stream is
 * waited for. "Device memory" is memory of this process. fake_* are for the test. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#pragma GCC diagnostic ignored                                                                     \
    "-Wmissing-prototypes" /* nobody includes it: it is looked up by name */
#define API __attribute__((visibility("default")))
#define MAX 256

enum {
    OK,
    INVALID = 1,
    NO_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    BAD_DEVICE = 101,
    BAD_CONTEXT = 201,
    REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801
};

static struct {
    int devices, read_only, host_tables, init_fails, register_fails;
} world = {1, 1, 0, 0, 0};
static struct range {
    uintptr_t at;
    size_t size;
    unsigned flags;
} ranges[MAX];
static struct copy {
    void *to;
    const void *from;
    size_t size;
    void *stream;
} copies[MAX];
static int n_ranges, n_copies, retained, initialised, allocated;
static long registers, unregisters, pinned_copies, plain_copies;
static char violations[4096];
static __thread int depth;
static int context; /* its address is the handle */

static int broken(const char *what) {
    size_t len = strlen(violations);
    snprintf(violations + len, sizeof(violations) - len, "%s; ", what);
    return INVALID;
}

static int current(void) {
    if (depth > 0) return 1;
    broken("no context is current");
    return 0;
}

API int cuInit(unsigned flags) {
    if (world.init_fails) return NO_DEVICE;
    initialised = flags == 0;
    return OK;
}
API int cuDeviceGetCount(int *n) {
    *n = world.devices;
    return initialised ? OK : NOT_INITIALIZED;
}
API int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal + 40; /* an ordinal is no handle */
    return ordinal >= 0 && ordinal < world.devices ? OK : BAD_DEVICE;
}
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (device < 40) return BAD_DEVICE;
    *value = attribute == 113 ? world.read_only : attribute == 100 ? world.host_tables : 0;
    return OK;
}
API int cuDevicePrimaryCtxRetain(void **ctx, int device) {
    if (device < 40) return BAD_DEVICE;
    *ctx = &context;
    retained++;
    return OK;
}
API int cuDevicePrimaryCtxRelease_v2(int device) {
    if (device < 40 || retained == 0) return broken("released more often than retained");
    if (--retained == 0 && n_ranges > 0) broken("released with memory registered");
    return OK;
}
API int cuCtxPushCurrent_v2(void *ctx) {
    if (ctx != &context || retained == 0) return BAD_CONTEXT;
    depth++;
    return OK;
}
API int cuCtxPopCurrent_v2(void **ctx) {
    if (depth == 0) return broken("popped more often than pushed");
    *ctx = &context;
    depth--;
    return OK;
}

/* Is every page of it mapped; and writable? */
static int mapped(uintptr_t at, size_t size, int *writable_p) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    uintptr_t upto = at;
    *writable_p = 1;
    while (fgets(line, sizeof(line), f) != NULL) {
        unsigned long from, to;
        char perms[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, perms) != 3 || from > upto || to <= upto)
            continue;
        if (strchr(perms, 'w') == NULL) *writable_p = 0;
        upto = to;
        if (upto >= at + size) break;
    }
    fclose(f);
    return upto >= at + size;
}

API int cuMemHostRegister_v2(void *p, size_t size, unsigned flags) {
    if (!current()) return BAD_CONTEXT;
    uintptr_t at = (uintptr_t)p;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int writable;
    if (at % page != 0 || size % page != 0 || size == 0) return broken("not whole pages");
    if ((flags & ~9u) != 0) return broken("flags");
    for (int i = 0; i < n_ranges; i++) {
        if (at < ranges[i].at + ranges[i].size && ranges[i].at < at + size) return REGISTERED;
    }
    if (!mapped(at, size, &writable)) return broken("registered what is not mapped");
    if ((flags & 8) != 0 && !world.read_only) return NOT_SUPPORTED;
    if (!writable && (flags & 8) == 0 && !world.host_tables) return INVALID;
    if (n_ranges == MAX || world.register_fails) return NO_MEMORY;
    ranges[n_ranges++] = (struct range){at, size, flags};
    registers++;
    return OK;
}

static int used(const struct range *r) {
    for (int i = 0; i < n_copies; i++) {
        uintptr_t a = (uintptr_t)copies[i].from, b = (uintptr_t)copies[i].to;
        if ((a >= r->at && a < r->at + r->size) || (b >= r->at && b < r->at + r->size)) return 1;
    }
    return 0;
}

API int cuMemHostUnregister(void *p) {
    if (!current()) return BAD_CONTEXT;
    for (int i = 0; i < n_ranges; i++) {
        if (ranges[i].at != (uintptr_t)p) continue;
        int writable;
        if (used(&ranges[i])) broken("unregistered under a copy");
        if (!mapped(ranges[i].at, ranges[i].size, &writable))
            broken("unmapped before it was unregistered");
        ranges[i] = ranges[--n_ranges];
        unregisters++;
        return OK;
    }
    return NOT_REGISTERED;
}

/* 1: inside one range, 0: outside of all, -1: neither. */
static int where(const void *p, size_t size) {
    uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < n_ranges; i++) {
        const struct range *r = &ranges[i];
        if (at >= r->at && at + size <= r->at + r->size) return 1;
        if (at < r->at + r->size && r->at < at + size) return -1;
    }
    return 0;
}

static int copy(void *to, const void *from, size_t size, void *stream, const void *host) {
    if (!current()) return BAD_CONTEXT;
    int in = where(host, size);
    if (in < 0) return broken("a copy that leaves what was registered in one go");
    if (in == 0) { /* the driver takes it away at once, into a buffer of its own */
        memcpy(to, from, size);
        plain_copies++;
        return OK;
    }
    if (n_copies == MAX) return NO_MEMORY;
    copies[n_copies++] = (struct copy){to, from, size, stream};
    pinned_copies++;
    return OK;
}
/* Memory of the device: addresses that no processor can touch, and where the bytes really are. */
static struct device_memory {
    uint64_t at;
    size_t size;
    char *real;
} memories[MAX];

static struct device_memory *memory_of(uint64_t at) {
    for (int i = 0; i < MAX; i++) {
        struct device_memory *m = &memories[i];
        if (m->real != NULL && at >= m->at && at < m->at + m->size) return m;
    }
    return NULL;
}
static void *real_of(uint64_t at) {
    struct device_memory *m = memory_of(at);
    return m != NULL ? m->real + (at - m->at) : (void *)(uintptr_t)at;
}
API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    return copy(real_of(to), from, size, stream, from);
}
API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    return copy(to, real_of(from), size, stream, to);
}
API int cuMemAlloc_v2(uint64_t *at, size_t size) {
    if (!current()) return BAD_CONTEXT;
    for (int i = 0; i < MAX && size > 0; i++) {
        if (memories[i].real != NULL) continue;
        void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        char *real = malloc(size);
        if (p == MAP_FAILED || real == NULL) return NO_MEMORY;
        memories[i] = (struct device_memory){(uintptr_t)p, size, real};
        *at = memories[i].at;
        allocated++;
        return OK;
    }
    return NO_MEMORY;
}
API int cuMemFree_v2(uint64_t at) {
    struct device_memory *m = memory_of(at);
    if (!current()) return BAD_CONTEXT;
    if (m == NULL || m->at != at) return broken("freed what was not allocated");
    munmap((void *)(uintptr_t)at, m->size);
    free(m->real);
    m->real = NULL;
    allocated--;
    return OK;
}
API int cuPointerGetAttribute(void *value, int attribute, uint64_t at) {
    if (memory_of(at) == NULL) return INVALID;
    if (attribute == 2) *(unsigned *)value = 2; /* its kind: a device's */
    if (attribute == 9) *(int *)value = 0;      /* which one */
    return attribute == 2 || attribute == 9 ? OK : INVALID;
}
API int cuDeviceGetName(char *name, int size, int device) {
    if (device < 40) return BAD_DEVICE;
    snprintf(name, (size_t)size, "none");
    return OK;
}

static void run(void *stream, int all) {
    int left = 0;
    for (int i = 0; i < n_copies; i++) {
        if (all || copies[i].stream == stream)
            memcpy(copies[i].to, copies[i].from, copies[i].size);
        else
            copies[left++] = copies[i];
    }
    n_copies = left;
}
API int cuStreamSynchronize(void *stream) {
    if (!current()) return BAD_CONTEXT;
    run(stream, 0);
    return OK;
}
API int cuCtxSynchronize(void) {
    if (!current()) return BAD_CONTEXT;
    run(NULL, 1);
    return OK;
}

API int cuGetErrorName(int code, const char **name) {
    *name = code == REGISTERED  ? "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
            : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
                                : NULL;
    return *name != NULL ? OK : INVALID;
}
API int cuGetErrorString(int code, const char **words) {
    static __thread char buffer[32];
    snprintf(buffer, sizeof(buffer), "error %d", code);
    *words = buffer;
    return OK;
}

/* --- for the test --- */

API void fake_set(const char *name, int value) {
    if (strcmp(name, "devices") == 0) world.devices = value;
    if (strcmp(name, "read_only") == 0) world.read_only = value;
    if (strcmp(name, "host_tables") == 0) world.host_tables = value;
    if (strcmp(name, "init_fails") == 0) world.init_fails = value;
    if (strcmp(name, "register_fails") == 0) world.register_fails = value;
}
API long fake_get(const char *name) {
    if (strcmp(name, "registers") == 0) return registers;
    if (strcmp(name, "unregisters") == 0) return unregisters;
    if (strcmp(name, "ranges") == 0) return n_ranges;
    if (strcmp(name, "pinned_copies") == 0) return pinned_copies;
    if (strcmp(name, "plain_copies") == 0) return plain_copies;
    if (strcmp(name, "pending") == 0) return n_copies;
    if (strcmp(name, "retained") == 0) return retained;
    if (strcmp(name, "allocated") == 0) return allocated;
    return -1;
}
API const char *fake_violations(void) {
    return violations;
}
