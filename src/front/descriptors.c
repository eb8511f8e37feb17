#include "front/descriptors.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/assert.h"
#include "base/log.h"

#define FIXED      32u
#define HOSTS_EACH 64u /* depends on how many nodes there are; this is for a few */
#define IO_EACH    2u
#define DATA_EACH  4u

struct descriptors descriptors_wanted(const struct config *c) {
    bool pool = c->pool_size > 0;
    return (struct descriptors){
        .fixed = FIXED + IO_EACH * (uint64_t)c->io_threads +
                 (pool ? DATA_EACH * (uint64_t)c->data_threads : 0),
        .hosts = HOSTS_EACH * (uint64_t)c->inband_threads,
        .data = pool ? (uint64_t)c->data_maxclients : 0,
        .clients = (uint64_t)c->maxclients,
    };
}

uint64_t descriptors_sum(const struct descriptors *d) {
    return d->fixed + d->hosts + d->data + d->clients;
}

struct descriptors descriptors_of(const struct descriptors *wanted, uint64_t limit) {
    uint64_t rest = limit > wanted->fixed ? limit - wanted->fixed : 0;
    struct descriptors d = {.fixed = wanted->fixed};
    d.hosts = min_u64(wanted->hosts, rest / 4);
    d.data = min_u64(wanted->data, rest / 4);
    d.clients = min_u64(wanted->clients, rest - d.hosts - d.data);
    d.data = min_u64(wanted->data, rest - d.hosts - d.clients);
    return d;
}

/* As far as it goes towards want. Returns what may be open then. */
static uint64_t raise_limit(uint64_t want) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return want;
    if (limit.rlim_cur >= want) return want;
    struct rlimit more = {want, max_u64(limit.rlim_max, want)};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) return want;
    more = (struct rlimit){min_u64(limit.rlim_max, want), limit.rlim_max};
    return setrlimit(RLIMIT_NOFILE, &more) == 0 ? more.rlim_cur : limit.rlim_cur;
}

bool descriptors_raise(const struct config *c, const char **why_p) {
    struct descriptors wanted = descriptors_wanted(c);
    struct descriptors d = descriptors_of(&wanted, raise_limit(descriptors_sum(&wanted)));
    if (d.clients >= wanted.clients && d.data >= wanted.data) return true;
    *why_p = "the operating system does not allow that many open files: raise the limit (ulimit "
             "-n) first";
    return false;
}

/* d: what each gets of it, want: how many would be enough. */
static void say_too_few(const struct descriptors *d, uint64_t limit, uint64_t want) {
    char clients[32] = "no client", advice[48] = "";
    if (d->clients > 0) {
        snprintf(clients, sizeof(clients), "%" PRIu64 " clients", d->clients);
        snprintf(advice, sizeof(advice), ". Or say --maxclients %" PRIu64, d->clients);
    }
    log_warning("Error: only %" PRIu64
                " files may be open, which leaves room for %s; at least %u are "
                "needed, unless fewer are asked for. 'ulimit -n %" PRIu64
                "' (LimitNOFILE of systemd) is enough for all that is configured%s",
                limit, clients, DESCRIPTORS_CLIENTS_MIN, want, advice);
}

static void say_lowered(const struct config *c, const struct descriptors *wanted, uint64_t limit) {
    bool clients = (uint64_t)c->maxclients < wanted->clients;
    char text[96] = "maxclients and data-maxclients stay";
    if (clients)
        snprintf(text, sizeof(text), "maxclients is lowered to %lld", (long long)c->maxclients);
    if (wanted->data > (uint64_t)c->data_maxclients) {
        size_t n = clients ? strlen(text) : 0;
        snprintf(text + n, sizeof(text) - n, "%sdata-maxclients%s to %lld", clients ? ", " : "",
                 clients ? "" : " is lowered", (long long)c->data_maxclients);
    }
    log_warning("Only %" PRIu64 " files may be open: %s. 'ulimit -n %" PRIu64
                "' (LimitNOFILE of systemd) is enough for all that is configured",
                limit, text, descriptors_sum(wanted));
}

bool descriptors_share(struct config *c) {
    struct descriptors wanted = descriptors_wanted(c);
    uint64_t want = descriptors_sum(&wanted), limit = raise_limit(want);
    if (limit >= want) return true;
    struct descriptors d = descriptors_of(&wanted, limit);
    if (d.clients < DESCRIPTORS_CLIENTS_MIN && d.clients < wanted.clients) {
        say_too_few(&d, limit, want);
        return false;
    }
    c->maxclients = (int64_t)d.clients;
    if (wanted.data > 0) c->data_maxclients = (int64_t)max_u64(d.data, 1);
    say_lowered(c, &wanted, limit);
    return true;
}
