/* What is done in slices: how far one goes, what becomes of the state, when it ends. */
#include "front/each.h"

#include "../test.h"
#include "base/assert.h"
#include "front/client.h"
#include "config/config.h"

enum { QUOTA = 16, KEYS = 70 };

static struct config values = {.loop_work_quota = QUOTA};
static struct client_io io;
static struct client client;
static unsigned ended, closed;

static void begin(void) {
    struct store_config sc;
    store_config_init(&sc);
    config = &values;
    turn.mono_ms = 1000;
    books = store_create(&sc, NULL, "lru", "offset", turn.mono_ms, 5000000);
    jobs_init();
}

static void end(void) {
    jobs_deinit();
    store_destroy(&books);
}

struct sum {
    struct each each;
    size_t calls, total, stop; /* at stop it is over */
    unsigned again;            /* so often before at 3 is done */
};

static enum each_next sum_one(struct client *c, struct each *each, unsigned *budget) {
    struct sum *s = CONTAINER_OF(each, struct sum, each);
    s->calls++;
    if (each->at == 3 && s->again > 0) {
        s->again--;
        return EACH_AGAIN;
    }
    s->total += each->at;
    return s->stop > 0 && each->at == s->stop ? EACH_OVER : EACH_ON;
}

static size_t end_calls, end_total;

static void sum_end(struct client *c, struct each *each) {
    struct sum *s = CONTAINER_OF(each, struct sum, each);
    end_calls = s->calls;
    end_total = s->total;
    ended++;
}

static void sum_close(struct client *c, struct job *job) {
    closed++;
}

/* As a command does; its frame is gone afterwards. */
static __attribute__((noinline)) void sum_run(size_t n, size_t stop, unsigned again) {
    struct sum s = {.each = {.job.close = sum_close, .one = sum_one, .end = sum_end, .n = n},
                    .stop = stop,
                    .again = again};
    ended = closed = 0;
    client = (struct client){.io = &io};
    each_run(&client, &s.each, sizeof(s));
    memset(&s, 0xaa, sizeof(s));
}

static bool next_slice(unsigned budget) {
    return client.job->step(&client, client.job, &budget);
}

TEST(what_fits_into_a_slice_is_no_job) {
    begin();
    size_t before = jobs_count();
    sum_run(QUOTA, 0, 0);
    CHECK(client.job == NULL && jobs_count() == before);
    CHECK_EQ(end_calls, QUOTA);
    CHECK_EQ(end_total, QUOTA * (QUOTA - 1) / 2);
    CHECK(ended == 1 && closed == 1);
    sum_run(0, 0, 0);
    CHECK(client.job == NULL && end_calls == 0 && ended == 1 && closed == 1);
    end();
}

TEST(what_does_not_goes_on_where_it_was) {
    begin();
    sum_run(40, 0, 0);
    CHECK(client.job != NULL && jobs_count() == 1 && client.job->runnable);
    CHECK(!next_slice(QUOTA));
    CHECK(!next_slice(0));
    CHECK(ended == 0 && closed == 0);
    CHECK(next_slice(QUOTA));
    CHECK_EQ(end_calls, 40);
    CHECK_EQ(end_total, 40 * 39 / 2);
    CHECK(ended == 1 && closed == 0);
    job_cancel(&client);
    CHECK(client.job == NULL && jobs_count() == 0 && ended == 1 && closed == 1);
    end();
}

TEST(one_may_need_more_or_be_the_last) {
    begin();
    sum_run(EACH_ENDLESS, 5, 2);
    CHECK(client.job != NULL);
    CHECK(!next_slice(QUOTA)); /* again at 3 */
    CHECK(next_slice(QUOTA));
    CHECK_EQ(end_calls, 8);
    CHECK_EQ(end_total, 0 + 1 + 2 + 3 + 4 + 5);
    job_cancel(&client);
    CHECK(ended == 1 && closed == 1);
    end();
}

TEST(a_client_that_goes_ends_it_without_an_answer) {
    begin();
    sum_run(100, 0, 0);
    job_cancel(&client);
    CHECK(client.job == NULL && ended == 0 && closed == 1 && jobs_count() == 0);
    end();
}

static unsigned wrong;

static enum each_next hash_one(struct client *c, struct each *each, unsigned *budget) {
    const struct span *key = each_args(c, each);
    wrong += each_hash(c, each, each->at) != store_hash(key[0]) || key[1].len != 1;
    return EACH_ON;
}

TEST(keys_and_their_hashes_through_several_windows) {
    begin();
    static char text[KEYS][8];
    static struct span argv[1 + 2 * KEYS];
    for (unsigned i = 0; i < KEYS; i++) {
        snprintf(text[i], sizeof(text[i]), "key:%u", i);
        argv[1 + 2 * i] = span_str(text[i]);
        argv[2 + 2 * i] = SPAN("v");
    }
    values.loop_work_quota = 2 * KEYS;
    client = (struct client){.io = &io, .argv = argv, .argc = ARRAY_LEN(argv)};
    struct each each = {.one = hash_one};
    each_keys(&each, (struct wire_list){1, KEYS}, 2);
    each_run(&client, &each, sizeof(each));
    CHECK(client.job == NULL && each.at == KEYS && wrong == 0);
    values.loop_work_quota = QUOTA;
    end();
}

TEST_MAIN()
