#include "front/each.h"

#include "base/assert.h"

void each_prefetch(const struct client *c, struct each *each, size_t i) {
    TARN_ASSERT(i < each->n);
    each->from = i;
    each->count = min_u64(each->n - i, EACH_WINDOW);
    struct span keys[EACH_WINDOW];
    for (size_t k = 0; k < each->count; k++) keys[k] = c->argv[each->first + (i + k) * each->width];
    store_prefetch(books, keys, each->count, each->hash);
}

static bool each_step(struct client *c, struct job *job, unsigned *budget) {
    struct each *each = CONTAINER_OF(job, struct each, job);
    for (; each->at < each->n; each->at++) {
        if (*budget == 0) return false;
        if (each->width > 0 && each->at - each->from >= each->count)
            each_prefetch(c, each, each->at);
        enum each_next next = each->one(c, each, budget);
        if (next == EACH_AGAIN) return false;
        spend(budget, 1);
        if (next == EACH_OVER) break;
    }
    if (each->end != NULL) each->end(c, each);
    return true;
}

void each_run(struct client *c, struct each *each, size_t size) {
    each->job.step = each_step;
    each->job.runnable = true;
    job_run(c, &each->job, size);
}

void each_start(struct client *c, struct each *each) {
    each->job.step = each_step;
    each->job.runnable = true;
    job_start(c, &each->job);
}
