/* Which devices operations go by: all of them, one, the nearest. */
#include <sys/stat.h>

#include "active.h"

#define MB (1u << 20)

/* By both keys. */
static bool device_used(unsigned device) {
    bool used[2] = {false, false};
    for (int w = 0; w < 2; w++) {
        const struct rdma_rail *r;
        TAILQ_FOREACH(r, &a.key[w]->rails, link) {
            if (r->device->index == device) used[w] |= (w == 0 ? r->reads : r->writes) > 0;
        }
    }
    return used[0] && used[1];
}

/* Queue pairs that are on their way have a second, in which somebody must look at them. */
static void let_all_come(void) {
    uint64_t limit = clock_mono_ms() + TEST_PATIENCE_MS;
    while (a.key[0]->coming + a.key[1]->coming > 0 && clock_mono_ms() < limit) turn();
}

/* Of a failure that does not come back when it is looked for. */
static void show_rails(void) {
    struct buf b = {0};
    rdma_work_describe(a.client, &b);
    printf("%.*s\n", (int)b.len, b.data);
    buf_free(&b);
}

TEST(large_operations_use_every_device) {
    begin("devices=4", 32 * MB, NULL);
    uint8_t *data = malloc(32 * MB);
    fill(data, 32 * MB, 1);
    uint64_t limit = clock_mono_ms() + TEST_PATIENCE_MS;
    unsigned used = 0;
    /* The first ones may be over before the last device's queue pairs are there. */
    for (uint8_t round = 1; used < 4 && clock_mono_ms() < limit; round++) {
        memset(data, round, MB);
        CHECK_EQ(move(true, 0, data, 32 * MB), TARN_OK);
        let_all_come();
        CHECK(memcmp(data, segment_data(), 32 * MB) == 0);
        CHECK_EQ(move(false, 0, data, 32 * MB), TARN_OK);
        let_all_come();
        used = 0;
        for (unsigned i = 0; i < 4; i++) used += device_used(i);
    }
    if (used < 4) show_rails();
    CHECK_EQ(used, 4);
    for (int w = 0; w < 2; w++) CHECK(a.key[w]->up <= rdma_options.rails);
    free(data);
    end();
}

static bool all_places_taken(void) {
    return a.key[1]->up == rdma_options.rails && a.key[1]->coming == 0;
}

static bool writes_by(const char *device) {
    const struct rdma_rail *r;
    TAILQ_FOREACH(r, &a.key[1]->rails, link) {
        if (strcmp(r->device->name, device) == 0 && r->writes > 0) return true;
    }
    return false;
}

/* The others have all the rails there may be when it comes back, and there is always something to
 * do. */
TEST(a_device_that_was_away_takes_part_again) {
    static const char *const options[] = {"connect-timeout-ms", "50", "rails", "6", NULL};
    begin("devices=4", 32 * MB, options);
    uint8_t *data = calloc(1, 32 * MB);
    fake_port("fake3", false);
    CHECK(WAIT(!rdma_device_usable(rdma_device_at(3))));
    uint64_t limit = clock_mono_ms() + TEST_PATIENCE_MS;
    while (!all_places_taken() && clock_mono_ms() < limit)
        CHECK_EQ(move(true, 0, data, 32 * MB), TARN_OK);
    CHECK(all_places_taken());
    CHECK_EQ(count_rails(NULL, "fake3"), 0);
    fake_port("fake3", true);
    CHECK(WAIT(rdma_device_usable(rdma_device_at(3))));
    limit = clock_mono_ms() + TEST_PATIENCE_MS;
    while (!writes_by("fake3") && clock_mono_ms() < limit)
        CHECK_EQ(move(true, 0, data, 32 * MB), TARN_OK);
    if (!writes_by("fake3")) show_rails();
    CHECK(writes_by("fake3"));
    /* it is not one more: one of a crowd has gone */
    CHECK(WAIT(a.key[1]->up <= rdma_options.rails));
    for (unsigned i = 0; i < 4; i++) CHECK(count_rails("up", rdma_device_at(i)->name) > 0);
    free(data);
    end();
}

/* A pair of devices that is slow to answer, or a machine that is, gets another one beside it. */
static bool first_is_quick(bool put, char *data, size_t len) {
    uint64_t began = clock_boot_ms();
    CHECK_EQ(move(put, 0, data, len), TARN_OK);
    return clock_boot_ms() - began < RDMA_NEXT_PAIR_MS / 2;
}

TEST(small_operations_use_one_rail) {
    begin("devices=4", MB, NULL);
    char data[100];
    bool quick = first_is_quick(false, data, sizeof(data));
    uint64_t connects = counters()->connects;
    CHECK(!quick || connects == 1);
    for (int i = 0; i < 50; i++) CHECK_EQ(move(false, 0, data, sizeof(data)), TARN_OK);
    CHECK_EQ(counters()->connects, connects);
    CHECK(!quick || count_rails("up", NULL) == 1);
    end();
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    for (char *p = path + 5; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(path, 0755);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
}

static void remove_path(const char *dir, int number, const char *below) {
    char path[256];
    snprintf(path, sizeof(path), "%s/fake%d%s", dir, number, below);
    CHECK_EQ(remove(path), 0);
}

TEST(the_nearest_device_first) {
    static char data[4 * MB];
    data[0] = 1;
    int node = rdma_numa_node_of(data);
    if (node < 0) SKIP("this machine does not tell where memory is");
    char dir[] = "/tmp/tarn-rdma-XXXXXX", fake[128], here[16], there[16];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(here, sizeof(here), "%d\n", node);
    snprintf(there, sizeof(there), "%d\n", node + 1);
    write_file(dir, "fake0/device/numa_node", there);
    write_file(dir, "fake1/device/numa_node", here);
    write_file(dir, "fake2/device/numa_node", there);
    snprintf(fake, sizeof(fake), "devices=3,sysfs=%s", dir);
    begin(fake, 8 * MB, NULL);
    CHECK_EQ(rdma_device_at(1)->numa_node, node);
    bool quick = first_is_quick(true, data, 100000);
    CHECK(!quick || (count_rails("up", "fake1") == 1 && count_rails(NULL, NULL) == 1));
    /* Farther ones help when there is more to do than it can take. */
    fill(data, sizeof(data), 1);
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    uint64_t near = 0, far = 0;
    struct rdma_rail *r;
    TAILQ_FOREACH(r, &a.key[1]->rails, link)
        *(strcmp(r->device->name, "fake1") == 0 ? &near : &far) += r->writes;
    CHECK(!quick || near > far / 2);
    end();
    for (int i = 0; i < 3; i++) {
        static const char *const below[] = {"/device/numa_node", "/device", ""};
        for (size_t k = 0; k < ARRAY_LEN(below); k++) remove_path(dir, i, below[k]);
    }
    CHECK_EQ(rmdir(dir), 0);
}

TEST_MAIN()
