#include "node/services.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "module/events.h"
#include "net/services.h"
#include "node/figures.h"
#include "node/tls.h"

static struct net_loop *node_loop;
static struct node_life *node_life;

/* --- the loop: nothing but what modules have there --- */

static void on_loop_woke(void *arg) {}

static uint64_t on_loop_turn(void *arg) {
    return 60000;
}

static void on_life_over(void *arg, unsigned events) {
    net_loop_stop(node_loop);
}

/* --- services --- */

static bool its_figures_next(struct tarn_figures_at *at, struct figure_walk *walk) {
    at->section = node_figures_show(node_life->view, at->part, walk);
    if (at->section == NULL) return false;
    at->part++;
    return true;
}

static enum tarn_state its_state(char *text, size_t cap) {
    static const enum tarn_state states[] = {
        [HOSTING_CLOSED] = TARN_STATE_AWAITING,   [HOSTING_POPULATING] = TARN_STATE_POPULATING,
        [HOSTING_JOINING] = TARN_STATE_AWAITING,  [HOSTING_UP] = TARN_STATE_SERVING,
        [HOSTING_DRAINING] = TARN_STATE_STOPPING, [HOSTING_LEAVING] = TARN_STATE_STOPPING,
        [HOSTING_LEFT] = TARN_STATE_STOPPING,
    };
    if (life_waits(node_life, text, cap)) return TARN_STATE_AWAITING;
    return states[hosting_view_stage(node_life->view, text, cap)];
}

static enum tarn_rows its_rows_next(const char *table, uint64_t *from, struct figure_walk *walk) {
    return strcmp(table, "events") == 0 ? module_events_next(from, walk) : TARN_ROWS_NO_TABLE;
}

/* --- coming and going --- */

bool services_open(struct node_life *l) {
    static const struct net_hooks hooks = {.woke = on_loop_woke, .turn = on_loop_turn};
    static struct tarn_services services = {.program = TARN_PROGRAM_NODE,
                                            .figures_next = its_figures_next,
                                            .state = its_state,
                                            .rows_next = its_rows_next};
    node_loop = net_loop_create(&hooks);
    if (node_loop == NULL) return false;
    node_life = l;
    net_services_fill(&services, node_loop);
    net_tls_services_fill(&services, node_loop, node_tls_source(l->o));
    (void)module_init(&services, NULL); /* the only one in this process */
    return true;
}

void services_run(struct node_life *l) {
    struct net_watch over;
    net_watch_init(&over, node_loop, l->over_fd, on_life_over, NULL);
    if (net_watch_set(&over, NET_READ) != TARN_OK) return;
    net_loop_run(node_loop);
    (void)net_watch_set(&over, 0);
}

void services_close(void) {
    node_tls_close();
    net_loop_destroy(&node_loop);
}
