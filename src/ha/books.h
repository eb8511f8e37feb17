/* The books and the cluster of this process as a whole: made, told to others, made of what others
 * told, led. Above it are the roles: who starts, who follows (cmd_repl*.c), who loads a file
 * (cmd_persist*.c). */
#ifndef TARN_HA_BOOKS_H
#define TARN_HA_BOOKS_H

#include "front/cmd.h"
#include "cluster/cluster.h"
#include "front/module_durable.h"
#include "store/effect.h"

/* Makes books and the cluster, empty, by the configuration. following: they are made by
 * books_apply and led by books_lead. false: logged. */
bool books_create(bool following);
/* Everything is forgotten, and there are empty books that follow. No client has a job, a hold, a
 * lease, or an open put (the caller has closed them); there is no embedded segment. */
void books_forget(void);
void books_destroy(void);
/* They led, and follow from now on with what is in them: whoever is followed may be away, or never
 * have been there. As for books_forget, no client may have anything of them. */
void books_step_down(void);
/* Whether anybody wants news (store_listen) has changed. */
void books_relisten(void);

/* Whole records, as effects.h hands them over, to books that follow. Publications go to this
 * server's subscribers. TARN_EPROTO, TARN_ENOMEM with *why_p (static): the rest was not applied,
 * and these books are of no use any more. *end_p (may be NULL) is set when EFFECT_END was among
 * them. */
tarn_status books_apply(struct span records, bool *end_p, const char **why_p);
/* From now on they decide, under a new server.master_epoch. alive: as for store_lead;
 * cluster_local_segment must follow then. promoted: in another's place, which may still be
 * there. */
void books_lead(uint32_t alive, bool promoted);
/* Promoted by one who has stopped, and whose books these are: store_lead_options. */
void books_take_over(uint64_t suspect_below);

/* Everything, as records, ending with EFFECT_END, in slices. Whoever uses one hands over what is
 * pending (effects_turn), begins it, and is told of all effects from then on; both are written in
 * the order they come. */
struct books_snapshot {
    struct store_snapshot store;
    struct durable_walk modules;
    bool over;
};
/* Appends segments and nodes, on which records of objects stand. */
void books_snapshot_begin(struct books_snapshot *x, struct buf *out);
/* Appends to out until that has grown by about EFFECTS_BATCH_MAX or the budget is used up. true:
 * that was all. */
bool books_snapshot_step(struct books_snapshot *x, struct buf *out, unsigned *budget);

#endif
