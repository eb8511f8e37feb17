/* Every call of libtarn against a server that says anything (client_server_fake.h). The first byte
 * says who calls (programs, by Sentinels or not, nodes, transfer ends), whether memory is shared,
 * and whether the server is one of several masters, the next which calls, and all that follow what
 * is answered. Nothing may crash, hang, or write where it should not; what a call calls delivered
 * is as long as it says. */
#include "client_server_fake.h"
#include "base/assert.h"
#include "client/client.h"

#define CALLS_MAX 12u
#define BUFFER    (UINT64_C(5) << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A value may be said to have a TiB: where there is no memory for it the call says so. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static tarn_client *client;
static tarn_view *kept_view;
static tarn_writer *kept_writer;
static char *buffer; /* what is got goes to its first half, what is put comes from the second */
static char url[200];
static volatile unsigned seen;

static void silence(void *arg, int level, const char *text) {
    (void)arg, (void)level, (void)text;
}

static void look_at(const void *data, size_t len) {
    const volatile char *at = data;
    for (size_t i = 0; i < len; i += i + 64 < len ? 61 : 1) seen += (unsigned char)at[i];
}

static const char *key_of(unsigned i) {
    static const char *const keys[] = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"};
    return keys[i % ARRAY_LEN(keys)];
}

/* Of the last byte of a key its size follows, as the server has it. */
static uint64_t put_size(unsigned i) {
    return fake_sizes[((unsigned char)key_of(i)[1]) % ARRAY_LEN(fake_sizes)];
}

/* --- gets and puts --- */

static void call_get(unsigned arg) {
    size_t n = 0, cap = arg % 3 == 0 ? 100 : BUFFER;
    struct iovec iov[3] = {{buffer, 50}, {buffer + 64, 0}, {buffer + 100, BUFFER - 100}};
    if (tarn_get(client, key_of(arg), 2, buffer, cap, &n, NULL) == TARN_OK) {
        TARN_ASSERT(n <= cap);
        look_at(buffer, n);
    }
    (void)tarn_getv(client, key_of(arg + 1), 2, iov, 3, &n, NULL);
}

static void call_get_alloc(unsigned arg) {
    void *data;
    size_t n;
    if (tarn_get_alloc(client, key_of(arg), 2, &data, &n, NULL) != TARN_OK) return;
    look_at(data, n);
    tarn_free(data);
}

static void call_get_range(unsigned arg) {
    size_t n = 0;
    uint64_t from = arg % 2 ? CRC_BLOCK - 3 : arg;
    if (tarn_get_range(client, key_of(arg), 2, from, buffer, arg % 2 ? 2 * CRC_BLOCK : 40, &n,
                       NULL) == TARN_OK)
        look_at(buffer, n);
}

static void make_items(tarn_item *items, size_t n, unsigned arg, bool put) {
    for (size_t i = 0; i < n; i++) {
        items[i] = (tarn_item){.key = key_of(arg + (unsigned)i), .key_len = 2};
        items[i].buffer = put ? buffer + BUFFER : buffer + i * (BUFFER / n);
        items[i].buffer_len = put ? put_size(arg + (unsigned)i) : BUFFER / n;
    }
}

static void call_get_many(unsigned arg) {
    tarn_item items[7];
    size_t hits;
    make_items(items, ARRAY_LEN(items), arg, false);
    items[3].offset = 2, items[3].want = 60;
    (void)tarn_get_many(client, items, ARRAY_LEN(items), NULL, &hits);
    for (size_t i = 0; i < ARRAY_LEN(items); i++) {
        if (items[i].status != TARN_OK) continue;
        TARN_ASSERT(items[i].got <= items[i].buffer_len);
        look_at(items[i].buffer, items[i].got);
    }
}

static void call_put(unsigned arg) {
    tarn_put_options o;
    tarn_put_options_init(&o);
    o.replicas = arg % 3;
    (void)tarn_put(client, key_of(arg), 2, buffer + BUFFER, put_size(arg), &o);
}

static void call_put_many(unsigned arg) {
    tarn_item items[6];
    size_t failed;
    make_items(items, ARRAY_LEN(items), arg, true);
    (void)tarn_put_many(client, items, ARRAY_LEN(items), NULL, &failed);
}

/* --- what needs no bytes --- */

static void call_look_up(unsigned arg) {
    tarn_key keys[5];
    uint8_t found[5];
    size_t n = 0;
    for (unsigned i = 0; i < ARRAY_LEN(keys); i++) keys[i] = (tarn_key){key_of(arg + i), 2};
    (void)tarn_exists_many(client, keys, ARRAY_LEN(keys), found);
    if (tarn_prefix_length(client, keys, ARRAY_LEN(keys), NULL, &n) == TARN_OK)
        TARN_ASSERT(n <= ARRAY_LEN(keys));
    tarn_prefetched sum;
    (void)tarn_prefetch(client, keys, ARRAY_LEN(keys), arg % 2 ? "s" : NULL, NULL, &sum);
    if (tarn_remove_many(client, keys, ARRAY_LEN(keys), &n) == TARN_OK)
        TARN_ASSERT(n <= ARRAY_LEN(keys));
}

static void trace_set(unsigned arg) {
    static const char *const parents[] = {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                          "00-00f067aa0ba902b74bf92f3577b34da6-4bf92f3577b34da6-00",
                                          NULL, "nonsense"};
    (void)tarn_set_traceparent(parents[arg % ARRAY_LEN(parents)]);
}

static void call_others(unsigned arg) {
    static const char *const argv[] = {"INFO", "pool"};
    char *text;
    size_t n;
    tarn_stats stats = {.size = sizeof(stats)};
    trace_set(arg);
    (void)tarn_wait(client, key_of(arg), 2, 2);
    (void)tarn_pin(client, key_of(arg), 2, TARN_PIN_SOFT, 1000);
    (void)tarn_ping(client);
    (void)tarn_get_stats(client, &stats);
    if (tarn_figures_text(client, (int)arg % 2, &text, &n) == TARN_OK) {
        TARN_ASSERT(strlen(text) == n);
        tarn_free(text);
    }
    if (tarn_command(client, 2, argv, NULL, &text, &n) != TARN_OK) return;
    TARN_ASSERT(text[n] == '\0');
    tarn_free(text);
}

/* --- KV groups --- */

enum { KV_GROUPS = 3, KV_ITEMS = KV_GROUPS * 9 };
static tarn_item kv_items[KV_ITEMS];

/* What is to be read lies within what was asked for. */
static size_t kv_check(const tarn_kv_query *q, uint64_t tokens, const tarn_kv_parts *parts) {
    size_t n = 0;
    TARN_ASSERT(tokens <= q->n_hashes * q->unit && tokens % q->align == 0);
    for (size_t i = 0; i < q->n_groups; i++) {
        TARN_ASSERT((parts[i].first + parts[i].blocks) * q->groups[i].block <= tokens);
        TARN_ASSERT(parts[i].tail <= q->n_hashes * q->unit);
        n += parts[i].blocks + (parts[i].tail != 0);
    }
    return n;
}

static tarn_item *kv_place(void *query, uint64_t tokens, const tarn_kv_parts *parts, size_t n) {
    TARN_ASSERT(kv_check(query, tokens, parts) == n && n > 0 && n <= KV_ITEMS);
    for (size_t i = 0; i < n; i++)
        kv_items[i] = (tarn_item){.buffer = buffer + i * (BUFFER / KV_ITEMS),
                                  .buffer_len = BUFFER / KV_ITEMS};
    return kv_items;
}

static void call_kv_groups(unsigned arg) {
    const tarn_kv_group groups[KV_GROUPS] = {
        {"f", 1, TARN_KV_FULL, 0, arg % 2 ? 32 : 16, 16, 0},
        {"w", 1, TARN_KV_WINDOW, 1, 16, 0, 20},
        {"s", 1, TARN_KV_STATE, 0, 64, 16, 0},
    };
    tarn_key hashes[9];
    tarn_kv_parts parts[KV_GROUPS];
    for (unsigned i = 0; i < ARRAY_LEN(hashes); i++) hashes[i] = (tarn_key){key_of(i), 2};
    tarn_kv_query q = {.size = sizeof(q), .hashes = hashes, .n_hashes = 1 + arg % 9, .unit = 16};
    q.align = 16, q.groups = groups, q.n_groups = KV_GROUPS;
    uint64_t tokens;
    if (tarn_kv_prefix(client, &q, NULL, &tokens, parts) == TARN_OK)
        (void)kv_check(&q, tokens, parts);
    if (tarn_kv_get(client, &q, NULL, kv_place, &q, &tokens, parts, NULL) != TARN_OK) return;
    size_t n = kv_check(&q, tokens, parts);
    for (size_t i = 0; i < n; i++) {
        if (kv_items[i].status != TARN_OK) continue;
        TARN_ASSERT(kv_items[i].got <= kv_items[i].buffer_len);
        look_at(kv_items[i].buffer, kv_items[i].got);
    }
}

/* --- in place --- */

static void look_at_view(const tarn_view *view) {
    const struct iovec *pieces;
    size_t n = tarn_view_pieces(view, &pieces);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        look_at(pieces[i].iov_base, pieces[i].iov_len);
        sum += pieces[i].iov_len;
    }
    TARN_ASSERT(sum == tarn_view_size(view));
}

static void call_view(unsigned arg) {
    tarn_view *view;
    tarn_mapping *mapping;
    if (tarn_view_open(client, key_of(arg), 2, NULL, &view) != TARN_OK) return;
    look_at_view(view);
    (void)tarn_view_check(view);
    (void)tarn_view_renew(view, 0);
    if (tarn_mapping_open(view, 0, &mapping) == TARN_OK) {
        look_at(tarn_mapping_address(mapping), tarn_mapping_size(mapping));
        (void)tarn_mapping_check(mapping);
        tarn_mapping_close(&mapping);
    }
    if (kept_view == NULL)
        kept_view = view;
    else
        tarn_view_release(&view);
}

static void fill_pieces(const tarn_writer *writer) {
    const struct iovec *pieces;
    size_t n = tarn_writer_pieces(writer, &pieces);
    for (size_t i = 0; i < n; i++) memset(pieces[i].iov_base, 'w', pieces[i].iov_len);
}

static void call_writer(unsigned arg) {
    tarn_writer *writer;
    if (tarn_writer_open(client, key_of(arg), 2, put_size(arg), NULL, &writer) != TARN_OK) return;
    fill_pieces(writer);
    if (arg % 3 == 0)
        (void)tarn_writer_abort(&writer);
    else if (arg % 3 == 1 || kept_writer != NULL)
        (void)tarn_writer_commit(&writer);
    else
        kept_writer = writer;
}

/* What was kept since earlier calls: connections may have gone meanwhile, and what was mapped been
 * replaced. */
static void let_go(void) {
    if (kept_writer != NULL) {
        fill_pieces(kept_writer);
        (void)tarn_writer_commit(&kept_writer);
    }
    if (kept_view == NULL) return;
    look_at_view(kept_view);
    (void)tarn_view_check(kept_view);
    tarn_view_release(&kept_view);
}

static void call_let_go(unsigned arg) {
    (void)arg;
    let_go();
}

/* --- in the background --- */

static void call_async(unsigned arg) {
    tarn_async *queue;
    tarn_item gets[3], puts[3], others[2];
    tarn_completion c;
    if (tarn_async_open(client, 8, &queue) != TARN_OK) return;
    make_items(gets, 3, arg, false);
    make_items(puts, 3, arg, true);
    make_items(others, 2, arg, false);
    (void)tarn_async_get(queue, gets, 3, NULL, NULL, NULL);
    (void)tarn_async_put(queue, puts, 3, NULL, NULL, NULL);
    (void)tarn_async_exists(queue, others, 2, NULL, NULL);
    for (int left = 3; left > 0; left--)
        if (tarn_async_poll(queue, &c, 1, 1000) == 0) break;
    tarn_async_close(&queue);
}

static void hear_span(void *arg, const tarn_span *span) {
    (void)arg;
    TARN_ASSERT(strlen(span->trace_id) == 32 && strlen(span->span_id) == 16);
    TARN_ASSERT(span->done <= span->keys && span->duration_ns < UINT64_C(1) << 50);
}

static void connect_heard(void) {
    tarn_options o;
    tarn_options_init(&o);
    o.on_span = hear_span;
    (void)tarn_connect(url, &o, &client);
}

static void call_reconnect(unsigned arg) {
    if (arg % 2) let_go();
    if (kept_view != NULL || kept_writer != NULL) return;
    tarn_close(&client);
    if (arg % 4 < 2)
        connect_heard();
    else
        (void)tarn_connect(url, NULL, &client);
}

static void program(const uint8_t *calls, size_t n) {
    static void (*const all[])(unsigned arg) = {
        call_get,       call_view,      call_put,    call_get_many,  call_get_range,
        call_put_many,  call_look_up,   call_writer, call_others,    call_async,
        call_reconnect, call_get_alloc, call_let_go, call_kv_groups,
    };
    connect_heard();
    for (size_t i = 0; i < n && client != NULL; i++)
        all[calls[i] % ARRAY_LEN(all)](calls[i] / ARRAY_LEN(all));
    if (client == NULL) return;
    let_go();
    tarn_close(&client);
    (void)tarn_set_traceparent(NULL);
}

/* --- nodes and transfer ends --- */

static void node(void) {
    static const char *const bind[] = {"127.0.0.1"};
    tarn_host_segment segment = {.bytes = 1 << 20, .numa_node = -1};
    tarn_host_options o;
    tarn_host *host = NULL;
    tarn_host_options_init(&o);
    o.name = "n";
    o.segments = &segment;
    o.n_segments = 1;
    o.bind = bind;
    o.binds = 1;
    o.shm_socket = "";
    o.threads = 1;
    o.populate = 0;
    if (tarn_host_open(url, NULL, &o, &host) != TARN_OK) return;
    (void)tarn_host_wait(host, 8);
    (void)tarn_host_drain(host);
    (void)tarn_host_wait(host, 2);
    (void)tarn_host_close(&host, 0, 10);
}

static void run_tasks(tarn_transfer_peer *peer) {
    tarn_transfer_task tasks[4] = {
        {.op = TARN_TRANSFER_READ, .region = 1, .local = buffer, .remote = 4096, .length = 70000},
        {.op = TARN_TRANSFER_READ,
         .region = 1,
         .local = buffer + 70000,
         .remote = 74096,
         .length = 100},
        {.op = TARN_TRANSFER_WRITE,
         .region = 2,
         .local = buffer + BUFFER,
         .remote = VALUES_BYTES,
         .length = 5000},
        {.op = TARN_TRANSFER_READ, .local = buffer, .remote = 8192, .length = 5000},
    };
    (void)tarn_transfer_run(peer, tasks, ARRAY_LEN(tasks), NULL);
}

static void transfer(void) {
    static tarn_transfer *end;
    tarn_transfer_peer *peer;
    tarn_transfer_region regions[4];
    char where[64];
    size_t n;
    if (end == NULL) {
        tarn_transfer_options o;
        tarn_transfer_options_init(&o);
        o.shm_socket = "";
        o.threads = o.workers = 1;
        o.timeout_ms = o.connect_timeout_ms = 25;
        TARN_ASSERT(tarn_transfer_open(&o, &end) == TARN_OK);
        /* so that its peer's shared memory is near */
        snprintf(end->host_id, sizeof(end->host_id), "here|");
    }
    snprintf(where, sizeof(where), "tarn-transfer://127.0.0.1:%u", fake.port);
    if (tarn_transfer_connect(end, where, 0, &peer) != TARN_OK) return;
    (void)tarn_transfer_peer_regions(peer, regions, ARRAY_LEN(regions), &n);
    (void)tarn_transfer_wait_ready(peer, "label", 5, buffer, 10, &n);
    run_tasks(peer);
    (void)tarn_transfer_notify(peer, "x", 1, 0);
    (void)tarn_transfer_done(peer, "label", NULL, 0, 0);
    tarn_transfer_disconnect(&peer);
}

static void start(void) {
    tarn_set_log(silence, NULL);
    buffer = malloc(2 * BUFFER);
    memset(buffer, 'p', 2 * BUFFER);
    fake_start();
    atexit(fake_stop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (buffer == NULL) start();
    if (size < 2) return 0;
    unsigned who = data[0] % 8, with_sentinel = who == 5;
    size_t calls = min_u64(1 + data[1] % CALLS_MAX, size - 2);
    if (who >= 6) calls = 0;
    snprintf(url, sizeof(url),
             "tarn%s://"
             "127.0.0.1:%u%s?timeout_ms=25&connect_timeout_ms=40&failover_ms=5&retries=1&backoff_"
             "min_ms=1&"
             "backoff_max_ms=1&piece_bytes=1048576&streams=1&max_lanes=2&workers=1",
             with_sentinel ? "+sentinel" : "", fake.port, with_sentinel ? "/pool" : "");
    script_set(data + 2 + calls, size - 2 - calls, (data[0] & 8) != 0, (data[0] & 16) != 0);
    if (who == 6)
        node();
    else if (who == 7)
        transfer();
    else
        program(data + 2, calls);
    script_end();
    return 0;
}
