/* When the books are written to files, and how they are found there again: SAVE, BGSAVE, save
 * rules, the append-only file and its rewriting. The files are src/persist's. */
#ifndef TARN_HA_PERSISTENCE_H
#define TARN_HA_PERSISTENCE_H

#include "base/figures.h"
#include "front/cmd.h"

/* At start. Makes the books of the file there is: the append-only file, where it is on and there,
 * else the snapshot. *loaded_p: they are made, following, and wait for books_lead; else there was
 * none, and no books. false: logged; the process must not start. */
bool persistence_load(bool *loaded_p);
/* Of the books that persistence_load has just made: they are of an append-only file that lacks
 * nothing, so that all promises about leases (EFFECT_LEASES) are in them. Says so once. */
bool persistence_leases_told(void);
/* The books lead, or follow another server: from now on what changes is written down. false:
 * logged. */
bool persistence_begin(void);
void persistence_deinit(void);

/* Called once per turn of the loop, and every 1/hz second. true: more is to be done. */
bool persistence_turn(unsigned *budget);
void persistence_cron(void);
/* Before the process ends: with save rules, a last snapshot (SHUTDOWN SAVE: in any case; NOSAVE:
 * never); the append-only file to the disk. false: it failed, and was logged. */
enum persistence_last { PERSISTENCE_AS_CONFIGURED, PERSISTENCE_SAVE, PERSISTENCE_NOSAVE };
bool persistence_end(enum persistence_last last);
/* The books are being replaced by another server's: files of the old ones stay as they are until
 * persistence_resume, which begins an append-only file anew. */
void persistence_pause(void);
void persistence_resume(void);
/* For books that are loaded again by the same process (reload.c). All that has happened is in the
 * file: the append-only one, or a snapshot that is written now. false: *why_p (static). */
bool persistence_complete(bool append, const char **why_p);
/* After persistence_pause and without books: those of the file, which follow until they are led;
 * persistence_resume comes then. false: logged. */
bool persistence_load_again(bool append);
bool persistence_there(void); /* is there a snapshot? */
/* appendonly was changed. */
bool persistence_switch(const char **why_p);
/* dir was changed. */
bool persistence_chdir(const char *dir, const char **why_p);
/* Why writes must be refused now ("MISCONF ..."); NULL: they need not. */
const char *persistence_refusal(void);
/* Why what has just been changed must not be answered OK; NULL: its records are where they
 * belong. */
const char *persistence_unwritten(void);
/* pool-path turns the append-only file on. */
bool persistence_appends(void);

void info_write_persistence(struct figure_walk *f);

#endif
