/* A host of one master: set-up, tear-down, and what callers may see while the control thread
 * works. */
#include "host/place.h"
#include "hosting/hosting.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/client.h"
#include "client/error.h"
#include "client/lane.h"
#include "client/master.h"
#include "client/secure.h"
#include "transport/uri.h"

#define DATA_TIMEOUT_MS 30000u /* silence of a client in the middle of a frame */
#define AWAIT_MS        200u   /* between calls of meanwhile */

/* --- callbacks of struct host, on the control thread --- */

static void note_fenced(void *arg, uint64_t session) {
    struct tarn_host *h = arg;
    if (!session_joined(&h->session) || h->session.phase == PHASE_FENCING)
        return; /* nobody there has asked */
    if (h->n_fenced == FENCES_MAX) {
        session_fail(h, TARN_ELIMIT, "%u fenced sessions wait to be reported", FENCES_MAX);
        return;
    }
    ARRAY_GROW(h->fenced, h->n_fenced, h->cap_fenced);
    h->fenced[h->n_fenced++] = session;
}

static void note_fenced_before(void *arg, uint32_t master_epoch) {
    session_fenced_before(arg, master_epoch);
}

/* --- names --- */

static tarn_status names_choose(struct tarn_host *h, const tarn_host_options *o) {
    uint8_t random[16];
    if (h->options.host_name != NULL) {
        snprintf(h->machine, sizeof(h->machine), "%s", h->options.host_name);
    } else {
        segment_host_name(h->machine, sizeof(h->machine));
    }
    if (o->name != NULL) {
        if (!span_is_name(span_str(o->name), NODE_NAME_MAX))
            return fail(TARN_EINVAL,
                        "a node's name is 1 to %u letters, digits, dots, dashes or underscores, "
                        "not \"%s\"",
                        NODE_NAME_MAX, o->name);
        snprintf(h->name, sizeof(h->name), "%s", o->name);
    } else {
        snprintf(h->name, sizeof(h->name), "%.32s-%ld", h->machine, (long)getpid());
    }
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return fail(TARN_EIO, "getrandom: %s", strerror(errno));
    sodium_bin2hex(h->instance, sizeof(h->instance), random, sizeof(random));
    h->rack = o->rack == NULL || o->rack[0] == '\0' ? NULL : xstrdup(o->rack);
    return TARN_OK;
}

/* Does somebody listen there, or use it for something else? */
static bool socket_is_taken(const char *path) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path)) return false;
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    bool taken = connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0 ||
                 (errno != ECONNREFUSED && errno != ENOENT);
    close(fd);
    return taken;
}

/* Of the node's name, so that a restart takes over what a crash left. NULL: there is none. */
static char *shm_path_choose(const struct tarn_host *h, const char *wanted) {
    char name[128], path[HOST_SOCKET_MAX];
    if (wanted != NULL) return wanted[0] == '\0' ? NULL : xstrdup(wanted);
    snprintf(name, sizeof(name), "tarn-node-%s.sock", h->name);
    return host_socket_path(name, path) ? xstrdup(path) : NULL;
}

#define SHM_NAMES    64    /* nodes of one name on a machine, of as many pools */
#define SHM_TURNS_MS 10000 /* until all that start at once have listened */

/* Other pools may have nodes of that name, some in this process: the first one that is free. */
static void shm_path_settle(struct tarn_host *h) {
    char name[128], path[HOST_SOCKET_MAX];
    snprintf(path, sizeof(path), "%s", h->shm_path);
    for (int i = 1; i < SHM_NAMES && socket_is_taken(path); i++) {
        snprintf(name, sizeof(name), "tarn-node-%s.%ld.%d.sock", h->name, (long)getpid(), i);
        if (!host_socket_path(name, path)) return;
    }
    free(h->shm_path);
    h->shm_path = xstrdup(path);
    host_move_shm(h->host, path);
}

/* Nodes that start at once take turns, in the folder of their sockets: each sees the names that
 * the others have taken. */
static tarn_status listen_in_turn(struct tarn_host *h, bool chosen) {
    int turn = -1;
    if (chosen && h->shm_path != NULL) {
        char *folder = xmemdup(h->shm_path, strlen(h->shm_path) + 1);
        *strrchr(folder, '/') = '\0';
        turn = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        free(folder);
        if (turn >= 0) (void)file_lock(turn, SHM_TURNS_MS); /* without it, it is a matter of luck */
        shm_path_settle(h);
    }
    tarn_status status = host_start(h->host);
    if (turn >= 0) close(turn);
    return status;
}

/* --- endpoints --- */

static void endpoint_add(struct tarn_host *h, const char *host, unsigned port) {
    struct span scheme = span_str(host_data_scheme(h->host));
    h->endpoints[h->n_endpoints++] = uri_make(scheme, host, port);
}

static tarn_status endpoints_make(struct tarn_host *h, const tarn_host_options *o) {
    uint16_t port = host_data_port(h->host), said;
    h->endpoints = xcalloc(o->binds + 2, sizeof(*h->endpoints));
    if (o->announce != NULL) {
        struct span host;
        if (!span_to_address(span_str(o->announce), &host, &said) || host.len > 255)
            return fail(TARN_EINVAL, "announce is host or host:port, not \"%s\"", o->announce);
        char *name = span_dup(host);
        endpoint_add(h, name, said != 0 ? said : port);
        free(name);
    } else if (o->binds == 0) {
        endpoint_add(h, "*", port);
    }
    for (size_t i = 0; o->announce == NULL && i < o->binds; i++) {
        const char *b = o->bind[i] + (o->bind[i][0] == '-'); /* one that may fail */
        endpoint_add(h, strcmp(b, "::*") == 0 ? "*" : b, port);
    }
    h->n_tcp_endpoints = h->n_endpoints;
    const char *shm = host_shm_uri(h->host);
    if (shm != NULL) h->endpoints[h->n_endpoints++] = xstrdup(shm);
    return TARN_OK;
}

/* --- set-up --- */

static tarn_status create_host(struct tarn_host *h, const tarn_host_options *o) {
    h->shm_path = shm_path_choose(h, o->shm_socket);
    struct host_config config = {
        .bind = o->bind,
        .binds = o->binds,
        .data_port = o->data_port,
        .threads = o->threads > 0 ? o->threads : 2,
        .max_connections = o->max_connections > 0 ? o->max_connections : 4096,
        .idle_timeout_ms = DATA_TIMEOUT_MS,
        .busy_poll_us = h->options.busy_poll_us,
        .shm_path = h->shm_path,
        .shm_mode = o->shm_mode,
        .shm_optional = o->shm_socket == NULL,
        .tls = h->data_tls != NULL ? &h->data_tls_of : NULL,
        .arg = h,
        .fenced = note_fenced,
        .fenced_before = note_fenced_before,
        .key_changed = keys_changed,
    };
    tarn_status status = host_create(&config, &h->host);
    return status == TARN_OK
               ? TARN_OK
               : fail(status, "cannot set up the data port: %s", tarn_status_text(status));
}

const char *const hosted_tiers[] = {
    [HOSTED_MEMORY] = "memory", [HOSTED_SSD] = "ssd", [HOSTED_FILE] = "file"};

/* number: in the name of memory. */
static struct hosted *segment_new(struct tarn_host *h, enum hosted_kind kind, unsigned number) {
    unsigned i = 0;
    while (i < h->n_segments && !h->segments[i].closed) i++;
    if (i == h->n_segments) h->n_segments++;
    TARN_ASSERT(h->n_segments <= HOSTED_MAX);
    struct hosted *s = &h->segments[i];
    *s = (struct hosted){.kind = kind, .number = number};
    static_assert(NODE_NAME_MAX + 8 < SEGMENT_NAME_MAX, "names of segments fit");
    if (kind == HOSTED_MEMORY) {
        snprintf(s->name, sizeof(s->name), "%s.%u", h->name, number);
    } else {
        snprintf(s->name, sizeof(s->name), "%s.%s", h->name, hosted_tiers[kind]);
    }
    return s;
}

static void tell_populating(struct tarn_host *h, const struct hosted *s) {
    char text[VIEW_TEXT_MAX];
    snprintf(text, sizeof(text), "memory is populated: segment %s, %llu MiB", s->name,
             (unsigned long long)(s->size >> 20));
    view_tell(h->view, HOSTING_POPULATING, text);
}

tarn_status memory_open(struct tarn_host *h, const tarn_host_segment *want, unsigned number,
                        bool shrink, bool later, struct hosted **s_p, const char **why_p) {
    struct hosted *s = *s_p = segment_new(h, HOSTED_MEMORY, number);
    s->size = want->bytes / 4096 * 4096;
    if (!later) tell_populating(h, s);
    struct host_segment_config config = {
        .name = s->name,
        .size = s->size,
        .pool_path = want->path,
        .numa_node = want->numa_node,
        .huge = want->huge_pages ? HOST_HUGE_TRY : HOST_HUGE_NO,
        .populate = h->populate,
        .later = later,
        .shrink = shrink,
    };
    *why_p = "it has no page";
    tarn_status status =
        s->size == 0 ? TARN_EINVAL : host_segment_open(h->host, &config, &s->slot, why_p);
    if (status != TARN_OK) s->gone = s->closed = true;
    return status;
}

static tarn_status open_memory(struct tarn_host *h, const struct hosting_plan *plan) {
    for (size_t i = 0; i < plan->host->n_segments; i++) {
        struct hosted *s;
        const char *why = "";
        unsigned number = plan->numbers != NULL ? plan->numbers[i] : (unsigned)i;
        tarn_status status = memory_open(h, &plan->host->segments[i], number,
                                         plan->host->shrink != 0, false, &s, &why);
        /* to our callers that is a name that is taken */
        if (status == TARN_EBUSY) status = TARN_EIO;
        if (status != TARN_OK)
            return fail(status, "segment %s of %llu bytes cannot be set up: %s", s->name,
                        (unsigned long long)s->size, why);
    }
    return TARN_OK;
}

tarn_status far_add(struct tarn_host *h, enum hosted_kind kind, const char *path, uint64_t bytes,
                    bool create, struct hosting_far **far_p) {
    struct hosting_far *f = *far_p = &h->fars[h->n_fars++];
    TARN_ASSERT(h->n_fars <= FARS_MAX);
    far_init(f, h, segment_new(h, kind, 0), path, bytes);
    f->create = create;
    return hosting_crew_start(h, &f->stores, "tarn-store", 1);
}

static tarn_status open_ssd(struct tarn_host *h, const tarn_host_options *o) {
    struct hosting_far *f;
    const char *why = "";
    if (o->ssd_path == NULL) return TARN_OK;
    tarn_status status = far_add(h, HOSTED_SSD, o->ssd_path, o->ssd_bytes, o->ssd_create != 0, &f);
    if (status != TARN_OK) return status;
    status = far_open(f, NULL, &why);
    if (status != TARN_OK)
        return fail(status, "the ssd tier at %s cannot be opened: %s", o->ssd_path, why);
    status = far_serve(f);
    return status == TARN_OK
               ? TARN_OK
               : fail(status, "the ssd tier cannot be served: %s", tarn_status_text(status));
}

/* Opened once the cluster's id is known. */
static tarn_status note_file(struct tarn_host *h, const tarn_host_options *o) {
    struct hosting_far *f;
    if (o->file_path == NULL) return TARN_OK;
    tarn_status status =
        far_add(h, HOSTED_FILE, o->file_path, o->file_bytes, o->file_create != 0, &f);
    f->segment->size = o->file_bytes;
    f->mode = o->file_mode;
    return status;
}

tarn_status hosting_check(const tarn_host_options *o) {
    if (o->n_segments + FARS_MAX > HOSTED_MAX)
        return fail(TARN_EINVAL, "a node has at most %u segments", HOSTED_MAX - FARS_MAX);
    if (o->n_segments == 0 && o->ssd_path == NULL && o->file_path == NULL)
        return fail(TARN_EINVAL, "a node needs a segment to offer");
    if ((o->n_segments > 0 && o->segments == NULL) || (o->binds > 0 && o->bind == NULL))
        return fail(TARN_EINVAL,
                    "an array of the options is NULL (call tarn_host_options_init first)");
    if ((o->ssd_path != NULL && o->ssd_bytes == 0) || (o->file_path != NULL && o->file_bytes == 0))
        return fail(TARN_EINVAL, "a path of the options lacks its bytes");
    if (o->copies > 64 || o->threads > 256)
        return fail(TARN_EINVAL, "copies is at most 64, threads at most 256");
    return TARN_OK;
}

static void init_shared(struct tarn_host *h) {
    pthread_mutex_init(&h->mutex, NULL);
    pthread_mutex_init(&h->reader_mutex, NULL);
    thread_cond_init(&h->changed);
    TAILQ_INIT(&h->posted);
    TAILQ_INIT(&h->done_tasks);
    TAILQ_INIT(&h->done_told);
    link_init(&h->beats);
    link_init(&h->reports);
    rng_seed(&h->rng, clock_mono_ns() ^ (uint64_t)(uintptr_t)h);
}

static tarn_status hosting_set_up(struct tarn_host *h, const struct hosting_plan *plan) {
    const tarn_host_options *o = plan->host;
    url_options_copy(&h->options, plan->options);
    tarn_status status = url_parse(plan->url, &h->options, &h->master);
    if (status == TARN_OK) status = hosting_check(o);
    if (status == TARN_OK) status = names_choose(h, o);
    if (status == TARN_OK && h->master.tls) status = secure_open(&h->options, &h->master.secure);
    if (status != TARN_OK) return status;
    h->url = xstrdup(plan->url);
    h->queue_bytes = o->queue_bytes;
    h->populate = o->populate != 0;
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->wake_fd < 0) return fail(TARN_EIO, "eventfd: %s", strerror(errno));
    status = hosting_tls_open(h, o);
    if (status == TARN_OK) status = create_host(h, o);
    view_tell(h->view, HOSTING_POPULATING, "memory is set up");
    if (status == TARN_OK) status = open_memory(h, plan);
    view_tell(h->view, HOSTING_POPULATING, "the disk is read");
    if (status == TARN_OK) status = open_ssd(h, o);
    if (status == TARN_OK) status = note_file(h, o);
    if (status != TARN_OK) return status;
    status = listen_in_turn(h, o->shm_socket == NULL);
    if (status != TARN_OK)
        return fail(status, "cannot listen on data port %u or on the socket %s (the log says why)",
                    o->data_port, h->shm_path != NULL ? h->shm_path : "(none)");
    status = endpoints_make(h, o);
    if (status == TARN_OK) status = hosting_crew_start(h, &h->dialler, "tarn-dial", 1);
    if (status == TARN_OK)
        status = hosting_crew_start(h, &h->copies, "tarn-copy", o->copies > 0 ? o->copies : 4);
    return status;
}

/* --- tear-down --- */

/* Everything of a host whose control thread has ended, or never began. */
static void hosting_tear_down(struct tarn_host *h) {
    struct hosting_view *view = h->view;
    view_tell(view, HOSTING_LEAVING, "it is stopping");
    h->session.phase = PHASE_LEFT; /* whatever comes back now starts nothing */
    crew_cancel(&h->dialler, NULL, NULL);
    crew_stop(&h->dialler);
    crew_cancel(&h->copies, NULL, NULL);
    crew_stop(&h->copies);
    for (unsigned i = 0; i < h->n_fars; i++) far_stop(&h->fars[i]);
    /* Tiers may read large values from segment memory until they are written. */
    hosting_run_posted(h);
    while (h->stores_out > 0) {
        struct pollfd p = {.fd = h->wake_fd, .events = POLLIN};
        eventfd_t ignored;
        if (poll(&p, 1, 1000) > 0) eventfd_read(h->wake_fd, &ignored);
        hosting_run_posted(h);
    }
    /* The data port ends before what it reads from. */
    host_destroy(&h->host);
    hosting_tls_close(h);
    for (unsigned i = 0; i < h->n_fars; i++) tier_close(&h->fars[i].tier);
    hosting_run_posted(h);
    link_deinit(h, &h->beats);
    link_deinit(h, &h->reports);
    reports_forget(h);
    TARN_ASSERT(h->n_tasks == 0);
    for (unsigned i = 0; i < h->n_fars; i++) far_deinit(&h->fars[i]);
    tarn_close(&h->reader);
    if (h->wake_fd >= 0) close(h->wake_fd);
    for (size_t i = 0; i < h->n_endpoints; i++) free(h->endpoints[i]);
    free(h->endpoints);
    free(h->fenced);
    free(h->rack);
    free(h->shm_path);
    master_free(&h->master);
    if (h->url != NULL) explicit_bzero(h->url, strlen(h->url)); /* a password may be in it */
    free(h->url);
    free(h->new_url);
    free((void *)(uintptr_t)h->lend.segment.path);
    free(h->open_error);
    url_options_free(&h->options);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->mutex);
    pthread_mutex_destroy(&h->reader_mutex);
    h->magic = 0;
    free(h);
    view_tell(view, HOSTING_CLOSED, "it is not open");
}

void hosting_end_begin(struct tarn_host *h, bool keep, uint64_t deadline) {
    pthread_mutex_lock(&h->mutex);
    h->closing = keep ? CLOSE_KEEP : CLOSE_LEAVE;
    h->close_deadline = deadline;
    pthread_mutex_unlock(&h->mutex);
    hosting_wake(h);
}

bool hosting_is_over(struct tarn_host *h) {
    pthread_mutex_lock(&h->mutex);
    bool over = h->finished;
    pthread_mutex_unlock(&h->mutex);
    return over;
}

void hosting_end(struct tarn_host **h_p) {
    struct tarn_host *h = *h_p;
    *h_p = NULL;
    if (h->thread_runs) pthread_join(h->thread, NULL);
    hosting_tear_down(h);
}

tarn_status hosting_begin(const struct hosting_plan *plan, struct tarn_host **h_p) {
    struct tarn_host *h = xcalloc(1, sizeof(*h));
    h->magic = HOSTING_MAGIC;
    h->pid = getpid();
    h->wake_fd = -1;
    h->view = plan->view;
    h->one_of_many = plan->numbers != NULL;
    h->map_epoch = plan->map_epoch;
    h->patient = plan->meanwhile != NULL;
    init_shared(h);
    tarn_status status = hosting_set_up(h, plan);
    if (status == TARN_OK) {
        h->opening = true;
        h->open_deadline = add_sat(now_ms(), h->options.connect_timeout_ms);
        view_attach(h->view, h);
        int err = thread_start(&h->thread, "tarn-host", hosting_control, h);
        if (err != 0) view_attach(h->view, NULL);
        if (err != 0) status = fail(TARN_EIO, "cannot start a thread: %s", strerror(err));
        h->thread_runs = err == 0;
    }
    if (status != TARN_OK) {
        char why[sizeof(h->session.why)];
        snprintf(why, sizeof(why), "%s", tarn_last_error());
        hosting_end(&h);
        return fail(status, "%s", why);
    }
    *h_p = h;
    return TARN_OK;
}

tarn_status hosting_await(struct tarn_host *h, const struct hosting_plan *plan) {
    pthread_mutex_lock(&h->mutex);
    while (h->opening) {
        (void)thread_cond_wait(&h->changed, &h->mutex, AWAIT_MS);
        if (plan->meanwhile == NULL || !h->opening) continue;
        pthread_mutex_unlock(&h->mutex);
        plan->meanwhile(plan->arg, NULL);
        pthread_mutex_lock(&h->mutex);
    }
    pthread_mutex_unlock(&h->mutex);
    return hosting_joined(h);
}

tarn_status hosting_joined(struct tarn_host *h) {
    pthread_mutex_lock(&h->mutex);
    tarn_status status = h->open_status;
    if (status != TARN_OK) fail(status, "%s", h->open_error);
    pthread_mutex_unlock(&h->mutex);
    return status;
}

/* --- while it runs --- */

void hosting_info(struct tarn_host *h, tarn_host_info *info) {
    pthread_mutex_lock(&h->mutex);
    uint64_t ticket = ++h->info_wanted;
    pthread_mutex_unlock(&h->mutex);
    hosting_wake(h);
    pthread_mutex_lock(&h->mutex);
    while (h->info_made < ticket) pthread_cond_wait(&h->changed, &h->mutex);
    *info = h->info;
    pthread_mutex_unlock(&h->mutex);
}

bool hosting_wait(struct tarn_host *h, uint64_t timeout_ms) {
    uint64_t until = add_sat(clock_mono_ms(), timeout_ms), now;
    pthread_mutex_lock(&h->mutex);
    while (h->info.state != TARN_HOST_LEFT && (now = clock_mono_ms()) < until)
        (void)thread_cond_wait(&h->changed, &h->mutex, until - now);
    bool left = h->info.state == TARN_HOST_LEFT;
    pthread_mutex_unlock(&h->mutex);
    return left;
}

void hosting_drain(struct tarn_host *h) {
    pthread_mutex_lock(&h->mutex);
    h->drain_wanted = true;
    pthread_mutex_unlock(&h->mutex);
    hosting_wake(h);
}
