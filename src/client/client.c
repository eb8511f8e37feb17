/* The client handle: connecting and closing, defaults of calls, registered memory, the direct
 * lane. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/errors.h"
#include "client/client.h"
#include "client/shards.h"

void tarn_call_init_sized(tarn_call *call, size_t size) {
    init_sized(call, size, &(tarn_call){0}, sizeof(*call));
}

void tarn_put_options_init_sized(tarn_put_options *o, size_t size) {
    init_sized(o, size, &(tarn_put_options){0}, sizeof(*o));
}

/* Programs of 0.1 have what was before these. */
void(tarn_call_init)(tarn_call *call) {
    tarn_call_init_sized(call, offsetof(tarn_call, session));
}

void(tarn_put_options_init)(tarn_put_options *o) {
    tarn_put_options_init_sized(o, offsetof(tarn_put_options, groups));
}

static_assert(TARN_SESSION_MAX == WIRE_SESSION_MAX && TARN_RETURN_MAX == WIRE_RETURN_MAX, "one");

/* A caller built against an older header has a smaller struct: the rest is defaults. */
static void copy_sized(void *to, size_t to_size, const void *from, size_t from_size) {
    memset(to, 0, to_size);
    if (from != NULL) memcpy(to, from, from_size < to_size ? from_size : to_size);
}

void client_call_copy(tarn_call *to, const tarn_call *from) {
    copy_sized(to, sizeof(*to), from, from == NULL ? 0 : from->size);
}

void client_put_options_copy(tarn_put_options *to, const tarn_put_options *from) {
    copy_sized(to, sizeof(*to), from, from == NULL ? 0 : from->size);
}

tarn_status hint_check(struct call_hint hint) {
    if (hint.session_len > 0 && hint.session == NULL)
        return fail(TARN_EINVAL, "session is NULL, but session_len is %zu", hint.session_len);
    if (hint.session_len > TARN_SESSION_MAX)
        return fail(TARN_EINVAL, "session has %zu bytes, and may have %d: a hash of it will do",
                    hint.session_len, TARN_SESSION_MAX);
    if (hint.return_ms > TARN_RETURN_MAX)
        return fail(TARN_EINVAL, "return_ms is %llu, and at most %d (24 hours): leave it out",
                    (unsigned long long)hint.return_ms, TARN_RETURN_MAX);
    return TARN_OK;
}

void hint_fill(struct ctl_request *r, struct call_hint hint, struct wire_hint *wire) {
    if (hint.session_len > 0) wire->session = request_word(r, hint.session, hint.session_len);
    wire->return_ms = (uint32_t)hint.return_ms;
}

void spread_fill(struct ctl_request *r, const struct call_spread *spread, const size_t *order,
                 size_t n, struct wire_spread *wire) {
    if (spread->at == NULL) return;
    wire->at = request_next(r);
    wire->of = (uint32_t)spread->of;
    for (size_t k = 0; k < n; k++) request_number(r, spread->at[order != NULL ? order[k] : k]);
}

tarn_status client_usable(const struct tarn_client *client) {
    if (client == NULL || client->magic != CLIENT_MAGIC)
        return fail(TARN_EINVAL, "this is not an open tarn_client");
    if (client->pid != getpid())
        return fail(TARN_ECLOSED, "a tarn_client does not survive fork(): connect in the child");
    return TARN_OK;
}

tarn_status client_check_key(const void *key, size_t key_len) {
    if (key != NULL && key_len >= 1 && key_len <= TARN_KEY_MAX) return TARN_OK;
    return fail(TARN_EINVAL, "a key has 1 to %d bytes, not %zu", TARN_KEY_MAX, key_len);
}

uint64_t client_deadline(const struct tarn_client *client, uint64_t timeout_ms, uint64_t bytes) {
    if (timeout_ms == TARN_NO_TIMEOUT) return DEADLINE_NONE;
    if (timeout_ms == 0) timeout_ms = client->options.timeout_ms + bytes / BYTES_PER_MS;
    return add_sat(now_ms(), timeout_ms);
}

/* --- connecting --- */

static tarn_status options_check(tarn_options *o) {
    const struct option_range ranges[] = {{"max_lanes", o->max_lanes, 1024},
                                          {"streams", o->streams, 64},
                                          {"workers", o->workers, 256},
                                          {"batch_keys", o->batch_keys, 65536},
                                          {"lease_ms", o->lease_ms, UINT64_MAX},
                                          {"failover_ms", o->failover_ms, UINT64_MAX},
                                          {"backoff_min_ms", o->backoff_min_ms, UINT64_MAX}};
    tarn_status status = check_ranges(ranges, ARRAY_LEN(ranges), "tarn_options_init");
    if (status != TARN_OK) return status;
    o->piece_bytes = max_u64(o->piece_bytes / CRC_BLOCK * CRC_BLOCK, CRC_BLOCK);
    return TARN_OK;
}

static void init_locks(struct tarn_client *client) {
    pthread_mutex_init(&client->mutex, NULL);
    pthread_mutex_init(&client->direct_mutex, NULL);
    thread_cond_init(&client->freed);
}

static tarn_status choose_transport(struct tarn_client *client) {
    const tarn_options *o = &client->options;
    tarn_status status = client_module_choose(o->transport, o->module_path, &client->only);
    if (status != TARN_OK || client->only == NULL) return status;
    const struct transport_ops *t = transport_find(client->only);
    const char *more = client_module_wanted(client) != NULL
                           ? ": the host's log and that of this client say more"
                       : (t->flags & TRANSPORT_REMOTE) == 0 ? ": does the host run on this machine?"
                                                            : "";
    snprintf(client->hint, sizeof(client->hint), " (transport=%s allows no other way%s)",
             client->only, more);
    return TARN_OK;
}

/* The first lane connects now, so that a wrong address or password shows here. */
tarn_status client_connect_first(struct tarn_client *client) {
    struct lane *lane;
    uint64_t deadline = client_deadline(client, client->options.connect_timeout_ms, 0);
    tarn_status status = lane_take(client, NULL, deadline, &lane);
    if (status != TARN_OK) return status;
    status = lane_run(lane, deadline, NULL, NULL);
    const char *wanted = client_module_wanted(client);
    if (status == TARN_OK && client->node == NULL && wanted != NULL)
        status = segment_require(lane, wanted, deadline);
    lane_give(lane);
    return status;
}

tarn_status tarn_connect(const char *url, const tarn_options *options, tarn_client **client_p) {
    if (url == NULL || client_p == NULL)
        return fail(TARN_EINVAL, "tarn_connect needs a URL and a place for the client");
    return client_connect(url, options, NULL, client_p);
}

struct tarn_client *client_create(const tarn_options *options, const char *node) {
    struct tarn_client *client = xcalloc(1, sizeof(*client));
    client->magic = CLIENT_MAGIC;
    client->pid = getpid();
    client->node = xstrdup(node);
    init_locks(client);
    url_options_copy(&client->options, options);
    return client;
}

tarn_status client_prepare(struct tarn_client *client) {
    tarn_status status = options_check(&client->options);
    if (status == TARN_OK) status = timing_check(&client->options);
    if (status == TARN_OK && client->master.tls)
        status = secure_open(&client->options, &client->master.secure);
    if (status == TARN_OK) status = choose_transport(client);
    if (status != TARN_OK) return status;
    if (client->options.host_name != NULL) {
        snprintf(client->own_host, sizeof(client->own_host), "%s", client->options.host_name);
    } else {
        segment_host_name(client->own_host, sizeof(client->own_host));
    }
    client->lanes = xcalloc(client->options.max_lanes, sizeof(struct lane *));
    return TARN_OK;
}

tarn_status client_connect(const char *url, const tarn_options *options, const char *node,
                           tarn_client **client_p) {
    log_default_once();
    struct tarn_client *client = client_create(options, node);
    tarn_status status = url_parse(url, &client->options, &client->master);
    if (status == TARN_OK) status = client_prepare(client);
    if (status == TARN_OK) status = shards_connect(client);
    if (status != TARN_OK) {
        tarn_close(&client);
        return status;
    }
    timing_start(client);
    *client_p = client;
    return TARN_OK;
}

void tarn_close(tarn_client **client_p) {
    if (client_p == NULL || *client_p == NULL) return;
    struct tarn_client *client = *client_p;
    *client_p = NULL;
    if (client->magic != CLIENT_MAGIC) return;
    timing_stop(client);
    shards_close(client);
    client->magic = 0;
    for (size_t i = 0; i < client->n_lanes; i++) lane_destroy(&client->lanes[i]);
    lane_destroy(&client->direct);
    for (size_t i = 0; i < client->n_registered; i++) {
        if (client->registered[i].device) close(client->registered[i].fd);
    }
    free(client->lanes);
    master_free(&client->master);
    free(client->node);
    url_options_free(&client->options);
    pthread_cond_destroy(&client->freed);
    pthread_mutex_destroy(&client->mutex);
    pthread_mutex_destroy(&client->direct_mutex);
    free(client);
}

/* --- the direct lane --- */

tarn_status direct_run(struct tarn_client *client, struct call_trace *trace, uint64_t deadline,
                       lane_fn fn, void *arg) {
    tarn_status status = TARN_OK;
    pthread_mutex_lock(&client->direct_mutex);
    struct lane *lane = client->direct;
    if (lane == NULL) {
        lane = client->direct = lane_create(client, &status);
        if (lane != NULL) lane->held = &client->direct_mutex;
    }
    if (lane != NULL) {
        lane->no_tls[0] = '\0';
        lane->trace = trace->on ? trace : NULL;
        status = lane_run(lane, deadline, fn, arg);
        lane->trace = NULL;
        arena_reset(&lane->arena);
    }
    pthread_mutex_unlock(&client->direct_mutex);
    return status;
}

/* --- registered memory --- */

static size_t find_registered(const struct tarn_client *client, const void *address) {
    size_t i = 0;
    while (i < client->n_registered && client->registered[i].address != address) i++;
    return i;
}

uint64_t client_identity(void) {
    static uint64_t last_identity;
    return __atomic_add_fetch(&last_identity, 1, __ATOMIC_RELAXED);
}

/* Lanes learn of it when they are next taken. */
static tarn_status add_registered(struct tarn_client *client, struct engine_buffer r) {
    tarn_status status = TARN_OK;
    pthread_mutex_lock(&client->mutex);
    if (find_registered(client, r.address) < client->n_registered) {
        status = fail(TARN_EEXISTS, "%p is registered already", r.address);
    } else if (client->n_registered == REGISTER_MAX) {
        status = fail(TARN_ELIMIT, "%u buffers are registered already: register one large one",
                      REGISTER_MAX);
    } else {
        r.identity = client_identity();
        client->registered[client->n_registered++] = r;
        client->registered_gen++;
        __atomic_add_fetch(&client->n_devices, r.device, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&client->mutex);
    if (status == TARN_OK && client->shards != NULL) shards_sync_registered(client);
    return status;
}

tarn_status tarn_register(tarn_client *client, void *address, size_t len) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (address == NULL || len == 0) return fail(TARN_EINVAL, "register an address and a length");
    return add_registered(client, (struct engine_buffer){.address = address, .len = len, .fd = -1});
}

tarn_status tarn_register_dmabuf(tarn_client *client, void *address, size_t len, int fd,
                                 uint64_t offset) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    if (address == NULL || len == 0 || fd < 0)
        return fail(TARN_EINVAL, "register an address, a length and the descriptor of a dma-buf");
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return fail(TARN_EINVAL, "descriptor %d: %s", fd, strerror(errno));
    status = add_registered(
        client, (struct engine_buffer){
                    .address = address, .len = len, .device = true, .fd = own, .offset = offset});
    if (status != TARN_OK) close(own);
    return status;
}

bool client_meets_device(struct tarn_client *client, const struct iovec *iov, size_t n_iov) {
    bool is = false;
    pthread_mutex_lock(&client->mutex);
    for (size_t i = 0; i < client->n_registered && !is; i++) {
        const struct engine_buffer *r = &client->registered[i];
        for (size_t k = 0; k < n_iov && r->device && !is; k++)
            is = engine_buffer_meets(r, iov[k].iov_base, iov[k].iov_len);
    }
    pthread_mutex_unlock(&client->mutex);
    return is;
}

tarn_status tarn_unregister(tarn_client *client, void *address) {
    tarn_status status = client_usable(client);
    if (status != TARN_OK) return status;
    pthread_mutex_lock(&client->mutex);
    size_t i = find_registered(client, address);
    if (i == client->n_registered) {
        status = fail(TARN_ENOTFOUND, "%p is not registered", address);
    } else {
        struct engine_buffer r = client->registered[i];
        client->registered[i] = client->registered[--client->n_registered];
        client->registered_gen++;
        __atomic_sub_fetch(&client->n_devices, r.device, __ATOMIC_RELAXED);
        /* No lane that rests keeps it; one that is busy with something else lets go of it when it
         * is given back. */
        for (size_t k = 0; k < client->n_lanes; k++) {
            if (!client->lanes[k]->busy) lane_sync_registered(client->lanes[k]);
        }
        if (r.device) close(r.fd);
    }
    pthread_mutex_unlock(&client->mutex);
    if (status == TARN_OK && client->shards != NULL) shards_sync_registered(client);
    return status;
}
