/* Object records: a 36-byte head, the key, and for tiny objects the value, in slabs by size. A
 * record is named by a 32-bit reference, its address in units of 8 bytes from the start of one
 * reserved region (32 GiB of records). */
#ifndef TARN_STORE_RECORD_H
#define TARN_STORE_RECORD_H

#include <stddef.h>
#include <stdint.h>
#include "base/page_arena.h"
#include "store/store.h"

typedef uint32_t object_ref; /* 0: none */

#define OBJECT_KEY_BITS   11
#define OBJECT_SLACK_BITS 12
#define OBJECT_DEPTH_MAX  0xffffu

enum object_flag {
    OBJECT_REFS = 1u << 23,   /* has leases or holds: refs_find */
    OBJECT_EXTRA = 1u << 24,  /* extra_find has more */
    OBJECT_INLINE = 1u << 25, /* the value follows the key */
    OBJECT_CRC = 1u << 26,    /* crc is set */
    OBJECT_PLACES = 1u << 27, /* not simply one block: places_find has where it lies */
    OBJECT_VICTIM = 1u << 28, /* taken by the plan that is being made in this very call */
    OBJECT_GEN = 1u << 29,    /* which of two policy generations holds it */
    OBJECT_Q1 = 1u << 30,     /* the policy's own bit */
    OBJECT_AWAITS = 1u << 31, /* a copy on a disk, before it may be evicted (await.c) */
};

struct object {
    object_ref prev, next; /* eviction order; prev 0: in no list */
    /* of its (first) space, 0: none in memory; inline objects: their quota domain */
    uint32_t block;
    uint32_t crc;
    uint32_t request;       /* number of the batch it was last seen in */
    uint32_t atime_freq;    /* seconds (24 bits) of the last access, the policy's 8-bit counter */
    uint32_t bits;          /* key length 11, slack 12, flags 9 */
    uint64_t version_depth; /* version 48, depth 16 */
    char data[];            /* key, then the value when inline */
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct object) == 36, "every byte counts ten million times");

static inline uint32_t object_key_len(const struct object *o) {
    return o->bits & ((1u << OBJECT_KEY_BITS) - 1);
}
/* Inline: length of the value. Else: bytes of its space that the value does not fill (less than
 * 4096). */
static inline uint32_t object_slack(const struct object *o) {
    return (o->bits >> OBJECT_KEY_BITS) & ((1u << OBJECT_SLACK_BITS) - 1);
}
static inline void object_set_slack(struct object *o, uint32_t slack) {
    o->bits = (o->bits & ~(((1u << OBJECT_SLACK_BITS) - 1) << OBJECT_KEY_BITS)) |
              slack << OBJECT_KEY_BITS;
}
static inline void object_set_crc(struct object *o, uint32_t crc) {
    o->crc = crc;
    o->bits |= OBJECT_CRC;
}
static inline uint64_t object_version(const struct object *o) {
    return o->version_depth >> 16;
}
static inline uint32_t object_depth(const struct object *o) {
    return o->version_depth & 0xffff;
}
static inline void object_set_depth(struct object *o, uint32_t depth) {
    o->version_depth = (o->version_depth & ~UINT64_C(0xffff)) |
                       (depth < OBJECT_DEPTH_MAX ? depth : OBJECT_DEPTH_MAX);
}
static inline unsigned object_freq(const struct object *o) {
    return o->atime_freq & 0xff;
}
static inline void object_set_freq(struct object *o, unsigned freq) {
    o->atime_freq = (o->atime_freq & ~0xffu) | freq;
}
static inline uint32_t object_atime(const struct object *o) {
    return o->atime_freq >> 8;
}
static inline void object_set_atime(struct object *o, uint32_t s) {
    o->atime_freq = (s << 8) | (o->atime_freq & 0xff);
}

#define RECORD_PAGE 65536u

struct record_page;
struct records {
    struct page_arena arena;           /* the records */
    struct page_arena meta;            /* struct record_page, one per page */
    uint32_t pages;                    /* ever used */
    uint32_t free_pages, n_free_pages; /* list head (page number), length */
    uint32_t live_pages;
    uint64_t count, bytes; /* of records that are in use */
    uint32_t partial[(sizeof(struct object) + STORE_KEY_MAX + STORE_INLINE_MAX) / 8 +
                     2]; /* by class: page number */
};

bool records_init(struct records *r);
void records_free(struct records *r);
/* Uninitialised head; NULL: no memory. size includes the head. */
struct object *record_alloc(struct records *r, size_t size);
void record_free(struct records *r, struct object *o, size_t size);
static inline object_ref record_ref(const struct records *r, const struct object *o) {
    return o ? (object_ref)(((const char *)o - r->arena.base) / 8) : 0;
}
static inline struct object *record_get(const struct records *r, object_ref ref) {
    return ref ? (struct object *)(void *)(r->arena.base + (size_t)ref * 8) : NULL;
}
/* What records take; and what is held for those to come. */
uint64_t records_memory(const struct records *r);
uint64_t records_spare(const struct records *r);
/* What a record of that size takes. */
static inline size_t record_round(size_t size) {
    return (size + 7) & ~(size_t)7;
}
/* Two sizes share a class: a record can be rewritten in place. */
static inline bool record_same_class(size_t a, size_t b) {
    return record_round(a) == record_round(b);
}

#endif
