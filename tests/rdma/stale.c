/* An RDMA client that keeps what it should have forgotten: queue pairs, keys and grants, and uses
 * them when it is told to. It is made from docs/DATA-PROTOCOL.md alone, with libibverbs and
 * librdmacm, not from the code of libtarn or of the module.
 *
 *     stale ADDRESS-OF-ITS-DEVICE MASTER-HOST MASTER-PORT
 *
 * Commands on standard input, an answer line for each:
 *
 *     open NAME SEGMENT read|write   a session with the master, SEGMENT INFO, and a connection with
 *                                    what it said
 *     info NAME SEGMENT              the same without the connection
 *     again NAME [read|write]        another connection, with the old grant and epochs; or for
 *                                    another right
 *     put NAME KEY SIZE              PUTSTART in that session; answers the offset of its first
 *                                    extent there
 *     call NAME WORD...              any command in that session
 *     leave NAME                     ends the session, keeps the connection
 *     write NAME AT LENGTH BYTE [KEYS-OF]    one WRITE, with the keys of another NAME if one is
 *                                            given
 *     read NAME AT LENGTH [KEYS-OF]          one READ; answers the byte, if all are the same
 *     header NAME write              a WRITE to the segment header
 *     end
 *
 * Answers: "ok ...", "refused N" (the host's own number), "failed WHY" (no connection), "error WHY"
 * (of a work completion). */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rdma/wire.h"

#define NAMES_MAX    16
#define BUFFER_BYTES (4u << 20)
#define WORDS_MAX    8
#define RESOLVE_MS   2000
#define WAIT_MS      15000

struct holder {
    char name[32];
    redisContext *master;
    /* what SEGMENT INFO said */
    uint32_t segment, epoch;
    enum rdma_right right;
    uint8_t grant[GRANT_SIZE];
    struct rdma_key_header key;
    struct rdma_key_device device;
    uint32_t *rkeys; /* n_chunks */
    /* the connection */
    struct rdma_cm_id *id;
    struct ibv_cq *cq;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
};

static struct holder holders[NAMES_MAX];
static char *buffer;
static const char *own_address, *master_host;
static int master_port;

static void answer(const char *kind, const char *text) {
    printf("%s%s%s\n", kind, text[0] != '\0' ? " " : "", text);
    fflush(stdout);
}

static struct holder *holder_find(const char *name, bool make) {
    for (size_t i = 0; i < NAMES_MAX; i++) {
        if (strcmp(holders[i].name, name) == 0) return &holders[i];
    }
    for (size_t i = 0; make && i < NAMES_MAX; i++) {
        if (holders[i].name[0] != '\0') continue;
        snprintf(holders[i].name, sizeof(holders[i].name), "%s", name);
        return &holders[i];
    }
    return NULL;
}

/* --- the master --- */

static const redisReply *field(const redisReply *map, const char *name) {
    for (size_t i = 0; map != NULL && map->type == REDIS_REPLY_ARRAY && i + 1 < map->elements;
         i += 2) {
        if (strcmp(map->element[i]->str, name) == 0) return map->element[i + 1];
    }
    return NULL;
}

/* Header, first device and its keys; the rest is not needed here. */
static bool key_take(struct holder *h, const redisReply *packed) {
    size_t need = sizeof(h->key) + sizeof(h->device);
    if (packed == NULL || packed->type != REDIS_REPLY_STRING || packed->len < need) return false;
    memcpy(&h->key, packed->str, sizeof(h->key));
    memcpy(&h->device, packed->str + sizeof(h->key), sizeof(h->device));
    need += 4ull * h->key.n_chunks;
    if (h->key.magic != RDMA_KEY_MAGIC || h->key.n_chunks == 0 ||
        h->key.n_chunks > RDMA_CHUNKS_MAX || h->key.chunk_size == 0 || packed->len < need)
        return false;
    free(h->rkeys);
    h->rkeys = malloc(4ull * h->key.n_chunks);
    memcpy(h->rkeys, packed->str + sizeof(h->key) + sizeof(h->device), 4ull * h->key.n_chunks);
    return true;
}

/* NULL: taken; else why not. */
static const char *info_take(struct holder *h, const redisReply *info) {
    const redisReply *id = field(info, "id"), *epoch = field(info, "epoch"),
                     *keys = field(info, "keys"),
                     *grant = field(info, h->right == RDMA_WRITE ? "attach_write" : "attach_read");
    if (id == NULL || epoch == NULL || keys == NULL || grant == NULL)
        return "SEGMENT INFO lacks a field";
    h->segment = (uint32_t)id->integer;
    h->epoch = (uint32_t)epoch->integer;
    if (grant->len != GRANT_SIZE) return "no grant";
    memcpy(h->grant, grant->str, GRANT_SIZE);
    for (size_t i = 0; i < keys->elements; i++) {
        const redisReply *k = keys->element[i];
        if (k->elements == 3 && strncmp(k->element[0]->str, "rdma:", 5) == 0)
            return key_take(h, k->element[h->right == RDMA_WRITE ? 2 : 1]) ? NULL
                                                                           : "a bad packed key";
    }
    return "no key for rdma";
}

static const char *master_ask(struct holder *h, const char *segment) {
    struct timeval patience = {10, 0};
    if (h->master == NULL) h->master = redisConnectWithTimeout(master_host, master_port, patience);
    if (h->master == NULL || h->master->err) return "no master";
    redisSetTimeout(h->master, patience);
    redisReply *info = redisCommand(h->master, "SEGMENT INFO %s", segment);
    if (info == NULL) return "the master does not answer";
    const char *why = info->type == REDIS_REPLY_ERROR ? "no such segment" : info_take(h, info);
    freeReplyObject(info);
    return why;
}

/* --- connections --- */

static void connection_close(struct holder *h) {
    if (h->mr != NULL) ibv_dereg_mr(h->mr);
    if (h->id != NULL) {
        if (h->id->qp != NULL) rdma_destroy_qp(h->id);
        rdma_destroy_id(h->id);
    }
    if (h->cq != NULL) ibv_destroy_cq(h->cq);
    if (h->pd != NULL) ibv_dealloc_pd(h->pd);
    h->mr = NULL;
    h->id = NULL;
    h->cq = NULL;
    h->pd = NULL;
}

static bool address_resolve(struct holder *h) {
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    inet_pton(AF_INET, own_address, &from.sin_addr);
    memcpy(&to.sin_addr, h->device.address + 12, 4);
    to.sin_port = htons(le16toh(h->device.port));
    return rdma_resolve_addr(h->id, (struct sockaddr *)&from, (struct sockaddr *)&to, RESOLVE_MS) ==
               0 &&
           rdma_resolve_route(h->id, RESOLVE_MS) == 0;
}

static bool queue_pair_make(struct holder *h) {
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC, .cap = {16, 1, 1, 1, 0}, .sq_sig_all = 1};
    h->pd = ibv_alloc_pd(h->id->verbs);
    h->cq = ibv_create_cq(h->id->verbs, 64, NULL, NULL, 0);
    if (h->pd == NULL || h->cq == NULL) return false;
    h->mr = ibv_reg_mr(h->pd, buffer, BUFFER_BYTES, IBV_ACCESS_LOCAL_WRITE);
    attr.send_cq = attr.recv_cq = h->cq;
    return h->mr != NULL && rdma_create_qp(h->id, h->pd, &attr) == 0;
}

static void connection_open(struct holder *h) {
    struct rdma_request request = {.magic = RDMA_WIRE_MAGIC,
                                   .version = RDMA_WIRE_VERSION,
                                   .right = (uint8_t)h->right,
                                   .segment = h->segment,
                                   .segment_epoch = h->epoch};
    struct rdma_conn_param param = {.private_data = &request,
                                    .private_data_len = sizeof(request),
                                    .initiator_depth = 1,
                                    .responder_resources = 1,
                                    .retry_count = 4};
    uint8_t ack_timeout = 15; /* 134 ms: who was cut off need not wait long for the error */
    char text[100];
    memcpy(request.grant, h->grant, GRANT_SIZE);
    connection_close(h);
    if (rdma_create_id(NULL, &h->id, NULL, RDMA_PS_TCP) != 0 ||
        rdma_set_option(h->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, 1) != 0 ||
        !address_resolve(h)) {
        answer("failed", "no way to the host");
    } else if (!queue_pair_make(h)) {
        answer("failed", "no queue pair");
    } else if (rdma_connect(h->id, &param) != 0) {
        const struct rdma_cm_event *event = h->id->event;
        struct rdma_reject reject;
        if (event != NULL && event->event == RDMA_CM_EVENT_REJECTED &&
            event->param.conn.private_data_len >= sizeof(reject)) {
            memcpy(&reject, event->param.conn.private_data, sizeof(reject));
            snprintf(text, sizeof(text), "%u", le32toh(reject.refusal));
            if (le16toh(reject.magic) == RDMA_WIRE_MAGIC) {
                answer("refused", text);
                return;
            }
        }
        snprintf(text, sizeof(text), "%s (%s)",
                 event != NULL ? rdma_event_str(event->event) : "no event", strerror(errno));
        answer("failed", text);
    } else {
        answer("ok", "");
    }
}

/* --- reading and writing --- */

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* NULL: done. */
static const char *transfer(struct holder *h, bool write, uint64_t remote, uint32_t rkey,
                            uint32_t length) {
    struct ibv_sge sge = {(uintptr_t)buffer, length, h->mr != NULL ? h->mr->lkey : 0};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {remote, rkey}};
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    if (h->id == NULL || h->id->qp == NULL) return "no queue pair";
    if (ibv_post_send(h->id->qp, &wr, &bad) != 0) return "not posted";
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end; usleep(1000)) {
        int n = ibv_poll_cq(h->cq, 1, &wc);
        if (n < 0) return "the completion queue is broken";
        if (n > 0) return wc.status == IBV_WC_SUCCESS ? NULL : ibv_wc_status_str(wc.status);
    }
    return "no completion";
}

/* AT LENGTH [BYTE] [KEYS-OF] */
static void cmd_transfer(struct holder *h, bool write, char **word, size_t words) {
    size_t fixed = write ? 3 : 2;
    char text[100] = "";
    uint64_t at = words > 0 ? strtoull(word[0], NULL, 0) : 0,
             length = words > 1 ? strtoull(word[1], NULL, 0) : 0;
    const struct holder *keys = words > fixed ? holder_find(word[fixed], false) : h;
    if (words < fixed || keys == NULL || keys->rkeys == NULL || length == 0 ||
        length > BUFFER_BYTES || at + length > keys->key.size ||
        at / keys->key.chunk_size != (at + length - 1) / keys->key.chunk_size) {
        answer("usage", "AT LENGTH [BYTE] [KEYS-OF], inside a chunk");
        return;
    }
    memset(buffer, write ? (int)strtoul(word[2], NULL, 0) : 0xee, length);
    const char *why = transfer(h, write, keys->key.address + at,
                               keys->rkeys[at / keys->key.chunk_size], (uint32_t)length);
    if (why == NULL && !write) {
        bool same = memcmp(buffer, buffer + 1, length - 1) == 0;
        snprintf(text, sizeof(text), same ? "%u" : "mixed", (unsigned)(uint8_t)buffer[0]);
    }
    answer(why == NULL ? "ok" : "error", why == NULL ? text : why);
}

static void cmd_header(struct holder *h, bool write) {
    memset(buffer, 0, 64);
    const char *why = transfer(h, write, h->key.header_address, h->device.header_rkey, 64);
    char text[9] = "";
    if (why == NULL && !write) snprintf(text, sizeof(text), "%.8s", buffer);
    answer(why == NULL ? "ok" : "error", why == NULL ? text : why);
}

/* --- commands --- */

/* PUTSTART's answer ends in a list of places, each with a list of extents: the first one's offset
 * is taken. */
static const redisReply *extent_find(const redisReply *r, uint32_t segment) {
    if (r->type != REDIS_REPLY_ARRAY) return NULL;
    if (r->elements == 5 && r->element[0]->type == REDIS_REPLY_INTEGER &&
        r->element[0]->integer == segment && r->element[4]->type == REDIS_REPLY_STRING &&
        r->element[4]->len == GRANT_SIZE)
        return r;
    for (size_t i = 0; i < r->elements; i++) {
        const redisReply *found = extent_find(r->element[i], segment);
        if (found != NULL) return found;
    }
    return NULL;
}

static void cmd_call(struct holder *h, char **word, size_t words, bool put) {
    const char *argv[WORDS_MAX + 1] = {"PUTSTART"};
    int argc = put ? 1 : 0;
    char text[300] = "";
    for (size_t i = 0; i < words; i++) argv[argc++] = word[i];
    redisReply *r = h->master != NULL ? redisCommandArgv(h->master, argc, argv, NULL) : NULL;
    if (r == NULL || r->type == REDIS_REPLY_ERROR) {
        answer("failed", r != NULL ? r->str : "no session");
    } else if (put) {
        const redisReply *x = extent_find(r, h->segment);
        if (x != NULL) snprintf(text, sizeof(text), "%lld", x->element[2]->integer);
        answer(x != NULL ? "ok" : "failed", x != NULL ? text : "its extent is elsewhere");
    } else {
        if (r->type == REDIS_REPLY_INTEGER) snprintf(text, sizeof(text), "%lld", r->integer);
        if (r->str != NULL) snprintf(text, sizeof(text), "%.200s", r->str);
        answer("ok", text);
    }
    if (r != NULL) freeReplyObject(r);
}

static enum rdma_right right_of(const char *word) {
    return strcmp(word, "write") == 0 ? RDMA_WRITE : RDMA_READ;
}

static void cmd_open(struct holder *h, char **word, size_t words, bool connect) {
    if (words > 1) h->right = right_of(word[1]);
    const char *why = words > 0 ? master_ask(h, word[0]) : "which segment?";
    if (why != NULL) {
        answer("failed", why);
    } else if (connect) {
        connection_open(h);
    } else {
        answer("ok", "");
    }
}

static void run(char **word, size_t words) {
    const char *what = word[0];
    bool makes = strcmp(what, "open") == 0 || strcmp(what, "info") == 0;
    struct holder *h = words > 1 ? holder_find(word[1], makes) : NULL;
    word += 2;
    words = words > 2 ? words - 2 : 0;
    if (h == NULL) {
        answer("usage", "COMMAND NAME ...");
    } else if (makes) {
        cmd_open(h, word, words, strcmp(what, "open") == 0);
    } else if (strcmp(what, "again") == 0) {
        if (words > 0) h->right = right_of(word[0]);
        connection_open(h);
    } else if (strcmp(what, "put") == 0 || strcmp(what, "call") == 0) {
        cmd_call(h, word, words, strcmp(what, "put") == 0);
    } else if (strcmp(what, "leave") == 0) {
        if (h->master != NULL) redisFree(h->master);
        h->master = NULL;
        answer("ok", "");
    } else if (strcmp(what, "read") == 0 || strcmp(what, "write") == 0) {
        cmd_transfer(h, strcmp(what, "write") == 0, word, words);
    } else if (strcmp(what, "header") == 0) {
        cmd_header(h, words > 0 && strcmp(word[0], "write") == 0);
    } else {
        answer("usage", "no such command");
    }
}

int main(int argc, char **argv) {
    char line[400];
    if (argc != 4) {
        fprintf(stderr, "stale ADDRESS-OF-ITS-DEVICE MASTER-HOST MASTER-PORT\n");
        return 2;
    }
    own_address = argv[1];
    master_host = argv[2];
    master_port = atoi(argv[3]);
    buffer = aligned_alloc(4096, BUFFER_BYTES);
    if (buffer == NULL) return 1;
    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *word[WORDS_MAX + 2], *rest = line;
        size_t words = 0;
        for (char *w; words < WORDS_MAX && (w = strsep(&rest, " \n")) != NULL;) {
            if (*w != '\0') word[words++] = w;
        }
        if (words == 0) continue;
        if (strcmp(word[0], "end") == 0) break;
        run(word, words);
    }
    for (size_t i = 0; i < NAMES_MAX; i++) {
        connection_close(&holders[i]);
        if (holders[i].master != NULL) redisFree(holders[i].master);
        free(holders[i].rkeys);
    }
    free(buffer);
    return 0;
}
