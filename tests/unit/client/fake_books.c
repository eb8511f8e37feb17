/* The fake master's books, and the commands it knows. */
#include <limits.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/assert.h"
#include "base/clock.h"
#include "client/client.h"
#include "client/placement.h"
#include "fake_internal.h"

static void say_str(struct fake_conn *c, const char *s) {
    fake_say_bulk(c, s, strlen(s));
}

/* --- the books --- */

static struct fake_object *find(const char *key, bool complete) {
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct fake_object *o = &fake.object[i];
        if (o->used && o->complete == complete && strcmp(o->key, key) == 0) return o;
    }
    return NULL;
}

static struct fake_object *find_put(const char *key, uint64_t token) {
    struct fake_object *o = find(key, false);
    return o != NULL && o->token == token ? o : NULL;
}

void fake_forget(struct fake_object *o) {
    buf_free(&o->crcs);
    *o = (struct fake_object){0};
}

static struct fake_object *object_new(const char *key, uint64_t size) {
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct fake_object *o = &fake.object[i];
        if (o->used) continue;
        *o = (struct fake_object){.used = true,
                                  .size = size,
                                  .token = ++fake.next_token,
                                  .crc = -1,
                                  .crcs_times = UINT_MAX};
        snprintf(o->key, sizeof(o->key), "%s", key);
        return o;
    }
    TARN_ASSERT(!"too many objects");
    return NULL;
}

static struct fake_replica_at *replica_at(struct fake_object *o, unsigned host) {
    for (unsigned i = 0; o != NULL && i < o->replicas; i++) {
        if (o->replica[i].host == host) return &o->replica[i];
    }
    return NULL;
}

static void make_room(struct fake_object *o, unsigned host) {
    struct fake_replica_at *r = &o->replica[o->replicas++];
    struct fake_host *h = &fake.host[host];
    *r = (struct fake_replica_at){.host = host};
    uint64_t left = o->size, first = o->size > SPLIT_BYTES ? o->size / 3 : o->size;
    for (uint64_t take = first; left > 0; take = left) {
        r->extent[r->extents++] = (struct fake_extent){h->used, take};
        h->used += (take + 4095) / 4096 * 4096 + 4096;
        TARN_ASSERT(h->used <= FAKE_BYTES);
        left -= take;
    }
}

/* The first 8 bytes are the session: what a real grant's MAC vouches for. */
static void say_grant(struct fake_conn *c, unsigned host, enum grant_op op, uint64_t offset,
                      uint64_t length) {
    const struct fake_host *h = &fake.host[host];
    struct grant_extent x = {FAKE_SEGMENT + host, FAKE_EPOCH, offset, length};
    struct grant g = {op, h->master_epoch, c->session, clock_mono_ms() + 60000, 0};
    uint8_t sealed[GRANT_SIZE] = {0};
    memcpy(sealed, &c->session, sizeof(c->session));
    if (h->real) grant_seal(h->key, &g, &x, sealed);
    fake_say_bulk(c, sealed, sizeof(sealed));
}

static void say_replica(struct fake_conn *c, const struct fake_object *o,
                        const struct fake_replica_at *r) {
    enum grant_op op = o->complete ? GRANT_READ : GRANT_WRITE;
    if (r->host >= FILE_HOST) {
        fake_say(c, "*2\r\n");
        say_str(c, r->host == FILE_HOST ? "file" : r->path);
        fake_say(c, "*1\r\n*2\r\n");
        say_str(c, r->path);
        fake_say(c, ":%llu\r\n", (unsigned long long)o->size);
        return;
    }
    fake_say(c, "*2\r\n");
    say_str(c, fake.host[r->host].tier);
    fake_say(c, "*%u\r\n", r->extents);
    for (unsigned i = 0; i < r->extents; i++) {
        const struct fake_extent *x = &r->extent[i];
        fake_say(c, "*5\r\n:%u\r\n:%u\r\n:%llu\r\n:%llu\r\n", FAKE_SEGMENT + r->host, FAKE_EPOCH,
                 (unsigned long long)x->offset, (unsigned long long)x->length);
        say_grant(c, r->host, op, x->offset, x->length);
    }
}

static void say_replicas(struct fake_conn *c, const struct fake_object *o) {
    fake_say(c, "*%u\r\n", o->replicas);
    for (unsigned i = 0; i < o->replicas; i++) say_replica(c, o, &o->replica[i]);
}

/* --- commands --- */

struct words {
    redisReply **arg;
    size_t n;
};

static const char *word(const struct words *w, size_t i) {
    TARN_ASSERT(i < w->n);
    return w->arg[i]->str;
}

static uint64_t number(const struct words *w, size_t i) {
    return strtoull(word(w, i), NULL, 10);
}

/* Index of the option's first value, 0: not given. */
static size_t option(const struct words *w, size_t from, const char *name) {
    for (size_t i = from; i + 1 < w->n; i++) {
        if (strcasecmp(word(w, i), name) == 0) return i + 1;
    }
    return 0;
}

static bool avoided(const struct words *w, size_t from, unsigned host) {
    char name[16];
    snprintf(name, sizeof(name), "n%u.0", host);
    for (size_t i = from; (i = option(w, i, "AVOID")) != 0;) {
        if (strcmp(word(w, i), name) == 0) return true;
    }
    return false;
}

/* In the order of the hosts; those to be avoided only when the others do not suffice for one
 * replica. */
static void place(struct fake_object *o, const struct words *w, size_t options_at,
                  unsigned replicas) {
    for (int round = 0; round < 2 && o->replicas == 0; round++) {
        for (unsigned h = 0; h < FAKE_HOSTS && o->replicas < replicas; h++) {
            bool fits =
                strcmp(fake.host[h].tier, "memory") == 0 && fake.host[h].ahead != UINT32_MAX;
            if (fits && (round == 1 || !avoided(w, options_at, h))) make_room(o, h);
        }
    }
}

static void start(struct fake_conn *c, const struct words *w, size_t at, size_t options_at) {
    const char *key = word(w, at);
    size_t instead = option(w, options_at, "INSTEAD"), replicas = option(w, options_at, "REPLICAS");
    struct fake_object *there = find(key, true), *open = find(key, false);
    if (there != NULL) {
        fake_say(c, "*-1\r\n");
        return;
    }
    if (open != NULL && (instead == 0 || number(w, instead) != open->token)) {
        fake_say(c, "-PUTBUSY another put\r\n");
        return;
    }
    if (open != NULL) fake_forget(open); /* its space is not used again: hosts here never do that */
    struct fake_object *o = object_new(key, number(w, at + 1));
    unsigned wanted = replicas == 0 ? 1 : (unsigned)number(w, replicas);
    if (o->size > 64) place(o, w, options_at, wanted);
    if (o->size > 64 && o->replicas == 0) {
        fake_forget(o);
        fake_say(c, "-NOSPACE no room\r\n");
        return;
    }
    unsigned missing = o->size > 64 ? wanted - o->replicas : 0;
    fake_say(c, "*%d\r\n:%llu\r\n", missing > 0 ? 3 : 2, (unsigned long long)o->token);
    say_replicas(c, o);
    if (missing > 0) fake_say(c, ":%u\r\n", missing);
}

/* Space goes back to others now: nothing may be on its way to it. */
static void must_be_quiet(const struct fake_replica_at *r) {
    for (unsigned i = 0; i < CONNS; i++) {
        const struct fake_conn *c = &fake.conn[i];
        if (c->fd == 0 || c->host != (int)r->host || !c->hello_done) continue;
        int unread = 0;
        ioctl(c->fd, FIONREAD, &unread);
        if (c->in.len > 0 || unread > 0) fake.violations++;
    }
}

static void end(struct fake_conn *c, const struct words *w, size_t at, uint64_t failed,
                size_t value_at, size_t crcs_at) {
    const char *key = word(w, at);
    struct fake_object *o = find_put(key, number(w, at + 1)), *done = find(key, true);
    if (o == NULL) {
        fake_say(c, done != NULL && done->token == number(w, at + 1) ? "+OK\r\n"
                                                                     : "-BADTOKEN over\r\n");
        return;
    }
    unsigned kept = 0;
    for (unsigned i = 0; i < o->replicas; i++) {
        if (failed >> i & 1) {
            must_be_quiet(&o->replica[i]);
        } else {
            o->replica[kept++] = o->replica[i];
        }
    }
    bool lost = o->replicas > 0 && kept == 0;
    o->replicas = kept;
    o->crc = strtoll(word(w, at + 2), NULL, 10);
    if (value_at != 0) memcpy(o->value, w->arg[value_at]->str, min_u64(w->arg[value_at]->len, 64));
    if (crcs_at != 0) buf_append(&o->crcs, w->arg[crcs_at]->str, w->arg[crcs_at]->len);
    o->complete = true;
    if (lost) fake_forget(o);
    fake_say(c, lost ? "-STALE no replica is left\r\n" : "+OK\r\n");
}

static void put_revoke(struct fake_conn *c, const struct words *w, size_t at) {
    struct fake_object *o = find_put(word(w, at), number(w, at + 1));
    for (unsigned i = 0; o != NULL && i < o->replicas; i++) must_be_quiet(&o->replica[i]);
    if (o != NULL) fake_forget(o);
    fake_say(c, o != NULL ? "+OK\r\n" : "-BADTOKEN over\r\n");
}

static void locate(struct fake_conn *c, const struct words *w, size_t at, size_t options_at) {
    struct fake_object *o = find(word(w, at), true);
    if (o == NULL) {
        fake_say(c, "$-1\r\n");
        return;
    }
    size_t lease = option(w, options_at, "LEASE");
    fake_say(c, "*7\r\n:%llu\r\n:%llu\r\n:%llu\r\n:%lld\r\n", (unsigned long long)o->token,
             (unsigned long long)o->size, (unsigned long long)(lease == 0 ? 0 : number(w, lease)),
             (long long)o->crc);
    say_replicas(c, o);
    if (o->size <= 64) {
        fake_say_bulk(c, o->value, o->size);
    } else {
        fake_say(c, "$-1\r\n");
    }
    if (o->crcs.len > 0 && o->crcs_told++ < o->crcs_times) {
        fake_say_bulk(c, o->crcs.data, o->crcs.len);
    } else {
        fake_say(c, "$-1\r\n");
    }
}

static void segment_info(struct fake_conn *c, uint64_t id) {
    unsigned host = (unsigned)(id - FAKE_SEGMENT);
    if (id < FAKE_SEGMENT || host >= FAKE_HOSTS || fake.host[host].ahead == UINT32_MAX) {
        fake_say(c, "-NOSEGMENT no such segment\r\n");
        return;
    }
    const struct fake_host *h = &fake.host[host];
    char uri[160];
    fake_say(c, "*%u\r\n", 2 * (10 + fake.info_fields));
    say_str(c, "id");
    fake_say(c, ":%llu\r\n", (unsigned long long)id);
    say_str(c, "epoch");
    fake_say(c, ":%u\r\n", FAKE_EPOCH + h->ahead);
    say_str(c, "size");
    fake_say(c, ":%llu\r\n", (unsigned long long)FAKE_BYTES);
    say_str(c, "name");
    snprintf(uri, sizeof(uri), "n%u.0", host);
    say_str(c, uri);
    say_str(c, "node");
    snprintf(uri, sizeof(uri), "n%u", host);
    say_str(c, uri);
    say_str(c, "host");
    say_str(c, h->machine);
    say_str(c, "tier");
    say_str(c, h->tier);
    say_str(c, "endpoints");
    fake_say(c, "*%u\r\n", h->shm[0] != '\0' ? 2u : 1u);
    snprintf(uri, sizeof(uri), "tcp://%s:%u", h->real ? "127.0.0.1" : fake.address,
             (unsigned)(h->real ? h->real_port : h->port));
    say_str(c, uri);
    if (h->shm[0] != '\0') {
        snprintf(uri, sizeof(uri), "shm://%s", h->shm);
        say_str(c, uri);
    }
    say_str(c, "attach_read");
    say_grant(c, host, GRANT_ATTACH_READ, 0, FAKE_BYTES);
    say_str(c, "attach_write");
    say_grant(c, host, GRANT_ATTACH_WRITE, 0, FAKE_BYTES);
    buf_append(&c->out, fake.info.data, fake.info.len);
}

static void each(struct fake_conn *c, const struct words *w, size_t step,
                 void (*one)(struct fake_conn *, const struct words *, size_t, size_t)) {
    size_t n = number(w, 1);
    fake_say(c, "*%zu\r\n", n);
    for (size_t i = 0; i < n; i++) one(c, w, 2 + i * step, 2 + n * step);
}

static void mputend(struct fake_conn *c, const struct words *w) {
    size_t n = number(w, 1), options_at = 2 + 3 * n;
    size_t values = option(w, options_at, "VALUES"), crcs = option(w, options_at, "CRCS");
    size_t faileds = option(w, options_at, "FAILEDS");
    fake_say(c, "*%zu\r\n", n);
    for (size_t i = 0; i < n; i++) {
        end(c, w, 2 + 3 * i, faileds == 0 ? 0 : number(w, faileds + i),
            values == 0 ? 0 : values + i, crcs == 0 ? 0 : crcs + i);
    }
}

static void revoke_one(struct fake_conn *c, const struct words *w, size_t at, size_t options_at) {
    (void)options_at;
    put_revoke(c, w, at);
}

static void execute(struct fake_conn *c, const struct words *w) {
    const char *name = word(w, 0);
    if (strcmp(name, "INFO") == 0) {
        say_str(c, "# Server\r\ntarn_version:0.1.0\r\n");
    } else if (strcmp(name, "MPUTSTART") == 0) {
        each(c, w, 2, start);
    } else if (strcmp(name, "PUTSTART") == 0) {
        start(c, w, 1, 3);
    } else if (strcmp(name, "MPUTEND") == 0) {
        mputend(c, w);
    } else if (strcmp(name, "PUTEND") == 0) {
        size_t failed = option(w, 4, "FAILED");
        end(c, w, 1, failed == 0 ? 0 : 1u << number(w, failed), option(w, 4, "VALUE"),
            option(w, 4, "CRCS"));
    } else if (strcmp(name, "MPUTREVOKE") == 0) {
        each(c, w, 2, revoke_one);
    } else if (strcmp(name, "PUTREVOKE") == 0) {
        put_revoke(c, w, 1);
    } else if (strcmp(name, "MGETREPLICAS") == 0) {
        each(c, w, 1, locate);
    } else if (strcmp(name, "GETREPLICAS") == 0) {
        locate(c, w, 1, 2);
    } else if (strcmp(name, "SEGMENT") == 0) {
        segment_info(c, number(w, 2));
    } else if (strcmp(name, "RELEASE") == 0 || strcmp(name, "REPLICA") == 0) {
        fake_say(c, ":1\r\n");
    } else {
        fake_say(c, "+OK\r\n");
    }
}

static void write_down(const struct words *w) {
    char *line = fake.log[fake.lines++ % LOG_LINES];
    size_t at = 0;
    for (size_t i = 0; i < w->n; i++) {
        if (i > 0 && at + 1 < LINE_BYTES) line[at++] = ' ';
        for (size_t k = 0; k < w->arg[i]->len && at + 1 < LINE_BYTES; k++) {
            char byte = w->arg[i]->str[k];
            line[at++] = byte > ' ' && byte < 0x7f ? byte : '?';
        }
    }
    line[at] = '\0';
}

static struct fake_script *take_script(const char *command, struct fake_script *s) {
    for (unsigned i = 0; i < fake.scripts; i++) {
        if (strcmp(fake.script[i].command, command) != 0) continue;
        if (fake.script[i].after > 0) {
            fake.script[i].after--;
            return NULL;
        }
        *s = fake.script[i];
        memmove(&fake.script[i], &fake.script[i + 1], (--fake.scripts - i) * sizeof(*s));
        return s;
    }
    return NULL;
}

/* false: the connection is closed. */
static bool command(struct fake_conn *c, const redisReply *r) {
    struct words w = {r->element, r->elements};
    write_down(&w);
    struct fake_script s;
    if (take_script(word(&w, 0), &s) == NULL) {
        execute(c, &w);
        return true;
    }
    size_t before = c->out.len;
    if (s.action == FAKE_SAY) {
        buf_append(&c->out, s.text, strlen(s.text));
        return true;
    }
    if (s.action != FAKE_DROP) execute(c, &w);
    c->out.len = s.action == FAKE_CUT ? before + (c->out.len - before) / 2 : before;
    c->close_when_sent = true;
    return false;
}

bool fake_control_input(struct fake_conn *c, const char *data, size_t n) {
    redisReaderFeed(c->reader, data, n);
    for (;;) {
        void *reply = NULL;
        if (redisReaderGetReply(c->reader, &reply) != REDIS_OK) return false;
        if (reply == NULL || c->close_when_sent) return true;
        command(c, reply);
        freeReplyObject(reply);
    }
}

/* --- what a test says --- */

void fake_script(const char *name, unsigned after, enum fake_action action, const char *text) {
    fake_lock();
    TARN_ASSERT(fake.scripts < SCRIPTS);
    struct fake_script *s = &fake.script[fake.scripts++];
    *s = (struct fake_script){.after = after, .action = action};
    snprintf(s->command, sizeof(s->command), "%s", name);
    snprintf(s->text, sizeof(s->text), "%s", text == NULL ? "" : text);
    fake_unlock();
}

unsigned fake_count(const char *pattern) {
    fake_lock();
    unsigned n = 0;
    for (unsigned i = 0; i < fake.lines && i < LOG_LINES; i++)
        n += fnmatch(pattern, fake.log[i], 0) == 0;
    fake_unlock();
    return n;
}

void fake_forget_commands(void) {
    fake_lock();
    fake.lines = 0;
    fake_unlock();
}

static uint8_t *byte_at(const struct fake_replica_at *r, uint64_t at) {
    for (unsigned i = 0; i < r->extents; i++) {
        if (at < r->extent[i].length) return fake.host[r->host].memory + r->extent[i].offset + at;
        at -= r->extent[i].length;
    }
    return NULL;
}

bool fake_damage(const char *key, unsigned host, uint64_t at) {
    fake_lock();
    struct fake_replica_at *r = replica_at(find(key, true), host);
    uint8_t *byte = r == NULL ? NULL : byte_at(r, at);
    if (byte != NULL) *byte ^= 0x10;
    fake_unlock();
    return byte != NULL;
}

int fake_replica(const char *key, unsigned index) {
    fake_lock();
    const struct fake_object *o = find(key, true);
    int host = o == NULL || index >= o->replicas ? -1 : (int)o->replica[index].host;
    fake_unlock();
    return host;
}

static void to_front(struct fake_object *o, unsigned index) {
    struct fake_replica_at r = o->replica[index];
    memmove(&o->replica[1], &o->replica[0], index * sizeof(r));
    o->replica[0] = r;
}

void fake_nearest(const char *key, unsigned host) {
    fake_lock();
    struct fake_object *o = find(key, true);
    struct fake_replica_at *r = replica_at(o, host);
    TARN_ASSERT(r != NULL);
    to_front(o, (unsigned)(r - o->replica));
    fake_unlock();
}

static void add_other(const char *key, unsigned kind, const char *text) {
    fake_lock();
    struct fake_object *o = find(key, true);
    TARN_ASSERT(o != NULL && o->replicas < REPLICAS);
    struct fake_replica_at *r = &o->replica[o->replicas++];
    *r = (struct fake_replica_at){.host = kind};
    snprintf(r->path, sizeof(r->path), "%s", text);
    to_front(o, o->replicas - 1);
    fake_unlock();
}

void fake_add_file(const char *key, const char *path) {
    add_other(key, FILE_HOST, path);
}

void fake_add_tier(const char *key, const char *tier) {
    add_other(key, TIER_HOST, tier);
}

void fake_drop_replica(const char *key, unsigned host) {
    fake_lock();
    struct fake_object *o = find(key, true);
    struct fake_replica_at *r = replica_at(o, host);
    TARN_ASSERT(r != NULL);
    to_front(o, (unsigned)(r - o->replica));
    memmove(&o->replica[0], &o->replica[1], --o->replicas * sizeof(*r));
    fake_unlock();
}

void fake_drop_crc(const char *key) {
    fake_lock();
    find(key, true)->crc = -1;
    fake_unlock();
}

void fake_crcs_times(const char *key, unsigned times) {
    fake_lock();
    find(key, true)->crcs_times = times;
    fake_unlock();
}

bool fake_exists(const char *key) {
    fake_lock();
    bool there = find(key, true) != NULL;
    fake_unlock();
    return there;
}

bool fake_holds(const char *key, unsigned host, const void *data, size_t len) {
    fake_lock();
    const struct fake_object *o = find(key, true);
    const struct fake_replica_at *r = replica_at((struct fake_object *)(uintptr_t)o, host);
    bool same = r != NULL && o->size == len;
    const char *from = data;
    for (unsigned i = 0; same && i < r->extents; i++) {
        same = memcmp(fake.host[host].memory + r->extent[i].offset, from, r->extent[i].length) == 0;
        from += r->extent[i].length;
    }
    fake_unlock();
    return same;
}

unsigned fake_open_puts(void) {
    fake_lock();
    unsigned n = 0;
    for (unsigned i = 0; i < OBJECTS; i++) n += fake.object[i].used && !fake.object[i].complete;
    fake_unlock();
    return n;
}
