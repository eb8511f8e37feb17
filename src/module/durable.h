/* What modules keep beyond a restart: names and values, small ones, by module. No I/O and no clock:
 * who changes it tells the others with the records below (front/module_durable.c), and a file or a
 * replica is made of records in turn. Modules that are not loaded keep what they have.
 *
 *   durable ── space (one module's) ── entry: name, value
 *
 * The bytes of an entry are those of its name and value and DURABLE_ENTRY_OVERHEAD. One thread. */
#ifndef TARN_MODULE_DURABLE_H
#define TARN_MODULE_DURABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/status.h"

#define DURABLE_NAME_MAX       1024u       /* bytes, and 1 at least */
#define DURABLE_VALUE_MAX      (64u << 10) /* may be empty */
#define DURABLE_SPACES_MAX     64u         /* modules, loaded or not */
#define DURABLE_ENTRY_OVERHEAD 96u

struct durable;
struct durable_space;

struct durable *durable_create(void);
void durable_destroy(struct durable **d_p);

/* The module's, which stays where it is until durable_destroy; made when there is none. NULL: there
 * are too many, or it is no name of a module. */
struct durable_space *durable_space_of(struct durable *d, struct span module);
/* In the order of their coming; NULL behind the last. */
struct durable_space *durable_space_at(const struct durable *d, size_t i);
struct span durable_space_module(const struct durable_space *s);
uint64_t durable_entries(const struct durable_space *s);
uint64_t durable_bytes(const struct durable_space *s);

/* TARN_EINVAL: the name or the value has a wrong length. TARN_ELIMIT: the space would have more
 * than limit bytes (and it grows by this). A value that is there already is replaced. Time does not
 * grow with what there is. */
tarn_status durable_set(struct durable_space *s, struct span name, struct span value,
                        uint64_t limit);
/* false: there is none. */
bool durable_remove(struct durable_space *s, struct span name);
/* The value is borrowed until the space changes. */
bool durable_find(const struct durable_space *s, struct span name, struct span *value_p);
/* All of it, in no order; fn returns false to stop, and changes nothing. */
void durable_each(const struct durable_space *s,
                  bool (*fn)(void *arg, struct span name, struct span value), void *arg);
/* All modules' entries go. */
void durable_clear(struct durable *d);
/* 128 bits over everything, whatever its order; zero when there is nothing. */
void durable_digest(const struct durable *d, uint8_t sum[16]);

/* --- records ---
 *
 * u32 length of what follows, u8 DURABLE_RECORD, u8 DURABLE_FORMAT, u8 what, u8 length of the
 * module's name, u16 of the name; these; the value, to the end. Little-endian. */

#define DURABLE_RECORD 66u /* the kind: front/effects.h */
#define DURABLE_FORMAT 1u

enum durable_what { DURABLE_SET = 1, DURABLE_GONE = 2 };

struct durable_change {
    enum durable_what what;
    struct span module, name, value; /* value: of DURABLE_SET */
};
/* Appends one; its lengths have been checked. */
void durable_record_write(struct buf *out, const struct durable_change *x);
/* record as of effect_next; spans are borrowed from it. TARN_EPROTO with *why_p (static). */
tarn_status durable_record_read(struct span record, struct durable_change *x, const char **why_p);
/* Reads and does it, without a limit but those of the lengths: the one who tells has kept it. */
tarn_status durable_apply(struct durable *d, struct span record, struct durable_change *x,
                          const char **why_p);

/* A walk that tells everything as records, in slices between which anything may happen that is told
 * as well. Zero-initialise. */
struct durable_walk {
    size_t space;
    uint64_t cursor;
    bool over;
};
/* Appends to out; counts budget down by entries, large ones for more. true: that was all. */
bool durable_walk_step(const struct durable *d, struct durable_walk *x, struct buf *out,
                       unsigned *budget);

#endif
