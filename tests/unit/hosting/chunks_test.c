/* How the memory of a node is cut up for several masters, and which files are found again. */
#include "hosting/chunks.h"

#include <fcntl.h>
#include <unistd.h>

#include "../test.h"
#include "base/log.h"
#include "pool/pool.h"

#define MB (UINT64_C(1) << 20)

static struct node_chunks c;
static struct slot_map *map;
static tarn_host_segment segments[2];
static tarn_host_options o;
static char file[256];

/* shards: rows of "name slots", each with a newline. */
static void map_is(const char *shards) {
    char text[1024] = "tarn-slots 1\nepoch 7\n", error[SLOT_MAP_ERROR_SIZE] = "", name[64],
         slots[64];
    int used;
    for (const char *s = shards; sscanf(s, "%63s %63s\n%n", name, slots, &used) == 2; s += used) {
        size_t len = strlen(text);
        snprintf(text + len, sizeof(text) - len, "shard %s 0 10.0.0.1:%zu %s\n", name, len, slots);
    }
    slot_map_destroy(&map);
    map = slot_map_read(span_str(text), error);
    CHECK_STR(error, "");
}

static void memory_is(uint64_t bytes, const char *path) {
    tarn_host_options_init(&o);
    segments[0] = (tarn_host_segment){.bytes = bytes, .numa_node = -1, .path = path};
    o.segments = segments;
    o.n_segments = 1;
}

static void plan(void) {
    CHECK_EQ(chunks_plan(&c, &o, map), TARN_OK);
}

/* Each number once, and no byte lost but what makes no page. */
static void check_whole(uint64_t bytes) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < c.n; i++) {
        sum += c.chunk[i].bytes;
        for (unsigned k = 0; k < i; k++) CHECK(c.chunk[i].number != c.chunk[k].number);
    }
    CHECK_EQ(sum, bytes);
}

static void set_up(void) {
    const char *dir = getenv("TMPDIR");
    log_set_level(LOG_LEVEL_NOTHING);
    snprintf(file, sizeof(file), "%s/tarn-chunks-XXXXXX", dir != NULL ? dir : "/tmp");
    CHECK(mkdtemp(file) != NULL);
    snprintf(file + strlen(file), sizeof(file) - strlen(file), "/pool");
}

/* A pool file of that name; how the node leaves it behind. */
static void leave_file(const char *name, uint64_t bytes) {
    char path[512];
    struct pool *pool;
    const char *why;
    snprintf(path, sizeof(path), "%s.%s", file, name);
    struct pool_config config = {.name = name, .size = bytes, .path = path, .numa_node = -1};
    CHECK_EQ(pool_open(&config, &pool, &why), TARN_OK);
    pool_close(&pool);
}

static bool file_is_there(const char *name) {
    char path[512];
    snprintf(path, sizeof(path), "%s.%s", file, name);
    return access(path, F_OK) == 0;
}

static void tear_down(void) {
    char command[600];
    *strrchr(file, '/') = '\0';
    snprintf(command, sizeof(command), "rm -rf %s", file);
    CHECK_EQ(system(command), 0);
    slot_map_destroy(&map);
}

TEST(shares_go_by_slots) {
    map_is("a 0-8191\nb 8192-12287\nc 12288-16383\n");
    memory_is(256 * MB, NULL);
    plan();
    CHECK_EQ(c.n, 32);
    check_whole(256 * MB);
    CHECK_EQ(chunks_bytes(&c, 0), 128 * MB);
    CHECK_EQ(chunks_bytes(&c, 1), 64 * MB);
    CHECK_EQ(chunks_bytes(&c, 2), 64 * MB);
    CHECK(chunk_path(&o, &c.chunk[0], "a") == NULL);
    slot_map_destroy(&map);
}

TEST(who_has_no_slots_gets_one_chunk) {
    map_is("a 0-16383\nb -\n");
    memory_is(64 * MB + 12288 + 5, NULL);
    plan();
    CHECK_EQ(chunks_count(&c, 1), 1);
    check_whole(64 * MB + 12288);
    slot_map_destroy(&map);
}

TEST(there_must_be_a_chunk_for_each) {
    map_is("a 0-8191\nb 8192-12287\nc 12288-16383\n");
    memory_is(5 * MB, NULL);
    CHECK_EQ(chunks_plan(&c, &o, map), TARN_EINVAL);
    memory_is(6 * MB, NULL);
    plan();
    for (unsigned i = 0; i < 3; i++) CHECK_EQ(chunks_bytes(&c, i), 2 * MB);
    slot_map_destroy(&map);
}

TEST(files_are_their_shards) {
    set_up();
    map_is("a 0-8191\nb 8192-16383\n");
    leave_file("a.3", 6 * MB);
    leave_file("b.4", 6 * MB);
    leave_file("gone.5", 6 * MB);
    leave_file("a.b.c", 6 * MB);  /* none of ours */
    leave_file("n2.a.0", 6 * MB); /* a chunk of another node, whose FILE is this one's and ".n2" */
    memory_is(64 * MB, file);
    plan();
    check_whole(64 * MB);
    CHECK_EQ(c.chunk[0].bytes, 6 * MB);
    for (unsigned i = 0; i < c.n; i++) {
        if (c.chunk[i].number == 3) CHECK_EQ(c.chunk[i].shard, 0);
        if (c.chunk[i].number == 4) CHECK_EQ(c.chunk[i].shard, 1);
    }
    CHECK_EQ(chunks_bytes(&c, 0), 32 * MB);
    CHECK(file_is_there("a.3") && file_is_there("a.b.c") && !file_is_there("gone.5"));
    CHECK(file_is_there("n2.a.0"));
    char *path = chunk_path(&o, &(struct node_chunk){.number = 9}, "b");
    CHECK(strcmp(path + strlen(file), ".b.9") == 0);
    free(path);
    tear_down();
}

TEST(a_new_master_gets_what_another_had) {
    set_up();
    map_is("a 0-8191\nb 8192-16383\nc -\n");
    leave_file("a.0", 4 * MB);
    leave_file("a.1", 4 * MB);
    leave_file("b.2", 4 * MB);
    memory_is(12 * MB, file);
    plan();
    for (unsigned i = 0; i < 3; i++) CHECK_EQ(chunks_bytes(&c, i), 4 * MB);
    CHECK(file_is_there("a.0") && !file_is_there("a.1") && file_is_there("b.2"));
    tear_down();
}

TEST(a_file_of_the_time_of_one_master_goes) {
    struct pool *pool;
    const char *why;
    set_up();
    struct pool_config config = {.name = "n1.0", .size = 4 * MB, .path = file, .numa_node = -1};
    map_is("a 0-8191\nb 8192-16383\n");
    memory_is(8 * MB, file);
    CHECK_EQ(pool_open(&config, &pool, &why), TARN_OK);
    CHECK_EQ(chunks_plan(&c, &o, map), TARN_EBUSY); /* somebody has it */
    CHECK(access(file, F_OK) == 0);
    pool_close(&pool);
    plan();
    check_whole(8 * MB);
    CHECK(access(file, F_OK) != 0);
    /* What is no pool is no business of ours. */
    FILE *other = fopen(file, "w");
    CHECK(other != NULL && fputs("words", other) >= 0 && fclose(other) == 0);
    plan();
    CHECK(access(file, F_OK) == 0);
    tear_down();
}

TEST(files_that_are_too_large) {
    set_up();
    map_is("a 0-8191\nb 8192-16383\n");
    leave_file("a.0", 4 * MB);
    leave_file("b.1", 4 * MB);
    leave_file("b.2", 4 * MB);
    memory_is(8 * MB, file);
    CHECK_EQ(chunks_plan(&c, &o, map), TARN_EEXISTS);
    CHECK(file_is_there("b.2"));
    o.shrink = 1;
    plan();
    check_whole(8 * MB);
    CHECK(file_is_there("a.0") && file_is_there("b.1") && !file_is_there("b.2"));
    memory_is(8 * MB, "/no/such/directory/pool");
    CHECK_EQ(chunks_plan(&c, &o, map), TARN_EINVAL);
    tear_down();
}

TEST_MAIN()
