/* A master for a storage node: answers what the node asks, hands out the work that a test gives it,
 * and misbehaves where a rule says so. */
#ifndef TARN_TESTS_HOSTING_MASTER_H
#define TARN_TESTS_HOSTING_MASTER_H

#include "../scripted.h"

#define MASTER_WAIT_MS SCRIPTED_WAIT_MS

struct master {
    struct scripted s;
    unsigned beats;
    /* what it says */
    uint32_t epoch;
    char key[17], cluster[33];
    unsigned heartbeat_ms, max_lease_ms, node_timeout_ms, first_segment_epoch;
    char *work[64]; /* RESP of an item each */
    size_t n_work;
    struct {
        char name[64], content[40];
    } mounts[80]; /* id is the index and 1 */
    size_t n_mounts;
    struct {
        char key[64], value[65];
        unsigned version;
    } objects[16];
    size_t n_objects;
    /* not confirmed: handed out after each JOIN, before that NODE UP is AGAIN */
    uint64_t fences[8];
    size_t n_fences, fences_told;
    size_t offer_forget;  /* answers to the offers of so many entries that come first: 0 */
    unsigned offer_add;   /* added to the versions of the others */
    const char *standing; /* RESP of how it sees the node; NULL: older ones do not tell */
};

static inline void answer_join(struct master *m, struct buf *out) {
    m->fences_told = 0;
    buf_append_str(out, "*16\r\n");
    put_field(out, "node-id", 1);
    put_field(out, "master-epoch", m->epoch);
    put_bulk(out, "grant-key", 9);
    put_bulk(out, m->key, 16);
    put_field(out, "clock", clock_mono_ms());
    put_field(out, "heartbeat", m->heartbeat_ms);
    put_field(out, "node-timeout", m->node_timeout_ms);
    put_field(out, "max-lease", m->max_lease_ms);
    put_bulk(out, "cluster-id", 10);
    put_bulk(out, m->cluster, 32);
}

static inline void answer_mount(struct master *m, const struct span *argv, size_t argc,
                                struct buf *out) {
    char name[64], content[40] = "";
    bool kept = false;
    size_t id = m->n_mounts;
    snprintf(name, sizeof(name), "%.*s", (int)argv[4].len, argv[4].data);
    for (size_t i = 5; i + 1 < argc; i++)
        if (span_eq(argv[i], SPAN("CONTENT")))
            snprintf(content, sizeof(content), "%.*s", (int)argv[i + 1].len, argv[i + 1].data);
    for (size_t i = 0; i < m->n_mounts; i++)
        if (strcmp(m->mounts[i].name, name) == 0 && strcmp(m->mounts[i].content, content) == 0) {
            id = i;
            kept = true;
        }
    if (id == m->n_mounts && m->n_mounts < ARRAY_LEN(m->mounts)) m->n_mounts++;
    snprintf(m->mounts[id].name, sizeof(m->mounts[id].name), "%s", name);
    snprintf(m->mounts[id].content, sizeof(m->mounts[id].content), "%s", content);
    buf_append_str(out, "*6\r\n");
    put_field(out, "id", id + 1);
    put_field(out, "epoch", m->first_segment_epoch + id);
    put_field(out, "kept", kept);
}

static inline void answer_beat(struct master *m, int fd, const struct span *argv, size_t argc,
                               struct buf *out) {
    uint64_t wait = 0;
    if (argc > 5 && span_eq(argv[4], SPAN("WAIT"))) span_to_u64(argv[5], &wait);
    uint64_t until = clock_mono_ms() + wait;
    m->beats++;
    pthread_cond_broadcast(&m->s.changed);
    unsigned kicks = m->s.kicks;
    while (m->n_work + m->n_fences - m->fences_told == 0 && m->s.kicks == kicks &&
           clock_mono_ms() < until)
        scripted_wait(&m->s, until);
    char byte;
    if (m->s.kicks != kicks || recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
        return; /* nobody is there */
    size_t fences = m->n_fences - m->fences_told;
    buf_printf(out, "*%d\r\n:%llu\r\n*%zu\r\n", m->standing != NULL ? 4 : 2,
               (unsigned long long)clock_mono_ms(), m->n_work + fences);
    for (; m->fences_told < m->n_fences; m->fences_told++)
        buf_printf(out, "*2\r\n$5\r\nfence\r\n:%llu\r\n",
                   (unsigned long long)m->fences[m->fences_told]);
    for (size_t i = 0; i < m->n_work; i++) {
        buf_append_str(out, m->work[i]);
        free(m->work[i]);
    }
    m->n_work = 0;
    if (m->standing != NULL) buf_printf(out, ":%u\r\n%s", m->max_lease_ms, m->standing);
}

static inline void answer_offer(struct master *m, const struct span *argv, size_t argc,
                                struct buf *out) {
    uint64_t n = 0, version = 0;
    span_to_u64(argv[5], &n);
    buf_printf(out, "*%llu\r\n", (unsigned long long)n);
    for (size_t i = 0; i < n && 6 + 6 * i + 5 < argc; i++) {
        span_to_u64(argv[6 + 6 * i + 1], &version);
        bool forget = m->offer_forget > 0;
        if (forget) m->offer_forget--;
        buf_printf(out, ":%llu\r\n", forget ? 0 : (unsigned long long)version + m->offer_add);
    }
}

/* [version, size, lease, crc, [], value, crcs], nil */
static inline void answer_get(struct master *m, const struct span *argv, struct buf *out) {
    uint64_t n = 0;
    span_to_u64(argv[1], &n);
    buf_printf(out, "*%llu\r\n", (unsigned long long)n);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < m->n_objects && !span_eq(argv[2 + i], span_str(m->objects[k].key))) k++;
        if (k == m->n_objects) {
            buf_append_str(out, "$-1\r\n");
            continue;
        }
        size_t len = strlen(m->objects[k].value);
        buf_printf(out, "*7\r\n:%u\r\n:%zu\r\n:0\r\n:-1\r\n*0\r\n", m->objects[k].version, len);
        put_bulk(out, m->objects[k].value, len);
        buf_append_str(out, "$-1\r\n");
    }
}

static inline void answer_fenced(struct master *m, struct span session, struct buf *out) {
    uint64_t v = 0;
    span_to_u64(session, &v);
    for (size_t i = 0; i < m->n_fences; i++) {
        if (m->fences[i] != v) continue;
        m->fences[i] = m->fences[--m->n_fences];
        m->fences_told--; /* it was told, all of them were */
    }
    buf_append_str(out, "+OK\r\n");
}

static inline void answer_node(struct master *m, int fd, const struct span *argv, size_t argc,
                               struct buf *out) {
    struct span verb = argc > 1 ? argv[1] : SPAN("");
    bool node = span_eq(argv[0], SPAN("NODE"));
    if (node && span_eq(verb, SPAN("JOIN"))) {
        answer_join(m, out);
    } else if (node && span_eq(verb, SPAN("HEARTBEAT"))) {
        answer_beat(m, fd, argv, argc, out);
    } else if (node && span_eq(verb, SPAN("DONE"))) {
        buf_printf(out, "*%.*s\r\n", (int)argv[4].len, argv[4].data);
        for (size_t i = 5; i + 3 < argc; i += 4) buf_append_str(out, ":1\r\n");
    } else if (node && span_eq(verb, SPAN("FENCED"))) {
        answer_fenced(m, argv[4], out);
    } else if (node && span_eq(verb, SPAN("UP")) && m->n_fences > 0) {
        buf_append_str(out, "-TRYAGAIN 50 there are fences\r\n");
    } else if (node && span_eq(verb, SPAN("OFFER"))) {
        answer_offer(m, argv, argc, out);
    } else if (node && span_eq(verb, SPAN("EVICTED"))) {
        buf_printf(out, ":%.*s\r\n", (int)argv[5].len, argv[5].data);
    } else if (span_eq(argv[0], SPAN("SEGMENT")) && span_eq(verb, SPAN("MOUNT"))) {
        answer_mount(m, argv, argc, out);
    } else if (span_eq(argv[0], SPAN("MGETREPLICAS"))) {
        answer_get(m, argv, out);
    } else if (span_eq(argv[0], SPAN("INFO"))) {
        put_bulk(out, "tarn_version:0.1.0\r\n", 20);
    } else {
        buf_append_str(out, "+OK\r\n");
    }
}

static inline bool master_answer(struct scripted_conn *c, const struct span *argv, size_t argc,
                                 struct buf *out) {
    pthread_mutex_lock(&c->s->mutex);
    answer_node(CONTAINER_OF(c->s, struct master, s), c->fd, argv, argc, out);
    pthread_mutex_unlock(&c->s->mutex);
    return true;
}

/* --- for tests --- */

static inline void master_start(struct master *m) {
    *m = (struct master){.s.answer = master_answer,
                         .epoch = 7,
                         .heartbeat_ms = 100,
                         .max_lease_ms = 1,
                         .node_timeout_ms = 10000,
                         .first_segment_epoch = 100};
    strcpy(m->key, "0123456789abcdef");
    strcpy(m->cluster, "00112233445566778899aabbccddeeff");
    scripted_start(&m->s);
}

static inline void master_stop(struct master *m) {
    scripted_stop(&m->s);
    for (size_t i = 0; i < m->n_work; i++) free(m->work[i]);
    m->n_work = 0;
}

/* An item of work, words as for a redis-cli: digits become integers, [ and ] nest, ~ is nil, the
 * rest are strings. */
static inline size_t work_array(const char **s, struct buf *out);
static inline void work_value(const char **s, struct buf *out) {
    size_t len = strcspn(*s, " ]");
    bool number = len > 0 && strspn(*s + (**s == '-'), "0123456789") == len - (**s == '-');
    if (**s == '[') {
        struct buf inner = {0};
        ++*s;
        size_t n = work_array(s, &inner);
        buf_printf(out, "*%zu\r\n", n);
        buf_append(out, inner.data, inner.len);
        buf_free(&inner);
        return;
    }
    if (number) {
        buf_printf(out, ":%.*s\r\n", (int)len, *s);
    } else if (**s == '~') {
        buf_append_str(out, "$-1\r\n");
    } else {
        put_bulk(out, *s, len);
    }
    *s += len;
}
static inline size_t work_array(const char **s, struct buf *out) {
    for (size_t n = 0;; n++) {
        *s += strspn(*s, " ");
        if (**s == '\0') return n;
        if (**s == ']') {
            ++*s;
            return n;
        }
        work_value(s, out);
    }
}

/* For example: master_work(m, "copy 5 key 9 4 1 [[0 4096]]") */
static inline void master_work(struct master *m, const char *text) {
    struct buf out = {0};
    char whole[1024];
    snprintf(whole, sizeof(whole), "[%s]", text);
    const char *s = whole;
    work_value(&s, &out);
    buf_append_char(&out, '\0');
    pthread_mutex_lock(&m->s.mutex);
    CHECK(m->n_work < 64);
    m->work[m->n_work++] = out.data;
    pthread_cond_broadcast(&m->s.changed);
    pthread_mutex_unlock(&m->s.mutex);
}

/* A session that every node has to cut off before it may be up. */
static inline void master_fence(struct master *m, uint64_t session) {
    pthread_mutex_lock(&m->s.mutex);
    CHECK(m->n_fences < 8);
    m->fences[m->n_fences++] = session;
    pthread_cond_broadcast(&m->s.changed);
    pthread_mutex_unlock(&m->s.mutex);
}

static inline void master_object(struct master *m, const char *key, unsigned version,
                                 const char *value) {
    pthread_mutex_lock(&m->s.mutex);
    size_t i = m->n_objects++;
    snprintf(m->objects[i].key, sizeof(m->objects[i].key), "%s", key);
    snprintf(m->objects[i].value, sizeof(m->objects[i].value), "%s", value);
    m->objects[i].version = version;
    pthread_mutex_unlock(&m->s.mutex);
}

/* So many heartbeats more: what was sent before them has been seen to. */
static inline bool master_beats(struct master *m, unsigned n) {
    uint64_t until = clock_mono_ms() + MASTER_WAIT_MS;
    pthread_mutex_lock(&m->s.mutex);
    unsigned want = m->beats + n;
    while ((int)(m->beats - want) < 0 && clock_mono_ms() < until) scripted_wait(&m->s, until);
    bool ok = (int)(m->beats - want) >= 0;
    pthread_mutex_unlock(&m->s.mutex);
    return ok;
}

#endif
