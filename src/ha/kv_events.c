#include "ha/kv_events.h"

#include <sodium.h>
#include <string.h>
#include "base/assert.h"
#include "ha/books.h"
#include "config/config.h"
#include "front/location.h"

/* By enum store_news_kind, and behind these what nodes do. NULL: it is no event, for its replicas
 * say so. */
enum { KIND_NODE = STORE_NEWS_SEGMENT_GONE + 1 };
static const char *const kinds[] = {
    [STORE_NEWS_PUT] = "put",
    [STORE_NEWS_REMOVED] = "removed",
    [STORE_NEWS_EVICTED] = "evicted",
    [STORE_NEWS_EXPIRED] = "expired",
    [STORE_NEWS_LOST] = "lost",
    [STORE_NEWS_REPLICA_ADDED] = "replica-added",
    [STORE_NEWS_REPLICA_GONE] = "replica-gone",
    [STORE_NEWS_FLUSHED] = "flushed",
    [STORE_NEWS_SEGMENT_UP] = "segment-up",
    [STORE_NEWS_SEGMENT_DOWN] = "segment-down",
    [STORE_NEWS_SEGMENT_GONE] = "segment-gone",
    [KIND_NODE] = "node-up",
    [KIND_NODE + 1] = "node-down",
    [KIND_NODE + 2] = "node-left",
};

static struct {
    struct event_ring *ring; /* NULL: off, or the books follow */
    bool leading;
    char epoch[KV_EPOCH_LEN + 1];
    LIST_HEAD(, kv_sleeper) asleep;
    size_t sleepers;
    uint64_t dropped; /* events that the ring had no room for any more */
} kv;

/* --- epochs --- */

static void wake_all(void) {
    struct kv_sleeper *s;
    while ((s = LIST_FIRST(&kv.asleep)) != NULL) {
        kv_events_unlist(s);
        job_wake(s->job);
    }
}

static void open_ring(void) {
    unsigned char random[KV_EPOCH_LEN / 2];
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(kv.epoch, sizeof(kv.epoch), random, sizeof(random));
    kv.ring = event_ring_create(config->kv_events_size);
}

static void close_ring(void) {
    event_ring_destroy(&kv.ring);
    wake_all(); /* to hear that it is over */
}

void kv_events_begin(void) {
    kv.leading = true;
    close_ring();
    if (config->kv_events_size > 0) open_ring();
}

void kv_events_end(void) {
    kv.leading = false;
    close_ring();
}

void kv_events_apply(void) {
    uint64_t size = config->kv_events_size;
    if (!kv.leading) return;
    if (size == 0) {
        close_ring();
    } else if (kv.ring) {
        uint64_t first = event_ring_first(kv.ring);
        event_ring_resize(kv.ring, size);
        kv.dropped += event_ring_first(kv.ring) - first;
    } else {
        open_ring();
    }
    books_relisten();
}

bool kv_events_listens(void) {
    return kv.ring != NULL;
}

const struct event_ring *kv_events_ring(void) {
    return kv.ring;
}

const char *kv_events_epoch(void) {
    return kv.epoch;
}

/* --- those who wait --- */

void kv_events_sleep(struct kv_sleeper *s) {
    TARN_ASSERT(!LIST_LINKED(s, link));
    LIST_INSERT_HEAD(&kv.asleep, s, link);
    kv.sleepers++;
}

void kv_events_unlist(struct kv_sleeper *s) {
    kv.sleepers -= LIST_LINKED(s, link);
    LIST_UNLINK(s, link);
}

size_t kv_events_sleepers(void) {
    return kv.sleepers;
}

/* --- writing --- */

/* An event as it lies in the ring; behind it the key, then the places: tier, lengths of the names,
 * epoch, names. */
struct head {
    uint64_t wall_ms, size;
    uint16_t key_len;
    uint8_t kind, places;
};

struct writer {
    struct head head;
    size_t len;
    char data[sizeof(struct head) + STORE_KEY_MAX + STORE_REPLICAS_MAX * (7 + 2 * 64)];
};
static_assert(sizeof(((struct writer *)0)->data) <= EVENT_RING_EVENT, "the largest event fits");

static const char *const tiers[] = {"memory", "ssd", "file", KV_TIER_BOOKS,
                                    ""}; /* the first: enum store_tier */
enum { TIER_BOOKS = STORE_TIER_FILE + 1, TIER_NONE };

static void event_put(struct writer *w, const void *data, size_t len) {
    TARN_ASSERT(w->len + len <= sizeof(w->data));
    if (len > 0) memcpy(w->data + w->len, data, len);
    w->len += len;
}

static void event_begin(struct writer *w, unsigned kind, struct span key, uint64_t size) {
    w->head = (struct head){
        .wall_ms = turn.wall_ms, .size = size, .key_len = (uint16_t)key.len, .kind = (uint8_t)kind};
    w->len = sizeof(w->head);
    event_put(w, key.data, key.len);
}

static void put_place(struct writer *w, uint8_t tier, struct span node, struct span segment,
                      uint32_t epoch) {
    uint8_t lengths[3] = {tier, (uint8_t)node.len, (uint8_t)segment.len};
    event_put(w, lengths, sizeof(lengths));
    event_put(w, &epoch, sizeof(epoch));
    event_put(w, node.data, node.len);
    event_put(w, segment.data, segment.len);
    w->head.places++;
}

static bool find_place(uint32_t segment, enum store_tier *tier_p, struct kv_place *p, bool *up_p) {
    struct cluster_segment at = {.node = ""};
    const char *name;
    uint32_t epoch;
    if (!store_segment_label(books, segment, &name, tier_p, &epoch, up_p)) return false;
    (void)cluster_segment_get(segment, &at); /* false: the segment's end is on its way */
    *p = (struct kv_place){tiers[*tier_p], span_str(at.node), span_str(name), epoch};
    return true;
}

bool kv_place_of(uint32_t segment, struct kv_place *place_p, bool *up_p) {
    enum store_tier tier;
    return find_place(segment, &tier, place_p, up_p);
}

static void put_segment(struct writer *w, uint32_t segment) {
    enum store_tier tier;
    struct kv_place p;
    bool up;
    if (find_place(segment, &tier, &p, &up))
        put_place(w, (uint8_t)tier, p.node, p.segment, p.epoch);
}

static void put_replicas(struct writer *w, const struct object *o) {
    struct store_layout layout;
    struct span value;
    if (store_object_inline(o, &value)) {
        put_place(w, TIER_BOOKS, SPAN(""), SPAN(""), 0);
        return;
    }
    store_object_replicas(books, o, &layout);
    for (uint32_t i = 0; i < layout.replicas; i++)
        put_segment(w, layout.replica[i].extent[0].segment);
}

static void event_add(struct writer *w) {
    uint64_t first = event_ring_first(kv.ring);
    memcpy(w->data, &w->head, sizeof(w->head));
    event_ring_add(kv.ring, w->data, w->len);
    kv.dropped += event_ring_first(kv.ring) - first;
    wake_all();
}

void kv_events_news(const struct store_news *n) {
    struct writer w;
    if (!kv.ring || !kinds[n->kind]) return;
    const struct object *o = n->object;
    event_begin(&w, n->kind, o ? store_object_key(o) : SPAN(""),
                o ? store_object_size(books, o) : 0);
    if (n->kind == STORE_NEWS_PUT) put_replicas(&w, o);
    if (n->segment != STORE_SEGMENT_ANY) put_segment(&w, n->segment);
    event_add(&w);
}

void kv_events_node(const char *event, const char *name) {
    struct writer w;
    unsigned kind = KIND_NODE;
    if (!kv.ring) return;
    while (kind < ARRAY_LEN(kinds) && strcmp(kinds[kind], event) != 0) kind++;
    TARN_ASSERT(kind < ARRAY_LEN(kinds));
    event_begin(&w, kind, SPAN(""), 0);
    put_place(&w, TIER_NONE, span_str(name), SPAN(""), 0);
    event_add(&w);
}

/* --- reading --- */

void kv_event_read(struct span bytes, struct kv_event *e) {
    struct head head;
    memcpy(&head, bytes.data, sizeof(head));
    const char *key = bytes.data + sizeof(head);
    *e = (struct kv_event){
        .kind = kinds[head.kind],
        .wall_ms = head.wall_ms,
        .size = head.size,
        .key = span_of(key, head.key_len),
        .places = head.places,
        .rest = span_of(key + head.key_len, bytes.len - sizeof(head) - head.key_len)};
}

void kv_event_place(struct kv_event *e, struct kv_place *p) {
    const unsigned char *lengths = (const unsigned char *)e->rest.data;
    const char *names = e->rest.data + 3 + sizeof(p->epoch);
    size_t size = 3 + sizeof(p->epoch) + lengths[1] + lengths[2];
    TARN_ASSERT(size <= e->rest.len);
    memcpy(&p->epoch, e->rest.data + 3, sizeof(p->epoch));
    p->tier = tiers[lengths[0]];
    p->node = span_of(names, lengths[1]);
    p->segment = span_of(names + lengths[1], lengths[2]);
    e->rest = span_of(e->rest.data + size, e->rest.len - size);
}

/* --- figures --- */

void info_kv_events(struct figure_walk *f) {
    const struct event_ring *r = kv.ring;
    FIGURE(f, TEXT, kv_events, "on, off", r ? "on" : "off");
    FIGURE(f, TEXT, kv_events_epoch, "another one: numbers begin anew", r ? kv.epoch : "");
    FIGURE(f, GAUGE, kv_events_first, "number of the oldest event kept",
           r ? event_ring_first(r) : 0);
    FIGURE(f, GAUGE, kv_events_last, "number of the newest", r ? event_ring_last(r) : 0);
    FIGURE(f, BYTES, kv_events_bytes, "of all that are kept", r ? event_ring_bytes(r) : 0);
    FIGURE(f, COUNTER, kv_events_dropped, "for which there was no room any more", kv.dropped);
    FIGURE(f, GAUGE, kv_events_waiting, "clients that wait for the next", kv.sleepers);
}
