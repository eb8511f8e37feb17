/* New files: not through a link, and not those of others; and who has locked one. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../test.h"

TEST(guarantee_6_a_temporary_file_is_ours_and_no_link_is_followed) {
    char dir[] = "/tmp/tarn-file-XXXXXX", path[80], victim[80];
    struct stat st;
    umask(022);
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/new.tmp", dir);
    snprintf(victim, sizeof(victim), "%s/victim", dir);
    FILE *f = fopen(victim, "we");
    CHECK(f != NULL && fputs("as it was", f) > 0 && fclose(f) == 0);
    /* A link, and a hard link, to somebody's file. */
    for (int hard = 0; hard < 2; hard++) {
        CHECK_EQ(hard ? link(victim, path) : symlink(victim, path), 0);
        int fd = file_open_new(path, 0600);
        CHECK(fd >= 0 && write(fd, "mine", 4) == 4 && fstat(fd, &st) == 0);
        CHECK_EQ(st.st_mode & 07777, 0600);
        CHECK_EQ(st.st_nlink, 1);
        close(fd);
        CHECK(lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 4);
        CHECK_EQ(unlink(path), 0);
        CHECK(stat(victim, &st) == 0 && st.st_size == 9);
    }
    /* A folder stays. */
    CHECK_EQ(mkdir(path, 0700), 0);
    CHECK(file_open_new(path, 0600) < 0 && errno != 0);
    CHECK(rmdir(path) == 0 && unlink(victim) == 0 && rmdir(dir) == 0);
    CHECK(file_open_new(path, 0600) < 0);
    CHECK_EQ(errno, ENOENT);
}

TEST(who_has_locked_a_file) {
    char path[] = "/tmp/tarn-file-XXXXXX", expected[32];
    int fd = mkstemp(path), other = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && other >= 0 && unlink(path) == 0);
    CHECK_EQ(file_lock_holder(fd), 0);
    CHECK_STR(file_holder_text(fd), "");
    CHECK_EQ(flock(other, LOCK_EX), 0);
    snprintf(expected, sizeof(expected), " (pid %ld)", (long)getpid());
    if (file_lock_holder(fd) == 0) SKIP("/proc/locks does not show locks here");
    CHECK_STR(file_holder_text(fd), expected);
    close(fd);
    close(other);
}

TEST(a_lock_is_waited_for_as_long_as_one_is_patient) {
    char path[] = "/tmp/tarn-file-XXXXXX";
    int fd = mkstemp(path), other = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && other >= 0 && unlink(path) == 0);
    CHECK(file_lock(fd, 0));
    CHECK(file_lock(fd, 0)); /* by itself it is not kept off */
    CHECK(!file_lock(other, 50));
    CHECK_EQ(errno, EWOULDBLOCK);
    close(fd);
    CHECK(file_lock(other, 0));
    close(other);
    CHECK(!file_lock(-1, 1000));
    CHECK_EQ(errno, EBADF);
}

TEST(bytes_of_a_file_are_there_or_not) {
    char path[] = "/tmp/tarn-file-XXXXXX", got[8] = "";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0 && write(fd, "0123456789", 10) == 10);
    CHECK_EQ(file_read_at(fd, got, 4, 6), 0);
    CHECK_STR(got, "6789");
    CHECK_EQ(file_read_at(fd, got, 5, 6), EIO);
    CHECK_EQ(file_read_at(fd, got, 0, 100), 0);
    close(fd);
    CHECK_EQ(file_read_at(-1, got, 1, 0), EBADF);
}

TEST(a_start_of_the_machine_has_a_name) {
    char id[40], again[40];
    memset(id, 'x', sizeof(id));
    file_boot_id(id);
    file_boot_id(again);
    CHECK(memcmp(id, again, sizeof(id)) == 0);
    CHECK(strnlen(id, sizeof(id)) == 36 || id[0] == '\0');
}

TEST_MAIN()
