/* A connection to the master on which requests are under way while the control thread does other
 * things. Answers come in the order of requests; each has a function that is waiting for it. */
#include "base/assert.h"
#include "client/answer.h"
#include "client/arena.h"
#include "client/client.h"
#include "client/ctl.h"
#include "hosting/hosting.h"

void link_init(struct hosting_link *l) {
    *l = (struct hosting_link){0};
    ctl_init(&l->ctl);
    request_init(&l->request, &l->ctl, &l->arena);
}

void link_close(struct tarn_host *h, struct hosting_link *l) {
    ctl_close(&l->ctl);
    while (l->count > 0) {
        size_t at = l->head;
        l->head = (l->head + 1) % LINK_PENDING_MAX;
        l->count--;
        l->pending[at].fn(h, NULL, l->pending[at].arg, l->pending[at].sent_ms);
    }
}

void link_deinit(struct tarn_host *h, struct hosting_link *l) {
    link_close(h, l);
    arena_free(&l->arena);
    request_deinit(&l->request);
}

void link_take(struct hosting_link *l, struct ctl *ctl) {
    TARN_ASSERT(!link_is_up(l) && l->count == 0);
    arena_reset(&l->arena); /* half an answer of the old connection */
    ctl_close(&l->ctl);
    l->ctl = *ctl;
    ctl_init(ctl);
}

/* --- requests --- */

struct wire_node link_node(struct tarn_host *h, struct hosting_link *l) {
    request_begin(&l->request);
    return (struct wire_node){.name = request_str(&l->request, h->name),
                              .instance = request_str(&l->request, h->instance)};
}

uint32_t link_word(struct hosting_link *l, const void *data, size_t len) {
    char *copy = arena_alloc(&l->arena, len + 1);
    if (len > 0) memcpy(copy, data, len);
    return request_word(&l->request, copy, len);
}

void link_send_waiting(struct tarn_host *h, struct hosting_link *l, enum wire_id id,
                       const void *options, uint64_t wait_ms, hosting_answer_fn fn, void *arg) {
    TARN_ASSERT(link_room(l) > 0);
    request_build(&l->request, id, options);
    uint64_t now = now_ms(); /* before the master can have seen it */
    size_t at = (l->head + l->count++) % LINK_PENDING_MAX;
    l->pending[at].fn = fn;
    l->pending[at].arg = arg;
    l->pending[at].sent_ms = now;
    l->pending[at].deadline = add_sat(now, add_sat(h->options.timeout_ms, wait_ms));
    tarn_status status = ctl_commit(&l->ctl, false);
    if (status != TARN_OK) session_broken(h, status); /* fn hears of it when the link is closed */
}

/* --- answers --- */

void link_progress(struct tarn_host *h, struct hosting_link *l) {
    while (link_is_up(l) && h->session.broken == TARN_OK) {
        struct answer *a = NULL;
        tarn_status status = ctl_try_receive(&l->ctl, &l->arena, &a);
        if (status == TARN_EAGAIN) break;
        if (status != TARN_OK) {
            session_broken(h, status);
            return;
        }
        if (l->count == 0) {
            session_fail(h, TARN_EPROTO, "the master answers what was not asked");
            return;
        }
        size_t at = l->head;
        l->head = (l->head + 1) % LINK_PENDING_MAX;
        l->count--;
        l->pending[at].fn(h, a, l->pending[at].arg, l->pending[at].sent_ms);
        arena_reset(&l->arena);
    }
    if (l->count == 0 || !link_is_up(l)) return;
    uint64_t deadline = l->pending[l->head].deadline; /* the oldest: the others wait behind it */
    if (now_ms() >= deadline) {
        session_fail(h, TARN_ETIMEOUT, "the master does not answer");
    } else {
        hosting_wake_at(h, deadline);
    }
}
