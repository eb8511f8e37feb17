/* What is written is read again; what is torn is cut; what is damaged is told. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../test.h"
#include "base/rng.h"
#include "persist/format.h"
#include "persist/persist.h"

static char dir[64], path[96];
static struct buf seen;

static void begin(void) {
    strcpy(dir, "/tmp/tarn-persist-XXXXXX");
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/books", dir);
    buf_clear(&seen);
}

static void end(void) {
    unlink(path);
    CHECK_EQ(rmdir(dir), 0); /* nothing temporary is left */
    buf_free(&seen);
}

static void add(struct buf *b, unsigned kind, const void *data, uint32_t len) {
    uint32_t n = len + 1;
    buf_append(b, &n, 4);
    buf_append_char(b, (char)kind);
    if (len > 0) buf_append(b, data, len);
}

static tarn_status note(void *arg, unsigned kind, struct span record) {
    (void)arg, (void)kind;
    buf_append(&seen, record.data, record.len);
    return TARN_OK;
}

static const struct persist_visitor noting = {.record = note};
static const struct persist_header header = {.cluster_id = {1, 2, 3},
                                             .replid = "0123456789012345678901234567890123456789",
                                             .offset = 77,
                                             .wall_ms = 5,
                                             .master_epoch = 9};

static void write_frame(struct persist_writer *w, struct buf *all, const char *text) {
    struct buf b = {0};
    add(&b, 1, text, (uint32_t)strlen(text));
    add(&b, 2, "x", 1);
    persist_write(w, span_of(b.data, b.len));
    buf_append(all, b.data, b.len);
    buf_free(&b);
}

static void write_end(struct persist_writer *w, uint64_t objects) {
    struct buf b = {0};
    add(&b, PERSIST_END_KIND, &objects, 8);
    persist_write(w, span_of(b.data, b.len));
    buf_free(&b);
}

/* A snapshot of two frames and three appended ones; *all is what its records are. */
static uint64_t make(struct buf *all) {
    struct persist_writer *w;
    CHECK_EQ(persist_create(path, &header, &w), TARN_OK);
    CHECK(access(path, F_OK) != 0);
    write_frame(w, all, "first");
    write_frame(w, all, "second");
    write_end(w, 2);
    CHECK_EQ(persist_publish(w), TARN_OK);
    CHECK(access(path, F_OK) == 0);
    write_frame(w, all, "third");
    CHECK_EQ(persist_flush(w), TARN_OK);
    persist_sync_later(w);
    write_frame(w, all, "fourth");
    write_frame(w, all, "fifth");
    CHECK(persist_pending(w) > 0);
    CHECK_EQ(persist_sync(w), TARN_OK);
    CHECK_EQ(persist_sync_status(w), TARN_OK);
    uint64_t size = persist_size(w);
    persist_close(&w);
    return size;
}

static struct persist_found look(tarn_status expected) {
    struct persist_found f;
    buf_clear(&seen);
    CHECK_EQ(persist_read(path, &noting, &f), expected);
    return f;
}

TEST(there_and_back) {
    begin();
    struct buf all = {0};
    uint64_t size = make(&all);
    struct persist_found f = look(TARN_OK);
    CHECK_EQ(f.size, size);
    CHECK_EQ(f.whole, size);
    CHECK_EQ(f.objects, 2);
    CHECK_EQ(f.appended, 3);
    CHECK(f.snapshot_whole && !f.torn && f.damage == NULL);
    CHECK_EQ(f.header.offset, 77);
    CHECK(strcmp(f.header.replid, header.replid) == 0);
    CHECK(seen.len == all.len && memcmp(seen.data, all.data, all.len) == 0);
    struct stat st;
    CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    buf_free(&all);
    end();
}

TEST(what_is_not_published_is_not_there) {
    begin();
    struct buf all = {0};
    struct persist_writer *w;
    struct persist_found f;
    CHECK_EQ(persist_create(path, &header, &w), TARN_OK);
    write_frame(w, &all, "first");
    CHECK_EQ(persist_flush(w), TARN_OK);
    persist_close(&w);
    CHECK_EQ(persist_read(path, &noting, &f), TARN_ENOTFOUND);
    buf_free(&all);
    end();
}

/* Wherever the file ends: everything that was whole before is there, and appending goes on. */
TEST(cut_anywhere) {
    begin();
    struct buf all = {0};
    uint64_t size = make(&all);
    char *bytes = malloc(size);
    int fd = open(path, O_RDONLY);
    CHECK_EQ(read(fd, bytes, size), (ssize_t)size);
    close(fd);
    struct persist_found full = look(TARN_OK);
    uint64_t cut_ok = 0;
    for (uint64_t at = 0; at < size; at++) {
        fd = open(path, O_WRONLY | O_TRUNC);
        CHECK_EQ(write(fd, bytes, at), (ssize_t)at);
        close(fd);
        struct persist_found f;
        buf_clear(&seen);
        tarn_status s = persist_read(path, &noting, &f);
        if (at < sizeof(struct persist_disk_header)) {
            CHECK_EQ(s, TARN_EPROTO);
            continue;
        }
        if (!f.snapshot_whole) {
            CHECK_EQ(s, TARN_ECORRUPT);
            continue;
        }
        cut_ok++;
        CHECK_EQ(s, TARN_OK);
        CHECK_EQ(f.torn, f.whole != at);
        CHECK(seen.len <= all.len && (seen.len == 0 || memcmp(seen.data, all.data, seen.len) == 0));
        struct persist_writer *w;
        struct buf more = {0};
        CHECK_EQ(persist_open(path, f.whole, &w), TARN_OK);
        write_frame(w, &more, "again");
        CHECK_EQ(persist_flush(w), TARN_OK);
        persist_close(&w);
        size_t before = seen.len;
        f = look(TARN_OK);
        CHECK(!f.torn);
        CHECK_EQ(seen.len, before + more.len);
        CHECK(memcmp(seen.data + before, more.data, more.len) == 0);
        buf_free(&more);
    }
    CHECK(cut_ok > 50);
    CHECK_EQ(full.appended, 3);
    free(bytes);
    buf_free(&all);
    end();
}

/* A flipped bit is damage, or, in the last frame, an end that was never written whole. Never other
 * records. */
TEST(a_bit_anywhere) {
    begin();
    struct buf all = {0};
    uint64_t size = make(&all);
    int fd = open(path, O_RDWR);
    unsigned damaged = 0;
    for (uint64_t bit = 0; bit < 8 * size; bit++) {
        char byte;
        CHECK_EQ(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
        byte ^= (char)(1u << bit % 8);
        CHECK_EQ(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
        struct persist_found f;
        buf_clear(&seen);
        tarn_status s = persist_read(path, &noting, &f);
        CHECK(s != TARN_OK || f.torn);
        damaged += s == TARN_ECORRUPT;
        if (s == TARN_ECORRUPT) CHECK(f.damage != NULL);
        CHECK(seen.len < all.len && (seen.len == 0 || memcmp(seen.data, all.data, seen.len) == 0));
        byte ^= (char)(1u << bit % 8);
        CHECK_EQ(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
    }
    close(fd);
    CHECK(damaged > 100);
    buf_free(&all);
    end();
}

/* A snapshot of 1000 records that are alike, packed or not. Returns its size. */
static uint64_t make_packed(struct buf *all, bool packed) {
    struct persist_writer *w;
    struct persist_header h = header;
    struct buf b = {0};
    h.packed = packed;
    CHECK_EQ(persist_create(path, &h, &w), TARN_OK);
    for (int i = 0; i < 1000; i++) {
        char text[64];
        snprintf(text, sizeof(text), "model:layer:%d:block:%d", i % 7, i);
        add(&b, 1, text, (uint32_t)strlen(text));
    }
    packed ? persist_write_packed(w, span_of(b.data, b.len))
           : persist_write(w, span_of(b.data, b.len));
    buf_append(all, b.data, b.len);
    buf_free(&b);
    write_end(w, 1000);
    write_frame(w, all, "appended");
    CHECK_EQ(persist_publish(w), TARN_OK);
    uint64_t size = persist_size(w);
    persist_close(&w);
    return size;
}

TEST(packed_frames) {
    struct buf all = {0}, same = {0};
    begin();
    uint64_t plain = make_packed(&same, false);
    struct persist_found f = look(TARN_OK);
    CHECK(!f.header.packed);
    uint64_t small = make_packed(&all, true);
    CHECK(small < plain / 2);
    f = look(TARN_OK);
    CHECK(f.header.packed && f.objects == 1000 && f.appended == 1 && f.whole == small);
    CHECK(seen.len == all.len && memcmp(seen.data, all.data, all.len) == 0);
    buf_free(&all);
    buf_free(&same);
    end();
}

/* The checksum is right, and still it is no block, or one of another size. */
TEST(packed_frames_of_somebody_who_was_wrong) {
    struct buf all = {0};
    begin();
    for (unsigned change = 0; change < 4; change++) {
        struct persist_frame frame;
        char bytes[64 * 1024];
        make_packed(&all, true);
        int fd = open(path, O_RDWR);
        CHECK(pread(fd, &frame, sizeof(frame), 128) == (ssize_t)sizeof(frame));
        uint32_t length = frame.length & ~PERSIST_PACKED, raw;
        CHECK(frame.length & PERSIST_PACKED && length < sizeof(bytes));
        CHECK(pread(fd, bytes, length, 128 + sizeof(frame)) == (ssize_t)length);
        memcpy(&raw, bytes, sizeof(raw));
        raw = change == 0 ? raw - 1 : change == 1 ? raw + 1 : change == 2 ? UINT32_MAX : 0;
        memcpy(bytes, &raw, sizeof(raw));
        frame.crc = persist_frame_crc(128, span_of(bytes, length));
        CHECK(pwrite(fd, &frame, sizeof(frame), 128) == (ssize_t)sizeof(frame));
        CHECK(pwrite(fd, bytes, length, 128 + sizeof(frame)) == (ssize_t)length);
        close(fd);
        struct persist_found f = look(TARN_ECORRUPT);
        CHECK(f.damage != NULL && strstr(f.damage, "packed frame") != NULL);
        buf_clear(&all);
    }
    buf_free(&all);
    end();
}

TEST(zeroes_at_the_end) {
    begin();
    struct buf all = {0};
    uint64_t size = make(&all);
    CHECK_EQ(truncate(path, (off_t)size + 10000), 0);
    struct persist_found f = look(TARN_OK);
    CHECK(f.torn);
    CHECK_EQ(f.whole, size);
    int fd = open(path, O_WRONLY);
    CHECK_EQ(pwrite(fd, "x", 1, (off_t)size + 9000), 1);
    close(fd);
    f = look(TARN_ECORRUPT);
    CHECK_EQ(f.whole, size);
    buf_free(&all);
    end();
}

/* What a disk has no room for is kept, and written when there is some. */
TEST(a_disk_without_room) {
    struct persist_writer *w;
    struct rlimit old, small;
    begin();
    struct buf all = {0};
    make(&all);
    struct persist_found f = look(TARN_OK);
    CHECK_EQ(persist_open(path, f.whole, &w), TARN_OK);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = f.whole + 20;
    signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    write_frame(w, &all, "a frame of more than twenty bytes");
    CHECK_EQ(persist_flush(w), TARN_EIO);
    CHECK_EQ(errno, EFBIG);
    CHECK(persist_pending(w) > 0);
    CHECK_EQ(look(TARN_OK).size, f.whole); /* nothing torn is left, though twenty bytes fitted */
    write_frame(w, &all, "and another one");
    small.rlim_cur = f.whole + 70; /* the first one fits, the second one not wholly */
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    CHECK_EQ(persist_flush(w), TARN_EIO);
    CHECK(!look(TARN_OK).torn);
    CHECK(look(TARN_OK).size > f.whole);
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
    CHECK_EQ(persist_flush(w), TARN_OK);
    CHECK_EQ(persist_pending(w), 0);
    persist_close(&w);
    f = look(TARN_OK);
    CHECK(!f.torn);
    CHECK(seen.len == all.len && memcmp(seen.data, all.data, all.len) == 0);
    CHECK_EQ(persist_create("/nonexistent/books", &header, &w), TARN_EIO);
    CHECK_EQ(errno, ENOENT);
    buf_free(&all);
    end();
}

TEST_MAIN()
