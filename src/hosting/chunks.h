/* How the memory of a node is lent to several masters: cut into chunks, each a segment at one of
 * them.
 *
 * A chunk keeps its number, which is in its name, whoever has it. That of a pool file is in a file
 * of its own, FILE.SHARD.NUMBER, so that a node that starts anew finds whose it was: what is in it
 * is that master's, and no other is ever told of it. */
#ifndef TARN_HOSTING_CHUNKS_H
#define TARN_HOSTING_CHUNKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "slots/map.h"
#include "tarn.h"

#define CHUNKS_MAX  256u
#define CHUNK_BYTES (UINT64_C(2) << 20) /* sizes are multiples of it, but for what is left over */
#define CHUNK_FREE  SLOT_NOBODY

struct node_chunk {
    unsigned of, number; /* number of the options' segment that it is cut from; its own */
    uint64_t bytes;
    unsigned shard; /* which has it: of the map that was planned by; CHUNK_FREE: nobody has */
};

struct node_chunks {
    unsigned n;
    struct node_chunk chunk[CHUNKS_MAX];
};

/* Finds the files that are there already, cuts up the rest, and gives it out: at least one chunk
 * to each shard, and the others in proportion to the slots they have. TARN_EINVAL: not enough for
 * all. TARN_EEXISTS: files hold more than the options say, which must say shrink. TARN_EBUSY:
 * another process has a file of the time before there were several masters; else that goes. */
tarn_status chunks_plan(struct node_chunks *c, const tarn_host_options *o,
                        const struct slot_map *map);
/* Who is to get another one: who has the least for its slots (< 0: it gets none), who has nothing
 * first. CHUNK_FREE: nobody. */
unsigned chunks_poorest(const struct node_chunks *c, const int slots[SLOT_SHARDS_MAX]);
uint64_t chunks_bytes(const struct node_chunks *c, unsigned shard);
unsigned chunks_count(const struct node_chunks *c, unsigned shard);
/* Nothing happens where it is not there. */
void chunk_file_remove(const char *path, const char *why);
/* The file of a chunk; for free. NULL: its segment has none. */
char *chunk_path(const tarn_host_options *o, const struct node_chunk *chunk, const char *shard);

#endif
