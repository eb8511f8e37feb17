/* Puts in place. On the machine that holds the space the pieces are pool memory, reached through
 * the direct lane's engine; elsewhere the put is given back at once and the pieces are private
 * memory that commit puts. */
#include <stdlib.h>

#include "base/assert.h"
#include "client/put.h"
#include "client/shards.h"

#define WRITER_MAGIC 0x7a1237e5u

struct tarn_writer {
    uint32_t magic;
    struct tarn_client *client;
    struct engine_ref *ref; /* whose mappings the pieces are, NULL: not in place */
    char *key;
    size_t key_len;
    uint64_t size, token;
    bool in_place, is_inline;
    bool asking; /* its slot was moving to this master */
    tarn_put_options options;
    void *memory; /* of its own, when not in place */
    struct iovec pieces[EXTENTS_MAX];
    size_t n_pieces;
    uint32_t crc, *crcs;
    size_t n_crcs;
};

static const tarn_key *own_id(const tarn_key *id) {
    if (id == NULL) return NULL;
    tarn_key *copy = xmalloc(sizeof(*copy) + id->len);
    *copy = (tarn_key){copy + 1, id->len};
    if (id->len > 0) memcpy(copy + 1, id->data, id->len);
    return copy;
}

/* Commit may need the options again: pointers among them become the writer's own. */
static void own_options(struct tarn_writer *w) {
    tarn_put_options *o = &w->options;
    if (o->group != NULL) o->group = xmemdup(o->group, o->group_len);
    if (o->session != NULL) o->session = xmemdup(o->session, o->session_len);
    o->groups = own_id(o->groups);
    o->boundaries = own_id(o->boundaries);
    if (o->prefers == 0) o->prefer = NULL;
    if (o->prefer == NULL) return;
    const char **copies = xmalloc(o->prefers * sizeof(*copies));
    for (size_t i = 0; i < o->prefers; i++) copies[i] = xstrdup(o->prefer[i]);
    o->prefer = copies;
}

static void put_writer_free(struct tarn_writer *w) {
    tarn_put_options *o = &w->options;
    for (size_t i = 0; i < o->prefers; i++) free((void *)(uintptr_t)o->prefer[i]);
    free((void *)(uintptr_t)o->prefer);
    free((void *)(uintptr_t)o->group);
    free((void *)(uintptr_t)o->session);
    free((void *)(uintptr_t)o->groups);
    free((void *)(uintptr_t)o->boundaries);
    w->magic = 0;
    free(w->memory);
    free(w->crcs);
    free(w->key);
    free(w);
}

static void writer_request(struct lane *lane, const struct tarn_writer *w, enum wire_id id,
                           const void *options) {
    lane->ctl.asking = w->asking;
    request_build(&lane->request, id, options);
    lane->ctl.asking = false;
}

static tarn_status writer_start(struct lane *lane, struct tarn_writer *w, struct placement *place,
                                uint64_t deadline) {
    struct answer *a;
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_put put = {.keys = {request_word(r, w->key, w->key_len), 1},
                           .no_grant = lane->numbers.no_grant}; /* it maps, or gives it back */
    request_number(r, (int64_t)w->size);
    put_options_fill(lane, &w->options, 0, &put);
    put_together_one(lane, &w->options, 0, &put);
    writer_request(lane, w, WIRE_putstart, &put);
    tarn_status status = lane_send(lane, false);
    if (status == TARN_OK) status = lane_receive(lane, &a, deadline);
    if (status == TARN_OK) lane->later_ms = answer_later_ms(a);
    if (status == TARN_OK) status = placement_of_put(&lane->arena, a, put.no_grant, w->size, place);
    if (status == TARN_EEXISTS) return fail(status, "the key is there already");
    return status;
}

/* receipts NULL: none. */
static tarn_status put_revoke(struct lane *lane, const struct tarn_writer *w,
                              const uint8_t *receipts, size_t n_receipts, uint64_t deadline) {
    struct answer *a;
    struct ctl_request *r = &lane->request;
    request_begin(r);
    struct wire_end end = {.keys = {request_word(r, w->key, w->key_len), 1}};
    request_number(r, (int64_t)w->token);
    if (receipts != NULL) end.receipts = request_word(r, receipts, n_receipts * GRANT_RECEIPT_SIZE);
    writer_request(lane, w, WIRE_putrevoke, &end);
    return lane_call(lane, &a, deadline);
}

/* false: not all of it can be written in place. */
static bool writer_map_pieces(struct lane *lane, struct tarn_writer *w,
                              const struct placement *place, uint64_t deadline) {
    if (place->replicas != 1) return false;
    const struct placed_replica *r = place->replica;
    if (placement_is_once(place)) return false; /* stores could not be sealed */
    if (replica_ensure(lane, r, true, deadline) != TARN_OK ||
        !replica_map(lane, r, true, w->pieces))
        return false;
    w->n_pieces = r->n_parts;
    w->ref = lane->ref;
    w->ref->users++;
    w->ref->writers++;
    return true;
}

static tarn_status own_memory(struct tarn_writer *w) {
    free(w->memory);
    if (posix_memalign(&w->memory, 64, w->size + 1) != 0) {
        w->memory = NULL;
        return fail(TARN_ENOMEM, "no memory for a value of %llu bytes",
                    (unsigned long long)w->size);
    }
    w->pieces[0] = (struct iovec){w->memory, w->size};
    w->n_pieces = w->size > 0;
    return TARN_OK;
}

static tarn_status writer_open(struct lane *lane, void *arg, uint64_t deadline) {
    struct tarn_writer *w = arg;
    struct placement place;
    tarn_status status = writer_start(lane, w, &place, deadline);
    if (status != TARN_OK) return status;
    w->token = place.token;
    w->is_inline = place.replicas == 0;
    w->in_place = !w->is_inline && writer_map_pieces(lane, w, &place, deadline);
    if (w->in_place) return TARN_OK;
    status = own_memory(w);
    if (!w->is_inline || status != TARN_OK) { /* nothing was written */
        size_t n = 0;
        const uint8_t *receipts = put_seal_unwritten(lane, &place, deadline, &n);
        tarn_status revoked = put_revoke(lane, w, receipts, n, deadline);
        if (status == TARN_OK) status = revoked;
    }
    return status;
}

struct writer_opening {
    const void *key;
    size_t key_len;
    uint64_t size;
    const tarn_put_options *options;
    tarn_writer **writer_p;
};

static tarn_status writer_open_at(struct tarn_client *client, bool asking, uint64_t deadline,
                                  void *arg) {
    const struct writer_opening *o = arg;
    struct tarn_writer *w = xcalloc(1, sizeof(*w));
    *w = (struct tarn_writer){.magic = WRITER_MAGIC,
                              .client = client,
                              .key = xmemdup(o->key, o->key_len),
                              .key_len = o->key_len,
                              .size = o->size,
                              .asking = asking,
                              .options = *o->options};
    own_options(w);
    struct call_trace trace;
    trace_begin(&trace, client, "writer_open", 1);
    tarn_status status = direct_run(client, &trace, deadline, writer_open, w);
    trace_end(&trace, status, status == TARN_OK, 0);
    if (status != TARN_OK) {
        put_writer_free(w);
        return status;
    }
    __atomic_add_fetch(&client->n_writers, 1, __ATOMIC_RELAXED);
    *o->writer_p = w;
    return TARN_OK;
}

tarn_status tarn_writer_open(tarn_client *client, const void *key, size_t key_len, uint64_t size,
                             const tarn_put_options *options, tarn_writer **writer_p) {
    tarn_status status = client_usable(client);
    if (status == TARN_OK) status = client_check_key(key, key_len);
    if (status == TARN_OK && size > VALUE_MAX)
        status = fail(TARN_EINVAL, "values are at most 2^40 bytes");
    tarn_put_options options_whole;
    client_put_options_copy(&options_whole, options);
    if (status == TARN_OK) status = put_options_check(&options_whole, 0);
    if (status != TARN_OK) return status;
    struct writer_opening o = {key, key_len, size, &options_whole, writer_p};
    uint64_t deadline = client_deadline(client, options_whole.timeout_ms, 0);
    return client->shards == NULL ? writer_open_at(client, false, deadline, &o)
                                  : shards_one(client, key, key_len, deadline, writer_open_at, &o);
}

size_t tarn_writer_pieces(const tarn_writer *writer, const struct iovec **pieces_p) {
    *pieces_p = writer->pieces;
    return writer->n_pieces;
}

void *tarn_writer_data(const tarn_writer *writer) {
    return writer->n_pieces == 1 ? writer->pieces[0].iov_base : writer->memory;
}

int tarn_writer_in_place(const tarn_writer *writer) {
    return writer->in_place;
}

/* The token is good on any connection, and twice. */
static tarn_status writer_end(struct lane *lane, void *arg, uint64_t deadline) {
    struct tarn_writer *w = arg;
    struct ctl_request *r = &lane->request;
    struct answer *a;
    request_begin(r);
    struct wire_end end = {.keys = {request_word(r, w->key, w->key_len), 1}};
    request_number(r, (int64_t)w->token);
    request_number(r, w->crc);
    if (w->is_inline) end.values = request_word(r, w->memory, (size_t)w->size);
    if (w->n_crcs > 0) end.crcs = request_crcs(r, w->crcs, w->n_crcs);
    writer_request(lane, w, WIRE_putend, &end);
    tarn_status status = lane_call(lane, &a, deadline);
    if (status != TARN_OK) return status;
    COUNT(lane, puts, 1);
    COUNT(lane, put_stored, 1);
    COUNT(lane, bytes_written, w->size);
    return TARN_OK;
}

static tarn_status writer_finish(struct tarn_writer *w) {
    w->n_crcs = w->size > CRC_BLOCK ? (size_t)((w->size + CRC_BLOCK - 1) / CRC_BLOCK) : 0;
    w->crcs = w->n_crcs == 0 ? NULL : xmalloc(w->n_crcs * sizeof(*w->crcs));
    w->crc = put_crc(w->pieces, w->n_pieces, w->size, w->crcs);
    struct call_trace trace;
    trace_begin(&trace, w->client, "writer_commit", 1);
    tarn_status status = direct_run(
        w->client, &trace, client_deadline(w->client, w->options.timeout_ms, 0), writer_end, w);
    trace_end(&trace, status, status == TARN_OK, status == TARN_OK ? w->size : 0);
    return status;
}

static tarn_status writer_revoke(struct lane *lane, void *arg, uint64_t deadline) {
    return put_revoke(lane, arg, NULL, 0, deadline);
}

static tarn_status writer_give_up(struct tarn_writer *w) {
    struct call_trace trace;
    trace_begin(&trace, w->client, "writer_abort", 1);
    tarn_status status =
        direct_run(w->client, &trace, client_deadline(w->client, 0, 0), writer_revoke, w);
    trace_end(&trace, status, status == TARN_OK, 0);
    return status;
}

static tarn_status writer_usable(tarn_writer **writer_p) {
    if (writer_p == NULL || *writer_p == NULL || (*writer_p)->magic != WRITER_MAGIC) {
        return fail(TARN_EINVAL, "this is not an open writer");
    }
    return client_usable((*writer_p)->client);
}

static void writer_close(tarn_writer **writer_p) {
    struct tarn_writer *w = *writer_p;
    if (w->ref != NULL && client_usable(w->client) == TARN_OK) {
        pthread_mutex_lock(&w->client->direct_mutex);
        w->ref->writers--;
        engine_ref_drop(&w->ref);
        pthread_mutex_unlock(&w->client->direct_mutex);
    }
    __atomic_sub_fetch(&w->client->n_writers, 1, __ATOMIC_RELAXED);
    put_writer_free(w);
    *writer_p = NULL;
}

/* The pieces as an ordinary put, to whoever has the key's slot by now. */
static tarn_status writer_put(const struct tarn_writer *w) {
    struct tarn_client *client = w->client->front != NULL ? w->client->front : w->client;
    return tarn_putv(client, w->key, w->key_len, w->pieces, w->n_pieces, &w->options);
}

tarn_status tarn_writer_commit(tarn_writer **writer_p) {
    tarn_status status = writer_usable(writer_p);
    if (status == TARN_EINVAL) return status;
    struct tarn_writer *w = *writer_p;
    if (status == TARN_OK) {
        bool private_memory = !w->in_place && !w->is_inline;
        status = private_memory ? writer_put(w) : writer_finish(w);
        if (status == TARN_EMOVED) status = writer_put(w);
    }
    writer_close(writer_p);
    return status;
}

tarn_status tarn_writer_abort(tarn_writer **writer_p) {
    tarn_status status = writer_usable(writer_p);
    if (status == TARN_EINVAL) return status;
    struct tarn_writer *w = *writer_p;
    if (status == TARN_OK && (w->in_place || w->is_inline)) status = writer_give_up(w);
    writer_close(writer_p);
    return status;
}
