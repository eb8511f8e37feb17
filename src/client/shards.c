#include "client/shards.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/errors.h"

#define MAP_ASK_MS   1000u /* for one shard to tell its map */
#define MAP_AGAIN_MS 200u  /* between questions that nobody's refusal has led to */
#define ROUNDS_MAX   16u   /* in which masters refuse keys */
#define ROUND_MS     5u    /* the first pause; it doubles up to */
#define ROUND_MAX_MS 100u

/* --- the map, as a master tells it --- */

struct map_asked {
    struct slot_map *slots; /* NULL: it has none */
};

static tarn_status map_ask_once(struct lane *lane, void *arg, uint64_t deadline) {
    struct map_asked *asked = arg;
    static const char *const argv[] = {"CLUSTER", "MAP"};
    char error[SLOT_MAP_ERROR_SIZE];
    struct answer *a;
    ctl_words(&lane->ctl, "CLUSTER MAP", ARRAY_LEN(argv), argv, NULL);
    tarn_status status = lane_call(lane, &a, deadline);
    /* A server from before this, one that is alone, or a user who may not know. */
    if (status != TARN_OK && lane->ctl.fd >= 0 && error_act(status) == ERROR_FINAL) return TARN_OK;
    if (status != TARN_OK || a->type != ANSWER_STRING || a->len == 0) return status;
    slot_map_destroy(&asked->slots);
    asked->slots = slot_map_read(span_of(a->str, a->len), error);
    if (asked->slots != NULL) return TARN_OK;
    return fail(TARN_EPROTO, "CLUSTER MAP of %s:%s: %s", lane->ctl.host, lane->ctl.port, error);
}

static tarn_status map_ask(struct tarn_client *client, uint64_t deadline,
                           struct slot_map **slots_p) {
    struct map_asked asked = {NULL};
    struct lane *lane;
    tarn_status status = lane_take(client, NULL, deadline, &lane);
    if (status != TARN_OK) return status;
    status = lane_run(lane, deadline, map_ask_once, &asked);
    lane_give(lane);
    if (status == TARN_OK)
        *slots_p = asked.slots;
    else
        slot_map_destroy(&asked.slots);
    return status;
}

/* --- shards --- */

/* The Sentinels of the URL under the shard's name; without any, the servers of its row. */
static void shard_place(const struct tarn_client *front, const struct slot_shard *row,
                        struct tarn_client *client) {
    const struct whereabouts *from = &front->master;
    struct whereabouts *m = &client->master;
    m->options = &client->options;
    m->tls = from->tls;
    if (from->name != NULL) {
        memcpy(m->server, from->server, sizeof(m->server));
        m->n = from->n;
        m->name = xstrdup(row->name);
    } else {
        static_assert(SLOT_HOST_MAX < MASTER_HOST_MAX && SLOT_SERVERS_MAX <= SENTINELS_MAX, "fits");
        for (; m->n < row->servers; m->n++) {
            const struct slot_server *server = &row->server[m->n];
            snprintf(m->server[m->n].host, sizeof(m->server[m->n].host), "%s", server->host);
            snprintf(m->server[m->n].port, sizeof(m->server[m->n].port), "%u", server->port);
        }
    }
    if (m->name != NULL || m->n > 1) m->scouts = scouts_create();
}

/* In any order: who of them leads the client finds out. */
static bool shard_same_servers(const struct slot_shard *a, const struct slot_shard *b) {
    unsigned same = 0;
    for (unsigned i = 0; i < a->servers; i++) {
        for (unsigned k = 0; k < b->servers; k++)
            same += slot_server_same(&a->server[i], &b->server[k]);
    }
    return a->servers == b->servers && same == a->servers;
}

static struct shard *shard_find(const struct tarn_client *front, const struct slot_shard *row) {
    struct shard *shard;
    bool named = front->master.name != NULL; /* then Sentinels know the servers */
    TAILQ_FOREACH(shard, &front->shards->all, link) {
        if (strcmp(shard->row.name, row->name) == 0 &&
            (named || shard_same_servers(&shard->row, row)))
            return shard;
    }
    return NULL;
}

static void shard_sync_registered(struct tarn_client *front, struct tarn_client *client) {
    struct engine_buffer *have = client->registered;
    for (size_t i = client->n_registered; i-- > 0;) {
        size_t k = 0;
        while (k < front->n_registered && front->registered[k].address != have[i].address) k++;
        if (k == front->n_registered) (void)tarn_unregister(client, have[i].address);
    }
    for (size_t k = 0; k < front->n_registered; k++) {
        const struct engine_buffer *r = &front->registered[k];
        tarn_status status =
            r->device ? tarn_register_dmabuf(client, r->address, r->len, r->fd, r->offset)
                      : tarn_register(client, r->address, r->len);
        (void)status; /* TARN_EEXISTS: it is */
    }
}

static struct shard *shard_create(struct tarn_client *front, const struct slot_shard *row) {
    struct shard *shard = xcalloc(1, sizeof(*shard));
    shard->row = *row;
    shard->client = client_create(&front->options, NULL);
    shard->client->front = front;
    shard->client->options.log_figures_s = 0; /* the front does */
    shard_place(front, row, shard->client);
    shard->away = client_prepare(shard->client);
    if (shard->away != TARN_OK) shard->failures = UINT32_MAX; /* for good: what it needs is gone */
    pthread_mutex_lock(&front->mutex);
    shard_sync_registered(front, shard->client);
    pthread_mutex_unlock(&front->mutex);
    TAILQ_INSERT_TAIL(&front->shards->all, shard, link);
    return shard;
}

/* Who closes a view holds the direct lane until he has done with the client. */
static bool shard_is_left(struct shard *shard) {
    struct tarn_client *client = shard->client;
    if (shard->maps > 0 || pthread_mutex_trylock(&client->direct_mutex) != 0) return false;
    bool left = __atomic_load_n(&client->n_views, __ATOMIC_ACQUIRE) == 0 &&
                __atomic_load_n(&client->n_writers, __ATOMIC_ACQUIRE) == 0 &&
                LIST_EMPTY(&client->mappings);
    pthread_mutex_unlock(&client->direct_mutex);
    return left;
}

/* Those that no map knows any more, once nobody looks at what they have mapped. Under mutex. */
static void shards_sweep(struct shards *s) {
    struct shard *shard, *next;
    TAILQ_FOREACH_SAFE(shard, &s->all, link, next) {
        if (!shard_is_left(shard)) continue;
        TAILQ_REMOVE(&s->all, shard, link);
        stats_keep(shard->client, &s->past, &s->past_requests);
        tarn_close(&shard->client);
        free(shard);
    }
}

void shards_sync_registered(struct tarn_client *front) {
    struct shard *shard;
    pthread_mutex_lock(&front->shards->mutex);
    pthread_mutex_lock(&front->mutex);
    TAILQ_FOREACH(shard, &front->shards->all, link) shard_sync_registered(front, shard->client);
    pthread_mutex_unlock(&front->mutex);
    pthread_mutex_unlock(&front->shards->mutex);
}

void shards_each(struct tarn_client *front, void (*fn)(struct tarn_client *client, void *arg),
                 void *arg) {
    struct shards *s = front->shards;
    struct shard *shard, **all;
    size_t n = 0;
    pthread_mutex_lock(&s->mutex);
    TAILQ_FOREACH(shard, &s->all, link) n++;
    all = xmalloc((n + 1) * sizeof(struct shard *));
    n = 0;
    TAILQ_FOREACH(shard, &s->all, link) {
        shard->maps++; /* it stays */
        all[n++] = shard;
    }
    pthread_mutex_unlock(&s->mutex);
    for (size_t i = 0; i < n; i++) fn(all[i]->client, arg);
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < n; i++) all[i]->maps--;
    pthread_mutex_unlock(&s->mutex);
    free(all);
}

/* --- maps --- */

/* Takes slots. */
static struct shard_map *map_build(struct tarn_client *front, struct slot_map *slots) {
    struct shard_map *map = xcalloc(1, sizeof(*map));
    map->users = 1;
    map->slots = slots;
    for (unsigned i = 0; i < slots->shards; i++) {
        struct shard *shard = shard_find(front, &slots->shard[i]);
        if (shard == NULL) shard = shard_create(front, &slots->shard[i]);
        map->shard[i] = shard;
        __atomic_store_n(&shard->client->master.map_epoch, slots->epoch, __ATOMIC_RELAXED);
        shard->maps++;
    }
    return map;
}

static void map_drop(struct shards *s, struct shard_map *map) {
    if (--map->users > 0) return;
    for (unsigned i = 0; i < map->slots->shards; i++) map->shard[i]->maps--;
    slot_map_destroy(&map->slots);
    free(map);
    shards_sweep(s);
}

struct shard_map *shards_take(struct tarn_client *front) {
    struct shards *s = front->shards;
    pthread_mutex_lock(&s->mutex);
    struct shard_map *map = s->map;
    map->users++;
    pthread_mutex_unlock(&s->mutex);
    return map;
}

void shards_give(struct tarn_client *front, struct shard_map **map_p) {
    struct shards *s = front->shards;
    pthread_mutex_lock(&s->mutex);
    map_drop(s, *map_p);
    pthread_mutex_unlock(&s->mutex);
    *map_p = NULL;
}

/* What is told may be older in one thing and newer in another. */
static bool map_learn(struct tarn_client *front, const struct slot_map *told) {
    struct shards *s = front->shards;
    struct slot_map *both = xmalloc(sizeof(*both));
    *both = *s->map->slots;
    bool newer = slot_map_merge(both, told);
    if (!newer) {
        slot_map_destroy(&both);
        return false;
    }
    pthread_mutex_lock(&s->mutex);
    struct shard_map *old = s->map;
    s->map = map_build(front, both);
    map_drop(s, old);
    pthread_mutex_unlock(&s->mutex);
    return true;
}

/* At this shard. *told_p: it has a map. Under fetching. */
static bool map_fetch_at(struct tarn_client *front, struct shard *shard, uint64_t deadline,
                         bool *told_p) {
    struct slot_map *told = NULL;
    (void)map_ask(shard->client, min_u64(deadline, add_sat(now_ms(), MAP_ASK_MS)), &told);
    if (told == NULL) return false;
    *told_p = true;
    bool newer = map_learn(front, told);
    slot_map_destroy(&told);
    return newer;
}

static bool map_fetch(struct tarn_client *front, struct shard_map *map, struct shard *first,
                      uint64_t deadline) {
    struct shards *s = front->shards;
    uint64_t now = now_ms();
    bool told = false, newer = false;
    if (first != NULL) return map_fetch_at(front, first, deadline, &told);
    if (s->fetched_ms != 0 && now - s->fetched_ms < MAP_AGAIN_MS) return false;
    s->fetched_ms = now;
    for (unsigned i = 0; i < map->slots->shards && !told && now_ms() < deadline; i++) {
        if (map->shard[i]->client->master.n > 0 && map->shard[i]->failures == 0)
            newer = map_fetch_at(front, map->shard[i], deadline, &told);
    }
    return newer;
}

bool shards_renew(struct tarn_client *front, struct shard_map **map_p, struct shard *first,
                  uint64_t deadline) {
    struct shards *s = front->shards;
    pthread_mutex_lock(&s->fetching);
    bool newer = s->map != *map_p || map_fetch(front, *map_p, first, deadline);
    pthread_mutex_unlock(&s->fetching);
    if (!newer) return false;
    shards_give(front, map_p);
    *map_p = shards_take(front);
    return true;
}

/* --- shards that are away --- */

tarn_status shard_use(struct tarn_client *front, struct shard *shard, uint64_t bytes,
                      uint64_t *deadline_p) {
    struct shards *s = front->shards;
    uint64_t pause_ms = front->options.failover_ms, now = now_ms();
    tarn_status away = TARN_OK;
    if (shard->client->master.n == 0)
        return fail(TARN_ELOADING, "the slot map has no address of shard %s yet", shard->row.name);
    if (LIKELY(__atomic_load_n(&shard->failures, __ATOMIC_RELAXED) == 0)) return TARN_OK;
    pthread_mutex_lock(&s->mutex);
    if (shard->failures == UINT32_MAX || (shard->failures > 0 && now < shard->away_until_ms)) {
        away = shard->away;
    } else if (shard->failures > 0) {
        shard->away_until_ms = now + pause_ms; /* for the others */
        *deadline_p =
            min_u64(*deadline_p, add_sat(now, add_sat(2 * pause_ms, bytes / BYTES_PER_MS)));
    }
    pthread_mutex_unlock(&s->mutex);
    if (away == TARN_OK) return TARN_OK;
    return fail(away, "shard %s did not answer a moment ago: %s", shard->row.name,
                tarn_status_text(away));
}

void shard_used(struct tarn_client *front, struct shard *shard, tarn_status status,
                uint64_t began_ms) {
    struct shards *s = front->shards;
    uint64_t pause_ms = front->options.failover_ms, now = now_ms();
    bool away = status_is_lost(status);
    if (LIKELY(!away && __atomic_load_n(&shard->failures, __ATOMIC_RELAXED) == 0)) return;
    /* A call that had less time says nothing of the shard. */
    if (status == TARN_ETIMEOUT && now - began_ms < pause_ms) return;
    pthread_mutex_lock(&s->mutex);
    if (shard->failures != UINT32_MAX)
        __atomic_store_n(&shard->failures, away ? min_u64(shard->failures + 1, 16) : 0,
                         __ATOMIC_RELAXED);
    shard->away = status;
    if (away) shard->away_until_ms = now + (pause_ms << min_u64(shard->failures - 1, 3));
    pthread_mutex_unlock(&s->mutex);
}

/* --- rounds --- */

void rounds_begin(struct rounds *r, struct tarn_client *front, uint64_t deadline) {
    *r = (struct rounds){.front = front, .map = shards_take(front), .deadline = deadline};
}

bool rounds_refused(struct rounds *r, struct shard *shard, uint32_t slot, bool asking) {
    const struct slot_map *slots = r->map->slots;
    if (!asking && slots->target[slot] != SLOT_NOBODY) return r->turned = true;
    r->said = shard;
    return false;
}

bool rounds_next(struct rounds *r) {
    bool turned = r->turned && r->said == NULL && !r->later;
    bool newer = turned || shards_renew(r->front, &r->map, r->said, r->deadline);
    bool pause = (r->said != NULL && !newer) || r->later;
    uint64_t ms = pause ? min_u64((uint64_t)ROUND_MS << min_u64(r->made, 8), ROUND_MAX_MS) : 0;
    /* Masters that refuse a key are asked so often; what is only not now, until the time of the
     * call is over; a shard that failed, where a newer map knows better. */
    bool over = (r->made >= ROUNDS_MAX && !r->later) || (!newer && !pause);
    r->made++;
    r->said = NULL;
    r->later = r->turned = false;
    if (over || now_ms() + ms >= r->deadline) return false;
    if (pause) poll(NULL, 0, (int)ms);
    return true;
}

void rounds_end(struct rounds *r) {
    shards_give(r->front, &r->map);
}

/* --- opening and closing --- */

static void shards_open(struct tarn_client *client, struct slot_map *slots) {
    struct shards *s = client->shards = xcalloc(1, sizeof(*s));
    pthread_mutex_init(&s->fetching, NULL);
    pthread_mutex_init(&s->mutex, NULL);
    TAILQ_INIT(&s->all);
    s->map = map_build(client, slots);
    for (size_t i = 0; i < client->n_lanes; i++) lane_destroy(&client->lanes[i]);
    client->n_lanes = 0;
}

/* Sentinels may know several names, "a,b,c": any of these masters will do. */
static tarn_status connect_to_any(struct tarn_client *client) {
    struct whereabouts *m = &client->master;
    if (m->name == NULL || strchr(m->name, ',') == NULL) return client_connect_first(client);
    char *names = m->name, *rest = names, *name;
    tarn_status status = fail(TARN_EINVAL, "the URL names no master");
    while ((name = strsep(&rest, ",")) != NULL && status != TARN_OK) {
        if (*name == '\0') continue;
        scouts_destroy(&m->scouts);
        m->scouts = scouts_create();
        m->name = xstrdup(name);
        status = client_connect_first(client);
        if (status != TARN_OK) free(m->name);
    }
    if (status != TARN_OK)
        m->name = names;
    else
        free(names);
    return status;
}

tarn_status shards_connect(struct tarn_client *client) {
    struct slot_map *slots = NULL;
    bool several = client->master.name != NULL && strchr(client->master.name, ',') != NULL;
    tarn_status status = connect_to_any(client);
    if (status != TARN_OK || client->node != NULL) return status;
    uint64_t deadline = client_deadline(client, client->options.connect_timeout_ms, 0);
    status = map_ask(client, deadline, &slots);
    if (status == TARN_OK && slots != NULL) shards_open(client, slots);
    if (status == TARN_OK && slots == NULL && several)
        return fail(TARN_EINVAL,
                    "the URL names several masters, and \"%s\" tells this user no slot map: it is "
                    "a pool of its own, or the right +cluster|map is missing",
                    client->master.name);
    return status;
}

void shards_close(struct tarn_client *client) {
    struct shards *s = client->shards;
    struct shard *shard;
    if (s == NULL) return;
    if (client->pid == getpid()) crew_stop(&s->crew); /* a forked child has no threads of it */
    while ((shard = TAILQ_FIRST(&s->all)) != NULL) {
        TAILQ_REMOVE(&s->all, shard, link);
        tarn_close(&shard->client);
        free(shard);
    }
    slot_map_destroy(&s->map->slots);
    free(s->map);
    pthread_mutex_destroy(&s->mutex);
    pthread_mutex_destroy(&s->fetching);
    free(s);
    client->shards = NULL;
}
