/* A pool of pretended machines under random load and random trouble. Memory and disks are arrays of
 * page contents, a page's content is the version that was written there last; nodes copy them as
 * they are asked, are late, fail, stop, die, come back with or without their content; writers
 * disappear and write on until they are cut off. Whatever happens: every replica that can be read
 * holds the version that it is said to hold, replicas are on different machines, and in the end all
 * is at rest. */
#include "util.h"

#include <stdlib.h>
#include "store/books.h"

enum { NODES = 6, PAGES = 96, KEYS = 120, WRITERS = 12, DISK = 4096, HELD = 24, STEPS = 15000 };

enum { GONE, ALIVE, STOPPED };

struct held { /* work that the node has not finished */
    bool used, read, bad;
    struct cluster_work w;
    char key[16];
    uint64_t bytes[4]; /* STORE: what was read */
};

static struct machine_model {
    struct util_node u;
    char name[16], machine[16];
    int state;
    bool in_pool, mounted;
    uint8_t instance, content, disk_content;
    uint64_t page[PAGES];
    uint64_t disk[DISK];
    unsigned next_disk;
    uint32_t mem, ssd; /* segment ids */
    bool mem_there, ssd_there;
    uint32_t mem_epoch, ssd_epoch;
    struct held held[HELD];
    uint64_t fenced[512]; /* sessions that may not write to this process */
    size_t n_fenced;
} node[NODES];

static struct writer {
    bool used;
    uint64_t session, token;
    char key[16];
    struct store_layout layout;
    uint64_t epoch_of[STORE_REPLICAS_MAX]; /* processes it wrote to: instance per replica */
    unsigned size;
} writer[WRITERS];

static struct rng rng;
static uint64_t next_session;

static unsigned below(unsigned n) {
    return (unsigned)rng_below(&rng, n);
}

static unsigned pages_of(uint64_t size) {
    return (unsigned)((size + 4095) / 4096);
}

static struct machine_model *owner(uint32_t segment, uint32_t epoch) {
    for (int i = 0; i < NODES; i++)
        if (node[i].mem_there && node[i].mem == segment && node[i].mem_epoch == epoch)
            return &node[i];
    return NULL;
}

/* --- bytes --- */

static void write_pages(struct machine_model *m, const struct store_replica *r, uint64_t version) {
    for (uint32_t i = 0; i < r->extents; i++)
        for (uint64_t p = r->extent[i].offset / 4096, n = pages_of(r->extent[i].length); n > 0;
             p++, n--)
            m->page[p] = version;
}

static bool holds(struct machine_model *m, const struct store_replica *r, uint64_t version) {
    for (uint32_t i = 0; i < r->extents; i++)
        for (uint64_t p = r->extent[i].offset / 4096, n = pages_of(r->extent[i].length); n > 0;
             p++, n--)
            if (m->page[p] != version) return false;
    return true;
}

static struct machine_model *disk_owner(uint32_t segment, uint32_t epoch) {
    for (int i = 0; i < NODES; i++)
        if (node[i].ssd_there && node[i].ssd == segment && node[i].ssd_epoch == epoch)
            return &node[i];
    return NULL;
}

/* Guarantee 1, for all keys. */
static void check_bytes(void) {
    char key[16];
    for (int k = 0; k < KEYS; k++) {
        struct store_layout l;
        snprintf(key, sizeof(key), "k%d", k);
        struct object *o = util_find(key);
        if (o == NULL) continue;
        uint64_t version = store_object_version(o), machines = 0;
        store_object_layout(util_store, o, &l);
        CHECK(l.replicas > 0);
        for (uint32_t i = 0; i < l.replicas; i++) {
            const struct store_replica *r = &l.replica[i];
            const struct store_extent *x = &r->extent[0];
            if (r->tier == STORE_TIER_SSD) {
                struct machine_model *m = disk_owner(x->segment, x->segment_epoch);
                if (m == NULL || m->disk[x->offset / 4096] != version)
                    printf("# %s of %s: disk %u offset %llu has %llx, not %llx\n", key,
                           m != NULL ? m->name : "", x->segment,
                           (unsigned long long)x->offset / 4096,
                           m != NULL ? (unsigned long long)m->disk[x->offset / 4096] : 0ULL,
                           (unsigned long long)version);
                CHECK(m != NULL && m->disk[x->offset / 4096] == version);
                continue;
            }
            struct machine_model *m = owner(x->segment, x->segment_epoch);
            CHECK(m != NULL);
            /* nobody answers there, and soon nobody is sent there */
            if (m->state == GONE) continue;
            if (!holds(m, r, version))
                printf("# %s of %s: segment %u offset %llu has %llx, not %llx\n", key, m->name,
                       x->segment, (unsigned long long)x->offset / 4096,
                       (unsigned long long)m->page[x->offset / 4096], (unsigned long long)version);
            CHECK(holds(m, r, version));
            CHECK(!(machines >> (m - node) & 1));
            machines |= UINT64_C(1) << (m - node);
        }
    }
}

/* --- nodes --- */

static bool is_fenced(const struct machine_model *m, uint64_t session) {
    for (size_t i = 0; i < m->n_fenced; i++)
        if (m->fenced[i] == session) return true;
    return false;
}

static void mount_all(struct machine_model *m) {
    char name[32];
    snprintf(name, sizeof(name), "%s.0", m->name);
    struct cluster_mounted got =
        util_mount(&m->u, name, STORE_TIER_MEMORY, PAGES * 4096, m->content);
    m->mem = got.id;
    m->mem_epoch = got.epoch;
    m->mem_there = true;
    if (m - node >= NODES / 2) return; /* half of them have disks */
    snprintf(name, sizeof(name), "%s.ssd", m->name);
    got = util_mount(&m->u, name, STORE_TIER_SSD, DISK * 4096, m->disk_content);
    m->ssd = got.id;
    m->ssd_epoch = got.epoch;
    m->ssd_there = true;
}

/* The process says so itself: none of its tasks runs any more. */
static void drop_held(struct machine_model *m) {
    memset(m->held, 0, sizeof(m->held));
}

static void start(struct machine_model *m) {
    tarn_status st = util_join_as(&m->u, m->instance, ++next_session);
    if (st == TARN_EBUSY) return;
    CHECK_EQ(st, TARN_OK);
    m->state = ALIVE;
    m->in_pool = true;
    m->mounted = false; /* one thing at a time: heartbeat() goes on */
}

static void die(struct machine_model *m, bool keep) {
    if (m->state == GONE) return;
    cluster_session_closed(m->u.session);
    m->state = GONE;
    m->instance++;
    m->n_fenced = 0;
    /* A write that was under way may have gone half through. */
    for (int i = 0; i < HELD; i++)
        if (m->held[i].used && m->held[i].w.kind == CLUSTER_WORK_COPY && below(2))
            write_pages(m, &m->held[i].w.at, 0xdead);
    drop_held(m);
    /* What old writers held of this process is worth nothing at the next. */
    for (int i = 0; i < WRITERS; i++)
        for (uint32_t k = 0; writer[i].used && k < writer[i].layout.replicas; k++)
            if (owner(writer[i].layout.replica[k].extent[0].segment,
                      writer[i].layout.replica[k].extent[0].segment_epoch) == m)
                writer[i].epoch_of[k] = UINT64_MAX;
    if (keep) return;
    m->content++;
    memset(m->page, 0xee, sizeof(m->page));
}

/* Reads key as libtarn would: any replica that can be read, verified. */
static bool read_object(const char *key, uint64_t version) {
    struct object *o = util_find(key);
    if (o == NULL || store_object_version(o) != version) return false;
    struct store_layout l;
    store_object_layout(util_store, o, &l);
    for (uint32_t i = 0; i < l.replicas; i++) {
        const struct store_extent *x = &l.replica[i].extent[0];
        struct machine_model *m = l.replica[i].tier == STORE_TIER_SSD
                                      ? disk_owner(x->segment, x->segment_epoch)
                                      : owner(x->segment, x->segment_epoch);
        if (m != NULL && m->state == ALIVE) return true;
    }
    return false;
}

static void take_work(struct machine_model *m) {
    struct cluster_work w;
    while (util_work(&m->u, &w)) {
        switch (w.kind) {
        case CLUSTER_WORK_FENCE:
            CHECK(m->n_fenced < 512);
            m->fenced[m->n_fenced++] = w.session;
            cluster_node_fenced(m->u.n, w.session);
            break;
        case CLUSTER_WORK_COPY:
        case CLUSTER_WORK_STORE: {
            int at = 0;
            while (at < HELD && m->held[at].used) at++;
            CHECK(w.key.len < 16);
            if (at == HELD) {
                cluster_task_done(m->u.n, w.task, TARN_EAGAIN, 0, -1);
                break;
            }
            struct held *h = &m->held[at];
            *h = (struct held){.used = true, .w = w};
            memcpy(h->key, w.key.data, w.key.len);
            break;
        }
        case CLUSTER_WORK_CANCEL:
            for (int i = 0; i < HELD; i++)
                if (m->held[i].used && m->held[i].w.task == w.task && below(2)) {
                    m->held[i].used = false;
                    cluster_task_done(m->u.n, w.task, TARN_ECANCELED, 0, -1);
                }
            break;
        case CLUSTER_WORK_DROP:
            for (size_t i = 0; i < w.n_drops; i++) {
                CHECK(w.far == m->ssd);
                if (m->disk[w.drops[i].offset / 4096] == w.drops[i].version)
                    m->disk[w.drops[i].offset / 4096] = 0;
            }
            break;
        case CLUSTER_WORK_UNMOUNT: break;
        case CLUSTER_WORK_LEAVE:
            die(m, false);
            m->in_pool = false;
            m->mem_there = m->ssd_there = false;
            m->disk_content++;
            memset(m->disk, 0, sizeof(m->disk));
            return;
        }
    }
}

static void finish(struct machine_model *m, struct held *h) {
    const struct cluster_work w = h->w;
    bool stays = false;
    if (w.kind == CLUSTER_WORK_COPY) {
        bool ok = below(8) != 0 && read_object(h->key, w.version);
        write_pages(m, &w.at, ok ? w.version : 0xbad);
        h->used = false;
        cluster_task_done(m->u.n, w.task, ok ? TARN_OK : TARN_EIO, 0, -1);
        return;
    }
    if (!h->read) { /* now, and the answer comes later */
        h->read = stays = true;
        h->bad = !holds(m, &w.at, w.version);
        if (below(3)) return;
    }
    h->used = false;
    if (h->bad && w.crc >= 0) {
        cluster_task_done(m->u.n, w.task, TARN_ECORRUPT, 0, -1);
        return;
    }
    unsigned at = m->next_disk++ % DISK;
    if (m->disk[at] != 0) { /* taken by something: it goes first */
        uint64_t old = m->disk[at];
        char key[16];
        for (int k = 0; k < KEYS; k++) {
            snprintf(key, sizeof(key), "k%d", k);
            cluster_far_evicted(m->u.n, m->ssd, span_str(key), old);
        }
    }
    m->disk[at] = h->bad ? 0xbad : w.version;
    if (!cluster_task_done(m->u.n, w.task, TARN_OK, at * 4096, -1)) m->disk[at] = 0;
}

static void heartbeat(struct machine_model *m) {
    if (m->state != ALIVE) return;
    if (!util_beat(&m->u)) {           /* it was thought dead */
        for (int i = 0; i < HELD; i++) /* what it was about to write, it writes before it stops */
            if (m->held[i].used && m->held[i].w.kind == CLUSTER_WORK_COPY)
                write_pages(m, &m->held[i].w.at, 0xbad);
        drop_held(m);
        start(m);
        if (m->state != ALIVE) return;
    }
    if (!m->mounted) {
        mount_all(m);
        m->mounted = true;
        return;
    }
    cluster_node_up(m->u.n); /* TARN_EAGAIN: it is asked again */
    take_work(m);
}

/* --- writers --- */

static void begin_put(void) {
    int i = 0;
    while (i < WRITERS && writer[i].used) i++;
    if (i == WRITERS) return;
    struct writer *p = &writer[i];
    struct store_put *put;
    *p = (struct writer){.session = ++next_session, .size = 4096 * (1 + below(3))};
    snprintf(p->key, sizeof(p->key), "k%u", below(KEYS));
    if (util_open_put(p->key, p->size, 1 + below(3), NULL, p->session, &put) != TARN_OK) return;
    p->token = store_put_token(put);
    p->used = true;
    store_put_layout(util_store, put, &p->layout);
    for (uint32_t k = 0; k < p->layout.replicas; k++) {
        struct machine_model *m = owner(p->layout.replica[k].extent[0].segment,
                                        p->layout.replica[k].extent[0].segment_epoch);
        p->epoch_of[k] = m != NULL ? m->instance : UINT64_MAX;
    }
}

/* true: the host took it. */
static bool write_replica(struct writer *p, uint32_t k, uint64_t version) {
    const struct store_extent *x = &p->layout.replica[k].extent[0];
    struct machine_model *m = owner(x->segment, x->segment_epoch);
    if (m == NULL || m->state != ALIVE || p->epoch_of[k] != m->instance || is_fenced(m, p->session))
        return false;
    write_pages(m, &p->layout.replica[k], version);
    return true;
}

static void step_put(struct writer *p) {
    uint32_t failed = 0;
    if (!p->used) return;
    switch (below(16)) {
    case 0: /* it disappears: what is on its way may still arrive, much later */
        store_session_closed(util_store, p->session);
        p->token = 0;
        break;
    case 1:
    case 2: /* a late write, or an early one */
        for (uint32_t k = 0; k < p->layout.replicas; k++)
            write_replica(p, k, p->token != 0 ? 0xf00 : 0xdead);
        break;
    default:
        if (p->token == 0) {
            if (below(20) == 0) p->used = false; /* really dead */
            break;
        }
        for (uint32_t k = 0; k < p->layout.replicas; k++)
            if (!write_replica(p, k, p->token)) failed |= UINT32_C(1) << k;
        store_put_end(util_store, span_str(p->key), p->token, below(4) ? 7 : -1, failed, NULL, 0,
                      NULL);
        p->used = false;
    }
}

/* --- all of it --- */

static void trouble(void) {
    struct machine_model *m = &node[below(NODES)];
    char segment[32];
    struct store_segment_info info;
    switch (below(14)) {
    case 0: die(m, true); break;
    case 1: die(m, false); break;
    case 2:
        if (m->state == ALIVE) m->state = STOPPED;
        break;
    case 3:
    case 4:
    case 5:
        if (m->state == STOPPED) m->state = ALIVE;
        break;
    case 6:
        if (m->state == ALIVE) cluster_session_closed(m->u.session); /* only its connection */
        break;
    case 7:
        if (m->state == ALIVE && util_beat(&m->u)) cluster_node_drain(m->u.n, below(3) != 0);
        break;
    case 8:
        if (m->state == ALIVE && util_beat(&m->u)) cluster_node_maintenance(m->u.n, below(2) != 0);
        break;
    case 9:
        if (m->state == ALIVE && below(4) == 0 && util_beat(&m->u)) cluster_node_leave(m->u.n);
        break;
    case 10:
        snprintf(segment, sizeof(segment), "%s.%s", m->name, below(2) ? "0" : "ssd");
        if (store_segment_by_name(util_store, span_str(segment), &info) && below(4) == 0)
            cluster_segment_drain(info.id, below(2) != 0);
        break;
    default:
        if (m->state == GONE) start(m);
        break;
    }
}

static bool cancel_some(void *arg, const struct cluster_task_info *info) {
    if (info->state <= CLUSTER_TASK_SENT) *(uint64_t *)arg = info->id;
    return below(4) != 0;
}

static void use(void) {
    char key[16];
    uint64_t task = 0;
    snprintf(key, sizeof(key), "k%u", below(KEYS));
    struct object *o = util_find(key);
    switch (below(8)) {
    case 0: store_remove(util_store, span_str(key)); break;
    case 1:
        if (o != NULL) cluster_replica_copy(o, STORE_SEGMENT_ANY, &task);
        break;
    case 2:
        if (o != NULL) {
            struct store_layout l;
            store_object_layout(util_store, o, &l);
            cluster_replica_move(o, l.replica[below(l.replicas)].extent[0].segment,
                                 STORE_SEGMENT_ANY, &task);
        }
        break;
    case 3:
        cluster_tasks_each(0, cancel_some, &task);
        if (task != 0 && below(4) == 0) cluster_task_cancel(task);
        break;
    case 4:
        if (o != NULL) {
            uint64_t bytes;
            store_evict_object(util_store, o, &bytes);
        }
        break;
    default: util_read(below(3) ? key : "k0"); break;
    }
}

static void slow_time(uint64_t ms) {
    unsigned a = 1 + below(60), b = 1 + below(60);
    util_now += ms;
    store_tick(util_store, util_now, 5000000 + util_now);
    cluster_tick(util_now);
    store_background(util_store, &a);
    cluster_background(&b);
}

static void finish_some(struct machine_model *m) {
    for (int i = 0; i < HELD && m->state == ALIVE; i++) {
        struct held *h = &m->held[i];
        if (!h->used || below(3) == 0) continue;
        m->u.n = cluster_node_check(span_str(m->name), m->u.instance);
        if (m->u.n != NULL) finish(m, h);
    }
}

static void step(void) {
    unsigned what = below(100);
    if (what < 1)
        trouble();
    else if (what < 12)
        use();
    else if (what < 22)
        begin_put();
    else if (what < 45)
        step_put(&writer[below(WRITERS)]);
    else if (what < 60)
        slow_time(below(100));
    else if (what < 61)
        slow_time(below(8) == 0 ? 12000 : 5);
    else if (what < 75)
        finish_some(&node[below(NODES)]);
    else
        heartbeat(&node[below(NODES)]);
}

static void settings(struct cluster_config *c) {
    c->node_timeout_ms = 3000;
    c->heartbeat_ms = 500;
    c->forget_timeout_ms = 60000;
    c->task_timeout_ms = 5000;
    c->hot_replicas = 3;
    c->hot_threshold = 3;
    c->hot_window_ms = 2000;
}

/* Seeded throughout, so a run that failed fails again; MODEL_HASH=n makes others of it. */
static void begin(uint64_t seed) {
    const char *hash = getenv("MODEL_HASH");
    hash_set_seed(hash != NULL ? strtoull(hash, NULL, 10) : seed);
    util_begin(settings);
    rng_seed(&util_store->rng, seed);
    store_config(util_store)->put_timeout_ms = 4000;
    store_config(util_store)->put_release_timeout_ms = 6000;
    rng_seed(&rng, seed);
    rng_seed(&cluster.rng, seed);
    next_session = 10;
    memset(node, 0, sizeof(node));
    memset(writer, 0, sizeof(writer));
    for (int i = 0; i < NODES; i++) {
        struct machine_model *m = &node[i];
        snprintf(m->name, sizeof(m->name), "n%d", i);
        snprintf(m->machine, sizeof(m->machine), "m%d", i);
        m->u = (struct util_node){.name = m->name, .machine = m->machine};
        m->instance = m->content = m->disk_content = (uint8_t)(i * 40 + 1);
        start(m);
    }
}

/* No more trouble: everything comes to rest. */
static void calm(void) {
    for (int i = 0; i < WRITERS; i++) writer[i].used = false;
    for (int round = 0; round < 400; round++) {
        for (int i = 0; i < NODES; i++) {
            struct machine_model *m = &node[i];
            if (m->state == STOPPED) m->state = ALIVE;
            if (m->state == GONE) start(m);
            if (m->state == ALIVE && util_beat(&m->u)) {
                cluster_node_maintenance(m->u.n, false);
                cluster_node_drain(m->u.n, false);
                if (m->mem_there) cluster_segment_drain(m->mem, false);
                if (m->ssd_there) cluster_segment_drain(m->ssd, false);
            }
            heartbeat(m);
            for (int k = 0; k < HELD; k++)
                if (m->state == ALIVE && m->held[k].used && util_beat(&m->u))
                    finish(m, &m->held[k]);
        }
        util_tick(100);
    }
    util_tick(15000); /* fences of the last writers */
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < NODES; i++) {
            heartbeat(&node[i]);
            for (int k = 0; k < HELD; k++)
                if (node[i].state == ALIVE && node[i].held[k].used && util_beat(&node[i].u))
                    finish(&node[i], &node[i].held[k]);
        }
        util_tick(300);
    }
}

static void run(uint64_t seed) {
    begin(seed);
    for (int i = 0; i < STEPS; i++) {
        step();
        if (i % 8 == 0) check_bytes();
        if (i % 64 == 0) {
            cluster_check();
            store_check(util_store);
        }
    }
    calm();
    check_bytes();
    struct store_stats s;
    struct cluster_figures f = util_figures();
    store_get_stats(util_store, &s);
    if (getenv("MODEL_VERBOSE") != NULL)
        printf("# puts %llu, joins %llu, downs %llu, fences %llu, copies %llu, far %llu, moved by "
               "drains "
               "%llu, hot %llu, used %llu\n",
               (unsigned long long)s.put_ends, (unsigned long long)f.node_joins,
               (unsigned long long)f.node_downs, (unsigned long long)f.node_fences,
               (unsigned long long)s.copies_ended, (unsigned long long)s.far_added,
               (unsigned long long)f.drained_objects,
               (unsigned long long)f.tasks_done[CLUSTER_BY_HEAT],
               (unsigned long long)f.tasks_done[CLUSTER_BY_USE]);
    CHECK_EQ(f.nodes_by_state[CLUSTER_NODE_UP], NODES);
    CHECK_EQ(f.node_fences_pending, 0);
    CHECK_EQ(f.tasks_by_state[CLUSTER_TASK_SENT], 0);
    CHECK_EQ(s.copies_open, 0);
    CHECK_EQ(s.puts_zombie, 0);
    CHECK_EQ(s.holds, 0);
    util_end();
}

static uint64_t first_seed = 1;

TEST(random_trouble) {
    const char *more = getenv("MODEL_SEEDS");
    uint64_t seeds = more != NULL ? strtoull(more, NULL, 10) : 12;
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
        printf("# seed %llu\n", (unsigned long long)seed);
        run(seed);
    }
}

int main(int argc, char **argv) {
    const char *from = getenv("MODEL_SEED");
    if (from != NULL) first_seed = strtoull(from, NULL, 10);
    log_set_level(LOG_LEVEL_NOTHING);
    return test_main(argc, argv);
}
