/* Places that a pool file or a tier must not take: below a mount point without its mount, what
 * is not there, what is of others. */
#include "../test.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "pool/pool.h"
#include "pool/site.h"
#include "pool/tier.h"

static char dir[64], fstab[80], mounts[80];

static void write_text(const char *path, const char *text, size_t len) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, text, len) == (ssize_t)len);
    close(fd);
}

static const char *in_dir(const char *name) {
    static char path[4][128];
    static unsigned i;
    char *p = path[i++ % 4];
    snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static void set_up(void) {
    char text[512];
    log_set_level(LOG_LEVEL_NOTHING);
    snprintf(dir, sizeof(dir), "/tmp/tarn-site-XXXXXX");
    CHECK(mkdtemp(dir) != NULL);
    snprintf(fstab, sizeof(fstab), "%s", in_dir("fstab"));
    snprintf(mounts, sizeof(mounts), "%s", in_dir("mounts"));
    CHECK(mkdir(in_dir("disk"), 0700) == 0 && mkdir(in_dir("there"), 0700) == 0 &&
          symlink("disk", in_dir("link")) == 0);
    int n = snprintf(text, sizeof(text),
                     "# a comment\nUUID=1 / ext4 errors=remount-ro 0 1\nUUID=2 none swap sw 0 0\n"
                     "UUID=3 %s/disk xfs noauto 0 2\nUUID=4 %s/there xfs defaults 0 2\nnas:/x "
                     "%s/a\\040b nfs soft 0 0\n",
                     dir, dir, dir);
    write_text(fstab, text, (size_t)n);
    n = snprintf(text, sizeof(text), "/dev/sda1 / ext4 rw 0 0\n/dev/sdc %s/there xfs rw 0 0\n",
                 dir);
    write_text(mounts, text, (size_t)n);
}

static void tear_down(void) {
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    CHECK_EQ(system(command), 0);
}

TEST(a_mount_point_without_its_mount) {
    char missing[PATH_MAX] = "";
    set_up();
    const char *bad[] = {"disk",      "disk/tarn",       "disk/not/there/yet",
                         "link/tarn", "there/../disk/x", "a b/tarn"};
    const char *good[] = {"there", "there/tarn/x", "disks", "diskette/x", "tarn"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK(site_unmounted_by(fstab, mounts, in_dir(bad[i]), missing, sizeof(missing)));
        CHECK_STR(missing, in_dir(i == 5 ? "a b" : "disk"));
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        CHECK(!site_unmounted_by(fstab, mounts, in_dir(good[i]), missing, sizeof(missing)));
    CHECK(!site_unmounted_by(fstab, mounts, "/nosuch", missing, sizeof(missing)));
    CHECK(!site_unmounted_by(fstab, mounts, "nosuch", missing, sizeof(missing)));
    CHECK(!site_unmounted_by(fstab, mounts, "/", missing, sizeof(missing)));
    /* A machine that does not tell. */
    CHECK(!site_unmounted_by(in_dir("none"), mounts, in_dir("disk"), missing, sizeof(missing)));
    CHECK(!site_unmounted_by(fstab, in_dir("none"), in_dir("disk"), missing, sizeof(missing)));
    /* By a path that begins where the program is. */
    char before[PATH_MAX];
    CHECK(getcwd(before, sizeof(before)) != NULL && chdir(dir) == 0);
    CHECK(site_unmounted_by(fstab, mounts, "disk/x", missing, sizeof(missing)));
    CHECK(!site_unmounted_by(fstab, mounts, "x", missing, sizeof(missing)));
    CHECK_EQ(chdir(before), 0);
    tear_down();
}

static tarn_status open_pool(const char *path, const char **why_p) {
    struct pool_config c = {.name = "s", .size = 1u << 20, .numa_node = -1, .path = path};
    struct pool *p;
    tarn_status s = pool_open(&c, &p, why_p);
    if (s == TARN_OK) pool_close(&p);
    return s;
}

static bool still_says(const char *path, const char *text) {
    char now[64] = "";
    int fd = open(path, O_RDONLY);
    bool same = fd >= 0 && read(fd, now, sizeof(now) - 1) >= 0 && strcmp(now, text) == 0;
    if (fd >= 0) close(fd);
    return same;
}

TEST(a_pool_file_is_not_made_of_another_file) {
    char zeroes[200] = {0};
    const char *why = "";
    set_up();
    write_text(in_dir("letter"), "Dear Ann,\n", 10);
    CHECK_EQ(open_pool(in_dir("letter"), &why), TARN_EINVAL);
    CHECK(strstr(why, "not overwritten") != NULL && strstr(why, in_dir("letter")) != NULL);
    CHECK(still_says(in_dir("letter"), "Dear Ann,\n"));
    /* A file system that begins with zeroes: its name comes at 64 KiB. */
    write_text(in_dir("image"), zeroes, sizeof(zeroes));
    int fd = open(in_dir("image"), O_WRONLY);
    CHECK(pwrite(fd, "_BHRfS_M", 8, 65600) == 8);
    close(fd);
    CHECK_EQ(open_pool(in_dir("image"), &why), TARN_EINVAL);
    /* What is empty, and what a process left that was killed before it had written the header. */
    write_text(in_dir("empty"), "", 0);
    CHECK_EQ(open_pool(in_dir("empty"), &why), TARN_OK);
    write_text(in_dir("begun"), zeroes, sizeof(zeroes));
    CHECK_EQ(open_pool(in_dir("begun"), &why), TARN_OK);
    /* A pool of which something is broken is ours to replace. */
    fd = open(in_dir("begun"), O_WRONLY);
    CHECK(pwrite(fd, "xx", 2, 20) == 2);
    close(fd);
    CHECK_EQ(open_pool(in_dir("begun"), &why), TARN_OK);
    tear_down();
}

static tarn_status open_tier(const char *kind, const char *path, bool create, const char **why_p) {
    static const uint8_t cluster[16] = {1};
    struct tier_config c = {.path = path, .size = 16u << 20, .cluster = cluster, .create = create};
    struct tier *t = NULL;
    tarn_status s = tier_open(kind, &c, &t, why_p);
    tier_close(&t);
    return s;
}

TEST(a_tier_is_made_where_it_was_asked_for) {
    const char *why = "";
    struct stat st;
    set_up();
    for (int file = 0; file < 2; file++) {
        const char *kind = file ? "file" : "ssd",
                   *path = file ? in_dir("shared") : in_dir("disk.ssd");
        CHECK_EQ(open_tier(kind, path, false, &why), TARN_EINVAL);
        CHECK(strstr(why, file ? "--file PATH:SIZE,create" : "--ssd PATH:SIZE,create") != NULL);
        CHECK(stat(path, &st) != 0);
        CHECK_EQ(open_tier(kind, path, true, &why), TARN_OK);
        CHECK_EQ(open_tier(kind, path, false, &why), TARN_OK); /* it is there now */
        CHECK_EQ(open_tier(kind, in_dir("there"), false, &why), TARN_OK);
    }
    write_text(in_dir("letter"), "Dear Ann,\n", 10);
    CHECK_EQ(open_tier("ssd", in_dir("letter"), true, &why), TARN_EINVAL);
    CHECK(still_says(in_dir("letter"), "Dear Ann,\n"));
    tear_down();
}

TEST_MAIN()
