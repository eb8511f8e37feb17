/* The file tier as its owner sees it, and as the readers of its files see it. */
#include <dirent.h>
#include <ftw.h>
#include <signal.h>

#include "pool/files_internal.h"
#define TIER_KIND "file"
#include "tier_util.h"

static const uint8_t cluster[16] = {0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

static struct tier_config config(uint64_t size) {
    return (struct tier_config){.path = test_dir, .size = size, .cluster = cluster, .create = true};
}

#include "tier_suite.h"

/* Where a client finds it. */
static void path_of(struct tier *t, uint64_t id, uint64_t version, char path[600]) {
    char key[64], relative[128];
    make_key(key, id);
    tier_file_path(span_str(key), version, relative, sizeof(relative));
    snprintf(path, 600, "%s/%s", tier_get_info(t)->directory, relative);
}

/* Does a client that reads the first bytes of the file get the value? content: the version its
 * bytes were made for. */
static bool client_reads(struct tier *t, uint64_t id, uint64_t version, uint64_t content,
                         uint64_t size) {
    char path[600];
    path_of(t, id, version, path);
    FILE *f = fopen(path, "rb");
    if (f == NULL) return false;
    char *value = make_value(size, id, content), *got = xmalloc(size + 1);
    bool same = fread(got, 1, size, f) == size && memcmp(got, value, size) == 0;
    fclose(f);
    free(value);
    free(got);
    return same;
}

static unsigned files_seen;
static int count_file(const char *path, const struct stat *st, int what, struct FTW *ftw) {
    (void)path, (void)st, (void)ftw;
    files_seen += what == FTW_F;
    return 0;
}
/* Besides tarn.tier. */
static unsigned count_files(void) {
    files_seen = 0;
    nftw(test_dir, count_file, 16, FTW_PHYS);
    return files_seen - 1;
}

TEST(names_that_no_two_keys_share) {
    char a[128], b[128];
    tier_file_path(SPAN("key-1"), 1, a, sizeof(a));
    CHECK_EQ(strlen(a), 6 + 64 + 1 + 16);
    CHECK(a[2] == '/' && a[5] == '/' && memcmp(a, a + 6, 2) == 0 && memcmp(a + 3, a + 8, 2) == 0);
    CHECK_STR(a + 70, ".0000000000000001");
    tier_file_path(SPAN("key-1"), 2, b, sizeof(b));
    CHECK(strcmp(a, b) != 0 && memcmp(a, b, 70) == 0);
    tier_file_path(SPAN("key-2"), 1, b, sizeof(b));
    CHECK(strcmp(a, b) != 0);
    tier_file_path(span_of("key-1\0", 6), 1, b, sizeof(b));
    CHECK(strcmp(a, b) != 0);
    tier_file_path(SPAN(""), UINT64_MAX, b, sizeof(b)); /* BLAKE2b-256 of nothing */
    CHECK_STR(
        b,
        "0e/57/0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8.ffffffffffffffff");
}

TEST(who_reads_the_files_finds_the_values) {
    fresh_dir();
    struct tier_config c = config(100 * MIB);
    struct tier *t = open_tier(&c);
    CHECK(strstr(tier_get_info(t)->directory, "/deadbeef0102030405060708090a0b0c") != NULL);
    uint64_t offsets[ARRAY_LEN(sizes)], offset;
    put_sizes(t, offsets);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
            CHECK(client_reads(t, i, 7 + i, 7 + i, sizes[i]));
        t = reopen(t, &c);
    }
    /* New ones are behind the old ones. */
    CHECK_EQ(put(t, 50, 1, 10, &offset), TARN_OK);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) CHECK(offset >= offsets[i] + sizes[i]);
    tier_close(&t);
}

static unsigned open_to_others; /* files and folders below the test's own */
static int look_at(const char *path, const struct stat *st, int what, struct FTW *ftw) {
    (void)path, (void)what;
    open_to_others += ftw->level > 0 && (st->st_mode & 077) != 0;
    return 0;
}

TEST(guarantee_6_files_are_for_their_user_only) {
    struct tier_config c = config(100 * MIB);
    uint64_t offset;
    fresh_dir();
    umask(022);
    struct tier *t = open_tier(&c);
    CHECK_EQ(put(t, 1, 7, 100000, &offset), TARN_OK);
    open_to_others = 0;
    CHECK_EQ(nftw(test_dir, look_at, 16, FTW_PHYS), 0);
    CHECK_EQ(open_to_others, 0);
    /* Unless others shall read them. */
    c.mode = 0644;
    t = reopen(t, &c);
    CHECK_EQ(put(t, 2, 7, 100000, &offset), TARN_OK);
    char path[600];
    struct stat st;
    path_of(t, 2, 7, path);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 07777, 0644);
    tier_close(&t);
}

TEST(large_values_are_read_from_where_they_are) {
    fresh_dir();
    struct tier_config c = config(200 * MIB);
    c.queue_bytes = 4 * MIB;
    struct tier *t = open_tier(&c);
    uint64_t size = 20 * MIB + 5;
    CHECK(size > tier_get_info(t)->copy_max);
    CHECK_EQ(put(t, 1, 1, size, NULL), TARN_OK);
    CHECK(client_reads(t, 1, 1, 1, size));
    char *value = make_value(size, 2, 1);
    struct iovec iov = {value, size};
    struct tier_item item = {
        .key = SPAN("key-2"), .version = 1, .size = size, .crc = crc32c(0, value, size) ^ 1};
    struct waiter w;
    waiter_init(&w);
    waiter_add(&w);
    CHECK_EQ(tier_put(t, &item, true, &iov, 1, on_put, &w), TARN_OK);
    CHECK_EQ(waiter_wait(&w), TARN_ECORRUPT);
    waiter_init(&w);
    waiter_add(&w);
    CHECK_EQ(tier_put(t, &item, false, &iov, 1, on_put, &w), TARN_OK);
    CHECK_EQ(item.crc, crc32c(0, value, size));
    CHECK_EQ(waiter_wait(&w), TARN_OK);
    free(value);
    CHECK_EQ(count_files(), 2);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 2);
    CHECK_EQ(count_wrong(t, &l), 0);
    free(l.items);
    tier_close(&t);
}

TEST(bytes_that_changed_leave_no_file) {
    fresh_dir();
    struct tier_config c = config(100 * MIB);
    struct tier *t = open_tier(&c);
    struct waiter w;
    waiter_init(&w);
    struct iovec iov = {"hello", 5};
    struct tier_item item = {.key = SPAN("key-1"), .version = 1, .size = 5, .crc = 12};
    CHECK_EQ(tier_put(t, &item, true, &iov, 1, on_put, &w), TARN_ECORRUPT);
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK_EQ(stats.used, 0);
    CHECK_EQ(stats.queued_bytes, 0);
    tier_close(&t);
    CHECK_EQ(count_files(), 0);
}

TEST(files_have_no_marks) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t at;
    CHECK_EQ(put(t, 0, 1, 100000, &at), TARN_OK);
    CHECK_EQ(tier_mark(t, at, 100000), 0);
    tier_close(&t);
}

TEST(what_was_dropped_is_removed) {
    fresh_dir();
    struct tier_config c = config(100 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offsets[20];
    for (uint64_t i = 0; i < 20; i++) CHECK_EQ(put(t, i, 1, 1000 * i, &offsets[i]), TARN_OK);
    for (uint64_t i = 0; i < 20; i += 2) tier_drop(t, offsets[i], 1);
    tier_close(&t);
    CHECK_EQ(count_files(), 10);
}

TEST(another_version_is_another_name) {
    fresh_dir();
    struct tier_config c = config(100 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offset;
    CHECK_EQ(put(t, 1, 5, 1000, &offset), TARN_OK);
    CHECK_EQ(tier_rename(t, offset, 9), TARN_OK);
    t = reopen(t, &c);
    CHECK(client_reads(t, 1, 9, 5, 1000));
    CHECK_EQ(count_files(), 1);
    tier_drop(t, offset, 5);
    tier_rename(t, offset, 10);
    tier_drop(t, offset, 10);
    tier_close(&t);
    CHECK_EQ(count_files(), 0);
}

TEST(the_same_name_twice_is_one_file) {
    fresh_dir();
    struct tier_config c = config(100 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t first, second;
    CHECK_EQ(put(t, 1, 1, 1000, &first), TARN_OK);
    tier_drop(t, first, 1);
    CHECK_EQ(put(t, 1, 1, 1000, &first),
             TARN_OK); /* the removal of the first does not take the second along */
    CHECK_EQ(put(t, 1, 1, 1000, &second), TARN_OK);
    tier_drop(t, first, 1); /* replaced: nothing to drop */
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK_EQ(stats.entries, 1);
    t = reopen(t, &c);
    CHECK_EQ(count_files(), 1);
    CHECK(holds(t, second, 1, 1, 1000));
    tier_get_stats(t, &stats);
    CHECK_EQ(stats.used, 4096);
    tier_close(&t);
}

TEST(files_that_go_can_be_read_until_then) {
    fresh_dir();
    struct tier_config c = config(4 * MIB);
    struct tier *t = open_tier(&c);
    size_t n = fill(t, 0, 50000);
    CHECK(n > 50 && n < 90);
    struct list gone = {0};
    uint64_t ticket = tier_poll_evict(t, list_add, &gone);
    CHECK(ticket != 0);
    CHECK_EQ(tier_poll_evict(t, list_add, &gone), 0);
    CHECK(list_find(&gone, 0) != NULL && list_find(&gone, n - 1) == NULL);
    CHECK(client_reads(t, 0, 1, 1, 50000));
    tier_drop(t, gone.items[0].offset, gone.items[0].version);
    tier_evicted(t, ticket);
    t = reopen(t, &c);
    CHECK(!client_reads(t, 0, 1, 1, 50000));
    churn(t, 1000, 200, 50000, &gone);
    free(gone.items);
    tier_close(&t);
    CHECK(count_files() < n + 1);
}

/* --- bounds --- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
    unsigned done;
} door = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
static void on_put_wait(void *arg, tarn_status status, uint64_t offset) {
    (void)arg, (void)status, (void)offset;
    pthread_mutex_lock(&door.lock);
    while (!door.open) pthread_cond_wait(&door.cond, &door.lock);
    door.done++;
    pthread_mutex_unlock(&door.lock);
}
static void on_read_wait(void *arg, tarn_status status) {
    on_put_wait(arg, status, 0);
}

TEST(the_queue_is_bounded) {
    fresh_dir();
    struct tier_config c = config(100 * MIB);
    c.queue_bytes = 4 * MIB;
    c.read_bytes = MIB;
    struct tier *t = open_tier(&c);
    char *value = make_value(100000, 1, 1);
    unsigned puts = 0, reads = 0;
    uint64_t offset;
    CHECK_EQ(put(t, 1000, 1, 100000, &offset), TARN_OK);
    for (;; puts++) { /* with the first callback held up, the rest waits in line */
        char key[64];
        make_key(key, puts);
        struct iovec iov = {value, 100000};
        struct tier_item item = {.key = span_str(key), .version = 1, .size = 100000};
        tarn_status s = tier_put(t, &item, false, &iov, 1, on_put_wait, NULL);
        if (s == TARN_EAGAIN) break;
        CHECK_EQ(s, TARN_OK);
        CHECK(puts < 1000); /* those whose file is written do not count any more */
    }
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK(stats.queued_bytes <= c.queue_bytes && stats.queue_full > 0);
    static char buffers[16][100000];
    while (reads < 16 &&
           tier_read(t, offset, 100000, buffers[reads], on_read_wait, NULL) == TARN_OK)
        reads++;
    CHECK(reads >= 10 && reads < 16); /* each thread may hold one whose callback waits */
    pthread_mutex_lock(&door.lock);
    door.open = true;
    pthread_cond_broadcast(&door.cond);
    pthread_mutex_unlock(&door.lock);
    tier_close(&t);
    CHECK_EQ(door.done, puts + reads);
    free(value);
}

/* --- opening --- */

TEST(arguments_that_make_no_sense) {
    fresh_dir();
    struct tier *t = NULL;
    const char *why = NULL;
    struct tier_config c = config(1000);
    CHECK_EQ(tier_open("file", &c, &t, &why), TARN_EINVAL);
    c = config(4 * MIB);
    c.cluster = NULL;
    CHECK_EQ(tier_open("file", &c, &t, &why), TARN_EINVAL);
    c = config(4 * MIB);
    c.path = "/nonexistent/dir";
    CHECK_EQ(tier_open("file", &c, &t, &why), TARN_EIO);
}

static void overwrite(const char *path, off_t at, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, bytes, n, at), (ssize_t)n);
    close(fd);
}

TEST(damaged_files_are_removed_and_others_left_alone) {
    fresh_dir();
    struct tier_config c = config(100 * MIB);
    struct tier *t = open_tier(&c);
    char paths[8][600];
    for (uint64_t i = 0; i < 8; i++) {
        CHECK_EQ(put(t, i, 1, 5000, NULL), TARN_OK);
        path_of(t, i, 1, paths[i]);
    }
    uint8_t content[TIER_CONTENT_SIZE];
    memcpy(content, tier_get_info(t)->content, sizeof(content));
    char other[700], half[700];
    snprintf(other, sizeof(other), "%s/notes.txt", tier_get_info(t)->directory);
    snprintf(half, sizeof(half), "%s/tmp/77", tier_get_info(t)->directory);
    tier_close(&t);
    fclose(fopen(other, "w"));
    fclose(fopen(half, "w"));
    CHECK_EQ(truncate(paths[1], 5003), 0);
    CHECK_EQ(truncate(paths[2], 0), 0);
    overwrite(paths[3], 5003, "x", 1); /* the key */
    overwrite(paths[4], 5000 + 5 + (off_t)offsetof(struct files_trailer, crc), "\x99\x98", 2);
    /* A whole file under the name of another key, and one twice. */
    char wrong[700];
    snprintf(wrong, sizeof(wrong), "%s", paths[5]);
    wrong[strlen(wrong) - 20] ^= 1;
    if (wrong[strlen(wrong) - 20] > '9' && wrong[strlen(wrong) - 20] < 'a')
        wrong[strlen(wrong) - 20] = 'b';
    CHECK_EQ(rename(paths[5], wrong), 0);
    snprintf(wrong, sizeof(wrong), "%s", paths[6]);
    wrong[strlen(wrong) - 1] = '9';
    CHECK_EQ(link(paths[6], wrong), 0);
    t = open_tier(&c);
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK_EQ(stats.damaged, 6);
    CHECK_EQ(stats.recovered, 3);
    CHECK(memcmp(content, tier_get_info(t)->content, sizeof(content)) != 0);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 3);
    CHECK(list_find(&l, 0) && list_find(&l, 6) && list_find(&l, 7));
    for (size_t i = 0; i < l.n; i++) CHECK(holds(t, l.items[i].offset, l.items[i].id, 1, 5000));
    free(l.items);
    CHECK_EQ(access(other, F_OK), 0);
    CHECK(access(half, F_OK) != 0);
    tier_close(&t);
    CHECK_EQ(count_files(), 4);
}

TEST(a_full_file_system_makes_room) {
    fresh_dir();
    char mount_point[300], command[700];
    snprintf(mount_point, sizeof(mount_point), "%s/small", test_dir);
    CHECK_EQ(mkdir(mount_point, 0700), 0);
    snprintf(command, sizeof(command), "mount -t tmpfs -o size=8m none '%s' 2>/dev/null",
             mount_point);
    if (system(command) != 0) SKIP("no right to mount a tmpfs");
    struct tier_config c = config(100 * MIB);
    c.path = mount_point;
    struct tier *t = NULL;
    const char *why = "";
    tarn_status opened = tier_open("file", &c, &t, &why), full = TARN_OK, later = TARN_ERR;
    struct list gone = {0};
    if (opened == TARN_OK) {
        uint64_t id = 0;
        while (id < 200 && full == TARN_OK) full = put(t, id++, 1, 100000, NULL);
        for (int i = 0; i < 100 && later != TARN_OK; i++) {
            evict_all(t, &gone);
            later = put(t, id, 1, 100000, NULL);
        }
        tier_close(&t);
    }
    snprintf(command, sizeof(command), "umount '%s'", mount_point);
    CHECK_EQ(system(command), 0);
    CHECK_EQ(opened, TARN_OK);
    CHECK_EQ(full, TARN_ENOSPACE);
    CHECK(gone.n > 0);
    CHECK_EQ(later, TARN_OK);
    free(gone.items);
}

/* --- kill -9 --- */

struct said {
    uint64_t id, size, offset;
};
static int said_pipe;
static void say_put(void *arg, tarn_status status, uint64_t offset) {
    struct said *s = arg;
    s->offset = offset;
    if (status != TARN_OK || write(said_pipe, s, sizeof(*s)) != sizeof(*s)) _exit(3);
    free(s);
}

static void child_run(uint64_t first, uint64_t seed) {
    struct tier_config c = config(400 * MIB);
    c.queue_bytes = MIB;
    struct tier *t = open_tier(&c);
    struct rng r;
    rng_seed(&r, seed);
    for (uint64_t id = first;;) {
        char key[64];
        make_key(key, id);
        struct said *s = xcalloc(1, sizeof(*s));
        *s = (struct said){.id = id, .size = rng_below(&r, 50000)};
        char *value = make_value(s->size, id, 1);
        struct iovec iov = {value, s->size};
        struct tier_item item = {.key = span_str(key), .version = 1, .size = s->size};
        if (tier_put(t, &item, false, &iov, 1, say_put, s) == TARN_OK) {
            id++;
        } else {
            free(s);
            usleep(100);
        }
        free(value);
    }
}

TEST(killed_at_any_point_everything_acknowledged_is_there) {
    fresh_dir();
    struct tier_config c = config(400 * MIB);
    struct rng r;
    rng_seed(&r, 8);
    static struct said all[20000];
    uint64_t next = 0, n = 0;
    for (int round = 0; round < ROUNDS(20); round++) {
        int fds[2];
        CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
        uint64_t seed = rng_next(&r), messages = n + rng_below(&r, 100);
        pid_t pid = fork();
        CHECK(pid >= 0);
        said_pipe = fds[1];
        if (pid == 0) child_run(next, seed);
        close(fds[1]);
        bool killed = false;
        struct said s;
        while (read(fds[0], &s, sizeof(s)) == sizeof(s)) {
            CHECK(n < ARRAY_LEN(all));
            all[n++] = s;
            if (s.id >= next) next = s.id + 1;
            if (n >= messages && !killed) kill(pid, SIGKILL), killed = true;
        }
        int status;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status));
        close(fds[0]);
        next += 100; /* what was under way */
        struct tier *t = open_tier(&c);
        struct tier_stats stats;
        tier_get_stats(t, &stats);
        CHECK_EQ(stats.damaged, 0);
        struct list l = list_tier(t);
        CHECK(l.n >= n);
        CHECK_EQ(count_wrong(t, &l), 0);
        for (uint64_t i = 0; i < n; i++) CHECK(holds(t, all[i].offset, all[i].id, 1, all[i].size));
        free(l.items);
        tier_close(&t);
    }
}

TEST_MAIN()
