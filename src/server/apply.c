/* Who is told when options change: what CONFIG SET means for the parts of a server that runs. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/crash.h"
#include "base/log.h"
#include "front/acl_users.h"
#include "front/client.h"
#include "config/tls.h"
#include "front/core.h"
#include "front/descriptors.h"
#include "base/heap.h"
#include "front/introspect.h"
#include "ha/kv_events.h"
#include "front/latency.h"
#include "front/notify.h"
#include "ha/persistence.h"
#include "front/process.h"
#include "ha/replication.h"
#include "server/server.h"
#include "config/config.h"

static bool apply_books(const char **why_p) {
    core_apply_config();
    return true;
}

static bool apply_policy(const char **why_p) {
    const char *name = config_policy_name(config);
    if (strcmp(name, store_policy_name(books)) == 0) return true;
    switch (store_set_policy(books, name)) {
    case TARN_OK: return true;
    case TARN_EBUSY: *why_p = "the last change of the policy is still under way"; return false;
    default: *why_p = "this policy could not be set up"; return false;
    }
}

static bool apply_placement(const char **why_p) {
    if (store_set_placement(books, config_placement_name(config)) == TARN_OK) return true;
    *why_p = "this strategy could not be set up";
    return false;
}

static bool apply_log_level(const char **why_p) {
    log_set_level((enum log_level)config->loglevel);
    return true;
}

static bool apply_log_file(const char **why_p) {
    if (log_open(config->logfile)) return true;
    *why_p = "the file cannot be opened";
    return false;
}

static bool apply_slowlog(const char **why_p) {
    slowlog_trim();
    return true;
}

static bool apply_latency(const char **why_p) {
    latency_apply_config();
    return true;
}

static bool apply_notify(const char **why_p) {
    notify_apply();
    return true;
}

static bool apply_kv_events(const char **why_p) {
    kv_events_apply();
    return true;
}

static bool rebind(const char **why_p) {
    return core_endpoints.rebind == NULL || core_endpoints.rebind(why_p);
}

/* A replica tells its master where it can be reached. */
static bool apply_listeners(const char **why_p) {
    return rebind(why_p) && replication_apply_config(why_p);
}

static bool apply_tls(const char **why_p) {
    static char why[TLS_WHY_MAX + 64];
    const char *reason;
    if (config_tls_load(config, &reason)) return replication_apply_config(why_p);
    snprintf(why, sizeof(why), "Unable to update TLS configuration: %s", reason);
    *why_p = why;
    return false;
}

static bool apply_tls_port(const char **why_p) {
    if (config->tls_port == 0)
        return rebind(why_p) && apply_tls(why_p); /* who waits there is let in */
    return apply_tls(why_p) && apply_listeners(why_p);
}

static bool apply_password(const char **why_p) {
    acl_users_requirepass(); /* who is in stays in */
    return true;
}

static bool apply_acl_log(const char **why_p) {
    acl_log_trim();
    return true;
}

static bool apply_acl_pubsub(const char **why_p) {
    acl_users_pubsub_default();
    return true;
}

static bool apply_maxclients(const char **why_p) {
    return descriptors_raise(config, why_p);
}

static bool apply_dir(const char **why_p) {
    char path[PATH_MAX];
    if (!persistence_chdir(config->dir, why_p)) return false;
    if (getcwd(path, sizeof(path)) == NULL) return true;
    free(config->dir);
    config->dir = xstrdup(path);
    return true;
}

static bool apply_title(const char **why_p) {
    if (!config_title_valid(config)) {
        *why_p = "template format is invalid or contains unknown variables";
        return false;
    }
    process_title_update();
    return true;
}

static bool apply_oom_score(const char **why_p) {
    return process_oom_score(why_p);
}

static bool apply_loop_priority(const char **why_p) {
    return process_loop_priority(why_p);
}

static bool apply_crash_log(const char **why_p) {
    crash_catch(config->crash_log_enabled);
    return true;
}

static bool apply_bg_thread(const char **why_p) {
    if (heap_background(config->jemalloc_bg_thread)) return true;
    *why_p = "this program's allocator has no background thread";
    return false;
}

static bool apply_source(const char **why_p) {
    if (net_set_source(config->bind_source_addr)) return true;
    *why_p = "it must be an IPv4 or IPv6 address of this machine, or empty";
    return false;
}

static bool apply_maxmemory_clients(const char **why_p) {
    clients_weigh_all();
    return true;
}

const config_tell_fn server_told[CONFIG_TELLS] = {
    [CONFIG_TELL_ACL_LOG] = apply_acl_log,
    [CONFIG_TELL_ACL_PUBSUB] = apply_acl_pubsub,
    [CONFIG_TELL_APPENDONLY] = persistence_switch,
    [CONFIG_TELL_BG_THREAD] = apply_bg_thread,
    [CONFIG_TELL_CRASH_LOG] = apply_crash_log,
    [CONFIG_TELL_DIR] = apply_dir,
    [CONFIG_TELL_KV_EVENTS] = apply_kv_events,
    [CONFIG_TELL_LATENCY] = apply_latency,
    [CONFIG_TELL_LISTENERS] = apply_listeners,
    [CONFIG_TELL_LOG_FILE] = apply_log_file,
    [CONFIG_TELL_LOG_LEVEL] = apply_log_level,
    [CONFIG_TELL_LOOP_PRIORITY] = apply_loop_priority,
    [CONFIG_TELL_MAXCLIENTS] = apply_maxclients,
    [CONFIG_TELL_MAXMEMORY_CLIENTS] = apply_maxmemory_clients,
    [CONFIG_TELL_NOTIFY] = apply_notify,
    [CONFIG_TELL_OOM_SCORE] = apply_oom_score,
    [CONFIG_TELL_PASSWORD] = apply_password,
    [CONFIG_TELL_PLACEMENT] = apply_placement,
    [CONFIG_TELL_POLICY] = apply_policy,
    [CONFIG_TELL_SLOWLOG] = apply_slowlog,
    [CONFIG_TELL_SOURCE] = apply_source,
    [CONFIG_TELL_BOOKS] = apply_books,
    [CONFIG_TELL_TITLE] = apply_title,
    [CONFIG_TELL_TLS] = apply_tls,
    [CONFIG_TELL_TLS_PORT] = apply_tls_port,
    [CONFIG_TELL_REPLICATION] = replication_apply_config,
};
