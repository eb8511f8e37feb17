/* Everything goes wrong, at random, for a while: what is said to have been read or written was,
 * operations end, buffers come back, and nothing is left. */
#include <errno.h>

#include "active.h"

#define MB    (1u << 20)
#define PLACE (256u << 10)
enum { OPS = 24 };

/* Each operation has a place of its own in the segment, whose content it knows, unless a write
 * there was left in doubt. */
static struct place {
    struct client_op c;
    uint8_t *data;
    uint8_t *expected; /* what the segment holds */
    uint64_t known;    /* bytes from the start of it; 0: nothing is known */
    uint64_t len;
    bool busy, put;
} place[OPS];

static struct rng rng;
static unsigned good, failed, loose;
static bool stale;

/* TARN_EPROTO: a host that does not know what its own device can do. */
static bool is_path_failure(tarn_status s) {
    return s == TARN_ECLOSED || s == TARN_ETIMEOUT || s == TARN_ELIMIT || s == TARN_ECANCELED ||
           s == TARN_EPROTO;
}

static void finish(struct place *p) {
    p->busy = false;
    tarn_status s = p->c.op.status;
    if (s != TARN_OK) {
        stale |= s == TARN_ESTALE; /* the host has registered its memory anew */
        CHECK(stale || is_path_failure(s));
        failed++;
        if (p->put) p->known = 0;
        if (!p->put || p->c.op.settled) return;
        /* Its bytes may come yet: nobody writes there before the session has been cut off. */
        struct transport_fence fence = {
            .kind = TRANSPORT_FENCE_SESSION, .session = 1, .ticket = ++loose};
        CHECK_EQ(rdma_transport.listener_fence(a.listener, &fence), TARN_OK);
        return;
    }
    good++;
    CHECK_EQ(p->c.crc, crc32c(0, p->data, p->len));
    if (p->put) {
        memcpy(p->expected, p->data, p->len);
        p->known = p->len;
        CHECK(memcmp(segment_data() + (p - place) * PLACE, p->data, p->len) == 0);
    } else {
        CHECK(memcmp(p->expected, p->data, min_u64(p->known, p->len)) == 0);
    }
}

static void finish_some(void) {
    for (int i = 0; i < OPS; i++) {
        if (place[i].busy && place[i].c.done == 1) finish(&place[i]);
    }
}

static void start_some(bool all) {
    for (int i = 0; i < OPS; i++) {
        struct place *p = &place[i];
        if (p->busy || (!all && rng_below(&rng, 4) != 0)) continue;
        p->put = rng_below(&rng, 2) == 0;
        p->len = rng_below(&rng, 3) == 0 ? 1 + rng_below(&rng, 300) : 1 + rng_below(&rng, PLACE);
        if (p->put) fill(p->data, p->len, rng_next(&rng));
        op_fill(&p->c, p->put, (uint64_t)i * PLACE, p->data, p->len);
        p->c.op.patience_ms = 300;
        p->busy = true;
        op_submit(&p->c);
    }
}

static bool any_busy(void) {
    finish_some();
    for (int i = 0; i < OPS; i++) {
        if (place[i].busy) return true;
    }
    return false;
}

static struct rdma_rail *some_rail(void) {
    struct rdma_rail *r = NULL;
    struct rdma_work *w = a.client->work;
    for (int tries = 0; tries < 20 && (r == NULL || r->qp == NULL); tries++)
        r = w->rail[rng_below(&rng, w->max_rails)];
    return r != NULL && r->qp != NULL ? r : NULL;
}

static void some_trouble(void) {
    static const enum ibv_wc_status errors[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_OP_ERR,
                                                IBV_WC_LOC_PROT_ERR, IBV_WC_GENERAL_ERR,
                                                IBV_WC_WR_FLUSH_ERR};
    struct rdma_rail *r = some_rail();
    switch (rng_below(&rng, 9)) {
    case 0:
    case 1:
        if (r != NULL) fake_qp_error(r->qp_num, errors[rng_below(&rng, ARRAY_LEN(errors))]);
        break;
    case 2:
        if (r != NULL) fake_cut(r->qp_num);
        break;
    case 3:
        /* The host hears it: it says goodbye when its queue pair is gone, never before. */
        if (r != NULL) fake_disconnect(r->remote_qp);
        break;
    case 4: fake_port(rng_below(&rng, 2) == 0 ? "fake0" : "fake1", rng_below(&rng, 3) != 0); break;
    case 5: fake_hold(rng_below(&rng, 2) == 0); break;
    case 6:
        fake_fail((enum fake_call)rng_below(&rng, FAKE_CALLS), (unsigned)rng_below(&rng, 3), 1,
                  EIO);
        break;
    case 7: a.host_stopped = rng_below(&rng, 3) == 0; break;
    default: fake_hold(false); a.host_stopped = false;
    }
}

static void calm_down(void) {
    fake_hold(false);
    a.host_stopped = false;
    for (int i = 0; i < FAKE_CALLS; i++) fake_fail((enum fake_call)i, 0, 0, 0);
    for (int i = 0; i < 4; i++)
        fake_port(i % 2 == 0 ? "fake0" : "fake1", i >= 2); /* an event for who has missed one */
}

static void cancel_all(void) {
    close_endpoint();
    CHECK(!any_busy());
    tarn_status s = TARN_ECLOSED;
    for (int i = 0; i < 1000 && s != TARN_OK; i++) { /* both ports may be down */
        s = rdma_transport.connect(a.client, a.uri.data, 0, &a.endpoint);
        if (s != TARN_OK) calm_down();
        if (s != TARN_OK) usleep(1000);
    }
    CHECK_EQ(s, TARN_OK);
    if (rdma_transport.memory_version(a.segment) == 0) return;
    stale = false;
    close_keys(); /* who asks the master again gets newer ones */
    open_keys();
}

static bool seen_enough(void) {
    return good > 100 && a.client->counters.rail_failures > 0;
}

static void run(const char *fake, const char *const *options, uint64_t seed, uint64_t ms) {
    begin(fake, OPS * PLACE, options);
    rng_seed(&rng, getenv("SEED") != NULL ? strtoull(getenv("SEED"), NULL, 10) : seed);
    good = failed = loose = 0;
    stale = false;
    for (int i = 0; i < OPS; i++) {
        place[i] =
            (struct place){.data = malloc(PLACE), .expected = calloc(1, PLACE), .known = PLACE};
    }
    uint64_t from_ms = clock_boot_ms(), until_ms;
    /* For as long as told, and on a slow machine until there was something to see. */
    while (clock_boot_ms() - from_ms < ms ||
           (!seen_enough() && clock_boot_ms() - from_ms < 60000)) {
        start_some(false);
        for (uint64_t i = rng_below(&rng, 40); i > 0; i--) turn();
        finish_some();
        if (rng_below(&rng, 4) == 0) some_trouble();
        if (stale || rng_below(&rng, 200) == 0) cancel_all();
        int fd;
        if (rdma_transport.arm(a.client, &fd) == TARN_OK) usleep(100);
    }
    calm_down();
    CHECK(WAIT(!any_busy()));
    CHECK(WAIT(rdma_device_usable(rdma_device_at(0))));
    /* And all is well again, as soon as the host listens, which may be at another port. */
    unsigned failed_before;
    until_ms = clock_boot_ms() + 60000;
    do {
        failed_before = failed;
        cancel_all();
        start_some(true);
        CHECK(WAIT(!any_busy()));
        usleep(1000);
    } while (failed != failed_before && clock_boot_ms() < until_ms);
    CHECK_EQ(failed, failed_before);
    CHECK(seen_enough());
    CHECK_EQ(rdma_staging_used(a.client->work->staging), 0);
    CHECK_EQ(a.key[0]->n_tasks + a.key[1]->n_tasks, 0);
    if (getenv("VERBOSE") != NULL)
        printf("# %u good, %u failed, %u loose, %llu rails failed\n", good, failed, loose,
               (unsigned long long)a.client->counters.rail_failures);
    for (int i = 0; i < OPS; i++) {
        free(place[i].data);
        free(place[i].expected);
    }
    end();
}

TEST(trouble_with_one_device) {
    static const char *const options[] = {"connect-timeout-ms", "50", NULL};
    run("devices=1,stall_ms=200,cm_ms=200", options, 1, 1500);
}

TEST(trouble_with_two_devices) {
    static const char *const options[] = {"connect-timeout-ms", "50", "staging", "1mb", NULL};
    run("devices=2,stall_ms=200,cm_ms=200,delay_us=50", options, 2, 1500);
}

TEST(trouble_with_short_queues) {
    static const char *const options[] = {"connect-timeout-ms", "50",  "max-rails", "3",
                                          "idle-timeout-ms",    "100", NULL};
    run("devices=2,stall_ms=200,cm_ms=200,max_qp_wr=4,max_sge=1,max_inline=64", options, 3, 1500);
}

TEST_MAIN()
