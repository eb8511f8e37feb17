/* CLIENT TRACKING and its kin, as a server says them that keeps no lists of who has read what: turning it on is refused, so that no
 * client trusts a cache that nobody would tell about changes. KVEVENTS and keyspace notifications tell of changes. */
#include "cmd/families.h"

/* The options in front of which Redis checks the words, too. false: answered. */
static bool tracking_options(struct client *c) {
    for (size_t i = 3; i < c->argc; i++) {
        int64_t id;
        bool more = i + 1 < c->argc;
        if (arg_is(c, i, "redirect") && more) {
            if (!arg_i64(c, ++i, &id)) return false;
        } else if (arg_is(c, i, "prefix") && more) {
            i++;
        } else if (!arg_is(c, i, "bcast") && !arg_is(c, i, "optin") && !arg_is(c, i, "optout") &&
                   !arg_is(c, i, "noloop")) {
            reply_syntax(c);
            return false;
        }
    }
    return true;
}

void cmd_client_tracking(struct client *c) {
    if (!tracking_options(c)) return;
    if (arg_is(c, 2, "off"))
        reply_ok(c);
    else if (arg_is(c, 2, "on"))
        reply_error(c,
                    "CLIENT TRACKING is not supported: this server does not remember which keys a client has "
                    "read, and would send no invalidations");
    else
        reply_syntax(c);
}

void cmd_client_trackinginfo(struct client *c) {
    reply_map(c, 3);
    reply_bulk_str(c, "flags");
    reply_set(c, 1);
    reply_bulk_str(c, "off");
    reply_bulk_str(c, "redirect");
    reply_int(c, -1);
    reply_bulk_str(c, "prefixes");
    reply_array(c, 0);
}

void cmd_client_caching(struct client *c) {
    if (arg_is(c, 2, "yes") || arg_is(c, 2, "no"))
        reply_error(
            c, "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT "
               "mode enabled");
    else
        reply_syntax(c);
}
