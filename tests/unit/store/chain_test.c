/* The chain policy in the books: random prompts with branches, looked up and put as engines do,
 * beside all that may come in between. Its own books are right after every step (chain_check.h),
 * and no block stays behind a gap that eviction made: a block that is there when one before it is
 * evicted. */
#include "util.h"

#include <stdlib.h>
#include "base/rng.h"
#include "chain_check.h"

#define NODES   600
#define KEY_LEN 6u
#define OPEN    400 /* puts at a time, where there are MANY; else: */
#define FEW     24

enum feature {
    LEASES = 1,
    QUOTAS = 2,
    MOVES = 4096, /* quotas come and go: blocks move between domains */
    REMOVAL = 4,
    PINS = 8,
    SIZES = 16,
    SWITCHES = 32,
    DISKS = 64,
    GROUPS = 128,
    HINTS = 256,
    BY_NAME = 512,
    PARTS = 1024, /* look-ups of a part of a prompt, and of the same key twice */
    LOOKS = 2048, /* without an access */
    WAITS = 8192, /* what is put waits for its copy on the disk */
    MANY = 16384, /* requests at a time: more than the policy remembers */
    HOSTILE = 32768,
    SEGMENTS = 65536, /* three, and sometimes two replicas */
};

struct node {
    int parent; /* < 0: none */
    uint32_t depth;
    char key[KEY_LEN + 1];
    uint64_t hash;
    bool there, evicted;
    bool demoted; /* its copy on the disk stays: no gap, but what is behind it and waits is late */
    bool gap, late; /* one before it was evicted, or demoted */
    /* It was put behind a gap, or one was made before it that had to be, by a client or for want of
     * leaves: until a look-up finds both together again, nobody knows what it is behind. */
    bool loose;
};

struct forest {
    struct store *s;
    struct rng rng;
    unsigned features;
    struct node node[NODES];
    bool went;              /* some were evicted or demoted since gaps were looked for */
    uint64_t steps, behind; /* blocks left behind a gap */
    uint64_t followed;      /* victims that went with others, as clients have asked */
    uint32_t disk;
    uint64_t far_offset;
    struct {
        int node;
        uint64_t token, step;
    } open[OPEN];
    unsigned n_open;
};

static struct forest *forest;

/* When all leaves are in use, what is before them goes: a put does not fail (guarantee 2). */
static bool leaves_left(const struct store *s, const struct object *o) {
    const struct chain_books *c =
        chain_books_of(&s->domains[book_domain(s, o)].policy[(o->bits & OBJECT_INLINE) != 0]);
    uint64_t any = 0;
    for (unsigned slot = 0; c && slot < CHAIN_SLOTS; slot++)
        for (unsigned w = 0; w < CHAIN_SORTS / 64; w++)
            any |= c->cells.window[slot].used[CHAIN_LEAVES][w];
    return any != 0;
}

static void loosen(struct forest *f, int gap) {
    for (int i = gap + 1; i < NODES; i++)
        for (int up = i; up >= gap; up = f->node[up].parent)
            if (up == gap) f->node[i].loose = true;
}

static void on_news(void *arg, const struct store_news *news) {
    bool evicted = news->kind == STORE_NEWS_EVICTED, demoted = news->kind == STORE_NEWS_DEMOTED;
    if (!forest || !news->object || !(evicted || demoted)) return;
    struct span key = store_object_key(news->object);
    int i = atoi((const char *)key.data + 2);
    uint64_t followed = forest->s->stat.evicted_group + forest->s->stat.evicted_boundary;
    bool asked = forest->s->evicting_for == STORE_EVICTION_COMMAND || followed > forest->followed;
    forest->followed = followed;
    if (asked || forest->s->policy != &policy_chain || !leaves_left(forest->s, news->object)) {
        loosen(forest, i);
        return;
    }
    forest->node[i].evicted = evicted && forest->node[i].there;
    forest->node[i].demoted = demoted && forest->node[i].there;
    forest->went = true;
}

/* Puts at a time, and the steps after which one has ended. */
static unsigned open_max(const struct forest *f) {
    return f->features & MANY ? OPEN : FEW;
}

static unsigned open_steps(const struct forest *f) {
    return f->features & MANY ? OPEN : 10;
}

static bool chance(struct forest *f, unsigned one_in) {
    return rng_below(&f->rng, one_in) == 0;
}

static void grow_node(struct forest *f, int i) {
    struct node *n = &f->node[i];
    bool root = i == 0 || chance(f, 20);
    n->parent = root ? -1 : chance(f, 6) ? (int)rng_below(&f->rng, (uint64_t)i) : i - 1;
    n->depth = root ? 0 : f->node[n->parent].depth + 1;
    char domain = root ? (char)('a' + rng_below(&f->rng, 3)) : f->node[n->parent].key[0];
    sprintf(n->key, "%c:%04d", domain, i);
    n->hash = store_hash(span_str(n->key));
}

static unsigned path_to(struct forest *f, int leaf, int path[NODES]) {
    unsigned n = f->node[leaf].depth + 1;
    for (unsigned k = n; k-- > 0; leaf = f->node[leaf].parent) path[k] = leaf;
    return n;
}

static struct object *find_node(struct forest *f, int i) {
    return store_find_hashed(f->s, span_of(f->node[i].key, KEY_LEN), f->node[i].hash);
}

/* What is on a disk only is in no order of eviction. */
static bool in_memory(struct forest *f, int i) {
    const struct object *o = find_node(f, i);
    return o && !book_far_only(o);
}

static bool gap_now(struct forest *f, int i) {
    while ((i = f->node[i].parent) >= 0)
        if (!in_memory(f, i)) return true;
    return false;
}

/* Another request has put one before it since. */
static bool overtaken(struct forest *f, int i, uint64_t token) {
    while ((i = f->node[i].parent) >= 0)
        if (object_version(find_node(f, i)) > token) return true;
    return false;
}

/* --- what clients do --- */

static void end_open(struct forest *f, unsigned at) {
    int i = f->open[at].node;
    f->node[i].loose = gap_now(f, i) || overtaken(f, i, f->open[at].token);
    tarn_status st =
        store_put_end(f->s, span_str(f->node[i].key), f->open[at].token, 1, 0, NULL, 0, NULL);
    CHECK(st == TARN_OK || st == TARN_ETOKEN);
    f->node[i].there |= st == TARN_OK;
    f->open[at] = f->open[--f->n_open];
}

static bool put_block(struct forest *f, struct store_batch *b, int i, bool later) {
    uint64_t size = f->features & SIZES ? 100 + rng_below(&f->rng, 20000) : 4096;
    struct store_put_options o = {.replicas = 1};
    if (f->features & SEGMENTS) o.replicas += chance(f, 3);
    if (f->features & GROUPS && chance(f, 8)) {
        o.group = chance(f, 2) ? SPAN("g1") : SPAN("g2");
        o.boundary = chance(f, 2);
    }
    struct store_put *p;
    unsigned budget = 100000;
    tarn_status st = store_put_start(f->s, b, span_str(f->node[i].key), size, &o,
                                     1 + rng_below(&f->rng, 3), &budget, &p);
    if (st != TARN_OK) {
        CHECK(st == TARN_EEXISTS || st == TARN_EBUSY || st == TARN_EQUOTA || st == TARN_ENOSPACE ||
              (st == TARN_ELATER && (f->features & WAITS)));
        /* What another one is about to put is not known to be behind it, until a look-up comes. */
        return st == TARN_EEXISTS;
    }
    if (f->n_open == open_max(f)) end_open(f, (unsigned)rng_below(&f->rng, f->n_open));
    f->open[f->n_open].node = i;
    f->open[f->n_open].step = f->steps;
    f->open[f->n_open++].token = store_put_token(p);
    if (!later) end_open(f, f->n_open - 1);
    return true;
}

static void hint(struct forest *f, struct store_batch *b) {
    if (!(f->features & HINTS)) return;
    if (chance(f, 2)) b->session = (uint32_t)rng_next(&f->rng) % (chance(f, 2) ? 5 : UINT32_MAX);
    if (chance(f, 3)) b->return_ms = (uint32_t)rng_next(&f->rng);
}

static void prompt(struct forest *f) {
    int path[NODES];
    unsigned n = path_to(f, (int)rng_below(&f->rng, NODES), path), from = 0, hits = 0;
    bool twice = f->features & PARTS && chance(f, 8);
    struct store_chain chain = {0};
    struct store_batch b;
    if (f->features & PARTS && chance(f, 3)) from = (unsigned)rng_below(&f->rng, n);
    store_batch_begin(f->s, &b, &chain,
                      f->features & LOOKS && chance(f, 4) ? STORE_BATCH_LOOK : STORE_BATCH_READ,
                      n - from + twice);
    hint(f, &b);
    for (; from + hits < n; hits++) {
        struct object *o = find_node(f, path[from + hits]);
        uint64_t hash = f->node[path[from + hits]].hash, granted;
        if (!o) {
            store_batch_miss(f->s, &b, span_str(f->node[path[from + hits]].key), hash);
            break;
        }
        store_batch_hit(f->s, &b, o, hash);
        if (twice && chance(f, n)) {
            store_batch_hit(f->s, &b, o, hash);
            twice = false;
        }
        if (from == 0 && b.kind == STORE_BATCH_READ) f->node[path[hits]].loose = false;
        if (f->features & LEASES && chance(f, 4))
            store_lease(f->s, o, 1 + rng_below(&f->rng, 3), 1 + rng_below(&f->rng, 40), &granted);
    }
    if (from + hits == n || chance(f, 8)) return;
    bool later = chance(f, 3);
    store_batch_begin(f->s, &b, f->features & PARTS && chance(f, 6) ? NULL : &chain,
                      STORE_BATCH_PUT, n - from - hits);
    hint(f, &b);
    for (unsigned k = from + hits; k < n; k++)
        if (!put_block(f, &b, path[k], later)) break;
}

/* A disk that mostly keeps up. */
static void copy_some(struct forest *f) {
    if (!(f->features & WAITS) || chance(f, 3)) return;
    struct object *o;
    for (uint64_t n = rng_below(&f->rng, 12); n > 0; n--) {
        if (!(o = store_await_take(f->s, f->disk))) return;
        if (chance(f, 10))
            store_await_again(f->s, o, f->disk);
        else if (chance(f, 10))
            store_await_end(f->s, o);
        else
            CHECK_EQ(store_far_add(f->s, o, f->disk, f->far_offset += 32768), TARN_OK);
    }
}

/* Keys in no order, of any prompt, over and over; lengths and places that are no such; batches that
 * end early and go on with whatever. */
static void hostile(struct forest *f) {
    struct store_chain chain = {.request = (uint32_t)rng_next(&f->rng),
                                .depth = (uint32_t)rng_next(&f->rng) >> rng_below(&f->rng, 32),
                                .length = (uint32_t)rng_next(&f->rng) >> rng_below(&f->rng, 32),
                                .hits = (uint32_t)rng_below(&f->rng, 100)};
    unsigned n = 1 + (unsigned)rng_below(&f->rng, 30);
    struct store_batch b = {0};
    for (unsigned k = 0; k < n; k++) {
        int i = (int)rng_below(&f->rng, NODES);
        struct span key = span_str(f->node[i].key);
        struct object *o = find_node(f, i);
        if (k == 0 || chance(f, 10)) {
            chain.next_hash = f->node[i].hash;
            store_batch_begin(f->s, &b, chance(f, 9) ? NULL : &chain,
                              (enum store_batch_kind)rng_below(&f->rng, 4),
                              n - k + (chance(f, 4) ? (uint32_t)rng_next(&f->rng) >> 1 : 0));
            b.session = (uint32_t)rng_next(&f->rng);
            b.return_ms = (uint32_t)rng_next(&f->rng);
        }
        if (b.kind == STORE_BATCH_PUT)
            put_block(f, &b, i, chance(f, 2));
        else if (o)
            store_batch_hit(f->s, &b, o, f->node[i].hash);
        else
            store_batch_miss(f->s, &b, key, f->node[i].hash);
    }
}

static void disturb(struct forest *f) {
    int i = (int)rng_below(&f->rng, NODES);
    struct span key = span_str(f->node[i].key);
    struct object *o = find_node(f, i);
    uint64_t bytes;
    if (f->features & REMOVAL && chance(f, 4)) {
        store_remove(f->s, key);
        loosen(f, i);
    }
    if (f->features & PINS && chance(f, 3))
        store_pin(f->s, key, (enum store_pin)rng_below(&f->rng, 3), 1 + rng_below(&f->rng, 60));
    if (f->features & BY_NAME && (o = find_node(f, i)) && chance(f, 3))
        store_evict_object(f->s, o, &bytes);
    if (f->features & DISKS && (o = find_node(f, i)))
        store_far_add(f->s, o, f->disk, f->far_offset += 32768);
    if (f->features & SWITCHES && chance(f, 40)) {
#define NAME(policy) #policy,
        static const char *const names[] = {STORE_POLICIES(NAME)};
#undef NAME
        store_set_policy(f->s, chance(f, 2) ? "chain" : names[rng_below(&f->rng, 6)]);
    }
    if (f->features & MOVES && chance(f, 30)) {
        struct span domain = chance(f, 2) ? SPAN("a:") : SPAN("b:");
        if (chance(f, 3))
            store_quota_del(f->s, domain);
        else
            store_quota_set(f->s, domain, 200000 + rng_below(&f->rng, 400000));
    }
}

/* --- after every step --- */

/* A block's parent has a lower number than the block, so it is known by then. */
static void look_for_gaps(struct forest *f) {
    if (!f->went) return;
    f->went = false;
    for (int i = 0; i < NODES; i++) {
        struct node *n = &f->node[i];
        const struct node *up = n->parent < 0 || n->loose ? NULL : &f->node[n->parent];
        n->gap = up && (up->gap || (up->evicted && !up->there));
        n->late = up && (up->late || up->demoted);
        bool was = n->there;
        const struct object *o = find_node(f, i);
        n->there = o && !book_far_only(o);
        if (was && n->there && (n->gap || (n->late && o->bits & OBJECT_AWAITS))) f->behind++;
    }
    for (int i = 0; i < NODES; i++) f->node[i].evicted = f->node[i].demoted = false;
}

static void step(struct forest *f) {
    util_now += rng_below(&f->rng, 4);
    store_tick(f->s, util_now, 5000000 + util_now - 1000);
    unsigned budget = 1000;
    store_background(f->s, &budget);
    store_settle(f->s);
    for (unsigned i = f->n_open; i-- > 0;)
        if (f->open[i].step + open_steps(f) < f->steps) end_open(f, i);
    look_for_gaps(f);
    copy_some(f);
    look_for_gaps(f);
    if (f->features & HOSTILE && chance(f, 2))
        hostile(f);
    else if (chance(f, 3))
        disturb(f);
    else if (f->n_open > 0 && chance(f, 3))
        end_open(f, (unsigned)rng_below(&f->rng, f->n_open));
    else
        prompt(f);
    look_for_gaps(f);
    f->steps++;
    if (f->steps % 16 == 0) {
        chain_check(f->s);
        store_check(f->s);
    }
}

struct tally {
    uint64_t evicted, behind;
};

static void wander(unsigned features, uint64_t seed, int steps, struct tally *t) {
    struct forest *f = calloc(1, sizeof(*f));
    f->features = features;
    hash_set_seed(seed);
    rng_seed(&f->rng, seed);
    struct store_events ev = {.news = on_news};
    struct store_config c;
    store_config_init(&c);
    c.high_watermark = seed % 2 ? 1 : 0.8;
    c.copies_all = true;
    f->s = util_store("chain", features & MANY ? 1000 : features & SIZES ? 500 : 200, &c, &ev);
    rng_seed(&f->s->rng, seed);
    f->s->next_request = UINT32_MAX - (uint32_t)steps / 2; /* their numbers begin anew */
    store_listen(f->s, true);
    struct store_segment_config disk = {
        .name = "d", .epoch = 2, .tier = STORE_TIER_SSD, .size = 4096 * 100000};
    if (features & (DISKS | WAITS)) CHECK_EQ(store_segment_add(f->s, &disk, &f->disk), TARN_OK);
    for (unsigned host = 1; host < 3 && features & SEGMENTS; host++) {
        uint32_t id;
        struct store_segment_config more = {
            .name = host == 1 ? "s1" : "s2", .epoch = 1, .size = 100 * 4096, .host = host};
        CHECK_EQ(store_segment_add(f->s, &more, &id), TARN_OK);
    }
    if (features & WAITS) store_segment_copies(f->s, 0, f->disk);
    for (int i = 0; i < NODES; i++) grow_node(f, i);
    if (features & QUOTAS) {
        CHECK_EQ(store_quota_set(f->s, SPAN("a:"), 400000), TARN_OK);
        CHECK_EQ(store_quota_set(f->s, SPAN("b:"), 250000), TARN_OK);
    }
    forest = f;
    chain_check_wild = (features & HOSTILE) != 0;
    for (int i = 0; i < steps; i++) step(f);
    chain_check(f->s);
    forest = NULL;
    struct store_stats st;
    store_get_stats(f->s, &st);
    if (!(features & (DISKS | WAITS | PINS | MANY)))
        CHECK(st.evicted_objects > (uint64_t)steps / 10);
    if (getenv("CHAIN_VERBOSE"))
        printf("# features %u seed %lu: evicted %lu, behind %lu\n", features, seed,
               st.evicted_objects, f->behind);
    t->evicted += st.evicted_objects;
    t->behind += f->behind;
    store_destroy(&f->s);
    free(f);
}

/* At most one block is left behind in so many that are evicted. */
static void wander_with(unsigned features, unsigned in_so_many) {
    struct tally t = {0};
    for (uint64_t seed = 1, end = (uint64_t)test_rounds(3); seed <= end; seed++)
        wander(features, seed, 2500, &t);
    CHECK(t.behind * in_so_many <= t.evicted);
}

#define NEVER 1000000u

TEST(prompts) {
    wander_with(0, NEVER);
}

TEST(prompts_with_leases) {
    wander_with(LEASES, NEVER);
}

/* In a small domain all leaves may be in use or chosen already: what is before them may have been
 * chosen by the time when they are leaves again. The same where all that can go is before a pin. */
TEST(prompts_in_domains) {
    wander_with(LEASES | QUOTAS, 200);
}

TEST(prompts_and_removal) {
    wander_with(LEASES | REMOVAL, NEVER);
}

TEST(prompts_on_disks) {
    wander_with(LEASES | DISKS, NEVER);
}

/* They are of their prompts all the time, however late their copies are made. */
TEST(prompts_that_wait_for_disks) {
    wander_with(LEASES | WAITS, NEVER);
}

TEST(prompts_with_pins) {
    wander_with(LEASES | PINS, 1000);
}

TEST(prompts_with_hints) {
    wander_with(LEASES | HINTS, NEVER);
}

TEST(prompts_that_are_looked_up_without_a_lease) {
    wander_with(LEASES | LOOKS, NEVER);
}

TEST(prompts_on_nodes) {
    wander_with(LEASES | SEGMENTS, NEVER);
}

/* Several go for a large one. Where it takes a window, what lies between goes too, wherever that is
 * in its prompt, and what is behind it, but for what is in use. */
TEST(prompts_of_many_sizes) {
    wander_with(LEASES | SIZES, NEVER);
    wander_with(LEASES | SIZES | SEGMENTS, 400);
}

/* Parts are prompts of their own. */
TEST(prompts_in_parts) {
    wander_with(LEASES | PARTS | LOOKS | REMOVAL, 10);
}

/* More requests at a time than are remembered: what ends later than that has no place. */
TEST(prompts_of_many_requests) {
    wander_with(LEASES | MANY, 1000);
}

TEST(hostile_batches) {
    wander_with(LEASES | HOSTILE | REMOVAL, 0);
    wander_with(HOSTILE | 0x7fff, 0);
}

/* The gaps that EVICT makes are the client's; later evictions make no more. */
TEST(prompts_and_evict) {
    wander_with(LEASES | BY_NAME, NEVER);
}

/* Blocks that move stay with those of the request that used them last; what else these were behind
 * is found by the next look-up. */
TEST(prompts_that_move) {
    wander_with(LEASES | SWITCHES, 20);
    wander_with(LEASES | QUOTAS | MOVES, 40);
}

static void put_blocks(struct store *s, const char *set, unsigned from, unsigned n);

/* They bring the bit that was s3fifo's: one is used before it has moved, one was pinned until all
 * others had. */
TEST(blocks_that_another_policy_had_marked_move) {
    struct store *s = util_store("s3fifo", 100, NULL, NULL);
    put_blocks(s, "old", 0, 60);
    char key[32];
    for (unsigned i = 0; i < 60; i++) {
        sprintf(key, "old:%u", i);
        CHECK(util_read(s, key));
    }
    put_blocks(s, "new", 0, 60); /* what was used is in the main queue now */
    CHECK(store_find(s, SPAN("old:1"))->bits & store_find(s, SPAN("old:2"))->bits & OBJECT_Q1);
    CHECK_EQ(store_pin(s, SPAN("old:2"), STORE_PIN_HARD, 60000), TARN_OK);
    CHECK_EQ(store_set_policy(s, "chain"), TARN_OK);
    CHECK(util_read(s, "old:1"));
    util_tick(s, 1);
    CHECK_EQ(store_pin(s, SPAN("old:2"), STORE_PIN_NONE, 0), TARN_OK);
    chain_check(s);
    put_blocks(s, "more", 0, 200);
    chain_check(s);
    store_destroy(&s);
}

/* What goes with another of its group goes because the client has said so: no more than that. */
TEST(prompts_in_groups) {
    wander_with(LEASES | GROUPS, NEVER);
}

/* Windows take from the middle. The books have to be right all the same. */
TEST(prompts_and_everything) {
    static const unsigned features[] = {SIZES, SWITCHES | PINS};
    for (unsigned i = 0; i < sizeof(features) / sizeof(features[0]); i++)
        wander(LEASES | features[i], i + 1, 2000, &(struct tally){0});
    wander_with(0x3fff, 0);
}

/* --- where nothing is ever asked for again --- */

static void put_prompt(struct store *s, unsigned prompt, unsigned n, unsigned in_a_batch) {
    struct store_chain chain = {0};
    struct store_batch b;
    char key[32];
    store_batch_begin(s, &b, &chain, STORE_BATCH_READ, n);
    sprintf(key, "%u:0", prompt);
    store_batch_miss(s, &b, span_str(key), store_hash(span_str(key)));
    for (unsigned k = 0; k < n; k++) {
        struct store_put_options o = {.replicas = 1};
        struct store_put *p;
        unsigned budget = 100000, left = n - k;
        if (k % in_a_batch == 0)
            store_batch_begin(s, &b, &chain, STORE_BATCH_PUT,
                              left < in_a_batch ? left : in_a_batch);
        sprintf(key, "%u:%u", prompt, k);
        CHECK_EQ(store_put_start(s, &b, span_str(key), 4096, &o, 1, &budget, &p), TARN_OK);
        CHECK_EQ(store_put_end(s, span_str(key), store_put_token(p), 1, 0, NULL, 0, NULL), TARN_OK);
    }
}

static unsigned prompt_prefix(struct store *s, unsigned prompt) {
    char key[32];
    for (unsigned n = 0;; n++) {
        sprintf(key, "%u:%u", prompt, n);
        if (!util_has(s, key)) return n;
    }
}

static bool prompt_whole(struct store *s, unsigned prompt, unsigned n) {
    return prompt_prefix(s, prompt) == n;
}

/* As many keys of a prompt, up to the first that is not there. Returns how many were. */
static unsigned look_up(struct store *s, enum store_batch_kind kind, unsigned prompt, unsigned n) {
    struct store_chain chain = {0};
    struct store_batch b;
    char key[32];
    store_batch_begin(s, &b, &chain, kind, n);
    for (unsigned k = 0; k < n; k++) {
        sprintf(key, "%u:%u", prompt, k);
        struct object *o = store_find(s, span_str(key));
        if (!o) {
            store_batch_miss(s, &b, span_str(key), store_hash(span_str(key)));
            return k;
        }
        store_batch_hit(s, &b, o, store_hash(span_str(key)));
    }
    return n;
}

/* What a look-up has found, used or not, is there when its puts come, unless they are late. */
TEST(what_a_look_up_found_waits_for_its_puts) {
    for (unsigned looks = 0; looks < 2; looks++)
        for (unsigned requests = 10; requests <= 60; requests += 50) {
            struct store *s = util_store("chain", 8, NULL, NULL);
            put_prompt(s, 1, 4, 4);
            CHECK_EQ(look_up(s, looks ? STORE_BATCH_LOOK : STORE_BATCH_READ, 1, 5), 4u);
            for (unsigned i = 0; i < requests; i++) put_prompt(s, 100 + i, 1, 1);
            CHECK_EQ(prompt_whole(s, 1, 4), requests == 10);
            chain_check(s);
            store_destroy(&s);
        }
}

/* A pool that is only filled, as at first: by and large the oldest prompts go, and none eats its
 * own beginning. */
TEST(new_prompts_are_whole_where_nothing_returns) {
    for (unsigned before = 20; before <= 320; before *= 2) {
        struct store *s = util_store("chain", 200, NULL, NULL);
        for (unsigned i = 0; i < before; i++) put_prompt(s, i, 4, 4);
        put_prompt(s, 1000, 100, 100);
        CHECK(prompt_whole(s, 1000, 100));
        put_prompt(s, 1001, 100, 8);
        CHECK(prompt_whole(s, 1001, 100));
        put_prompt(s, 1002, 20, 1);
        CHECK(prompt_whole(s, 1002, 20) && prompt_whole(s, 1001, 100));
        for (unsigned i = 2000; i < 2060; i++) put_prompt(s, i, 1, 1);
        unsigned whole = 0;
        for (unsigned i = 2000; i < 2060; i++) whole += prompt_whole(s, i, 1);
        CHECK(whole >= 48);
        chain_check(s);
        store_destroy(&s);
    }
}

/* As engines put a long prompt while it is computed, where no look-up tells of it. */
TEST(puts_of_a_session_that_looked_nothing_up_are_one_prompt) {
    struct store *s = util_store("chain", 30, NULL, NULL);
    struct store_chain chain = {0};
    char key[32];
    for (unsigned k = 0; k < 20; k++) {
        struct store_put_options o = {.replicas = 1};
        struct store_batch b;
        struct store_put *p;
        unsigned budget = 100000;
        if (k % 4 == 0) {
            store_batch_begin(s, &b, &chain, STORE_BATCH_PUT, 4);
            b.session = store_session(SPAN("s"));
        }
        sprintf(key, "1:%u", k);
        CHECK_EQ(store_put_start(s, &b, span_str(key), 4096, &o, 1, &budget, &p), TARN_OK);
        CHECK_EQ(store_put_end(s, span_str(key), store_put_token(p), 1, 0, NULL, 0, NULL), TARN_OK);
        if (k % 4 == 3) put_prompt(s, 100 + k, 1, 1);
    }
    unsigned n = 20;
    for (unsigned i = 200; i < 300 && n > 10; i++) {
        put_prompt(s, i, 4, 4);
        n = prompt_prefix(s, 1);
        for (unsigned k = n; k < 20; k++) {
            sprintf(key, "1:%u", k);
            CHECK(!util_has(s, key));
        }
    }
    CHECK(n > 0 && n <= 10);
    chain_check(s);
    store_destroy(&s);
}

/* --- what was just put --- */

static void put_blocks(struct store *s, const char *set, unsigned from, unsigned n) {
    struct store_batch b;
    char key[32];
    store_batch_begin(s, &b, NULL, STORE_BATCH_PUT, n);
    for (unsigned k = from; k < from + n; k++) {
        struct store_put_options o = {.replicas = 1};
        struct store_put *p;
        unsigned budget = 100000;
        sprintf(key, "%s:%u", set, k);
        CHECK_EQ(store_put_start(s, &b, span_str(key), 4096, &o, 1, &budget, &p), TARN_OK);
        CHECK_EQ(store_put_end(s, span_str(key), store_put_token(p), 1, 0, NULL, 0, NULL), TARN_OK);
    }
}

static void put_set(struct store *s, const char *set, unsigned n, unsigned in_a_batch) {
    for (unsigned k = 0; k < n; k += in_a_batch)
        put_blocks(s, set, k, n - k < in_a_batch ? n - k : in_a_batch);
}

static unsigned set_there(struct store *s, const char *set, unsigned from, unsigned to) {
    unsigned n = 0;
    char key[32];
    for (; from < to; from++) {
        sprintf(key, "%s:%u", set, from);
        n += util_has(s, key);
    }
    return n;
}

/* In a pool where next to nothing was ever read, what is put now is there, and older blocks go. */
TEST(a_set_that_fits_is_there_where_hardly_anything_returns) {
    for (unsigned batch = 1; batch <= 64; batch *= 4)
        for (unsigned every = 1000; every <= 4000; every *= 4) {
            struct store *s = util_store("chain", 1000, NULL, NULL);
            put_set(s, "old", 5000, batch);
            put_set(s, "set", 500, batch);
            CHECK_EQ(set_there(s, "set", 0, 500), 500u);
            for (unsigned k = 0; k < 4000; k += batch) { /* one of so many is read, once */
                put_blocks(s, "more", k, batch);
                char key[32];
                sprintf(key, "more:%u", k / 2);
                if (k / every != (k + batch) / every) CHECK(util_read(s, key) || k > 1000);
            }
            put_set(s, "other", 500, batch);
            CHECK(set_there(s, "other", 0, 500) >= 490);
            store_destroy(&s);
        }
}

/* A cache by popularity has learnt that new blocks are worth little. Who puts some one by one finds
 * the last of them all the same, for a while; and that they are no more than that. */
TEST(single_blocks_that_were_just_put_are_there) {
    struct store *s = util_store("chain", 1000, NULL, NULL);
    struct rng rng;
    rng_seed(&rng, 1);
    char key[32];
    for (unsigned i = 0; i < 30000; i++) {
        unsigned a = (unsigned)rng_below(&rng, 4000), b = (unsigned)rng_below(&rng, 4000);
        unsigned k = a * b / 4000 < 4000 ? a * b / 4000 : 0;
        sprintf(key, "old:%u", k);
        if (!util_read(s, key)) put_blocks(s, "old", k, 1);
    }
    for (unsigned k = 0; k < 500; k++) {
        put_blocks(s, "new", k, 1);
        unsigned from = k > 180 ? k - 180 : 0;
        CHECK_EQ(set_there(s, "new", from, k + 1), k + 1 - from);
    }
    CHECK(set_there(s, "new", 0, 500) < 350);
    chain_check(s);
    store_destroy(&s);
}

static char victim[16]; /* the prompt of the last one */
static unsigned changes;

static void on_victim(void *arg, const struct store_news *news) {
    if (news->kind != STORE_NEWS_EVICTED) return;
    struct span key = store_object_key(news->object);
    size_t n = (size_t)((const char *)memchr(key.data, ':', key.len) - (const char *)key.data);
    if (strlen(victim) != n || memcmp(victim, key.data, n) != 0) changes++;
    memcpy(victim, key.data, n);
    victim[n] = 0;
}

/* Space that came together becomes free together. */
TEST(prompts_go_one_by_one_where_nothing_returns) {
    enum { BLOCKS = 1000, PROMPTS = 2000 };
    struct store_events events = {.news = on_victim};
    struct store *s = util_store("chain", BLOCKS, NULL, &events);
    store_listen(s, true);
    for (unsigned i = 0; i < PROMPTS; i++) put_prompt(s, i, 10, 10);
    changes = 0;
    for (unsigned i = PROMPTS; i < 2 * PROMPTS; i++) put_prompt(s, i, 10, 10);
    CHECK(changes >= PROMPTS && changes < PROMPTS + PROMPTS / 50);
    chain_check(s);
    store_destroy(&s);
}

/* Deeper than an object can tell: the end goes first all the same. */
TEST(a_prompt_of_more_than_65535_blocks) {
    enum { BLOCKS = 66000 };
    char key[32];
    struct store *s = util_store("chain", BLOCKS + 100, NULL, NULL);
    put_prompt(s, 1, BLOCKS, 1000);
    CHECK(prompt_whole(s, 1, BLOCKS));
    for (unsigned i = 2; i < 102; i++) put_prompt(s, i, 8, 8);
    unsigned n = prompt_prefix(s, 1);
    CHECK(n > 60000 && n < BLOCKS);
    for (unsigned k = n; k < BLOCKS; k++) {
        sprintf(key, "1:%u", k);
        CHECK(!util_has(s, key));
    }
    chain_check(s);
    store_destroy(&s);
}

TEST_MAIN()
