/* How hot a prefix is, by itself: the share of an engine's time that its requests take now. */
#include "../test.h"
#include <math.h>
#include "route/hot.h"

#define S UINT64_C(1000000)

/* What it must be: each piece of work fades with 60 s, over as much of the time since the first. */
static double share_of(const double *work, const uint64_t *at, int n, uint64_t begun,
                       uint64_t now) {
    double sum = 0, fade = 60e6;
    for (int i = 0; i < n; i++) sum += work[i] * exp(-(double)(now - at[i]) / fade);
    return sum / (fade * (1 - exp(-(double)(now - begun) / fade)));
}

TEST(a_share_is_of_the_last_minute) {
    struct hot_prefixes h;
    double work[400], share;
    uint64_t at[400], now = 10 * S;
    int n = 0;
    hot_init(&h);
    for (; n < 400; n++) {
        /* Twice as much in the second half, after a quiet of two minutes. */
        work[n] = n < 200 ? 0.25e6 : 0.5e6;
        now += n == 200 ? 120 * S : S;
        at[n] = now;
        hot_add(&h, 7, work[n], now, &share);
        if (n < 5) CHECK_EQ(share, 0); /* that tells little */
        if (n < 6) continue;
        CHECK(fabs(share / share_of(work, at, n + 1, at[0], now) - 1) < 1e-9);
        if (n == 199) CHECK(fabs(share - 0.25) < 0.01);
        if (n == 200) CHECK(share < 0.06);
    }
    CHECK(fabs(share - 0.5) < 0.03);
    hot_deinit(&h);
}

/* Of a full line the one goes that is least hot now, and not the one that had least work, or the
 * first: hashes that are equal in their low bits share a line. */
TEST(the_least_hot_is_forgotten) {
    struct hot_prefixes h;
    double share;
    uint64_t hash[] = {HOT_LINES, 2 * HOT_LINES, 3 * HOT_LINES, 4 * HOT_LINES, 5 * HOT_LINES};
    hot_init(&h);
    hot_add(&h, hash[0], 1, 5 * S, &share);
    struct hot_entry *cold = hot_add(&h, hash[1], 10e6, 10 * S, &share); /* that was long ago */
    hot_add(&h, hash[0], 3e6, 400 * S, &share);
    hot_add(&h, hash[2], 1e6, 400 * S, &share);
    hot_add(&h, hash[3], 1e6, 400 * S, &share);
    CHECK(hot_add(&h, hash[4], 1e6, 401 * S, &share) == cold);
    CHECK(fabs(hot_add(&h, hash[0], 0, 410 * S, &share)->work_us - 3e6 * exp(-10.0 / 60)) < 1);
    CHECK_EQ(hot_add(&h, hash[1], 1e6, 411 * S, &share)->work_us, 1e6);
    hot_deinit(&h);
}

TEST_MAIN()
