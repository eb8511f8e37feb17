/* DEBUG DIGEST: one number over everything that is in the books, and what
 * modules keep. The same on a master and on a
 * replica that has all of it. */
#include <sodium.h>
#include <string.h>

#include "base/assert.h"
#include "commands/debug.h"
#include "front/module_durable.h"
#include "store/effect.h"

struct digest {
    struct job job;
    struct store_digest digest;
};

static bool digest_step(struct client *c, struct job *job, unsigned *budget) {
    struct digest *d = CONTAINER_OF(job, struct digest, job);
    char text[41]; /* Redis' has 40 digits */
    uint8_t modules[sizeof(d->digest.sum)];
    if (!store_digest_step(books, &d->digest, budget)) return false;
    module_durable_digest(modules);
    for (size_t i = 0; i < sizeof(modules); i++) d->digest.sum[i] ^= modules[i];
    memset(text, '0', 40);
    text[40] = '\0';
    sodium_bin2hex(text, sizeof(text), d->digest.sum, sizeof(d->digest.sum));
    text[32] = '0';
    reply_simple(c, text);
    return true;
}

void debug_digest(struct client *c) {
    struct digest d = {.job = {.step = digest_step, .runnable = true}};
    job_run(c, &d.job, sizeof(d));
}
