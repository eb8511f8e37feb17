#include "hosting/view.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/thread.h"
#include "hosting/hosting.h"
#include "hosting/snapshot.h"

struct hosting_view {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* under mutex */
    struct tarn_host *host; /* to be asked; NULL: there is none */
    enum hosting_stage stage;
    char text[VIEW_TEXT_MAX];
    uint64_t wanted, made;
    struct hosting_snapshot *fresh; /* of ticket `made` */
    struct view_part {
        char name[SLOT_NAME_MAX + 1];
        struct hosting_view *view;
    } parts[VIEW_PARTS_MAX];
    unsigned n_parts;
    /* the reader's */
    struct hosting_snapshot *shown;
    uint64_t shown_ticket;
    /* the control thread's */
    struct hosting_snapshot *next;
    enum hosting_stage told_stage;
    char told_text[VIEW_TEXT_MAX];
};

struct hosting_view *hosting_view_create(void) {
    struct hosting_view *v = xcalloc(1, sizeof(*v));
    pthread_mutex_init(&v->mutex, NULL);
    thread_cond_init(&v->changed);
    snprintf(v->text, sizeof(v->text), "it is starting");
    v->fresh = xcalloc(1, sizeof(*v->fresh));
    v->shown = xcalloc(1, sizeof(*v->shown));
    v->next = xcalloc(1, sizeof(*v->next));
    return v;
}

void hosting_view_destroy(struct hosting_view **view_p) {
    struct hosting_view *v = *view_p;
    *view_p = NULL;
    if (v == NULL) return;
    TARN_ASSERT(v->host == NULL && v->n_parts == 0);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->mutex);
    free(v->fresh);
    free(v->shown);
    free(v->next);
    free(v);
}

/* --- the host's side --- */

void view_tell(struct hosting_view *v, enum hosting_stage stage, const char *text) {
    if (v == NULL || (v->told_stage == stage && strcmp(v->told_text, text) == 0)) return;
    v->told_stage = stage;
    snprintf(v->told_text, sizeof(v->told_text), "%s", text);
    pthread_mutex_lock(&v->mutex);
    v->stage = stage;
    memcpy(v->text, v->told_text, sizeof(v->text));
    pthread_mutex_unlock(&v->mutex);
}

void view_attach(struct hosting_view *v, struct tarn_host *h) {
    if (v == NULL) return;
    pthread_mutex_lock(&v->mutex);
    v->host = h;
    pthread_cond_broadcast(&v->changed); /* nobody answers any more: h is NULL */
    pthread_mutex_unlock(&v->mutex);
}

void view_part_add(struct hosting_view *v, const char *name, struct hosting_view *part) {
    if (v == NULL) return;
    pthread_mutex_lock(&v->mutex);
    TARN_ASSERT(v->n_parts < VIEW_PARTS_MAX);
    struct view_part *p = &v->parts[v->n_parts++];
    snprintf(p->name, sizeof(p->name), "%s", name);
    p->view = part;
    pthread_mutex_unlock(&v->mutex);
}

void view_part_remove(struct hosting_view *v, struct hosting_view *part) {
    pthread_mutex_lock(&v->mutex);
    unsigned i = 0;
    while (i < v->n_parts && v->parts[i].view != part) i++;
    if (i < v->n_parts) v->parts[i] = v->parts[--v->n_parts];
    pthread_mutex_unlock(&v->mutex);
}

static const char *const phase_texts[] = {
    [PHASE_AWAY] = "waiting for the master",
    [PHASE_DIALING] = "waiting for the master",
    [PHASE_JOINING] = "joining the master",
    [PHASE_FENCING] = "joining: those that an earlier master let in are cut off",
    [PHASE_OPENING] = "joining: the shared directory is opened",
    [PHASE_MOUNTING] = "joining: segments are mounted",
    [PHASE_MOUNTED] = "joining: waiting until the master lets it in",
    [PHASE_UP] = "",
    [PHASE_LEFT] = "it has left the pool",
};

static enum hosting_stage stage_of(const struct tarn_host *h, char text[VIEW_TEXT_MAX]) {
    const struct hosting_session *s = &h->session;
    snprintf(text, VIEW_TEXT_MAX, "%s", phase_texts[s->phase]);
    if (s->phase == PHASE_LEFT) return HOSTING_LEFT;
    if (s->closing != CLOSE_NO) {
        snprintf(text, VIEW_TEXT_MAX, "it is %s",
                 s->closing == CLOSE_KEEP ? "stopping" : "leaving the pool");
        return HOSTING_LEAVING;
    }
    if (s->phase == PHASE_UP && (s->drain_sent || s->draining)) {
        snprintf(text, VIEW_TEXT_MAX, "it drains: what only it has is moved to other nodes");
        return HOSTING_DRAINING;
    }
    if (s->phase == PHASE_UP) return HOSTING_UP;
    bool away = s->phase == PHASE_AWAY || s->phase == PHASE_DIALING;
    if (away && s->why[0] != '\0')
        snprintf(text, VIEW_TEXT_MAX, "waiting for the master: %s", s->why);
    return HOSTING_JOINING;
}

void view_turn(struct tarn_host *h) {
    struct hosting_view *v = h->view;
    char text[VIEW_TEXT_MAX];
    if (v == NULL) return;
    enum hosting_stage stage = stage_of(h, text);
    view_tell(v, stage, text);
    pthread_mutex_lock(&v->mutex);
    uint64_t wanted = v->wanted;
    bool any = wanted != v->made;
    pthread_mutex_unlock(&v->mutex);
    if (!any) return;
    snapshot_take(v->next, h);
    pthread_mutex_lock(&v->mutex);
    struct hosting_snapshot *taken = v->next;
    v->next = v->fresh;
    v->fresh = taken;
    v->made = wanted;
    pthread_cond_broadcast(&v->changed);
    pthread_mutex_unlock(&v->mutex);
}

/* --- the reader's --- */

/* Of all parts: up, as soon as one is; text says what the first that is not waits for. */
static enum hosting_stage parts_stage(struct hosting_view *v, char *text, size_t cap) {
    static const enum hosting_stage order[] = {HOSTING_UP, HOSTING_DRAINING, HOSTING_LEAVING,
                                               HOSTING_JOINING, HOSTING_LEFT};
    bool in[HOSTING_LEFT + 1] = {false};
    text[0] = '\0';
    for (unsigned i = 0; i < v->n_parts; i++) {
        char one[VIEW_TEXT_MAX];
        enum hosting_stage stage = hosting_view_stage(v->parts[i].view, one, sizeof(one));
        in[stage] = true;
        if (stage != HOSTING_UP && text[0] == '\0')
            snprintf(text, cap, "shard %s: %s", v->parts[i].name, one);
    }
    for (unsigned i = 0; i < ARRAY_LEN(order); i++)
        if (in[order[i]]) return order[i];
    return v->stage;
}

enum hosting_stage hosting_view_stage(struct hosting_view *v, char *text, size_t cap) {
    pthread_mutex_lock(&v->mutex);
    enum hosting_stage stage = v->stage;
    snprintf(text, cap, "%s", v->text);
    if (v->n_parts > 0 && stage == HOSTING_UP) stage = parts_stage(v, text, cap);
    pthread_mutex_unlock(&v->mutex);
    return stage;
}

static void view_refresh(struct hosting_view *v) {
    uint64_t until = clock_mono_ms() + VIEW_PATIENCE_MS, now;
    pthread_mutex_lock(&v->mutex);
    uint64_t ticket = ++v->wanted;
    if (v->host != NULL) hosting_wake(v->host);
    while (v->host != NULL && v->made < ticket && (now = clock_mono_ms()) < until)
        (void)thread_cond_wait(&v->changed, &v->mutex, until - now);
    if (v->made != v->shown_ticket) {
        struct hosting_snapshot *fresh = v->fresh;
        v->fresh = v->shown;
        v->shown = fresh;
        v->shown_ticket = v->made;
    }
    if (v->n_parts > 0) snapshot_clear(v->shown);
    for (unsigned i = 0; i < v->n_parts; i++) {
        view_refresh(v->parts[i].view);
        snapshot_add(v->shown, v->parts[i].view->shown, v->parts[i].name);
    }
    pthread_mutex_unlock(&v->mutex);
}

const char *hosting_view_figures(struct hosting_view *v, unsigned part, struct figure_walk *walk) {
    if (part == 0) view_refresh(v);
    return snapshot_show(v->shown, part, walk);
}
