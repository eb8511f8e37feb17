/* What every tier does, whatever it is made of. Whoever includes this has named the TIER_KIND
 * (tier_util.h) and has a config(size): a struct tier_config for test_dir. */
#ifndef TARN_TESTS_POOL_TIER_SUITE_H
#define TARN_TESTS_POOL_TIER_SUITE_H

#include "tier_util.h"

/* --- values --- */

static const uint64_t sizes[] = {0,     1,     63,      64,      65,  4095,    4096,        4097,
                                 12345, 65536, 1000003, MIB - 1, MIB, MIB + 1, 3 * MIB + 77};

static void put_sizes(struct tier *t, uint64_t *offsets) {
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        CHECK_EQ(put(t, i, 7 + i, sizes[i], &offsets[i]), TARN_OK);
}

static void check_sizes(struct tier *t, const uint64_t *offsets) {
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) CHECK(holds(t, offsets[i], i, 7 + i, sizes[i]));
}

static void round_trip(struct tier_config c) {
    struct tier *t = open_tier(&c);
    CHECK(!tier_get_info(t)->recovered);
    uint64_t offsets[ARRAY_LEN(sizes)];
    put_sizes(t, offsets);
    check_sizes(t, offsets);
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK_EQ(stats.entries, ARRAY_LEN(sizes));
    CHECK_EQ(stats.puts, ARRAY_LEN(sizes));
    CHECK_EQ(stats.queued_bytes, 0);
    uint8_t content[TIER_CONTENT_SIZE];
    memcpy(content, tier_get_info(t)->content, sizeof(content));
    t = reopen(t, &c);
    CHECK(tier_get_info(t)->recovered);
    CHECK(memcmp(content, tier_get_info(t)->content, sizeof(content)) == 0);
    check_sizes(t, offsets);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, ARRAY_LEN(sizes));
    for (size_t i = 0; i < l.n; i++) {
        const struct listed *e = list_find(&l, i);
        CHECK(e != NULL && e->offset == offsets[i] && e->size == sizes[i] && e->version == 7 + i);
        CHECK_EQ(e->n_crcs, sizes[i] > MIB ? (sizes[i] + MIB - 1) / MIB : 0);
        char *v = make_value(sizes[i], i, 7 + i);
        CHECK_EQ(e->crc, crc32c(0, v, sizes[i]));
        uint32_t crcs[8] = {0};
        for (size_t p = 0; p < e->n_crcs; p++) {
            uint64_t left = sizes[i] - p * MIB;
            crcs[p] = crc32c(0, v + p * MIB, left < MIB ? left : MIB);
        }
        CHECK_EQ(e->crcs_crc, crc32c(0, crcs, e->n_crcs * sizeof(uint32_t)));
        free(v);
    }
    free(l.items);
    tier_close(&t);
    CHECK(t == NULL);
}

TEST(values_of_all_sizes_come_back_also_after_a_restart) {
    fresh_dir();
    round_trip(config(64 * MIB));
}

TEST(any_range_into_any_buffer) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t size = 3 * MIB + 12345, offset;
    CHECK_EQ(put(t, 1, 1, size, &offset), TARN_OK);
    CHECK_EQ(offset % 4096, 0);
    char *value = make_value(size, 1, 1);
    char *buffer = NULL;
    CHECK_EQ(posix_memalign((void **)&buffer, 4096, size + 8192), 0);
    struct rng r;
    rng_seed(&r, 11);
    for (int i = 0; i < 400; i++) {
        uint64_t from = rng_below(&r, size),
                 length = rng_below(&r, rng_below(&r, 2) ? size - from + 1 : 10000);
        if (length > size - from) length = size - from;
        uint64_t shift = rng_below(&r, 3) == 0 ? 0
                         : rng_below(&r, 2)    ? from % 4096
                                               : rng_below(&r, 4096);
        if (rng_below(&r, 4) == 0) from &= ~4095ull;
        memset(buffer, 0x5a, size + 8192);
        CHECK_EQ(read_range(t, offset + from, length, buffer + shift), TARN_OK);
        CHECK(memcmp(buffer + shift, value + from, length) == 0);
        CHECK(buffer[shift + length] == 0x5a);
        if (shift > 0) CHECK(buffer[shift - 1] == 0x5a);
    }
    CHECK_EQ(read_range(t, offset + 1, size, buffer), TARN_ENOTFOUND);
    CHECK_EQ(read_range(t, offset + size, 1, buffer), TARN_ENOTFOUND);
    CHECK_EQ(read_range(t, 0, 1, buffer), TARN_ENOTFOUND);
    CHECK_EQ(read_range(t, offset - 1, 1, buffer), TARN_ENOTFOUND);
    CHECK_EQ(read_range(t, 1ull << 60, 1, buffer), TARN_ENOTFOUND);
    CHECK_EQ(read_range(t, offset, UINT64_MAX, buffer), TARN_ENOTFOUND);
    free(buffer);
    free(value);
    tier_close(&t);
}

TEST(arguments_of_puts_that_make_no_sense) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    struct waiter w;
    waiter_init(&w);
    char big_key[1025];
    memset(big_key, 'k', sizeof(big_key));
    struct iovec iov = {big_key, 10};
    struct tier_item item = {.key = span_of(big_key, 1025), .version = 1, .size = 10};
    CHECK_EQ(tier_put(t, &item, false, &iov, 1, on_put, &w), TARN_EINVAL);
    item.key.len = 0;
    CHECK_EQ(tier_put(t, &item, false, &iov, 1, on_put, &w), TARN_EINVAL);
    item.key.len = 1024;
    waiter_add(&w);
    CHECK_EQ(tier_put(t, &item, false, &iov, 1, on_put, &w), TARN_OK);
    CHECK_EQ(waiter_wait(&w), TARN_OK);
    CHECK_EQ(item.crc, crc32c(0, big_key, 10));
    iov.iov_len = item.size = tier_get_info(t)->value_max + 1;
    CHECK_EQ(tier_put(t, &item, false, &iov, 1, on_put, &w), TARN_ENOSPACE);
    tier_close(&t);
}

TEST(short_of_descriptors_a_tier_closes_none_but_its_own) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct rlimit limit, before;
    struct tier *t = NULL;
    const char *why;
    int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fcntl(0, F_GETFD) < 0) CHECK_EQ(dup2(next, 0), 0);
    close(next);
    getrlimit(RLIMIT_NOFILE, &before);
    for (limit = before, limit.rlim_cur = (rlim_t)next; t == NULL; limit.rlim_cur++) {
        setrlimit(RLIMIT_NOFILE, &limit);
        tarn_status status = tier_open(TIER_KIND, &c, &t, &why);
        setrlimit(RLIMIT_NOFILE, &before);
        CHECK_EQ(status, t != NULL ? TARN_OK : TARN_EIO);
        CHECK(fcntl(0, F_GETFD) >= 0);
    }
    tier_close(&t);
}

TEST(bytes_that_changed_do_not_get_to_disk) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    struct waiter w;
    waiter_init(&w);
    char value[5000];
    fill_value(value, sizeof(value), 1, 1);
    struct iovec iov = {value, sizeof(value)};
    struct tier_item item = {.key = SPAN("key-1"),
                             .version = 1,
                             .size = sizeof(value),
                             .crc = crc32c(0, value, 5000) ^ 1};
    CHECK_EQ(put_start(t, 2, 1, 777, &w), TARN_OK);
    CHECK_EQ(tier_put(t, &item, true, &iov, 1, on_put, &w), TARN_ECORRUPT);
    CHECK_EQ(put_start(t, 3, 1, 777, &w), TARN_OK);
    CHECK_EQ(waiter_wait(&w), TARN_OK);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 2);
    CHECK(list_find(&l, 1) == NULL);
    CHECK_EQ(count_wrong(t, &l), 0);
    free(l.items);
    tier_close(&t);
}

TEST(a_large_value_that_changed_is_left_out_and_the_log_goes_on) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    c.queue_bytes = 4 * MIB;
    struct tier *t = open_tier(&c);
    uint64_t size = 5 * MIB;
    char *value = make_value(size, 1, 1);
    struct iovec iov = {value, size};
    struct tier_item item = {.version = 1, .size = size, .crc = crc32c(0, value, size)};
    struct waiter w;
    char key[64];
    for (int i = 0; i < 3; i++) {
        waiter_init(&w);
        waiter_add(&w);
        make_key(key, 1 + (uint64_t)i);
        item.key = span_str(key);
        if (i == 1) value[3 * MIB] ^= 1;
        if (i == 2) item.crc = 0;
        CHECK_EQ(tier_put(t, &item, i < 2, &iov, 1, on_put, &w), TARN_OK);
        CHECK_EQ(waiter_wait(&w), i == 1 ? TARN_ECORRUPT : TARN_OK);
        CHECK_EQ(item.crc, i < 2 ? item.crc : crc32c(0, value, size));
        CHECK_EQ(put(t, 10 + (uint64_t)i, 1, 5000, NULL), TARN_OK);
    }
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 5);
    free(l.items);
    free(value);
    tier_close(&t);
}

/* --- dropping and renaming --- */

TEST(what_was_dropped_stays_dropped) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t offsets[50];
    for (uint64_t i = 0; i < 50; i++) CHECK_EQ(put(t, i, i + 1, 100 * i, &offsets[i]), TARN_OK);
    for (uint64_t i = 0; i < 50; i += 2) {
        tier_drop(t, offsets[i], i + 2); /* another version: not this one */
        tier_drop(t, offsets[i] + 1, i + 1);
        tier_drop(t, offsets[i], i + 1);
        tier_drop(t, offsets[i], i + 1);
    }
    struct tier_stats stats;
    tier_get_stats(t, &stats);
    CHECK_EQ(stats.dropped, 25);
    CHECK_EQ(stats.entries, 25);
    for (int round = 0; round < 3; round++) {
        struct list l = list_tier(t);
        CHECK_EQ(l.n, 25);
        for (uint64_t i = 0; i < 50; i++) CHECK_EQ(list_find(&l, i) != NULL, i % 2 == 1);
        CHECK_EQ(count_wrong(t, &l), 0);
        free(l.items);
        t = reopen(t, &c);
    }
    tier_close(&t);
}

TEST(another_version_after_an_offer) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t a, b;
    CHECK_EQ(put(t, 1, 5, 1000, &a), TARN_OK);
    CHECK_EQ(put(t, 2, 6, 1000, &b), TARN_OK);
    CHECK_EQ(tier_rename(t, a, 50), TARN_OK);
    CHECK_EQ(tier_rename(t, a, 51), TARN_OK);
    CHECK_EQ(tier_rename(t, b, 60), TARN_OK);
    CHECK_EQ(tier_rename(t, a + 64, 60), TARN_ENOTFOUND);
    tier_drop(t, b, 6);
    t = reopen(t, &c);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 2);
    CHECK_EQ(list_find(&l, 1)->version, 51);
    CHECK_EQ(list_find(&l, 2)->version, 60);
    free(l.items);
    tier_drop(t, b, 60);
    CHECK_EQ(tier_rename(t, b, 61), TARN_ENOTFOUND);
    t = reopen(t, &c);
    l = list_tier(t);
    CHECK_EQ(l.n, 1);
    free(l.items);
    tier_close(&t);
}

TEST(another_name_for_the_content) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c);
    uint64_t a;
    uint8_t before[TIER_CONTENT_SIZE], after[TIER_CONTENT_SIZE];
    CHECK_EQ(put(t, 1, 5, 1000, &a), TARN_OK);
    memcpy(before, tier_get_info(t)->content, sizeof(before));
    t = reopen(t, &c);
    CHECK(memcmp(tier_get_info(t)->content, before, sizeof(before)) == 0);
    CHECK_EQ(tier_renew(t), TARN_OK);
    memcpy(after, tier_get_info(t)->content, sizeof(after));
    CHECK(memcmp(after, before, sizeof(before)) != 0);
    t = reopen(t, &c);
    CHECK(memcmp(tier_get_info(t)->content, after, sizeof(after)) == 0);
    struct list l = list_tier(t);
    CHECK_EQ(l.n, 1);
    free(l.items);
    tier_close(&t);
}

/* --- eviction --- */

TEST(what_goes_is_there_until_nobody_reads_it_any_more) {
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
    CHECK(list_find(&gone, 0) != NULL); /* nothing was read: the oldest */
    CHECK(holds(t, first, 0, 1, 100000));
    CHECK_EQ(put(t, 10000, 1, 100000, NULL), TARN_EAGAIN);
    for (size_t i = 0; i < n_tickets; i++) tier_evicted(t, tickets[i]);
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

TEST(a_ticket_that_is_not_handed_back_keeps_its_entries_on_disk) {
    fresh_dir();
    struct tier_config c = config(16 * MIB);
    struct tier *t = open_tier(&c);
    size_t n = fill(t, 0, 50000);
    struct list gone = {0};
    CHECK(tier_poll_evict(t, list_add, &gone) != 0);
    struct list l = list_tier(t);
    CHECK_EQ(l.n + gone.n, n);
    free(l.items);
    t = reopen(t, &c);
    l = list_tier(t);
    CHECK_EQ(l.n, n);
    free(l.items);
    free(gone.items);
    tier_close(&t);
}

/* --- opening --- */

TEST(one_process_at_a_time) {
    fresh_dir();
    struct tier_config c = config(64 * MIB);
    struct tier *t = open_tier(&c), *second = NULL;
    const char *why = NULL;
    CHECK_EQ(tier_open(TIER_KIND, &c, &second, &why), TARN_EBUSY);
    CHECK(strstr(why, "in use") != NULL);
    tier_close(&t);
}

/* --- a load that remembers --- */

static struct tier *open_under_load(void) {
    struct tier_config c = config(24 * MIB);
    c.queue_bytes = 4 * MIB;
    return open_tier(&c);
}

static uint64_t any_size(struct rng *r) {
    switch (rng_below(r, 20)) {
    case 0: return 0;
    case 1: return 1200000 + rng_below(r, 400000); /* larger than a region, goes around the queue */
    case 2:
    case 3:
    case 4: return rng_below(r, 300);
    case 5: return 4096 * rng_below(r, 20);
    default: return rng_below(r, 40000);
    }
}

TEST(the_tier_agrees_with_a_model_over_restarts) {
    enum { IDS = 300 };
    fresh_dir();
    struct tier *t = open_under_load();
    struct {
        bool there;
        uint64_t value_version, version, size, offset;
    } model[IDS] = {0};
    struct rng r;
    rng_seed(&r, 21);
    uint64_t version = 1;
    for (int step = 0; step < ROUNDS(2000); step++) {
        uint64_t id = rng_below(&r, IDS);
        switch (rng_below(&r, 8)) {
        case 0:
            if (model[id].there) tier_drop(t, model[id].offset, model[id].version);
            model[id].there = false;
            break;
        case 1:
            if (model[id].there) CHECK_EQ(tier_rename(t, model[id].offset, version), TARN_OK);
            model[id].version = version++;
            break;
        case 2:
            if (model[id].there)
                CHECK(holds(t, model[id].offset, id, model[id].value_version, model[id].size));
            break;
        case 3:
            if (rng_below(&r, 20) > 0) break;
            tier_close(&t);
            t = open_under_load();
            struct list l = list_tier(t);
            size_t n = 0;
            for (uint64_t i = 0; i < IDS; i++) {
                const struct listed *e = list_find(&l, i);
                CHECK_EQ(e != NULL, model[i].there);
                if (e == NULL) continue;
                CHECK_EQ(e->version, model[i].version);
                CHECK_EQ(e->offset, model[i].offset);
                n++;
            }
            CHECK_EQ(l.n, n);
            free(l.items);
            break;
        default: {
            struct list gone = {0};
            if (model[id].there) tier_drop(t, model[id].offset, model[id].version);
            uint64_t size = any_size(&r), offset = 0;
            CHECK_EQ(put_evicting(t, id, version, size, &offset, &gone), TARN_OK);
            model[id].there = true;
            model[id].value_version = model[id].version = version++;
            model[id].size = size;
            model[id].offset = offset;
            for (size_t i = 0; i < gone.n; i++) {
                uint64_t g = gone.items[i].id;
                CHECK(g == id || (model[g].there && model[g].version == gone.items[i].version));
                if (g != id) model[g].there = false;
            }
            free(gone.items);
        }
        }
    }
    tier_close(&t);
}

enum { WORKERS = 4, SLOTS = 200 };
static struct {
    struct tier *t;
    /* readers of the tier hold it shared, the one who gives space back alone */
    pthread_rwlock_t lock;
    struct slot {
        bool there;
        uint64_t version, size, offset;
    } slots[WORKERS][SLOTS];
    unsigned bad, running;
} load;

static void load_going(void *arg, const struct tier_item *item) {
    (void)arg;
    uint64_t id = key_id(item->key);
    struct slot *s = &load.slots[id / SLOTS][id % SLOTS];
    if (s->offset == item->offset) s->there = false;
}

static void *load_run(void *arg) {
    uint64_t me = (uint64_t)(uintptr_t)arg;
    struct rng r;
    rng_seed(&r, me + 50);
    for (int i = 0; i < ROUNDS(1500); i++) {
        uint64_t n = rng_below(&r, SLOTS), id = me * SLOTS + n;
        struct slot *s = &load.slots[me][n];
        if (rng_below(&r, 3) > 0) {
            pthread_rwlock_rdlock(&load.lock);
            if (s->there && !holds(load.t, s->offset, id, s->version, s->size)) {
                __atomic_fetch_add(&load.bad, 1, __ATOMIC_RELAXED);
            }
            pthread_rwlock_unlock(&load.lock);
            continue;
        }
        uint64_t size = rng_below(&r, 60000), offset, version = (uint64_t)i + 2;
        tarn_status status = put(load.t, id, version, size, &offset);
        if (status == TARN_EAGAIN) {
            usleep(200);
            continue;
        }
        pthread_rwlock_wrlock(&load.lock);
        if (status != TARN_OK) load.bad++;
        if (s->there) tier_drop(load.t, s->offset, s->version);
        *s = (struct slot){status == TARN_OK, version, size, offset};
        pthread_rwlock_unlock(&load.lock);
    }
    __atomic_fetch_sub(&load.running, 1, __ATOMIC_RELEASE);
    return NULL;
}

TEST(many_threads_at_once) {
    fresh_dir();
    memset(load.slots, 0, sizeof(load.slots));
    pthread_rwlock_init(&load.lock, NULL);
    load.t = open_under_load();
    load.running = WORKERS;
    pthread_t threads[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, load_run, (void *)i), 0);
    while (__atomic_load_n(&load.running, __ATOMIC_ACQUIRE) > 0) {
        struct tier_stats stats;
        tier_get_stats(load.t, &stats);
        struct list l = list_tier(load.t);
        free(l.items);
        uint64_t ticket;
        pthread_rwlock_wrlock(&load.lock);
        while ((ticket = tier_poll_evict(load.t, load_going, NULL)) != 0)
            tier_evicted(load.t, ticket);
        pthread_rwlock_unlock(&load.lock);
        usleep(500);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(load.bad, 0);
    tier_close(&load.t);
    load.t = open_under_load();
    struct list l = list_tier(load.t);
    size_t there = 0;
    for (size_t w = 0; w < WORKERS; w++) {
        for (size_t n = 0; n < SLOTS; n++) there += load.slots[w][n].there;
    }
    CHECK_EQ(l.n, there);
    for (size_t i = 0; i < l.n; i++) {
        const struct listed *e = &l.items[i];
        const struct slot *s = &load.slots[e->id / SLOTS][e->id % SLOTS];
        CHECK(s->there && s->offset == e->offset && s->version == e->version);
    }
    CHECK_EQ(count_wrong(load.t, &l), 0);
    free(l.items);
    tier_close(&load.t);
}

#endif
