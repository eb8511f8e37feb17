/* A node of many masters: set-up, tear-down, and what callers see of all its hosts together. */
#include "hosting/shares.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread.h"
#include "client/error.h"
#include "pool/site.h"

#define QUEUE_BYTES     (UINT64_C(256) << 20)
#define QUEUE_BYTES_MIN (UINT64_C(1) << 20)
#define WAIT_MS         50u /* between looks at all hosts */

/* --- options of its own --- */

/* All strings of the options, one after the other; NULL: there are no more. */
static const char **host_option_string(tarn_host_options *o, unsigned i) {
    const char **all[] = {&o->name,          &o->rack,         &o->announce,        &o->shm_socket,
                          &o->ssd_path,      &o->file_path,    &o->tls_ca_file,     &o->tls_ca_dir,
                          &o->tls_cert_file, &o->tls_key_file, &o->tls_auth_clients};
    return i < ARRAY_LEN(all) ? all[i] : NULL;
}

static void host_options_own(tarn_host_options *o) {
    const char **s;
    for (unsigned i = 0; (s = host_option_string(o, i)) != NULL; i++) *s = xstrdup(*s);
    tarn_host_segment *segments = xcalloc(o->n_segments + 1, sizeof(*segments));
    for (size_t i = 0; i < o->n_segments; i++) {
        segments[i] = o->segments[i];
        segments[i].path = xstrdup(segments[i].path);
    }
    const char **bind = xcalloc(o->binds + 1, sizeof(*bind));
    for (size_t i = 0; i < o->binds; i++) bind[i] = xstrdup(o->bind[i]);
    o->segments = segments;
    o->bind = bind;
}

static void host_options_free(tarn_host_options *o) {
    const char **s;
    for (unsigned i = 0; (s = host_option_string(o, i)) != NULL; i++) free((void *)(uintptr_t)*s);
    for (size_t i = 0; i < o->n_segments; i++) free((void *)(uintptr_t)o->segments[i].path);
    for (size_t i = 0; i < o->binds; i++) free((void *)(uintptr_t)o->bind[i]);
    free((void *)(uintptr_t)o->segments);
    free((void *)(uintptr_t)o->bind);
}

/* --- what one of the hosts is told --- */

/* Sentinels know the shard by its name; without any, all servers of its row are named. */
char *share_url(const struct shares *s, const struct slot_shard *row) {
    const struct whereabouts *m = &s->pool->master;
    struct buf url = {0};
    buf_printf(&url, "%s%s://", m->tls ? "tarns" : "tarn", m->name != NULL ? "+sentinel" : "");
    for (unsigned i = 0; m->name != NULL && i < m->n; i++) {
        bool colon = strchr(m->server[i].host, ':') != NULL;
        buf_printf(&url, "%s%s%s%s:%s", i > 0 ? "," : "", colon ? "[" : "", m->server[i].host,
                   colon ? "]" : "", m->server[i].port);
    }
    for (unsigned i = 0; m->name == NULL && i < row->servers; i++) {
        if (i > 0) buf_append_char(&url, ',');
        slot_server_write(&row->server[i], &url);
    }
    if (m->name != NULL) buf_printf(&url, "/%s", row->name);
    buf_append_char(&url, '\0');
    return url.data;
}

static unsigned part_of(unsigned whole, unsigned usual, unsigned shards) {
    unsigned n = ((whole > 0 ? whole : usual) + shards - 1) / shards;
    return n > 0 ? n : 1;
}

/* "host:port": each host has the next port. */
static char *announce_of(const char *announce, unsigned i) {
    struct span host;
    uint16_t port;
    struct buf text = {0};
    if (announce == NULL) return NULL;
    if (!span_to_address(span_str(announce), &host, &port) || port == 0) return xstrdup(announce);
    bool colon = memchr(host.data, ':', host.len) != NULL;
    buf_printf(&text, "%s%.*s%s:%u", colon ? "[" : "", (int)host.len, host.data, colon ? "]" : "",
               port + i);
    buf_append_char(&text, '\0');
    return text.data;
}

static char *path_of(const char *path, const char *between, const char *shard) {
    struct buf text = {0};
    if (path == NULL || path[0] == '\0') return xstrdup(path);
    buf_printf(&text, "%s%s%s", path, between, shard);
    buf_append_char(&text, '\0');
    return text.data;
}

static tarn_status ssd_make(const tarn_host_options *o) {
    if (o->ssd_path == NULL || mkdir(o->ssd_path, 0700) == 0 || errno == EEXIST) return TARN_OK;
    return fail(TARN_EINVAL,
                "%s: %s: of the disks of a node that has several masters each has a "
                "part, in a directory",
                o->ssd_path, strerror(errno));
}

uint64_t share_disk_bytes(const struct shares *s) {
    return s->o.ssd_path != NULL ? s->o.ssd_bytes / s->map->slots->shards : 0;
}

char *share_disk_make(const struct shares *s, const char *shard) {
    tarn_host_options o = {.ssd_path = path_of(s->o.ssd_path, "/", shard)};
    if (ssd_make(&o) == TARN_OK) return (char *)(uintptr_t)o.ssd_path;
    log_warning("The disk of shard %s: %s", shard, tarn_last_error());
    free((void *)(uintptr_t)o.ssd_path);
    return NULL;
}

void share_disk_remove(const struct shares *s, const char *shard) {
    char *directory = path_of(s->o.ssd_path, "/", shard);
    if (directory == NULL) return;
    char *file = path_of(directory, "/", "tarn.ssd");
    if (unlink(file) == 0) log_notice("The disk of shard %s at %s is removed", shard, directory);
    (void)rmdir(directory);
    free(file);
    free(directory);
}

/* Has the URL named a server of it? */
static bool shard_is_named(const struct whereabouts *m, const struct slot_shard *row) {
    if (m->name != NULL) return strcmp(m->name, row->name) == 0;
    for (unsigned i = 0; i < m->n; i++)
        for (unsigned k = 0; k < row->servers; k++)
            if (strcmp(m->server[i].host, row->server[k].host) == 0 &&
                strtoul(m->server[i].port, NULL, 10) == row->server[k].port)
                return true;
    return false;
}

/* The disk of a time when the node had one master, which the URL names, becomes that one's part,
 * and gets smaller. Should it be another's, that master takes nothing that is on it. */
static void disk_adopt(const struct shares *s) {
    const struct slot_map *map = s->map->slots;
    unsigned i = 0;
    struct stat st;
    char *whole = path_of(s->o.ssd_path, "/", "tarn.ssd");
    if (whole != NULL && lstat(whole, &st) == 0 && S_ISREG(st.st_mode)) {
        while (i < map->shards && !shard_is_named(&s->pool->master, &map->shard[i])) i++;
        char *directory = path_of(s->o.ssd_path, "/", map->shard[i % map->shards].name);
        char *part = path_of(directory, "/", "tarn.ssd");
        if ((mkdir(directory, 0700) == 0 || errno == EEXIST) &&
            renameat2(AT_FDCWD, whole, AT_FDCWD, part, RENAME_NOREPLACE) == 0)
            log_notice("The disk %s is %s now: the node has several masters", whole, part);
        else
            log_warning("The disk %s is of the time before there were several masters, and cannot "
                        "become %s (%s): remove it",
                        whole, part, strerror(errno));
        free(part);
        free(directory);
    }
    free(whole);
}

/* Parts of masters that left the map while the node was away, or as it ended: the others' have no
 * room beside them. What another process has open is another node's. */
static void disks_forget(const struct shares *s) {
    DIR *dir = s->o.ssd_path != NULL ? opendir(s->o.ssd_path) : NULL;
    struct dirent *entry;
    const char *why;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' ||
            slot_map_shard(s->map->slots, span_str(entry->d_name)) != SLOT_NOBODY)
            continue;
        char *directory = path_of(s->o.ssd_path, "/", entry->d_name);
        char *file = path_of(directory, "/", "tarn.ssd");
        int fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && site_claim(fd, "", file, 0, &why) == TARN_OK)
            share_disk_remove(s, entry->d_name);
        if (fd >= 0) close(fd);
        free(file);
        free(directory);
    }
    if (dir != NULL) closedir(dir);
}

/* It was made when there were fewer masters. */
static bool disk_is_too_large(const struct shares *s, const char *shard) {
    char *directory = path_of(s->o.ssd_path, "/", shard),
         *file = path_of(directory, "/", "tarn.ssd");
    struct stat st;
    bool is = file != NULL && stat(file, &st) == 0 && (uint64_t)st.st_size > share_disk_bytes(s);
    free(file);
    free(directory);
    return is;
}

/* Its part of what the node has; for share_options_free. */
static void share_options(const struct shares *s, unsigned i, tarn_host_options *o) {
    unsigned shards = s->map->slots->shards;
    const char *shard = s->share[i].row.name;
    *o = s->o;
    tarn_host_segment *segments = xcalloc(CHUNKS_MAX, sizeof(*segments));
    o->n_segments = 0;
    for (unsigned k = 0; k < s->chunks.n; k++) {
        const struct node_chunk *chunk = &s->chunks.chunk[k];
        if (chunk->shard != i) continue;
        segments[o->n_segments] = s->o.segments[chunk->of];
        segments[o->n_segments].bytes = chunk->bytes;
        segments[o->n_segments++].path = chunk_path(&s->o, chunk, shard);
    }
    o->segments = segments;
    o->data_port = o->data_port > 0 ? (uint16_t)(o->data_port + i) : 0;
    o->announce = announce_of(o->announce, i);
    o->shm_socket = path_of(o->shm_socket, ".", shard);
    /* Later ones get theirs once those that came first have less; of files, once the node starts
     * anew. */
    o->ssd_path = s->thread_runs ? NULL : path_of(o->ssd_path, "/", shard);
    if (s->thread_runs) o->file_path = NULL;
    o->ssd_bytes = share_disk_bytes(s);
    o->file_bytes /= shards;
    o->threads = part_of(o->threads, 2, shards);
    o->copies = part_of(o->copies, 4, shards);
    o->queue_bytes =
        max_u64((o->queue_bytes > 0 ? o->queue_bytes : QUEUE_BYTES) / shards, QUEUE_BYTES_MIN);
}

static void share_options_free(tarn_host_options *o) {
    for (size_t i = 0; i < o->n_segments; i++) free((void *)(uintptr_t)o->segments[i].path);
    free((void *)(uintptr_t)o->segments);
    free((void *)(uintptr_t)o->announce);
    free((void *)(uintptr_t)o->shm_socket);
    free((void *)(uintptr_t)o->ssd_path);
}

/* --- opening --- */

tarn_status share_begin(struct shares *s, unsigned i) {
    struct node_share *share = &s->share[i];
    struct tarn_host *host;
    unsigned numbers[CHUNKS_MAX], n = 0;
    tarn_host_options o;
    if (share->row.servers == 0) return fail(TARN_ELOADING, "the slot map has no address of it");
    share_options(s, i, &o);
    for (unsigned k = 0; k < s->chunks.n; k++)
        if (s->chunks.chunk[k].shard == i) numbers[n++] = s->chunks.chunk[k].number;
    char *url = share_url(s, &share->row);
    struct hosting_plan plan = {.url = url,
                                .options = &s->options,
                                .host = &o,
                                .numbers = numbers,
                                .map_epoch = s->map->slots->epoch,
                                .view = s->view != NULL ? hosting_view_create() : NULL};
    tarn_status status = ssd_make(&o);
    if (status == TARN_OK) status = hosting_begin(&plan, &host);
    if (status == TARN_OK && o.ssd_path != NULL) share->disk = o.ssd_bytes;
    share_options_free(&o);
    free(url);
    if (status != TARN_OK) {
        hosting_view_destroy(&plan.view);
        return status;
    }
    share->view = plan.view;
    view_part_add(s->view, share->row.name, plan.view);
    pthread_mutex_lock(&s->mutex);
    share->host = host;
    pthread_mutex_unlock(&s->mutex);
    return TARN_OK;
}

/* Callers ask hosts under the mutex, and one that ends does not answer. */
void share_end_begin(struct shares *s, unsigned i, bool keep, uint64_t deadline) {
    struct node_share *share = &s->share[i];
    pthread_mutex_lock(&s->mutex);
    if (share->host != NULL) share->ends = share->host;
    share->host = NULL;
    pthread_mutex_unlock(&s->mutex);
    if (share->ends != NULL) hosting_end_begin(share->ends, keep, deadline);
}

void share_end(struct shares *s, unsigned i) {
    struct node_share *share = &s->share[i];
    if (share->ends != NULL) hosting_end(&share->ends);
    if (share->view != NULL) view_part_remove(s->view, share->view);
    hosting_view_destroy(&share->view);
}

/* What share i's host cannot mend by trying on; TARN_OK: there is nothing. */
static tarn_status share_refused(const struct shares *s, unsigned i, tarn_status status) {
    const struct node_share *share = &s->share[i];
    if (status == TARN_OK || !session_is_fatal(share->host, status)) return TARN_OK;
    char *why = xstrdup(tarn_last_error());
    status = fail(status, "shard %s: %s", share->row.name, why);
    free(why);
    return status;
}

static tarn_status shares_refused(struct shares *s) {
    tarn_status refused = TARN_OK;
    pthread_mutex_lock(&s->mutex);
    for (unsigned i = 0; i < SLOT_SHARDS_MAX && refused == TARN_OK; i++)
        if (s->share[i].host != NULL)
            refused = share_refused(s, i, hosting_joined(s->share[i].host));
    pthread_mutex_unlock(&s->mutex);
    return refused;
}

/* A master that is away now gets its share when it is back; TARN_OK when one at least has it, or
 * may have it in time. */
static tarn_status shares_await(struct shares *s, const struct hosting_plan *plan) {
    tarn_status worst = fail(TARN_ELOADING, "the slot map has no address of any master yet");
    char why[512];
    bool any = false;
    snprintf(why, sizeof(why), "%s", tarn_last_error());
    for (unsigned i = 0; i < s->map->slots->shards; i++) {
        struct node_share *share = &s->share[i];
        if (share->host == NULL) continue;
        tarn_status status = hosting_await(share->host, plan);
        any = any || status == TARN_OK;
        if (status == TARN_OK) continue;
        worst = status;
        snprintf(why, sizeof(why), "shard %s: %s", share->row.name, tarn_last_error());
        tarn_status refused = share_refused(s, i, status);
        if (refused != TARN_OK) return refused;
    }
    return any || plan->meanwhile != NULL ? TARN_OK : fail(worst, "%s", why);
}

static int shares_state(struct shares *s) {
    tarn_host_info info = {.size = sizeof(info)};
    shares_get_info(s, &info);
    return info.state;
}

static tarn_status shares_begin(struct shares *s, const struct hosting_plan *plan) {
    const struct slot_map *slots = s->map->slots;
    view_tell(s->view, HOSTING_POPULATING, "memory is set up");
    tarn_status status = hosting_check(&s->o);
    if (status == TARN_OK) status = chunks_plan(&s->chunks, &s->o, slots);
    if (s->o.ssd_path != NULL && s->o.ssd_create)
        (void)mkdir(s->o.ssd_path, 0700); /* else making the parts says why */
    if (status == TARN_OK) disk_adopt(s);
    if (status == TARN_OK) disks_forget(s);
    for (unsigned i = 0; i < slots->shards; i++) {
        s->share[i].row = slots->shard[i];
        s->share[i].slots = (int)slot_map_owned(slots, i);
    }
    /* Where a disk is to become smaller, others may have no room before. */
    for (unsigned k = 0; k < 2 * slots->shards && status == TARN_OK; k++) {
        unsigned i = k % slots->shards;
        bool now = k >= slots->shards || disk_is_too_large(s, slots->shard[i].name);
        if (now && s->share[i].host == NULL && slots->shard[i].servers > 0)
            status = share_begin(s, i);
    }
    view_tell(s->view, HOSTING_JOINING, "joining the masters");
    if (status == TARN_OK) status = shares_await(s, plan);
    s->wanted = true;
    if (status == TARN_OK) status = balance_start(s);
    while (status == TARN_OK && plan->meanwhile != NULL && shares_state(s) == TARN_HOST_JOINING) {
        plan->meanwhile(plan->arg, NULL);
        usleep(1000 * WAIT_MS);
        status = shares_refused(s);
    }
    if (status == TARN_OK && shares_state(s) == TARN_HOST_LEFT)
        status = fail(TARN_ECLOSED, "the masters let the node go at once");
    if (status == TARN_OK) view_tell(s->view, HOSTING_UP, "");
    return status;
}

static void shares_end(struct shares *s, bool keep, uint64_t timeout_ms) {
    uint64_t deadline = add_sat(now_ms(), timeout_ms);
    view_tell(s->view, HOSTING_LEAVING, "it is stopping");
    balance_stop(s);
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) share_end_begin(s, i, keep, deadline);
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) share_end(s, i);
    view_tell(s->view, HOSTING_CLOSED, "it is not open");
    shards_give(s->pool, &s->map);
    tarn_close(&s->pool);
    url_options_free(&s->options);
    host_options_free(&s->o);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

tarn_status shares_open(struct tarn_client *pool, const struct hosting_plan *plan,
                        struct tarn_host **host_p) {
    struct shares *s = xcalloc(1, sizeof(*s));
    s->pool = pool;
    s->map = shards_take(pool);
    url_options_copy(&s->options, &pool->options);
    s->o = *plan->host;
    host_options_own(&s->o);
    s->view = plan->view;
    pthread_mutex_init(&s->mutex, NULL);
    thread_cond_init(&s->changed);
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) s->share[i].slots = -1;
    tarn_status status = shares_begin(s, plan);
    if (status != TARN_OK) {
        char *why = xstrdup(tarn_last_error());
        shares_end(s, true, 0);
        status = fail(status, "%s", why);
        free(why);
        return status;
    }
    struct tarn_host *h = *host_p = xcalloc(1, sizeof(*h));
    h->magic = HOSTING_MAGIC;
    h->pid = getpid();
    h->shares = s;
    return TARN_OK;
}

void shares_close(struct tarn_host **front_p, bool keep, uint64_t timeout_ms) {
    struct tarn_host *front = *front_p;
    *front_p = NULL;
    shares_end(front->shares, keep, timeout_ms);
    front->magic = 0;
    free(front);
}

/* --- all of them together --- */

static void info_add(tarn_host_info *sum, const tarn_host_info *one, const char *shard) {
    uint64_t *to = &sum->segments;
    const uint64_t *from = &one->segments;
    static_assert(offsetof(tarn_host_info, last_error) - offsetof(tarn_host_info, segments) ==
                      20 * sizeof(uint64_t),
                  "what is between them is summed up");
    for (unsigned i = 0; i < 20; i++) to[i] += from[i];
    if (sum->data_port == 0) sum->data_port = one->data_port;
    if (sum->last_error[0] == '\0' && one->last_error[0] != '\0')
        snprintf(sum->last_error, sizeof(sum->last_error), "shard %s: %.180s", shard,
                 one->last_error);
}

void shares_get_info(struct shares *s, tarn_host_info *info) {
    unsigned in[TARN_HOST_LEFT + 1] = {0};
    *info = (tarn_host_info){.size = sizeof(*info)};
    pthread_mutex_lock(&s->mutex);
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++) {
        const struct node_share *share = &s->share[i];
        tarn_host_info one;
        if (share->host == NULL) continue;
        hosting_info(share->host, &one);
        in[one.state]++;
        info_add(info, &one, share->row.name);
    }
    if (s->wanted && !s->draining) in[TARN_HOST_JOINING]++;
    pthread_mutex_unlock(&s->mutex);
    info->state = in[TARN_HOST_UP] > 0        ? TARN_HOST_UP
                  : in[TARN_HOST_LEAVING] > 0 ? TARN_HOST_LEAVING
                  : in[TARN_HOST_JOINING] > 0 ? TARN_HOST_JOINING
                                              : TARN_HOST_LEFT;
}

static bool shares_left(struct shares *s) {
    pthread_mutex_lock(&s->mutex);
    /* those that leave the map may be all it had: others have come, and get its memory then */
    bool left = !s->wanted || s->draining;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX && left; i++)
        left = s->share[i].host == NULL || hosting_wait(s->share[i].host, 0);
    pthread_mutex_unlock(&s->mutex);
    return left;
}

bool shares_wait(struct shares *s, uint64_t timeout_ms) {
    uint64_t until = add_sat(now_ms(), timeout_ms), now;
    bool left;
    while (!(left = shares_left(s)) && (now = now_ms()) < until)
        usleep((useconds_t)(1000 * min_u64(until - now, WAIT_MS)));
    return left;
}

void shares_drain(struct shares *s) {
    pthread_mutex_lock(&s->mutex);
    s->draining = true;
    for (unsigned i = 0; i < SLOT_SHARDS_MAX; i++)
        if (s->share[i].host != NULL) hosting_drain(s->share[i].host);
    pthread_mutex_unlock(&s->mutex);
}

tarn_status shares_reload_tls(struct shares *s) {
    tarn_status status = TARN_OK;
    pthread_mutex_lock(&s->mutex);
    for (unsigned i = 0; i < SLOT_SHARDS_MAX && status == TARN_OK; i++)
        if (s->share[i].host != NULL) status = hosting_reload_tls(s->share[i].host);
    pthread_mutex_unlock(&s->mutex);
    return status;
}
