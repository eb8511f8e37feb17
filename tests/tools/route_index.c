/* How fast the index of the engines' blocks is, and how big: docs/BENCHMARKS.md has its numbers.
 *
 *     route_index [PAIRS [HOLDERS [MATCHES [BLOCKS [FILE]]]]]      10000000 200 200000 48
 *
 * Chains of the shape of recorded conversations: one of some system prompts, which every engine
 * has; a first turn; further turns that each go on where the one before ended, mostly on the engine
 * that had it. An engine that is full tells what it evicts, oldest chain first, its last blocks
 * first.
 *
 * A turn is a message of its engine: what is evicted for it, and its blocks, by up to BLOCKS an
 * event. With BLOCKS 1 it is as vLLM tells it: each evicted block is an event; the prompt is one;
 * each block of an answer, half of the turn, is one, with some tens of answers that go on in turn.
 *
 * The yardstick, taken in turn with the look-ups: one read of memory as large as the index, at a
 * place that the read before it names. Events are counted in CPU time of the thread.
 *
 * FILE gets all of it, for another index (utils/bench/smg-index.sh): records of a struct record and
 * n own hashes, then, of a stored one, n local hashes; a look-up has local hashes alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/hist.h"
#include "base/rng.h"
#include "route/hash.h"
#include "route/index.h"

#define BLOCK        16u
#define SYSTEMS      8u
#define LONGEST      512u
#define PROMPT       128u   /* blocks of a look-up */
#define PROMPT_EVENT 128u   /* blocks of one of a prompt, at most, when others have one */
#define ANSWERS      32u    /* that an engine has in hand */
#define MESSAGE      16384u /* blocks */
#define READS        8      /* of the yardstick, for each look-up */
#define SESSIONS     2000000u
#define RECENT       60u /* sessions of an engine that may go on */

/* A session is a number: its blocks follow from it. Each time it begins anew on an engine is a
 * stay; the bit of a stay in `evicted`: nothing of it is there any more. */
struct session {
    uint32_t blocks, engine, stay;
    uint64_t evicted;
    bool moved; /* once is enough */
};
/* What an engine stored: blocks [from, to) of a session. */
struct piece {
    uint32_t session, stay, from, to;
};
/* Blocks that are still to be told of. */
struct answer {
    uint32_t session, next, to; /* none when next is to */
};
struct engine {
    uint32_t holder, blocks;
    struct answer answer[ANSWERS];
    struct piece *piece;
    size_t first, n, cap;
};

enum record_kind { RECORD_STORED = 1, RECORD_REMOVED, RECORD_PHASE, RECORD_LOOKUP };
struct record {
    uint32_t kind, holder, n, has_parent;
    uint64_t parent;
};

static FILE *file; /* NULL: nobody wants it */
static struct route_index *ix;
static struct rng rng;
static struct session *session;
static struct engine *engine;
static uint32_t sessions, engines, capacity;
static uint32_t event_blocks;
static uint64_t told, events, messages, pairs_wanted;
static double seconds;
static struct {
    struct route_event event[MESSAGE];
    uint64_t local[MESSAGE], own[MESSAGE];
    size_t events, blocks;
} message;

static uint32_t system_of(uint32_t s, uint32_t *blocks_p) {
    *blocks_p = 1 + s % SYSTEMS * 4;
    return s % SYSTEMS;
}

static uint64_t block_local(uint32_t s, uint32_t i) {
    uint32_t shared, system = system_of(s, &shared);
    uint64_t v = i < shared ? UINT64_C(0x5000000000) + system : s;
    v = (v << 16 | i) * UINT64_C(0x9e3779b97f4a7c15);
    return (v ^ v >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
}

/* Engines start their hashes at a number of their own. */
static uint64_t block_own(const struct engine *e, uint32_t s, uint32_t i) {
    return block_local(s, i) ^ (uint64_t)e->holder << 40;
}

/* What asking the clock twice costs, which is not the index's. */
static double clock_seconds(void) {
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID), last = start;
    for (int i = 0; i < 20000; i++) last = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    return (double)(last - start) / 1e9 / 20000;
}

static void record_write(struct record head, const uint64_t *first, const uint64_t *second) {
    if (file == NULL) return;
    fwrite(&head, sizeof(head), 1, file);
    if (first != NULL) fwrite(first, sizeof(*first), head.n, file);
    if (second != NULL) fwrite(second, sizeof(*second), head.n, file);
}

static void event_write(const struct route_event *e) {
    const struct route_stored *w = &e->what;
    struct record head = {e->removed ? RECORD_REMOVED : RECORD_STORED, w->holder, w->n,
                          w->has_parent, w->parent};
    record_write(head, w->own, e->removed ? NULL : w->local);
}

static void message_send(void) {
    for (size_t i = 0; i < message.events; i++) event_write(&message.event[i]);
    uint64_t start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    route_index_apply(ix, message.event, message.events);
    seconds += (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - start) / 1e9;
    told += message.blocks;
    events += message.events;
    messages++;
    message.events = message.blocks = 0;
}

/* Room for n blocks of the session, from that one on or, for what is removed, down to it. */
static struct route_stored *message_event(struct engine *e, uint32_t s, uint32_t from, uint32_t n,
                                          bool removed) {
    if (message.blocks + n > MESSAGE) message_send();
    uint64_t *own = message.own + message.blocks, *local = message.local + message.blocks;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = removed ? from + n - 1 - i : from + i;
        own[i] = block_own(e, s, block);
        local[i] = block_local(s, block);
    }
    struct route_event *event = &message.event[message.events++];
    message.blocks += n;
    event->removed = removed;
    event->what = (struct route_stored){.holder = e->holder, .n = n, .own = own, .local = local};
    return &event->what;
}

static void engine_store(struct engine *e, uint32_t s, uint32_t from, uint32_t to, uint32_t most) {
    for (uint32_t n; from < to; from += n) {
        n = (uint32_t)min_u64(to - from, most);
        struct route_stored *event = message_event(e, s, from, n, false);
        event->has_parent = from > 0;
        event->parent = from > 0 ? block_own(e, s, from - 1) : 0;
    }
}

/* --- answers --- */

static void answer_go_on(struct engine *e, struct answer *a, uint32_t blocks) {
    uint32_t to = (uint32_t)min_u64(a->next + blocks, a->to);
    engine_store(e, a->session, a->next, to, event_blocks);
    a->next = to;
}

static void answers_go_on(struct engine *e) {
    for (size_t i = 0; i < ANSWERS; i++) answer_go_on(e, &e->answer[i], 1);
}

/* Of that session. */
static void answer_end(struct engine *e, uint32_t s) {
    for (size_t i = 0; i < ANSWERS; i++)
        if (e->answer[i].session == s) answer_go_on(e, &e->answer[i], LONGEST);
}

/* In the place of the one that has the least left. */
static void answer_begin(struct engine *e, uint32_t s, uint32_t from, uint32_t to) {
    struct answer *least = &e->answer[0];
    for (struct answer *a = least + 1; a < e->answer + ANSWERS; a++)
        if (a->to - a->next < least->to - least->next) least = a;
    answer_go_on(e, least, LONGEST);
    *least = (struct answer){s, from, to};
}

static void session_begin(uint32_t s) {
    session[s].stay++;
    session[s].evicted &= ~(UINT64_C(1) << session[s].stay % 64);
    system_of(s, &session[s].blocks);
}

static void blocks_evict(struct engine *e, uint32_t s, uint32_t from, uint32_t to) {
    answer_end(e, s);
    for (uint32_t n; to > from; to -= n) {
        n = (uint32_t)min_u64(to - from, event_blocks);
        message_event(e, s, to - n, n, true);
        e->blocks -= n;
    }
}

/* The oldest piece, with what comes after it of that stay. */
static void engine_evict(struct engine *e) {
    struct piece *p = &e->piece[e->first];
    struct session *s = &session[p->session];
    uint64_t bit = UINT64_C(1) << p->stay % 64;
    if (s->stay == p->stay && &engine[s->engine] == e) {
        blocks_evict(e, p->session, p->from, s->blocks);
        s->evicted |= bit;
        session_begin(p->session);
    } else if (!(s->evicted & bit)) {
        blocks_evict(e, p->session, p->from, p->to);
    }
    e->first = (e->first + 1) % e->cap;
    e->n--;
}

/* `more` blocks of the session. */
static void session_go_on(uint32_t s, uint32_t more) {
    struct engine *e = &engine[session[s].engine];
    while (e->blocks + LONGEST > capacity) engine_evict(e);
    answer_end(e, s);
    uint32_t from = session[s].blocks, prompt = event_blocks == 1 ? (more + 1) / 2 : more;
    engine_store(e, s, from, from + prompt, event_blocks == 1 ? PROMPT_EVENT : event_blocks);
    if (prompt < more) {
        answers_go_on(e);
        answer_begin(e, s, from + prompt, from + more);
    }
    message_send();
    session[s].blocks += more;
    e->blocks += more;
    TARN_ASSERT(e->n < e->cap);
    e->piece[(e->first + e->n++) % e->cap] =
        (struct piece){s, session[s].stay, from, session[s].blocks};
}

/* One request: a new session, or the next turn of a recent one, seldom on another engine. */
static void one_turn(void) {
    uint32_t s, recent = engines * RECENT, random = (uint32_t)rng_below(&rng, 30);
    if (sessions < recent || random < 10) {
        s = sessions++ % SESSIONS;
        session_begin(s);
        session[s].engine = (uint32_t)rng_below(&rng, engines);
        session_go_on(s, 8 + (uint32_t)rng_below(&rng, 120));
        return;
    }
    s = (sessions - 1 - (uint32_t)rng_below(&rng, recent)) % SESSIONS;
    if (session[s].blocks > LONGEST - 64) return;
    uint32_t before = session[s].blocks;
    if (random < 12 && !session[s].moved) {
        session_begin(s);
        session[s].moved = true;
        session[s].engine =
            (session[s].engine + 1 + (uint32_t)rng_below(&rng, engines - 1)) % engines;
    }
    session_go_on(s, before - session[s].blocks + 4 + (uint32_t)rng_below(&rng, 40));
}

static void set_up(uint32_t holders) {
    struct route_index_config config = {.max_bytes = pairs_wanted * 40 + (16u << 20),
                                        .holders_max = holders};
    ix = route_index_create(&config);
    session = xcalloc(SESSIONS, sizeof(*session));
    engine = xcalloc(holders, sizeof(*engine));
    engines = holders;
    capacity = (uint32_t)(pairs_wanted / holders) + LONGEST;
    for (uint32_t i = 0; i < holders; i++) {
        engine[i].holder = route_holder_add(ix, BLOCK, capacity + 1024);
        engine[i].cap = capacity;
        engine[i].piece = xcalloc(capacity, sizeof(struct piece));
        for (uint32_t s = 0, shared; s < SYSTEMS; s++) {
            system_of(s, &shared);
            engine_store(&engine[i], s, 0, shared, PROMPT_EVENT);
        }
    }
}

static void report_size(void) {
    struct route_index_figures f = route_index_stats(ix);
    printf("%llu pairs, %llu blocks, %llu runs: %.1f blocks a run; %.1f bytes a pair\n",
           (unsigned long long)f.route_pairs, (unsigned long long)f.route_blocks,
           (unsigned long long)f.route_runs, (double)f.route_blocks / (double)f.route_runs,
           (double)f.route_index_bytes / (double)f.route_pairs);
    printf("forgotten %llu, refused %llu, orphans %llu, unknown %llu, alike %llu\n",
           (unsigned long long)f.route_forgotten, (unsigned long long)f.route_refused,
           (unsigned long long)f.route_orphans, (unsigned long long)f.route_unknown,
           (unsigned long long)f.route_alike);
}

static void report_speed(const char *what) {
    seconds -= (double)messages * clock_seconds();
    printf("%s: %llu blocks in %llu events, %llu messages, %.2f s of CPU: %.1f M a second\n", what,
           (unsigned long long)told, (unsigned long long)events, (unsigned long long)messages,
           seconds, (double)told / seconds / 1e6);
    told = events = messages = 0;
    seconds = 0;
    record_write((struct record){.kind = RECORD_PHASE}, NULL, NULL);
}

/* Each slot names the next one, all of them in one circle (Sattolo). */
static uint32_t *yardstick_make(uint32_t slots) {
    uint32_t *memory = xcalloc(slots, sizeof(*memory));
    for (uint32_t i = 0; i < slots; i++) memory[i] = i;
    for (uint32_t i = slots - 1; i > 0; i--) {
        uint32_t j = (uint32_t)rng_below(&rng, i), other = memory[j];
        memory[j] = memory[i];
        memory[i] = other;
    }
    return memory;
}

static void match_all(uint32_t matches) {
    struct route_hit *hits = xcalloc(engines, sizeof(*hits));
    struct hist *h = xcalloc(1, sizeof(*h));
    uint64_t rolling[PROMPT], found = 0, tokens = 0;
    uint32_t slots = (uint32_t)(route_index_stats(ix).route_index_bytes / sizeof(uint32_t)), at = 0;
    uint32_t *memory = yardstick_make(slots);
    struct hist *reads = xcalloc(1, sizeof(*reads)), *hashing = xcalloc(1, sizeof(*hashing));
    for (uint32_t m = 0; m < matches; m++) {
        uint32_t s = (sessions - 1 - (uint32_t)rng_below(&rng, engines * RECENT)) % SESSIONS;
        for (uint32_t i = 0; i < PROMPT; i++)
            rolling[i] = block_local(i < session[s].blocks ? s : s + SESSIONS, i);
        record_write((struct record){.kind = RECORD_LOOKUP, .n = PROMPT}, rolling, NULL);
        uint64_t hash_start = clock_mono_ns();
        route_hash_chain(NULL, rolling, PROMPT, 0, rolling);
        hist_add(hashing, clock_mono_ns() - hash_start);
        struct route_chain c = {.block = BLOCK, .n = PROMPT, .rolling = rolling};
        uint64_t start = clock_mono_ns();
        size_t n = route_index_match(ix, &c, 1, hits, engines);
        hist_add(h, clock_mono_ns() - start);
        start = clock_mono_ns();
        for (int i = 0; i < READS; i++) at = memory[at];
        __asm__ volatile("" : "+r"(at)); /* somebody wants to know */
        hist_add(reads, (clock_mono_ns() - start) / READS);
        uint32_t best = 0;
        for (size_t i = 0; i < n; i++) best = (uint32_t)max_u64(best, hits[i].tokens[0]);
        found += n;
        tokens += best;
    }
    printf("%u look-ups of %u blocks: median %llu ns, p90 %llu, p99 %llu, p99.9 %llu; "
           "%.1f holders, %.1f blocks at the best\n",
           matches, PROMPT, (unsigned long long)hist_percentile(h, 0.5),
           (unsigned long long)hist_percentile(h, 0.9),
           (unsigned long long)hist_percentile(h, 0.99),
           (unsigned long long)hist_percentile(h, 0.999), (double)found / matches,
           (double)tokens / BLOCK / matches);
    printf("before each, %u hashes of its prompt: median %llu ns\n", PROMPT,
           (unsigned long long)hist_percentile(hashing, 0.5));
    printf("a read of memory of that size: median %llu ns; a look-up is %.1f of them\n",
           (unsigned long long)hist_percentile(reads, 0.5),
           (double)hist_percentile(h, 0.5) / (double)hist_percentile(reads, 0.5));
    free(memory);
    free(reads);
    free(hashing);
    free(h);
    free(hits);
}

static uint64_t number_of(int argc, char **argv, int i, uint64_t otherwise) {
    uint64_t v;
    if (argc <= i) return otherwise;
    if (!span_to_u64(span_str(argv[i]), &v) || v == 0) {
        fprintf(stderr, "route_index [PAIRS [HOLDERS [MATCHES [BLOCKS [FILE]]]]]\n");
        exit(2);
    }
    return v;
}

int main(int argc, char **argv) {
    pairs_wanted = number_of(argc, argv, 1, 10000000);
    uint32_t holders = (uint32_t)min_u64(number_of(argc, argv, 2, 200), ROUTE_HOLDERS_MAX);
    uint32_t matches = (uint32_t)number_of(argc, argv, 3, 200000);
    event_blocks = (uint32_t)min_u64(number_of(argc, argv, 4, 48), MESSAGE);
    if (argc > 5 && (file = fopen(argv[5], "w")) == NULL) {
        perror(argv[5]);
        return 1;
    }
    rng_seed(&rng, 1);
    set_up(holders);
    while (route_index_stats(ix).route_pairs < pairs_wanted * 95 / 100) one_turn();
    report_speed("filling");
    report_size();
    for (uint32_t i = 0; i < pairs_wanted / 100; i++) one_turn();
    report_speed("steady, stored and removed");
    report_size();
    match_all(matches);
    route_index_destroy(&ix);
    if (file != NULL && fclose(file) != 0) {
        perror(argv[5]);
        return 1;
    }
    return 0;
}
