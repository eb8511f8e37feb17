/* Puts: from PUTSTART to PUTEND, and what becomes of those that never get there.
 *
 * A put that is over without PUTEND (time-out, superseded by SET, flushed) no longer holds its key,
 * but its writer may still be writing: no clock stops a late one-sided write. Its space becomes a
 * zombie until the writer says that nothing is in flight (PUTEND or PUTREVOKE with its old token),
 * or its host confirms that the session was cut off. */
#include <stdlib.h>
#include <string.h>
#include "store/batch.h"
#include "store/books.h"

#define PUT_LATE_MS 1000u /* a thread that has asked and is just receiving */
#define KEY_ROOM    128u  /* of puts whose memory is used again: most keys are no longer */
#ifdef __SANITIZE_ADDRESS__
#define PUTS_SPARE 0u /* it is to see who uses one that is gone */
#else
#define PUTS_SPARE 512u
#endif

/* --- sessions --- */

static bool session_has_id(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct session, node)->id == *(const uint64_t *)key;
}

struct session *session_find(const struct store *s, uint64_t id) {
    struct htab_node *n = htab_find(&s->sessions, hash_u64(id), session_has_id, &id);
    return n ? CONTAINER_OF(n, struct session, node) : NULL;
}

static bool session_is_empty(const struct session *ss) {
    return ss->leases == 0 && ss->puts == 0 && !ss->fencing;
}

static void session_free(struct store *s, struct session *ss) {
    htab_remove(&s->sessions, &ss->node);
    free(ss);
}

/* An empty one is made anew when it is needed, but the latest stays meanwhile: who has given his
 * only lease back takes the next one. */
static struct session *session_latest(struct store *s, struct session *ss) {
    struct session *before = s->session;
    s->session = ss;
    if (before != NULL && before != ss && session_is_empty(before)) session_free(s, before);
    return ss;
}

struct session *session_get(struct store *s, uint64_t id) {
    if (s->session != NULL && s->session->id == id) return s->session;
    struct session *ss = session_find(s, id);
    if (!ss) {
        ss = xcalloc(1, sizeof(*ss));
        ss->id = id;
        htab_insert(&s->sessions, &ss->node, hash_u64(id));
    }
    return session_latest(s, ss);
}

void session_trim(struct store *s, struct session *ss) {
    if (!session_is_empty(ss)) return;
    if (!ss->closed && !ss->fenced) {
        session_latest(s, ss);
        return;
    }
    if (s->session == ss) s->session = NULL;
    session_free(s, ss);
}

static void ask_fence(struct store *s, struct session *ss) {
    if (ss->fencing || !s->events.fence) return;
    ss->fencing = true;
    s->stat.fences++;
    s->events.fence(s->events.arg, ss->id);
}

/* --- life of a put --- */

static bool put_has_key(const struct htab_node *node, const void *key) {
    const struct store_put *p = CONTAINER_OF(node, struct store_put, node);
    return span_eq(span_of(p->key, p->key_len), *(const struct span *)key);
}

static bool put_has_token(const struct htab_node *node, const void *key) {
    return CONTAINER_OF(node, struct store_put, node)->token == *(const uint64_t *)key;
}

struct store_put *put_by_key(const struct store *s, struct span key, uint64_t hash) {
    if (s->puts.count == 0) return NULL;
    struct htab_node *n = htab_find(&s->puts, hash, put_has_key, &key);
    return n ? CONTAINER_OF(n, struct store_put, node) : NULL;
}

void put_key_taken(const struct store *s, struct span key, uint64_t hash) {
    struct store_put *p = put_by_key(s, key, hash);
    if (p) p->vacant = false;
}

static struct store_put *zombie_by_token(const struct store *s, uint64_t token) {
    if (s->zombies.count == 0) return NULL;
    struct htab_node *n = htab_find(&s->zombies, hash_u64(token), put_has_token, &token);
    return n ? CONTAINER_OF(n, struct store_put, node) : NULL;
}

static size_t put_size(size_t key_len) {
    return sizeof(struct store_put) + max_u64(key_len, KEY_ROOM);
}

static struct store_put *put_take(struct store *s, size_t key_len) {
    struct store_put *p = key_len <= KEY_ROOM ? LIST_TAKE(&s->spare_puts, link) : NULL;
    if (p) {
        s->n_spare_puts--;
        return p;
    }
    s->put_bytes += put_size(key_len);
    return xmalloc(put_size(key_len));
}

static void put_give_back(struct store *s, struct store_put *p) {
    if (p->key_len <= KEY_ROOM && s->n_spare_puts + 1 <= PUTS_SPARE) {
        LIST_INSERT_HEAD(&s->spare_puts, p, link);
        s->n_spare_puts++;
        return;
    }
    s->put_bytes -= put_size(p->key_len);
    free(p);
}

static struct store_put *put_new(struct store *s, struct span key, uint64_t hash,
                                 struct session *ss) {
    struct store_put *p = put_take(s, key.len);
    memset(p, 0, offsetof(struct store_put, want.blocks));
    p->key_len = (uint32_t)key.len;
    memcpy(p->key, key.data, key.len);
    p->token = s->next_version++;
    p->session = ss;
    LIST_INSERT_HEAD(&ss->list, p, link);
    ss->puts++;
    htab_insert(&s->puts, &p->node, hash);
    return p;
}

static uint64_t put_units(const struct store *s, const struct store_put *p) {
    uint64_t units = 0;
    for (uint32_t k = 0; k < p->n_spots; k++)
        units += blocks_units(s, p->spots[k].blocks, p->spots[k].n_blocks);
    return units;
}

static void spot_free(struct store *s, struct spot *spot) {
    for (uint32_t i = 0; i < spot->n_blocks; i++) space_release(&s->space, spot->blocks[i]);
    s->room_changes += spot->n_blocks;
    spot->n_blocks = 0;
}

static void put_unreserve(struct store *s, struct store_put *p) {
    if (p->reserved) hard_take(s, p->wishes.pin_ms, &p->hard);
    p->reserved = false;
}

/* Can its writer write no more to that spot? All extents are asked for: what is closed now is
 * closed. */
static bool spot_quiet(const struct store *s, const struct store_put *p, const struct spot *spot) {
    if (!p->once || p->state != PUT_OPEN) return true;
    if (!s->events.put_close) return false;
    struct store_replica r;
    bool quiet = true;
    places_fill_spot(s, spot, p->size, &r);
    for (uint32_t i = 0; i < r.extents; i++)
        quiet &= s->events.put_close(s->events.arg, p, &r.extent[i]);
    return quiet;
}

/* The put does without it. Hosts' clocks do not lag behind ours: past the deadline they take
 * nothing more. */
static void spot_drop(struct store *s, struct store_put *p, struct spot *spot) {
    if (spot->n_blocks > 0 && !spot_quiet(s, p, spot)) {
        space_hold_written(s, spot->blocks, spot->n_blocks, p->deadline_ms + PUT_LATE_MS);
        spot->n_blocks = 0;
    }
    spot_free(s, spot);
}

/* Out of every table; blocks that are still its own become free. */
static void put_free(struct store *s, struct store_put *p) {
    if (p->state == PUT_ZOMBIE) {
        htab_remove(&s->zombies, &p->node);
        s->zombie_units -= put_units(s, p);
    } else if (p->state != PUT_DEAD) {
        htab_remove(&s->puts, &p->node);
    }
    put_unreserve(s, p);
    room_abandon(s, &p->want);
    for (uint32_t i = 0; i < p->n_spots; i++) spot_free(s, &p->spots[i]);
    wheel_remove(s->wheel[WHEEL_PUT], &p->wheel);
    if (p->wishes.group) group_unref(s, p->wishes.group);
    if (p->batch) put_batch_leave(s, p);
    struct session *ss = p->session;
    LIST_REMOVE(p, link);
    ss->puts--;
    put_give_back(s, p);
    session_trim(s, ss);
}

/* The same for one that has been given out. */
static void put_drop(struct store *s, struct store_put *p) {
    for (uint32_t i = 0; i < p->n_spots; i++) spot_drop(s, p, &p->spots[i]);
    put_free(s, p);
}

/* The key is free again; the space is not. */
static void put_end_without(struct store *s, struct store_put *p) {
    if (p->once && p->state == PUT_OPEN) {
        put_drop(s, p);
        return;
    }
    htab_remove(&s->puts, &p->node);
    wheel_remove(s->wheel[WHEEL_PUT], &p->wheel);
    if (p->state == PUT_ROOM) {
        p->state = PUT_DEAD;
        return;
    }
    p->state = PUT_ZOMBIE;
    htab_insert(&s->zombies, &p->node, hash_u64(p->token));
    s->zombie_units += put_units(s, p);
    /* This process knows itself when its own write is over; nobody writes to a put without space or
     * of a fenced session. */
    if (p->local) return;
    if (p->n_spots == 0 || p->session->fenced) {
        put_free(s, p);
    } else if (p->session->closed) {
        ask_fence(s, p->session);
    } else {
        wheel_set(s->wheel[WHEEL_PUT], &p->wheel, s->now_ms + s->config.put_release_timeout_ms);
    }
}

void put_over(struct store *s, struct wheel_node *node) {
    struct store_put *p = CONTAINER_OF(node, struct store_put, wheel);
    if (p->state == PUT_ZOMBIE) {
        ask_fence(s, p->session);
        return;
    }
    s->stat.put_timeouts++;
    put_end_without(s, p);
}

void store_session_closed(struct store *s, uint64_t session) {
    struct session *ss = session_find(s, session);
    if (!ss) return;
    ss->closed = true;
    const struct store_put *p;
    LIST_FOREACH(p, &ss->list, link) {
        if (p->state == PUT_ZOMBIE && !p->local) return ask_fence(s, ss);
    }
    session_trim(s, ss);
}

void store_session_fenced(struct store *s, uint64_t session) {
    struct session *ss = session_find(s, session);
    if (!ss) return;
    ss->fenced = true;
    ss->fencing = true; /* keeps it while its puts go */
    struct store_put *p, *next;
    LIST_FOREACH_SAFE(p, &ss->list, link, next) {
        if (p->state == PUT_ZOMBIE && !p->local) put_free(s, p);
    }
    ss->fencing = false;
    session_trim(s, ss);
}

uint64_t store_session_leases(const struct store *s, uint64_t session) {
    const struct session *ss = session_find(s, session);
    return ss ? ss->leases : 0;
}

uint64_t store_session_grants_ms(const struct store *s, uint64_t session) {
    const struct session *ss = session_find(s, session);
    uint64_t until_ms = s->now_ms;
    const struct store_put *p = ss ? LIST_FIRST(&ss->list) : NULL;
    for (; p; p = LIST_NEXT(p, link)) until_ms = max_u64(until_ms, p->deadline_ms);
    return until_ms - s->now_ms;
}

static void free_put(void *arg, struct htab_node *node) {
    put_free(arg, CONTAINER_OF(node, struct store_put, node));
}

static void free_session(void *arg, struct htab_node *node) {
    free(CONTAINER_OF(node, struct session, node));
}

/* The end of the books; leases are gone already. */
void put_free_all(struct store *s) {
    htab_each(&s->puts, free_put, s);
    htab_each(&s->zombies, free_put, s);
    for (struct store_put *p; (p = LIST_TAKE(&s->spare_puts, link)); s->n_spare_puts--) {
        s->put_bytes -= put_size(0);
        free(p);
    }
    /* What is left waits for its fence. The table is only freed after this, never looked at. */
    s->session = NULL;
    htab_each(&s->sessions, free_session, s);
}

void put_end_all(struct store *s) {
    put_free_all(s);
    htab_free(&s->sessions);
}

/* --- PUTSTART --- */

/* A flush is also the end of what was being written. */
static bool put_flushed(const struct store *s, const struct store_put *p) {
    return p->token <= s->flush_version;
}

static tarn_status check_options(const struct store *s, struct span key, uint64_t size,
                                 const struct store_put_options *o) {
    if (key.len == 0 || key.len > STORE_KEY_MAX || size > STORE_SIZE_MAX) return TARN_EINVAL;
    if (o->replicas < 1 || o->replicas > STORE_REPLICAS_MAX || o->group.len > STORE_KEY_MAX)
        return TARN_EINVAL;
    struct store_segment_info info;
    if (o->prefers > WANT_NAMES_MAX || o->avoids > WANT_NAMES_MAX) return TARN_EINVAL;
    for (size_t i = 0; i < o->prefers; i++)
        if (!store_segment_by_name(s, o->prefer[i], &info)) return TARN_ENOSEGMENT;
    return TARN_OK;
}

/* A mover's whose connection is closed. It may come back, and end it; but nobody waits for that. */
static bool put_left_behind(const struct store_put *p) {
    return p->moves && p->session->closed;
}

/* Whether the key is free for a new put; other puts that must give way have done so. */
static tarn_status claim_key(struct store *s, struct span key, uint64_t hash,
                             const struct store_put_options *o) {
    struct store_put *p = put_by_key(s, key, hash);
    if (!p) return TARN_OK;
    bool gives_way =
        o->supersede || (o->instead != 0 && p->token == o->instead) || put_left_behind(p);
    if (!gives_way && !put_flushed(s, p)) {
        s->stat.put_busy++;
        return TARN_EBUSY;
    }
    s->stat.put_superseded++;
    put_end_without(s, p);
    return TARN_OK;
}

static void put_opened(struct store *s, struct store_put *p) {
    p->state = PUT_OPEN;
    if (p->missing) s->stat.put_short++;
    uint64_t rate = s->config.put_timeout_rate ? s->config.put_timeout_rate : 1;
    p->deadline_ms = s->now_ms + s->config.put_timeout_ms + p->size * 1000 / rate;
    if (!p->local) wheel_set(s->wheel[WHEEL_PUT], &p->wheel, p->deadline_ms);
}

/* The room that was found is one replica's; the next one goes to another host. */
static void settle_spot(struct store *s, struct store_put *p) {
    struct spot *spot = &p->spots[p->n_spots++];
    struct room_want *w = &p->want;
    spot->n_blocks = w->n_blocks;
    memcpy(spot->blocks, w->blocks, w->n_blocks * sizeof(w->blocks[0]));
    w->n_blocks = 0;
    w->taken[w->n_taken++] = s->space.segments[replica_segment(s, spot->blocks[0])]->host;
}

static tarn_status make_spots(struct store *s, struct store_put *p, unsigned *budget) {
    if (p->n_spots == 0 && !p->want.plan) {
        unsigned domain = quota_domain(s, span_of(p->key, p->key_len));
        tarn_status st = room_limits(s, domain, p->size * p->replicas, 0, budget);
        if (st != TARN_OK) return st;
    }
    while (!p->in_line && p->n_spots + p->missing < p->replicas) {
        tarn_status st = room_make(s, &p->want, budget);
        if (st == TARN_OK)
            settle_spot(s, p);
        else if ((st == TARN_ENOSPACE || st == TARN_ELATER) && p->n_spots > 0)
            p->missing = p->replicas - p->n_spots;
        else
            return st;
    }
    return TARN_OK;
}

/* There is no room, but there would be without what waits for its copy on a disk. TARN_OK: to be
 * tried again. */
static tarn_status room_from_waiting(struct store *s, const struct store_put *p, tarn_status status,
                                     unsigned *budget) {
    if (status == TARN_ENOSPACE || (status == TARN_ELATER && !ghosts_hold(s))) {
        tarn_status st = await_room(s, p, budget);
        return st == TARN_ENOSPACE ? status : st;
    }
    return status == TARN_EQUOTA ? await_quota(s, p, budget) : status;
}

/* What this call spent on eviction; at the end, what all of them did. */
static void put_count_evicting(struct store *s, struct store_put *p, bool over) {
    if (s->evict_began_ns != 0)
        p->evict_ns += s->events.clock_ns(s->events.arg) - s->evict_began_ns;
    s->evict_began_ns = 0;
    if (over && p->evict_ns > 0) hist_add(&s->story.evicting, p->evict_ns);
}

static tarn_status put_room(struct store *s, struct store_put *p, unsigned *budget) {
    tarn_status st;
    s->evict_began_ns = 0;
    do {
        st = make_spots(s, p, budget);
        if (st != TARN_OK) continue;
        put_count_evicting(s, p, true);
        put_opened(s, p);
        return TARN_OK;
    } while (s->awaiting > 0 && (st = room_from_waiting(s, p, st, budget)) == TARN_OK);
    put_count_evicting(s, p, st != TARN_EAGAIN);
    if (st == TARN_EAGAIN) {
        s->stat.room_slices++;
        return st;
    }
    if (st == TARN_ENOSPACE) s->stat.put_nospace++;
    if (st == TARN_ELATER) s->stat.put_later++;
    put_free(s, p);
    return st;
}

static struct put_wishes wishes_of(struct store *s, const struct store_put_options *o) {
    return (struct put_wishes){o->expire_wall_ms, o->pin_ms, o->pin,
                               o->group.len ? group_get(s, o->group, o->boundary) : NULL};
}

static unsigned resolve_names(const struct store *s, const struct span *names, size_t n,
                              uint32_t *ids) {
    unsigned found = 0;
    struct store_segment_info info;
    for (size_t i = 0; i < n; i++)
        if (store_segment_by_name(s, names[i], &info)) ids[found++] = info.id;
    return found;
}

static void want_init(const struct store *s, struct room_want *w, uint64_t units,
                      const struct store_put_options *options) {
    w->units = units;
    w->only = w->never = STORE_SEGMENT_ANY;
    w->host = options->host;
    w->n_prefer = resolve_names(s, options->prefer, options->prefers, w->prefer);
    w->n_avoid = resolve_names(s, options->avoid, options->avoids, w->avoid);
}

tarn_status store_put_start(struct store *s, struct store_batch *b, struct span key, uint64_t size,
                            const struct store_put_options *options, uint64_t session,
                            unsigned *budget, struct store_put **put_p) {
    tarn_status st = check_options(s, key, size, options);
    if (st != TARN_OK) return st;
    evict_soon(s);
    uint64_t hash = options->hash ? options->hash : store_hash(key);
    s->stat.put_starts++;
    if (*budget > 0) --*budget;
    b->bytes += size;
    batch_number(s, b, hash);
    struct object *old = index_find(&s->index, key, hash), *o = book_seen(s, old);
    if (o && !options->replace) {
        s->stat.put_exists++;
        store_batch_hit(s, b, o, hash);
        return TARN_EEXISTS;
    }
    struct policy_event event = batch_event(s, b, hash);
    b->open = false;
    batch_step(s, b, &event);
    if ((st = claim_key(s, key, hash, options)) != TARN_OK) return st;
    struct session *ss = session_get(s, session);
    if (ss->puts >= s->config.max_puts_per_session) {
        session_trim(s, ss);
        return TARN_ELIMIT;
    }
    struct hard_sum hard = {.pool = size <= STORE_INLINE_MAX ? 0 : size * options->replicas,
                            .books = key.len};
    if (options->pin == STORE_PIN_HARD && !hard_allowed(s, options->pin_ms, &hard)) {
        s->stat.hard_pins_refused++;
        session_trim(s, ss);
        return TARN_EQUOTA;
    }
    struct store_put *p = put_new(s, key, hash, ss);
    if (options->pin == STORE_PIN_HARD) {
        p->hard = hard;
        p->reserved = true;
        hard_add(s, options->pin_ms, &hard);
    }
    p->size = size;
    p->in_line = size <= STORE_INLINE_MAX;
    p->replicas = p->in_line ? 0 : options->replicas;
    if (!p->in_line) want_init(s, &p->want, space_units(size), options);
    p->event = event;
    p->vacant = !old;
    p->replace = options->replace;
    p->local = options->local;
    p->moves = options->moves;
    p->once = options->once;
    p->wishes = wishes_of(s, options);
    st = put_room(s, p, budget);
    if (st == TARN_OK || st == TARN_EAGAIN) *put_p = p;
    if (st == TARN_ELATER || st == TARN_ENOSPACE) batch_later(b, hash, &event);
    return st;
}

#define LATER_MIN_MS 10u /* nobody is to come again at once */

uint64_t store_later_ms(const struct store *s) {
    if (!ghosts_hold(s)) return max_u64(s->later_ms, LATER_MIN_MS);
    uint64_t limit = s->ghost_until_ms > s->now_ms ? s->ghost_until_ms - s->now_ms : LATER_MIN_MS;
    return max_u64(wheel_next_ms(s->wheel[WHEEL_GHOST], s->now_ms, limit), LATER_MIN_MS);
}

const char *store_later_why(const struct store *s) {
    if (ghosts_hold(s)) return "what was there before the restart or failover may still be read";
    return s->later_for_disk ? "what is there has to be copied to a disk before it may be evicted"
                             : "grants to read or write what is there are not over yet";
}

tarn_status store_put_continue(struct store *s, struct store_put *p, unsigned *budget) {
    if (p->state == PUT_DEAD) {
        put_free(s, p);
        return TARN_EBUSY;
    }
    TARN_ASSERT(p->state == PUT_ROOM);
    return put_room(s, p, budget);
}

void store_put_abandon(struct store *s, struct store_put **put_p) {
    TARN_ASSERT((*put_p)->state == PUT_ROOM || (*put_p)->state == PUT_DEAD);
    put_free(s, *put_p);
    *put_p = NULL;
}

uint64_t store_put_token(const struct store_put *p) {
    return p->token;
}

uint64_t store_put_deadline_ms(const struct store_put *p) {
    return p->deadline_ms;
}

uint64_t store_put_session(const struct store_put *p) {
    return p->session->id;
}

struct span store_put_key(const struct store_put *p) {
    return span_of(p->key, p->key_len);
}

bool store_put_once(const struct store_put *p) {
    return p->once;
}

bool put_ends(const struct store *s, const struct store_put *p) {
    return p->state == PUT_OPEN && !put_flushed(s, p);
}

struct store_put *store_put_find(const struct store *s, struct span key, uint64_t hash,
                                 uint64_t token) {
    struct store_put *p = put_by_key(s, key, hash);
    return p && p->token == token && put_ends(s, p) ? p : NULL;
}

bool store_put_under_way(const struct store *s, struct span key, bool *moves_p) {
    const struct store_put *p = put_by_key(s, key, store_hash(key));
    *moves_p = p && p->moves && !put_left_behind(p);
    return p && !put_flushed(s, p);
}

void store_put_sealed(struct store_put *p) {
    p->once = false;
}

uint32_t store_put_missing(const struct store_put *p) {
    return p->missing;
}

bool store_put_is_inline(const struct store_put *p) {
    return p->in_line;
}

void store_put_layout(const struct store *s, const struct store_put *p,
                      struct store_layout *layout_p) {
    layout_p->replicas = p->in_line ? 1 : p->n_spots;
    layout_p->replica[0].tier = STORE_TIER_MEMORY;
    layout_p->replica[0].extents = 0;
    for (uint32_t i = 0; i < p->n_spots; i++)
        places_fill_spot(s, &p->spots[i], p->size, &layout_p->replica[i]);
}

/* --- PUTEND --- */

struct object *record_new(struct store *s, struct span key, const struct span *value,
                          uint64_t version, const struct policy_event *e) {
    struct object *o = record_alloc(&s->records, sizeof(*o) + key.len + (value ? value->len : 0));
    if (!o) return NULL;
    *o = (struct object){
        .bits = (uint32_t)key.len, .version_depth = version << 16, .request = e->request};
    object_set_depth(o, e->depth);
    memcpy(o->data, key.data, key.len);
    if (value) {
        o->bits |= OBJECT_INLINE;
        object_set_slack(o, (uint32_t)value->len);
        if (value->len) memcpy(o->data + key.len, value->data, value->len);
    }
    return o;
}

/* Whatever stands under the key goes; also what look-ups no longer see. true: it was to be seen. */
static bool make_way(struct store *s, struct span key, uint64_t hash) {
    struct object *old = index_find(&s->index, key, hash);
    if (!old) return false;
    bool expired = (old->bits & OBJECT_EXTRA) && extra_expired(s, old),
         stale = s->stale && book_stale(s, old);
    s->stat.replaced++;
    store_far_supersede(s, key, object_version(old));
    book_remove(s, old, expired ? STORE_NEWS_EXPIRED : STORE_NEWS_NONE);
    return !expired && !stale;
}

bool crcs_fit(uint64_t size, size_t n_crcs) {
    return n_crcs == 0 ||
           (size > STORE_CRC_BLOCK && n_crcs == (size + STORE_CRC_BLOCK - 1) / STORE_CRC_BLOCK);
}

void object_set_crcs(struct store *s, struct object *o, const uint32_t *crcs, size_t n_crcs) {
    if (n_crcs == 0) return;
    struct extra *x = extra_get(s, o);
    x->crcs = xmemdup(crcs, n_crcs * sizeof(*crcs));
    x->n_crcs = (uint32_t)n_crcs;
    s->extra_bytes += n_crcs * sizeof(*crcs);
}

/* The spots become the object's replicas. */
static void attach_spots(struct store *s, struct store_put *p, struct object *o) {
    struct places places; /* most of its lists is not used */
    memset(&places, 0, offsetof(struct places, block));
    places.size = p->size;
    places.domain = quota_domain(s, store_object_key(o));
    for (uint32_t k = 0; k < p->n_spots; k++) {
        struct spot *spot = &p->spots[k];
        if (spot->n_blocks == 0) continue;
        for (uint32_t i = 0; i < spot->n_blocks; i++) {
            block_assign(&s->space, spot->blocks[i], BLOCK_OBJECT, record_ref(&s->records, o),
                         places.domain);
            places.block[places.n_blocks++] = spot->blocks[i];
        }
        places.extents[places.n_memory++] = (uint8_t)spot->n_blocks;
        spot->n_blocks = 0;
    }
    places_first(s, o, &places);
}

static void tell_complete(struct store *s, const struct object *o, bool replaced) {
    effect_object(s, o);
    news_put(s, o, replaced);
    if (s->events.complete) s->events.complete(s->events.arg, store_object_key(o));
}

void object_appear(struct store *s, struct object *o, uint64_t hash, const struct policy_event *e,
                   const struct put_wishes *wishes, bool replaced) {
    book_insert(s, o, hash, e);
    if (wishes->expire_wall_ms) extra_set_expire(s, o, wishes->expire_wall_ms);
    if (wishes->group) group_join(s, o, wishes->group);
    if (wishes->pin != STORE_PIN_NONE) extra_set_pin(s, o, wishes->pin, wishes->pin_ms);
    tell_complete(s, o, replaced);
}

static tarn_status put_complete(struct store *s, struct store_put *p, uint64_t hash, int64_t crc,
                                const uint32_t *crcs, size_t n_crcs, const struct span *value) {
    struct span key = span_of(p->key, p->key_len);
    struct object *o = record_new(s, key, value, p->token, &p->event);
    if (!o) return TARN_EOOM;
    bool replaced = !p->vacant && make_way(s, key, hash);
    if (crc >= 0) object_set_crc(o, (uint32_t)crc);
    if (p->in_line)
        o->block = quota_domain(s, key);
    else
        attach_spots(s, p, o);
    object_set_crcs(s, o, crcs, n_crcs);
    put_unreserve(s, p);
    object_appear(s, o, hash, &p->event, &p->wishes, replaced);
    p->wishes.group = NULL;
    s->stat.put_ends++;
    put_free(s, p);
    return TARN_OK;
}

/* Gives up the replicas that the writer could not write, or whose segment is leaving. false: none
 * is left. */
static bool drop_failed(struct store *s, struct store_put *p, uint32_t failed) {
    uint32_t left = p->n_spots == 0 && !failed;
    for (uint32_t i = 0; i < p->n_spots; i++) {
        const struct segment *seg = s->space.segments[replica_segment(s, p->spots[i].blocks[0])];
        if ((failed >> i & 1) || seg->state == SEGMENT_LEAVING)
            spot_drop(s, p, &p->spots[i]);
        else
            left++;
    }
    return left > 0;
}

tarn_status store_put_end_found(struct store *s, struct store_put *p, int64_t crc, uint32_t failed,
                                const uint32_t *crcs, size_t n_crcs, const struct span *value) {
    struct span v = value ? *value : span_of(NULL, 0);
    if (v.len != (p->in_line ? p->size : 0)) return TARN_EINVAL;
    if (!crcs_fit(p->size, n_crcs) || crc > UINT32_MAX || (p->n_spots && failed >> p->n_spots) ||
        (!p->n_spots && failed > 1))
        return TARN_EINVAL;
    if (!drop_failed(s, p, failed)) {
        s->stat.put_revokes++;
        put_drop(s, p);
        return TARN_EIO;
    }
    return put_complete(s, p, p->node.hash, crc, crcs, n_crcs, p->in_line ? &v : NULL);
}

tarn_status store_put_end(struct store *s, struct span key, uint64_t token, int64_t crc,
                          uint32_t failed, const uint32_t *crcs, size_t n_crcs,
                          const struct span *value) {
    uint64_t hash = store_hash(key);
    struct store_put *p = store_put_find(s, key, hash, token);
    if (p) return store_put_end_found(s, p, crc, failed, crcs, n_crcs, value);
    struct object *o = store_find_hashed(s, key, hash);
    if (o && object_version(o) == token) return TARN_OK;
    store_put_revoke(s, key, token);
    return TARN_ETOKEN;
}

/* The writer says that nothing is in flight, so a zombie's space is free, too; its token is over
 * all the same. */
tarn_status store_put_revoke(struct store *s, struct span key, uint64_t token) {
    struct store_put *p = put_by_key(s, key, store_hash(key));
    if (p && p->token == token && p->state == PUT_OPEN) {
        s->stat.put_revokes++;
        put_drop(s, p);
        return TARN_OK;
    }
    struct store_put *z = zombie_by_token(s, token);
    if (z && span_eq(span_of(z->key, z->key_len), key)) put_free(s, z);
    s->stat.bad_tokens++;
    return TARN_ETOKEN;
}

/* --- SET of small values --- */

bool book_rewrite_inline(struct store *s, struct object *o, struct span value, uint64_t version,
                         const struct policy_event *e) {
    if (!(o->bits & OBJECT_INLINE) || (o->bits & OBJECT_EXTRA) || (s->stale && book_stale(s, o)))
        return false;
    if (!record_same_class(book_record_size(o), sizeof(*o) + object_key_len(o) + value.len))
        return false;
    s->domains[o->block].bytes += value.len - object_slack(o);
    object_set_slack(o, (uint32_t)value.len);
    if (value.len) memcpy(o->data + object_key_len(o), value.data, value.len);
    o->version_depth = version << 16 | object_depth(o);
    book_access(s, o, e);
    return true;
}

/* The key is free for it. */
static tarn_status inline_set(struct store *s, struct span key, uint64_t hash, struct span value,
                              uint32_t crc, const struct store_put_options *options,
                              const struct policy_event *e) {
    bool plain = !options->expire_wall_ms && options->pin == STORE_PIN_NONE && !options->group.len;
    struct object *o = index_find(&s->index, key, hash);
    if (o && plain && book_rewrite_inline(s, o, value, s->next_version, e)) {
        s->next_version++;
        s->stat.replaced++;
        object_set_crc(o, crc);
        tell_complete(s, o, true);
        return TARN_OK;
    }
    if (!(o = record_new(s, key, &value, s->next_version++, e))) return TARN_EOOM;
    bool replaced = make_way(s, key, hash);
    object_set_crc(o, crc);
    o->block = quota_domain(s, key);
    struct put_wishes wishes = wishes_of(s, options);
    object_appear(s, o, hash, e, &wishes, replaced);
    return TARN_OK;
}

tarn_status store_set_inline(struct store *s, struct store_batch *b, struct span key,
                             struct span value, uint32_t crc,
                             const struct store_put_options *options, unsigned *budget) {
    TARN_ASSERT(value.len <= STORE_INLINE_MAX);
    tarn_status st = check_options(s, key, value.len, options);
    if (st != TARN_OK) return st;
    uint64_t hash = store_hash(key);
    batch_number(s, b, hash);
    struct policy_event e = batch_event(s, b, hash);
    unsigned coming = s->config.max_objects && !index_find(&s->index, key, hash);
    if ((st = room_limits(s, quota_domain(s, key), value.len, coming, budget)) != TARN_OK)
        return st;
    if ((st = claim_key(s, key, hash, options)) != TARN_OK) return st;
    if (*budget > 0) --*budget;
    s->stat.put_starts++;
    s->stat.put_ends++;
    st = inline_set(s, key, hash, value, crc, options, &e);
    batch_step(s, b, &e);
    return st;
}
