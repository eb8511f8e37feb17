/* The last five minutes by the second and the last day by the minute, of what an operator looks at
 * first. Figures come in by their names, so that this file knows nobody who has them: a series
 * whose figures nobody shows is null throughout.
 *
 * What it holds is fixed: history_size() bytes, 450 KiB. No I/O, no clock. One thread.
 *
 *   create -> (begin -> walk, as often as there are figures -> end), each second -> destroy
 *
 * Latencies are those of the histograms in nanoseconds of the commands that read or write values,
 * and of what the data port serves. A counter becomes a rate for each second; where it is smaller
 * than before (CONFIG RESETSTAT), and where a sample is missing, the second has no value. A minute
 * is what its seconds had. */
#ifndef TARN_HTTP_HISTORY_H
#define TARN_HTTP_HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/figures.h"
#include "base/hist.h"

struct history;

enum history_step { HISTORY_SECOND, HISTORY_MINUTE };
enum { HISTORY_SECONDS = 300, HISTORY_MINUTES = 24 * 60 };

struct history *history_create(void);
void history_destroy(struct history **h_p);
size_t history_size(void); /* bytes that one has, all of them from its creation on */

/* A sample: begin, then what shows figures walks over history_walk's, in as many calls as it likes,
 * then end. A sample that is begun anew is forgotten. mono_ms never goes back; wall_ms is for
 * people. */
void history_begin(struct history *h);
struct figure_walk *history_walk(struct history *h); /* borrowed */
void history_end(struct history *h, uint64_t mono_ms, uint64_t wall_ms);

/* An answer in JSON is written in pieces, so that none takes long: history_ask says what, with
 * since_ms in the time of day (0: all); history_write appends a piece, and false says that it was
 * the last one. Samples may come in between: those are not in it, and what they push out is
 * null. */
struct history_answer {
    enum history_step step;
    uint64_t first, end; /* slots */
    uint64_t end_ms;
    unsigned series; /* the next piece */
};
void history_ask(const struct history *h, enum history_step step, uint64_t since_ms,
                 struct history_answer *answer_p);
bool history_write(const struct history *h, struct history_answer *answer, struct buf *out);

#endif
