/* An end: options, opening, closing. */
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lane.h"
#include "host/place.h"
#include "net/net.h"
#include "transfer/transfer.h"

#define SECRET_MIN 8u
#define BACKLOG    128

void tarn_transfer_options_init(tarn_transfer_options *o) {
    *o = (tarn_transfer_options){
        .size = sizeof(*o),
        .transport = "auto",
        .threads = 2,
        .workers = 4,
        .streams = 2,
        .max_peers = 256,
        .connect_timeout_ms = 5000,
        .timeout_ms = 10000,
    };
}

tarn_status transfer_usable(const struct tarn_transfer *t) {
    if (t == NULL || t->magic != TRANSFER_MAGIC)
        return fail(TARN_EINVAL, "this is not an open tarn_transfer");
    if (t->pid != getpid())
        return fail(TARN_ECLOSED,
                    "a tarn_transfer does not survive fork(): open another in the child");
    return TARN_OK;
}

uint64_t transfer_deadline(const struct tarn_transfer *t, uint64_t timeout_ms, uint64_t bytes) {
    if (timeout_ms == TARN_NO_TIMEOUT) return DEADLINE_NONE;
    if (timeout_ms == 0) timeout_ms = add_sat(t->options.timeout_ms, bytes / BYTES_PER_MS);
    return add_sat(now_ms(), timeout_ms);
}

bool transfer_cond_wait(struct tarn_transfer *t, pthread_cond_t *cond, uint64_t deadline) {
    uint64_t now = now_ms();
    if (now >= deadline) return false;
    (void)thread_cond_wait(cond, &t->mutex, deadline - now);
    return true;
}

/* --- options --- */

/* The i'th of its strings; NULL: there are no more. */
static const char **string_at(tarn_transfer_options *o, size_t i) {
    const char **all[] = {&o->name,      &o->master,      &o->announce,  &o->secret,
                          &o->transport, &o->module_path, &o->shm_socket};
    if (i < ARRAY_LEN(all)) return all[i];
    return i - ARRAY_LEN(all) < o->binds ? &((const char **)(uintptr_t)o->bind)[i - ARRAY_LEN(all)]
                                         : NULL;
}

/* A caller built against an older header has a smaller struct. */
static void transfer_options_copy(tarn_transfer_options *to, const tarn_transfer_options *from) {
    const char **at;
    tarn_transfer_options_init(to);
    if (from != NULL) memcpy(to, from, min_u64(from->size, sizeof(*to)));
    to->size = sizeof(*to);
    to->binds = to->bind != NULL ? min_u64(to->binds, TRANSFER_BINDS_MAX + 1) : 0;
    if (to->binds > 0) to->bind = xmemdup(to->bind, to->binds * sizeof(*to->bind));
    for (size_t i = 0; (at = string_at(to, i)) != NULL; i++) *at = xstrdup(*at);
}

static void transfer_options_free(tarn_transfer_options *o) {
    const char **at;
    for (size_t i = 0; (at = string_at(o, i)) != NULL; i++) free((char *)(uintptr_t)*at);
    if (o->binds > 0) free((void *)(uintptr_t)o->bind);
}

static bool is_loopback_name(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0 ||
           strcmp(address, "localhost") == 0;
}

static tarn_status transfer_options_check(struct tarn_transfer *t) {
    const tarn_transfer_options *o = &t->options;
    tarn_status found = client_module_choose(o->transport != NULL ? o->transport : "",
                                             o->module_path, &t->transport);
    if (found != TARN_OK) return found;
    if (o->name != NULL && !span_is_name(span_str(o->name), TARN_TRANSFER_NAME_MAX))
        return fail(TARN_EINVAL, "a name has 1 to %d of A-Z a-z 0-9 . _ -", TARN_TRANSFER_NAME_MAX);
    const struct option_range ranges[] = {{"threads", o->threads, 256},
                                          {"workers", o->workers, TRANSFER_WORKERS_MAX},
                                          {"streams", o->streams, 64},
                                          {"max_peers", o->max_peers, 65536},
                                          {"connect_timeout_ms", o->connect_timeout_ms, UINT64_MAX},
                                          {"timeout_ms", o->timeout_ms, UINT64_MAX}};
    tarn_status status = check_ranges(ranges, ARRAY_LEN(ranges), "tarn_transfer_options_init");
    if (status != TARN_OK) return status;
    if (o->binds > TRANSFER_BINDS_MAX)
        return fail(TARN_EINVAL, "option binds is %llu, and may be at most %u",
                    (unsigned long long)o->binds, (unsigned)TRANSFER_BINDS_MAX);
    bool local = true;
    for (size_t i = 0; i < o->binds; i++) {
        if (o->bind[i] == NULL) return fail(TARN_EINVAL, "an address to listen on is NULL");
        local &= is_loopback_name(o->bind[i]);
    }
    if (o->secret != NULL && strlen(o->secret) < SECRET_MIN)
        return fail(TARN_EINVAL, "a secret has at least %u bytes", SECRET_MIN);
    if (!local && o->secret == NULL && o->unprotected == 0)
        return fail(
            TARN_EPERM,
            "without a secret an end listens on loopback only (set secret, or unprotected)");
    return TARN_OK;
}

/* --- opening --- */

static tarn_status listen_all(struct tarn_transfer *t) {
    const tarn_transfer_options *o = &t->options;
    t->port = o->port;
    for (size_t i = 0; i < max_u64(o->binds, 1); i++) {
        const char *why, *bind = o->binds > 0 ? o->bind[i] : "127.0.0.1";
        tarn_status status = net_listen_tcp(bind, t->port, BACKLOG, &t->listen_fd[i], &why);
        if (status != TARN_OK)
            return fail(TARN_EIO, "cannot listen on %s port %u: %s", bind, t->port,
                        status == TARN_EIO ? why : "no such address");
        t->n_listen++;
        t->port = net_port(t->listen_fd[i]);
    }
    return TARN_OK;
}

/* What both sides must say alike to be on one machine. */
static void make_host_id(char *out, size_t cap) {
    char name[65] = "", boot[40];
    segment_host_name(name, sizeof(name));
    file_boot_id(boot);
    snprintf(out, cap, "%s|%s", name, boot);
}

static void session_fenced(void *arg, uint64_t session) {
    transfer_labels_fenced(arg, session);
}

/* To be served by RDMA memory needs its module from the start, also where only peers move bytes. */
static void usual_module_load(const struct tarn_transfer *t) {
    if (t->transport == NULL &&
        client_module_require(CLIENT_MODULE_USUAL, t->options.module_path) != TARN_OK)
        log_verbose("Transfers go without it: %s", tarn_last_error());
}

static void slot_key_changed(void *arg, unsigned slot) {
    (void)slot;
    transfer_regions_changed(arg);
}

static tarn_status start_host(struct tarn_transfer *t) {
    const tarn_transfer_options *o = &t->options;
    if (o->shm_socket == NULL) {
        char name[64], path[HOST_SOCKET_MAX];
        snprintf(name, sizeof(name), "tarn-transfer-%ld-%08x.sock", (long)getpid(),
                 randombytes_random());
        if (host_socket_path(name, path)) t->shm_path = xstrdup(path);
    } else if (o->shm_socket[0] != '\0') {
        t->shm_path = xstrdup(o->shm_socket);
    }
    static const char *const loopback[] = {"127.0.0.1"};
    struct host_config config = {
        .bind = o->binds > 0 ? o->bind : loopback,
        .binds = max_u64(o->binds, 1),
        .data_port = o->data_port,
        .threads = o->threads,
        .max_connections = 65536,
        .shm_path = t->shm_path,
        .shm_mode = o->shm_mode,
        .shm_optional = o->shm_socket == NULL,
        .arg = t,
        .fenced = session_fenced,
        .key_changed = slot_key_changed,
    };
    tarn_status status = host_create(&config, &t->host);
    if (status == TARN_OK) {
        randombytes_buf(t->grant_key, sizeof(t->grant_key));
        host_set_authority(t->host, t->grant_key, TRANSFER_MASTER_EPOCH);
        status = host_start(t->host);
    }
    if (status == TARN_OK) return TARN_OK;
    return fail(status == TARN_EINVAL ? TARN_EINVAL : TARN_EIO,
                "cannot serve memory on data port %u and socket %s: %s", o->data_port,
                t->shm_path != NULL ? t->shm_path : "(none)", tarn_status_text(status));
}

static tarn_status connect_master(struct tarn_transfer *t) {
    if (t->options.master == NULL) return TARN_OK;
    tarn_options o;
    tarn_options_init(&o);
    o.connect_timeout_ms = t->options.connect_timeout_ms;
    return tarn_connect(t->options.master, &o, &t->master);
}

static struct tarn_transfer *transfer_create(void) {
    struct tarn_transfer *t = xcalloc(1, sizeof(*t));
    t->magic = TRANSFER_MAGIC;
    t->pid = getpid();
    pthread_mutex_init(&t->mutex, NULL);
    thread_cond_init(&t->changed);
    thread_cond_init(&t->announce);
    t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->wheel = wheel_create(now_ms());
    randombytes_buf(t->identity, sizeof(t->identity));
    t->epoch = 1 + randombytes_uniform(UINT32_MAX);
    LIST_INIT(&t->regions);
    LIST_INIT(&t->conns);
    LIST_INIT(&t->peers);
    STAILQ_INIT(&t->notes);
    STAILQ_INIT(&t->queue);
    make_host_id(t->host_id, sizeof(t->host_id));
    return t;
}

tarn_status tarn_transfer_open(const tarn_transfer_options *options, tarn_transfer **transfer_p) {
    log_default_once();
    if (transfer_p == NULL) return fail(TARN_EINVAL, "there is no place for the end");
    if (sodium_init() < 0) return fail(TARN_EIO, "libsodium cannot start");
    struct tarn_transfer *t = transfer_create();
    transfer_options_copy(&t->options, options);
    tarn_status status = t->wake_fd < 0 || t->event_fd < 0
                             ? fail(TARN_EIO, "eventfd: %s", strerror(errno))
                             : transfer_options_check(t);
    if (status == TARN_OK && t->options.secret != NULL) {
        transfer_proof_key(t->options.secret, t->secret);
        t->has_secret = true;
        explicit_bzero((char *)(uintptr_t)t->options.secret, strlen(t->options.secret));
    }
    if (status == TARN_OK) status = listen_all(t);
    if (status == TARN_OK) usual_module_load(t);
    if (status == TARN_OK) status = start_host(t);
    if (status == TARN_OK) status = connect_master(t);
    if (status == TARN_OK) {
        int error = thread_start(&t->thread, "tarn-transfer", transfer_control, t);
        t->threaded = error == 0;
        if (error == 0)
            error = crew_start(&t->workers, "tarn-move", TRANSFER_WORKERS_MAX, NULL, NULL);
        if (error != 0) status = fail(TARN_ENOMEM, "a thread cannot start: %s", strerror(error));
    }
    /* last: others may come from here on */
    if (status == TARN_OK) status = transfer_announce_start(t);
    if (status != TARN_OK) {
        tarn_transfer_close(&t);
        return status;
    }
    *transfer_p = t;
    return TARN_OK;
}

/* --- closing --- */

void transfer_free(struct tarn_transfer *t) {
    while (!LIST_EMPTY(&t->conns)) {
        struct transfer_conn *c = LIST_FIRST(&t->conns);
        c->granted = false; /* the host goes, too */
        transfer_conn_destroy(&c);
    }
    transfer_labels_free(t);
    struct transfer_note *n;
    while ((n = STAILQ_TAKE(&t->notes, link)) != NULL) {
        free(n->data);
        free(n);
    }
    if (t->host != NULL) host_destroy(&t->host);
    transfer_regions_free(t);
    for (size_t i = 0; i < t->n_listen; i++) close(t->listen_fd[i]);
    if (t->wake_fd >= 0) close(t->wake_fd);
    if (t->event_fd >= 0) close(t->event_fd);
    wheel_destroy(&t->wheel);
    tarn_close(&t->master);
    transfer_options_free(&t->options);
    explicit_bzero(t->secret, sizeof(t->secret));
    explicit_bzero(t->grant_key, sizeof(t->grant_key));
    free(t->announced);
    free(t->endpoint);
    free(t->shm_path);
    pthread_cond_destroy(&t->announce);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
    t->magic = 0;
    free(t);
}

void tarn_transfer_close(tarn_transfer **transfer_p) {
    if (transfer_p == NULL || *transfer_p == NULL) return;
    struct tarn_transfer *t = *transfer_p;
    *transfer_p = NULL;
    if (t->magic != TRANSFER_MAGIC || t->pid != getpid()) return;
    pthread_mutex_lock(&t->mutex);
    TARN_ASSERT(LIST_EMPTY(&t->peers));
    t->stopping = true;
    pthread_cond_broadcast(&t->announce);
    transfer_wake(t);
    pthread_mutex_unlock(&t->mutex);
    crew_stop(&t->workers);
    transfer_announce_stop(t);
    if (t->threaded) pthread_join(t->thread, NULL);
    transfer_free(t);
}

const char *tarn_transfer_endpoint(const tarn_transfer *t) {
    return transfer_usable(t) == TARN_OK ? t->endpoint : "";
}

/* --- figures --- */

tarn_status tarn_transfer_get_stats(tarn_transfer *t, tarn_transfer_stats *stats) {
    tarn_status status = transfer_usable(t);
    if (status != TARN_OK) return status;
    if (stats == NULL || stats->size < sizeof(stats->size))
        return fail(TARN_EINVAL, "stats begin with their size");
    struct host_stats h;
    pthread_mutex_lock(&t->mutex);
    tarn_transfer_stats s = t->stats;
    host_get_stats(t->host, &h);
    s.size = stats->size;
    s.regions = t->n_regions;
    struct transfer_region *r;
    LIST_FOREACH(r, &t->regions, link) s.region_bytes += r->memory.len;
    s.labels = t->labels.count;
    s.events = t->n_notes;
    s.batches = t->n_batches;
    s.peers_in = t->n_conns;
    s.peers_out = t->n_peers;
    pthread_mutex_unlock(&t->mutex);
    s.served_bytes_read = h.bytes_read;
    s.served_bytes_written = h.bytes_written;
    memcpy(stats, &s, min_u64(stats->size, sizeof(s)));
    return TARN_OK;
}
