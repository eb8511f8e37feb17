/* Traces that are made by seed, of some kinds of users:
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
 *   tools      agents whose tool takes 5, 30 or 180 s, nearly the same each time; of every three
 *              agents one never comes back from its first call
 *   branches   single prompts and short chats: 4 system prompts of 2,048 tokens, each with 6 parts
 *              of 2,048, each of these with 6 templates of 2,048
 *
 * and of several kinds together, as mixes[] has them:
 *
 *   scan       chats, and half of the requests are prompts of 8,000 tokens that never come again
 *   regime     chats in the first half of the time, documents in the second
 *   long       few conversations of 40 turns, and two of three requests ask once
 *   bursts     chats, all of which begin in the first 30 s of each ten minutes
 *   rag        prompts of four of 400 pieces of 1,024 tokens, in any order, behind an instruction;
 *              a piece is found again only behind the same ones
 *   nightly    chats, and twice 400 prompts of 16,384 tokens each, in the same order
 *   tenants    chats, agents, documents and prompts that are asked once, all in one pool
 *
 * Lengths are log-normal. An answer's blocks are new ids in the next prompt, as in the public
 * traces: what an engine computed for an answer is not a block that it stores. */
#include <stdlib.h>

#include "base/assert.h"
#include "base/draw.h"
#include "trace/trace.h"

static const char *const kind_names[TRACE_KINDS] = {
    "chat",   "agents", "documents", "hot", "tools",   "branches", "scan",
    "regime", "long",   "bursts",    "rag", "nightly", "tenants"};

enum {
    DOCUMENTS = 2000,
    NEWS_TOKENS = 32768,
    PIECES = 400,
    PIECE_TOKENS = 1024,
    BATCH = 400,
    BATCH_TOKENS = 16384,
    PROMPT_MAX = 131072,
    TURNS_MAX = 64
};

struct habits {
    unsigned systems;
    uint32_t system_tokens;
    double task, message, answer, sigma; /* medians in tokens */
    double turns, think_s;
    double text_share, text; /* how often a text comes with a message, and its median */
    unsigned fan;            /* parts of a system prompt, and templates of a part */
    bool regular;            /* the same time between all turns, of three that there are */
    double lost;             /* share that never comes back */
    double burst;            /* share of the time in which they begin, 0: all of it */
};

enum source { CHAT, AGENTS, TOOLS, BRANCHES, LONG, ONCE, SCAN, BURSTS, SESSIONS_END };
enum { DOCUMENT = SESSIONS_END, HOT, RAG, NIGHT };

static const struct habits habits_of[SESSIONS_END] = {
    [CHAT] = {16, 1024, 250, 250, 300, 0.8, 5, 60, 0.1, 6000, .fan = 0},
    [AGENTS] = {4, 4096, 600, 700, 90, 0.9, 12, 3, 0.05, 5000, .fan = 0},
    [TOOLS] = {4, 4096, 600, 700, 90, 0.9, 12, 0, 0.05, 5000, .regular = true, .lost = 1 / 3.0},
    [BRANCHES] = {4, 2048, 400, 250, 300, 0.8, 1.5, 60, 0.1, 6000, .fan = 6},
    [LONG] = {16, 1024, 600, 400, 400, 0.8, 40, 60, 0.1, 6000, .fan = 0},
    [ONCE] = {16, 1024, 2000, 0, 200, 1.0, 1, 0, 0, 0, .fan = 0},
    [SCAN] = {0, 0, 8000, 0, 200, 0.5, 1, 0, 0, 0, .fan = 0},
    [BURSTS] = {16, 1024, 250, 250, 300, 0.8, 5, 60, 0.1, 6000, .burst = 0.05},
};

/* Who asks: how much of the rate, and in which part of the time. What goes on to its end goes on
 * beyond that, as those that began before have yet to ask; what is too late is cut off. */
#define ENOUGH INFINITY /* until there are so many requests */
struct askers {
    unsigned source;
    double rate, from, to;
};
#define PARTS 4
static const struct askers mixes[TRACE_KINDS][PARTS] = {
    [TRACE_CHAT] = {{CHAT, 1, 0, ENOUGH}},
    [TRACE_AGENTS] = {{AGENTS, 1, 0, ENOUGH}},
    [TRACE_DOCUMENTS] = {{DOCUMENT, 1, 0, ENOUGH}},
    [TRACE_HOT] = {{HOT, 1, 0, ENOUGH}},
    [TRACE_TOOLS] = {{TOOLS, 1, 0, 1}},
    [TRACE_BRANCHES] = {{BRANCHES, 1, 0, 1}},
    [TRACE_SCAN] = {{CHAT, 0.5, 0, 1}, {SCAN, 0.5, 0, 1}},
    [TRACE_REGIME] = {{CHAT, 1, 0, 0.5}, {DOCUMENT, 1, 0.5, 1}},
    [TRACE_LONG] = {{LONG, 1 / 3.0, 0, 1}, {ONCE, 2 / 3.0, 0, 1}},
    [TRACE_BURSTS] = {{BURSTS, 1, 0, 1}},
    [TRACE_RAG] = {{RAG, 1, 0, 1}},
    [TRACE_NIGHTLY] = {{CHAT, 1, 0, 1}, {NIGHT, 4, 0.3, 0.4}, {NIGHT, 4, 0.8, 0.9}},
    [TRACE_TENANTS] = {{CHAT, 0.35, 0, 1},
                       {AGENTS, 0.35, 0, 1},
                       {DOCUMENT, 0.15, 0, 1},
                       {ONCE, 0.15, 0, 1}},
};

struct maker {
    struct trace *t;
    const struct trace_recipe *recipe;
    struct rng rng;
    double rate, from_s, to_s; /* of the part that is made */
    double longer;             /* than its time a part goes on that goes on to the end */
    double cut_s;              /* what comes later is cut off in any case */
    bool alone;                /* it goes on until there are enough requests */
    uint64_t next_id;
    uint64_t root; /* of the part's sessions: the id of the first system prompt */
    uint32_t sessions;
    double zipf[DOCUMENTS];
    uint64_t *document; /* DOCUMENTS first ids, and that of the news */
    uint32_t document_tokens[DOCUMENTS + 1];
    uint64_t night; /* first id of what is asked by night, 0: not yet */
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

/* Whole blocks for so many tokens, at least one. */
static uint32_t blocks_for(const struct trace *t, uint32_t tokens) {
    return tokens > t->block ? tokens / t->block : 1;
}

static void push_single(struct maker *m, double at_s, size_t first, uint32_t input, double answer) {
    push_request(m->t, (struct trace_request){.timestamp_ms = (uint64_t)(at_s * 1000),
                                              .first = first,
                                              .input = input,
                                              .output = draw_tokens(m, answer, 0.7),
                                              .session = TRACE_SESSION_NONE});
}

/* --- conversations --- */

/* What comes before a conversation's own words: node after node of a tree, of `per` blocks each. */
struct prefix {
    uint64_t node[3]; /* first ids */
    uint32_t nodes, per;
};

static struct prefix draw_prefix(struct maker *m, const struct habits *h) {
    struct prefix p = {.nodes = 1, .per = h->system_tokens / m->t->block};
    if (h->systems == 0) return (struct prefix){0};
    uint64_t node = draw_zipf(&m->rng, m->zipf, h->systems), level = h->systems, base = 0;
    p.node[0] = m->root + node * p.per;
    for (; h->fan > 0 && p.nodes < 3; p.nodes++) {
        base += level;
        level *= h->fan;
        node = node * h->fan + draw_zipf(&m->rng, m->zipf, h->fan);
        p.node[p.nodes] = m->root + (base + node) * p.per;
    }
    return p;
}

static uint64_t prefix_nodes(const struct habits *h) {
    return h->systems * (h->fan == 0 ? 1 : 1 + h->fan + (uint64_t)h->fan * h->fan);
}

static void push_opening(struct maker *m, const struct prefix *p, uint32_t tokens) {
    uint32_t blocks = prompt_blocks(m, tokens), known = p->nodes * p->per;
    for (uint32_t i = 0; i < blocks; i++)
        push_id(m->t, i < known ? p->node[i / p->per] + i % p->per : m->next_id++);
}

/* 5, 30 or 180 s. */
static double draw_tool_s(struct maker *m) {
    double at = draw_unit(&m->rng);
    return at < 1 / 3.0 ? 5 : at < 2 / 3.0 ? 30 : 180;
}

/* One conversation, all its turns. Between them the ids of the last prompt are found in the trace
 * itself. */
static void make_session(struct maker *m, const struct habits *h, double at_s) {
    struct trace *t = m->t;
    const struct prefix prefix = draw_prefix(m, h);
    unsigned turns = draw_geometric(&m->rng, h->turns, TURNS_MAX);
    if (h->lost > 0 && draw_unit(&m->rng) < h->lost) turns = 1;
    double tool_s = h->regular ? draw_tool_s(m) : 0;
    uint64_t tokens = prefix.nodes * h->system_tokens + draw_tokens(m, h->task, h->sigma);
    uint64_t last = 0;
    uint32_t whole = 0, session = m->sessions++;
    for (unsigned turn = 0; turn < turns && tokens <= PROMPT_MAX && at_s <= m->cut_s && !m->full;
         turn++) {
        struct trace_request q = {.timestamp_ms = (uint64_t)(at_s * 1000),
                                  .first = t->n_ids,
                                  .input = (uint32_t)tokens,
                                  .output = draw_tokens(m, h->answer, 0.7),
                                  .session = session};
        if (turn == 0) {
            push_opening(m, &prefix, q.input);
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
        at_s += 0.02 * q.output + (h->regular ? draw_lognormal(&m->rng, tool_s, 0.1)
                                              : draw_lognormal(&m->rng, h->think_s, 1.0));
    }
}

/* When one begins that would begin at that time: all of each 600 s in their first part. */
static double burst_s(const struct habits *h, double at_s) {
    double begins = floor(at_s / 600) * 600;
    return h->burst > 0 ? begins + (at_s - begins) * h->burst : at_s;
}

/* Sessions begin as often as makes the rate of requests, until those that begin later cannot be
 * among the first `requests` any more. */
static void make_sessions(struct maker *m, const struct habits *h) {
    double at_s = m->from_s;
    double turns = h->lost + (1 - h->lost) * h->turns;
    if (h->systems > 0) draw_zipf_init(m->zipf, h->systems > h->fan ? h->systems : h->fan, 1);
    m->root = m->next_id;
    m->next_id += prefix_nodes(h) * (h->system_tokens / m->t->block);
    while (!m->full && (at_s <= m->to_s || (m->alone && m->t->n < m->recipe->requests))) {
        make_session(m, h, burst_s(h, at_s));
        at_s += draw_exponential(&m->rng, turns / m->rate);
    }
}

/* --- single prompts --- */

/* Until the part is over. */
static bool next_single(struct maker *m, double *at_s) {
    *at_s += draw_exponential(&m->rng, 1 / m->rate);
    return !m->full && *at_s <= m->to_s;
}

static void make_documents(struct maker *m, bool news) {
    struct trace *t = m->t;
    size_t known = news ? m->recipe->requests / 3 : SIZE_MAX; /* until then there are no news */
    m->document = xcalloc(DOCUMENTS + 1, sizeof(*m->document));
    draw_zipf_init(m->zipf, DOCUMENTS, 0.9);
    for (unsigned i = 0; i <= DOCUMENTS; i++) {
        uint32_t tokens = NEWS_TOKENS;
        if (i < DOCUMENTS) tokens = (uint32_t)(4096 * pow(16, draw_unit(&m->rng)));
        uint32_t blocks = tokens / t->block;
        m->document[i] = m->next_id;
        m->document_tokens[i] = blocks * t->block;
        m->next_id += blocks;
    }
    double at_s = m->from_s;
    while (!m->full && (!m->alone || t->n < m->recipe->requests)) {
        size_t k = draw_zipf(&m->rng, m->zipf, DOCUMENTS);
        bool hot = news && t->n >= known && draw_unit(&m->rng) < 0.5;
        if (hot) k = DOCUMENTS;
        at_s += draw_exponential(&m->rng, 1 / m->rate);
        if (!m->alone && at_s > m->to_s) break;
        size_t first = t->n_ids;
        uint32_t input = m->document_tokens[k] + draw_tokens(m, hot ? 4000 : 100, 0.5);
        push_prompt(m, m->document[k], m->document_tokens[k] / t->block, input);
        push_single(m, at_s, first, input, 200);
    }
    free(m->document);
    m->document = NULL;
}

/* A block's id follows from all that is before it, too. */
static void make_rag(struct maker *m) {
    struct trace *t = m->t;
    uint32_t per = blocks_for(t, PIECE_TOKENS);
    draw_zipf_init(m->zipf, PIECES, 0.9);
    for (double at_s = m->from_s; next_single(m, &at_s);) {
        uint64_t id = 0;
        size_t piece[4], first = t->n_ids;
        for (unsigned i = 0; i < 4; i++) piece[i] = draw_zipf(&m->rng, m->zipf, PIECES);
        uint32_t input = 5 * per * t->block + draw_tokens(m, 100, 0.5);
        uint32_t blocks = prompt_blocks(m, input);
        for (uint32_t i = 0; i < blocks; i++) {
            id = mix64(id ^ mix64(i < per ? i : per + piece[(i / per - 1) % 4] * per + i % per));
            push_id(t, i < 5 * per ? id : m->next_id++);
        }
        push_single(m, at_s, first, input, 300);
    }
}

/* The same prompts each night, in the same order. */
static void make_night(struct maker *m) {
    uint32_t per = blocks_for(m->t, BATCH_TOKENS);
    uint64_t all = (uint64_t)BATCH * per;
    if (m->night == 0) {
        m->night = m->next_id;
        m->next_id += all;
    }
    uint64_t i = 0;
    for (double at_s = m->from_s; i < BATCH && next_single(m, &at_s); i++) {
        size_t first = m->t->n_ids;
        push_prompt(m, m->night + i * per, per, per * m->t->block);
        push_single(m, at_s, first, per * m->t->block, 300);
    }
}

static void make_part(struct maker *m, const struct askers *who) {
    double end_s = (double)m->recipe->requests / m->recipe->rate;
    m->rate = who->rate * m->recipe->rate;
    m->from_s = who->from * end_s;
    m->alone = who->to == ENOUGH;
    m->cut_s = m->alone ? INFINITY : m->longer * end_s;
    m->to_s = m->alone ? end_s : who->to < 1 ? who->to * end_s : m->cut_s;
    switch (who->source) {
    case DOCUMENT: make_documents(m, false); break;
    case HOT: make_documents(m, true); break;
    case RAG: make_rag(m); break;
    case NIGHT: make_night(m); break;
    default: make_sessions(m, &habits_of[who->source]); break;
    }
}

/* false: it would have too many ids. */
static bool make_trace(struct trace *t, const struct trace_recipe *recipe, double longer) {
    const struct askers *parts = mixes[recipe->kind];
    struct maker *m = xcalloc(1, sizeof(*m));
    m->t = t;
    m->recipe = recipe;
    m->longer = longer;
    m->ids_max = recipe->ids_max != 0 ? recipe->ids_max : TRACE_IDS_MAX;
    rng_seed(&m->rng, recipe->seed);
    t->n = t->n_ids = t->longest = 0;
    for (unsigned i = 0; i < PARTS && parts[i].rate > 0; i++) make_part(m, &parts[i]);
    bool ok = !m->full;
    free(m);
    return ok;
}

tarn_status trace_generate(struct trace *t, const struct trace_recipe *recipe, const char **why_p) {
    TARN_ASSERT(t->n == 0 && recipe->requests > 0 && recipe->rate > 0);
    t->block = recipe->block != 0 ? recipe->block : TRACE_BLOCK;
    double longer = 1.5;
    bool ok;
    while ((ok = make_trace(t, recipe, longer)) && t->n < recipe->requests) longer *= 2;
    if (!ok)
        return status_fail(
            TARN_ELIMIT, why_p,
            "%zu requests of %s have more than %llu blocks of %u tokens: fewer "
            "--requests, or a larger --block",
            recipe->requests, kind_names[recipe->kind],
            (unsigned long long)(recipe->ids_max != 0 ? recipe->ids_max : TRACE_IDS_MAX), t->block);
    trace_sort(t);
    if (t->n > recipe->requests) t->n = recipe->requests;
    return TARN_OK;
}
