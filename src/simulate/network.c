#include "simulate/network.h"

#include <math.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"

/* What sums of times may be wrong by, of a short time and as a share of a long one. */
#define EARLY_S     1e-9
#define EARLY_SHARE 1e-15

enum { LINK_OUT, LINK_IN, LINK_LOCAL, LINKS };

void network_open(struct network *n, const struct network_config *config, struct events *events) {
    *n = (struct network){.config = *config, .events = events, .free = FLOW_NONE};
    n->links = xcalloc((size_t)config->hosts * LINKS, sizeof(*n->links));
    for (size_t i = 0; i < (size_t)config->hosts * LINKS; i++)
        n->links[i].rate = i % LINKS == LINK_LOCAL ? config->local : config->nic;
}

void network_close(struct network *n) {
    for (size_t i = 0; i < (size_t)n->config.hosts * LINKS; i++) free(n->links[i].flows);
    free(n->links);
    free(n->flows);
    *n = (struct network){0};
}

static double flow_rate(const struct network *n, const struct flow *f) {
    double rate = n->links[f->link[0]].rate / (double)n->links[f->link[0]].n;
    if (f->link[1] == FLOW_NONE) return rate;
    double other = n->links[f->link[1]].rate / (double)n->links[f->link[1]].n;
    return other < rate ? other : rate;
}

/* When it is over at its present rate; of those that are told of so far the earliest stays, and is
 * looked at again when it comes too early. */
static void flow_expect(struct network *n, uint32_t flow) {
    struct flow *f = &n->flows[flow];
    double ends = f->since + f->left / f->rate;
    if (ends >= f->expected) return;
    f->expected = ends;
    events_add(n->events, ends, EVENT_FLOW, flow, ++f->generation);
}

static void flow_advance(struct flow *f, double now) {
    f->left -= f->rate * (now - f->since);
    if (f->left < 0) f->left = 0;
    f->since = now;
}

/* Those on a link have new shares from now on. */
static void link_share(struct network *n, double now, uint32_t number) {
    struct link *link = &n->links[number];
    for (size_t i = 0; i < link->n; i++) {
        struct flow *f = &n->flows[link->flows[i]];
        double rate = flow_rate(n, f);
        if (rate == f->rate) continue;
        flow_advance(f, now);
        f->rate = rate;
        flow_expect(n, link->flows[i]);
    }
}

static void link_join(struct network *n, uint32_t number, uint32_t flow, unsigned side) {
    struct link *link = &n->links[number];
    ARRAY_GROW(link->flows, link->n, link->cap);
    n->flows[flow].place[side] = (uint32_t)link->n;
    link->flows[link->n++] = flow;
}

static void link_leave(struct network *n, uint32_t number, uint32_t place) {
    struct link *link = &n->links[number];
    uint32_t last = link->flows[--link->n];
    link->flows[place] = last;
    struct flow *f = &n->flows[last];
    if (place < link->n) f->place[f->link[0] == number ? 0 : 1] = place;
}

static double latency_of(const struct network *n, uint32_t from, uint32_t to) {
    if (from == to) return 0;
    uint32_t rack = n->config.rack_hosts;
    return rack == 0 || from / rack == to / rack ? n->config.rack_s : n->config.far_s;
}

static uint32_t flow_take(struct network *n) {
    uint32_t i = n->free;
    if (i != FLOW_NONE) {
        n->free = n->flows[i].next_free;
        return i;
    }
    ARRAY_GROW(n->flows, n->n, n->cap);
    n->flows[n->n] = (struct flow){0};
    return (uint32_t)n->n++;
}

void network_start(struct network *n, double now, uint32_t from, uint32_t to, double bytes,
                   uint32_t owner) {
    uint32_t i = flow_take(n), generation = n->flows[i].generation;
    bool within = from == to;
    n->flows[i] = (struct flow){
        .left = bytes,
        .since = now,
        .expected = INFINITY,
        .latency = latency_of(n, from, to),
        .link = {from * LINKS + (within ? LINK_LOCAL : LINK_OUT),
                 within ? FLOW_NONE : to * LINKS + LINK_IN},
        .generation = generation,
        .owner = owner,
    };
    *(within ? &n->local : &n->moved) += bytes;
    for (unsigned side = 0; side < 2; side++)
        if (n->flows[i].link[side] != FLOW_NONE) link_join(n, n->flows[i].link[side], i, side);
    for (unsigned side = 0; side < 2; side++)
        if (n->flows[i].link[side] != FLOW_NONE) link_share(n, now, n->flows[i].link[side]);
}

/* Its bytes are no longer on the links. */
static void flow_leave(struct network *n, double now, const struct flow *f) {
    for (unsigned side = 0; side < 2; side++)
        if (f->link[side] != FLOW_NONE) link_leave(n, f->link[side], f->place[side]);
    for (unsigned side = 0; side < 2; side++)
        if (f->link[side] != FLOW_NONE) link_share(n, now, f->link[side]);
}

static void flow_free(struct network *n, uint32_t flow) {
    struct flow *f = &n->flows[flow];
    f->generation++;
    f->next_free = n->free;
    n->free = flow;
}

bool network_ended(struct network *n, double now, uint32_t flow, uint32_t generation,
                   uint32_t *owner_p) {
    struct flow *f = &n->flows[flow];
    if (f->generation != generation) return false;
    if (!f->sent) {
        flow_advance(f, now);
        f->expected = INFINITY;
        if (f->left > f->rate * (EARLY_S + EARLY_SHARE * now)) {
            flow_expect(n, flow);
            return false;
        }
        f->sent = true;
        flow_leave(n, now, f);
        if (f->latency > 0) {
            events_add(n->events, now + f->latency, EVENT_FLOW, flow, ++f->generation);
            return false;
        }
    }
    *owner_p = f->owner;
    flow_free(n, flow);
    return true;
}

double network_share(const struct network *n, uint32_t from, uint32_t to) {
    if (from == to) {
        const struct link *l = &n->links[from * LINKS + LINK_LOCAL];
        return l->rate / (double)(l->n + 1);
    }
    const struct link *out = &n->links[from * LINKS + LINK_OUT],
                      *in = &n->links[to * LINKS + LINK_IN];
    double a = out->rate / (double)(out->n + 1), b = in->rate / (double)(in->n + 1);
    return a < b ? a : b;
}
