#include "repl/history.h"

#include <string.h>
#include <strings.h>
#include <sodium.h>

void repl_new_id(char id[REPL_ID_LEN + 1]) {
    unsigned char random[REPL_ID_LEN / 2];
    randombytes_buf(random, sizeof(random));
    sodium_bin2hex(id, REPL_ID_LEN + 1, random, sizeof(random));
}

static void forget_second(struct repl_history *h) {
    memset(h->id2, '0', REPL_ID_LEN);
    h->id2[REPL_ID_LEN] = '\0';
    h->second = -1;
}

void repl_history_renew(struct repl_history *h) {
    repl_new_id(h->id);
    forget_second(h);
}

void repl_history_shift(struct repl_history *h, const char *id) {
    memcpy(h->id2, h->id, sizeof(h->id2));
    h->second = (int64_t)h->offset + 1;
    if (id != NULL)
        memcpy(h->id, id, REPL_ID_LEN);
    else
        repl_new_id(h->id);
}

void repl_history_adopt(struct repl_history *h, const char *id, uint64_t offset) {
    memcpy(h->id, id, REPL_ID_LEN);
    h->id[REPL_ID_LEN] = '\0';
    forget_second(h);
    h->offset = offset;
}

bool repl_history_continues(const struct repl_history *h, const struct repl_backlog *b,
                            const char *id, uint64_t next) {
    bool same = strcasecmp(id, h->id) == 0;
    bool before = h->second >= 0 && strcasecmp(id, h->id2) == 0 && next <= (uint64_t)h->second;
    return (same || before) && repl_backlog_holds(b, h->offset, next);
}

bool repl_id_valid(const char *id, unsigned len) {
    if (len != REPL_ID_LEN) return false;
    for (unsigned i = 0; i < len; i++)
        if (!((id[i] >= '0' && id[i] <= '9') || (id[i] >= 'a' && id[i] <= 'f'))) return false;
    return true;
}
