#include "../test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mapping.h"
#include "pool/pool.h"

static struct pool_config config(uint64_t size) {
    log_set_level(LOG_LEVEL_NOTHING);
    return (struct pool_config){.name = "s1", .size = size, .numa_node = -1};
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

static struct segment_header *map_header(const struct pool *p) {
    struct segment_header *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, pool_fd(p, false), 0);
    CHECK(map != MAP_FAILED);
    return map;
}

TEST(the_header_says_what_this_is) {
    struct pool_config c = config(8192);
    struct pool *p;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    struct segment_header *map = map_header(p);
    CHECK(segment_header_valid(map));
    CHECK_EQ(map->segment_id, 0); /* nobody's yet */
    CHECK_EQ(segment_header_segment_epoch(map), 0);
    CHECK_EQ(map->size, 8192);
    CHECK_STR(map->name, "s1");
    CHECK_EQ(segment_header_instance(map), 1);
    CHECK(memcmp(map->content, pool_get_info(p)->content, SEGMENT_CONTENT_SIZE) == 0);
    pool_serve(p, 3, 9, 2);
    CHECK(segment_header_valid(map));
    CHECK_EQ(map->segment_id, 3);
    CHECK_EQ(map->epoch, 9);
    CHECK(segment_header_unchanged(map, 2, 9));
    pool_set_epochs(p, 4, 10);
    CHECK(segment_header_unchanged(map, 4, 10));
    CHECK(!segment_header_unchanged(map, 3, 10));
    struct segment_header copy = *map;
    copy.size++;
    CHECK(!segment_header_valid(&copy));
    copy = *map;
    copy.version = 1;
    copy.crc = segment_header_crc(&copy);
    CHECK(!segment_header_valid(&copy));
    pool_retire(p);
    CHECK_EQ(segment_header_segment_epoch(map), 0);
    CHECK_EQ(map->epoch, 9);
    pool_serve(p, 4, 11, 4);
    CHECK(segment_header_valid(map) && map->segment_id == 4);
    pool_close(&p);
    /* who still maps it knows that nobody is there */
    CHECK_EQ(segment_header_segment_epoch(map), 0);
    munmap(map, 4096);
}

TEST(two_contents_have_two_names) {
    struct pool_config c = config(8192);
    struct pool *p, *q;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK_EQ(pool_open(&c, &q, &why), TARN_OK);
    CHECK(memcmp(pool_get_info(p)->content, pool_get_info(q)->content, SEGMENT_CONTENT_SIZE) != 0);
    pool_close(&p);
    pool_close(&q);
}

static uint64_t memory_of(const struct pool *p) {
    struct stat st;
    CHECK_EQ(fstat(pool_fd(p, true), &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* A peer that was given the memory keeps what it maps; the addresses stay ours. */
static void discard_and_revive(struct pool_config c, bool other_memory) {
    struct pool *p;
    const char *why;
    uint8_t content[SEGMENT_CONTENT_SIZE];
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    pool_serve(p, 3, 9, 2);
    char *base = pool_base(p);
    memset(base, 7, c.size);
    char *peer = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd(p, true), 0);
    CHECK(peer != MAP_FAILED);
    memcpy(content, pool_get_info(p)->content, sizeof(content));
    CHECK(memory_of(p) >= c.size);
    pool_discard(p);
    bool kept = pool_get_info(p)->huge; /* reserved pages are not given back */
    CHECK(kept || memory_of(p) <= 65536);
    CHECK(memcmp(content, pool_get_info(p)->content, sizeof(content)) != 0);
    CHECK_EQ(segment_header_segment_epoch((struct segment_header *)peer), 0);
    CHECK(kept || base[0] == 0);
    base[0] = 1; /* who is slow does not fault */
    memcpy(content, pool_get_info(p)->content, sizeof(content));
    if (!other_memory) base[0] = 0;
    CHECK_EQ(pool_revive(p, other_memory, &why), TARN_OK);
    CHECK(pool_base(p) == base);
    CHECK(all_zero(base, c.size));
    CHECK(segment_header_valid(pool_header(p)));
    CHECK(memcmp(content, pool_get_info(p)->content, sizeof(content)) == 0);
    CHECK(memcmp(content, pool_header(p)->content, sizeof(content)) == 0);
    pool_serve(p, 4, 10, 2);
    peer[4096] = 5;
    CHECK_EQ(base[0], other_memory ? 0 : 5);
    CHECK_EQ(segment_header_segment_epoch((struct segment_header *)peer), other_memory ? 0 : 10);
    munmap(peer, 8192);
    pool_close(&p);
}

TEST(discarded_memory_goes_back_and_comes_back_empty) {
    struct pool_config c = config(4u << 20);
    c.populate = true;
    discard_and_revive(c, false);
    discard_and_revive(c, true);
    c.huge = true;
    c.size = 3u << 20;
    discard_and_revive(c, true);
}

TEST(a_discarded_file_too) {
    char dir[] = "/tmp/tarn-pool-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/pool", dir);
    struct pool_config c = config(1u << 20);
    c.path = path;
    struct pool *p;
    const char *why;
    for (int other = 0; other < 2; other++) {
        discard_and_revive(c, other);
        CHECK_EQ(pool_open(&c, &p, &why), TARN_OK); /* what it became is what is found */
        CHECK(pool_get_info(p)->warm);
        CHECK_EQ(pool_get_info(p)->old_id, 4);
        CHECK_EQ(pool_get_info(p)->old_segment_epoch, 10);
        pool_close(&p);
        unlink(path);
    }
    rmdir(dir);
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

/* Does this kernel make a huge page of shared memory when it is asked to? */
static bool kernel_collapses(void) {
    int fd = memfd_create("pool-test", MFD_CLOEXEC);
    CHECK_EQ(ftruncate(fd, (off_t)HUGE_PAGE), 0);
    char *map = mapping_shared(fd, HUGE_PAGE, PROT_READ | PROT_WRITE);
    CHECK(map != MAP_FAILED);
    map[0] = 1;
    bool does = madvise(map, HUGE_PAGE, 25 /* MADV_COLLAPSE */) == 0;
    munmap(map, HUGE_PAGE);
    close(fd);
    return does;
}

static uint64_t faults(void) {
    struct rusage u;
    CHECK_EQ(getrusage(RUSAGE_SELF, &u), 0);
    return (uint64_t)u.ru_minflt;
}

/* How many faults the first look at all pages of a pool costs another mapping of it. */
static uint64_t faults_of_mapping(const struct pool *p, uint64_t size) {
    volatile char *map = mapping_shared(pool_fd(p, true), size, PROT_READ | PROT_WRITE);
    CHECK(map != MAP_FAILED);
    uint64_t before = faults();
    for (uint64_t at = 0; at < size; at += 4096) map[at] |= 0;
    uint64_t taken = faults() - before;
    munmap((void *)(uintptr_t)map, size);
    return taken;
}

TEST(a_populated_pool_is_of_huge_pages_where_that_can_be) {
    const char *why;
    for (int huge = 0; huge < 2; huge++) {
        struct pool_config c = config(8 * HUGE_PAGE);
        struct pool *p;
        c.huge = huge != 0;
        c.populate = true;
        CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
        CHECK(all_zero(pool_base(p), c.size));
        uint64_t taken = faults_of_mapping(p, SEGMENT_HEADER_SIZE + c.size);
        bool shown = huge && kernel_collapses();
#ifdef __SANITIZE_THREAD__
        shown = false; /* its own memory faults, too */
#endif
        CHECK(!shown || taken <= 32);
        pool_discard(p);
        CHECK_EQ(pool_revive(p, false, &why), TARN_OK);
        CHECK(all_zero(pool_base(p), c.size));
        pool_close(&p);
    }
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
    pool_serve(p, 3, 9, 21);
    memset(pool_base(p), 5, c.size);
    uint8_t content[SEGMENT_CONTENT_SIZE];
    memcpy(content, pool_get_info(p)->content, sizeof(content));
    pool_close(&p);

    c.name = "another"; /* the same segment again: name and id are not known at that time */
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(pool_get_info(p)->warm);
    CHECK(pool_get_info(p)->same_boot);
    CHECK_EQ(pool_get_info(p)->old_id, 3);
    CHECK_EQ(pool_get_info(p)->old_segment_epoch, 9);
    CHECK_EQ(pool_get_info(p)->old_master_epoch, 21);
    CHECK(memcmp(content, pool_get_info(p)->content, sizeof(content)) == 0);
    CHECK_EQ(((char *)pool_base(p))[c.size - 1], 5);
    CHECK_STR(pool_header(p)->name, "another");
    CHECK_EQ(segment_header_segment_epoch(pool_header(p)), 0);
    CHECK_EQ(segment_header_instance(pool_header(p)), 2);
    pool_close(&p); /* never served: the next one still learns what it was */
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK_EQ(pool_get_info(p)->old_id, 3);
    CHECK_EQ(pool_get_info(p)->old_segment_epoch, 9);
    CHECK(memcmp(content, pool_get_info(p)->content, sizeof(content)) == 0);
    pool_close(&p);

    c.size *= 2; /* the same, and more of it */
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(pool_get_info(p)->warm);
    CHECK(memcmp(content, pool_get_info(p)->content, sizeof(content)) == 0);
    CHECK(all_zero((char *)pool_base(p) + c.size / 2, c.size / 2));
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
    c.path = dir;
    CHECK(pool_open(&c, &p, &why) != TARN_OK);
    unlink(link);
    unlink(path);
    rmdir(dir);
}

static tarn_status reopen(struct pool **p, struct pool_config *c, uint64_t size, bool shrink) {
    const char *why = "";
    pool_close(p);
    c->size = size;
    c->shrink = shrink;
    return pool_open(c, p, &why);
}

TEST(guarantee_6_a_pool_file_that_another_user_has_put_there_is_not_used) {
    if (geteuid() != 0) return; /* nobody else could be it */
    char dir[] = "/tmp/tarn-pool-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/pool", dir);
    struct pool_config c = config(1u << 20);
    c.path = path;
    struct pool *p = NULL;
    const char *why = NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    CHECK(fd >= 0 && fchown(fd, 65534, 65534) == 0);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_EINVAL);
    CHECK(why != NULL && strstr(why, "belongs to another user (uid 65534)") != NULL);
    CHECK_EQ(fchown(fd, 0, 0), 0);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    pool_close(&p);
    close(fd);
    unlink(path);
    rmdir(dir);
}

TEST(guarantee_5_a_pool_file_becomes_larger_and_smaller_with_what_is_in_it) {
    char path[] = "/tmp/tarn-pool-XXXXXX";
    close(mkstemp(path));
    struct pool_config c = config(1u << 20);
    c.path = path;
    struct pool *p = NULL;
    struct stat st;
    uint64_t size;
    uint8_t content[SEGMENT_CONTENT_SIZE], looked[SEGMENT_CONTENT_SIZE];
    CHECK(!pool_file_look(path, &size, looked));
    CHECK_EQ(reopen(&p, &c, 1u << 20, false), TARN_OK);
    memcpy(content, pool_get_info(p)->content, sizeof(content));
    memset(pool_base(p), 7, 1u << 20);
    CHECK_EQ(reopen(&p, &c, 4u << 20, false), TARN_OK);
    CHECK(pool_get_info(p)->warm && pool_get_info(p)->size == 4u << 20);
    CHECK(memcmp(content, pool_get_info(p)->content, sizeof(content)) == 0);
    char *base = pool_base(p);
    CHECK(base[0] == 7 && base[(1u << 20) - 1] == 7 && all_zero(base + (1u << 20), 3u << 20));
    memset(base + (3u << 20), 8, 1u << 20);
    /* A peer that has all of it mapped. */
    char *peer = mmap(NULL, 4096 + (4u << 20), PROT_READ, MAP_SHARED, pool_fd(p, false), 0);
    CHECK(peer != MAP_FAILED);
    CHECK_EQ(reopen(&p, &c, 2u << 20, false), TARN_EEXISTS);
    CHECK(pool_file_look(path, &size, looked) && size == 4u << 20);
    CHECK(memcmp(content, looked, sizeof(content)) == 0);
    CHECK_EQ(reopen(&p, &c, 2u << 20, true), TARN_OK);
    base = pool_base(p);
    CHECK(base[0] == 7 && base[(1u << 20) - 1] == 7);
    CHECK_EQ(*(volatile char *)(peer + 4096 + (3u << 20)), 0); /* no fault */
    munmap(peer, 4096 + (4u << 20));
    CHECK(stat(path, &st) == 0 &&
          (uint64_t)st.st_blocks * 512 <= (2u << 20) + 65536); /* its room went back */
    CHECK(pool_file_look(path, &size, looked) && size == 2u << 20);
    /* Killed between the length and the header: it is what it was, and grows again. */
    pool_close(&p);
    CHECK_EQ(truncate(path, 10 << 20), 0);
    CHECK_EQ(reopen(&p, &c, 2u << 20, false), TARN_OK);
    CHECK(pool_get_info(p)->warm);
    CHECK_EQ(reopen(&p, &c, 8u << 20, false), TARN_OK);
    CHECK(memcmp(content, pool_get_info(p)->content, sizeof(content)) == 0);
    base = pool_base(p);
    CHECK(base[0] == 7 && base[(1u << 20) - 1] == 7 && all_zero(base + (2u << 20), 6u << 20));
    pool_close(&p);
    unlink(path);
}

TEST(a_pool_file_for_which_there_is_no_room_is_not_left) {
    char dir[] = "/tmp/tarn-pool-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/pool", dir);
    struct pool_config c = config(1u << 20);
    c.path = path;
    struct pool *p;
    const char *why;
    struct rlimit all, little;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &all), 0);
    little = (struct rlimit){4096, all.rlim_max};
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
    tarn_status s = pool_open(&c, &p, &why);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &all), 0);
    CHECK_EQ(s, TARN_EIO);
    CHECK(strstr(why, path) != NULL);
    CHECK(access(path, F_OK) != 0);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    pool_close(&p);
    unlink(path);
    rmdir(dir);
}

TEST(after_a_start_of_the_machine_the_content_is_another) {
    char dir[] = "/tmp/tarn-pool-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/pool", dir);
    struct pool_config c = config(8192);
    c.path = path;
    struct pool *p;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    pool_serve(p, 3, 9, 21);
    memset(pool_base(p), 5, c.size);
    pool_close(&p);
    struct segment_header h;
    int fd = open(path, O_RDWR);
    CHECK_EQ(pread(fd, &h, sizeof(h), 0), (ssize_t)sizeof(h));
    h.boot_id[0] ^= 1;
    h.crc = segment_header_crc(&h);
    CHECK_EQ(pwrite(fd, &h, sizeof(h), 0), (ssize_t)sizeof(h));
    close(fd);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(pool_get_info(p)->warm && !pool_get_info(p)->same_boot);
    CHECK(memcmp(h.content, pool_get_info(p)->content, SEGMENT_CONTENT_SIZE) != 0);
    CHECK_EQ(((char *)pool_base(p))[0], 5);
    CHECK_EQ(pool_get_info(p)->old_segment_epoch, 9);
    pool_close(&p);
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK); /* from here on it is ours again */
    CHECK(pool_get_info(p)->same_boot);
    pool_close(&p);
    unlink(path);
    rmdir(dir);
}

/* A peer of a host that is no more: a process, or here a mapping made by way of its descriptor. */
TEST(who_still_maps_a_file_of_before_is_known) {
    char dir[] = "/tmp/tarn-pool-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/pool", dir);
    struct pool_config c = config(8192);
    c.path = path;
    struct pool *p;
    const char *why;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    pool_serve(p, 3, 9, 21);
    CHECK(!pool_strangers(p));
    char *writer = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd(p, true), 0);
    char *reader = mmap(NULL, 12288, PROT_READ, MAP_SHARED, pool_fd(p, false), 0);
    CHECK(writer != MAP_FAILED && reader != MAP_FAILED);
    CHECK(!pool_strangers(p)); /* our own */
    pool_close(&p);

    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK); /* the mapping does not keep its lock */
    CHECK(pool_get_info(p)->warm);
    CHECK(pool_strangers(p));
    char *mine = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd(p, true), 0);
    CHECK(mine != MAP_FAILED);
    munmap(writer, 12288);
    /* readers do no harm, and those of this process are known otherwise */
    CHECK(!pool_strangers(p));
    pool_discard(p);
    CHECK_EQ(pool_revive(p, true, &why), TARN_OK);
    mine[4096] = 1;
    CHECK_EQ(((char *)pool_base(p))[0], 0);
    pool_close(&p);

    c.size = 4096; /* who maps the old one does not fault */
    c.shrink = true;
    CHECK_EQ(pool_open(&c, &p, &why), TARN_OK);
    CHECK(pool_get_info(p)->warm && !pool_strangers(p));
    mine[8192] = 1;
    CHECK_EQ(reader[8192], 1);
    CHECK(all_zero(pool_base(p), c.size));
    pool_close(&p);
    munmap(mine, 12288);
    munmap(reader, 12288);
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
    /* a container that does not see its own path */
    write_file(proc, "self/cgroup", "4:memory:/gone\n");
    write_file(cg, "memory/memory.limit_in_bytes", "50000\n");
    CHECK_EQ(pool_memory_available(proc, cg, &limiter), 50000);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    CHECK_EQ(system(command), 0);
}

TEST_MAIN()
