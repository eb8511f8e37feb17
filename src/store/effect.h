/* What changes the books, as records: the stream that replicas follow, the append-only file, the
 * snapshot. They say what is, not what was asked for: which extents, which version. Whoever applies
 * them in order ends up with the same books (store_digest), and applying one that is known already
 * changes nothing, so a snapshot is a walk over what there is, with the changes that happen
 * meanwhile in between.
 *
 * Books that follow (store_follow) are made by records alone: they evict nothing, expire nothing
 * and give out no space. Their memory segments are a set of extents; only when they lead
 * (store_lead) is free space found between them.
 *
 *   store_create ─> leads <──────── store_lead ────────┐
 *        │            └── store_step_down ──> follows (records, look-ups)
 *        └─ store_follow ─────────────────────> ┘
 *
 * A record: u32 length of what follows, u8 kind, the rest by kind; little-endian. Kinds from
 * EFFECT_OTHERS on are other rooms'. */
#ifndef TARN_STORE_EFFECT_H
#define TARN_STORE_EFFECT_H

#include "store/store.h"

#define EFFECT_RECORD_MAX (UINT32_C(8) << 20) /* bytes; an object of 1 TiB has 4 MiB of CRCs */

enum effect_kind {
    EFFECT_OBJECT = 1,  /* everything about it */
    EFFECT_GONE = 2,    /* that version of a key */
    EFFECT_FLUSH = 3,   /* every version up to this one */
    EFFECT_SEGMENT = 4, /* with its state */
    EFFECT_SEGMENT_GONE = 5,
    EFFECT_QUOTA = 6,      /* of a prefix; 0 bytes: none any more */
    EFFECT_SUPERSEDED = 7, /* far copies up to this version must not come back */
    /* all leases that were granted before the next of these end until then */
    EFFECT_LEASES = 8,
    EFFECT_OTHERS = 32,
};

/* The first record of data: its kind and all of its bytes. TARN_EAGAIN: there is not all of it yet.
 * TARN_EPROTO: nonsense. */
tarn_status effect_next(struct span data, enum effect_kind *kind_p, struct span *record_p);

/* Are changes told through store_events.effect? Not at first. */
void store_tell(struct store *s, bool on);
/* How often something that would be told has changed. */
uint64_t store_changes(const struct store *s);

/* The books are empty, and nobody has a segment in them. */
void store_follow(struct store *s);
/* Books that lead follow from now on, with all that is in them: as if they had been told of it.
 * Leases and puts end; space of what went under a lease stays unused for max-lease, as if these
 * books had seen it go now. The caller has ended holds, walks and copies, and hears no news any
 * more. Takes about as long as store_lead. */
void store_step_down(struct store *s);
/* One record of a kind below EFFECT_OTHERS, to books that follow. TARN_EPROTO with *why_p (static):
 * it cannot be; the books are as if it had not come. TARN_ENOMEM. */
tarn_status store_effect_apply(struct store *s, struct span record, const char **why_p);
/* Of the records that come next, at most EFFECTS_AHEAD: cache lines of the books that they need are
 * on their way. Returns how many these are. */
#define EFFECTS_AHEAD 16u
size_t store_effects_prefetch(const struct store *s, struct span records);

struct store_lead_options {
    uint64_t first_version; /* as in store_config */
    /* objects without a CRC stay; else they go, because nobody can say whether their bytes are
     * right */
    bool keep_unverifiable;
    /* Every promise of leases (EFFECT_LEASES) that the one before these books made is in them: they
     * come from a file of its own that lacks nothing. What they say is over is no ghost then. */
    bool leases_told;
    /* The one before has stopped, and these books have all of its: versions from suspect_below on
     * are no more suspect than there, and stay without a CRC. */
    bool handed_over;
    uint64_t suspect_below; /* store_suspect_below of the one before */
    /* this memory segment is the program's own and there; others are DOWN. STORE_SEGMENT_ANY: none
     */
    uint32_t alive;
};
struct store_lead_stats {
    uint64_t objects, unverifiable, overlapping; /* in the books; dropped, by reason */
};
/* From now on these books decide. Space of what they saw go stays unused until max-lease after
 * that, and for max-lease from now on nothing is evicted and what goes waits as long: leases that
 * the old master granted are not known here. Everything that is there is suspect
 * (store_object_suspect). Takes about a second for 5 million objects. */
void store_lead(struct store *s, const struct store_lead_options *options,
                struct store_lead_stats *stats_p);
/* Nobody has compared its bytes with its CRC since these books lead. */
bool store_object_suspect(const struct store *s, const struct object *o);
/* Versions below are suspect. */
uint64_t store_suspect_below(const struct store *s);
/* Everything that is there now has been compared. */
void store_trust(struct store *s);

/* A walk that tells everything, as records, in slices between which anything may happen; what
 * happens is told by store_events.effect meanwhile. emit may not change the books. */
struct store_snapshot {
    unsigned phase;
    uint64_t cursor, objects; /* objects: told so far */
};
bool store_snapshot_step(struct store *s, struct store_snapshot *x,
                         void (*emit)(void *arg, const void *record, size_t len), void *arg,
                         unsigned *budget);

/* 128 bits over keys, versions, sizes, CRCs, extents, pins and TTLs of all objects, whatever their
 * order: the same on books that hold the same. In slices; what changes meanwhile may be in it or
 * not. Zero-initialise. */
struct store_digest {
    uint64_t cursor, objects;
    bool over;
    uint8_t sum[16];
};
bool store_digest_step(struct store *s, struct store_digest *d, unsigned *budget);

#endif
