/* Packed keys are bytes of a stranger: what is wrong in them is found when they are unpacked, or it
 * leads to an error when they are used, and never to anything else. */
#include <arpa/inet.h>
#include <fcntl.h>

#include "active.h"

static struct transport_key_config config_of(struct buf *packed) {
    static const uint8_t grant[GRANT_SIZE] = {1};
    return (struct transport_key_config){.segment = SEGMENT,
                                         .segment_epoch = EPOCH,
                                         .size = a.size,
                                         .grant = grant,
                                         .packed = packed->data,
                                         .packed_len = packed->len};
}

/* Unpacks and closes again. */
static tarn_status try(const struct transport_key_config *config) {
    struct transport_key *k = NULL;
    tarn_status s = rdma_transport.key_unpack(a.endpoint, config, &k);
    CHECK_EQ(s == TARN_OK, k != NULL);
    rdma_transport.key_close(&k);
    return s;
}

TEST(a_key_as_it_was_packed) {
    begin("devices=2", 3u << 20, NULL);
    struct transport_key *k = a.key[0];
    CHECK_EQ(k->h.n_devices, 2);
    CHECK_EQ(k->h.n_chunks, 1);
    CHECK_STR(k->remote[0].address.text, "127.0.0.1");
    CHECK_STR(k->remote[1].address.text, "127.0.0.2");
    CHECK(!k->writable && a.key[1]->writable);
    CHECK_EQ(rdma_transport.key_check(k), TARN_OK);
    end();
}

TEST(what_was_asked_for_is_something_else) {
    begin(NULL, 1u << 20, NULL);
    struct transport_key_config config = config_of(&a.packed[0]);
    CHECK_EQ(try(&config), TARN_OK);
    config.segment++;
    CHECK_EQ(try(&config), TARN_ESTALE);
    config = config_of(&a.packed[0]);
    config.segment_epoch++;
    CHECK_EQ(try(&config), TARN_ESTALE);
    config = config_of(&a.packed[0]);
    config.size += 4096;
    CHECK_EQ(try(&config), TARN_EPROTO);
    config = config_of(&a.packed[0]);
    config.writable = true;
    CHECK_EQ(try(&config), TARN_EPROTO);
    config = config_of(&a.packed[0]);
    config.grant = NULL;
    CHECK_EQ(try(&config), TARN_EINVAL);
    config = config_of(&a.packed[0]);
    config.packed = NULL;
    config.packed_len = 0;
    CHECK_EQ(try(&config), TARN_ECLOSED);
    end();
}

TEST(keys_of_every_wrong_length) {
    begin("devices=2", 1u << 20, NULL);
    struct transport_key_config config = config_of(&a.packed[0]);
    size_t whole = a.packed[0].len;
    for (size_t len = 1; len < whole; len++) {
        /* so that a sanitizer sees who reads behind it */
        char *cut = xmemdup(a.packed[0].data, len);
        config.packed = cut;
        config.packed_len = len;
        CHECK_EQ(try(&config), TARN_EPROTO);
        free(cut);
    }
    struct buf longer = {0};
    buf_append(&longer, a.packed[0].data, whole);
    for (int i = 0; i < 100; i++) {
        buf_append_char(&longer, (char)i);
        config.packed = longer.data;
        config.packed_len = longer.len;
        CHECK_EQ(try(&config), TARN_EPROTO);
    }
    buf_free(&longer);
    end();
}

/* What a bit may be wrong in without anybody noticing before it is used: where things are, and by
 * which key. */
static bool may_differ(size_t byte) {
    if (byte < sizeof(struct rdma_key_header)) {
        return byte >= offsetof(struct rdma_key_header, address) &&
               byte < offsetof(struct rdma_key_header, n_chunks);
    }
    return true;
}

TEST(keys_with_a_wrong_bit) {
    begin("devices=2", 3u << 20, NULL);
    struct transport_key_config config = config_of(&a.packed[0]);
    char *bytes = xmemdup(a.packed[0].data, a.packed[0].len);
    config.packed = bytes;
    unsigned refused = 0, taken = 0;
    for (size_t bit = 0; bit < 8 * a.packed[0].len; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        tarn_status s = try(&config);
        bool chunk_size = bit / 8 >= offsetof(struct rdma_key_header, chunk_size) &&
                          bit / 8 < offsetof(struct rdma_key_header, address);
        CHECK(s == TARN_EPROTO || s == TARN_ESTALE ||
              (s == TARN_OK && (may_differ(bit / 8) || chunk_size)));
        s == TARN_OK ? taken++ : refused++;
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    CHECK(refused > 200);
    CHECK(taken > 200);
    CHECK_EQ(try(&config), TARN_OK);
    free(bytes);
    end();
}

TEST(keys_with_wrong_bytes) {
    begin("devices=3", 3u << 20, NULL);
    struct transport_key_config config = config_of(&a.packed[0]);
    struct rng r;
    rng_seed(&r, 4);
    for (int i = 0; i < 20000; i++) {
        size_t len = rng_below(&r, 4) == 0 ? 1 + rng_below(&r, a.packed[0].len) : a.packed[0].len;
        uint8_t *bytes = xmemdup(a.packed[0].data, len);
        for (uint64_t n = 1 + rng_below(&r, 8); n > 0; n--) {
            static const uint8_t likely[] = {0, 1, 2, 8, 9, 127, 128, 255};
            bytes[rng_below(&r, len)] = likely[rng_below(&r, sizeof(likely))];
        }
        config.packed = bytes;
        config.packed_len = len;
        tarn_status s = try(&config);
        CHECK(s == TARN_OK || s == TARN_EPROTO || s == TARN_ESTALE);
        free(bytes);
    }
    end();
}

/* A struct of the key at an offset, changed by a function, unpacked. */
static tarn_status with_header(void (*change)(struct rdma_key_header *h)) {
    struct transport_key_config config = config_of(&a.packed[0]);
    char *bytes = xmemdup(a.packed[0].data, a.packed[0].len);
    struct rdma_key_header h;
    memcpy(&h, bytes, sizeof(h));
    change(&h);
    memcpy(bytes, &h, sizeof(h));
    config.packed = bytes;
    tarn_status s = try(&config);
    free(bytes);
    return s;
}

static tarn_status with_device(void (*change)(struct rdma_key_device *d)) {
    struct transport_key_config config = config_of(&a.packed[0]);
    char *bytes = xmemdup(a.packed[0].data, a.packed[0].len);
    struct rdma_key_device d;
    memcpy(&d, bytes + sizeof(struct rdma_key_header), sizeof(d));
    change(&d);
    memcpy(bytes + sizeof(struct rdma_key_header), &d, sizeof(d));
    config.packed = bytes;
    tarn_status s = try(&config);
    free(bytes);
    return s;
}

static void no_devices(struct rdma_key_header *h) {
    h->n_devices = 0;
}
static void nine_devices(struct rdma_key_header *h) {
    h->n_devices = 9;
}
static void huge_devices(struct rdma_key_header *h) {
    h->n_devices = UINT32_MAX;
}
static void no_chunks(struct rdma_key_header *h) {
    h->n_chunks = 0;
}
static void two_chunks(struct rdma_key_header *h) {
    h->n_chunks = 2;
}
static void huge_chunks(struct rdma_key_header *h) {
    h->n_chunks = UINT32_MAX;
}
static void no_chunk_size(struct rdma_key_header *h) {
    h->chunk_size = 0;
}
static void odd_chunk_size(struct rdma_key_header *h) {
    h->chunk_size += 1;
}
static void no_generation(struct rdma_key_header *h) {
    h->generation = 0;
}
static void next_version(struct rdma_key_header *h) {
    h->version++;
}
static void both_rights(struct rdma_key_header *h) {
    h->right = RDMA_READ | RDMA_WRITE;
}
static void no_address(struct rdma_key_header *h) {
    h->address = 0;
}
static void past_the_end(struct rdma_key_header *h) {
    h->address = UINT64_MAX - 4096;
}
static void header_past_the_end(struct rdma_key_header *h) {
    h->header_address = UINT64_MAX;
}
static void nothing(struct rdma_key_header *h) {
    (void)h;
}

TEST(keys_that_do_not_hang_together) {
    static void (*const wrong[])(struct rdma_key_header *) = {
        no_devices,  nine_devices,  huge_devices,   no_chunks,           two_chunks,
        huge_chunks, no_chunk_size, odd_chunk_size, no_generation,       next_version,
        both_rights, no_address,    past_the_end,   header_past_the_end,
    };
    begin(NULL, 1u << 20, NULL);
    CHECK_EQ(with_header(nothing), TARN_OK);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) CHECK_EQ(with_header(wrong[i]), TARN_EPROTO);
    end();
}

static void no_name(struct rdma_key_device *d) {
    d->name[0] = '\0';
}
static void endless_name(struct rdma_key_device *d) {
    memset(d->name, 'x', sizeof(d->name));
}
static void name_of_two_words(struct rdma_key_device *d) {
    strcpy(d->name, "x state=up");
}
static void name_of_two_lines(struct rdma_key_device *d) {
    strcpy(d->name, "x\ny");
}
static void no_port(struct rdma_key_device *d) {
    d->port = 0;
}
static void nowhere(struct rdma_key_device *d) {
    memset(d->address, 0, sizeof(d->address));
}
static void anywhere(struct rdma_key_device *d) {
    memset(d->address + 12, 0, 4);
}
static void multicast(struct rdma_key_device *d) {
    d->address[12] = 224;
}
static void everywhere(struct rdma_key_device *d) {
    memset(d->address + 12, 255, 4);
}
static void multicast6(struct rdma_key_device *d) {
    d->address[0] = 255;
}

TEST(devices_that_cannot_be) {
    static void (*const wrong[])(struct rdma_key_device *) = {
        no_name, endless_name, name_of_two_words, name_of_two_lines, no_port,
        nowhere, anywhere,     multicast,         everywhere,        multicast6,
    };
    begin(NULL, 1u << 20, NULL);
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) CHECK_EQ(with_device(wrong[i]), TARN_EPROTO);
    end();
}

/* A wrong key over there is an error here, for that operation; the bytes stay what they were. */
TEST(a_wrong_rkey_is_refused) {
    begin(NULL, 1u << 20, NULL);
    static char data[8192];
    fill(data, sizeof(data), 1);
    CHECK_EQ(move(true, 0, data, sizeof(data)), TARN_OK);
    for (int w = 0; w < 2; w++) {
        a.key[w]->remote[0].rkey[0] ^= 0x5a5a;
        CHECK_EQ(move(w, 0, data, sizeof(data)), TARN_ESTALE);
        CHECK_EQ(rdma_transport.key_check(a.key[w]), TARN_ESTALE);
    }
    CHECK(fake_served().refused >= 2);
    close_keys();
    open_keys();
    static char in[8192];
    CHECK_EQ(move(false, 0, in, sizeof(in)), TARN_OK);
    CHECK(memcmp(in, data, sizeof(in)) == 0);
    end();
}

/* A reader's queue pair does not write, even with the writer's key. */
TEST(the_rights_of_a_connection_are_its_own) {
    begin(NULL, 1u << 20, NULL);
    static char data[8192], in[8192];
    fill(data, sizeof(data), 1);
    struct transport_key *k = a.key[0];
    CHECK_EQ(move(false, 0, in, sizeof(in)), TARN_OK); /* connected as a reader */
    memcpy(k->remote[0].rkey, a.key[1]->remote[0].rkey, sizeof(uint32_t));
    k->writable = true;
    struct client_op c;
    op_fill(&c, true, 0, data, sizeof(data));
    c.part.key = k;
    CHECK(op_run(&c) != TARN_OK);
    for (size_t i = 0; i < sizeof(data); i++) CHECK_EQ(segment_data()[i], 0);
    end();
}

/* --- a host that answers nonsense --- */

static struct {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listening, *id;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    bool accept, believed; /* the last one */
    uint8_t answer[64];
    uint8_t len;
} liar;

static void liar_open(void) {
    liar.channel = rdma_create_event_channel();
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK_EQ(rdma_create_id(liar.channel, &liar.listening, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_bind_addr(liar.listening, (struct sockaddr *)&at), 0);
    CHECK_EQ(rdma_listen(liar.listening, 4), 0);
    liar.cq = ibv_create_cq(liar.listening->verbs, 1, NULL, NULL, 0);
    int flags = fcntl(liar.channel->fd, F_GETFL);
    CHECK_EQ(fcntl(liar.channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
}

static void liar_hang_up(void) {
    if (liar.qp != NULL) CHECK_EQ(ibv_destroy_qp(liar.qp), 0);
    if (liar.id != NULL) CHECK_EQ(rdma_destroy_id(liar.id), 0);
    liar.qp = NULL;
    liar.id = NULL;
}

static void liar_close(void) {
    liar_hang_up();
    CHECK_EQ(rdma_destroy_id(liar.listening), 0);
    CHECK_EQ(ibv_destroy_cq(liar.cq), 0);
    rdma_destroy_event_channel(liar.channel);
}

static void liar_answer(struct rdma_cm_id *id) {
    liar_hang_up();
    liar.id = id;
    if (!liar.accept) {
        (void)rdma_reject(id, liar.answer, liar.len);
        return;
    }
    struct ibv_qp_init_attr init = {
        .send_cq = liar.cq,
        .recv_cq = liar.cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    liar.qp = ibv_create_qp(rdma_device_at(0)->pd, &init);
    CHECK(liar.qp != NULL);
    for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
        struct ibv_qp_attr attr = {.qp_state = (enum ibv_qp_state)state};
        int mask;
        CHECK_EQ(rdma_init_qp_attr(id, &attr, &mask), 0);
        CHECK_EQ(ibv_modify_qp(liar.qp, &attr, mask), 0);
    }
    struct rdma_conn_param param = {.private_data = liar.answer,
                                    .private_data_len = liar.len,
                                    .responder_resources = 1,
                                    .qp_num = liar.qp->qp_num};
    (void)rdma_accept(id, &param);
}

static void liar_turn(void) {
    struct rdma_cm_event *event;
    while (rdma_get_cm_event(liar.channel, &event) == 0) {
        struct rdma_cm_id *id = event->id;
        bool request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
        rdma_ack_cm_event(event);
        if (request) liar_answer(id);
    }
}

/* What becomes of an operation whose host answers so. */
static tarn_status ask_liar(bool accept, const void *answer, size_t len) {
    struct transport_key *k;
    CHECK_EQ(unpack(0, a.packed[0].data, a.packed[0].len, &k), TARN_OK);
    k->remote[0].port = ntohs(rdma_get_src_port(liar.listening));
    liar.accept = accept;
    liar.len = (uint8_t)len;
    memcpy(liar.answer, answer, len);
    char data[100];
    struct client_op c;
    op_fill(&c, false, 0, data, sizeof(data));
    c.part.key = k;
    op_submit(&c);
    CHECK(WAIT((liar_turn(), c.done == 1)));
    liar.believed = k->accepted;
    rdma_transport.key_close(&k);
    return c.op.status;
}

TEST(answers_of_a_liar) {
    begin(NULL, 1u << 20, NULL);
    liar_open();
    struct rdma_reject no = {RDMA_WIRE_MAGIC, 1, 1, 0};
    for (no.refusal = 0; no.refusal < 64; no.refusal++) {
        tarn_status s = ask_liar(false, &no, sizeof(no));
        CHECK(s != TARN_OK);
        CHECK_EQ(s == TARN_EPERM || s == TARN_EGRANT_EXPIRED || s == TARN_ESTALE,
                 (no.refusal > 0 && no.refusal < GRANT_VERDICTS) ||
                     no.refusal == RDMA_REFUSED_SEGMENT);
    }
    no.refusal = GRANT_BAD_MAC;
    for (size_t len = 0; len < sizeof(no); len++) CHECK(ask_liar(false, &no, len) != TARN_OK);
    no.magic++;
    CHECK_EQ(ask_liar(false, &no, sizeof(no)), TARN_ECLOSED);

    struct rdma_accept yes = {.magic = RDMA_WIRE_MAGIC,
                              .version = 1,
                              .segment_epoch = EPOCH,
                              .master_epoch = MASTER,
                              .instance = 1,
                              .generation = a.key[0]->h.generation,
                              .slice_max = 1u << 20};
    for (size_t bit = 0; bit < 8 * sizeof(yes); bit++) {
        struct rdma_accept wrong = yes;
        ((uint8_t *)&wrong)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        /* Its queue pair lives where the segment is not: what seems right is found out by the first
         * READ. */
        CHECK(ask_liar(true, &wrong, sizeof(wrong)) != TARN_OK);
    }
    /* What hosts of 0.1 say is as good as what those say that tell their version; less is not, but
     * that it comes with zeroes behind it. */
    for (size_t len = 0; len <= sizeof(yes); len++) {
        CHECK(ask_liar(true, &yes, len) != TARN_OK);
        if (len < offsetof(struct rdma_accept, slice_max)) CHECK(!liar.believed);
        if (len >= RDMA_ACCEPT_SHORT) CHECK(liar.believed);
    }
    liar_close();
    char data[100];
    CHECK_EQ(move(false, 0, data, sizeof(data)), TARN_OK);
    end();
}

TEST(uris) {
    static const char *const wrong[] = {
        "",           "rdma://",     "rdma://host",    "rdma://:1",    "tcp://h:1",
        "rdma://h:0", "rdma://h:1x", "rdma://h:65536", "rdma://[::1:1"};
    begin(NULL, 1u << 20, NULL);
    struct transport_endpoint *e = NULL;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        CHECK_EQ(rdma_transport.connect(a.client, wrong[i], 0, &e), TARN_EINVAL);
    CHECK_EQ(rdma_transport.connect(a.client, "rdma://[::1]:99", 0, &e), TARN_OK);
    CHECK_EQ(rdma_transport.endpoint_status(e), TARN_OK);
    rdma_transport.endpoint_close(&e);
    CHECK(e == NULL);
    end();
}

TEST_MAIN()
