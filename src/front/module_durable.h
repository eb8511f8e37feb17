/* What modules keep (module/durable.h), in the server: changes become records of this turn, records
 * of a master or a file become changes that the module is told of. The books come and go with it:
 *
 *   whole ── clear (the books are forgotten) ──> records ── whole ──> the modules look at all of it
 *
 * While it is not whole the modules are told nothing. */
#ifndef TARN_FRONT_MODULE_DURABLE_H
#define TARN_FRONT_MODULE_DURABLE_H

#include "base/figures.h"
#include "module/durable.h"

/* Who decides is another now: while nobody leads here, modules change nothing. Tells them. */
void module_durable_lead(bool leads);
/* The process ends: what would be changed from now on would be lost, and is refused. Tells
 * nobody. */
void module_durable_end(void);
/* Are changes told through effects_note? */
void module_durable_tell(bool on);
/* How often something has changed. */
uint64_t module_durable_changes(void);

/* What the server itself keeps in the same way, as if it were the state of a module; no module has
 * this name. An empty value: it is not there. Borrowed until something changes. */
#define MODULE_DURABLE_OWN "cluster"
struct span module_durable_own(struct span name);
void module_durable_own_set(struct span name, struct span value);

/* A record of its kind, as of effect_next. TARN_EPROTO with *why_p (static). */
tarn_status module_durable_apply(struct span record, const char **why_p);
/* durable_walk_step over everything. */
bool module_durable_walk(struct durable_walk *x, struct buf *out, unsigned *budget);
void module_durable_clear(void);
void module_durable_whole(void);
void module_durable_digest(uint8_t sum[16]);

/* Of INFO modules. */
void info_module_state(struct figure_walk *f);

#endif
