/* Hosts that could not be reached a moment ago. Reads turn to other replicas first and puts ask for
 * other places, until it is time for one of them to try again; the longer a host stays away, the
 * rarer these tries become. The master finds out on its own, a little later, and then does not send
 * us there any more: this bridges the gap, and covers hosts that only we cannot reach.
 *
 * A host is told by its home, a hash of its node name (or its address): all its segments go
 * together. */
#include <stdio.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/outage.h"

#define SHIFT_MAX 3u /* the longest pause is 8 times the first */

static uint64_t outage_pause_ms(const struct tarn_client *client, unsigned failures) {
    unsigned shift = failures - 1 < SHIFT_MAX ? failures - 1 : SHIFT_MAX;
    return client->options.failover_ms * 5 << shift;
}

static uint64_t outage_home(const struct lane *lane, uint32_t segment) {
    const struct segment_entry *entry = segment_find(lane, segment);
    return entry == NULL ? 0 : entry->home;
}

static struct outage *outage_find(struct outages *o, uint64_t home) {
    for (unsigned i = 0; i < o->n; i++) {
        if (o->list[i].home == home) return &o->list[i];
    }
    return NULL;
}

/* When the list is full, the one whose time was up first is forgotten. */
static struct outage *outage_add(struct outages *o, uint64_t home) {
    struct outage *place = &o->list[0];
    if (o->n < OUTAGES_MAX) {
        place = &o->list[o->n];
        __atomic_store_n(&o->n, o->n + 1, __ATOMIC_RELAXED);
    } else {
        for (unsigned i = 1; i < o->n; i++) {
            if (o->list[i].until_ms < place->until_ms) place = &o->list[i];
        }
    }
    *place = (struct outage){.home = home};
    return place;
}

static void add_name(struct outage *out, const char *name) {
    if (name[0] == '\0' || out->names == OUTAGE_NAMES_MAX) return;
    for (unsigned i = 0; i < out->names; i++) {
        if (strcmp(out->name[i], name) == 0) return;
    }
    snprintf(out->name[out->names++], sizeof(out->name[0]), "%s", name);
}

void outage_note(struct lane *lane, uint32_t segment) {
    struct tarn_client *client = lane->client;
    const struct segment_entry *entry = segment_find(lane, segment);
    if (entry == NULL || entry->home == 0) return;
    pthread_mutex_lock(&client->mutex);
    struct outage *out = outage_find(&client->outages, entry->home);
    if (out == NULL) out = outage_add(&client->outages, entry->home);
    uint64_t now = now_ms();
    /* Several calls may have met the same failure; only one that comes after the pause is a new
     * one. */
    if (now >= out->until_ms || out->failures == 0) out->failures++;
    out->noted_ms = now;
    out->until_ms = max_u64(out->until_ms, now + outage_pause_ms(client, out->failures));
    add_name(out, entry->name);
    __atomic_store_n(&client->outages.changes, client->outages.changes + 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&client->mutex);
}

void outage_over(struct lane *lane, uint32_t segment) {
    struct outages *o = &lane->client->outages;
    if (!outages_any(o)) return;
    uint64_t home = outage_home(lane, segment);
    pthread_mutex_lock(&lane->client->mutex);
    struct outage *out = outage_find(o, home);
    if (out != NULL) {
        *out = o->list[o->n - 1];
        __atomic_store_n(&o->n, o->n - 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lane->client->mutex);
}

static bool outage_look(struct lane *lane, uint32_t segment, bool probe) {
    struct tarn_client *client = lane->client;
    if (!outages_any(&client->outages)) return false;
    const struct segment_entry *entry = segment_find(lane, segment);
    if (entry == NULL || entry->home == 0) return false;
    pthread_mutex_lock(&client->mutex);
    struct outage *out = outage_find(&client->outages, entry->home);
    uint64_t now = now_ms();
    bool is = out != NULL && now < out->until_ms;
    if (is) add_name(out, entry->name);
    /* for the others */
    if (out != NULL && !is && probe) out->until_ms = now + client->options.failover_ms;
    pthread_mutex_unlock(&client->mutex);
    return is;
}

bool outage_listed(struct lane *lane, uint32_t segment) {
    return outage_look(lane, segment, false);
}

bool outage_probe(struct lane *lane, uint32_t segment) {
    return outage_look(lane, segment, true);
}

bool outage_noted(struct lane *lane, uint32_t segment, uint64_t since_ms) {
    struct tarn_client *client = lane->client;
    if (!outages_any(&client->outages)) return false;
    uint64_t home = outage_home(lane, segment);
    pthread_mutex_lock(&client->mutex);
    const struct outage *out = outage_find(&client->outages, home);
    bool is = out != NULL && out->noted_ms >= since_ms;
    pthread_mutex_unlock(&client->mutex);
    return is;
}

size_t outage_names(struct lane *lane, uint64_t since_ms, const char **names, size_t max) {
    struct outages *o = &lane->client->outages;
    if (!outages_any(o)) return 0;
    size_t n = 0;
    uint64_t now = now_ms();
    pthread_mutex_lock(&lane->client->mutex);
    for (unsigned i = 0; i < o->n; i++) {
        const struct outage *out = &o->list[i];
        if (now >= out->until_ms || out->noted_ms < since_ms) continue;
        for (unsigned k = 0; k < out->names && n < max; k++) {
            char *copy = arena_alloc(&lane->arena, sizeof(out->name[k]));
            memcpy(copy, out->name[k], sizeof(out->name[k]));
            names[n++] = copy;
        }
    }
    pthread_mutex_unlock(&lane->client->mutex);
    return n;
}
