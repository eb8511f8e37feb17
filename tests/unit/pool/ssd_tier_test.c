/* The ssd tier as its owner sees it. */
#include "ssd_util.h"
#include "tier_suite.h"

#include "pool/ssd_format.h"
#include "pool/ssd_io.h"

TEST(the_same_without_o_direct) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    c.direct = false;
    round_trip(c);
}
TEST(the_same_without_io_uring) {
    ssd_io_forbid_uring(true);
    fresh_dir();
    round_trip(config(64 * MIB));
    ssd_io_forbid_uring(false);
}

static struct {
    struct rng rng;
    unsigned long calls;
} shorten;
static int fault_short(void *arg, bool write, uint64_t offset, size_t *length) {
    (void)arg, (void)write, (void)offset;
    shorten.calls++;
    /* O_DIRECT moves whole blocks. */
    if (*length > 4096 && rng_below(&shorten.rng, 2))
        *length = 4096 * (1 + rng_below(&shorten.rng, *length / 4096));
    return 0;
}
TEST(short_transfers_are_continued) {
    rng_seed(&shorten.rng, 5);
    ssd_io_set_fault(fault_short, NULL);
    fresh_dir();
    round_trip(config(64 * MIB));
    ssd_io_set_fault(NULL, NULL);
    CHECK(shorten.calls > 0);
}

TEST(arguments_that_make_no_sense) {
    fresh_dir();
    struct tier *t = NULL;
    const char *why = NULL;
    struct tier_config c = config(2 * MIB);
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EINVAL);
    CHECK(why != NULL);
    c = config(64 * MIB);
    CHECK_EQ(tier_open("tape", &c, &t, &why), TARN_EINVAL);
    c.path = "";
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EINVAL);
    c.path = "/nonexistent/tarn.ssd";
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EIO);
    c.path = "/dev/null";
    CHECK_EQ(tier_open("ssd", &c, &t, &why), TARN_EINVAL);
}

/* --- values larger than a region, larger than the queue --- */

TEST(large_values_take_several_regions) {
    fresh_dir();
    struct tier_config c = config(96 * MIB);
    c.queue_bytes = 8 * MIB;
    struct tier *t = open_tier(&c);
    CHECK_EQ(tier_get_info(t)->copy_max, 2 * MIB);
    static const uint64_t large[] = {2 * MIB, 2 * MIB + 1, 5 * MIB + 4095, 11 * MIB, 30 * MIB + 17};
    uint64_t offsets[2 * ARRAY_LEN(large)];
    for (size_t i = 0; i < ARRAY_LEN(large); i++) {
        CHECK_EQ(put(t, i, 1, large[i], &offsets[2 * i]), TARN_OK);
        CHECK_EQ(put(t, 100 + i, 1, 1000, &offsets[2 * i + 1]), TARN_OK);
    }
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < ARRAY_LEN(large); i++) {
            CHECK(holds(t, offsets[2 * i], i, 1, large[i]));
            CHECK(holds(t, offsets[2 * i + 1], 100 + i, 1, 1000));
        }
        t = reopen(t, &c);
    }
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 2 * ARRAY_LEN(large));
    for (size_t i = 0; i < ARRAY_LEN(large); i++) {
        const struct listed *e = list_find(&l, i);
        char *v = make_value(large[i], i, 1);
        CHECK_EQ(e->crc, crc32c(0, v, large[i]));
        CHECK_EQ(e->n_crcs, (large[i] + MIB - 1) / MIB);
        free(v);
    }
    free(l.items);
    tier_close(&t);
}

/* --- eviction --- */

TEST(eviction_gives_back_what_nobody_reads_any_more) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t first;
    CHECK_EQ(put(t, 0, 1, 100000, &first), TARN_OK);
    size_t n = fill(t, 1, 100000) + 1;
    CHECK(n > 100);
    CHECK_EQ(put(t, 10000, 1, 100000, NULL), TARN_EAGAIN);
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK(stats.queue_full >= 2);
    CHECK_EQ(stats.entries, n);
    struct list gone = {0};
    uint64_t tickets[64];
    size_t n_tickets = 0;
    while ((tickets[n_tickets] = tier_poll_evict(t, list_add, &gone)) != 0) n_tickets++;
    CHECK(n_tickets > 0 && gone.n > 0 && gone.n < n / 2);
    CHECK_EQ(gone.items[0].id, 0); /* nothing was read: the oldest */
    CHECK(holds(t, first, 0, 1, 100000));
    uint64_t mark = tier_mark(t, first, 100000);
    CHECK(mark != 0);
    CHECK_EQ(put(t, 10000, 1, 100000, NULL), TARN_EAGAIN);
    for (size_t i = 0; i < n_tickets; i++) tier_evicted(t, tickets[i]);
    CHECK(!holds(t, first, 0, 1, 100000));
    CHECK(tier_mark(t, first, 100000) != mark);
    CHECK_EQ(put_evicting(t, 10000, 1, 100000, NULL, &gone), TARN_OK);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(count_wrong(t, &l), 0);
    CHECK(list_find(&l, 10000) != NULL);
    for (size_t i = 0; i < gone.n; i++) CHECK(list_find(&l, gone.items[i].id) == NULL);
    CHECK_EQ(l.n + gone.n, n + 1);
    free(l.items);
    free(gone.items);
    tier_close(&t);
}

TEST(a_mark_is_of_bytes_that_are_there_and_of_no_others_ever) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t at, mark, id = 1;
    CHECK_EQ(put(t, 0, 1, 100000, &at), TARN_OK);
    mark = tier_mark(t, at, 100000);
    CHECK(mark != 0);
    CHECK_EQ(tier_mark(t, at + 5000, 95000), mark);
    CHECK_EQ(tier_mark(t, at + 5000, 95001), 0);
    CHECK_EQ(tier_mark(t, at + 8 * MIB, 1), 0);
    CHECK_EQ(tier_mark(t, 0, 1), 0);
    CHECK_EQ(tier_rename(t, at, 2), TARN_OK); /* the same bytes */
    CHECK_EQ(tier_mark(t, at, 100000), mark);
    t = reopen(t, &c);
    CHECK_EQ(tier_mark(t, at, 100000), mark);
    /* Until others are in its place. */
    struct list gone = {0};
    uint64_t other = 0;
    for (unsigned i = 0; i < 2000 && other != at; i++)
        CHECK_EQ(put_evicting(t, id++, 1, 100000, &other, &gone), TARN_OK);
    CHECK_EQ(other, at);
    CHECK(tier_mark(t, at, 100000) != mark && tier_mark(t, at, 100000) != 0);
    free(gone.items);
    tier_close(&t);
}

/* Leading ids of [from, from + n) that are not among those that went. */
static size_t leading(const struct list *gone, uint64_t from, size_t n) {
    size_t i = 0;
    while (i < n && list_find(gone, from + i) == NULL) i++;
    return i;
}

TEST(guarantee_2_a_full_disk_loses_the_tail_of_a_prompt_before_its_head) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t id = 0;
    tarn_status status = TARN_OK;
    for (util_prompt = 1; status == TARN_OK; util_prompt++)
        for (unsigned i = 0; i < 20 && (status = put(t, id, 1, 100000, NULL)) == TARN_OK; i++) id++;
    CHECK_EQ(status, TARN_EAGAIN);
    CHECK(id > 100);
    struct list gone = {0};
    size_t n_tickets = 0;
    while (tier_poll_evict(t, list_add, &gone) != 0) n_tickets++;
    util_prompt = 0;
    CHECK(n_tickets > 1 && gone.n > 2 && gone.n < 20);
    /* All of it is of the oldest prompt, and what is left of that is its head. */
    for (size_t i = 0; i < gone.n; i++) CHECK(gone.items[i].id < 20);
    /* its last may share a part with the next one's head */
    CHECK(leading(&gone, 0, 20) >= 20 - gone.n - 2);
    CHECK(leading(&gone, 0, 20) > 0);
    CHECK_EQ(leading(&gone, 20, 20), 20);
    free(gone.items);
    tier_close(&t);
}

TEST(what_is_read_stays_longer) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t first;
    CHECK_EQ(put(t, 0, 1, 100000, &first), TARN_OK);
    fill(t, 1, 100000);
    for (int i = 0; i < 20; i++) CHECK(holds(t, first, 0, 1, 100000));
    struct list gone = {0};
    CHECK(evict_all(t, &gone) > 0);
    CHECK(list_find(&gone, 0) == NULL);
    /* But not for ever. */
    for (uint64_t i = 0; list_find(&gone, 0) == NULL; i++) {
        CHECK(i < 500);
        churn(t, 1000 + 10 * i, 10, 100000, &gone);
    }
    free(gone.items);
    tier_close(&t);
}

/* Says of all parts that are to be weighed what is lost with them: little with those that hold ids
 * [from, from + n) only. How many were. */
static unsigned weigh_all(struct tier *t, uint64_t from, uint64_t n, double others) {
    unsigned parts = 0;
    uint64_t ticket;
    struct list some = {0};
    while ((ticket = tier_weigh(t, list_add, &some)) != 0) {
        CHECK(some.n > 0);
        bool little = true;
        for (size_t i = 0; i < some.n; i++)
            little = little && some.items[i].id >= from && some.items[i].id < from + n;
        tier_weighed(t, ticket, little ? 1 : others);
        some.n = 0;
        parts++;
    }
    free(some.items);
    return parts;
}

TEST(with_what_goes_least_is_lost) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    CHECK_EQ(put(t, 0, 1, 100000, NULL), TARN_OK);
    CHECK_EQ(weigh_all(t, 0, 0, 1), 0); /* there is room */
    fill(t, 1, 100000);
    CHECK(weigh_all(t, 60, 30, 10) > 10);
    struct list gone = {0};
    CHECK(evict_all(t, &gone) > 0);
    for (size_t i = 0; i < gone.n; i++) CHECK(gone.items[i].id >= 60 && gone.items[i].id < 90);
    free(gone.items);
    tier_close(&t);
}

TEST(where_nobody_knows_what_is_lost_the_oldest_goes) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    fill(t, 0, 100000);
    CHECK(weigh_all(t, 60, 30, -1) > 10);
    struct list gone = {0};
    CHECK(evict_all(t, &gone) > 0);
    CHECK(list_find(&gone, 0) != NULL && list_find(&gone, 70) == NULL);
    free(gone.items);
    tier_close(&t);
}

TEST(space_of_dropped_entries_comes_back_by_a_ticket_without_entries) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offsets[40];
    for (uint64_t i = 0; i < 40; i++) CHECK_EQ(put(t, i, 1, 100000, &offsets[i]), TARN_OK);
    struct list gone = {0};
    CHECK_EQ(tier_poll_evict(t, list_add, &gone), 0);
    struct tier_stats before, after;
    tier_get_stats(t, &before);
    for (uint64_t i = 0; i < 20; i++) tier_drop(t, offsets[i], 1);
    CHECK(holds(t, offsets[2], 2, 1, 100000)); /* somebody may still read it */
    uint64_t event;
    CHECK_EQ(read(tier_event_fd(t), &event, sizeof(event)), sizeof(event));
    evict_all(t, &gone);
    CHECK_EQ(gone.n, 0);
    for (int i = 0; i < 5000; i++) {
        tier_get_stats(t, &after);
        if (after.used < before.used) break;
        usleep(1000);
    }
    CHECK(after.used < before.used);
    CHECK_EQ(read_range(t, offsets[0], 1, &event), TARN_ENOTFOUND);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 20);
    CHECK_EQ(count_wrong(t, &l), 0);
    free(l.items);
    free(gone.items);
    tier_close(&t);
}

TEST(a_drop_outlives_the_unit_that_noted_it) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t hot, dropped, renamed;
    CHECK_EQ(put(t, 0, 1, 100000, &hot), TARN_OK);
    CHECK_EQ(put(t, 1, 1, 100, &dropped), TARN_OK);
    CHECK_EQ(put(t, 2, 1, 100, &renamed), TARN_OK);
    struct list gone = {0};
    churn(t, 3, 17, 100000, &gone);
    CHECK_EQ(gone.n, 0);
    tier_drop(t, dropped, 1);
    CHECK_EQ(tier_rename(t, renamed, 77), TARN_OK);
    /* carries the notes to disk, in a younger unit */
    CHECK_EQ(put(t, 20, 1, 100000, NULL), TARN_OK);
    /* The first unit is read all the time while the disk is written over several times: the younger
     * one goes first. */
    for (uint64_t i = 0; i < 200; i++) {
        for (int k = 0; k < 8; k++) CHECK(holds(t, hot, 0, 1, 100000));
        churn(t, 100 + 5 * i, 5, 100000, &gone);
    }
    CHECK(list_find(&gone, 20) != NULL);
    CHECK(list_find(&gone, 0) == NULL);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK(list_find(&l, 0) != NULL);
    CHECK(list_find(&l, 1) == NULL);
    CHECK_EQ(list_find(&l, 2)->version, 77);
    free(l.items);
    free(gone.items);
    tier_close(&t);
}

TEST(drops_are_noted_on_a_full_disk_too) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    size_t n = fill(t, 0, 10000);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, n);
    for (size_t i = 0; i < n; i++) {
        if (l.items[i].id % 3 == 0) tier_drop(t, l.items[i].offset, 1);
    }
    free(l.items);
    t = reopen(t, &c);
    l = list_tier(t);
    CHECK_EQ(l.n, n - (n + 2) / 3);
    free(l.items);
    tier_close(&t);
}

TEST(a_large_value_gets_neighbours_by_and_by) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    size_t n = fill(t, 0, 500000);
    struct list gone = {0};
    CHECK_EQ(put_evicting(t, 5000, 1, 20 * MIB, NULL, &gone), TARN_OK);
    CHECK(gone.n < n);
    churn(t, 6000, 100, 500000, &gone);
    CHECK_EQ(put_evicting(t, 5001, 1, 25 * MIB, NULL, &gone), TARN_OK);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(count_wrong(t, &l), 0);
    CHECK(list_find(&l, 5001) != NULL);
    free(l.items);
    free(gone.items);
    tier_close(&t);
}

/* --- bounds --- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool closed;
} door = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};

static int fault_door(void *arg, bool write, uint64_t offset, size_t *length) {
    (void)arg, (void)write, (void)offset, (void)length;
    pthread_mutex_lock(&door.lock);
    while (door.closed) pthread_cond_wait(&door.cond, &door.lock);
    pthread_mutex_unlock(&door.lock);
    return 0;
}
static void set_door(bool closed) {
    pthread_mutex_lock(&door.lock);
    door.closed = closed;
    pthread_cond_broadcast(&door.cond);
    pthread_mutex_unlock(&door.lock);
}

TEST(the_queue_is_bounded) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    c.queue_bytes = 4 * MIB;
    ssd_io_set_fault(fault_door, NULL);
    struct tier *t = open_tier(&c);
    struct waiter w;
    waiter_init(&w);
    set_door(true);
    uint64_t n = 0;
    while (put_start(t, n, 1, 100000, &w) == TARN_OK) n++;
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK(n >= 30 && n <= 41);
    CHECK(stats.queued_bytes <= c.queue_bytes && stats.queue_full == 1);
    set_door(false);
    CHECK_EQ(waiter_wait(&w), TARN_OK);
    CHECK_EQ(put(t, n, 1, 100000, NULL), TARN_OK);
    tier_close(&t);
    ssd_io_set_fault(NULL, NULL);
}

/* Of this process, in memory. */
static uint64_t resident(void) {
    unsigned long long size, pages;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f != NULL && fscanf(f, "%llu %llu", &size, &pages) == 2);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

TEST(the_queue_has_its_memory_before_it_is_used) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    c.queue_bytes = 64 * MIB;
    uint64_t before = resident(), offset;
    struct tier *t = open_tier(&c);
    CHECK_EQ(put(t, 1, 1, 100000, &offset), TARN_OK);
    CHECK(resident() < before + 32 * MIB); /* nobody asked for it */
    tier_close(&t);
    c.populate = true;
    before = resident();
    t = open_tier(&c);
    CHECK_EQ(put(t, 2, 1, 100000, &offset), TARN_OK);
    while (resident() < before + 60 * MIB) usleep(1000);
    CHECK(holds(t, offset, 2, 1, 100000));
    tier_close(&t);
}

TEST(reads_under_way_are_bounded) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    c.read_bytes = MIB;
    ssd_io_set_fault(fault_door, NULL);
    struct tier *t = open_tier(&c);
    uint64_t offset;
    CHECK_EQ(put(t, 1, 1, 2 * MIB, &offset), TARN_OK);
    struct waiter w;
    waiter_init(&w);
    set_door(true);
    static char buffers[8][300000];
    unsigned n = 0;
    for (;; n++) {
        waiter_add(&w);
        tarn_status s = tier_read(t, offset + 5, sizeof(buffers[0]), buffers[n], on_read, &w);
        if (s == TARN_OK) continue;
        CHECK_EQ(s, TARN_EAGAIN);
        on_read(&w, TARN_OK);
        break;
    }
    CHECK_EQ(n, 3);
    set_door(false);
    CHECK_EQ(waiter_wait(&w), TARN_OK);
    CHECK(holds(t, offset, 1, 1, 2 * MIB)); /* larger than the bound: alone */
    tier_close(&t);
    ssd_io_set_fault(NULL, NULL);
}

/* --- reads that are asked for all at once --- */

#define CROWD 24u
static struct {
    pthread_mutex_t lock;
    pthread_cond_t all_asked;
    bool asked;
    uint64_t started, ended, most; /* bytes */
    bool greedy;                   /* more than half of the rest, and than a disk needs */
} crowd;

static int crowd_starts(void *arg, bool write, uint64_t offset, size_t *length) {
    if (write) return 0;
    pthread_mutex_lock(&crowd.lock);
    while (!crowd.asked) pthread_cond_wait(&crowd.all_asked, &crowd.lock);
    crowd.started += *length;
    uint64_t now = crowd.started - crowd.ended, rest = CROWD * MIB - crowd.ended;
    crowd.most = max_u64(crowd.most, now);
    crowd.greedy |= now > 2 * MIB && 2 * now > rest + MIB;
    pthread_mutex_unlock(&crowd.lock);
    return 0;
}

static void crowd_ended(void *arg, tarn_status status) {
    pthread_mutex_lock(&crowd.lock);
    crowd.ended += MIB;
    pthread_mutex_unlock(&crowd.lock);
    on_read(arg, status);
}

/* Those that come first are sent on while the others are read, up to the last of them. */
TEST(of_many_reads_a_few_are_under_way_at_a_time) {
    fresh_dir();
    struct tier_config c = config(128 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offsets[CROWD];
    for (uint64_t i = 0; i < CROWD; i++) CHECK_EQ(put(t, i, 1, MIB, &offsets[i]), TARN_OK);
    pthread_mutex_init(&crowd.lock, NULL);
    pthread_cond_init(&crowd.all_asked, NULL);
    tier_close(&t);
    ssd_io_set_fault(crowd_starts, NULL);
    t = open_tier(&c);
    char *data = aligned_alloc(4096, CROWD * MIB), *value;
    struct waiter w;
    waiter_init(&w);
    for (uint64_t i = 0; i < CROWD; i++) {
        waiter_add(&w);
        CHECK_EQ(tier_read(t, offsets[i], MIB, data + i * MIB, crowd_ended, &w), TARN_OK);
    }
    pthread_mutex_lock(&crowd.lock);
    crowd.asked = true;
    pthread_cond_signal(&crowd.all_asked);
    pthread_mutex_unlock(&crowd.lock);
    CHECK_EQ(waiter_wait(&w), TARN_OK);
    CHECK(crowd.most > 4 * MIB && crowd.most <= 8 * MIB);
    CHECK(!crowd.greedy);
    for (uint64_t i = 0; i < CROWD; i++) {
        value = make_value(MIB, i, 1);
        CHECK(memcmp(value, data + i * MIB, MIB) == 0);
        free(value);
    }
    free(data);
    tier_close(&t);
    ssd_io_set_fault(NULL, NULL);
}

TEST_MAIN()
