#include "hosting/chunks.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/log.h"
#include "client/error.h"
#include "pool/pool.h"

#define CHUNKS_LEAST   32u /* of a node, where it has the memory */
#define CHUNKS_SHARD   4u  /* ... for each master */
#define CHUNK_HEADER   4096u
#define CHUNK_FILE_MAX 4096u

/* --- giving out --- */

uint64_t chunks_bytes(const struct node_chunks *c, unsigned shard) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < c->n; i++)
        if (c->chunk[i].shard == shard) sum += c->chunk[i].bytes;
    return sum;
}

unsigned chunks_count(const struct node_chunks *c, unsigned shard) {
    unsigned n = 0;
    for (unsigned i = 0; i < c->n; i++) n += c->chunk[i].shard == shard;
    return n;
}

unsigned chunks_poorest(const struct node_chunks *c, const int slots[SLOT_SHARDS_MAX]) {
    unsigned best = CHUNK_FREE;
    uint64_t best_bytes = 0;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        uint64_t bytes = chunks_bytes(c, i);
        if (slots[i] < 0) continue;
        if (bytes == 0) return i;
        if (best != CHUNK_FREE && (double)bytes * slots[best] >= (double)best_bytes * slots[i])
            continue;
        best = i;
        best_bytes = bytes;
    }
    return best;
}

static void chunks_deal(struct node_chunks *c, const struct slot_map *map) {
    int slots[SLOT_SHARDS_MAX];
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++)
        slots[i] = i < map->shards ? (int)slot_map_owned(map, i) : -1;
    for (unsigned i = 0; i < c->n; i++)
        if (c->chunk[i].shard == CHUNK_FREE) c->chunk[i].shard = chunks_poorest(c, slots);
}

/* --- cutting --- */

static bool number_taken(const struct node_chunks *c, uint64_t number) {
    for (unsigned i = 0; i < c->n; i++)
        if (c->chunk[i].number == number) return true;
    return false;
}

static void chunk_add(struct node_chunks *c, unsigned of, uint64_t bytes) {
    unsigned number = 0;
    if (c->n == CHUNKS_MAX) return;
    while (number_taken(c, number)) number++;
    c->chunk[c->n++] =
        (struct node_chunk){.of = of, .number = number, .bytes = bytes, .shard = CHUNK_FREE};
}

/* What is left over goes with the last one. */
static void segment_cut(struct node_chunks *c, unsigned of, uint64_t bytes, uint64_t size) {
    uint64_t n = max_u64(bytes / size, 1);
    for (uint64_t i = 0; i < n; i++, bytes -= size)
        chunk_add(c, of, i + 1 < n ? size : bytes / CHUNK_HEADER * CHUNK_HEADER);
}

static uint64_t chunk_size(const tarn_host_options *o, unsigned shards) {
    uint64_t sum = 0, n = min_u64(max_u64(CHUNKS_LEAST, CHUNKS_SHARD * shards), CHUNKS_MAX / 2);
    for (size_t i = 0; i < o->n_segments; i++) sum += o->segments[i].bytes;
    return max_u64(sum / n / CHUNK_BYTES, 1) * CHUNK_BYTES;
}

/* --- files --- */

char *chunk_path(const tarn_host_options *o, const struct node_chunk *chunk, const char *shard) {
    struct buf path = {0};
    if (o->segments[chunk->of].path == NULL) return NULL;
    buf_printf(&path, "%s.%s.%u", o->segments[chunk->of].path, shard, chunk->number);
    buf_append_char(&path, '\0');
    return path.data;
}

/* "FILE.SHARD.NUMBER" behind "FILE."; false: it is none. */
static bool chunk_file_name(const char *rest, struct span *shard_p, uint64_t *number_p) {
    const char *dot = strrchr(rest, '.');
    *shard_p = span_of(rest, dot != NULL ? (size_t)(dot - rest) : 0);
    return dot != NULL && dot > rest && span_to_u64(span_str(dot + 1), number_p) &&
           *number_p < CHUNKS_MAX && (dot[1] != '0' || dot[2] == '\0');
}

void chunk_file_remove(const char *path, const char *why) {
    if (unlink(path) == 0)
        log_notice("Chunk %s is removed: %s", path, why);
    else if (errno != ENOENT)
        log_warning("Chunk %s: %s", path, strerror(errno));
}

/* A file of that segment is there: it is its shard's, as long as that is in the map. */
static void chunk_found(struct node_chunks *c, const struct slot_map *map, unsigned of,
                        const char *path, const char *rest) {
    struct span shard;
    struct stat st;
    uint64_t number, size;
    uint8_t content[SEGMENT_CONTENT_SIZE];
    if (!chunk_file_name(rest, &shard, &number) || stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    unsigned owner = slot_map_shard(map, shard);
    bool whole = pool_file_look(path, &size, content);
    if (!whole) size = st.st_size > CHUNK_HEADER ? (uint64_t)st.st_size - CHUNK_HEADER : 0;
    size = size / CHUNK_HEADER * CHUNK_HEADER;
    if (owner == SLOT_NOBODY || number_taken(c, number) || size == 0 || c->n == CHUNKS_MAX) {
        /* with a dot it may be of another node, whose FILE begins as this one's does */
        bool maybe = memchr(shard.data, '.', shard.len) != NULL;
        if (whole && maybe)
            log_notice("%s is left alone: no master of the pool has it, or another node does",
                       path);
        else if (whole)
            chunk_file_remove(path, "no master of the pool has it any more");
        return;
    }
    c->chunk[c->n++] =
        (struct node_chunk){.of = of, .number = (unsigned)number, .bytes = size, .shard = owner};
}

static tarn_status segment_find(struct node_chunks *c, const struct slot_map *map, unsigned of,
                                const char *file) {
    const char *slash = strrchr(file, '/'), *name = slash != NULL ? slash + 1 : file;
    size_t len = strlen(name);
    char path[CHUNK_FILE_MAX];
    struct dirent *entry;
    snprintf(path, sizeof(path), "%.*s", slash != NULL ? (int)(slash - file + 1) : 1,
             slash != NULL ? file : ".");
    DIR *dir = opendir(path);
    if (dir == NULL) return fail(TARN_EINVAL, "the directory of %s: %s", file, strerror(errno));
    while ((entry = readdir(dir)) != NULL) {
        if (strncmp(entry->d_name, name, len) != 0 || entry->d_name[len] != '.') continue;
        int n = snprintf(path, sizeof(path), "%.*s%s", (int)(name - file), file, entry->d_name);
        if (n < 0 || (size_t)n >= sizeof(path)) continue;
        chunk_found(c, map, of, path, entry->d_name + len + 1);
    }
    closedir(dir);
    return TARN_OK;
}

static uint64_t segment_has(const struct node_chunks *c, unsigned of) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < c->n; i++)
        if (c->chunk[i].of == of) sum += c->chunk[i].bytes;
    return sum;
}

/* Its chunk is given up, with what is in it. */
static void chunk_drop_file(const tarn_host_options *o, const struct node_chunk *chunk,
                            const struct slot_map *map, const char *why) {
    char *path = chunk_path(o, chunk, map->shard[chunk->shard].name);
    if (path != NULL) chunk_file_remove(path, why);
    free(path);
}

/* Of a time when the node had one master. What is in it cannot be divided, and beside the files of
 * chunks it would take the memory a second time. */
static tarn_status segment_drop_whole(const char *file) {
    uint64_t bytes;
    const char *why = "";
    tarn_status status = pool_file_remove(file, &bytes, &why);
    if (status != TARN_OK) return fail(status, "%s", why);
    if (bytes > 0)
        log_warning("Pool file %s of %llu MiB is removed: it is of the time before there were "
                    "several masters; each chunk has a file of its own now",
                    file, (unsigned long long)(bytes >> 20));
    return TARN_OK;
}

/* Those with the highest numbers go until the rest fits. */
static tarn_status segment_shrink(struct node_chunks *c, const tarn_host_options *o, unsigned of,
                                  const struct slot_map *map) {
    uint64_t want = o->segments[of].bytes;
    while (segment_has(c, of) > want) {
        unsigned last = CHUNKS_MAX;
        if (!o->shrink)
            return fail(TARN_EEXISTS, "the files %s.* hold %llu bytes, more than the %llu of now",
                        o->segments[of].path, (unsigned long long)segment_has(c, of),
                        (unsigned long long)want);
        for (unsigned i = 0; i < c->n; i++) {
            if (c->chunk[i].of != of) continue;
            if (last == CHUNKS_MAX || c->chunk[i].number > c->chunk[last].number) last = i;
        }
        chunk_drop_file(o, &c->chunk[last], map, "the node lends less than before");
        c->chunk[last] = c->chunk[--c->n];
    }
    return TARN_OK;
}

/* Of whoever has the most, and more than one; NULL: nobody has. */
static struct node_chunk *chunk_spare(struct node_chunks *c, unsigned shards) {
    struct node_chunk *spare = NULL;
    unsigned most = 1;
    for (unsigned shard = 0; shard < shards; shard++) {
        unsigned n = chunks_count(c, shard);
        if (n <= most) continue;
        most = n;
        spare = NULL;
        for (unsigned i = 0; i < c->n; i++) {
            struct node_chunk *chunk = &c->chunk[i];
            if (chunk->shard == shard && (spare == NULL || chunk->number > spare->number))
                spare = chunk;
        }
    }
    return spare;
}

/* A master that came while the node was away, which has files of the others only. */
static tarn_status chunks_spread(struct node_chunks *c, const tarn_host_options *o,
                                 const struct slot_map *map) {
    for (unsigned i = 0; i < map->shards; i++) {
        if (chunks_count(c, i) > 0) continue;
        struct node_chunk *spare = chunk_spare(c, map->shards);
        if (spare == NULL)
            return fail(TARN_EINVAL,
                        "the memory of the segments is too little for %u masters: each gets at "
                        "least %llu MiB",
                        map->shards, (unsigned long long)(CHUNK_BYTES >> 20));
        chunk_drop_file(o, spare, map, "another master has none");
        spare->shard = i;
    }
    return TARN_OK;
}

/* --- all of it --- */

tarn_status chunks_plan(struct node_chunks *c, const tarn_host_options *o,
                        const struct slot_map *map) {
    uint64_t size = chunk_size(o, map->shards);
    *c = (struct node_chunks){0};
    for (unsigned i = 0; i < o->n_segments; i++) {
        tarn_status status = TARN_OK;
        if (o->segments[i].path != NULL) status = segment_find(c, map, i, o->segments[i].path);
        if (status == TARN_OK) status = segment_shrink(c, o, i, map);
        if (status != TARN_OK) return status;
    }
    for (unsigned i = 0; i < o->n_segments; i++) {
        uint64_t bytes = o->segments[i].bytes, has = segment_has(c, i);
        /* Less than a chunk is not worth a file beside those that are there. */
        if (has == 0 || bytes - has >= size) segment_cut(c, i, bytes - has, size);
    }
    chunks_deal(c, map);
    tarn_status status = o->n_segments > 0 ? chunks_spread(c, o, map) : TARN_OK;
    for (unsigned i = 0; i < o->n_segments && status == TARN_OK; i++)
        if (o->segments[i].path != NULL) status = segment_drop_whole(o->segments[i].path);
    return status;
}
