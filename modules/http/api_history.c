/* /api/history: a sample each second, walked a part in a turn of the loop, and answers that are
 * written a series at a time, as the connection takes them. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "http/history.h"
#include "http/http.h"

enum { SAMPLE_MS = 1000 };

static struct history *history;
static struct tarn_timer *sample_timer;
static struct tarn_figures_at sample_at;
static bool sampling;
static uint64_t sample_due_ms;

static void sample_turn(void *arg) {
    (void)arg;
    if (!sampling) {
        sampling = true;
        sample_at = (struct tarn_figures_at){0};
        history_begin(history);
    }
    if (http_services->figures_next(&sample_at, history_walk(history))) {
        http_services->timer_start(sample_timer, 0);
        return;
    }
    sampling = false;
    uint64_t now_ms = clock_mono_ms();
    history_end(history, now_ms, clock_wall_ms());
    /* Whole seconds from the first one, so that none is left out because samples take time. */
    while (sample_due_ms <= now_ms) {
        uint64_t late = (now_ms - sample_due_ms) / SAMPLE_MS;
        sample_due_ms += (late + 1) * SAMPLE_MS;
    }
    http_services->timer_start(sample_timer, sample_due_ms - now_ms);
}

void http_history_start(void) {
    history = history_create();
    sampling = false;
    /* In the middle of seconds: a timer that is a little early or late stays in its second. */
    sample_due_ms = clock_mono_ms() / SAMPLE_MS * SAMPLE_MS + SAMPLE_MS / 2;
    sample_timer = http_services->timer_create(sample_turn, NULL);
    http_services->timer_start(sample_timer, 0);
}

void http_history_stop(void) {
    http_services->timer_destroy(&sample_timer);
    if (history != NULL) history_destroy(&history);
}

/* --- answers --- */

struct series_reply {
    struct history_answer ask;
    struct buf piece;
    size_t sent; /* of the piece */
    bool last;
};

static ssize_t answer_read(void *arg, uint64_t at, char *out, size_t max) {
    struct series_reply *a = arg;
    (void)at;
    if (a->sent == a->piece.len) {
        if (a->last || history == NULL) return MHD_CONTENT_READER_END_OF_STREAM;
        buf_clear(&a->piece);
        a->sent = 0;
        a->last = !history_write(history, &a->ask, &a->piece);
    }
    size_t n = min_u64(max, a->piece.len - a->sent);
    memcpy(out, a->piece.data + a->sent, n);
    a->sent += n;
    return (ssize_t)n;
}

static void answer_drop(void *arg) {
    struct series_reply *a = arg;
    buf_free(&a->piece);
    free(a);
}

/* false: it is none of the steps. */
static bool history_step_of(const char *over, enum history_step *step_p) {
    if (over == NULL || strcmp(over, "second") == 0)
        *step_p = HISTORY_SECOND;
    else if (strcmp(over, "minute") == 0)
        *step_p = HISTORY_MINUTE;
    else
        return false;
    return true;
}

enum MHD_Result http_history(struct MHD_Connection *connection, const char *url, void **own) {
    (void)own; /* answered at once */
    const char *over = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "over");
    const char *since = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "since");
    enum history_step step;
    uint64_t since_ms = 0;
    if (!history_step_of(over, &step))
        return http_answer_wrong(connection, "over: second or minute");
    if (since != NULL && !span_to_u64(span_str(since), &since_ms))
        return http_answer_wrong(connection, "since: milliseconds since 1970");
    struct series_reply *a = xcalloc(1, sizeof(*a));
    history_ask(history, step, since_ms, &a->ask);
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, HTTP_PIECE,
                                                               answer_read, a, answer_drop);
    if (r == NULL) {
        answer_drop(a);
        return MHD_NO;
    }
    http_response_dress(r, "application/json", 0);
    return http_response_send(connection, MHD_HTTP_OK, r);
}
