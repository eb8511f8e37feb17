/* The ssd tier whose process is killed at any point. */
#include <signal.h>

#include "ssd_util.h"

#include "pool/ssd_io.h"

#define DISK_BYTES (24 * MIB)
#define IDS_MAX    100000u

static struct tier *try_open(void) {
    struct tier_config c = {.path = test_dir,
                            .size = DISK_BYTES,
                            .queue_bytes = 4 * MIB,
                            .direct = true,
                            .create = true};
    struct tier *t = NULL;
    const char *why = "";
    if (tier_open("ssd", &c, &t, &why) != TARN_OK) fprintf(stderr, "%s\n", why);
    return t;
}

static uint64_t random_size(struct rng *r) {
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

/* --- kill -9 --- */

/* What the child says before or after it does something. */
struct said {
    enum { PUT, DROPPING, DROPPED, RENAMING, RENAMED, GOING } what;
    uint64_t id, version, size, offset;
};

struct child {
    int pipe;
    struct tier *t;
    struct rng rng;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned waiting;
    /* Notes ride in the batch of a later put: when it is done, they are on disk. */
    struct said notes[64];
    size_t n_notes;
    struct {
        uint64_t id, version, size, offset;
    } known[4096];
    size_t n_known;
};

struct child_put {
    struct child *c;
    uint64_t id, size;
    struct said notes[64];
    size_t n_notes;
};

static void say(struct child *c, struct said s) {
    if (write(c->pipe, &s, sizeof(s)) != sizeof(s)) _exit(3);
}

static void child_put_done(void *arg, tarn_status status, uint64_t offset) {
    struct child_put *p = arg;
    struct child *c = p->c;
    if (status != TARN_OK) _exit(4);
    pthread_mutex_lock(&c->lock);
    say(c, (struct said){PUT, p->id, 1, p->size, offset});
    for (size_t i = 0; i < p->n_notes; i++) say(c, p->notes[i]);
    if (c->n_known < ARRAY_LEN(c->known)) {
        c->known[c->n_known].id = p->id;
        c->known[c->n_known].version = 1;
        c->known[c->n_known].size = p->size;
        c->known[c->n_known++].offset = offset;
    }
    c->waiting--;
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
    free(p);
}

static bool child_put(struct child *c, uint64_t id) {
    struct child_put *p = xcalloc(1, sizeof(*p));
    char key[64];
    make_key(key, id);
    p->c = c;
    p->id = id;
    p->size = random_size(&c->rng);
    char *value = make_value(p->size, id, 1);
    struct iovec iov = {value, p->size};
    struct tier_item item = {
        .key = span_str(key), .version = 1, .size = p->size, .crc = crc32c(0, value, p->size)};
    pthread_mutex_lock(&c->lock);
    memcpy(p->notes, c->notes, sizeof(p->notes));
    p->n_notes = c->n_notes;
    while (c->waiting > 20) pthread_cond_wait(&c->cond, &c->lock);
    c->waiting++;
    pthread_mutex_unlock(&c->lock);
    bool large = p->size > tier_get_info(c->t)->copy_max;
    bool accepted = tier_put(c->t, &item, true, &iov, 1, child_put_done, p) == TARN_OK;
    if (accepted) {
        /* These notes were there before the put was accepted. */
        pthread_mutex_lock(&c->lock);
        c->n_notes = 0;
        while (large && c->waiting > 0) pthread_cond_wait(&c->cond, &c->lock);
        pthread_mutex_unlock(&c->lock);
    } else {
        pthread_mutex_lock(&c->lock);
        c->waiting--;
        pthread_mutex_unlock(&c->lock);
        free(p);
    }
    free(value);
    return accepted;
}

static void child_going(void *arg, const struct tier_item *item) {
    struct child *c = arg;
    say(c, (struct said){GOING, key_id(item->key), item->version, item->size, item->offset});
    for (size_t i = 0; i < c->n_known; i++) {
        if (c->known[i].offset == item->offset) c->known[i] = c->known[--c->n_known];
    }
}

static void child_note(struct child *c) {
    if (c->n_known == 0 || c->n_notes == ARRAY_LEN(c->notes)) return;
    size_t i = rng_below(&c->rng, c->n_known);
    struct said s = {DROPPING, c->known[i].id, c->known[i].version, c->known[i].size,
                     c->known[i].offset};
    if (rng_below(&c->rng, 2)) {
        say(c, s);
        tier_drop(c->t, s.offset, s.version);
        c->known[i] = c->known[--c->n_known];
        s.what = DROPPED;
    } else {
        s.what = RENAMING;
        s.version = ++c->known[i].version;
        say(c, s);
        if (tier_rename(c->t, s.offset, s.version) != TARN_OK) return;
        s.what = RENAMED;
    }
    c->notes[c->n_notes++] = s;
}

static struct {
    uint64_t after; /* so many writes, the process ends; 0: never */
    struct rng rng;
    bool now;
} doom;
/* The last write gets only a part of its way. */
static int fault_doom(void *arg, bool write, uint64_t offset, size_t *length) {
    (void)arg, (void)offset;
    if (doom.now) kill(getpid(), SIGKILL);
    if (!write || --doom.after > 0) return 0;
    doom.now = true;
    if (*length > 4096) *length = 4096 * (1 + rng_below(&doom.rng, *length / 4096 - 1));
    return 0;
}

static void child_run(int pipe, uint64_t seed, uint64_t first_id, bool doomed) {
    struct child c = {
        .pipe = pipe, .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    rng_seed(&c.rng, seed);
    if (doomed) {
        rng_seed(&doom.rng, seed);
        doom.after = 1 + rng_below(&c.rng, 120);
        ssd_io_set_fault(fault_doom, NULL);
    }
    c.t = try_open();
    if (c.t == NULL) _exit(2);
    for (uint64_t id = first_id;;) {
        if (child_put(&c, id))
            id++;
        else
            usleep(200);
        pthread_mutex_lock(&c.lock);
        if (rng_below(&c.rng, 3) == 0) child_note(&c);
        uint64_t ticket;
        while ((ticket = tier_poll_evict(c.t, child_going, &c)) != 0) tier_evicted(c.t, ticket);
        pthread_mutex_unlock(&c.lock);
    }
}

/* What the parent knows of an id. */
struct known {
    bool there;   /* acknowledged, and nothing was done to it since */
    bool dropped; /* that was acknowledged: it must not be there */
    bool renamed; /* may have either version */
    uint64_t version, size, offset, other_version;
};

static void hear(struct known *known, const struct said *s) {
    CHECK(s->id < IDS_MAX);
    struct known *k = &known[s->id];
    switch (s->what) {
    case PUT:
        *k = (struct known){.there = true, .version = 1, .size = s->size, .offset = s->offset};
        break;
    case DROPPING:
    case GOING: k->there = false; break;
    case DROPPED: k->dropped = true; break;
    case RENAMING:
        k->renamed = true;
        k->other_version = s->version;
        break;
    case RENAMED:
        k->version = s->version;
        k->renamed = k->other_version != s->version;
        break;
    }
}

/* Compares, and knows from now on what is there. */
static void check_survivors(struct tier *t, struct known *known) {
    struct list l = list_tier(t);
    static bool seen[IDS_MAX];
    memset(seen, 0, sizeof(seen));
    for (size_t i = 0; i < l.n; i++) {
        struct listed *e = &l.items[i];
        CHECK(e->id < IDS_MAX && !seen[e->id]);
        struct known *k = &known[e->id];
        CHECK(!k->dropped);
        if (k->there) {
            CHECK_EQ(e->offset, k->offset);
            CHECK_EQ(e->size, k->size);
            CHECK(e->version >= k->version &&
                  (k->renamed ? e->version <= k->other_version : e->version == k->version));
        }
        seen[e->id] = true;
        CHECK(holds(t, e->offset, e->id, 1, e->size));
        *k = (struct known){
            .there = true, .version = e->version, .size = e->size, .offset = e->offset};
    }
    for (uint64_t id = 0; id < IDS_MAX; id++) {
        CHECK(!known[id].there || seen[id]);
        /* Gone with the unit it was in, or never acknowledged. */
        if (!seen[id]) known[id] = (struct known){.dropped = true};
    }
    free(l.items);
}

static void kill_rounds(int rounds, uint64_t seed, bool doomed) {
    fresh_dir();
    struct known *known = xcalloc(IDS_MAX, sizeof(*known));
    struct rng r;
    rng_seed(&r, seed);
    uint64_t next_id = 0, damaged = 0;
    for (int round = 0; round < rounds; round++) {
        int fds[2];
        CHECK_EQ(pipe2(fds, O_CLOEXEC), 0);
        uint64_t child_seed = rng_next(&r), messages = rng_below(&r, 300);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) child_run(fds[1], child_seed, next_id, doomed);
        close(fds[1]);
        struct said s;
        for (uint64_t n = 0; read(fds[0], &s, sizeof(s)) == sizeof(s); n++) {
            if (n == messages && !doomed) kill(pid, SIGKILL);
            hear(known, &s);
            if (s.what == PUT && s.id >= next_id) next_id = s.id + 1;
        }
        if (!doomed) kill(pid, SIGKILL);
        int status;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        close(fds[0]);
        /* Ids that were under way may be there as well. */
        for (uint64_t id = next_id; id < next_id + 100; id++) known[id] = (struct known){0};
        next_id += 100;
        struct tier *t = try_open();
        CHECK(t != NULL);
        check_survivors(t, known);
        struct tier_stats stats;
        tier_get_stats(t, &stats);
        damaged += stats.damaged;
        tier_close(&t);
    }
    /* A torn header may look like a damaged one, nothing else may. */
    CHECK(damaged <= (doomed ? (uint64_t)rounds / 4 : 0));
    free(known);
}

TEST(killed_at_any_point_everything_acknowledged_is_there) {
    kill_rounds(ROUNDS(30), 1, false);
}
TEST(killed_in_the_middle_of_a_write) {
    kill_rounds(ROUNDS(30), 2, true);
}
TEST(the_same_without_io_uring) {
    ssd_io_forbid_uring(true);
    kill_rounds(ROUNDS(20), 3, false);
    kill_rounds(ROUNDS(20), 4, true);
    ssd_io_forbid_uring(false);
}

TEST_MAIN()
