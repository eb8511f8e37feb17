#include "front/effects.h"

#include <string.h>
#include "base/assert.h"
#include "cluster/cluster.h"
#include "front/cmd.h"
#include "front/module_durable.h"

static struct {
    effects_fn fn;
    void *arg;
} sinks[EFFECTS_SINKS];
static struct buf batch;
static size_t batch_max = EFFECTS_BATCH_MAX;
uint64_t effects_noted;
static bool handing;

static void effects_hand_over(void) {
    struct buf now = batch;
    TARN_ASSERT(!handing); /* who is told changes nothing */
    handing = true;
    for (unsigned i = 0; i < EFFECTS_SINKS; i++)
        if (sinks[i].fn != NULL) sinks[i].fn(sinks[i].arg, span_of(now.data, now.len));
    handing = false;
    buf_clear(&batch);
    if (batch.cap > 4 * EFFECTS_BATCH_MAX) buf_free(&batch);
}

void effects_turn(void) {
    if (batch.len > 0) effects_hand_over();
}

bool effects_pending(void) {
    return batch.len > 0;
}

void effects_note(void *arg, const void *record, size_t len) {
    (void)arg;
    effects_noted++;
    buf_append(&batch, record, len);
    if (batch.len >= batch_max) effects_hand_over();
}

void effects_publish(struct span channel, struct span message) {
    if (sinks[EFFECTS_REPLICAS].fn == NULL || channel.len + message.len > EFFECT_RECORD_MAX - 5)
        return;
    uint32_t name = (uint32_t)channel.len, len = (uint32_t)(5 + channel.len + message.len);
    char kind = EFFECT_PUBLISH;
    buf_append(&batch, &len, sizeof(len));
    buf_append(&batch, &kind, 1);
    buf_append(&batch, &name, sizeof(name));
    buf_append(&batch, channel.data, channel.len);
    buf_append(&batch, message.data, message.len);
    if (batch.len >= batch_max) effects_hand_over();
}

void effects_pass(struct span told) {
    effects_turn();
    for (unsigned i = 0; i < EFFECTS_SINKS; i++)
        if (i != EFFECTS_REPLICAS && sinks[i].fn != NULL) sinks[i].fn(sinks[i].arg, told);
}

void effects_retell(void) {
    bool any = false;
    for (unsigned i = 0; i < EFFECTS_SINKS; i++) any |= sinks[i].fn != NULL;
    if (books != NULL) store_tell(books, any);
    cluster_tell(any);
    module_durable_tell(any);
}

void effects_want(enum effects_sink sink, effects_fn fn, void *arg) {
    effects_turn(); /* what came before is not its business */
    sinks[sink].fn = fn;
    sinks[sink].arg = arg;
    /* a file is written, and maybe synced, once for each */
    bool files = sinks[EFFECTS_APPEND].fn != NULL || sinks[EFFECTS_SNAPSHOT].fn != NULL;
    batch_max = files ? EFFECTS_BATCH_MAX : EFFECTS_PIECE;
    effects_retell();
}

void effects_deinit(void) {
    effects_turn();
    /* What goes with the process is no change. */
    for (unsigned i = 0; i < EFFECTS_SINKS; i++) effects_want((enum effects_sink)i, NULL, NULL);
    buf_free(&batch);
}
