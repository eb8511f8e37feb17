/* CLIENT TRACKING and its kin (tracking.h): one way of it, of Redis' several. */
#include "front/families.h"
#include "ha/replication.h"
#include "front/tracking.h"

/* Those that would choose another way are refused, so that nobody relies on what does not come.
 * false: answered. */
static bool no_options(struct client *c) {
    if (c->argc == 3) return true;
    if (arg_is(c, 3, "redirect") || arg_is(c, 3, "prefix") || arg_is(c, 3, "bcast") ||
        arg_is(c, 3, "optin") || arg_is(c, 3, "optout") || arg_is(c, 3, "noloop"))
        reply_error(c, "CLIENT TRACKING ON takes no options here: this connection hears of every "
                       "key that it has read, and of nothing else");
    else
        reply_syntax(c);
    return false;
}

static void turn_on(struct client *c) {
    if (c->proto != 3)
        reply_error(c, "CLIENT TRACKING needs RESP3, for its messages come between the replies: "
                       "say HELLO 3 first");
    else if (replication_is_replica())
        reply_error(
            c, "CLIENT TRACKING is for the master: a replica does not know when a key changes");
    else {
        tracking_on(c);
        reply_ok(c);
    }
}

void cmd_client_tracking(struct client *c) {
    bool on = arg_is(c, 2, "on");
    if (!on && !arg_is(c, 2, "off")) {
        reply_syntax(c);
    } else if (no_options(c)) {
        if (on) {
            turn_on(c);
        } else {
            tracking_off(c);
            reply_ok(c);
        }
    }
}

void cmd_client_trackinginfo(struct client *c) {
    bool on = c->io->tracker != NULL;
    reply_map(c, 3);
    reply_bulk_str(c, "flags");
    reply_set(c, 1);
    reply_bulk_str(c, on ? "on" : "off");
    reply_bulk_str(c, "redirect");
    reply_int(c, on ? 0 : -1);
    reply_bulk_str(c, "prefixes");
    reply_array(c, 0);
}

void cmd_client_getredir(struct client *c) {
    reply_int(c, c->io->tracker != NULL ? 0 : -1);
}

void cmd_client_caching(struct client *c) {
    if (arg_is(c, 2, "yes") || arg_is(c, 2, "no"))
        reply_error(c, "CLIENT CACHING can be called only when the client is in tracking mode with "
                       "OPTIN or OPTOUT mode enabled");
    else
        reply_syntax(c);
}
