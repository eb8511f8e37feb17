/* A stand-in for an engine: its PUB and ROUTER sockets on free ports of this machine, and the
 * batches that it keeps; and what a consumer has seen of it. All of it in the test's thread: while
 * it waits, engines answer and what is there is taken. */
#ifndef TARN_TESTS_KVEVENTS_ENGINE_H
#define TARN_TESTS_KVEVENTS_ENGINE_H

#include "../../kvevents_pack.h"
#include "kvevents/follow.h"

enum engine_replay {
    REPLAY_TWO,     /* "", number, batch: vLLM before 0.26, SGLang */
    REPLAY_THREE,   /* "", topic, number, batch: vLLM since */
    REPLAY_BARE,    /* number, batch */
    REPLAY_OLDEST,  /* as TWO, and "", "" in the end */
    REPLAY_MUTE,    /* says nothing */
    REPLAY_BACK,    /* the same batch again and again */
    REPLAY_OTHERS,  /* from 0 on, whatever was asked for */
    REPLAY_ODD,     /* frames of no form */
    REPLAY_ENDLESS, /* all that was asked for, without an end */
    REPLAY_CUT,     /* 200 batches, the last one, the end: what ROUTER does when it is full */
};

#define ENGINE_KEPT 8192
struct engine {
    void *context, *pub, *router;
    char endpoint[64], replay[64];
    enum engine_replay how;
    uint64_t life;        /* blocks are called by it and the batch's number */
    uint64_t first, next; /* batches kept: [first, next) */
    struct buf batch[ENGINE_KEPT];
    unsigned asked; /* for replays */
    uint64_t asked_from;
    int subscribers;
};

void engine_start(struct engine *e, enum engine_replay how);
/* Its sockets are gone; what it keeps stays. */
void engine_stop(struct engine *e);
/* On the same ports again. anew: with nothing, from number 0. */
void engine_again(struct engine *e, bool anew);
void engine_free(struct engine *e);
/* Answers who asks. */
void engine_pump(struct engine *e);

/* Makes a batch of one stored block, keeps it. */
uint64_t engine_make(struct engine *e);
/* The same, padded to about so many bytes. */
uint64_t engine_make_long(struct engine *e, size_t bytes);
/* A batch of one event of so many blocks. */
uint64_t engine_make_blocks(struct engine *e, size_t n);
uint64_t engine_make_cleared(struct engine *e);
uint64_t engine_make_garbage(struct engine *e);
/* Publishes a batch that is kept, as that number. */
void engine_say(struct engine *e, uint64_t kept, uint64_t number);
/* Both. */
uint64_t engine_publish(struct engine *e);
/* Publishes what is no batch. */
void engine_greet(struct engine *e);

/* What one stream has brought. */
struct seen {
    uint32_t id;
    unsigned batches, lost, cleared;
    uint64_t expected; /* numbers follow each other, but after LOST */
    bool any;
    uint64_t blocks, last_block;
    uint64_t life; /* of the engine that the batches are of; one alone, but after LOST */
    char why[KVEVENTS_WHY];
};
/* Takes all that is there; checks that nothing is missing that was not LOST. */
void seen_take(struct kvevents_follow *f, struct seen *seen, size_t n);

#define BLOCK_OF(e, number) ((e)->life * 1000000 + (number))

/* With times as short as a test wants them. */
struct kvevents_follow *follow_start(struct kvevents_follow_config *c);
uint32_t follow_engine(struct kvevents_follow *f, const struct engine *e, bool replay);
struct kvevents_info follow_info(struct kvevents_follow *f, uint32_t id);

/* Pumps engine e and takes into seen until it holds; `i` is the stream's info. */
#define FOLLOW_UNTIL(f, e, seen, expr)                                                             \
    do {                                                                                           \
        uint64_t until_ = clock_mono_ms() + TEST_PATIENCE_MS;                                      \
        for (;;) {                                                                                 \
            engine_pump(e);                                                                        \
            seen_take(f, seen, 1);                                                                 \
            struct kvevents_info i = follow_info(f, (seen)->id);                                   \
            (void)i;                                                                               \
            if (expr) break;                                                                       \
            if (clock_mono_ms() > until_) test_stop(TEST_FAILED, __FILE__, __LINE__, #expr);       \
            usleep(500);                                                                           \
        }                                                                                          \
    } while (0)

/* What the engine says from now on arrives, as a greeting just did. That it has a subscriber is no
 * proof: on a busy machine that may be a connection that was given up meanwhile. Further greetings
 * may be under way, ahead of what is said next. */
#define FOLLOW_HEARD(f, e, seen)                                                                   \
    do {                                                                                           \
        uint64_t heard_ = follow_info(f, (seen)->id).figures.kvevents_bad_messages, greeted_ = 0;  \
        FOLLOW_UNTIL(f, e, seen, follow_heard(e, &i, heard_, &greeted_));                          \
    } while (0)
bool follow_heard(struct engine *e, const struct kvevents_info *i, uint64_t heard,
                  uint64_t *greeted_ms);

#endif
