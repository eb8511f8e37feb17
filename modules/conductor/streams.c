#include "conductor/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "conductor/conductor.h"

#define TURN_US  500u  /* of the loop, for what was decoded */
#define RETRY_MS 1000u /* what could not be followed */

struct rank_stream {
    char id[ROUTE_NAME_MAX + 1];
    uint32_t worker, followed; /* of the follower; 0: it is not */
    char events[KVEVENTS_ENDPOINT], replay[KVEVENTS_ENDPOINT];
    char why[KVEVENTS_WHY]; /* it is not followed */
    uint64_t lost_ms;       /* log_is_news */
    struct feed feed;
};

static struct kvevents_follow *follower; /* NULL: nobody has told of a stream yet */
static struct tarn_watch *watch;
static struct rank_stream **of_worker;
static uint32_t *followed_by; /* worker; what it follows, or 0 */
static uint32_t workers;
static uint32_t refused; /* streams that are not followed */
static uint64_t retry_ms;
static struct streams_sum gone; /* counts of streams that went */

/* The batch at work. */
static struct kvevents_item work; /* batch NULL: none */
static struct feed_place work_place;

static void work_drop(void) {
    kvevents_batch_destroy(&work.batch);
    work_place = (struct feed_place){0};
}

/* --- what was decoded --- */

static struct rank_stream *stream_of(uint32_t followed) {
    for (uint32_t i = 0; i < workers; i++)
        if (followed_by[i] == followed) return of_worker[i];
    return NULL;
}

static bool engine_lone(const struct rank_stream *s) {
    struct route_engine_view v;
    uint32_t at = s->worker;
    return !route_engine_next(conductor_route, &at, 0, &v) || v.ranks == 1;
}

static void stream_lost(struct rank_stream *s) {
    if (log_is_news(&s->lost_ms, clock_mono_ms()))
        log_notice("Conductor: what engine %s rank %u has is not known any more: %s", s->id,
                   s->feed.rank, work.why);
    feed_lose(&s->feed);
}

/* A piece of what is there. false: there is nothing. */
static bool drain_piece(void) {
    if (work.batch == NULL && !kvevents_follow_take(follower, &work)) return false;
    struct rank_stream *s = stream_of(work.id);
    if (s == NULL) {
        work_drop();
    } else if (work.batch == NULL) {
        stream_lost(s);
    } else {
        route_worker_followed(conductor_route, s->worker, true);
        if (feed_take(&s->feed, work.batch, engine_lone(s), &work_place)) work_drop();
    }
    return true;
}

/* Level-triggered: what is left over is for the next turn. While a batch is at work, nobody has
 * found the follower empty, so its descriptor is readable. */
static void on_ready(void *arg, unsigned events) {
    uint64_t end = clock_mono_us() + TURN_US;
    while (drain_piece() && clock_mono_us() < end) continue;
}

/* --- the follower --- */

static bool follower_start(char why[KVEVENTS_WHY]) {
    struct kvevents_follow_config config;
    if (follower != NULL) return true;
    snprintf(why, KVEVENTS_WHY, "this program has no loop for it");
    if (!TARN_HAS(conductor_services, watch_destroy) || conductor_services->watch_create == NULL)
        return false;
    kvevents_follow_defaults(&config);
    config.seed = conductor_seed();
    config.streams_max = workers;
    tarn_status status = kvevents_follow_create(&config, &follower);
    if (status == TARN_OK) {
        status =
            conductor_services->watch_create(kvevents_follow_fd(follower), on_ready, NULL, &watch);
        if (status == TARN_OK) status = conductor_services->watch_set(watch, TARN_WATCH_READ);
        if (status == TARN_OK) return true;
        if (watch != NULL) conductor_services->watch_destroy(&watch);
        kvevents_follow_destroy(&follower);
    }
    snprintf(why, KVEVENTS_WHY, "event streams cannot be followed: %s", tarn_status_text(status));
    return false;
}

void streams_open(uint32_t workers_max) {
    workers = workers_max;
    of_worker = xcalloc(workers, sizeof(struct rank_stream *));
    followed_by = xcalloc(workers, sizeof(*followed_by));
    gone = (struct streams_sum){0};
    refused = 0;
    retry_ms = 0;
}

void streams_close(void) {
    for (uint32_t i = 0; i < workers; i++) streams_leave(i);
    if (watch != NULL) conductor_services->watch_destroy(&watch);
    kvevents_follow_destroy(&follower);
    work_drop();
    free(of_worker);
    free(followed_by);
    of_worker = NULL;
    followed_by = NULL;
    workers = 0;
}

/* --- streams come and go --- */

static void stream_try(struct rank_stream *s) {
    struct kvevents_source source = {.endpoint = s->events, .replay = s->replay};
    tarn_status status = TARN_OK;
    bool was_refused = s->why[0] != '\0', started = follower_start(s->why);
    if (started) status = kvevents_follow_add(follower, &source, &s->followed);
    if (started && status == TARN_OK) {
        followed_by[s->worker] = s->followed;
        s->why[0] = '\0';
        refused -= was_refused;
        return;
    }
    refused += !was_refused;
    if (started)
        snprintf(s->why, sizeof(s->why), "%s",
                 status == TARN_EINVAL ? "EVENTS or REPLAY is no endpoint"
                                       : "there are no descriptors or sockets left for it");
    if (!was_refused)
        log_warning("Conductor: engine %s rank %u cannot be followed: %s", s->id, s->feed.rank,
                    s->why);
}

bool streams_endpoint_valid(struct span endpoint) {
    char text[KVEVENTS_ENDPOINT];
    if (endpoint.len >= sizeof(text) || memchr(endpoint.data, '\0', endpoint.len) != NULL)
        return false;
    span_to_text(endpoint, text, sizeof(text));
    return kvevents_endpoint_valid(text);
}

void streams_follow(const struct registration *x) {
    struct route_engine_spec spec;
    struct span events = x->field[ENGINE_EVENTS], replay = x->field[ENGINE_REPLAY];
    uint32_t worker = route_worker_find(conductor_route, x->id, x->rank);
    if (worker == ROUTE_NO_WORKER) return;
    struct rank_stream *s = of_worker[worker];
    if (s != NULL && span_eq(events, span_str(s->events)) && span_eq(replay, span_str(s->replay)))
        return;
    streams_leave(worker);
    if (events.len == 0) return;
    s = xcalloc(1, sizeof(*s));
    s->worker = worker;
    span_to_text(x->id, s->id, sizeof(s->id));
    span_to_text(events, s->events, sizeof(s->events));
    span_to_text(replay, s->replay, sizeof(s->replay));
    registration_spec(x, &spec);
    feed_init(&s->feed, route_index(conductor_route), route_worker_holder(conductor_route, worker),
              &spec);
    of_worker[worker] = s;
    stream_try(s);
}

static void sum_numbers(void *to, const void *from, size_t bytes) {
    uint64_t *sum = to;
    const uint64_t *add = from;
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) sum[i] += add[i];
}

/* Its counts; info NULL: it is not followed. */
static void sum_add(struct streams_sum *sum, const struct rank_stream *s,
                    const struct kvevents_info *info) {
    sum_numbers(&sum->feeds, &s->feed.figures, sizeof(sum->feeds));
    if (info == NULL) return;
    sum_numbers(&sum->events, &info->figures, sizeof(sum->events));
    if (info->why_decode[0] != '\0')
        snprintf(sum->why_decode, sizeof(sum->why_decode), "%s", info->why_decode);
}

static bool stream_info_get(const struct rank_stream *s, struct kvevents_info *info) {
    return s->followed != 0 && kvevents_follow_info(follower, s->followed, info);
}

/* Nobody tells of what it has any more, so nothing is known of it. */
void streams_leave(uint32_t worker) {
    struct kvevents_info info;
    struct rank_stream *s = worker < workers ? of_worker[worker] : NULL;
    if (s == NULL) return;
    bool known = stream_info_get(s, &info);
    info.figures.kvevents_queued_bytes = 0;
    sum_add(&gone, s, known ? &info : NULL);
    if (s->followed != 0) kvevents_follow_remove(follower, s->followed);
    if (work.batch != NULL && work.id == s->followed) work_drop();
    refused -= s->why[0] != '\0';
    feed_lose(&s->feed);
    route_worker_followed(conductor_route, worker, false);
    of_worker[worker] = NULL;
    followed_by[worker] = 0;
    free(s);
}

void streams_tick(void) {
    uint64_t now_ms = clock_mono_ms();
    if (refused == 0 || now_ms < retry_ms) return;
    retry_ms = now_ms + RETRY_MS;
    for (uint32_t i = 0; i < workers; i++)
        if (of_worker[i] != NULL && of_worker[i]->followed == 0) stream_try(of_worker[i]);
}

/* --- as they are --- */

void streams_get(uint32_t worker, struct streams_view *v) {
    const struct rank_stream *s = worker < workers ? of_worker[worker] : NULL;
    *v = (struct streams_view){.events = "", .replay = "", .state = "none"};
    if (s == NULL) return;
    v->events = s->events;
    v->replay = s->replay;
    v->feed = &s->feed;
    if (!stream_info_get(s, &v->info)) {
        v->partial = true;
        snprintf(v->why, sizeof(v->why), "%s", s->why);
        return;
    }
    v->state = kvevents_state_name(v->info.state);
    v->partial = !v->info.whole;
    if (!v->partial) return;
    const char *why = v->info.why_partial;
    if (why[0] == '\0') why = "nothing has come yet";
    snprintf(v->why, sizeof(v->why), "%s", why);
}

void streams_sum(struct streams_sum *sum) {
    struct kvevents_info info;
    *sum = gone;
    for (uint32_t i = 0; i < workers; i++) {
        const struct rank_stream *s = of_worker[i];
        if (s == NULL) continue;
        bool known = stream_info_get(s, &info);
        sum->conductor_streams += known;
        sum->conductor_streams_refused += !known;
        sum->conductor_streams_connected += known && info.connected;
        sum->conductor_streams_partial += !known || !info.whole;
        sum_add(sum, s, known ? &info : NULL);
    }
}
