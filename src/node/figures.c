#include "node/figures.h"

#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/heap.h"
#include "base/usage.h"
#include "module/loader.h"

static uint64_t started_ms;

static void show_process(struct figure_walk *f) {
    FIGURE(f, TEXT, program, "tarn-node", "tarn-node");
    FIGURE(f, TEXT, tarn_version, "of this node", TARN_VERSION);
    FIGURE(f, TEXT, compiler, "that built this node", __VERSION__);
    FIGURE(f, GAUGE, process_id, "of this node", getpid());
    FIGURE(f, SECONDS, uptime_in_seconds, "since the start", (clock_mono_ms() - started_ms) / 1000);
}

static void show_memory(struct figure_walk *f) {
    struct heap_figures a;
    heap_get_figures(&a);
    FIGURE(f, SIZE, used_memory, "on the heap of this process", a.allocated);
    FIGURE(f, SIZE, used_memory_rss, "resident, without segments and program files",
           usage_resident_memory());
    FIGURE(f, BYTES, allocator_active, "pages with something allocated", a.active);
    FIGURE(f, BYTES, allocator_resident, "pages that the allocator holds", a.resident);
    FIGURE(f, TEXT, mem_allocator, "of the heap", heap_allocator());
}

void node_figures_begin(void) {
    started_ms = clock_mono_ms();
}

const char *node_figures_show(struct hosting_view *view, unsigned part, struct figure_walk *walk) {
    static const struct {
        const char *section;
        void (*show)(struct figure_walk *f);
    } own[] = {{"server", show_process},
               {"memory", show_memory},
               {"cpu", usage_cpu_figures},
               {"modules", module_figures}};
    if (part >= ARRAY_LEN(own)) return hosting_view_figures(view, part - ARRAY_LEN(own), walk);
    own[part].show(walk);
    return own[part].section;
}
