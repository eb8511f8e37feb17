/* The ssd tier on disks that fail, are full, are damaged or hold something else. */
#include "ssd_util.h"

#include <sys/ioctl.h>

/* --- a disk that fails --- */

static struct {
    int fail_values, fail_headers, error; /* how many from now on */
    bool reads;
} ill;
static int fault_ill(void *arg, bool write, uint64_t offset, size_t *length) {
    (void)arg, (void)offset;
    if (!write) return ill.reads ? EIO : 0;
    bool header = *length == 4096; /* the values of these tests are larger */
    int *n = header ? &ill.fail_headers : &ill.fail_values;
    if (__atomic_load_n(n, __ATOMIC_RELAXED) <= 0) return 0;
    __atomic_fetch_sub(n, 1, __ATOMIC_RELAXED);
    return ill.error;
}

TEST(a_put_that_cannot_be_written_fails_and_the_rest_goes_on) {
    for (int what = 0; what < 2; what++) {
        fresh_dir();
        ssd_io_set_fault(fault_ill, NULL);
        struct tier_config c = config(64 * MIB);
        struct tier *t = open_tier(&c);
        uint64_t good = 0;
        for (uint64_t i = 0; i < 12; i++) {
            ill.error = i % 4 == 1 ? EIO : ENOSPC;
            ill.fail_values = what == 0 && i % 2 == 1;
            ill.fail_headers = what == 1 && i % 2 == 1;
            tarn_status s = put(t, i, 1, 20000, NULL);
            CHECK_EQ(s, i % 2 == 0 ? TARN_OK : i % 4 == 1 ? TARN_EIO : TARN_ENOSPACE);
            good += s == TARN_OK;
        }
        struct tier_stats stats;
        tier_get_stats(t, &stats);
        CHECK_EQ(stats.put_failures, 6);
        CHECK(!stats.read_only);
        t = reopen(t, &c);
        struct list l = list_tier(t);
        CHECK_EQ(l.n, good);
        CHECK_EQ(count_wrong(t, &l), 0);
        free(l.items);
        tier_close(&t);
        ssd_io_set_fault(NULL, NULL);
    }
}

TEST(behind_a_header_that_cannot_be_written_nothing_is_acknowledged) {
    fresh_dir();
    ssd_io_set_fault(fault_ill, NULL);
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    struct waiter w[40];
    ill.error = EIO;
    ill.fail_values = 0;
    CHECK_EQ(put(t, 1000, 1, 100000, NULL), TARN_OK);
    ill.fail_headers = 1;
    size_t good = 1, failed = 0;
    for (uint64_t i = 0; i < ARRAY_LEN(w); i++) {
        waiter_init(&w[i]);
        CHECK_EQ(put_start(t, i, 1, 100000, &w[i]), TARN_OK);
    }
    for (uint64_t i = 0; i < ARRAY_LEN(w); i++) {
        if (waiter_wait(&w[i]) == TARN_OK)
            good++;
        else
            failed++;
    }
    CHECK(failed > 0);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, good);
    CHECK_EQ(count_wrong(t, &l), 0);
    free(l.items);
    tier_close(&t);
    ssd_io_set_fault(NULL, NULL);
}

TEST(a_dead_disk_is_read_only) {
    fresh_dir();
    ssd_io_set_fault(fault_ill, NULL);
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offset;
    ill.error = EIO;
    CHECK_EQ(put(t, 1, 1, 20000, &offset), TARN_OK);
    ill.fail_values = ill.fail_headers = 1000000;
    for (int i = 0; i < 3; i++) CHECK_EQ(put(t, 2, 1, 20000, NULL), TARN_EIO);
    struct waiter w;
    waiter_init(&w);
    CHECK_EQ(put_start(t, 2, 1, 20000, &w), TARN_EIO);
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK(stats.read_only);
    CHECK(holds(t, offset, 1, 1, 20000));
    tier_drop(t, offset, 1);
    ill.reads = true;
    CHECK_EQ(read_range(t, offset, 100, &(char[100]){0}), TARN_EIO);
    ill.reads = false;
    tier_close(&t); /* does not wait for a disk that will never take it */
    ill.fail_values = ill.fail_headers = 0;
    ssd_io_set_fault(NULL, NULL);
}

TEST(a_drop_whose_note_failed_is_noted_again) {
    fresh_dir();
    ssd_io_set_fault(fault_ill, NULL);
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offset;
    ill.error = EIO;
    CHECK_EQ(put(t, 1, 1, 20000, &offset), TARN_OK);
    ill.fail_headers = 1;
    tier_drop(t, offset, 1);
    CHECK_EQ(put(t, 2, 1, 20000, NULL), TARN_EIO); /* its header held the note */
    CHECK_EQ(put(t, 3, 1, 20000, NULL), TARN_OK);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 1);
    CHECK_EQ(l.items[0].id, 3);
    free(l.items);
    tier_close(&t);
    ssd_io_set_fault(NULL, NULL);
}

static int fault_erase(void *arg, bool write, uint64_t offset, size_t *length) {
    /* The first header of a unit: a write there after all were written is meant to erase it. */
    return __atomic_load_n((bool *)arg, __ATOMIC_RELAXED) && write && *length == 4096 &&
                   offset % (512u << 10) == 0
               ? EIO
               : 0;
}
TEST(a_unit_that_cannot_be_erased_is_out_of_use) {
    fresh_dir();
    bool failing = false;
    ssd_io_set_fault(fault_erase, &failing);
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offsets[30];
    for (uint64_t i = 0; i < ARRAY_LEN(offsets); i++)
        CHECK_EQ(put(t, i, 1, 100000, &offsets[i]), TARN_OK);
    struct tier_stats before, after;
    tier_get_stats(t, &before);
    uint64_t first = (offsets[0] - SSD_DATA_START) >> 19; /* regions of 512 KiB */
    for (uint64_t i = 0; i < ARRAY_LEN(offsets); i++) {
        if ((offsets[i] - SSD_DATA_START) >> 19 == first) tier_drop(t, offsets[i], 1);
    }
    __atomic_store_n(&failing, true, __ATOMIC_RELAXED);
    struct list gone = {0};
    evict_all(t, &gone);
    CHECK_EQ(put(t, 100, 1, 10, NULL), TARN_OK); /* in an open unit: goes on */
    __atomic_store_n(&failing, false, __ATOMIC_RELAXED);
    tier_get_stats(t, &after);
    CHECK_EQ(before.used, after.used);
    churn(t, 1000, 400, 100000, &gone); /* the rest of the disk is enough */
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(count_wrong(t, &l), 0);
    CHECK(list_find(&l, 0) == NULL); /* its drop was noted, and carried */
    free(l.items);
    free(gone.items);
    tier_close(&t);
    ssd_io_set_fault(NULL, NULL);
}

/* --- opening --- */

TEST(a_file_that_is_not_ours_is_left_alone) {
    fresh_dir();
    char path[300];
    snprintf(path, sizeof(path), "%s/other", test_dir);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK_EQ(write(fd, "a diary", 7), 7);
    struct tier_config c = config(64 * MIB);
    c.path = path;
    struct tier *t = NULL;
    const char *why = NULL;
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EINVAL);
    char text[8] = "";
    CHECK_EQ(pread(fd, text, 7, 0), 7);
    CHECK_STR(text, "a diary");
    struct stat st;
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK_EQ(st.st_size, 7);
    CHECK_EQ(ftruncate(fd, 0), 0);
    t = open_tier(&c);
    tier_close(&t);
    close(fd);
}

TEST(too_small_for_the_regions_it_has) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    CHECK_EQ(put(t, 1, 1, 5000, NULL), TARN_OK);
    tier_close(&t);
    c.size = 8 * MIB;
    const char *why = "";
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EINVAL);
    CHECK(strstr(why, "make it") != NULL && strstr(why, "with what is in it") != NULL);
    c.size = 64 * MIB;
    t = open_tier(&c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 1);
    free(l.items);
    tier_close(&t);
}

static void flip(int fd, uint64_t at) {
    char byte;
    CHECK_EQ(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    CHECK_EQ(pwrite(fd, &byte, 1, (off_t)at), 1);
}

TEST(one_superblock_is_enough_none_means_anew) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    CHECK_EQ(put(t, 1, 1, 5000, NULL), TARN_OK);
    uint8_t content[TIER_CONTENT_SIZE];
    memcpy(content, tier_get_info(t)->content, sizeof(content));
    for (uint64_t copy = 0; copy < 2; copy++) {
        tier_close(&t);
        int fd = open_disk(O_RDWR);
        flip(fd, copy * 4096 + 50);
        t = open_tier(&c);
        CHECK(memcmp(content, tier_get_info(t)->content, sizeof(content)) == 0);
        struct list l = list_tier(t);
        CHECK_EQ(l.n, 1);
        free(l.items);
        flip(fd, copy * 4096 + 50);
        close(fd);
    }
    tier_close(&t);
    int fd = open_disk(O_RDWR);
    flip(fd, 50);
    flip(fd, 4096 + 50);
    t = open_tier(&c);
    CHECK(memcmp(content, tier_get_info(t)->content, sizeof(content)) != 0);
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK_EQ(stats.entries, 0);
    CHECK_EQ(stats.damaged, 1);
    tier_close(&t);
    /* A version from the future is not ours to overwrite. */
    struct ssd_superblock b;
    CHECK_EQ(pread(fd, &b, sizeof(b), 0), sizeof(b));
    b.version++;
    ssd_super_seal(&b);
    CHECK_EQ(pwrite(fd, &b, sizeof(b), 0), sizeof(b));
    CHECK_EQ(pwrite(fd, &b, sizeof(b), 4096), sizeof(b));
    const char *why;
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EINVAL);
    CHECK(strstr(why, "version") != NULL);
    close(fd);
}

TEST(a_damaged_header_costs_what_is_behind_it) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    /* One batch each; values of 64 KiB are on their own blocks, the header in front. */
    uint64_t offsets[60];
    for (uint64_t i = 0; i < 60; i++) CHECK_EQ(put(t, i, 1, 65536, &offsets[i]), TARN_OK);
    uint8_t content[TIER_CONTENT_SIZE];
    memcpy(content, tier_get_info(t)->content, sizeof(content));
    tier_close(&t);
    int fd = open_disk(O_RDWR);
    flip(fd, offsets[10] - 4096 + 100); /* a record: the stamp does not fit */
    t = open_tier(&c);
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    /* Once as a header that is broken, once as batches that the next unit knows of. */
    CHECK(stats.damaged >= 1);
    CHECK(memcmp(content, tier_get_info(t)->content, sizeof(content)) != 0);
    struct list l = list_tier(t);
    for (uint64_t i = 0; i < 10; i++) CHECK(list_find(&l, i) != NULL);
    CHECK(list_find(&l, 10) == NULL && list_find(&l, 11) == NULL);
    CHECK(list_find(&l, 59) != NULL); /* another unit */
    CHECK_EQ(count_wrong(t, &l), 0);
    free(l.items);
    tier_close(&t);
    /* A header that is gone altogether looks like the end of the unit; the next unit knows
     * better. */
    static const char zero[4096];
    CHECK_EQ(pwrite(fd, zero, sizeof(zero), (off_t)offsets[5] - 4096), 4096);
    memcpy(content, (uint8_t[16]){0}, 16);
    t = open_tier(&c);
    tier_get_stats(t, &stats);
    CHECK(stats.damaged >= 1);
    l = list_tier(t);
    CHECK(list_find(&l, 4) != NULL && list_find(&l, 5) == NULL);
    free(l.items);
    tier_close(&t);
    close(fd);
}

TEST(any_bit_may_flip) {
    fresh_dir();
    struct tier_config c = config(8 * MIB);
    struct tier *t = open_tier(&c);
    struct rng r;
    rng_seed(&r, 99);
    uint64_t offsets[100], lens[100];
    for (uint64_t i = 0; i < 100; i++) {
        lens[i] = rng_below(&r, 60000);
        CHECK_EQ(put(t, i, 1, lens[i], &offsets[i]), TARN_OK);
        if (i % 5 == 0) tier_drop(t, offsets[rng_below(&r, i + 1)], 1);
    }
    tier_close(&t);
    int fd = open_disk(O_RDWR);
    for (int round = 0; round < ROUNDS(200); round++) {
        uint64_t at[3];
        for (int k = 0; k < 3; k++) {
            /* Mostly headers: in front of a value, on whole blocks. */
            uint64_t i = rng_below(&r, 100);
            at[k] =
                (offsets[i] & ~4095ull) - 4096 + rng_below(&r, rng_below(&r, 4) == 0 ? 4096 : 160);
            if (rng_below(&r, 8) == 0) at[k] = rng_below(&r, 8192);
            flip(fd, at[k]);
        }
        t = NULL;
        const char *why = "";
        if (tier_open("ssd", &c, &t, &why) == TARN_OK) {
            struct list l = list_tier(t);
            for (size_t i = 0; i < l.n; i++) {
                /* What is listed is what was put; its bytes may have been hit, which the reader's
                 * CRC tells. */
                const struct listed *e = &l.items[i];
                CHECK(e->id < 100 && e->size == lens[e->id] && e->offset == offsets[e->id] &&
                      e->version == 1);
            }
            free(l.items);
            tier_close(&t);
        }
        for (int k = 0; k < 3; k++) flip(fd, at[k]);
    }
    close(fd);
}

TEST(a_tier_may_grow_and_shrink) {
    fresh_dir();
    struct tier_config c = config(32 * MIB);
    struct tier *t = open_tier(&c);
    size_t n = fill(t, 0, 200000);
    uint8_t content[TIER_CONTENT_SIZE];
    memcpy(content, tier_get_info(t)->content, sizeof(content));
    c.size = 48 * MIB;
    t = reopen(t, &c);
    CHECK(memcmp(content, tier_get_info(t)->content, sizeof(content)) == 0);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, n);
    free(l.items);
    size_t more = fill(t, 1000, 200000);
    CHECK(more >= n / 3);
    c.size = 16 * MIB;
    t = reopen(t, &c);
    CHECK(memcmp(content, tier_get_info(t)->content, sizeof(content)) != 0);
    CHECK(tier_get_info(t)->size <= 16 * MIB);
    l = list_tier(t);
    CHECK(l.n > 0 && l.n < n);
    CHECK_EQ(count_wrong(t, &l), 0);
    free(l.items);
    struct list gone = {0};
    churn(t, 5000, 200, 200000, &gone);
    free(gone.items);
    tier_close(&t);
    c.size = 3 * MIB;
    const char *why;
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EINVAL);
}

TEST(a_disk_that_is_full_from_the_start) {
    fresh_dir();
    char mount_point[300], command[700];
    snprintf(mount_point, sizeof(mount_point), "%s/small", test_dir);
    CHECK_EQ(mkdir(mount_point, 0700), 0);
    snprintf(command, sizeof(command), "mount -t tmpfs -o size=8m none '%s' 2>/dev/null",
             mount_point);
    if (system(command) != 0) SKIP("no right to mount a tmpfs");
    struct tier_config c = config(64 * MIB);
    c.path = mount_point;
    struct tier *t = NULL;
    const char *why = "";
    tarn_status large = tier_open("ssd", &c, &t, &why);
    bool told = strstr(why, "reserving") != NULL;
    c.size = 6 * MIB;
    tarn_status small = tier_open("ssd", &c, &t, &why), stored = TARN_ERR;
    if (small == TARN_OK) {
        stored = put(t, 1, 1, 100000, NULL);
        tier_close(&t);
    }
    snprintf(command, sizeof(command), "umount '%s'", mount_point);
    CHECK_EQ(system(command), 0);
    CHECK_EQ(large, TARN_ENOSPACE);
    CHECK(told);
    CHECK_EQ(small, TARN_OK);
    CHECK_EQ(stored, TARN_OK);
}

/* --- a block device --- */

TEST(a_block_device) {
    fresh_dir();
    char image[300], command[700], device[100] = "";
    snprintf(image, sizeof(image), "%s/image", test_dir);
    int fd = open(image, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, 40 * MIB), 0);
    snprintf(command, sizeof(command), "losetup --find --show '%s' 2>/dev/null", image);
    FILE *out = popen(command, "r");
    bool got = out != NULL && fgets(device, sizeof(device), out) != NULL;
    if (out != NULL) pclose(out);
    device[strcspn(device, "\n")] = '\0';
    if (!got) SKIP("no right to make a loop device");
    struct tier_config c = {.path = device, .direct = true}; /* size 0: all of it */
    struct tier *t = NULL, *second = NULL;
    const char *why = "";
    uint64_t offset = 0;
    tarn_status opened = tier_open("ssd", &c, &t, &why), stored = TARN_ERR, other = TARN_OK;
    bool there = false, again = false;
    if (opened == TARN_OK) {
        stored = put(t, 1, 1, 200000, &offset);
        other = tier_open("ssd", &c, &second, &why);
        tier_close(&t);
        if (tier_open("ssd", &c, &t, &why) == TARN_OK) {
            there = tier_get_info(t)->size > 32 * MIB && tier_get_info(t)->size <= 40 * MIB;
            again = holds(t, offset, 1, 1, 200000);
            tier_close(&t);
        }
    }
    snprintf(command, sizeof(command), "losetup -d '%s'", device);
    CHECK_EQ(system(command), 0);
    close(fd);
    CHECK_EQ(opened, TARN_OK);
    CHECK_EQ(stored, TARN_OK);
    CHECK_EQ(other, TARN_EBUSY);
    CHECK(there && again);
}

TEST_MAIN()
