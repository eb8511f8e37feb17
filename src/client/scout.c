/* Who is the next master, before the Sentinels say so. They promote a replica and hear of it
 * themselves only by their next INFO, up to a second later. So while the master is away, the
 * replicas they know are asked for their role, every SCOUT_MS, over connections that stay; one that
 * leads now is taken for the master if its epoch is higher than that of any master met before: a
 * deposed one, or one that was started again, has a lower one.
 *
 *   master lost ─> scout_wait ─> scout_known, instead of the Sentinels' word, for BELIEF_MS
 *     ─> the Sentinels' word
 *
 * One thread of a client asks at a time, the others wait for what it finds. Locks, in this order:
 * turn, mutex. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "client/client.h"

#define SCOUTS_MAX      SERVERS_MAX
#define SCOUT_MS        15u   /* between two questions */
#define CONNECT_MS      50u   /* for one to connect; the others wait meanwhile */
#define ANSWER_MS       10u   /* for one to answer; else in the next round */
#define INFO_MS         200u  /* for one that says that it leads */
#define SILENT_MS       1000u /* until one that says nothing is taken to be away */
#define AWAY_MS         200u  /* until one that did not let us in is tried again */
#define LIST_MS         1000u /* between questions to the Sentinels */
#define LIST_ANSWER_MAX (256u << 10)
#define BELIEF_MS       10000u

struct scout {
    struct address at;
    struct ctl ctl;
    bool asked; /* ROLE is under way */
    uint64_t asked_ms, next_ms;
};

struct scouts {
    pthread_mutex_t turn; /* of what follows */
    struct scout scout[SCOUTS_MAX];
    unsigned n;
    uint64_t listed_ms;
    struct arena arena;
    pthread_mutex_t mutex; /* of what follows */
    struct address named;  /* the Sentinels' last word */
    struct address found;  /* "": none */
    struct address left;   /* what they said when it was found */
    uint64_t until_ms;     /* it counts */
};

struct scouts *scouts_create(void) {
    struct scouts *s = xcalloc(1, sizeof(*s));
    pthread_mutex_init(&s->turn, NULL);
    pthread_mutex_init(&s->mutex, NULL);
    for (unsigned i = 0; i < SCOUTS_MAX; i++) ctl_init(&s->scout[i].ctl);
    return s;
}

void scouts_destroy(struct scouts **scouts_p) {
    struct scouts *s = *scouts_p;
    *scouts_p = NULL;
    if (s == NULL) return;
    for (unsigned i = 0; i < SCOUTS_MAX; i++) ctl_close(&s->scout[i].ctl);
    arena_free(&s->arena);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->turn);
    free(s);
}

/* --- what is known --- */

bool scout_known(struct scouts *s, struct address *at) {
    pthread_mutex_lock(&s->mutex);
    bool known = s->found.host[0] != '\0' && now_ms() < s->until_ms;
    if (known) *at = s->found;
    pthread_mutex_unlock(&s->mutex);
    return known;
}

void scout_named(struct scouts *s, const struct address *at) {
    pthread_mutex_lock(&s->mutex);
    s->named = *at;
    pthread_mutex_unlock(&s->mutex);
}

void scout_wrong(struct scouts *s, const struct address *at) {
    pthread_mutex_lock(&s->mutex);
    if (address_is(&s->found, at)) s->found.host[0] = '\0';
    pthread_mutex_unlock(&s->mutex);
}

bool scout_is_ahead(struct scouts *s, const struct address *at, const struct address *named) {
    pthread_mutex_lock(&s->mutex);
    bool ahead = address_is(&s->found, at) && address_is(&s->left, named) && now_ms() < s->until_ms;
    pthread_mutex_unlock(&s->mutex);
    return ahead;
}

static void scout_found(struct scouts *s, const struct address *at) {
    pthread_mutex_lock(&s->mutex);
    s->found = *at;
    s->left = s->named;
    s->until_ms = now_ms() + BELIEF_MS;
    pthread_mutex_unlock(&s->mutex);
}

/* --- whom to ask, in one's turn --- */

/* Those that stay keep their connections. */
static void scouts_take(struct scouts *s, const struct address *at, unsigned n) {
    for (unsigned i = 0; i < SCOUTS_MAX; i++) {
        struct scout *scout = &s->scout[i];
        bool same = i < n && address_is(&scout->at, &at[i]);
        if (!same) ctl_close(&scout->ctl);
        if (!same) scout->next_ms = 0;
        if (i < n) scout->at = at[i];
    }
    s->n = n;
}

static void take_list(struct scouts *s, const struct answer *list) {
    struct address at[SCOUTS_MAX];
    unsigned n = 0;
    for (size_t i = 0; i < list->len && n < SCOUTS_MAX; i++) {
        const struct answer *server = &list->element[i];
        n += address_read(answer_field(server, "ip"), answer_field(server, "port"), &at[n]);
    }
    scouts_take(s, at, n);
}

static void list_replicas(struct whereabouts *m, uint64_t until) {
    struct scouts *s = m->scouts;
    if (s->listed_ms != 0 && now_ms() - s->listed_ms < LIST_MS) return;
    s->listed_ms = now_ms();
    if (m->name == NULL) {
        scouts_take(s, m->server, m->n);
        return;
    }
    unsigned first = __atomic_load_n(&m->first, __ATOMIC_RELAXED);
    bool told = false;
    struct arena arena = {0};
    for (unsigned k = 0; k < m->n && !told && now_ms() < until; k++) {
        struct answer *a;
        told =
            master_ask_sentinel(m, (first + k) % m->n, "replicas", until, &arena, &a) == TARN_OK &&
            a->type == ANSWER_ARRAY;
        if (told) take_list(s, a);
    }
    arena_free(&arena);
}

/* --- asking them --- */

static void ask_role(struct whereabouts *m, const tarn_options *o, struct scout *scout) {
    const char *role[] = {"ROLE"};
    uint64_t now = now_ms();
    tarn_status status = TARN_OK;
    if (scout->asked && scout->ctl.fd >= 0) return;
    if (scout->ctl.fd < 0) {
        if (now < scout->next_ms) return;
        status =
            ctl_open(&scout->ctl, &m->secure, scout->at.host, scout->at.port, now + CONNECT_MS);
        scout->ctl.answer_max = LIST_ANSWER_MAX;
        if (status == TARN_OK) status = ctl_login(&scout->ctl, o, true);
    }
    if (status == TARN_OK) status = ctl_send(&scout->ctl, 1, role, NULL, false);
    scout->asked = status == TARN_OK;
    scout->asked_ms = now;
    if (status != TARN_OK) scout->next_ms = now_ms() + AWAY_MS;
}

/* Sentinels have said who leads; whoever leads of several servers may be the one that was there
 * before. */
static bool is_later(const struct whereabouts *m, uint32_t epoch) {
    uint32_t met = __atomic_load_n(&m->epoch, __ATOMIC_RELAXED);
    return m->name != NULL ? epoch > met : epoch >= met;
}

static bool has_higher_epoch(struct whereabouts *m, struct scout *scout, struct arena *arena) {
    const char *argv[] = {"INFO", "server"};
    uint64_t until = now_ms() + INFO_MS, map = master_map_epoch(m);
    struct answer *a = NULL;
    tarn_status status = map > 0 ? ctl_tell_map(&scout->ctl, map) : TARN_OK;
    if (status == TARN_OK) status = ctl_send(&scout->ctl, 2, argv, NULL, false);
    if (status == TARN_OK && map > 0) status = ctl_receive(&scout->ctl, arena, &a, until);
    bool knows = map == 0 || (status == TARN_OK && answer_check(a, "a scout") != TARN_ELOADING);
    if (status == TARN_OK) status = ctl_receive(&scout->ctl, arena, &a, until);
    return status == TARN_OK && knows && is_later(m, master_epoch_of(a));
}

/* true: it leads. */
static bool hear_role(struct whereabouts *m, struct scout *scout) {
    struct arena *arena = &m->scouts->arena;
    struct answer *a;
    if (!scout->asked) return false;
    tarn_status status = ctl_await(&scout->ctl, arena, &a, now_ms() + ANSWER_MS);
    if (status == TARN_ETIMEOUT) {
        if (now_ms() - scout->asked_ms < SILENT_MS) return false;
        ctl_close(&scout->ctl); /* it is stopped, or away */
        scout->next_ms = now_ms() + AWAY_MS;
    }
    scout->asked = false;
    bool leads = status == TARN_OK && master_is_role(a) && has_higher_epoch(m, scout, arena);
    /* Sentinels have a server that they promote hang up on everybody: that is the moment to come
     * back. */
    if (status == TARN_OK && answer_at(a, 0) == NULL) {
        ctl_close(&scout->ctl); /* an error: it lets us know nothing */
        scout->next_ms = now_ms() + AWAY_MS;
    }
    return leads;
}

static bool ask_all(struct whereabouts *m, const tarn_options *o) {
    struct scouts *s = m->scouts;
    bool any = false;
    for (unsigned i = 0; i < s->n; i++) ask_role(m, o, &s->scout[i]);
    for (unsigned i = 0; i < s->n && !any; i++) {
        any = hear_role(m, &s->scout[i]);
        if (any) scout_found(s, &s->scout[i].at);
    }
    /* Half an answer lies in it. */
    bool pending = false;
    for (unsigned i = 0; i < s->n; i++) pending |= s->scout[i].asked;
    if (!pending) arena_reset(&s->arena);
    return any;
}

void scout_wait(struct whereabouts *m, const tarn_options *o, uint64_t until) {
    struct scouts *s = m->scouts;
    struct address at;
    bool may_ask = __atomic_load_n(&m->epoch, __ATOMIC_RELAXED) != 0;
    for (uint64_t now = now_ms(); now < until && !scout_known(s, &at); now = now_ms()) {
        uint64_t next = min_u64(until, may_ask ? now + SCOUT_MS : until);
        if (may_ask && pthread_mutex_trylock(&s->turn) == 0) {
            list_replicas(m, until);
            bool any = ask_all(m, o);
            pthread_mutex_unlock(&s->turn);
            if (any) return;
        }
        now = now_ms();
        if (now < next) poll(NULL, 0, (int)(next - now));
    }
}

void scout_rest(struct scouts *s) {
    if (pthread_mutex_trylock(&s->turn) != 0) return;
    for (unsigned i = 0; i < s->n; i++) ctl_close(&s->scout[i].ctl);
    s->n = 0;
    s->listed_ms = 0;
    arena_reset(&s->arena);
    pthread_mutex_unlock(&s->turn);
}
