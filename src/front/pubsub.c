/* SUBSCRIBE and its kin, PUBLISH, PUBSUB.
 *
 * A message is for who listens now; nothing is kept. Slow listeners are closed by
 * client-output-buffer-limit pubsub. In RESP3 messages are pushes and other commands may run beside
 * them; in RESP2 a listener can only listen. */
#include "front/pubsub.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "front/channels.h"
#include "front/each.h"
#include "front/effects.h"
#include "base/glob.h"
#include "front/families.h"
#include "front/reply.h"

/* --- subscriptions --- */

static const char *const joined[CHANNEL_KINDS] = {"subscribe", "psubscribe", "ssubscribe"};
static const char *const left[CHANNEL_KINDS] = {"unsubscribe", "punsubscribe", "sunsubscribe"};

/* What the running command is about. */
static enum channel_kind kind_of(const struct client *c) {
    switch (c->cmd->id) {
    case WIRE_psubscribe:
    case WIRE_punsubscribe: return CHANNEL_PATTERN;
    case WIRE_ssubscribe:
    case WIRE_sunsubscribe:
    case WIRE_spublish:
    case WIRE_pubsub_shardchannels:
    case WIRE_pubsub_shardnumsub: return CHANNEL_SHARD;
    default: return CHANNEL_PLAIN;
    }
}

static size_t count_of(const struct subscriber *s, enum channel_kind kind) {
    if (s == NULL) return 0;
    return kind == CHANNEL_SHARD ? s->count[kind]
                                 : s->count[CHANNEL_PLAIN] + s->count[CHANNEL_PATTERN];
}

static struct subscriber *subscriber_of(struct client *c) {
    if (c->io->subscriber == NULL) {
        c->io->subscriber = xcalloc(1, sizeof(struct subscriber));
        c->io->subscriber->owner = c;
    }
    return c->io->subscriber;
}

/* A subscriber without subscriptions is a client as any other. */
static void subscriber_settle(struct client *c) {
    struct subscriber *s = c->io->subscriber;
    if (count_of(s, CHANNEL_PLAIN) + count_of(s, CHANNEL_SHARD) > 0) {
        c->io->flags |= CLIENT_PUBSUB;
        return;
    }
    c->io->flags &= ~CLIENT_PUBSUB;
    free(s);
    c->io->subscriber = NULL;
}

void pubsub_drop(struct client *c) {
    if (c->io->subscriber == NULL) return;
    channel_clear(c->io->subscriber);
    subscriber_settle(c);
}

void pubsub_counts(const struct client *c, size_t *channels_p, size_t *patterns_p,
                   size_t *shard_p) {
    const struct subscriber *s = c->io->subscriber;
    *channels_p = s != NULL ? s->count[CHANNEL_PLAIN] : 0;
    *patterns_p = s != NULL ? s->count[CHANNEL_PATTERN] : 0;
    *shard_p = s != NULL ? s->count[CHANNEL_SHARD] : 0;
}

size_t pubsub_memory(const struct client *c) {
    return c->io->subscriber != NULL ? sizeof(struct subscriber) + c->io->subscriber->bytes : 0;
}

bool pubsub_allows(const struct cmd *cmd) {
    return cmd->id == WIRE_subscribe || cmd->id == WIRE_unsubscribe || cmd->id == WIRE_psubscribe ||
           cmd->id == WIRE_punsubscribe || cmd->id == WIRE_ssubscribe ||
           cmd->id == WIRE_sunsubscribe || cmd->id == WIRE_ping || cmd->id == WIRE_quit ||
           cmd->id == WIRE_reset;
}

/* What is said for each name comes whatever CLIENT REPLY says, as Redis does it; in EXEC it has its
 * place among the replies. name NULL: there was none. */
static void subscription_confirm(struct client *c, const char *what, const struct span *name,
                                 enum channel_kind kind) {
    struct buf b = {NULL, 0, 0};
    resp_write_push(&b, c->proto, 3);
    resp_write_bulk(&b, what, strlen(what));
    if (name != NULL)
        resp_write_bulk(&b, name->data, name->len);
    else
        resp_write_null(&b, c->proto);
    resp_write_int(&b, (int64_t)count_of(c->io->subscriber, kind));
    if (c->io->flags & CLIENT_EXEC)
        reply_raw(c, b.data, b.len);
    else
        client_push(c, b.data, b.len);
    buf_free(&b);
}

void cmd_subscribe(struct client *c) {
    enum channel_kind kind = kind_of(c);
    if (kind == CHANNEL_SHARD && c->io->flags & CLIENT_EXEC) {
        reply_error(c, "SSUBSCRIBE isn't allowed for a DENY BLOCKING client");
        return;
    }
    for (size_t i = 1; i < c->argc; i++) {
        enum channel_result result = channel_subscribe(subscriber_of(c), kind, c->argv[i]);
        if (result == CHANNEL_TOO_LONG) {
            reply_error(c, "A %s has at most %u bytes",
                        kind == CHANNEL_PATTERN ? "pattern" : "channel",
                        kind == CHANNEL_PATTERN ? CHANNEL_PATTERN_MAX : CHANNEL_NAME_MAX);
        } else if (result == CHANNEL_FULL) {
            reply_error(c, "There are %u subscriptions of this client, or %u patterns, already",
                        CHANNEL_PER_SUBSCRIBER, CHANNEL_PATTERNS_MAX);
        } else {
            c->io->flags |= CLIENT_PUBSUB;
            subscription_confirm(c, joined[kind], &c->argv[i], kind);
        }
    }
    subscriber_settle(c);
}

void cmd_unsubscribe(struct client *c) {
    enum channel_kind kind = kind_of(c);
    struct span name;
    for (size_t i = 1; i < c->argc; i++) {
        if (c->io->subscriber != NULL) channel_unsubscribe(c->io->subscriber, kind, c->argv[i]);
        subscription_confirm(c, left[kind], &c->argv[i], kind);
    }
    if (c->argc == 1 &&
        (c->io->subscriber == NULL || !channel_first(c->io->subscriber, kind, &name)))
        subscription_confirm(c, left[kind], NULL, kind);
    while (c->argc == 1 && c->io->subscriber != NULL &&
           channel_first(c->io->subscriber, kind, &name)) {
        char *copy = xmemdup(name.data, name.len); /* the last one to leave takes the name along */
        channel_unsubscribe(c->io->subscriber, kind, name);
        subscription_confirm(c, left[kind], &(struct span){copy, name.len}, kind);
        free(copy);
    }
    subscriber_settle(c);
}

/* --- messages --- */

struct message {
    struct span word, channel, payload;
    struct buf text;     /* as RESP3 has it; RESP2 differs in the first byte */
    struct span pattern; /* that text was written for */
};

static void write_message(struct message *m, struct span pattern) {
    m->text.len = 0;
    m->pattern = pattern;
    resp_write_push(&m->text, 3, pattern.data != NULL ? 4 : 3);
    if (pattern.data != NULL) {
        resp_write_bulk(&m->text, "pmessage", 8);
        resp_write_bulk(&m->text, pattern.data, pattern.len);
    } else {
        resp_write_bulk(&m->text, m->word.data, m->word.len);
    }
    resp_write_bulk(&m->text, m->channel.data, m->channel.len);
    resp_write_bulk(&m->text, m->payload.data, m->payload.len);
}

static void message_deliver(void *arg, struct subscriber *s, struct span pattern) {
    struct message *m = arg;
    struct client *to = s->owner;
    if (m->text.len == 0 || m->pattern.data != pattern.data) write_message(m, pattern);
    m->text.data[0] = to->proto == 2 ? '*' : '>';
    client_push(to, m->text.data, m->text.len);
}

static size_t channel_tell(enum channel_kind kind, struct span word, struct span channel,
                           struct span payload) {
    struct message m = {.word = word, .channel = channel, .payload = payload};
    size_t told = channel_publish(kind, channel, message_deliver, &m);
    buf_free(&m.text);
    return told;
}

void pubsub_publish(struct span channel, struct span message) {
    if (channel.len <= CHANNEL_NAME_MAX)
        channel_tell(CHANNEL_PLAIN, SPAN("message"), channel, message);
}

void cmd_publish(struct client *c) {
    enum channel_kind kind = kind_of(c);
    if (c->argv[1].len > CHANNEL_NAME_MAX) {
        reply_error(c, "A channel has at most %u bytes", CHANNEL_NAME_MAX);
        return;
    }
    struct span word = kind == CHANNEL_SHARD ? SPAN("smessage") : SPAN("message");
    reply_int(c, (int64_t)channel_tell(kind, word, c->argv[1], c->argv[2]));
    if (kind == CHANNEL_PLAIN) effects_publish(c->argv[1], c->argv[2]);
}

/* --- PUBSUB --- */

struct channel_list {
    struct each each;
    enum channel_kind kind;
    struct glob *glob; /* NULL: all */
    void *header;
    uint64_t cursor;
    size_t n, looked;
    struct client *client;
};

static void channel_list_name(void *arg, struct span name) {
    struct channel_list *l = arg;
    l->looked++;
    if (l->glob != NULL && !glob_match(l->glob, name, NULL)) return;
    reply_bulk(l->client, name);
    l->n++;
}

static enum each_next channel_list_one(struct client *c, struct each *each, unsigned *budget) {
    struct channel_list *l = CONTAINER_OF(each, struct channel_list, each);
    l->looked = 0;
    l->cursor = channel_scan(l->kind, l->cursor, channel_list_name, l);
    spend(budget, l->looked);
    return l->cursor == 0 ? EACH_OVER : EACH_ON;
}

static void channel_list_end(struct client *c, struct each *each) {
    struct channel_list *l = CONTAINER_OF(each, struct channel_list, each);
    reply_deferred_array(c, l->header, l->n);
}

static void channel_list_close(struct client *c, struct job *job) {
    glob_destroy(&CONTAINER_OF(job, struct channel_list, each.job)->glob);
}

void cmd_pubsub_channels(struct client *c) {
    if (c->argc > 3) {
        reply_arity(c);
        return;
    }
    struct channel_list l = {.each = {.job.close = channel_list_close,
                                      .one = channel_list_one,
                                      .end = channel_list_end,
                                      .n = EACH_ENDLESS},
                             .kind = kind_of(c),
                             .header = reply_deferred(c),
                             .client = c};
    if (c->argc == 3) l.glob = glob_create(c->argv[2], false);
    each_run(c, &l.each, sizeof(l));
}

void cmd_pubsub_numsub(struct client *c) {
    reply_array(c, (c->argc - 2) * 2);
    for (size_t i = 2; i < c->argc; i++) {
        reply_bulk(c, c->argv[i]);
        reply_int(c, (int64_t)channel_subscribers(kind_of(c), c->argv[i]));
    }
}

void cmd_pubsub_numpat(struct client *c) {
    reply_int(c, (int64_t)channel_count(CHANNEL_PATTERN));
}
