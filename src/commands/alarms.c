/* Each alarm is a function that looks at the figures of now and of the last minute, and writes a
 * sentence if something is wrong: what, how much, and where to look. */
#include "commands/alarms.h"

#include <stdio.h>
#include <string.h>
#include "base/assert.h"
#include "base/hist.h"
#include "base/log.h"
#include "cluster/cluster.h"
#include "commands/info.h"
#include "commands/minute.h"
#include "config/config.h"
#include "front/cmd.h"
#include "front/stats.h"
#include "ha/persistence.h"
#include "ha/replication.h"
#include "store/figures.h"

/* HITS_BACK: of the look-ups, in percent, that it takes once the alarm is on: a ratio around a half
 * is one alarm, not one each second. */
enum {
    LOOKS_MIN = 100,
    HITS_LOW = 50,
    HITS_BACK = 55,
    YOUNG_MS = 60000,
    IDLE_SECONDS = 10,
    TEXT_MAX = 320
};

struct alarm_facts {
    struct store_stats s;
    struct cluster_figures c;
    struct minute_counts minute; /* of the last one */
    bool on;                     /* the alarm that is looked at is on already */
};

typedef unsigned long long ull;

static const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

static void say_nodes(const struct alarm_facts *l, char *text) {
    uint64_t down = l->c.nodes_by_state[CLUSTER_NODE_DOWN];
    char names[128] = "";
    uint32_t cursor = 0;
    size_t len = 0, named = 0;
    if (down == 0) return;
    for (struct cluster_node *n; named < 4 && (n = cluster_node_next(&cursor)) != NULL;) {
        struct cluster_node_info info;
        cluster_node_get(n, &info);
        if (info.state != CLUSTER_NODE_DOWN || len + strlen(info.name) + 3 > sizeof(names))
            continue;
        len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%s", named++ > 0 ? ", " : "",
                                info.name);
    }
    snprintf(text, TEXT_MAX,
             "%llu of %llu nodes %s away (%s%s). What nobody else has cannot be read until then: "
             "NODE LIST, and tarn-node on %s.",
             (ull)down, (ull)l->c.nodes, down == 1 ? "is" : "are", names,
             down > named ? ", ..." : "", down == 1 ? "that machine" : "those machines");
}

static void say_segments(const struct alarm_facts *l, char *text) {
    if (l->s.pool_down == 0 || l->c.nodes_by_state[CLUSTER_NODE_DOWN] > 0) return;
    snprintf(text, TEXT_MAX,
             "%llu MiB of the pool are in segments that are away or leaving. SEGMENT LIST.",
             (ull)(l->s.pool_down >> 20));
}

static void say_puts(const struct alarm_facts *l, char *text) {
    if (l->minute.failed_puts == 0) return;
    snprintf(text, TEXT_MAX,
             "%llu put%s failed in the last minute: no room could be made, or writers were too "
             "slow. Leases, hard pins, eviction-policy; CACHE DOCTOR.",
             (ull)l->minute.failed_puts, plural(l->minute.failed_puts));
}

static void say_hits(const struct alarm_facts *l, char *text) {
    uint64_t looks = l->minute.hits + l->minute.misses;
    if (looks < (l->on ? 1 : LOOKS_MIN)) return;
    if (l->minute.hits * 100 >= looks * (l->on ? HITS_BACK : HITS_LOW)) return;
    snprintf(text, TEXT_MAX,
             "%llu %% of %llu look-ups hit in the last minute. Why they miss: CACHE DOCTOR.",
             (ull)(100 * l->minute.hits / looks), (ull)looks);
}

static void say_evictions(const struct alarm_facts *l, char *text) {
    if (l->minute.evicted == 0 || 2 * l->minute.young <= l->minute.aged) return;
    snprintf(text, TEXT_MAX,
             "%llu object%s evicted in the last minute, %llu %% of them within %d s of their last "
             "use: the pool is small for what is asked of it. CACHE CURVE.",
             (ull)l->minute.evicted, l->minute.evicted == 1 ? " was" : "s were",
             (ull)(100 * l->minute.young / l->minute.aged), YOUNG_MS / 1000);
}

static void say_bytes(const struct alarm_facts *l, char *text) {
    (void)l;
    if (stats.replicas_bad == 0) return;
    snprintf(text, TEXT_MAX,
             "Wrong bytes: %llu replica%s dropped, since the start or CONFIG RESETSTAT: "
             "memory or disks of their nodes. REPLICA REPORT.",
             (ull)stats.replicas_bad, plural(stats.replicas_bad));
}

static void say_files(const struct alarm_facts *l, char *text) {
    (void)l;
    const char *why = persistence_refusal();
    if (why != NULL) snprintf(text, TEXT_MAX, "Nothing can be changed: %s.", why);
}

static void say_master(const struct alarm_facts *l, char *text) {
    (void)l;
    if (replication_is_replica() &&
        (replication.link == NULL || repl_link_state(replication.link) != REPL_LINK_STREAMING))
        snprintf(text, TEXT_MAX,
                 "The link to the master %s:%u is down: what this replica knows grows old. INFO "
                 "replication.",
                 replication.master_host, replication.master_port);
}

static void say_state(const struct alarm_facts *l, char *text) {
    (void)l;
    char why[128];
    enum tarn_state state = info_state(why, sizeof(why));
    if (state != TARN_STATE_SERVING && state != TARN_STATE_STOPPING)
        snprintf(text, TEXT_MAX, "This server does not serve everything yet: %s.", why);
}

static struct alarm {
    const char *name;
    /* text, of TEXT_MAX, is empty before; it stays so if all is well. */
    void (*say)(const struct alarm_facts *l, char *text);
    bool told_elsewhere; /* in the log, by who knows more */
    bool on;
    uint64_t since_ms;
    char text[TEXT_MAX];
} alarms[] = {{.name = "nodes", .say = say_nodes, .told_elsewhere = true},
              {.name = "segments", .say = say_segments},
              {.name = "puts", .say = say_puts},
              {.name = "hits", .say = say_hits},
              {.name = "evictions", .say = say_evictions},
              {.name = "bytes", .say = say_bytes},
              {.name = "files", .say = say_files, .told_elsewhere = true},
              {.name = "master", .say = say_master, .told_elsewhere = true},
              {.name = "state", .say = say_state, .told_elsewhere = true}};

static struct {
    struct minute minute;
    uint64_t looked_ms;
} past;

static struct minute_counts totals_of(const struct store_stats *s) {
    struct store_story story;
    store_get_story(books, &story);
    return (struct minute_counts){.hits = s->hits,
                                  .misses = s->misses,
                                  .failed_puts = s->put_nospace + s->put_timeouts,
                                  .evicted = s->evicted_objects,
                                  .aged = story.idle->count,
                                  .idle_ms = story.idle->sum,
                                  .young = hist_count_upto(story.idle, YOUNG_MS)};
}

static void alarm_look(struct alarm *a, struct alarm_facts *l) {
    char text[TEXT_MAX] = "";
    l->on = a->on;
    a->say(l, text);
    bool on = text[0] != '\0';
    if (on && !a->on) {
        a->since_ms = turn.mono_ms;
        if (!a->told_elsewhere) log_warning("Alarm: %s", text);
    } else if (!on && a->on && !a->told_elsewhere) {
        log_notice("The alarm is over after %llu s: %s", (ull)(turn.mono_ms - a->since_ms) / 1000,
                   a->text);
    }
    a->on = on;
    if (on) memcpy(a->text, text, sizeof(text));
}

void alarms_cron(void) {
    if (turn.mono_ms - past.looked_ms < 1000 || books == NULL) return;
    past.looked_ms = turn.mono_ms;
    struct alarm_facts l;
    store_get_stats(books, &l.s);
    cluster_get_figures(&l.c);
    l.minute = minute_until(&past.minute, totals_of(&l.s));
    for (size_t i = 0; i < ARRAY_LEN(alarms); i++) alarm_look(&alarms[i], &l);
}

int64_t alarms_evicted_idle_ms(void) {
    return minute_evicted_idle(&past.minute, IDLE_SECONDS);
}

void alarms_each(void (*fn)(void *arg, const char *name, const char *text, uint64_t since_ms),
                 void *arg) {
    for (size_t i = 0; i < ARRAY_LEN(alarms); i++)
        if (alarms[i].on) fn(arg, alarms[i].name, alarms[i].text, alarms[i].since_ms);
}
