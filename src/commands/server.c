/* TIME, and the small families that clients ask out of habit. */
#include "base/clock.h"
#include "front/client.h"
#include "front/core.h"
#include "front/families.h"

/* --- habits --- */

void cmd_time(struct client *c) {
    char text[24];
    uint64_t us = clock_wall_us();
    reply_array(c, 2);
    reply_bulk(c, span_of(text, u64_to_dec(us / 1000000, text)));
    reply_bulk(c, span_of(text, u64_to_dec(us % 1000000, text)));
}

/* What stands behind VERSION chooses a picture in Redis; here any is the same. */
void cmd_lolwut(struct client *c) {
    if (c->argc > 1 && !arg_is(c, 1, "version"))
        reply_syntax(c);
    else
        reply_verbatim(c, "txt", SPAN("tarn ver. " TARN_VERSION "\n"));
}

/* --- scripts: Sentinels stop those that run, clients flush them before tests --- */

void cmd_script_kill(struct client *c) {
    reply_error(c, "-NOTBUSY No scripts in execution right now.");
}

void cmd_script_exists(struct client *c) {
    reply_array(c, c->argc - 2);
    for (size_t i = 2; i < c->argc; i++) reply_int(c, 0);
}

void cmd_function_flush(struct client *c) {
    if (c->argc > 3 || (c->argc == 3 && !arg_is(c, 2, "ASYNC") && !arg_is(c, 2, "SYNC")))
        reply_error(c, "%s FLUSH only supports SYNC|ASYNC option",
                    span_case_eq(c->argv[0], "script") ? "SCRIPT" : "FUNCTION");
    else
        reply_ok(c);
}
