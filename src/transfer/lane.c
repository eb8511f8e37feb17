/* Lanes: an engine each, for the batches that run at a time to one peer. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lane.h"
#include "engine/engine.h"
#include "transfer/transfer.h"

#define STALE_MAX 64u /* regions that are no more, of which an engine still holds what it knew */

static tarn_status lane_make_engine(const struct tarn_transfer *t, struct transfer_lane *lane) {
    struct engine_config config;
    engine_config_init(&config);
    config.transport = t->transport;
    config.streams = t->options.streams;
    config.connect_timeout_ms = t->options.connect_timeout_ms;
    config.stop = &lane->stop;
    tarn_status status = engine_create(&config, &lane->engine);
    return status == TARN_OK ? status
                             : fail(status, "an engine cannot start: %s", tarn_status_text(status));
}

/* The same without what the old one knew. */
static void lane_clear(struct transfer_lane *lane) {
    engine_destroy(&lane->engine);
    transfer_map_put(&lane->told);
    free(lane->registered);
    lane->registered = NULL;
    lane->n_registered = lane->stale = 0;
    lane->registered_seen = 0;
}

void transfer_lane_free(struct transfer_lane *lane) {
    LIST_REMOVE(lane, link);
    lane_clear(lane);
    free(lane);
}

tarn_status transfer_lane_get(struct tarn_transfer_peer *p, struct transfer_lane **lane_p) {
    struct transfer_lane *lane;
    tarn_status status = TARN_OK;
    LIST_FOREACH(lane, &p->lanes, link) {
        if (!lane->busy) break;
    }
    if (lane == NULL) {
        lane = xcalloc(1, sizeof(*lane));
        LIST_INSERT_HEAD(&p->lanes, lane, link);
    }
    if (lane->stale > STALE_MAX) lane_clear(lane);
    if (lane->engine == NULL) status = lane_make_engine(p->end, lane);
    if (status != TARN_OK) return status;
    lane->busy = true;
    __atomic_store_n(&lane->stop, false, __ATOMIC_RELAXED);
    *lane_p = lane;
    return TARN_OK;
}

/* --- what it knows of our own memory --- */

struct transfer_known *transfer_lane_news(struct tarn_transfer *t, struct transfer_lane *lane,
                                          size_t *n_p) {
    *n_p = 0;
    if (lane->registered_seen == t->registered_gen) return NULL;
    lane->registered_seen = t->registered_gen;
    struct transfer_known *now = xcalloc(t->n_regions + 1, sizeof(*now));
    struct transfer_region *r;
    LIST_FOREACH(r, &t->regions, link) {
        if (r->closing) continue;
        struct engine_buffer *memory = &now[(*n_p)++].memory;
        *memory = r->memory;
        if (memory->device) memory->fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
    }
    return now;
}

static const struct transfer_known *known_find(const struct transfer_known *list, size_t n,
                                               uint64_t identity) {
    for (size_t i = 0; i < n; i++)
        if (list[i].memory.identity == identity) return &list[i];
    return NULL;
}

/* First away, then new: an address may have come back with other memory behind it. */
void transfer_lane_tell(struct transfer_lane *lane, struct transfer_known *news, size_t n) {
    if (news == NULL) return;
    for (size_t i = 0; i < lane->n_registered; i++) {
        const struct engine_buffer *old = &lane->registered[i].memory;
        if (known_find(news, n, old->identity) == NULL)
            (void)engine_unregister(lane->engine, old->address);
    }
    for (size_t i = 0; i < n; i++) {
        const struct engine_buffer *memory = &news[i].memory;
        const struct transfer_known *old =
            known_find(lane->registered, lane->n_registered, memory->identity);
        if (old != NULL)
            news[i].unusable = old->unusable;
        else if (engine_register(lane->engine, memory) != TARN_OK) /* slower without, not wrong */
            news[i].unusable = memory->device;
        if (memory->device && memory->fd >= 0) close(memory->fd);
    }
    free(lane->registered);
    lane->registered = news;
    lane->n_registered = n;
}

bool transfer_lane_refuses(const struct transfer_lane *lane, const void *address, uint64_t len) {
    for (size_t i = 0; i < lane->n_registered; i++) {
        const struct transfer_known *k = &lane->registered[i];
        if (k->unusable && engine_buffer_meets(&k->memory, address, len)) return true;
    }
    return false;
}

void transfer_lanes_forget(struct tarn_transfer *t, uint64_t identity) {
    struct tarn_transfer_peer *p;
    struct transfer_lane *lane;
    LIST_FOREACH(p, &t->peers, link) {
        LIST_FOREACH(lane, &p->lanes, link) {
            for (size_t i = 0; !lane->busy && i < lane->n_registered; i++) {
                if (lane->registered[i].memory.identity != identity) continue;
                (void)engine_unregister(lane->engine, lane->registered[i].memory.address);
                lane->registered[i] = lane->registered[--lane->n_registered];
            }
        }
    }
}

void transfer_lanes_rest(struct tarn_transfer *t) {
    struct tarn_transfer_peer *p;
    struct transfer_lane *lane;
    LIST_FOREACH(p, &t->peers, link) {
        LIST_FOREACH(lane, &p->lanes, link) {
            if (!lane->busy && lane->engine != NULL) engine_rest(lane->engine);
        }
    }
}

/* --- and of the peer's --- */

bool transfer_lane_map(struct transfer_lane *lane, struct transfer_map *map) {
    struct transfer_map *old = lane->told;
    if (old == map) return false;
    for (size_t i = 0; old != NULL && i < old->n; i++) {
        size_t k = 0;
        while (k < map->n && map->regions[k].id != old->regions[i].id) k++;
        lane->stale += k == map->n;
    }
    transfer_map_put(&lane->told);
    lane->told = map;
    map->refs++;
    return true;
}
