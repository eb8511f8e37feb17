/* CONFIG. */
#include <stdlib.h>
#include "base/assert.h"
#include "base/log.h"
#include "front/client.h"
#include "config/table.h"
#include "front/families.h"
#include "inband/remote.h"
#include "front/stats.h"
#include "config/config.h"

struct get {
    struct client *c;
    size_t n;
};

static void get_one(void *arg, const char *name, struct span value) {
    struct get *g = arg;
    reply_bulk_str(g->c, name);
    reply_bulk(g->c, value);
    g->n++;
}

void cmd_config_get(struct client *c) {
    struct get g = {c, 0};
    void *cookie = reply_deferred(c);
    config_get(config, c->argv + 2, c->argc - 2, get_one, &g);
    reply_deferred_map(c, cookie, g.n);
}

static void reply_unknown_option(struct client *c, struct span option) {
    bool matters;
    const char *why = option.data != NULL ? config_absent(option, &matters) : NULL;
    const char *near = why == NULL ? config_near(option) : NULL;
    const char *before = why != NULL ? ": " : near != NULL ? ", did you mean '" : "";
    if (why == NULL) why = near != NULL ? near : "";
    reply_error(c, "Unknown option or number of arguments for CONFIG SET - '%.*s'%s%s%s",
                (int)min_u64(option.len, 128), option.data, before, why, near != NULL ? "'?" : "");
}

static void option_refuse(struct client *c, struct span option, const char *why) {
    reply_error(c, "CONFIG SET failed (possibly related to argument '%.*s') - %s",
                (int)(option.len < 128 ? option.len : 128), option.data, why);
}

/* Who reads the log later wants to know what was different from when on. */
static void log_settings(const struct client *c) {
    char peer[128];
    client_peer(c, peer, sizeof(peer));
    for (size_t i = 2; i + 1 < c->argc; i += 2) {
        const struct config_row *row = config_row_find(c->argv[i]);
        struct span value =
            row != NULL && row->flags & CONFIG_SECRET ? SPAN("(hidden)") : c->argv[i + 1];
        log_notice("CONFIG SET %.*s %.*s, by client id=%llu addr=%s",
                   (int)min_u64(c->argv[i].len, 64), c->argv[i].data, (int)min_u64(value.len, 128),
                   value.len > 0 ? value.data : "", (unsigned long long)c->id, peer);
    }
}

void cmd_config_set(struct client *c) {
    if (c->argc % 2 != 0) {
        reply_syntax(c);
        return;
    }
    for (size_t i = 2; i < c->argc; i++)
        if (c->argv[i].data == NULL && c->argv[i].len > 0) {
            reply_syntax(c);
            return;
        }
    for (size_t i = 2; i + 1 < c->argc; i += 2)
        if (config_is_guarded(c->argv[i]) && !client_allowed(c, config->enable_protected_configs)) {
            option_refuse(c, c->argv[i], "can't set protected config");
            return;
        }
    struct span option = SPAN("");
    char *why = NULL;
    if (config_set(config, c->argv + 2, (c->argc - 2) / 2, &option, &why)) {
        log_settings(c);
        reply_ok(c);
    } else if (why != NULL && strcmp(why, "unknown") == 0) {
        reply_unknown_option(c, option);
    } else {
        option_refuse(c, option, why != NULL ? why : "");
    }
    free(why);
}

void cmd_config_rewrite(struct client *c) {
    char *why = NULL;
    if (config_rewrite(config, false, &why)) {
        log_notice("CONFIG REWRITE executed with success.");
        reply_ok(c);
    } else {
        log_warning("CONFIG REWRITE failed: %s", why);
        reply_error(c, "%s", why);
    }
    free(why);
}

void cmd_config_resetstat(struct client *c) {
    stats_reset();
    remote_stats = (struct remote_stats){0};
    reply_ok(c);
}
