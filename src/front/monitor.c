/* MONITOR: every command as a line, to those who asked. */
#include "front/introspect.h"

#include <stdlib.h>
#include "base/assert.h"
#include "base/clock.h"
#include "front/client.h"
#include "front/families.h"
#include "front/table.h"
#include "config/config.h"

static struct client_list monitors = TAILQ_HEAD_INITIALIZER(monitors);
size_t monitor_n;

void client_set_monitor(struct client *c, bool on) {
    bool is = (c->io->flags & CLIENT_MONITOR) != 0;
    if (is == on) return;
    c->io->flags ^= CLIENT_MONITOR;
    if (on)
        TAILQ_INSERT_TAIL(&monitors, c, io->monitors);
    else
        TAILQ_REMOVE(&monitors, c, io->monitors);
    monitor_n += on ? 1 : (size_t)-1;
}

/* +1795254367.702495 [0 127.0.0.1:49370] "GET" "foo" */
void monitor_feed(struct client *c) {
    struct table_secrets secrets = table_secrets(c->argv, c->argc);
    struct buf line = {NULL, 0, 0};
    uint64_t us = clock_wall_us();
    char peer[128];
    client_peer(c, peer, sizeof(peer));
    if (c->io->flags & CLIENT_UNIX)
        buf_printf(&line, "+%llu.%06llu [%d unix:%s]", (unsigned long long)(us / 1000000),
                   (unsigned long long)(us % 1000000), c->db, config->unixsocket);
    else
        buf_printf(&line, "+%llu.%06llu [%d %s]", (unsigned long long)(us / 1000000),
                   (unsigned long long)(us % 1000000), c->db, peer);
    for (size_t i = 0; i < c->argc; i++) {
        buf_append_char(&line, ' ');
        if (table_is_secret(&secrets, i))
            buf_append_str(&line, "\"(redacted)\"");
        else if (c->argv[i].data == NULL && c->argv[i].len > 0)
            buf_printf(&line, "\"(%zu bytes)\"", c->argv[i].len);
        else
            buf_append_quoted(&line, c->argv[i]);
    }
    if (c->io->traceparent != NULL) {
        buf_append_str(&line, " \"");
        client_trace_put(c, &line);
        buf_append_char(&line, '"');
    }
    buf_append(&line, "\r\n", 2);
    struct client *to;
    TAILQ_FOREACH(to, &monitors, io->monitors) client_push(to, line.data, line.len);
    buf_free(&line);
}

void cmd_monitor(struct client *c) {
    if (c->io->flags & CLIENT_EXEC) {
        reply_error(c, "MONITOR isn't allowed for DENY BLOCKING client");
        return;
    }
    reply_ok(c);
    client_set_monitor(c, true);
}
