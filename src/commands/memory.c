/* MEMORY STATS, DOCTOR, MALLOC-STATS, PURGE. */
#include "commands/nodes.h"
#include "front/client.h"
#include "front/core.h"
#include "front/families.h"
#include "base/heap.h"
#include "base/usage.h"
#include "ha/replication.h"
#include "front/stats.h"
#include "config/config.h"
#include "store/figures.h"

static void field(struct client *c, const char *name, uint64_t v) {
    reply_bulk_str(c, name);
    reply_int(c, (int64_t)v);
}

void cmd_memory_stats(struct client *c) {
    struct store_stats s;
    store_get_stats(books, &s);
    uint64_t used = stats_used_memory(), rss = usage_resident_memory(), normal = 0;
    if (used > stats.peak_memory) stats.peak_memory = used;
    CLIENTS_EACH(o) normal += client_memory(o);
    uint64_t dataset = s.mem_books_records, startup = core_endpoints.startup_memory;
    uint64_t net = used > startup ? used - startup : 0;
    reply_map(c, 17);
    field(c, "peak.allocated", stats.peak_memory);
    field(c, "total.allocated", used);
    field(c, "startup.allocated", startup);
    field(c, "replication.backlog", replication_memory());
    field(c, "clients.slaves", replication_client_memory());
    field(c, "clients.normal", normal - replication_client_memory());
    field(c, "overhead.total", used > dataset ? used - dataset : 0);
    field(c, "keys.count", store_count(books));
    field(c, "keys.bytes-per-key", s.objects > 0 ? s.mem_books / s.objects : 0);
    field(c, "dataset.bytes", dataset);
    field_double(c, "dataset.percentage",
                 net > 0 ? 100.0 * (double)(dataset < net ? dataset : net) / (double)net : 0);
    field_double(c, "peak.percentage",
                 stats.peak_memory > 0 ? 100.0 * (double)used / (double)stats.peak_memory : 0);
    field_double(c, "fragmentation", used > 0 ? (double)rss / (double)used : 0);
    field(c, "books.total", s.mem_books);
    field(c, "books.tables", s.mem_books_tables);
    field(c, "books.blocks", s.mem_books_blocks);
    field(c, "books.leases", s.mem_books_leases);
}

void cmd_memory_doctor(struct client *c) {
    struct store_stats s;
    store_get_stats(books, &s);
    struct buf out = {NULL, 0, 0};
    uint64_t used = stats_used_memory(), rss = usage_resident_memory(), max = config->maxmemory;
    if (max > 0 && s.mem_books > max / 10 * 9)
        buf_printf(&out,
                   "The books take %llu of %llu bytes (maxmemory): objects will soon be evicted "
                   "for that. ",
                   (unsigned long long)s.mem_books, (unsigned long long)max);
    if (used > 64 * 1024 * 1024 && rss > used / 2 * 3)
        buf_printf(
            &out, "The process holds %llu bytes for %llu in use; MEMORY PURGE may give some back. ",
            (unsigned long long)rss, (unsigned long long)used);
    if (s.leases > 1000000)
        buf_printf(&out, "There are %llu leases; do clients send RELEASE? ",
                   (unsigned long long)s.leases);
    if (out.len == 0)
        buf_append_str(&out, "Nothing to worry about was found in the memory of this server.");
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}

void cmd_memory_malloc_stats(struct client *c) {
    struct buf out = {NULL, 0, 0};
    heap_report(&out);
    reply_verbatim(c, "txt", span_of(out.data, out.len));
    buf_free(&out);
}

void cmd_memory_purge(struct client *c) {
    if (heap_purge())
        reply_ok(c);
    else
        reply_error(c, "Error purging dirty pages");
}
