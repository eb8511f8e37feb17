/* Where the master is when the URL names the servers of the pool themselves, without Sentinels: the
 * one that leads, and of several the one with the highest epoch, is the master. */
#include "base/assert.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "client/error.h"
#include "client/master.h"
#include "client/outage.h"
#include "client/secure.h"

#define SERVER_MS         1000u /* for one of them to connect and to answer */
#define SERVER_ANSWER_MAX (64u << 10)

static tarn_status receive(struct ctl *c, struct arena *arena, struct answer **a_p,
                           uint64_t deadline) {
    tarn_status status = ctl_receive(c, arena, a_p, deadline);
    return status == TARN_OK && (*a_p)->type == ANSWER_ERROR
               ? answer_check(*a_p, "asking for the role")
               : status;
}

static tarn_status send_questions(struct ctl *c, const tarn_options *o) {
    const char *role[] = {"ROLE"}, *info[] = {"INFO", "server"};
    tarn_status status = ctl_login(c, o, false);
    if (status == TARN_OK) status = ctl_send(c, 1, role, NULL, false);
    return status == TARN_OK ? ctl_send(c, 2, info, NULL, false) : status;
}

/* TARN_OK: it leads; *epoch_p is 0 where this user may not know. */
static tarn_status ask(struct ctl *c, struct arena *arena, const struct whereabouts *m, unsigned i,
                       uint64_t deadline, uint32_t *epoch_p) {
    const char *host = m->sentinel[i].host, *port = m->sentinel[i].port;
    struct answer *a;
    tarn_status status = ctl_open(c, &m->secure, host, port, deadline);
    c->answer_max = SERVER_ANSWER_MAX;
    if (status == TARN_OK) status = send_questions(c, m->options);
    if (status == TARN_OK && logs_in(m->options)) status = receive(c, arena, &a, deadline);
    if (status == TARN_OK) status = ctl_receive(c, arena, &a, deadline);
    if (status == TARN_OK) status = master_check_role(a, host, port);
    if (status == TARN_OK) status = ctl_receive(c, arena, &a, deadline);
    if (status == TARN_OK) *epoch_p = master_epoch_of(a);
    return status;
}

static tarn_status leads(const struct whereabouts *m, unsigned i, uint64_t deadline,
                         uint32_t *epoch_p) {
    struct ctl c;
    struct arena arena = {0};
    ctl_init(&c);
    tarn_status status =
        ask(&c, &arena, m, i, min_u64(deadline, add_sat(now_ms(), SERVER_MS)), epoch_p);
    ctl_close(&c);
    arena_free(&arena);
    return status;
}

tarn_status servers_find(const struct whereabouts *m, uint64_t deadline, unsigned *index_p) {
    uint32_t met = __atomic_load_n(&m->epoch, __ATOMIC_RELAXED), best = 0;
    unsigned first = __atomic_load_n(&m->first, __ATOMIC_RELAXED);
    bool any = false;
    tarn_status why = TARN_EIO;
    for (unsigned k = 0; k < m->n && (k == 0 || now_ms() < deadline); k++) {
        unsigned i = (first + k) % m->n;
        uint32_t epoch = 0;
        tarn_status status = leads(m, i, deadline, &epoch);
        if (status == TARN_EPERM) why = status;
        if (status != TARN_OK || (any && epoch <= best)) continue;
        any = true;
        best = epoch;
        *index_p = i;
        if (met != 0 && epoch >= met) break;
    }
    return any ? TARN_OK : fail(why, "none of the %u servers leads: %s", m->n, tarn_last_error());
}

bool servers_moved(const struct whereabouts *m, const char *host, const char *port) {
    for (unsigned i = 0; i < m->n; i++) {
        uint32_t epoch = 0;
        if (strcmp(m->sentinel[i].host, host) == 0 && strcmp(m->sentinel[i].port, port) == 0)
            continue;
        if (leads(m, i, DEADLINE_NONE, &epoch) == TARN_OK &&
            epoch > __atomic_load_n(&m->epoch, __ATOMIC_RELAXED))
            return true;
    }
    return false;
}
