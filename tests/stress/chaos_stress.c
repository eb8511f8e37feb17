/* Guarantee 1 in a pool of many machines: no wrong bytes, whatever happens to nodes, clients, disks
 * and the master.
 *
 * A master without memory of its own and five nodes (plain memory, pool files, disks, a shared
 * directory; two of them on one machine) serve clients that put, replace, remove, get, look at and
 * GET values much larger in sum than the pool. Meanwhile nodes are killed, paused for longer and
 * shorter than node-timeout, drained, put to maintenance, started again; replicas are moved; disks
 * are damaged; clients are killed in the middle of what they do; now and then the master is killed.
 * At last everything is brought back, and the pool must be whole: all nodes up, nothing left to do,
 * puts and gets of new keys succeed.
 *
 *     chaos_stress [--seconds S] [--seed N] [--damage 0|1] [--master-kills 0|1]
 *
 * Seconds are STRESS_SECONDS by default. Binaries come from TARN_SERVER and TARN_NODE. Ends with "0
 * wrong", and "1 passed, 0 failed". */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "chaos.h"
#include "tarn.h"

static const char *const figure_names[] = {
    "gets",         "hits",           "ranges",
    "views",        "GETs",           "puts",
    "SETs",         "removes",        "puts with missing replicas",
    "timeouts",     "failures",       "corrupt",
    "nodes killed", "paused",         "ended",
    "drains",       "nodes drained",  "moves",
    "damages",      "clients killed", "masters killed"};
static_assert(ARRAY_LEN(figure_names) == CHAOS_FIGURES, "every figure has a name");

struct settings {
    uint64_t seconds, seed;
    bool damage, master_kills;
};

struct run {
    struct settings s;
    struct rng rng;
    struct chaos_pool pool;
    pid_t clients[CHAOS_CLIENTS];
    uint64_t next_master_kill_ms;
};

static void spawn_client(struct run *r, unsigned i) {
    uint64_t seed = rng_next(&r->rng);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) exit(chaos_client(i, r->pool.url, seed, r->s.damage));
    r->clients[i] = pid;
}

/* --- what happens to nodes --- */

static bool ended_by_itself(struct run *r, unsigned i) {
    struct chaos_node *n = &r->pool.node[i];
    int status;
    if (n->pid == 0 || waitpid(n->pid, &status, WNOHANG) != n->pid) return false;
    bool drained = n->draining && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!drained) {
        chaos_complain("node %s ended by itself, status %x (its log is in %s)", chaos_node_name(i),
                       (unsigned)status, r->pool.dir);
        chaos_show_log(&r->pool, chaos_node_name(i));
    }
    chaos_count(CHAOS_DRAINED, drained);
    *n = (struct chaos_node){.until_ms = clock_mono_ms() + rng_below(&r->rng, 1000)};
    return true;
}

static void kill_node(struct run *r, unsigned i) {
    chaos_node_end(&r->pool, i, SIGKILL);
    chaos_count(CHAOS_NODE_KILLS, 1);
    if (r->s.damage && rng_below(&r->rng, 3) == 0)
        chaos_count(CHAOS_DAMAGES, chaos_node_damage(&r->pool, i, &r->rng));
    r->pool.node[i].until_ms = clock_mono_ms() + rng_below(&r->rng, 2500);
}

static void end_node(struct run *r, unsigned i) {
    int status = chaos_node_end(&r->pool, i, SIGTERM);
    bool early = WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM; /* it was not up yet */
    if (!early && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
        chaos_complain("node %s did not end well at SIGTERM: status %x (its log is in %s)",
                       chaos_node_name(i), (unsigned)status, r->pool.dir);
        chaos_show_log(&r->pool, chaos_node_name(i));
    }
    chaos_count(CHAOS_NODE_EXITS, 1);
    r->pool.node[i].until_ms = clock_mono_ms() + rng_below(&r->rng, 500);
}

static void pause_node(struct run *r, unsigned i) {
    struct chaos_node *n = &r->pool.node[i];
    kill(n->pid, SIGSTOP);
    n->paused = true;
    n->until_ms = clock_mono_ms() + (rng_below(&r->rng, 2) == 0 ? 50 + rng_below(&r->rng, 500)
                                                                : 1000 + rng_below(&r->rng, 3000));
    chaos_count(CHAOS_NODE_STOPS, 1);
}

static void ask_for(struct run *r, unsigned i) {
    char reply[300];
    const char *name = chaos_node_name(i);
    struct chaos_node *n = &r->pool.node[i];
    switch (rng_below(&r->rng, 4)) {
    case 0:
        if (chaos_ask(&r->pool, reply, sizeof(reply), "NODE DRAIN %s", name)) {
            n->draining = true;
            chaos_count(CHAOS_DRAINS, 1);
        }
        break;
    case 1:
        /* It may be too late for that: the node ends all the same. */
        if (n->draining) chaos_ask(&r->pool, reply, sizeof(reply), "NODE DRAIN %s CANCEL", name);
        break;
    case 2:
        n->maintenance = !n->maintenance;
        chaos_ask(&r->pool, reply, sizeof(reply), "NODE MAINTENANCE %s %s", name,
                  n->maintenance ? "ON" : "OFF");
        break;
    default:
        chaos_ask(&r->pool, reply, sizeof(reply), "SEGMENT DRAIN %s.0", name);
        chaos_sleep_ms(rng_below(&r->rng, 200));
        chaos_ask(&r->pool, reply, sizeof(reply), "SEGMENT DRAIN %s.0 CANCEL", name);
    }
}

static void disturb_node(struct run *r, unsigned i) {
    struct chaos_node *n = &r->pool.node[i];
    if (ended_by_itself(r, i)) return;
    uint64_t now = clock_mono_ms();
    if (n->pid == 0) {
        if (now >= n->until_ms) chaos_node_start(&r->pool, i);
        return;
    }
    if (n->paused) {
        if (now < n->until_ms) return;
        n->paused = false;
        /* Sometimes it dies in its sleep. */
        if (rng_below(&r->rng, 4) == 0) {
            kill_node(r, i);
        } else {
            kill(n->pid, SIGCONT);
        }
        return;
    }
    if (rng_below(&r->rng, n->draining ? 60 : 12) != 0) return; /* a drain takes its time */
    switch (rng_below(&r->rng, 6)) {
    case 0:
    case 1: kill_node(r, i); return;
    case 2:
    case 3: pause_node(r, i); return;
    case 4: end_node(r, i); return;
    default: ask_for(r, i);
    }
}

/* --- to everything else --- */

/* A segment that has a replica of the key; false: none, or it lies in the books. */
static bool some_segment(struct run *r, unsigned key, char name[64]) {
    char reply[4096];
    if (!chaos_ask(&r->pool, reply, sizeof(reply), "REPLICA LIST chaos:%u", key)) return false;
    const char *at = strstr(reply, "segment\n");
    return at != NULL && sscanf(at, "segment\n%63s", name) == 1;
}

static void move_replicas(struct run *r) {
    char reply[300], from[64];
    unsigned key = (unsigned)rng_below(&r->rng, CHAOS_KEYS),
             i = (unsigned)rng_below(&r->rng, CHAOS_NODES);
    bool ok = false;
    if (!some_segment(r, key, from)) return;
    switch (rng_below(&r->rng, 4)) {
    case 0:
        ok = chaos_ask(&r->pool, reply, sizeof(reply), "REPLICA MOVE chaos:%u FROM %s TO %s.0", key,
                       from, chaos_node_name(i));
        break;
    case 1:
        ok = chaos_ask(&r->pool, reply, sizeof(reply), "REPLICA MOVE chaos:%u FROM %s", key, from);
        break;
    case 2: ok = chaos_ask(&r->pool, reply, sizeof(reply), "REPLICA COPY chaos:%u", key); break;
    default:
        ok = chaos_ask(&r->pool, reply, sizeof(reply), "REPLICA DROP chaos:%u FROM %s", key, from);
    }
    chaos_count(CHAOS_MOVES, ok);
}

static void disturb_client(struct run *r) {
    unsigned i = (unsigned)rng_below(&r->rng, CHAOS_CLIENTS);
    int status;
    if (waitpid(r->clients[i], &status, WNOHANG) == r->clients[i]) {
        chaos_complain("client %u ended by itself, status %x", i, (unsigned)status);
    } else if (rng_below(&r->rng, 20) == 0) {
        kill(r->clients[i], SIGKILL);
        waitpid(r->clients[i], NULL, 0);
        chaos_count(CHAOS_CLIENT_KILLS, 1);
    } else if (rng_below(&r->rng, 20) == 0) {
        kill(r->clients[i], SIGSTOP);
        chaos_sleep_ms(rng_below(&r->rng, 200));
        kill(r->clients[i], SIGCONT);
        return;
    } else {
        return;
    }
    spawn_client(r, i);
}

static void disturb_master(struct run *r) {
    int status;
    if (waitpid(r->pool.master, &status, WNOHANG) == r->pool.master) {
        chaos_complain("the master ended by itself, status %x (its log is in %s)", (unsigned)status,
                       r->pool.dir);
        chaos_show_log(&r->pool, "master");
        r->pool.master = 0;
        return;
    }
    uint64_t now = clock_mono_ms();
    if (!r->s.master_kills || now < r->next_master_kill_ms) return;
    kill(r->pool.master, SIGKILL);
    waitpid(r->pool.master, NULL, 0);
    chaos_count(CHAOS_MASTER_KILLS, 1);
    chaos_sleep_ms(rng_below(&r->rng, 1500));
    chaos_master_start(&r->pool);
    chaos_master_answers(&r->pool, 10000);
    for (unsigned i = 0; i < CHAOS_NODES; i++) r->pool.node[i].maintenance = false;
    r->next_master_kill_ms = clock_mono_ms() + 8000 + rng_below(&r->rng, 8000);
}

static void disturb(struct run *r) {
    uint64_t until = clock_mono_ms() + r->s.seconds * 1000;
    r->next_master_kill_ms = clock_mono_ms() + 6000;
    while (clock_mono_ms() < until && __atomic_load_n(&chaos->wrong, __ATOMIC_RELAXED) == 0) {
        chaos_sleep_ms(20 + rng_below(&r->rng, 60));
        for (unsigned i = 0; i < CHAOS_NODES; i++) disturb_node(r, i);
        if (rng_below(&r->rng, 2) == 0) move_replicas(r);
        disturb_client(r);
        disturb_master(r);
    }
}

/* --- afterwards --- */

static void end_clients(struct run *r) {
    __atomic_store_n(&chaos->stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < CHAOS_CLIENTS; i++) {
        uint64_t until = clock_mono_ms() + CHAOS_PATIENCE_MS;
        while (waitpid(r->clients[i], NULL, WNOHANG) == 0) {
            if (clock_mono_ms() > until) {
                chaos_complain("client %u does not end", i);
                kill(r->clients[i], SIGKILL);
                waitpid(r->clients[i], NULL, 0);
                break;
            }
            chaos_sleep_ms(20);
        }
    }
}

/* The value of a field in a map that was printed a line an element. */
static bool field_is(const char *reply, const char *name, const char *value) {
    char needle[100];
    snprintf(needle, sizeof(needle), "%s\n%s\n", name, value);
    const char *at = strstr(reply, needle);
    return at != NULL && (at == reply || at[-1] == '\n');
}

static bool node_is_up(struct run *r, unsigned i) {
    struct chaos_node *n = &r->pool.node[i];
    char reply[8192];
    if (n->pid != 0 && ended_by_itself(r, i)) n->until_ms = 0;
    if (n->pid == 0) chaos_node_start(&r->pool, i);
    if (n->paused) kill(n->pid, SIGCONT);
    n->paused = false;
    if (!chaos_ask(&r->pool, reply, sizeof(reply), "NODE INFO %s", chaos_node_name(i)))
        return false;
    if (n->draining)
        chaos_ask(&r->pool, reply, sizeof(reply), "NODE DRAIN %s CANCEL", chaos_node_name(i));
    chaos_ask(&r->pool, reply, sizeof(reply), "NODE MAINTENANCE %s OFF", chaos_node_name(i));
    return chaos_ask(&r->pool, reply, sizeof(reply), "NODE INFO %s", chaos_node_name(i)) &&
           field_is(reply, "state", "up");
}

static bool all_up(struct run *r) {
    uint64_t until = clock_mono_ms() + CHAOS_PATIENCE_MS;
    for (unsigned i = 0; i < CHAOS_NODES;) {
        if (node_is_up(r, i)) {
            i++;
        } else if (clock_mono_ms() > until) {
            chaos_complain("node %s does not come back (logs are in %s)", chaos_node_name(i),
                           r->pool.dir);
            chaos_show_log(&r->pool, chaos_node_name(i));
            return false;
        } else {
            chaos_sleep_ms(50);
        }
    }
    return true;
}

/* New keys find room on two machines and are read back. Space of writers that were killed takes its
 * time to return. */
static bool works_again(struct run *r) {
    enum { VALUES = 32, BYTES = 100000 };
    static char data[BYTES], back[BYTES];
    tarn_client *c;
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = 2;
    if (tarn_connect(r->pool.url, NULL, &c) != TARN_OK) return false;
    uint64_t until = clock_mono_ms() + CHAOS_PATIENCE_MS;
    bool ok = true;
    for (int i = 0; i < VALUES && ok; i++) {
        char key[32];
        snprintf(key, sizeof(key), "afterwards:%d", i);
        memset(data, i + 1, sizeof(data));
        tarn_item item = {
            .key = key, .key_len = strlen(key), .buffer = data, .buffer_len = sizeof(data)};
        size_t len = 0;
        o.replace = 1;
        do {
            tarn_put_many(c, &item, 1, &o, NULL);
        } while ((item.status != TARN_OK || item.replicas < 2) && clock_mono_ms() < until &&
                 (chaos_sleep_ms(50), true));
        ok = item.status == TARN_OK && item.replicas == 2 &&
             tarn_get(c, key, strlen(key), back, sizeof(back), &len, NULL) == TARN_OK &&
             len == sizeof(back) && memcmp(data, back, sizeof(back)) == 0;
        if (!ok)
            chaos_complain("afterwards: %s with %u replicas: %s", tarn_strerror(item.status),
                           item.replicas, tarn_last_error());
    }
    tarn_close(&c);
    return ok;
}

/* What was under way has come to an end. */
static bool comes_to_rest(struct run *r) {
    static const char *const fields[] = {"node_fences_pending", "tasks", "holds", "puts_open"};
    char reply[32768], needle[64];
    uint64_t until = clock_mono_ms() + CHAOS_PATIENCE_MS;
    for (;;) {
        const char *busy = NULL;
        if (!chaos_ask(&r->pool, reply, sizeof(reply), "INFO everything")) busy = "INFO";
        for (size_t i = 0; i < ARRAY_LEN(fields) && busy == NULL; i++) {
            snprintf(needle, sizeof(needle), "\n%s:", fields[i]);
            const char *at = strstr(reply, needle);
            if (at == NULL || strtoull(at + strlen(needle), NULL, 10) != 0) busy = fields[i];
        }
        if (busy == NULL) return true;
        if (clock_mono_ms() > until) {
            chaos_complain("%s of the master does not come to 0", busy);
            return false;
        }
        chaos_sleep_ms(100);
    }
}

static bool run(const struct settings *s) {
    struct run r = {.s = *s};
    rng_seed(&r.rng, s->seed);
    if (!chaos_pool_open(&r.pool)) return false;
    for (unsigned i = 0; i < CHAOS_NODES; i++) chaos_node_start(&r.pool, i);
    bool ok = all_up(&r);
    if (ok) {
        for (unsigned i = 0; i < CHAOS_CLIENTS; i++) spawn_client(&r, i);
        disturb(&r);
        end_clients(&r);
        ok = chaos->wrong == 0 && all_up(&r) && works_again(&r) && comes_to_rest(&r);
    }
    ok =
        ok && chaos->wrong == 0 && chaos->figures[CHAOS_HITS] > 0 && chaos->figures[CHAOS_PUTS] > 0;
    return chaos_pool_close(&r.pool, ok) && ok;
}

int main(int argc, char **argv) {
    const char *seconds = getenv("STRESS_SECONDS"), *seed = getenv("STRESS_SEED");
    struct settings s = {.seconds = seconds != NULL ? strtoull(seconds, NULL, 10) : 10,
                         .seed = seed != NULL ? strtoull(seed, NULL, 10) : 1,
                         .master_kills = true};
    int damage = -1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0) s.seconds = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--seed") == 0) s.seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--damage") == 0) damage = argv[i + 1][0] != '0';
        if (strcmp(argv[i], "--master-kills") == 0) s.master_kills = argv[i + 1][0] != '0';
    }
    s.damage = damage >= 0 ? damage != 0 : s.seed % 2 == 0;
    chaos = mmap(NULL, sizeof(*chaos), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (chaos == MAP_FAILED) return 1;
    bool ok = run(&s);
    for (int i = 0; i < CHAOS_FIGURES; i++)
        printf("%llu %s%s", (unsigned long long)chaos->figures[i], figure_names[i],
               i + 1 < CHAOS_FIGURES ? ", " : "\n");
    if (chaos->wrong > 0) printf("%s\n", chaos->complaint);
    printf("%llu wrong (seed %llu%s)\n", (unsigned long long)chaos->wrong,
           (unsigned long long)s.seed, s.damage ? ", damaged disks" : "");
    printf(ok ? "1 passed, 0 failed\n" : "0 passed, 1 failed\n");
    return ok ? 0 : 1;
}
