/* Traces of requests to inference engines: when each came, how long its prompt and its answer were,
 * and which blocks of its prompt it shares with others. Read from the public formats, or made.
 *
 *   mooncake   JSON lines: timestamp (ms), input_length, output_length, hash_ids, of 512 tokens
 *              each (Mooncake, FAST 2025); perhaps session, a number, which is our own
 *   bailian    JSON lines: chat_id, parent_chat_id, timestamp (s), input_length, output_length,
 *              type, turn, hash_ids, of 16 tokens each (Alibaba's Bailian, ATC 2025)
 *   burstgpt   CSV: Timestamp (s), Request tokens, Response tokens, perhaps Session ID (BurstGPT,
 *              KDD 2025). Rows whose answer is empty failed there, and are left out
 *   azure      CSV: TIMESTAMP (date and time), ContextTokens, GeneratedTokens (Azure, 2023, 2024)
 *
 * A prefix shares its ids. The two CSVs have none: they get them by the model of share.c.
 *
 * Lines are read one by one and checked field by field; what is kept is bounded by the limits
 * below. One thread. */
#ifndef TARN_TRACE_TRACE_H
#define TARN_TRACE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/status.h"

#define TRACE_BLOCK        512u /* tokens of a block, of mooncake's traces */
#define TRACE_LINE_MAX     (UINT64_C(16) << 20)
#define TRACE_REQUESTS_MAX (UINT64_C(1) << 26)
#define TRACE_IDS_MAX      (UINT64_C(1) << 28) /* of all requests together: some GiB */
#define TRACE_TOKENS_MAX   (UINT64_C(1) << 26) /* of a prompt, and of an answer */
#define TRACE_TIME_MAX_MS  (UINT64_C(1) << 48)
#define TRACE_SESSION_NONE UINT32_MAX

enum trace_format {
    TRACE_AUTO, /* by the first line */
    TRACE_MOONCAKE,
    TRACE_BAILIAN,
    TRACE_BURSTGPT,
    TRACE_AZURE,
    TRACE_FORMATS
};

struct trace_request {
    uint64_t timestamp_ms;
    uint64_t first; /* into trace.ids */
    uint32_t n;
    uint32_t input, output; /* tokens */
    uint32_t session;       /* those with one number are one conversation; TRACE_SESSION_NONE */
};

/* Zeroed is empty. */
struct trace {
    struct trace_request *requests;
    size_t n, cap;
    uint64_t *ids;
    size_t n_ids, cap_ids;
    size_t longest;   /* most blocks of one request */
    uint32_t block;   /* tokens of a block */
    uint64_t skipped; /* rows that were left out (burstgpt) */
    uint64_t clipped; /* ids beyond the prompt's length, which were dropped */
    enum trace_format format;
};

struct trace_options {
    enum trace_format format;
    size_t limit;       /* requests, 0: TRACE_REQUESTS_MAX */
    bool lengths_apart; /* input_length and output_length may be missing (0 then) */
    uint32_t block;     /* of CSVs, 0: 512 */
    uint64_t seed;      /* of share.c */
};

/* Appends the requests of a file. TARN_EINVAL: a line is wrong; *why_p has file, line and field.
 * TARN_EIO: it cannot be read. TARN_ELIMIT: too large. *t is to be freed in any case. */
tarn_status trace_load(struct trace *t, const char *path, const struct trace_options *o,
                       const char **why_p);
/* The same of text in memory; name is what messages call it. */
tarn_status trace_parse(struct trace *t, struct span text, const char *name,
                        const struct trace_options *o, const char **why_p);
void trace_free(struct trace *t);

/* "mooncake" ...; TRACE_FORMATS: unknown. */
enum trace_format trace_format_of(const char *name);
const char *trace_format_name(enum trace_format format);

/* In the order of their times; those of one time stay as they are. */
void trace_sort(struct trace *t);
/* Ids become 0, 1, 2 ... in the order of their first use. Returns how many there are. */
uint64_t trace_number(struct trace *t);

/* --- the same requests in other ways (transform.c) --- */

enum trace_transform {
    TRACE_WHOLE,
    TRACE_FIRST_HALF, /* of the requests */
    TRACE_LAST_HALF,
    /* The order of whole sessions is reversed in time, while the requests of each keep theirs.
     * Where the trace tells no sessions, a request goes on with one when it has all blocks of that
     * one's last prompt but the last, and at least two */
    TRACE_REVERSED_SESSIONS,
    TRACE_TRANSFORMS
};
enum trace_transform trace_transform_of(const char *name); /* TRACE_TRANSFORMS: unknown */
const char *trace_transform_name(enum trace_transform transform);
/* A copy, sorted as t is. To be freed. */
void trace_transform(struct trace *out, const struct trace *t, enum trace_transform transform);

/* --- traces that are made (generate.c) --- */

enum trace_kind {
    TRACE_CHAT,
    TRACE_AGENTS,
    TRACE_DOCUMENTS,
    TRACE_HOT,
    TRACE_TOOLS,
    TRACE_BRANCHES,
    TRACE_SCAN,
    TRACE_REGIME,
    TRACE_LONG,
    TRACE_BURSTS,
    TRACE_RAG,
    TRACE_NIGHTLY,
    TRACE_TENANTS,
    TRACE_KINDS
};
struct trace_recipe {
    enum trace_kind kind;
    size_t requests;
    double rate;    /* requests a second */
    uint64_t seed;  /* the same one, the same trace */
    uint32_t block; /* tokens, 0: 512 */
    size_t ids_max; /* 0: TRACE_IDS_MAX */
};
enum trace_kind trace_kind_of(const char *name); /* TRACE_KINDS: unknown */
const char *trace_kind_name(enum trace_kind kind);
/* Into an empty trace, sorted. TARN_ELIMIT: it would have too many ids. It is to be freed in any
 * case. */
tarn_status trace_generate(struct trace *t, const struct trace_recipe *recipe, const char **why_p);

/* Writes the requests [from, to) as mooncake's lines into out. */
void trace_write(const struct trace *t, size_t from, size_t to, struct buf *out);

#endif
