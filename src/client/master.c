/* Where the master is: at a fixed address, where Sentinels say, or one of several (servers.c).
 *
 * Each Sentinel is asked in turn, the one that answered last first. What it says is checked at the
 * door: a server that is not a master (any more) is no answer, because a Sentinel may not have
 * heard of a failover yet. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/htab.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/master.h"
#include "client/outage.h"
#include "client/secure.h"

#define SENTINEL_MS         1000u /* for one of them to connect and to answer */
#define SENTINEL_ANSWER_MAX (64u << 10)

void master_free(struct whereabouts *m) {
    secure_close(&m->secure);
    scouts_destroy(&m->scouts);
    free(m->host);
    free(m->port);
    free(m->name);
    for (unsigned i = 0; i < m->n; i++) {
        free(m->sentinel[i].host);
        free(m->sentinel[i].port);
    }
    *m = (struct whereabouts){0};
}

/* Its answer is [host, port], or nil: it knows of no such master. */
static tarn_status ask(struct ctl *c, struct arena *arena, const struct whereabouts *m, unsigned i,
                       uint64_t deadline, char host[MASTER_HOST_MAX], char port[16]) {
    const char *argv[] = {"SENTINEL", "get-master-addr-by-name", m->name};
    struct answer *a;
    tarn_status status =
        ctl_open(c, &m->secure, m->sentinel[i].host, m->sentinel[i].port, deadline);
    c->answer_max = SENTINEL_ANSWER_MAX;
    if (status == TARN_OK) status = ctl_send(c, 3, argv, NULL, false);
    if (status == TARN_OK) status = ctl_receive(c, arena, &a, deadline);
    if (status != TARN_OK) return status;
    if (a->type == ANSWER_ERROR)
        return fail(TARN_EPROTO, "the Sentinel at %s:%s says: %s", m->sentinel[i].host,
                    m->sentinel[i].port, a->str);
    const struct answer *h = answer_at(a, 0), *p = answer_at(a, 1);
    if (h == NULL || p == NULL || h->type != ANSWER_STRING || p->type != ANSWER_STRING ||
        h->len == 0 || h->len >= MASTER_HOST_MAX || p->len == 0 || p->len >= 16)
        return fail(TARN_ENOTFOUND, "the Sentinel at %s:%s knows of no master \"%s\"",
                    m->sentinel[i].host, m->sentinel[i].port, m->name);
    snprintf(host, MASTER_HOST_MAX, "%s", h->str);
    snprintf(port, 16, "%s", p->str);
    return TARN_OK;
}

static void name_it(const char *h, const char *p, char host[MASTER_HOST_MAX], char port[16]) {
    snprintf(host, MASTER_HOST_MAX, "%s", h);
    snprintf(port, 16, "%s", p);
}

static tarn_status ask_sentinels(struct whereabouts *m, uint64_t deadline,
                                 char host[MASTER_HOST_MAX], char port[16]) {
    unsigned first = __atomic_load_n(&m->first, __ATOMIC_RELAXED);
    tarn_status status = TARN_EIO;
    for (unsigned k = 0; k < m->n; k++) {
        unsigned i = (first + k) % m->n;
        struct ctl c;
        struct arena arena = {0};
        ctl_init(&c);
        uint64_t limit = min_u64(deadline, add_sat(now_ms(), SENTINEL_MS));
        status = ask(&c, &arena, m, i, limit, host, port);
        ctl_close(&c);
        arena_free(&arena);
        if (status == TARN_OK) {
            __atomic_store_n(&m->first, i, __ATOMIC_RELAXED);
            scout_named(m->scouts, host, port);
            return TARN_OK;
        }
        if (now_ms() >= deadline) break;
    }
    return fail(status == TARN_ENOTFOUND ? TARN_EINVAL : TARN_EIO,
                "none of %u Sentinels tells where master \"%s\" is: %s", m->n, m->name,
                tarn_last_error());
}

tarn_status master_find(struct whereabouts *m, uint64_t deadline, char host[MASTER_HOST_MAX],
                        char port[16]) {
    unsigned i = 0;
    if (m->n == 0) {
        name_it(m->host, m->port, host, port);
        return TARN_OK;
    }
    if (scout_known(m->scouts, host, port)) return TARN_OK;
    if (m->name != NULL) return ask_sentinels(m, deadline, host, port);
    tarn_status status = servers_find(m, deadline, &i);
    if (status != TARN_OK) return status;
    __atomic_store_n(&m->first, i, __ATOMIC_RELAXED);
    name_it(m->sentinel[i].host, m->sentinel[i].port, host, port);
    return TARN_OK;
}

bool master_moved(const struct whereabouts *m, const char *host, const char *port) {
    bool moved = false;
    if (m->name == NULL) return servers_moved(m, host, port);
    for (unsigned i = 0; i < m->n; i++) {
        char its_host[MASTER_HOST_MAX], its_port[16];
        struct ctl c;
        struct arena arena = {0};
        ctl_init(&c);
        tarn_status status =
            ask(&c, &arena, m, i, add_sat(now_ms(), SENTINEL_MS), its_host, its_port);
        ctl_close(&c);
        arena_free(&arena);
        if (status != TARN_OK) continue;
        if (strcmp(its_host, host) == 0 && strcmp(its_port, port) == 0) return false;
        if (scout_is_ahead(m->scouts, host, port, its_host, its_port)) return false;
        moved = true;
    }
    return moved;
}

void master_asked(struct whereabouts *m, const char *host, const char *port) {
    scout_wrong(m->scouts, host, port);
    if (m->n > 0)
        __atomic_store_n(&m->first, (__atomic_load_n(&m->first, __ATOMIC_RELAXED) + 1) % m->n,
                         __ATOMIC_RELAXED);
}

uint32_t master_met(struct whereabouts *m, const char *host, const char *port) {
    char address[MASTER_HOST_MAX + 20];
    int n = snprintf(address, sizeof(address), "%s %s", host, port);
    uint64_t hash = hash_bytes(address, (size_t)n);
    if (__atomic_exchange_n(&m->met_hash, hash, __ATOMIC_ACQ_REL) == hash)
        return __atomic_load_n(&m->met, __ATOMIC_RELAXED);
    return __atomic_add_fetch(&m->met, 1, __ATOMIC_ACQ_REL);
}

uint32_t master_epoch_of(const struct answer *info) {
    static const char field[] = "\nmaster_epoch:";
    const char *at = info->type == ANSWER_STRING ? strstr(info->str, field) : NULL;
    uint64_t epoch;
    if (at == NULL) return 0;
    at += sizeof(field) - 1;
    return span_to_u64(span_of(at, strspn(at, "0123456789")), &epoch) && epoch <= UINT32_MAX
               ? (uint32_t)epoch
               : 0;
}

tarn_status master_check_epoch(struct whereabouts *m, uint32_t epoch, const char *host,
                               const char *port) {
    uint32_t met = __atomic_load_n(&m->epoch, __ATOMIC_RELAXED);
    while (epoch > met) {
        if (__atomic_compare_exchange_n(&m->epoch, &met, epoch, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return TARN_OK;
    }
    if (epoch == 0 || epoch == met) return TARN_OK;
    return fail(TARN_ECLOSED,
                "the master at %s:%s has epoch %u, and one with epoch %u was met before: it is an "
                "old one (to "
                "go back to it anyway, connect anew)",
                host, port, epoch, met);
}

tarn_status master_check_role(const struct answer *role, const char *host, const char *port) {
    const struct answer *name = answer_at(role, 0);
    if (name != NULL && name->type == ANSWER_STRING && strcmp(name->str, "master") == 0)
        return TARN_OK;
    if (role->type == ANSWER_ERROR && strncmp(role->str, "NOPERM", 6) == 0)
        return fail(TARN_EPERM,
                    "%s:%s does not say whether it is a master: this user needs the right +role",
                    host, port);
    return fail(TARN_ECLOSED, "%s:%s is not a master%s", host, port,
                name != NULL && name->type == ANSWER_STRING ? ", or not any more" : "");
}
