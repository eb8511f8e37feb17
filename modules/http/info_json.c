#include "http/info_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hist.h"
#include "base/json_text.h"

static void field_name(struct buf *out, const char *name, const char *of) {
    if (of != NULL) {
        char whole[160];
        snprintf(whole, sizeof(whole), "%s%s", name, of);
        json_text_put(out, span_str(whole));
    } else {
        json_text_put(out, span_str(name));
    }
    buf_append_char(out, ':');
}

static void info_json_int(struct buf *out, int64_t value) {
    char text[24];
    buf_append(out, text, i64_to_dec(value, text));
}

static void info_json_show(struct figure_walk *walk, const struct figure *figure,
                           union figure_value value) {
    struct info_json *j = CONTAINER_OF(walk, struct info_json, walk);
    if (walk->group != NULL && j->group == NULL) return; /* one kind of groups too many */
    struct buf *out = walk->group != NULL ? j->group : &j->part.fields;
    if (out->len > 0 && !j->first_field) buf_append_char(out, ',');
    j->first_field = false;
    field_name(out, figure->name, walk->of.value);
    if (figure->type == FIGURE_TEXT)
        json_text_put(out, span_str(value.text));
    else if (figure_types[figure->type].form == NULL)
        info_json_int(out, (int64_t)value.number);
    else if (isfinite(value.real))
        buf_printf(out, "%.12g", value.real);
    else
        buf_append_str(out, "null");
}

static void info_json_hist(struct figure_walk *walk, const struct figure *figure,
                           const struct hist *hist) {
    static const uint64_t bounds_ms[] = {1000, 10000, 60000, 600000, 3600000, 21600000, 86400000};
    struct info_json *j = CONTAINER_OF(walk, struct info_json, walk);
    if (walk->group != NULL || figure->type != FIGURE_HIST_MS) return;
    struct buf *out = &j->part.fields;
    if (out->len > 0) buf_append_char(out, ',');
    field_name(out, figure->name, NULL);
    buf_printf(out, "{\"count\":%llu", (unsigned long long)hist->count);
    for (unsigned i = 0; i < 3; i++) {
        static const unsigned percent[] = {50, 90, 99};
        buf_printf(out, ",\"p%u\":%llu", percent[i],
                   (unsigned long long)hist_percentile(hist, percent[i] / 100.0));
    }
    buf_append_str(out, ",\"upto\":[");
    for (size_t i = 0; i < ARRAY_LEN(bounds_ms); i++)
        buf_printf(out, "%s[%llu,%llu]", i > 0 ? "," : "", (unsigned long long)bounds_ms[i],
                   (unsigned long long)hist_count_upto(hist, bounds_ms[i]));
    buf_append_str(out, "]}");
}

static struct buf *groups_of(struct info_json_section *s, const char *name) {
    for (unsigned i = 0; i < INFO_JSON_GROUPS; i++) {
        struct info_json_groups *g = &s->groups[i];
        if (g->name[0] == '\0') snprintf(g->name, sizeof(g->name), "%s", name);
        if (strcmp(g->name, name) == 0) return &g->items;
    }
    return NULL;
}

static void info_json_edge(struct figure_walk *walk, bool begins) {
    struct info_json *j = CONTAINER_OF(walk, struct info_json, walk);
    const struct figure_label *of = &walk->group_of;
    if (begins) {
        /* "segment", whatever INFO puts before the number */
        j->group = groups_of(&j->part, of->name);
        j->first_field = of->value[0] == '\0';
        j->rows++;
        if (j->group == NULL) return;
        buf_append_str(j->group, j->group->len > 0 ? ",{" : "{");
        if (j->first_field) return;
        field_name(j->group, of->name, NULL);
        json_text_put(j->group, span_str(of->value));
    } else {
        if (j->group != NULL) buf_append_char(j->group, '}');
        j->group = NULL;
        j->first_field = false;
    }
}

void info_json_init(struct info_json *j) {
    memset(j, 0, sizeof(*j));
    j->walk.show = info_json_show;
    j->walk.edge = info_json_edge;
    j->walk.hist = info_json_hist;
}

static void section_free(struct info_json_section *s) {
    buf_free(&s->fields);
    for (unsigned i = 0; i < INFO_JSON_GROUPS; i++) buf_free(&s->groups[i].items);
}

void info_json_deinit(struct info_json *j) {
    section_free(&j->part);
    for (unsigned i = 0; i < j->n; i++) section_free(&j->section[i]);
}

static void join_with_comma(struct buf *into, struct buf *from) {
    if (from->len > 0 && into->len > 0) buf_append_char(into, ',');
    buf_append(into, from->data, from->len);
    buf_clear(from);
}

static struct info_json_section *section_named(struct info_json *j, const char *name) {
    for (unsigned i = 0; i < j->n; i++)
        if (strcmp(j->section[i].name, name) == 0) return &j->section[i];
    if (j->n == INFO_JSON_SECTIONS) return NULL;
    struct info_json_section *s = &j->section[j->n++];
    snprintf(s->name, sizeof(s->name), "%s", name);
    return s;
}

struct figure_walk *info_json_walk(struct info_json *j, const char *section) {
    struct info_json_section *s = section != NULL ? section_named(j, section) : NULL;
    if (s != NULL) {
        join_with_comma(&s->fields, &j->part.fields);
        for (unsigned i = 0; i < INFO_JSON_GROUPS && j->part.groups[i].name[0] != '\0'; i++) {
            struct buf *items = groups_of(s, j->part.groups[i].name);
            if (items != NULL) join_with_comma(items, &j->part.groups[i].items);
            buf_clear(&j->part.groups[i].items);
            j->part.groups[i].name[0] = '\0';
        }
    }
    return &j->walk;
}

size_t info_json_rows(struct info_json *j, struct buf *out, bool comma) {
    size_t rows = j->rows;
    for (unsigned i = 0; i < INFO_JSON_GROUPS && j->part.groups[i].name[0] != '\0'; i++) {
        struct buf *items = &j->part.groups[i].items;
        if (items->len > 0 && comma) buf_append_char(out, ',');
        comma |= items->len > 0;
        buf_append(out, items->data, items->len);
        buf_clear(items);
    }
    j->rows = 0;
    return rows;
}

bool info_json_write(struct info_json *j, struct buf *out) {
    if (j->written == j->n) {
        buf_append_str(out, j->n == 0 ? "{}\n" : "}\n");
        return false;
    }
    const struct info_json_section *s = &j->section[j->written];
    buf_append_char(out, j->written++ == 0 ? '{' : ',');
    json_text_put(out, span_str(s->name));
    buf_append_str(out, ":{");
    buf_append(out, s->fields.data, s->fields.len);
    bool some = s->fields.len > 0;
    for (unsigned i = 0; i < INFO_JSON_GROUPS && s->groups[i].name[0] != '\0'; i++) {
        if (some) buf_append_char(out, ',');
        some = true;
        json_text_put(out, span_str(s->groups[i].name));
        buf_append_str(out, ":[");
        buf_append(out, s->groups[i].items.data, s->groups[i].items.len);
        buf_append_char(out, ']');
    }
    buf_append_char(out, '}');
    return true;
}
