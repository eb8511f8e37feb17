/* Where the master is: at a fixed address, where Sentinels say, or who leads of several servers.
 *
 * Each Sentinel is asked in turn, the one that answered last first. What it says is checked at the
 * door: a server that is not a master (any more) is no answer, because a Sentinel may not have
 * heard of a failover yet. Where the URL names the servers themselves, the one that leads, and of
 * several the one with the highest epoch, is the master. */
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/htab.h"
#include "client/client.h"

#define ASK_MS         1000u /* for one of them to connect and to answer */
#define ASK_ANSWER_MAX (256u << 10)

void master_free(struct whereabouts *m) {
    secure_close(&m->secure);
    scouts_destroy(&m->scouts);
    free(m->name);
    *m = (struct whereabouts){0};
}

/* --- Sentinels --- */

tarn_status master_ask_sentinel(const struct whereabouts *m, unsigned i, const char *verb,
                                uint64_t deadline, struct arena *arena, struct answer **answer_p) {
    const char *argv[] = {"SENTINEL", verb, m->name};
    struct ctl c;
    ctl_init(&c);
    tarn_status status = ctl_open(&c, &m->secure, m->server[i].host, m->server[i].port, deadline);
    c.answer_max = ASK_ANSWER_MAX;
    if (status == TARN_OK) status = ctl_send(&c, 3, argv, NULL, false);
    if (status == TARN_OK) status = ctl_receive(&c, arena, answer_p, deadline);
    ctl_close(&c);
    return status;
}

static bool is_word(const struct answer *a, size_t max) {
    return a != NULL && a->type == ANSWER_STRING && a->len > 0 && a->len < max &&
           strlen(a->str) == a->len;
}

bool address_read(const struct answer *host, const struct answer *port, struct address *at) {
    if (!is_word(host, sizeof(at->host)) || !is_word(port, sizeof(at->port))) return false;
    memcpy(at->host, host->str, host->len + 1);
    memcpy(at->port, port->str, port->len + 1);
    return true;
}

/* Its answer is [host, port], or nil: it knows of no such master. */
static tarn_status named_master(const struct whereabouts *m, unsigned i, uint64_t deadline,
                                struct address *at) {
    const struct address *sentinel = &m->server[i];
    struct arena arena = {0};
    struct answer *a;
    tarn_status status = master_ask_sentinel(
        m, i, "get-master-addr-by-name", min_u64(deadline, add_sat(now_ms(), ASK_MS)), &arena, &a);
    if (status == TARN_OK && a->type == ANSWER_ERROR)
        status = fail(TARN_EPROTO, "the Sentinel at %s:%s says: %s", sentinel->host, sentinel->port,
                      a->str);
    if (status == TARN_OK && !address_read(answer_at(a, 0), answer_at(a, 1), at))
        status = fail(TARN_ENOTFOUND, "the Sentinel at %s:%s knows of no master \"%s\"",
                      sentinel->host, sentinel->port, m->name);
    arena_free(&arena);
    return status;
}

static tarn_status find_named(struct whereabouts *m, uint64_t deadline, struct address *at) {
    unsigned first = __atomic_load_n(&m->first, __ATOMIC_RELAXED);
    tarn_status status = TARN_EIO;
    for (unsigned k = 0; k < m->n; k++) {
        unsigned i = (first + k) % m->n;
        status = named_master(m, i, deadline, at);
        if (status == TARN_OK) {
            __atomic_store_n(&m->first, i, __ATOMIC_RELAXED);
            scout_named(m->scouts, at);
            return TARN_OK;
        }
        if (now_ms() >= deadline) break;
    }
    return fail(status == TARN_ENOTFOUND ? TARN_EINVAL : TARN_EIO,
                "none of %u Sentinels tells where master \"%s\" is: %s", m->n, m->name,
                tarn_last_error());
}

/* --- servers --- */

/* TARN_OK: it leads; *epoch_p is 0 where this user may not know. */
static tarn_status server_leads(const struct whereabouts *m, unsigned i, uint64_t deadline,
                                uint32_t *epoch_p) {
    const struct greeting g = {.map_epoch = master_map_epoch(m),
                               .role = true,
                               .last = {"INFO", "server"},
                               .whom = "server"};
    struct arena arena = {0};
    struct answer *a;
    struct ctl c;
    ctl_init(&c);
    deadline = min_u64(deadline, add_sat(now_ms(), ASK_MS));
    tarn_status status = ctl_open(&c, &m->secure, m->server[i].host, m->server[i].port, deadline);
    c.answer_max = ASK_ANSWER_MAX;
    if (status == TARN_OK) status = ctl_greet(&c, &arena, m->options, &g, deadline, &a);
    if (status == TARN_OK) *epoch_p = master_epoch_of(a);
    ctl_close(&c);
    arena_free(&arena);
    return status;
}

static tarn_status find_leading(struct whereabouts *m, uint64_t deadline, struct address *at) {
    uint32_t met = __atomic_load_n(&m->epoch, __ATOMIC_RELAXED), best = 0;
    unsigned first = __atomic_load_n(&m->first, __ATOMIC_RELAXED), found = m->n;
    tarn_status why = TARN_EIO;
    for (unsigned k = 0; k < m->n && (k == 0 || now_ms() < deadline); k++) {
        unsigned i = (first + k) % m->n;
        uint32_t epoch = 0;
        tarn_status status = server_leads(m, i, deadline, &epoch);
        if (status == TARN_EPERM) why = status;
        if (status != TARN_OK || (found < m->n && epoch <= best)) continue;
        found = i;
        best = epoch;
        if (met != 0 && epoch >= met) break;
    }
    if (found == m->n)
        return fail(why, "none of the %u servers leads: %s", m->n, tarn_last_error());
    __atomic_store_n(&m->first, found, __ATOMIC_RELAXED);
    *at = m->server[found];
    return TARN_OK;
}

/* --- both --- */

tarn_status master_find(struct whereabouts *m, uint64_t deadline, struct address *at) {
    if (!master_may_change(m)) {
        *at = m->server[0];
        return TARN_OK;
    }
    if (scout_known(m->scouts, at)) return TARN_OK;
    return m->name != NULL ? find_named(m, deadline, at) : find_leading(m, deadline, at);
}

bool master_moved(const struct whereabouts *m, const struct address *at) {
    bool moved = false;
    for (unsigned i = 0; i < m->n; i++) {
        struct address named;
        uint32_t epoch = 0;
        if (m->name == NULL) {
            if (!address_is(&m->server[i], at) &&
                server_leads(m, i, DEADLINE_NONE, &epoch) == TARN_OK &&
                epoch > __atomic_load_n(&m->epoch, __ATOMIC_RELAXED))
                return true;
        } else if (named_master(m, i, DEADLINE_NONE, &named) == TARN_OK) {
            if (address_is(&named, at) || scout_is_ahead(m->scouts, at, &named)) return false;
            moved = true;
        }
    }
    return moved;
}

void master_asked(struct whereabouts *m, const struct address *at) {
    if (!master_may_change(m)) return;
    scout_wrong(m->scouts, at);
    __atomic_store_n(&m->first, (__atomic_load_n(&m->first, __ATOMIC_RELAXED) + 1) % m->n,
                     __ATOMIC_RELAXED);
}

uint32_t master_met(struct whereabouts *m, const struct address *at) {
    char text[sizeof(*at) + 1];
    int n = snprintf(text, sizeof(text), "%s %s", at->host, at->port);
    uint64_t hash = hash_bytes(text, (size_t)n);
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

bool master_is_role(const struct answer *role) {
    const struct answer *name = answer_at(role, 0);
    return name != NULL && name->type == ANSWER_STRING && strcmp(name->str, "master") == 0;
}

tarn_status master_check_role(const struct answer *role, const char *host, const char *port) {
    const struct answer *name = answer_at(role, 0);
    if (master_is_role(role)) return TARN_OK;
    if (role->type == ANSWER_ERROR && strncmp(role->str, "NOPERM", 6) == 0)
        return fail(TARN_EPERM,
                    "%s:%s does not say whether it is a master: this user needs the right +role",
                    host, port);
    return fail(TARN_ECLOSED, "%s:%s is not a master%s", host, port,
                name != NULL && name->type == ANSWER_STRING ? ", or not any more" : "");
}
