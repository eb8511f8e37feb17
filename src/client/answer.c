/* Replies as trees in an arena: hiredis' reader does the parsing, these callbacks lay the nodes
 * down. Elements of an array are contiguous, so the parser's parent and index say where a node
 * goes. */
#include <hiredis/read.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/errors.h"
#include "base/hex.h"
#include "client/answer.h"
#include "client/client.h"

/* An array says how long it is before anything of it is there: memory for it follows what arrives.
 * Nobody points into it yet when it moves: of its elements only the last one can be incomplete, and
 * that one is behind us. */
#define ROOM_FIRST  4096u /* of an answer itself: a batch is laid down in one piece */
#define ROOM_NESTED 32u

static void node_grow(struct arena *arena, struct answer *array) {
    size_t room = array->room * 2 < array->len ? array->room * 2 : array->len;
    struct answer *element = arena_alloc(arena, room * sizeof(*element));
    memcpy(element, array->element, array->room * sizeof(*element));
    array->element = element;
    array->room = room;
}

static struct answer *node_place(const redisReadTask *task, size_t extra) {
    struct arena *arena = task->privdata;
    if (!answer_has_room(arena, extra)) return NULL;
    if (task->parent != NULL) {
        struct answer *parent = task->parent->obj;
        if ((size_t)task->idx == parent->room) node_grow(arena, parent);
        return &parent->element[task->idx];
    }
    return arena_alloc(arena, sizeof(struct answer));
}

static void *create_string(const redisReadTask *task, char *str, size_t len) {
    struct answer *a = node_place(task, len);
    if (a == NULL) return NULL;
    enum answer_type type = task->type == REDIS_REPLY_ERROR    ? ANSWER_ERROR
                            : task->type == REDIS_REPLY_STATUS ? ANSWER_SIMPLE
                                                               : ANSWER_STRING;
    if (type == ANSWER_SIMPLE && len == 2 && memcmp(str, "OK", 2) == 0) { /* thousands of them */
        *a = (struct answer){.type = type, .len = len, .str = "OK"};
        return a;
    }
    char *copy = arena_alloc(task->privdata, len + 1);
    memcpy(copy, str, len);
    copy[len] = '\0';
    *a = (struct answer){.type = type, .len = len, .str = copy};
    return a;
}

static void *create_array(const redisReadTask *task, int elements) {
    size_t n = elements < 0 ? 0 : (size_t)elements;
    size_t room = min_u64(n, task->parent == NULL ? ROOM_FIRST : ROOM_NESTED);
    struct answer *a = node_place(task, room * sizeof(struct answer));
    if (a == NULL) return NULL;
    *a = (struct answer){.type = ANSWER_ARRAY, .len = n, .room = room};
    if (room > 0) a->element = arena_alloc(task->privdata, room * sizeof(struct answer));
    return a;
}

static void *create_integer(const redisReadTask *task, long long value) {
    struct answer *a = node_place(task, 0);
    if (a != NULL) *a = (struct answer){.type = ANSWER_INTEGER, .integer = value};
    return a;
}

static void *create_nil(const redisReadTask *task) {
    struct answer *a = node_place(task, 0);
    if (a != NULL) *a = (struct answer){.type = ANSWER_NIL};
    return a;
}

static void node_free(void *object) {
    (void)object; /* the arena's */
}

static redisReplyObjectFunctions functions = {create_string, create_array, create_integer,
                                              create_nil, node_free};

struct redisReader *answer_reader_create(void) {
    struct redisReader *reader = redisReaderCreateWithFunctions(&functions);
    TARN_ASSERT(reader != NULL);
    return reader;
}

void answer_reader_set_arena(struct redisReader *reader, struct arena *arena) {
    reader->privdata = arena;
}

tarn_status answer_error_status(const char *text) {
    if (strncmp(text, "ERR unknown command", 19) == 0) return TARN_EPROTO;
    if (strncmp(text, "ERR max number of clients", 25) == 0) return TARN_ELIMIT;
    return error_read(text);
}

uint64_t answer_later_ms(const struct answer *a) {
    return a != NULL && a->type == ANSWER_ERROR ? error_later_ms(a->str) : 0;
}

tarn_status answer_check(const struct answer *a, const char *what) {
    if (a->type != ANSWER_ERROR) return TARN_OK;
    tarn_status status = answer_error_status(a->str);
    const char *advice = "";
    if (status == TARN_EPERM)
        advice = strncmp(a->str, "NOPERM", 6) == 0
                     ? " (ACL GETUSER shows what this user may do)"
                     : " (user and password go into the URL: tarn://user:pass@host:port)";
    if (status == TARN_EPROTO) advice = " (is this a tarn server of this version?)";
    return fail(status, "%s: the server says: %s%s", what, a->str, advice);
}

const struct answer *answer_at(const struct answer *a, size_t index) {
    return a != NULL && a->type == ANSWER_ARRAY && index < a->len ? &a->element[index] : NULL;
}

bool answer_u64(const struct answer *a, uint64_t *value_p) {
    if (a == NULL || a->type != ANSWER_INTEGER || a->integer < 0) return false;
    *value_p = (uint64_t)a->integer;
    return true;
}

bool answer_hex(const struct answer *a, uint8_t *out, size_t n) {
    return a != NULL && a->type == ANSWER_STRING && hex_decode(span_of(a->str, a->len), out, n);
}

const struct answer *answer_field(const struct answer *map, const char *name) {
    if (map == NULL || map->type != ANSWER_ARRAY) return NULL;
    for (size_t i = 0; i + 1 < map->len; i += 2) {
        const struct answer *key = &map->element[i];
        bool text = key->type == ANSWER_STRING || key->type == ANSWER_SIMPLE;
        if (text && strcmp(key->str, name) == 0) return &map->element[i + 1];
    }
    return NULL;
}

struct server_numbers server_numbers(const struct answer *info) {
    const char *text = info->type == ANSWER_STRING ? info->str : "";
    return (struct server_numbers){.leases = strstr(text, "lease_batches:1\r") != NULL,
                                   .puts = strstr(text, "put_batches:1\r") != NULL,
                                   .no_grant = strstr(text, "places_without_grants:1\r") != NULL,
                                   .near = strstr(text, "near_sockets:1\r") != NULL};
}
