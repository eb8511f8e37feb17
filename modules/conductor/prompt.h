/* A prompt as the hashes of its blocks, by each size of block that its engines have
 * (src/route/hash.h). Pure. */
#ifndef TARN_CONDUCTOR_PROMPT_H
#define TARN_CONDUCTOR_PROMPT_H

#include "base/buf.h"
#include "route/route.h"

/* Blocks of one size that are hashed; what lies behind them is not looked for. */
#define PROMPT_BLOCKS_MAX 32768u
#define PROMPT_TOKENS_MAX (1u << 20) /* of a blob */
#define PROMPT_ERROR_SIZE 256u

/* What a request says of it. Borrowed; what it does not say is empty, or 0. */
struct prompt_said {
    struct span model, lora, salt;
    struct span tokens, extra; /* u32, little-endian; as hash.h has it */
    const struct span *hashes; /* rolling ones, as decimal numbers */
    uint32_t n_hashes;
    uint32_t block; /* tokens of a block that the hashes are of */
    uint32_t length;
};

enum prompt_fault {
    PROMPT_RIGHT,
    PROMPT_WRONG,
    PROMPT_CUT,   /* bytes are missing, or LENGTH does not fit */
    PROMPT_MISFIT /* no engine has blocks of that size */
};

struct prompt {
    struct route_chain chains[ROUTE_CHAINS_MAX];
    uint32_t n;
    uint32_t length;
    struct buf rolling, aligned; /* its own memory, used again */
};

/* sizes: of the blocks of the engines that serve the model; none: then there are no chains.
 * Anything but PROMPT_RIGHT: error says what is wrong. */
enum prompt_fault prompt_make(struct prompt *p, const struct prompt_said *said,
                              const uint32_t *sizes, uint32_t n_sizes, uint64_t seed,
                              char error[PROMPT_ERROR_SIZE]);
void prompt_free(struct prompt *p);

#endif
