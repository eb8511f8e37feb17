/* The processes, the proxy of the server, and what tests ask of the pool. The proxies of hosts are
 * in pool_host.c. */
#include "pool.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../scripted.h"
#include "base/segment_header.h"
#include "pool_host.h"

#define EDITS 64

/* What look-ups of a key are told. */
struct edit {
    char key[64], added[2][200]; /* a tier, and the path of a file */
    unsigned first, dropped;     /* hosts: 1 + number, bits */
    bool no_crc;
    unsigned crcs_times;
};

static struct {
    struct scripted proxy;
    pid_t server;
    uint16_t port;
    char dir[200];
    redisContext *admin; /* past the proxy */
    char machine[64];    /* of host 0, "": m0 */
    struct {
        pid_t pid;
        uint32_t segment;
        char *memory; /* of its pool file */
        char tier[16];
        uint32_t ahead;
    } host[POOL_HOSTS];
    struct edit edit[EDITS];
    unsigned edits;
    struct buf info; /* more of SEGMENT INFO */
    unsigned info_fields;
    struct {
        char key[64];
        uint64_t token;
        unsigned hosts;
        int host[8];
    } put[1024]; /* those that were opened */
    unsigned puts;
} pool;

/* --- processes --- */

static void stop_process(pid_t *pid_p) {
    if (*pid_p <= 0) return;
    kill(*pid_p, SIGKILL);
    waitpid(*pid_p, NULL, 0);
    *pid_p = 0;
}

static const char *program(const char *name, const char *variable) {
    static char path[600];
    char own[512] = "";
    const char *given = getenv(variable);
    ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);
    for (int up = 0; n > 0 && up < 4 && strrchr(own, '/') != NULL; up++)
        *strrchr(own, '/') = '\0'; /* build/KIND */
    snprintf(path, sizeof(path), "%s/%s", own, name);
    return given != NULL ? given : path;
}

/* Words as a shell has them. */
static pid_t run(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static pid_t run(const char *fmt, ...) {
    char command[1500] = "exec ";
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command + 5, sizeof(command) - 5, fmt, ap);
    va_end(ap);
    pid_t pid = fork();
    TARN_ASSERT(pid >= 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    execl("/bin/sh", "sh", "-c", command, NULL);
    _exit(127);
}

/* The number in a file that a process writes when it is up. */
static uint16_t port_in(const char *name) {
    char path[300];
    unsigned port = 0;
    snprintf(path, sizeof(path), "%s/%s", pool.dir, name);
    for (uint64_t until = clock_mono_ms() + TEST_PATIENCE_MS;
         port == 0 && clock_mono_ms() < until;) {
        FILE *f = fopen(path, "r");
        if (f != NULL && fscanf(f, "%u", &port) != 1) port = 0;
        if (f != NULL) fclose(f);
        if (port == 0) usleep(2000);
    }
    TARN_ASSERT(port != 0);
    return (uint16_t)port;
}

static void end_processes(void) {
    char command[300];
    if (pool.server == 0) return;
    if (pool.admin != NULL) redisFree(pool.admin);
    pool.admin = NULL;
    for (unsigned h = 0; h < POOL_HOSTS; h++) {
        stop_process(&pool.host[h].pid);
        munmap(pool.host[h].memory, SEGMENT_HEADER_SIZE + POOL_BYTES);
    }
    stop_process(&pool.server);
    snprintf(command, sizeof(command), "rm -rf '%s'", pool.dir);
    if (system(command) != 0) printf("# %s is left\n", pool.dir);
}

static redisReply *ask(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static redisReply *ask(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    redisReply *r = redisvCommand(pool.admin, fmt, ap);
    va_end(ap);
    TARN_ASSERT(r != NULL);
    return r;
}
static void keep_puts_away(unsigned host, bool on) {
    freeReplyObject(ask("NODE MAINTENANCE n%u %s", host, on ? "ON" : "OFF"));
}

static void start_server(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(pool.dir, sizeof(pool.dir), "%s/tarn-client-XXXXXX", tmp != NULL ? tmp : "/tmp");
    TARN_ASSERT(mkdtemp(pool.dir) != NULL);
    pool.server =
        run("'%s' --port 0 --bind 127.0.0.1 --port-file '%s/port' --dir '%s' --pool-size 0 "
            "--save '' --hard-pin-ratio 1 --hard-pin-user-ratio 1 --node-timeout 600000 "
            "--node-heartbeat 60000 --put-timeout 600s",
            program("tarn-server", "TARN_SERVER"), pool.dir, pool.dir);
    pool.port = port_in("port");
    pool.admin = redisConnect("127.0.0.1", pool.port);
    TARN_ASSERT(pool.admin != NULL && pool.admin->err == 0);
}

static void start_node(unsigned h) {
    char machine[80], shm[300];
    bool real = h == 0 && pool.machine[0] != '\0';
    snprintf(machine, sizeof(machine), "m%u", h);
    snprintf(shm, sizeof(shm), "%s/n%u.shm", pool.dir, h);
    pool.host[h].pid = run(
        "'%s' --master tarn://127.0.0.1:%u --name n%u --host-name '%s' --bind 127.0.0.1 --segment "
        "'64mb,path=%s/n%u' --port-file '%s/n%u.port' --shm-socket '%s' --no-populate --threads 1",
        program("tarn-node", "TARN_NODE"), pool.port, h, real ? pool.machine : machine, pool.dir, h,
        pool.dir, h, real ? shm : "none");
}

static void meet_node(unsigned h) {
    char file[32], path[300];
    snprintf(file, sizeof(file), "n%u.port", h);
    pool_host_set_port(h, port_in(file));
    snprintf(path, sizeof(path), "%s/n%u", pool.dir, h);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    TARN_ASSERT(fd >= 0);
    pool.host[h].memory =
        mmap(NULL, SEGMENT_HEADER_SIZE + POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    TARN_ASSERT(pool.host[h].memory != MAP_FAILED);
    close(fd);
    redisReply *r = ask("SEGMENT INFO n%u.0", h);
    for (size_t i = 0; i + 1 < r->elements; i += 2)
        if (strcmp(r->element[i]->str, "id") == 0)
            pool.host[h].segment = (uint32_t)r->element[i + 1]->integer;
    freeReplyObject(r);
}

static void start_processes(void) {
    static bool registered;
    if (pool.server > 0) return;
    if (!registered) atexit(end_processes);
    registered = true;
    start_server();
    for (unsigned h = 0; h < POOL_HOSTS; h++) start_node(h);
    for (unsigned h = 0; h < POOL_HOSTS; h++) meet_node(h);
}

pid_t pool_pid(unsigned host) {
    return pool.host[host].pid;
}

void pool_hide_memory(void) {
    char path[300];
    snprintf(path, sizeof(path), "%s/n0.shm", pool.dir);
    TARN_ASSERT(unlink(path) == 0);
}

void pool_renew(const char *machine) {
    end_processes();
    snprintf(pool.machine, sizeof(pool.machine), "%s", machine != NULL ? machine : "");
}

/* --- answers that are changed on their way --- */

static void write_reply(struct buf *out, const redisReply *r) {
    switch (r->type) {
    case REDIS_REPLY_INTEGER: resp_write_int(out, r->integer); break;
    case REDIS_REPLY_STRING: resp_write_bulk(out, r->str, r->len); break;
    case REDIS_REPLY_STATUS: resp_write_simple(out, r->str); break;
    case REDIS_REPLY_ERROR: resp_write_error(out, r->str); break;
    case REDIS_REPLY_NIL: resp_write_null(out, 2); break;
    default:
        resp_write_array(out, r->elements);
        for (size_t i = 0; i < r->elements; i++) write_reply(out, r->element[i]);
    }
}

static void write_str(struct buf *out, const char *text) {
    resp_write_bulk(out, text, strlen(text));
}

static int host_of_segment(long long id) {
    for (unsigned h = 0; h < POOL_HOSTS; h++)
        if (pool.host[h].segment == id) return (int)h;
    return -1;
}

/* Of [tier, [[segment, ...], ...]]. */
static int host_of_replica(const redisReply *replica) {
    return host_of_segment(replica->element[1]->element[0]->element[0]->integer);
}

static struct edit *edit_of(const char *key, bool add) {
    for (unsigned i = 0; i < pool.edits; i++)
        if (strcmp(pool.edit[i].key, key) == 0) return &pool.edit[i];
    if (!add) return NULL;
    TARN_ASSERT(pool.edits < EDITS);
    struct edit *e = &pool.edit[pool.edits++];
    *e = (struct edit){.crcs_times = UINT_MAX};
    snprintf(e->key, sizeof(e->key), "%s", key);
    return e;
}

static const redisReply *replica_on(const redisReply *list, unsigned host) {
    for (size_t i = 0; i < list->elements; i++)
        if (host_of_replica(list->element[i]) == (int)host) return list->element[i];
    return NULL;
}

static void write_replica(struct buf *out, const redisReply *replica) {
    resp_write_array(out, 2);
    write_str(out, pool.host[host_of_replica(replica)].tier);
    write_reply(out, replica->element[1]);
}

/* The replicas of a look-up as the test wants them told. */
static void write_replicas(struct buf *out, const redisReply *list, const struct edit *e,
                           long long size) {
    struct buf some = {0};
    unsigned n = 0;
    for (int i = 0; e != NULL && i < 2; i++) {
        if (e->added[i][0] == '\0') continue;
        resp_write_array(&some, 2);
        write_str(&some, i == 0 ? e->added[i] : "file");
        buf_append_str(&some, "*1\r\n*2\r\n");
        write_str(&some, e->added[i]);
        resp_write_int(&some, size);
        n++;
    }
    for (unsigned turn = 0; turn <= POOL_HOSTS; turn++) { /* the first one; then by number */
        unsigned first = e != NULL && e->first > 0 ? e->first - 1 : POOL_HOSTS;
        unsigned h = turn == 0 ? first : turn - 1;
        const redisReply *replica = replica_on(list, h);
        if (replica == NULL || (turn > 0 && h == first) || (e != NULL && e->dropped >> h & 1))
            continue;
        write_replica(&some, replica);
        n++;
    }
    resp_write_array(out, n);
    buf_append(out, some.data, some.len);
    buf_free(&some);
}

/* [version, size, lease, crc, replicas, value, crcs, ...] */
static void write_place(struct buf *out, const redisReply *r, struct edit *e) {
    if (r->type != REDIS_REPLY_ARRAY) {
        write_reply(out, r);
        return;
    }
    resp_write_array(out, r->elements);
    for (size_t i = 0; i < r->elements; i++) {
        if (i == 3 && e != NULL && e->no_crc)
            resp_write_int(out, -1);
        else if (i == 4)
            write_replicas(out, r->element[i], e, r->element[1]->integer);
        else if (i == 6 && e != NULL && r->element[i]->type == REDIS_REPLY_STRING &&
                 e->crcs_times-- == 0)
            resp_write_null(out, 2), e->crcs_times = 0;
        else
            write_reply(out, r->element[i]);
    }
}

static void write_segment(struct buf *out, const redisReply *r) {
    unsigned h = 0;
    char uri[100];
    for (size_t i = 0; i + 1 < r->elements; i += 2)
        if (strcmp(r->element[i]->str, "id") == 0)
            h = (unsigned)host_of_segment(r->element[i + 1]->integer);
    if (r->type == REDIS_REPLY_ERROR || pool.host[h].ahead == UINT32_MAX) {
        buf_append_str(out, "-NOSEGMENT no such segment\r\n");
        return;
    }
    struct buf told = {0};
    size_t n = pool.info_fields;
    for (size_t i = 0; i + 1 < r->elements; i += 2) {
        const char *name = r->element[i]->str;
        if (strcmp(name, "keys") == 0 || strcmp(name, "transports") == 0) continue;
        n++;
        bool real = h == 0 && pool.machine[0] != '\0';
        write_reply(&told, r->element[i]);
        if (strcmp(name, "epoch") == 0) {
            resp_write_int(&told, r->element[i + 1]->integer + pool.host[h].ahead);
        } else if (strcmp(name, "endpoints") == 0 && !real) {
            snprintf(uri, sizeof(uri), "tcp://%s:%u", pool_host_address(), pool_host_port(h));
            resp_write_array(&told, 1);
            write_str(&told, uri);
        } else {
            write_reply(&told, r->element[i + 1]);
        }
    }
    resp_write_array(out, 2 * n);
    buf_append(out, told.data, told.len);
    buf_append(out, pool.info.data, pool.info.len);
    buf_free(&told);
}

/* --- puts: space that comes back must be quiet --- */

static void note_put(struct span key, const redisReply *r) {
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 2) return;
    TARN_ASSERT(pool.puts < ARRAY_LEN(pool.put));
    unsigned at = pool.puts++;
    snprintf(pool.put[at].key, sizeof(pool.put[at].key), "%.*s", (int)key.len, key.data);
    pool.put[at].token = (uint64_t)r->element[0]->integer;
    pool.put[at].hosts = (unsigned)r->element[1]->elements;
    for (unsigned i = 0; i < pool.put[at].hosts; i++)
        pool.put[at].host[i] = host_of_replica(r->element[1]->element[i]);
}

/* These replicas of the put are given back. */
static void must_be_quiet(struct span token, uint64_t failed) {
    uint64_t number = 0;
    span_to_u64(token, &number);
    for (unsigned at = 0; at < pool.puts; at++)
        for (unsigned i = 0; pool.put[at].token == number && i < pool.put[at].hosts; i++)
            if (failed >> i & 1) pool_host_must_be_quiet((unsigned)pool.put[at].host[i]);
}

static size_t after_word(const struct span *argv, size_t argc, const char *word) {
    for (size_t i = 1; i + 1 < argc; i++)
        if (span_case_eq(argv[i], word)) return i + 1;
    return 0;
}

static void look_at_ends(const struct span *argv, size_t argc) {
    uint64_t n = 0, failed = 0;
    size_t at = after_word(argv, argc, "FAILED"), faileds = after_word(argv, argc, "FAILEDS");
    if (span_eq(argv[0], SPAN("PUTREVOKE"))) must_be_quiet(argv[2], UINT64_MAX);
    if (span_eq(argv[0], SPAN("PUTEND")) && at != 0 && span_to_u64(argv[at], &failed))
        must_be_quiet(argv[2], UINT64_C(1) << failed);
    if (argc > 2) span_to_u64(argv[1], &n);
    for (size_t i = 0; span_eq(argv[0], SPAN("MPUTREVOKE")) && i < n; i++)
        must_be_quiet(argv[3 + 2 * i], UINT64_MAX);
    for (size_t i = 0; span_eq(argv[0], SPAN("MPUTEND")) && faileds != 0 && i < n; i++)
        if (span_to_u64(argv[faileds + i], &failed)) must_be_quiet(argv[3 + 3 * i], failed);
}

/* --- the proxy --- */

static void pass_on(redisContext *up, const struct span *argv, size_t argc) {
    const char *words[4096 + 2 * POOL_HOSTS];
    size_t lens[4096 + 2 * POOL_HOSTS], n = 0;
    static const char *const segment[] = {"n0.0", "n1.0", "n2.0", "n3.0"};
    bool starts = span_eq(argv[0], SPAN("PUTSTART")) || span_eq(argv[0], SPAN("MPUTSTART"));
    TARN_ASSERT(argc <= 4096);
    for (size_t i = 0; i < argc; i++) {
        if (span_eq(argv[i], SPAN("PACKED"))) continue; /* replicas are looked at, and changed */
        words[n] = argv[i].data;
        lens[n++] = argv[i].len;
    }
    unsigned avoided = 0, all = (1u << POOL_HOSTS) - 1;
    for (unsigned h = 0; starts && h < POOL_HOSTS; h++)
        for (size_t i = 1; i < argc; i++)
            if (span_eq(argv[i], span_str(segment[h])) && span_eq(argv[i - 1], SPAN("AVOID")))
                avoided |= 1u << h;
    for (unsigned h = 0; starts && h < POOL_HOSTS; h++) {
        if (avoided != all && avoided >> h & 1) continue;
        words[n] = "PREFER", lens[n++] = 6;
        words[n] = segment[h], lens[n++] = 4;
    }
    redisAppendCommandArgv(up, (int)n, words, lens);
}

static bool proxy_answer(struct scripted_conn *c, const struct span *argv, size_t argc,
                         struct buf *out) {
    redisContext *up = c->own;
    if (span_eq(argv[0], SPAN("REPLICA"))) { /* the server would look for itself */
        buf_append_str(out, ":1\r\n");
        return true;
    }
    if (up == NULL) c->own = up = redisConnect("127.0.0.1", pool.port);
    redisReply *r = NULL;
    look_at_ends(argv, argc);
    pass_on(up, argv, argc);
    if (redisGetReply(up, (void **)&r) != REDIS_OK) return false;
    bool many = argv[0].len > 0 && argv[0].data[0] == 'M';
    char key[64];
    pthread_mutex_lock(&c->s->mutex);
    if (span_eq(argv[0], SPAN("MPUTSTART")))
        for (size_t i = 0; i < r->elements && r->element[i]->type != REDIS_REPLY_INTEGER; i++)
            note_put(argv[2 + 2 * i], r->element[i]);
    else if (span_eq(argv[0], SPAN("PUTSTART")))
        note_put(argv[1], r);
    if (r->type != REDIS_REPLY_ERROR && after_word(argv, argc, "KVGROUPS") == 0 &&
        (span_eq(argv[0], SPAN("MGETREPLICAS")) || span_eq(argv[0], SPAN("GETREPLICAS")))) {
        if (many) resp_write_array(out, r->elements);
        for (size_t i = 0; i < (many ? r->elements : 1); i++) {
            struct span k = argv[many ? 2 + i : 1];
            snprintf(key, sizeof(key), "%.*s", (int)k.len, k.data);
            write_place(out, many ? r->element[i] : r, edit_of(key, false));
        }
    } else if (span_eq(argv[0], SPAN("SEGMENT"))) {
        write_segment(out, r);
    } else {
        write_reply(out, r);
    }
    pthread_mutex_unlock(&c->s->mutex);
    freeReplyObject(r);
    return true;
}

static void proxy_closed(struct scripted_conn *c) {
    if (c->own != NULL) redisFree(c->own);
}

/* What a test left open, as it may where a host is silent, stays so until its put-timeout. */
static void end_puts(void) {
    for (; pool.puts > 0; pool.puts--) {
        const char *key = pool.put[pool.puts - 1].key;
        uint64_t token = pool.put[pool.puts - 1].token;
        freeReplyObject(ask("PUTREVOKE %s %llu", key, (unsigned long long)token));
    }
}

void pool_start(void) {
    start_processes();
    freeReplyObject(ask("FLUSHALL"));
    end_puts();
    for (unsigned h = 0; h < POOL_HOSTS; h++) {
        if (pool.host[h].ahead == UINT32_MAX) keep_puts_away(h, false);
        pool.host[h].ahead = 0;
        strcpy(pool.host[h].tier, "memory");
    }
    pool.edits = 0;
    pool.proxy.answer = proxy_answer;
    pool.proxy.closed = proxy_closed;
    scripted_start(&pool.proxy);
    pool_hosts_start();
}

void pool_stop(void) {
    scripted_stop(&pool.proxy);
    pool_hosts_stop();
    buf_free(&pool.info);
    pool.info_fields = 0;
}

const char *pool_url(const char *options) {
    static char url[400];
    snprintf(url, sizeof(url),
             "tarn://127.0.0.1:%u?failover_ms=60000&backoff_min_ms=2&backoff_max_ms=10&max_lanes=2&"
             "timeout_ms=20000&host_name=here%s%s",
             pool.proxy.port, *options == '\0' ? "" : "&", options);
    return url;
}

/* --- what a test says --- */

uint32_t pool_segment(unsigned host) {
    return pool.host[host].segment;
}

void pool_fragment(void) {
    for (unsigned h = 0; h < POOL_HOSTS; h++) {
        unsigned n = 0;
        for (;; n++) {
            redisReply *r = ask("PUTSTART fill:%u:%u 2097152 PREFER n%u.0 PIN HARD", h, n, h);
            bool here = r->type == REDIS_REPLY_ARRAY &&
                        host_of_replica(r->element[1]->element[0]) == (int)h;
            if (here)
                freeReplyObject(ask("PUTEND fill:%u:%u %lld -1", h, n, r->element[0]->integer));
            else if (r->type == REDIS_REPLY_ARRAY)
                freeReplyObject(ask("PUTREVOKE fill:%u:%u %lld", h, n, r->element[0]->integer));
            freeReplyObject(r);
            if (!here) break;
        }
        for (unsigned i = 0; i < n; i += 2) freeReplyObject(ask("DEL fill:%u:%u", h, i));
    }
}

void pool_tier(unsigned host, const char *tier) {
    snprintf(pool.host[host].tier, sizeof(pool.host[host].tier), "%s", tier);
}

void pool_epoch(unsigned host, uint32_t ahead) {
    if (ahead == UINT32_MAX) keep_puts_away(host, true);
    pool.host[host].ahead = ahead;
}

void pool_info(unsigned fields, const char *text, size_t len) {
    buf_clear(&pool.info);
    buf_append(&pool.info, text, len);
    pool.info_fields = fields;
}

void pool_script(const char *command, unsigned after, enum pool_action action, const char *text) {
    char pattern[40];
    snprintf(pattern, sizeof(pattern), "%s*", command);
    scripted_script(&pool.proxy, pattern, after, 1,
                    action == POOL_UNSAID ? SCRIPTED_UNSAID
                    : action == POOL_CUT  ? SCRIPTED_CUT
                                          : SCRIPTED_SAY,
                    action == POOL_SAY ? text : "");
}

unsigned pool_count(const char *pattern) {
    return scripted_count(&pool.proxy, pattern);
}

void pool_forget_commands(void) {
    pthread_mutex_lock(&pool.proxy.mutex);
    while (pool.proxy.lines > 0) free(pool.proxy.line[--pool.proxy.lines]);
    pthread_mutex_unlock(&pool.proxy.mutex);
}

/* Its look-up, as the test has it told. NULL: there is none. */
static redisReply *look_up(const char *key) {
    redisReply *r = ask("GETREPLICAS %s", key), *told = NULL;
    struct buf b = {0};
    redisReader *reader = redisReaderCreate();
    write_place(&b, r, edit_of(key, false));
    redisReaderFeed(reader, b.data, b.len);
    TARN_ASSERT(redisReaderGetReply(reader, (void **)&told) == REDIS_OK && told != NULL);
    redisReaderFree(reader);
    buf_free(&b);
    freeReplyObject(r);
    if (told->type == REDIS_REPLY_ARRAY) return told;
    freeReplyObject(told);
    return NULL;
}

/* fn of the pieces of the replica on a host; false: there is none. */
static bool each_piece(const char *key, unsigned host,
                       void (*fn)(void *arg, char *bytes, uint64_t len), void *arg,
                       uint64_t *size_p) {
    redisReply *r = look_up(key);
    const redisReply *replica = r != NULL ? replica_on(r->element[4], host) : NULL;
    for (size_t i = 0; replica != NULL && i < replica->element[1]->elements; i++) {
        const redisReply *x = replica->element[1]->element[i];
        fn(arg, pool.host[host].memory + SEGMENT_HEADER_SIZE + x->element[2]->integer,
           (uint64_t)x->element[3]->integer);
    }
    *size_p = r != NULL ? (uint64_t)r->element[1]->integer : 0;
    if (r != NULL) freeReplyObject(r);
    return replica != NULL;
}

static void flip(void *arg, char *bytes, uint64_t len) {
    uint64_t *at = arg;
    if (*at < len) bytes[*at] ^= 0x10;
    *at = *at < len ? UINT64_MAX : *at - len;
}
bool pool_damage(const char *key, unsigned host, uint64_t at) {
    uint64_t size;
    return each_piece(key, host, flip, &at, &size);
}

struct comparison {
    const char *with;
    bool same;
};
static void compare(void *arg, char *bytes, uint64_t len) {
    struct comparison *k = arg;
    k->same = k->same && memcmp(bytes, k->with, len) == 0;
    k->with += len;
}
bool pool_holds(const char *key, unsigned host, const void *data, size_t len) {
    struct comparison k = {data, true};
    uint64_t size;
    return each_piece(key, host, compare, &k, &size) && size == len && k.same;
}

int pool_replica(const char *key, unsigned index) {
    redisReply *r = look_up(key);
    int host = r != NULL && index < r->element[4]->elements
                   ? host_of_replica(r->element[4]->element[index])
                   : -1;
    if (r != NULL) freeReplyObject(r);
    return host;
}

bool pool_exists(const char *key) {
    redisReply *r = ask("EXISTS %s", key);
    bool there = r->integer == 1;
    freeReplyObject(r);
    return there;
}

unsigned pool_open_puts(void) {
    uint64_t until = clock_mono_ms() + 10000;
    unsigned n;
    do {
        redisReply *r = ask("INFO everything");
        const char *at = strstr(r->str, "\r\nputs_open:");
        TARN_ASSERT(at != NULL);
        n = (unsigned)strtoul(at + 12, NULL, 10);
        freeReplyObject(r);
        if (n > 0) usleep(1000);
    } while (n > 0 && clock_mono_ms() < until);
    return n;
}

void pool_nearest(const char *key, unsigned host) {
    edit_of(key, true)->first = host + 1;
}
void pool_add_tier(const char *key, const char *tier) {
    struct edit *e = edit_of(key, true);
    snprintf(e->added[0], sizeof(e->added[0]), "%s", tier);
}
void pool_add_file(const char *key, const char *path) {
    struct edit *e = edit_of(key, true);
    snprintf(e->added[1], sizeof(e->added[1]), "%s", path);
}
void pool_drop_replica(const char *key, unsigned host) {
    struct edit *e = edit_of(key, true);
    if (host == POOL_FILE)
        e->added[1][0] = '\0';
    else
        e->dropped |= 1u << host;
}
void pool_drop_crc(const char *key) {
    edit_of(key, true)->no_crc = true;
}
void pool_crcs_times(const char *key, unsigned times) {
    edit_of(key, true)->crcs_times = times;
}
