/* Hosting as programs call it: of one master, or of all masters of a pool. */
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "client/client.h"
#include "client/error.h"
#include "hosting/hosting.h"
#include "hosting/shares.h"

void tarn_host_options_init_sized(tarn_host_options *o, size_t size) {
    init_sized(o, size, &(tarn_host_options){.populate = 1}, sizeof(*o));
}

void(tarn_host_options_init)(tarn_host_options *o) {
    tarn_host_options_init_sized(o, offsetof(tarn_host_options, shrink));
}

/* --- opening --- */

static tarn_status open_one(const struct hosting_plan *plan, struct tarn_host **host_p) {
    struct tarn_host *h;
    tarn_status status = hosting_begin(plan, &h);
    if (status != TARN_OK) return status;
    status = hosting_await(h, plan);
    if (status == TARN_OK) {
        *host_p = h;
        return TARN_OK;
    }
    char *why = xstrdup(tarn_last_error());
    hosting_end_begin(h, true, 0);
    hosting_end(&h);
    status = fail(status, "%s", why);
    free(why);
    return status;
}

/* A client that knows the masters, if there are several. */
static tarn_status pool_connect(const char *url, const tarn_options *options,
                                struct tarn_client **pool_p) {
    struct tarn_client *pool = client_create(options, NULL);
    tarn_status status = url_parse(url, &pool->options, &pool->master);
    pool->options.log_figures_s = 0;
    if (status == TARN_OK) status = client_prepare(pool);
    if (status == TARN_OK) status = shards_connect(pool);
    if (status != TARN_OK) tarn_close(&pool);
    *pool_p = pool;
    return status;
}

static bool pool_may_come(tarn_status status) {
    return status == TARN_EIO || status == TARN_ETIMEOUT || status == TARN_ECLOSED ||
           status == TARN_ELOADING || status == TARN_ELIMIT;
}

static tarn_status pool_await(const struct hosting_plan *plan, struct tarn_client **pool_p) {
    for (;;) {
        tarn_status status = pool_connect(plan->url, plan->options, pool_p);
        if (plan->meanwhile == NULL || !pool_may_come(status)) return status;
        plan->meanwhile(plan->arg, tarn_last_error());
    }
}

tarn_status hosting_open(const struct hosting_plan *plan, tarn_host **host_p) {
    struct tarn_client *pool;
    tarn_status status = pool_await(plan, &pool);
    if (status != TARN_OK) return status;
    if (plan->meanwhile != NULL) plan->meanwhile(plan->arg, NULL);
    if (pool->shards != NULL) return shares_open(pool, plan, host_p);
    tarn_close(&pool);
    return open_one(plan, host_p);
}

tarn_status tarn_host_open(const char *url, const tarn_options *options,
                           const tarn_host_options *host_options, tarn_host **host_p) {
    if (url == NULL || host_options == NULL || host_p == NULL)
        return fail(TARN_EINVAL, "tarn_host_open needs a URL, options and a place for the host");
    log_default_once();
    tarn_host_options o = {0};
    memcpy(&o, host_options, host_options->size < sizeof(o) ? host_options->size : sizeof(o));
    struct hosting_plan plan = {.url = url, .options = options, .host = &o};
    return hosting_open(&plan, host_p);
}

/* --- while it runs --- */

static tarn_status hosting_usable(const struct tarn_host *h) {
    if (h == NULL || h->magic != HOSTING_MAGIC)
        return fail(TARN_EINVAL, "this is not an open tarn_host");
    if (h->pid != getpid())
        return fail(TARN_ECLOSED, "a tarn_host belongs to the process that opened it");
    return TARN_OK;
}

tarn_status tarn_host_get_info(tarn_host *h, tarn_host_info *info) {
    tarn_host_info now;
    tarn_status status = hosting_usable(h);
    if (status != TARN_OK) return status;
    if (info == NULL || info->size == 0) return fail(TARN_EINVAL, "info->size must be set");
    if (h->shares != NULL)
        shares_get_info(h->shares, &now);
    else
        hosting_info(h, &now);
    now.size = min_u64(info->size, sizeof(now));
    memcpy(info, &now, now.size);
    return TARN_OK;
}

tarn_status tarn_host_wait(tarn_host *h, uint64_t timeout_ms) {
    tarn_status status = hosting_usable(h);
    if (status != TARN_OK) return status;
    bool left =
        h->shares != NULL ? shares_wait(h->shares, timeout_ms) : hosting_wait(h, timeout_ms);
    return left ? TARN_OK : fail(TARN_ETIMEOUT, "the node is still in the pool");
}

tarn_status tarn_host_drain(tarn_host *h) {
    tarn_status status = hosting_usable(h);
    if (status != TARN_OK) return status;
    if (h->shares != NULL)
        shares_drain(h->shares);
    else
        hosting_drain(h);
    return TARN_OK;
}

tarn_status tarn_host_reload_tls(tarn_host *h) {
    tarn_status status = hosting_usable(h);
    if (status != TARN_OK) return status;
    return h->shares != NULL ? shares_reload_tls(h->shares) : hosting_reload_tls(h);
}

tarn_status tarn_host_close(tarn_host **host_p, int keep, uint64_t timeout_ms) {
    if (host_p == NULL || *host_p == NULL) return TARN_OK;
    tarn_host *h = *host_p;
    if (h->magic != HOSTING_MAGIC) return fail(TARN_EINVAL, "this is not an open tarn_host");
    *host_p = NULL;
    if (h->pid != getpid())
        return fail(TARN_ECLOSED, "a tarn_host belongs to the process that opened it");
    if (h->shares != NULL) {
        shares_close(&h, keep != 0, timeout_ms);
    } else {
        hosting_end_begin(h, keep != 0, add_sat(now_ms(), timeout_ms));
        hosting_end(&h);
    }
    return TARN_OK;
}
