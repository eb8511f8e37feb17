/* What the process of a node shows of it, on a thread of its own: where its life is, and all its
 * figures, from before the host is open until after it is closed.
 *
 *   control thread ── each turn its stage; a snapshot of the figures when one is asked for
 *   reader         ── asks, waits a moment for the snapshot, walks over what there is
 *
 * A node of many masters shows the views of its hosts together: figures are summed up, and it is up
 * as soon as one is.
 *
 * The snapshot is handed over by exchanging pointers, so nobody reads what is being written, and a
 * control thread that is busy costs a reader VIEW_PATIENCE_MS and fresh figures, no more. */
#ifndef TARN_HOSTING_VIEW_H
#define TARN_HOSTING_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include "base/figures.h"
#include "tarn.h"

#define VIEW_PATIENCE_MS 5u

struct hosting_view;

enum hosting_stage {
    HOSTING_CLOSED,     /* not open yet, or not any more */
    HOSTING_POPULATING, /* memory and disks are set up */
    HOSTING_JOINING,    /* the master is away, or has not let us in yet */
    HOSTING_UP,
    HOSTING_DRAINING, /* up, and what only it has is moved away */
    HOSTING_LEAVING,
    HOSTING_LEFT,
};

struct hosting_view *hosting_view_create(void);
/* After its host is closed. */
void hosting_view_destroy(struct hosting_view **view_p);

struct hosting_plan {
    const char *url;
    const tarn_options *options;
    const tarn_host_options *host; /* whole */
    const unsigned *numbers;       /* of its segments, in their names; NULL: from 0 on */
    struct hosting_view *view;     /* which outlives the host; NULL: none */
    uint64_t map_epoch;            /* of one of many masters: of the map that is known, else 0 */
    /* A few times a second while masters are waited for, on the caller's thread; why: there is no
     * master to talk to yet; NULL: one lets it in, or will. NULL: the host is open in time, or not
     * at all. */
    void (*meanwhile)(void *arg, const char *why);
    void *arg;
};
/* tarn_host_open. With a meanwhile it waits until a master lets the node in, however often those
 * fail: what it returns then is what trying again does not mend, or TARN_ECLOSED from a master that
 * has let the node go. */
tarn_status hosting_open(const struct hosting_plan *plan, tarn_host **host_p);

/* From any thread. text: what it does or waits for, for people; "" when it is up. */
enum hosting_stage hosting_view_stage(struct hosting_view *v, char *text, size_t cap);
/* From one thread: part 0, then 1 and so on. Part 0 asks for a snapshot. The section that the
 * figures belong to, as INFO has some; NULL: there are no more. */
const char *hosting_view_figures(struct hosting_view *v, unsigned part, struct figure_walk *walk);

#endif
