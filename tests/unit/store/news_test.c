/* News: a picture that is made by it alone is what the books hold, after every one of many random
 * steps. */
#include "util.h"

enum { KEYS = 40, HOSTS = 3, FAR = HOSTS, STEPS = 4000 };
#define INLINE_BIT (1u << 31)

static struct store *s;
static struct {
    bool there;
    uint32_t places; /* bit per segment; INLINE_BIT: in the books */
    uint64_t size;
} picture[KEYS];
static uint32_t down; /* bit per segment */
static unsigned told[STORE_NEWS_SEGMENT_GONE + 1], replaced;
static struct rng rng;

static uint32_t places_of(const struct object *o) {
    struct store_layout l;
    struct span value;
    uint32_t places = 0;
    if (store_object_inline(o, &value)) return INLINE_BIT;
    store_object_replicas(s, o, &l);
    for (uint32_t i = 0; i < l.replicas; i++) places |= 1u << l.replica[i].extent[0].segment;
    return places;
}

static int key_of(const struct object *o) {
    struct span key = store_object_key(o);
    CHECK(key.len >= 2 && key.data[0] == 'k');
    return atoi(key.data + 1); /* the dot of key_name ends the number */
}

static const char *key_name(unsigned i) {
    static char name[16];
    sprintf(name, "k%u.", i);
    return name;
}

static void on_news(void *arg, const struct store_news *n) {
    int i = n->object ? key_of(n->object) : 0;
    uint32_t bit = n->segment < 32 ? 1u << n->segment : 0;
    told[n->kind]++;
    switch (n->kind) {
    case STORE_NEWS_PUT:
        CHECK_EQ(n->replaced, picture[i].there);
        replaced += n->replaced;
        picture[i].there = true;
        picture[i].size = store_object_size(s, n->object);
        picture[i].places = places_of(n->object);
        break;
    case STORE_NEWS_REMOVED:
    case STORE_NEWS_EVICTED:
    case STORE_NEWS_EXPIRED:
    case STORE_NEWS_LOST: picture[i].there = false; break;
    case STORE_NEWS_REPLICA_ADDED:
        CHECK(!(picture[i].places & bit));
        picture[i].places |= bit;
        break;
    case STORE_NEWS_REPLICA_GONE:
        CHECK(picture[i].places & bit);
        picture[i].places &= ~bit;
        break;
    case STORE_NEWS_FLUSHED: memset(picture, 0, sizeof(picture)); break;
    case STORE_NEWS_SEGMENT_UP: down &= ~bit; break;
    case STORE_NEWS_SEGMENT_DOWN: down |= bit; break;
    default: break;
    }
}

static unsigned seen;

static void compare(void *arg, struct object *o) {
    if (store_object_flushed(s, o)) return;
    int i = key_of(o);
    seen++;
    CHECK(picture[i].there);
    CHECK_EQ(picture[i].places, places_of(o));
    CHECK_EQ(picture[i].size, store_object_size(s, o));
}

static void check(void) {
    uint64_t cursor = 0;
    unsigned there = 0;
    seen = 0;
    do cursor = store_scan_all(s, cursor, compare, NULL);
    while (cursor);
    for (unsigned i = 0; i < KEYS; i++) there += picture[i].there;
    CHECK_EQ(seen, there);
}

static void begin(void) {
    struct store_events events = {.news = on_news};
    uint32_t id;
    rng_seed(&rng, 11);
    memset(picture, 0, sizeof(picture));
    memset(told, 0, sizeof(told));
    down = replaced = 0;
    s = util_store("lru", 24, NULL, &events);
    for (uint32_t i = 1; i < HOSTS; i++) {
        char name[8];
        sprintf(name, "s%u", i);
        struct store_segment_config c = {
            .name = name, .epoch = 1 + i, .size = 24 * 4096, .host = i};
        CHECK_EQ(store_segment_add(s, &c, &id), TARN_OK);
    }
    struct store_segment_config far = {
        .name = "far", .epoch = 9, .tier = STORE_TIER_SSD, .size = 1 << 30, .host = 0};
    CHECK(store_segment_add(s, &far, &id) == TARN_OK && id == FAR);
}

/* One whose room would take several slices is given up. */
static void put_one(unsigned i) {
    struct store_put_options o = {
        .replicas = 1 + (uint32_t)(rng_next(&rng) % 2), .replace = true, .host = STORE_HOST_NONE};
    uint64_t size = rng_next(&rng) % 3 ? 4096 * (1 + rng_next(&rng) % 4) : 10;
    struct span key = span_str(key_name(i)), value = SPAN("0123456789");
    struct store_batch b;
    struct store_put *p;
    unsigned budget = 1000000;
    if (rng_next(&rng) % 4 == 0)
        o.expire_wall_ms = 5000000 + util_now - 1000 + 1 + rng_next(&rng) % 50;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    tarn_status st = store_put_start(s, &b, key, size, &o, 1, &budget, &p);
    if (st == TARN_EAGAIN) store_put_abandon(s, &p);
    if (st != TARN_OK) return;
    st =
        store_put_end(s, key, store_put_token(p), 1, 0, NULL, 0, size == value.len ? &value : NULL);
    CHECK_EQ(st, TARN_OK);
}

static void set_one(unsigned i) {
    struct store_put_options o = {.replicas = 1, .replace = true, .supersede = true, .local = true};
    struct store_batch b;
    unsigned budget = 1000;
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, 1);
    (void)store_set_inline(s, &b, span_str(key_name(i)), SPAN("value"), 1, &o, &budget);
}

static void copy_one(struct object *o) {
    struct store_copy_options options = {.segment = STORE_SEGMENT_ANY,
                                         .host = STORE_HOST_NONE,
                                         .from = STORE_SEGMENT_ANY,
                                         .evict = true};
    struct store_copy *c;
    unsigned budget = 100000;
    if (store_copy_start(s, store_object_key(o), store_object_version(o), &options, &budget, &c) ==
        TARN_OK)
        (void)store_copy_end(s, &c, rng_next(&rng) % 4 != 0);
}

/* A segment other than s0 goes down, or comes back. */
static void toggle(void) {
    uint32_t id = 1 + (uint32_t)(rng_next(&rng) % (FAR));
    bool is_down = down >> id & 1;
    store_segment_set_state(s, id, is_down ? SEGMENT_UP : SEGMENT_DOWN);
    CHECK_EQ(down >> id & 1, !is_down);
}

static void step(void) {
    unsigned i = (unsigned)(rng_next(&rng) % KEYS);
    struct span key = span_str(key_name(i));
    struct object *o = store_find(s, key);
    uint64_t bytes;
    switch (rng_next(&rng) % 16) {
    case 0: (void)store_remove(s, key); break;
    case 1:
        if (o) (void)store_evict_object(s, o, &bytes);
        break;
    case 2:
        if (o) store_expire(s, o, 5000000 + util_now - 1000 + 1 + rng_next(&rng) % 30);
        break;
    case 3:
    case 4:
        if (o) (void)store_far_add(s, o, FAR, 4096 * i);
        break;
    case 5:
        if (o) (void)store_far_drop(s, key, store_object_version(o), FAR);
        break;
    case 6:
    case 7:
        if (o) copy_one(o);
        break;
    case 8:
        if (o)
            (void)store_replica_drop(s, o, (uint32_t)(rng_next(&rng) % (FAR + 1)),
                                     rng_next(&rng) % 2);
        break;
    case 9:
        if (rng_next(&rng) % 8 == 0) toggle();
        break;
    case 10:
        if (rng_next(&rng) % 40 == 0) store_flush(s);
        break;
    case 11: util_tick(s, rng_next(&rng) % 20); break;
    case 12: set_one(i); break;
    default: put_one(i);
    }
}

TEST(a_picture_made_by_news_is_what_the_books_hold) {
    begin();
    store_listen(s, true);
    for (unsigned n = 0; n < STEPS; n++) {
        step();
        check();
    }
    for (enum store_news_kind k = STORE_NEWS_PUT; k < STORE_NEWS_SEGMENT_GONE; k++)
        CHECK(told[k] > 0);
    CHECK(replaced > 0 && replaced < told[STORE_NEWS_PUT]);
    /* A segment leaves with all that is only there. */
    store_segment_set_state(s, 1, SEGMENT_LEAVING);
    store_segment_set_state(s, FAR, SEGMENT_LEAVING);
    for (unsigned n = 0; n < 10; n++) util_tick(s, 20000);
    check();
    CHECK_EQ(told[STORE_NEWS_SEGMENT_GONE], 2u);
    for (unsigned i = 0; i < KEYS; i++)
        CHECK(!picture[i].there || !(picture[i].places & (1u << 1 | 1u << FAR)));
    store_check(s);
    store_destroy(&s);
}

TEST(nothing_is_told_to_who_does_not_listen) {
    begin();
    for (unsigned n = 0; n < 500; n++) {
        unsigned i = (unsigned)(rng_next(&rng) % KEYS);
        put_one(i);
        (void)store_remove(s, span_str(key_name((i + 1) % KEYS)));
    }
    store_listen(s, true);
    store_listen(s, false);
    put_one(1);
    store_flush(s);
    for (unsigned k = 0; k < ARRAY_LEN(told); k++) CHECK_EQ(told[k], 0u);
    store_destroy(&s);
    s = util_store("lru", 24, NULL, NULL); /* nobody there to be told */
    store_listen(s, true);
    put_one(1);
    store_destroy(&s);
}

TEST_MAIN()
