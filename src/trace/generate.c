/* Traces that are made by seed, of three kinds of users:
 *
 *   chat       people: 16 system prompts of 1,024 tokens (Zipf's law, exponent 1), messages of 250
 *              tokens (median; one in ten comes with a text of 6,000), answers of 300, five turns
 *              on average, 60 s (median) to read and write. Each turn's prompt is all that was said
 *   agents     programs: 4 sets of tools of 4,096 tokens, a task of 600, results of calls of 700,
 *              answers of 90, twelve calls on average, 3 s (median) for one
 *   documents  questions about 2,000 documents of 4,096 to 65,536 tokens (log-uniform; Zipf's law,
 *              exponent 0.9), each prompt a document and a question of 100, answers of 200
 *   hot        the same, but from a third of the requests on half of them are about one document of
 *              32,768 tokens, of which nobody had heard, and come with a text of 4,000
 *
 * Lengths are log-normal. An answer's blocks are new ids in the next prompt, as in the public
 * traces: what an engine computed for an answer is not a block that it stores. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/draw.h"
#include "trace/trace.h"

static const char *const kind_names[TRACE_KINDS] = {"chat", "agents", "documents", "hot"};

enum { DOCUMENTS = 2000, NEWS_TOKENS = 32768, PROMPT_MAX = 131072, TURNS_MAX = 64 };

struct habits {
    unsigned systems;
    uint32_t system_tokens;
    double task, message, answer, sigma; /* medians in tokens */
    double turns, think_s;
    double text_share, text; /* how often a text comes with a message, and its median */
};
static const struct habits habits_of[TRACE_KINDS] = {
    [TRACE_CHAT] = {16, 1024, 250, 250, 300, 0.8, 5, 60, 0.1, 6000},
    [TRACE_AGENTS] = {4, 4096, 600, 700, 90, 0.9, 12, 3, 0.05, 5000},
};

struct maker {
    struct trace *t;
    const struct trace_recipe *recipe;
    struct rng rng;
    uint64_t next_id;
    double zipf[DOCUMENTS];
    uint64_t *document; /* DOCUMENTS first ids, and that of the news */
    uint32_t document_tokens[DOCUMENTS + 1];
    size_t ids_max;
    bool full; /* there would be more */
};

enum trace_kind trace_kind_of(const char *name) {
    unsigned i = 0;
    while (i < TRACE_KINDS && strcmp(name, kind_names[i]) != 0) i++;
    return (enum trace_kind)i;
}

const char *trace_kind_name(enum trace_kind kind) {
    return kind_names[kind];
}

static uint32_t draw_tokens(struct maker *m, double median, double sigma) {
    double tokens = draw_lognormal(&m->rng, median, sigma);
    return tokens < 1 ? 1 : tokens > PROMPT_MAX ? PROMPT_MAX : (uint32_t)tokens;
}

static void push_id(struct trace *t, uint64_t id) {
    ARRAY_GROW(t->ids, t->n_ids, t->cap_ids);
    t->ids[t->n_ids++] = id;
}

static void push_request(struct trace *t, struct trace_request q) {
    ARRAY_GROW(t->requests, t->n, t->cap);
    q.n = (uint32_t)(t->n_ids - q.first);
    t->requests[t->n++] = q;
    if (q.n > t->longest) t->longest = q.n;
}

/* How many blocks the prompt has; 0: no more of them may be. */
static uint32_t prompt_blocks(struct maker *m, uint32_t tokens) {
    uint32_t blocks = (tokens + m->t->block - 1) / m->t->block;
    if (blocks > m->ids_max - m->t->n_ids) m->full = true;
    return m->full ? 0 : blocks;
}

/* The prompt's blocks: the first `shared` whole ones at `from`, then new ones. */
static void push_prompt(struct maker *m, uint64_t from, uint32_t shared, uint32_t tokens) {
    uint32_t blocks = prompt_blocks(m, tokens);
    for (uint32_t i = 0; i < blocks; i++) push_id(m->t, i < shared ? from + i : m->next_id++);
}

/* One conversation, all its turns. Between them the ids of the last prompt are found in the trace
 * itself. */
static void make_session(struct maker *m, const struct habits *h, double at_s, uint32_t session) {
    struct trace *t = m->t;
    uint32_t per_system = h->system_tokens / t->block;
    uint64_t system = draw_zipf(&m->rng, m->zipf, h->systems) * (uint64_t)per_system;
    unsigned turns = draw_geometric(&m->rng, h->turns, TURNS_MAX);
    uint64_t tokens = h->system_tokens + draw_tokens(m, h->task, h->sigma);
    uint64_t last = 0;
    uint32_t whole = 0;
    for (unsigned turn = 0; turn < turns && tokens <= PROMPT_MAX && !m->full; turn++) {
        struct trace_request q = {.timestamp_ms = (uint64_t)(at_s * 1000),
                                  .first = t->n_ids,
                                  .input = (uint32_t)tokens,
                                  .output = draw_tokens(m, h->answer, 0.7),
                                  .session = session};
        if (turn == 0) {
            push_prompt(m, system, per_system, q.input);
        } else {
            uint32_t blocks = prompt_blocks(m, q.input);
            for (uint32_t i = 0; i < blocks; i++)
                push_id(t, i < whole ? t->ids[last + i] : m->next_id++);
        }
        push_request(t, q);
        last = q.first;
        whole = q.input / t->block;
        tokens += q.output + draw_tokens(m, h->message, h->sigma);
        if (draw_unit(&m->rng) < h->text_share) tokens += draw_tokens(m, h->text, 0.7);
        at_s += 0.02 * q.output + draw_lognormal(&m->rng, h->think_s, 1.0);
    }
}

static void make_documents(struct maker *m) {
    struct trace *t = m->t;
    size_t known = m->recipe->requests / 3; /* until then there are no news */
    m->document = xcalloc(DOCUMENTS + 1, sizeof(*m->document));
    for (unsigned i = 0; i <= DOCUMENTS; i++) {
        uint32_t tokens = NEWS_TOKENS;
        if (i < DOCUMENTS) tokens = (uint32_t)(4096 * pow(16, draw_unit(&m->rng)));
        uint32_t blocks = tokens / t->block;
        m->document[i] = m->next_id;
        m->document_tokens[i] = blocks * t->block;
        m->next_id += blocks;
    }
    double at_s = 0;
    for (size_t i = 0; i < m->recipe->requests && !m->full; i++) {
        size_t k = draw_zipf(&m->rng, m->zipf, DOCUMENTS);
        bool hot = m->recipe->kind == TRACE_HOT && i >= known && draw_unit(&m->rng) < 0.5;
        if (hot) k = DOCUMENTS;
        at_s += draw_exponential(&m->rng, 1 / m->recipe->rate);
        struct trace_request q = {.timestamp_ms = (uint64_t)(at_s * 1000),
                                  .first = t->n_ids,
                                  .input =
                                      m->document_tokens[k] + draw_tokens(m, hot ? 4000 : 100, 0.5),
                                  .output = draw_tokens(m, 200, 0.7),
                                  .session = TRACE_SESSION_NONE};
        push_prompt(m, m->document[k], m->document_tokens[k] / t->block, q.input);
        push_request(t, q);
    }
    free(m->document);
}

/* Sessions begin as often as makes the rate of requests, until those that begin later cannot be
 * among the first `requests` any more. */
static void make_sessions(struct maker *m, const struct habits *h) {
    double at_s = 0, end_s = (double)m->recipe->requests / m->recipe->rate;
    uint32_t session = 0;
    m->next_id = (uint64_t)h->systems * (h->system_tokens / m->t->block);
    while (!m->full && (at_s <= end_s || m->t->n < m->recipe->requests)) {
        make_session(m, h, at_s, session++);
        at_s += draw_exponential(&m->rng, h->turns / m->recipe->rate);
    }
}

tarn_status trace_generate(struct trace *t, const struct trace_recipe *recipe, const char **why_p) {
    TARN_ASSERT(t->n == 0 && recipe->requests > 0 && recipe->rate > 0);
    struct maker m = {.t = t, .recipe = recipe};
    const struct habits *h = &habits_of[recipe->kind];
    m.ids_max = recipe->ids_max != 0 ? recipe->ids_max : TRACE_IDS_MAX;
    t->block = recipe->block != 0 ? recipe->block : TRACE_BLOCK;
    rng_seed(&m.rng, recipe->seed);
    if (recipe->kind == TRACE_DOCUMENTS || recipe->kind == TRACE_HOT) {
        draw_zipf_init(m.zipf, DOCUMENTS, 0.9);
        make_documents(&m);
    } else {
        draw_zipf_init(m.zipf, h->systems, 1);
        make_sessions(&m, h);
    }
    if (m.full)
        return status_fail(TARN_ELIMIT, why_p,
                           "%zu requests of %s have more than %llu blocks of %u tokens: fewer "
                           "--requests, or a larger --block",
                           recipe->requests, kind_names[recipe->kind],
                           (unsigned long long)m.ids_max, t->block);
    trace_sort(t);
    if (t->n > recipe->requests) t->n = recipe->requests;
    return TARN_OK;
}
