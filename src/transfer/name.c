/* Names. The master keeps, under "tarn:transfer:NAME", the address of the control port: a value so
 * small that it lives in the master's books. It expires, and is put anew before: an end that died
 * is soon forgotten. Who puts it last has the name. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/error.h"
#include "client/master.h"
#include "client/placement.h"
#include "transfer/transfer.h"

#define TTL_MS     30000u
#define REFRESH_MS 10000u
#define CALL_MS    5000u

static size_t name_key(const char *name, char out[96]) {
    return (size_t)snprintf(out, 96, TRANSFER_KEY_PREFIX "%s", name);
}

/* --- the address that we tell --- */

static bool is_any(const char *host) {
    return strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
           strcmp(host, "::*") == 0;
}

/* The address from which this machine reaches the master. Nothing is sent. */
static bool address_towards_master(struct tarn_client *master, char *out, size_t cap) {
    struct address at;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *list = NULL;
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    bool ok = false;
    if (master_find(&master->master, add_sat(now_ms(), master->options.connect_timeout_ms), &at) !=
        TARN_OK)
        return false;
    if (getaddrinfo(at.host, at.port, &hints, &list) != 0) return false;
    int fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &len) == 0)
        ok = getnameinfo((struct sockaddr *)&own, len, out, (socklen_t)cap, NULL, 0,
                         NI_NUMERICHOST) == 0;
    if (fd >= 0) close(fd);
    freeaddrinfo(list);
    return ok;
}

static char *address_format(const char *host, unsigned port) {
    struct buf text = {0};
    bool brackets = strchr(host, ':') != NULL && host[0] != '[';
    buf_printf(&text, brackets ? "[%s]:%u" : "%s:%u", host, port);
    buf_append_char(&text, '\0');
    return text.data;
}

static tarn_status choose_address(struct tarn_transfer *t, char **out) {
    const tarn_transfer_options *o = &t->options;
    char host[256];
    if (o->announce != NULL) {
        struct span name;
        uint16_t port;
        if (!span_to_address(span_str(o->announce), &name, &port) || name.len > 255)
            return fail(TARN_EINVAL, "announce is host or host:port, not \"%s\"", o->announce);
        *out = port != 0 ? xstrdup(o->announce) : address_format(o->announce, t->port);
        return TARN_OK;
    }
    const char *bind = o->binds > 0 ? o->bind[0] : "127.0.0.1";
    if (is_any(bind)) {
        if (t->master == NULL || !address_towards_master(t->master, host, sizeof(host)))
            gethostname(host, sizeof(host) - 1);
        bind = host;
    }
    *out = address_format(bind, t->port);
    return TARN_OK;
}

/* --- telling it --- */

static tarn_status name_put(struct tarn_transfer *t) {
    char key[96];
    size_t len = name_key(t->options.name, key);
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replace = 1;
    o.ttl_ms = TTL_MS;
    o.pin = TARN_PIN_HARD;
    o.timeout_ms = CALL_MS;
    return tarn_put(t->master, key, len, t->announced, strlen(t->announced), &o);
}

/* Is the name still ours? Also when nobody has it: then it was forgotten while the master was
 * away. */
static bool name_is_ours(struct tarn_transfer *t) {
    char key[96], value[INLINE_MAX];
    size_t n = 0;
    tarn_call call;
    tarn_call_init(&call);
    call.timeout_ms = CALL_MS;
    tarn_status status =
        tarn_get(t->master, key, name_key(t->options.name, key), value, sizeof(value), &n, &call);
    if (status == TARN_ELIMIT) return false;
    return status != TARN_OK || (n == strlen(t->announced) && memcmp(value, t->announced, n) == 0);
}

static void *announcer_main(void *arg) {
    struct tarn_transfer *t = arg;
    bool warned = false;
    pthread_mutex_lock(&t->mutex);
    uint64_t next = now_ms() + REFRESH_MS;
    for (;;) {
        while (!t->stopping && transfer_cond_wait(t, &t->announce, next)) continue;
        if (t->stopping) break;
        pthread_mutex_unlock(&t->mutex);
        bool ours = name_is_ours(t);
        tarn_status status = ours ? name_put(t) : TARN_OK;
        if (!ours)
            log_warning(
                "Another end took the transfer name \"%s\": this one is found by its endpoint only",
                t->options.name);
        if (status != TARN_OK && !warned)
            log_warning("The transfer name \"%s\" cannot be renewed: %s", t->options.name,
                        tarn_last_error());
        warned = status != TARN_OK;
        pthread_mutex_lock(&t->mutex);
        next = ours ? now_ms() + (warned ? 1000 : REFRESH_MS) : DEADLINE_NONE;
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

tarn_status transfer_announce_start(struct tarn_transfer *t) {
    tarn_status status = choose_address(t, &t->announced);
    if (status != TARN_OK) return status;
    struct buf endpoint = {0};
    buf_printf(&endpoint, "tarn-transfer://%s", t->announced);
    buf_append_char(&endpoint, '\0');
    t->endpoint = endpoint.data;
    if (t->master == NULL || t->options.name == NULL) return TARN_OK;
    if (strlen(t->announced) > INLINE_MAX)
        return fail(TARN_EINVAL, "announce has at most %u bytes with its port, and not \"%s\"",
                    INLINE_MAX, t->announced);
    status = name_put(t);
    if (status != TARN_OK) return status;
    int error = thread_start(&t->announcer, "tarn-announce", announcer_main, t);
    if (error != 0) return fail(TARN_ENOMEM, "a thread cannot start: %s", strerror(error));
    t->announcing = true;
    return TARN_OK;
}

void transfer_announce_stop(struct tarn_transfer *t) {
    if (!t->announcing) return;
    pthread_join(t->announcer, NULL);
    t->announcing = false;
    char key[96];
    if (name_is_ours(t)) (void)tarn_remove(t->master, key, name_key(t->options.name, key));
}

/* --- finding others --- */

tarn_status transfer_name_find(struct tarn_transfer *t, const char *name, uint64_t deadline,
                               char **host_p, char **port_p) {
    if (t->master == NULL)
        return fail(TARN_EINVAL, "\"%s\" is a name, and this end has no master to ask for it",
                    name);
    char key[96], value[INLINE_MAX];
    size_t n = 0;
    tarn_call call;
    tarn_call_init(&call);
    uint64_t now = now_ms(), left = deadline == DEADLINE_NONE ? TARN_NO_TIMEOUT
                                    : deadline > now          ? deadline - now
                                                              : 1;
    call.timeout_ms = left;
    /* the rest is for connecting */
    call.wait_ms = left == TARN_NO_TIMEOUT ? left : left - left / 8;
    tarn_status status =
        tarn_get(t->master, key, name_key(name, key), value, sizeof(value), &n, &call);
    if (status == TARN_ENOTFOUND) return fail(status, "no transfer end has the name \"%s\"", name);
    if (status != TARN_OK) return status;
    if (transfer_split_address(span_of(value, n), host_p, port_p)) return TARN_OK;
    return fail(TARN_EPROTO, "\"%s\" leads to no address", key);
}
