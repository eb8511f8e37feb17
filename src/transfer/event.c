/* What an end has to tell its program: messages of peers, and what became of labels. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "base/assert.h"
#include "client/client.h"
#include "client/error.h"
#include "transfer/transfer.h"

bool transfer_events_full(const struct tarn_transfer *t) {
    return t->n_notes >= TRANSFER_EVENTS_MAX || t->note_bytes >= TRANSFER_NOTE_BYTES;
}

void transfer_event_add(struct tarn_transfer *t, int kind, const char *peer, const char *label,
                        const void *data, size_t len) {
    struct transfer_note *n = xcalloc(1, sizeof(*n));
    n->kind = kind;
    snprintf(n->peer, sizeof(n->peer), "%s", peer);
    snprintf(n->label, sizeof(n->label), "%s", label);
    if (len > 0) {
        n->data = xmalloc(len + 1);
        memcpy(n->data, data, len);
        n->data[len] = '\0';
        n->len = len;
    }
    STAILQ_INSERT_TAIL(&t->notes, n, link);
    t->note_bytes += len;
    if (t->n_notes++ == 0) eventfd_write(t->event_fd, 1);
    pthread_cond_broadcast(&t->changed);
}

int tarn_transfer_fd(const tarn_transfer *t) {
    return transfer_usable(t) == TARN_OK ? t->event_fd : -1;
}

static void note_take(struct tarn_transfer *t, tarn_transfer_event *event) {
    struct transfer_note *n = STAILQ_FIRST(&t->notes);
    STAILQ_REMOVE_HEAD(&t->notes, link);
    t->note_bytes -= n->len;
    if (--t->n_notes == 0) {
        eventfd_t ignored;
        eventfd_read(t->event_fd, &ignored);
    }
    tarn_transfer_event e = {.size = event->size, .kind = n->kind, .data = n->data, .len = n->len};
    memcpy(e.peer, n->peer, sizeof(e.peer));
    memcpy(e.label, n->label, sizeof(e.label));
    memcpy(event, &e, min_u64(event->size, sizeof(e)));
    free(n);
}

tarn_status tarn_transfer_next_event(tarn_transfer *t, uint64_t timeout_ms,
                                     tarn_transfer_event *event) {
    tarn_status status = transfer_usable(t);
    if (status != TARN_OK) return status;
    if (event == NULL || event->size < sizeof(*event))
        return fail(TARN_EINVAL, "an event begins with its size");
    uint64_t deadline =
        timeout_ms == TARN_NO_TIMEOUT ? DEADLINE_NONE : add_sat(now_ms(), timeout_ms);
    pthread_mutex_lock(&t->mutex);
    while (STAILQ_EMPTY(&t->notes) && timeout_ms > 0 &&
           transfer_cond_wait(t, &t->changed, deadline))
        continue;
    if (STAILQ_EMPTY(&t->notes))
        status = TARN_EAGAIN;
    else
        note_take(t, event);
    pthread_mutex_unlock(&t->mutex);
    return status;
}
