/* Lines of mooncake's and bailian's traces. */
#include "base/json_object.h"
#include "trace/reader.h"

static struct json_u64s trace_ids_of(struct trace *t) {
    return (struct json_u64s){&t->ids, &t->n_ids, &t->cap_ids, TRACE_IDS_MAX};
}

/* A chat belongs to the conversation of its parent; one whose parent is not in the trace begins
 * one. */
static uint32_t chat_session(struct trace_reader *r, int64_t chat, int64_t parent) {
    bool new;
    uint32_t above = parent < 0 ? UINT32_MAX : dense_find(&r->chats, (uint64_t)parent);
    uint32_t number = dense_of(&r->chats, (uint64_t)chat, &new);
    if (!new) return r->sessions[number];
    ARRAY_GROW(r->sessions, r->n_sessions, r->cap_sessions);
    r->sessions[r->n_sessions++] = above == UINT32_MAX ? r->conversations++ : r->sessions[above];
    return r->sessions[number];
}

/* A prompt has one id for each block that it begins; more would be read as tokens it has not. */
static void clip_ids(struct trace *t, struct trace_request *q) {
    uint32_t blocks = q->input / t->block + (q->input % t->block != 0);
    if (q->n <= blocks) return;
    t->clipped += q->n - blocks;
    t->n_ids -= q->n - blocks;
    q->n = blocks;
}

const char *trace_json_line(struct trace_reader *r, struct span line) {
    bool bailian = r->format == TRACE_BAILIAN, apart = r->o->lengths_apart;
    uint64_t input = 0, output = 0;
    uint64_t session = TRACE_SESSION_NONE; /* mooncake's have none; those that we write may */
    int64_t chat = 0, parent = -1;
    struct trace_request q = {.session = TRACE_SESSION_NONE};
    struct json_u64s ids = trace_ids_of(r->t);
    struct json_field fields[] = {
        {"timestamp", bailian ? JSON_SECONDS : JSON_U64, &q.timestamp_ms, TRACE_TIME_MAX_MS, 0, 0},
        {"hash_ids", JSON_U64S, &ids, 0, false, false},
        {"input_length", JSON_U64, &input, TRACE_TOKENS_MAX, apart, false},
        {"output_length", JSON_U64, &output, TRACE_TOKENS_MAX, apart, false},
        {"session", JSON_U64, &session, TRACE_SESSION_NONE - 1, true, false},
        {"chat_id", JSON_I64, &chat, 0, false, false},
        {"parent_chat_id", JSON_I64, &parent, 0, true, false},
    };
    q.first = r->t->n_ids;
    const char *error = json_object_read(line, fields, bailian ? 7 : 5, r->error);
    if (error != NULL) return error;
    q.n = (uint32_t)(r->t->n_ids - q.first);
    q.input = (uint32_t)input;
    q.output = (uint32_t)output;
    if (fields[2].seen && !apart) {
        if (input == 0) {
            r->t->n_ids = q.first;
            return "input_length: a prompt has at least one token";
        }
        clip_ids(r->t, &q);
    }
    q.session = bailian ? chat_session(r, chat, parent) : (uint32_t)session;
    trace_add(r->t, &q);
    return NULL;
}
