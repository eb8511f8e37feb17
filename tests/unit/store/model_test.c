/* The books against a model, with random operations on a small pool: no space is ever in two hands
 * (each 64-byte unit of a pretended pool carries the token of whoever wrote it last; leased and
 * held versions are read back), NOSPACE is answered only when a brute-force search agrees
 * (guarantee 2), look-ups answer what was put last or a miss. */
#include "../test.h"

#include <stdlib.h>
#include <string.h>
#include "store/books.h"

#define KEYS     300
#define LEASES   400
#define SESSIONS 4

struct model_lease {
    int key;
    uint64_t version, until, session;
    struct store_layout layout;
    struct store_hold *hold; /* a hold instead of a lease */
};

struct model_put {
    struct store_put *put;
    uint64_t token;
    int key;
    bool open;
};

struct model {
    struct store *s;
    struct rng rng;
    uint64_t now, wall;
    uint64_t *pool; /* token by unit */
    uint64_t units;
    uint64_t current[KEYS]; /* version that a look-up may find, 0: must miss */
    uint64_t gone[KEYS];    /* every version up to this one must not be found */
    struct model_lease lease[LEASES];
    int leases;
    struct model_put put[64];
    int puts;
    uint64_t fence;
};

static void on_fence(void *arg, uint64_t session) {
    ((struct model *)arg)->fence = session;
}

static void key_name(int k, char *out) {
    sprintf(out, "%skey:%04d", k % 3 == 0 ? "q:" : "", k);
}

static void fill(struct model *m, const struct store_layout *l, uint64_t token) {
    for (uint32_t i = 0; i < l->replica[0].extents; i++) {
        const struct store_extent *e = &l->replica[0].extent[i];
        for (uint64_t u = 0; u < (e->length + 63) / 64; u++) m->pool[e->offset / 64 + u] = token;
    }
}

static bool holds(struct model *m, const struct store_layout *l, uint64_t token) {
    for (uint32_t i = 0; i < l->replica[0].extents; i++) {
        const struct store_extent *e = &l->replica[0].extent[i];
        for (uint64_t u = 0; u < (e->length + 63) / 64; u++)
            if (m->pool[e->offset / 64 + u] != token) return false;
    }
    return true;
}

/* The 8 longest runs of free or evictable space, by looking at every block. */
static uint64_t best_room(const struct store *s, uint32_t align) {
    uint64_t runs[STORE_EXTENTS_MAX] = {0}, start = 0, len = 0, aligned;
    const struct segment *seg = s->space.segments[0];
    for (block_id id = seg->first;; id = block_get(&s->space, id)->next) {
        const struct block *b = id ? block_get(&s->space, id) : NULL;
        if (b && (block_state(b) == BLOCK_FREE ||
                  (block_state(b) == BLOCK_OBJECT &&
                   book_evictable(s, record_get(&s->records, b->owner))))) {
            if (!len) start = block_offset(b);
            len += block_len(&s->space, id);
            continue;
        }
        uint64_t u = len ? run_usable(start, len, align, &aligned) : 0;
        for (int i = 0; i < (int)STORE_EXTENTS_MAX; i++)
            if (u > runs[i]) {
                uint64_t t = runs[i];
                runs[i] = u;
                u = t;
            }
        len = 0;
        if (!b) break;
    }
    uint64_t sum = 0;
    for (unsigned i = 0; i < STORE_EXTENTS_MAX; i++) sum += runs[i];
    return sum;
}

static void put_settled(struct model *m, int at, tarn_status st) {
    struct model_put *p = &m->put[at];
    if (st == TARN_OK) {
        struct store_layout l;
        store_put_layout(m->s, p->put, &l);
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < l.replica[0].extents; i++) bytes += l.replica[0].extent[i].length;
        if (!store_put_is_inline(p->put)) CHECK_EQ(bytes, p->put->size);
        p->open = true;
        fill(m, &l, p->token);
    } else if (st != TARN_EAGAIN) {
        *p = m->put[--m->puts];
    }
}

static void do_put(struct model *m, unsigned slice) {
    if (m->puts == 64) return;
    int k = (int)rng_below(&m->rng, KEYS);
    char name[32];
    key_name(k, name);
    uint64_t size =
        rng_below(&m->rng, 5) == 0 ? rng_below(&m->rng, 200) : rng_below(&m->rng, 60000);
    if (rng_below(&m->rng, 50) == 0) size = rng_below(&m->rng, m->units * 70);
    struct store_put_options o = {
        .replicas = 1, .replace = rng_below(&m->rng, 2), .supersede = rng_below(&m->rng, 8) == 0};
    o.once = rng_below(&m->rng, 6) == 0;
    if (rng_below(&m->rng, 20) == 0)
        o.pin = rng_below(&m->rng, 4) ? STORE_PIN_SOFT : STORE_PIN_HARD, o.pin_ms = 50;
    if (rng_below(&m->rng, 10) == 0) o.group = rng_below(&m->rng, 2) ? SPAN("g1") : SPAN("g2");
    if (rng_below(&m->rng, 15) == 0) o.expire_wall_ms = m->wall + rng_below(&m->rng, 300);
    struct store_batch b;
    store_batch_begin(m->s, &b, NULL, STORE_BATCH_PUT, 1);
    unsigned budget = slice;
    struct model_put *p = &m->put[m->puts];
    uint32_t align = space_align(space_units(size));
    bool had_planner = m->s->planner != NULL;
    *p = (struct model_put){.key = k};
    tarn_status st = store_put_start(m->s, &b, span_str(name), size, &o,
                                     1 + rng_below(&m->rng, SESSIONS), &budget, &p->put);
    if (st == TARN_OK || st == TARN_EAGAIN) {
        p->token = store_put_token(p->put);
        m->puts++;
        put_settled(m, m->puts - 1, st);
    } else if ((st == TARN_ENOSPACE || st == TARN_ELATER) && !had_planner) {
        if (st == TARN_ELATER) CHECK(m->s->guarded_units + m->s->written_units > 0);
        CHECK(best_room(m->s, align) < space_units(size));
    } else {
        CHECK(st == TARN_EEXISTS || st == TARN_EBUSY || st == TARN_EQUOTA || st == TARN_ENOSPACE ||
              st == TARN_ELATER);
    }
}

static void do_continue(struct model *m, unsigned slice) {
    for (int i = 0; i < m->puts; i++) {
        if (m->put[i].open) continue;
        unsigned budget = slice;
        uint64_t units = m->put[i].put->want.units;
        uint64_t gave_up = m->s->stat.room_gave_up;
        tarn_status st = store_put_continue(m->s, m->put[i].put, &budget);
        if (st == TARN_ENOSPACE && m->s->stat.room_gave_up == gave_up)
            CHECK(best_room(m->s, space_align(units)) < units);
        put_settled(m, i, st);
        if (st != TARN_OK && st != TARN_EAGAIN) i--;
    }
}

static void forget(struct model *m, int key, uint64_t version) {
    if (version > m->gone[key]) m->gone[key] = version;
}

static void do_end(struct model *m) {
    if (!m->puts) return;
    int at = (int)rng_below(&m->rng, (uint64_t)m->puts);
    struct model_put p = m->put[at];
    if (!p.open) {
        if (rng_below(&m->rng, 4) == 0) {
            store_put_abandon(m->s, &p.put);
            m->put[at] = m->put[--m->puts];
        }
        return;
    }
    char name[32];
    key_name(p.key, name);
    struct span key = span_str(name);
    m->put[at] = m->put[--m->puts];
    if (rng_below(&m->rng, 6) == 0) {
        store_put_revoke(m->s, key, p.token);
        return;
    }
    if (rng_below(&m->rng, 10) == 0) return; /* the writer dies: it must time out */
    struct store_put *live = put_by_key(m->s, key, store_hash(key));
    char bytes[64] = {0};
    bool mine = live && live->token == p.token, in_line = mine && live->in_line;
    struct span value = span_of(bytes, in_line ? live->size : 0);
    tarn_status st = store_put_end(m->s, key, p.token, 7, 0, NULL, 0, in_line ? &value : NULL);
    if (mine) CHECK(st == TARN_OK || st == TARN_ETOKEN);
    if (st == TARN_OK) {
        forget(m, p.key, p.token - 1);
        m->current[p.key] = p.token;
        if (store_find(m->s, key)) /* its TTL may be over already */
            CHECK_EQ(store_put_end(m->s, key, p.token, 7, 0, NULL, 0, in_line ? &value : NULL),
                     TARN_OK);
        CHECK(store_put_end(m->s, key, p.token + 1000000, 7, 0, NULL, 0, NULL) == TARN_ETOKEN);
    }
}

static void do_read(struct model *m) {
    int k = (int)rng_below(&m->rng, KEYS);
    char name[32];
    key_name(k, name);
    struct object *o = store_find(m->s, span_str(name));
    if (!o) return;
    CHECK_EQ(store_object_version(o), m->current[k]);
    CHECK(store_object_version(o) > m->gone[k]);
    struct store_batch b;
    store_batch_begin(m->s, &b, NULL, STORE_BATCH_READ, 1);
    store_batch_hit(m->s, &b, o);
    struct model_lease l = {
        .key = k, .version = store_object_version(o), .session = 1 + rng_below(&m->rng, SESSIONS)};
    struct span value;
    if (store_object_inline(o, &value)) return;
    store_object_layout(m->s, o, &l.layout);
    CHECK(holds(m, &l.layout, l.version));
    if (m->leases == LEASES) return;
    if (rng_below(&m->rng, 5) == 0) {
        l.hold = store_hold(m->s, o);
        l.until = m->now + 100;
    } else {
        uint64_t granted;
        CHECK_EQ(store_lease(m->s, o, l.session, 1 + rng_below(&m->rng, 60), &granted), TARN_OK);
        l.until = m->now + granted;
        for (int i = 0; i < m->leases; i++)
            if (!m->lease[i].hold && m->lease[i].version == l.version &&
                m->lease[i].session == l.session) {
                if (l.until > m->lease[i].until) m->lease[i].until = l.until;
                return;
            }
    }
    m->lease[m->leases++] = l;
}

static void check_leases(struct model *m) {
    for (int i = 0; i < m->leases; i++) {
        struct model_lease *l = &m->lease[i];
        if (l->hold || l->until > m->now) CHECK(holds(m, &l->layout, l->version));
        bool over = l->until <= m->now;
        if (l->hold && over) store_unhold(m->s, &l->hold);
        if (!l->hold && l->session != 0 && !over && rng_below(&m->rng, 40) == 0) {
            char name[32];
            bool guarded = rng_below(&m->rng, 2) == 0;
            key_name(l->key, name);
            CHECK(store_release(m->s, span_str(name), l->session, l->version, guarded));
            over = !guarded; /* else the bytes stay to the end, though the lease is over */
            l->session = 0;
        }
        if (over) *l = m->lease[--m->leases], i--;
    }
}

static void do_misc(struct model *m) {
    int k = (int)rng_below(&m->rng, KEYS);
    char name[32];
    key_name(k, name);
    uint64_t bytes;
    struct object *o;
    switch (rng_below(&m->rng, 40)) {
    case 0 ... 9:
        if (store_remove(m->s, span_str(name))) forget(m, k, m->current[k]);
        break;
    case 10 ... 14:
        store_pin(m->s, span_str(name), (enum store_pin)rng_below(&m->rng, 3),
                  1 + rng_below(&m->rng, 100));
        break;
    case 15:
        if ((o = store_random(m->s)))
            store_expire(m->s, o, rng_below(&m->rng, 2) ? m->wall + rng_below(&m->rng, 100) : 0);
        break;
    case 16:
        if ((o = store_random(m->s))) store_evict_object(m->s, o, &bytes);
        break;
    case 17: {
        struct store_evict_job job = {.want_objects = 3};
        unsigned budget = 100;
        store_evict_step(m->s, &job, &budget);
        break;
    }
    case 18: {
        static const char *const names[] = {"lru", "fifo", "lfu", "sieve", "s3fifo"};
        tarn_status st = store_set_policy(m->s, names[rng_below(&m->rng, 5)]);
        CHECK(st == TARN_OK || st == TARN_EBUSY);
        break;
    }
    case 19:
        if (rng_below(&m->rng, 2))
            store_quota_set(m->s, SPAN("q:"), m->units * 64 / 3);
        else
            store_quota_del(m->s, SPAN("q:"));
        break;
    case 20:
        if (rng_below(&m->rng, 20)) break;
        store_flush(m->s);
        for (int i = 0; i < KEYS; i++) forget(m, i, m->current[i]);
        for (int i = 0; i < m->puts; i++) forget(m, m->put[i].key, m->put[i].token);
        break;
    case 21: store_session_closed(m->s, 1 + rng_below(&m->rng, SESSIONS)); break;
    case 22: {
        struct store_batch b;
        struct store_put_options opt = {.replicas = 1, .supersede = true};
        unsigned budget = 1000;
        store_batch_begin(m->s, &b, NULL, STORE_BATCH_PUT, 1);
        tarn_status st =
            store_set_inline(m->s, &b, span_str(name), SPAN("hello"), 1, &opt, &budget);
        CHECK(st == TARN_OK || st == TARN_EQUOTA || st == TARN_EAGAIN);
        if (st == TARN_OK) m->current[k] = store_object_version(store_find(m->s, span_str(name)));
        break;
    }
    default: break;
    }
}

static void run(const char *allocator, uint64_t pages, uint64_t seed, int steps, unsigned slice) {
    struct model *m = xcalloc(1, sizeof(*m));
    rng_seed(&m->rng, seed);
    m->now = 1000;
    m->wall = 1000000;
    struct store_config c;
    store_config_init(&c);
    c.put_timeout_ms = 200;
    c.put_release_timeout_ms = 300;
    c.high_watermark = seed % 2 ? 1 : 0.8;
    struct store_events ev = {.arg = m, .fence = on_fence};
    m->s = store_create(&c, &ev, "lru", allocator, m->now, m->wall);
    uint32_t id;
    CHECK_EQ(store_segment_add(
                 m->s,
                 &(struct store_segment_config){.name = "s0", .epoch = 1, .size = pages * 4096},
                 &id),
             TARN_OK);
    m->units = pages * 64;
    m->pool = xcalloc(m->units, sizeof(uint64_t));
    for (int i = 0; i < steps; i++) {
        m->now += rng_below(&m->rng, 3);
        m->wall += rng_below(&m->rng, 3);
        store_tick(m->s, m->now, m->wall);
        unsigned budget = 50;
        store_background(m->s, &budget);
        uint64_t what = rng_below(&m->rng, 100);
        if (what < 35)
            do_put(m, slice);
        else if (what < 60)
            do_end(m);
        else if (what < 90)
            do_read(m);
        else
            do_misc(m);
        do_continue(m, slice);
        check_leases(m);
        if (m->fence && rng_below(&m->rng, 30) == 0) {
            /* Fenced: writers of this session that are still open in the model are cut off. */
            store_session_fenced(m->s, m->fence);
            m->fence = 0;
        }
        if (i % 16 == 0) store_check(m->s);
    }
    for (int i = 0; i < m->leases; i++)
        if (m->lease[i].hold) store_unhold(m->s, &m->lease[i].hold);
    for (int i = 0; i < m->puts; i++)
        if (!m->put[i].open) store_put_abandon(m->s, &m->put[i].put);
    struct store_stats st;
    store_get_stats(m->s, &st);
    CHECK(st.put_ends > (uint64_t)steps / 50 && st.evicted_objects > 0);
    if (getenv("MODEL_VERBOSE"))
        printf("# %s: ends %lu nospace %lu direct %lu policy %lu window %lu slices %lu evicted %lu "
               "objects "
               "%lu\n",
               allocator, st.put_ends, st.put_nospace, st.room_direct, st.room_policy,
               st.room_window, st.room_slices, st.evicted_objects, st.objects);
    store_destroy(&m->s);
    free(m->pool);
    free(m);
}

TEST(model_offset) {
    for (uint64_t seed = 1, end = (uint64_t)test_rounds(12); seed <= end; seed++)
        run("offset", 64 + seed * 20, seed, 6000, 1000);
}

TEST(model_slab) {
    for (uint64_t seed = 1, end = (uint64_t)test_rounds(12); seed <= end; seed++)
        run("slab", 64 + seed * 20, seed + 100, 6000, 1000);
}

TEST(model_small_slices) {
    for (uint64_t seed = 1, end = (uint64_t)test_rounds(12); seed <= end; seed++)
        run(seed % 2 ? "offset" : "slab", 100 + seed * 20, seed + 200, 6000, 5);
}

TEST_MAIN()
