/* maxmemory-clients: what all connections hold together has a limit, and where it is over, those
 * that hold most go first.
 *
 * Without a limit nothing is counted. With one a client is weighed after each of its events, and
 * the sum follows. */
#include "base/assert.h"
#include "base/log.h"
#include "front/client.h"
#include "front/stats.h"
#include "config/config.h"

#define CLASSES 64u /* by power of two */

static uint64_t total; /* of what was weighed */

static uint64_t limit_now(void) {
    int64_t v = config->maxmemory_clients;
    if (v >= 0) return (uint64_t)v;
    return (uint64_t)((double)config->maxmemory * (double)-v /
                      100); /* 0, no limit, where there is no maxmemory */
}

/* Replicas hold what this server wants them to have; MONITOR has the limit of its output. */
static bool client_may_go(const struct client *c) {
    return !(c->io->flags &
             (CLIENT_NO_EVICT | CLIENT_REPLICA | CLIENT_MONITOR | CLIENT_CLOSE_SOON));
}

void client_weigh(struct client *c) {
    size_t now = client_may_go(c) ? client_memory(c) : 0;
    total += now;
    total -= c->io->weighed;
    c->io->weighed = now;
}

void client_unweigh(struct client *c) {
    total -= c->io->weighed;
    c->io->weighed = 0;
}

bool clients_have_room(size_t more) {
    uint64_t limit = limit_now();
    return limit == 0 || total + more <= limit / 2;
}

void clients_weigh_all(void) {
    CLIENTS_EACH(c)
        if (config->maxmemory_clients != 0)
            client_weigh(c);
        else
            client_unweigh(c);
}

static unsigned weight_class(size_t n) {
    return n == 0 ? 0 : 63u - (unsigned)__builtin_clzll(n);
}

static void client_evict(struct client *c) {
    struct buf line = {NULL, 0, 0};
    client_describe(c, &line);
    log_notice("Evicting client: %.*s", (int)(line.len > 0 ? line.len - 1 : 0), line.data);
    buf_free(&line);
    client_unweigh(c);
    client_close_soon(c);
    stats.evicted_clients++;
}

/* Two walks over the clients, however many have to go: the first finds the class in which the limit
 * is met. */
void clients_evict(void) {
    uint64_t limit = limit_now();
    uint64_t of_class[CLASSES] = {0};
    if (limit == 0 || total <= limit) return;
    CLIENTS_EACH(c) of_class[weight_class(c->io->weighed)] += c->io->weighed;
    uint64_t left = total;
    unsigned cut = CLASSES;
    while (cut > 0 && left > limit) left -= of_class[--cut];
    CLIENTS_EACH(c)
        if (weight_class(c->io->weighed) > cut && c->io->weighed > 0) client_evict(c);
    CLIENTS_EACH(c)
        if (weight_class(c->io->weighed) == cut && c->io->weighed > 0 && total > limit)
            client_evict(c);
}
