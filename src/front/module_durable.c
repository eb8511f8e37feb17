#include "front/module_durable.h"

#include <stdlib.h>
#include <string.h>
#include "base/assert.h"
#include "config/config.h"
#include "front/above.h"
#include "front/client.h"
#include "front/effects.h"
#include "front/module_parts.h"
#include "front/shard.h"
#include "module/loader.h"

static_assert((unsigned)EFFECT_MODULE == DURABLE_RECORD, "one kind");

static struct durable *all; /* NULL: nothing has been kept yet */
static bool leads, telling, partial;
static uint64_t changes;
static struct buf record;

static struct durable *all_get(void) {
    if (all == NULL) all = durable_create();
    return all;
}

/* The server's own, which no module may have. */
static bool is_own(struct span module) {
    return span_eq(module, SPAN(MODULE_DURABLE_OWN));
}

/* --- for modules --- */

/* Handles are spaces under another name. */
static struct durable_space *space_of(struct tarn_durable *d) {
    return (struct durable_space *)(void *)d;
}

tarn_status module_durable_open(const char *module, struct tarn_durable **durable_p) {
    struct durable_space *s = durable_space_of(all_get(), span_str(module));
    if (s == NULL || is_own(span_str(module))) return TARN_ELIMIT;
    *durable_p = (struct tarn_durable *)(void *)s;
    return TARN_OK;
}

static tarn_status write_status(void) {
    return leads ? module_command_write_status() : TARN_EREADONLY;
}

/* Before it is done: its spans may be of what will go then. Lengths that are wrong are refused
 * behind this. */
static void change_write(const struct durable_change *x) {
    buf_clear(&record);
    if (telling && x->name.len <= DURABLE_NAME_MAX && x->value.len <= DURABLE_VALUE_MAX)
        durable_record_write(&record, x);
}

static void change_tell(void) {
    changes++;
    if (telling) effects_note(NULL, record.data, record.len);
}

static tarn_status its_set(struct tarn_durable *d, struct span name, struct span value) {
    struct durable_space *s = space_of(d);
    struct span is;
    tarn_status status = write_status();
    if (status != TARN_OK) return status;
    if (durable_find(s, name, &is) && span_eq(is, value)) return TARN_OK;
    change_write(&(struct durable_change){DURABLE_SET, durable_space_module(s), name, value});
    status = durable_set(s, name, value, config->module_state_max);
    if (status == TARN_OK) change_tell();
    return status;
}

static tarn_status its_delete(struct tarn_durable *d, struct span name) {
    struct durable_space *s = space_of(d);
    tarn_status status = write_status();
    if (status != TARN_OK) return status;
    change_write(&(struct durable_change){
        .what = DURABLE_GONE, .module = durable_space_module(s), .name = name});
    if (!durable_remove(s, name)) return TARN_ENOTFOUND;
    change_tell();
    return TARN_OK;
}

static tarn_status its_get(struct tarn_durable *d, struct span name, struct span *value_p) {
    return durable_find(space_of(d), name, value_p) ? TARN_OK : TARN_ENOTFOUND;
}

static void its_each(struct tarn_durable *d,
                     bool (*each)(void *arg, struct span name, struct span value), void *arg) {
    durable_each(space_of(d), each, arg);
}

static uint64_t its_bytes(struct tarn_durable *d, uint64_t *max_p) {
    *max_p = config->module_state_max;
    return durable_bytes(space_of(d));
}

static bool its_leads(void) {
    return leads;
}

static const char *its_write_refusal(void) {
    uint64_t until_ms;
    if (!leads) return "READONLY this server is a replica, or still starting: the master does that";
    if (pause_get(&until_ms) != PAUSE_NONE)
        return "TRYAGAIN 100 writes are held back (CLIENT PAUSE, FAILOVER)";
    const char *why = above.write_refusal();
    if (why != NULL) return why;
    why = above.master_refusal();
    return why != NULL ? why + 1 : NULL;
}

void module_durable_services(struct tarn_services *s) {
    s->durable_set = its_set;
    s->durable_delete = its_delete;
    s->durable_get = its_get;
    s->durable_each = its_each;
    s->durable_bytes = its_bytes;
    s->leads = its_leads;
    s->write_refusal = its_write_refusal;
}

/* --- the server's own --- */

static struct durable_space *own_space(void) {
    return durable_space_of(all_get(), SPAN(MODULE_DURABLE_OWN));
}

struct span module_durable_own(struct span name) {
    struct span value;
    return durable_find(own_space(), name, &value) ? value : span_of(NULL, 0);
}

void module_durable_own_set(struct span name, struct span value) {
    struct durable_space *s = own_space();
    change_write(&(struct durable_change){.what = value.len > 0 ? DURABLE_SET : DURABLE_GONE,
                                          .module = durable_space_module(s),
                                          .name = name,
                                          .value = value});
    if (value.len > 0) {
        tarn_status status = durable_set(s, name, value, UINT64_MAX);
        TARN_ASSERT(status == TARN_OK); /* callers bound the length */
    } else if (!durable_remove(s, name)) {
        return;
    }
    change_tell();
}

/* --- with the books --- */

void module_durable_lead(bool lead) {
    if (lead == leads) return;
    leads = lead;
    module_tell_role(lead);
}

void module_durable_end(void) {
    leads = false;
}

void module_durable_tell(bool on) {
    telling = on;
}

uint64_t module_durable_changes(void) {
    return changes;
}

tarn_status module_durable_apply(struct span told, const char **why_p) {
    struct durable_change x;
    tarn_status status = durable_apply(all_get(), told, &x, why_p);
    if (status != TARN_OK || partial) return status;
    if (is_own(x.module))
        shard_load();
    else
        module_tell_durable(x.module, &x.name, x.what == DURABLE_SET ? &x.value : NULL);
    return status;
}

bool module_durable_walk(struct durable_walk *x, struct buf *out, unsigned *budget) {
    return all == NULL || durable_walk_step(all, x, out, budget);
}

void module_durable_clear(void) {
    if (all != NULL) durable_clear(all);
    partial = true;
}

void module_durable_whole(void) {
    if (!partial) return;
    partial = false;
    shard_load();
    module_tell_durable(span_of(NULL, 0), NULL, NULL);
}

void module_durable_digest(uint8_t sum[16]) {
    memset(sum, 0, 16);
    if (all != NULL) durable_digest(all, sum);
}

void module_durable_deinit(void) {
    durable_destroy(&all);
    buf_free(&record);
    shard_deinit();
    leads = telling = partial = false;
}

/* --- INFO --- */

void info_module_state(struct figure_walk *f) {
    const struct durable_space *s;
    if (all == NULL) return;
    for (size_t i = 0; (s = durable_space_at(all, i)) != NULL; i++) {
        char module[MODULE_NAME_MAX + 1] = "";
        struct span name = durable_space_module(s);
        memcpy(module, name.data, name.len);
        bool loaded = module_loaded(module);
        if ((!loaded && durable_entries(s) == 0) || is_own(name)) continue;
        figures_group(f, "module_state_", "module_state", module);
        FIGURE(f, GAUGE, names, "that it keeps", durable_entries(s));
        FIGURE(f, BYTES, kept_bytes, "... with their values", durable_bytes(s));
        FIGURE(f, BYTES, max_bytes, "bound of these (module-state-max)", config->module_state_max);
        FIGURE(f, GAUGE, loaded, "1: the module is here", loaded);
        figures_group_end(f);
    }
}
