#include "../test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "pool/pool.h"

static struct pool_config config(uint64_t size) {
    log_set_level(LOG_LEVEL_NOTHING);
    return (struct pool_config){.name = "s1", .id = 3, .segment_epoch = 9, .size = size, .numa_node = -1};
}

static bool all_zero(const char *p, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (p[i] != 0) return false;
    }
    return true;
}

TEST(a_memfd_is_zero_sealed_private_and_aligned) {
    struct pool_config c = config(1u << 20);
    c.populate = true;
    struct pool *p;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK_STR(pool_get_info(p)->backing, "memfd");
    CHECK_EQ((uintptr_t)pool_base(p) % 4096, 0);
    CHECK(all_zero(pool_base(p), c.size));
    int fd = pool_fd(p, true);
    CHECK_EQ(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    CHECK(ftruncate(fd, 4096) != 0);
    CHECK(ftruncate(fd, 1 << 22) != 0);
    struct stat st;
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    int reader = pool_fd(p, false);
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reader, 0) == MAP_FAILED);
    CHECK(write(reader, "x", 1) < 0);
    pool_close(&p);
    CHECK(p == NULL);
}

TEST(the_header_says_what_this_is) {
    struct pool_config c = config(8192);
    struct pool *p;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    struct segment_header *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, pool_fd(p, false), 0);
    CHECK(map != MAP_FAILED);
    CHECK(segment_header_valid(map));
    CHECK_EQ(map->segment_id, 3);
    CHECK_EQ(map->size, 8192);
    CHECK_STR(map->name, "s1");
    CHECK_EQ(segment_header_segment_epoch(map), 9);
    pool_set_epochs(p, 4, 10);
    CHECK(segment_header_unchanged(map, 4, 10));
    CHECK(!segment_header_unchanged(map, 3, 10));
    struct segment_header copy = *map;
    copy.size++;
    CHECK(!segment_header_valid(&copy));
    pool_close(&p);
    CHECK_EQ(segment_header_segment_epoch(map), 0); /* who still maps it knows that nobody is there */
    munmap(map, 4096);
}

TEST(sizes_and_nodes_that_make_no_sense) {
    struct pool *p;
    const char *why = NULL;
    struct pool_config c = config(0);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_EINVAL);
    CHECK(why != NULL);
    c = config(4097);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_EINVAL);
    c = config(4096);
    c.numa_node = 999;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_EINVAL);
    c = config(1ull << 45); /* 32 TiB */
    c.populate = true;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_ENOMEM);
    CHECK(strstr(why, "does not fit") != NULL || strstr(why, "mapping") != NULL);
}

TEST(huge_pages_or_not) {
    struct pool_config c = config(3u << 20);
    c.huge = true;
    struct pool *p;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    memset(pool_base(p), 7, c.size);
    CHECK_EQ(pool_get_info(p)->size, c.size);
    pool_close(&p);
}

TEST(a_pool_file_is_kept_and_locked) {
    char dir[] = "/tmp/tarn-pool-XXXXXX", path[64], link[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/pool", dir);
    snprintf(link, sizeof(link), "%s/link", dir);
    struct pool_config c = config(1u << 20);
    c.path = path;
    c.populate = true;
    struct pool *p, *q;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(!pool_get_info(p)->warm);
    CHECK_STR(pool_get_info(p)->backing, "file");
    struct stat st;
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK_EQ(pool_open(&c, &q, &why), TARN_EBUSY);
    pool_set_epochs(p, 21, 9);
    memset(pool_base(p), 5, c.size);
    pool_close(&p);

    c.segment_epoch = 10; /* the same segment again */
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(pool_get_info(p)->warm);
    CHECK(pool_get_info(p)->same_boot);
    CHECK_EQ(pool_get_info(p)->old_segment_epoch, 9);
    CHECK_EQ(pool_get_info(p)->old_master_epoch, 21);
    CHECK_EQ(((char *)pool_base(p))[c.size - 1], 5);
    pool_close(&p);

    c.size *= 2; /* another one: nothing of the old may be read */
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(!pool_get_info(p)->warm);
    CHECK(all_zero(pool_base(p), c.size));
    memset(pool_base(p), 5, c.size);
    pool_close(&p);
    int fd = open(path, O_RDWR); /* damaged */
    CHECK_EQ(pwrite(fd, "x", 1, 20), 1);
    close(fd);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(!pool_get_info(p)->warm);
    CHECK(all_zero(pool_base(p), c.size));
    pool_close(&p);

    CHECK_EQ(symlink(path, link), 0); /* O_NOFOLLOW */
    c.path = link;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_EIO);
    unlink(link);
    unlink(path);
    rmdir(dir);
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

TEST(cgroup_limits_of_both_versions_are_found) {
    char dir[] = "/tmp/tarn-cgroup-XXXXXX", proc[64], cg[64], command[80];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(proc, sizeof(proc), "%s/proc", dir);
    snprintf(cg, sizeof(cg), "%s/cg", dir);
    write_file(proc, "meminfo", "MemTotal: 99 kB\nMemAvailable:   8000 kB\n");
    const char *limiter;
    CHECK_EQ(pool_memory_available(proc, cg, &limiter), 8000 * 1024);
    CHECK_STR(limiter, "available memory");
    write_file(proc, "self/cgroup", "0::/a/b\n");
    write_file(cg, "a/b/memory.max", "max\n");
    CHECK_EQ(pool_memory_available(proc, cg, &limiter), 8000 * 1024);
    write_file(cg, "a/memory.max", "1000000\n"); /* a parent's counts as well */
    write_file(cg, "a/memory.current", "900000\n");
    write_file(cg, "a/memory.stat", "anon 5\ninactive_file 300000\nactive_file 100000\n");
    CHECK_EQ(pool_memory_available(proc, cg, &limiter), 500000);
    CHECK_STR(limiter, "the cgroup's memory.max");
    write_file(proc, "self/cgroup", "5:cpu:/x\n4:memory:/x\n0::/\n");
    write_file(cg, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file(cg, "memory/x/memory.limit_in_bytes", "70000\n");
    write_file(cg, "memory/x/memory.usage_in_bytes", "10000\n");
    CHECK_EQ(pool_memory_available(proc, cg, &limiter), 60000);
    CHECK_STR(limiter, "the cgroup's memory.limit_in_bytes");
    write_file(proc, "self/cgroup", "4:memory:/gone\n"); /* a container that does not see its own path */
    write_file(cg, "memory/memory.limit_in_bytes", "50000\n");
    CHECK_EQ(pool_memory_available(proc, cg, &limiter), 50000);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    CHECK_EQ(system(command), 0);
}

TEST_MAIN()
