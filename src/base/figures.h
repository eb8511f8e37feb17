/* Figures: what is counted or measured, each declared once, with all that anybody may want to know
 * of it: (kind, unit, name, help). INFO, NODE INFO and whatever shows figures later are walks over
 * these declarations.
 *
 * What is counted is declared beside the struct that holds it. The list makes the members, too:
 *
 *   #define POOL_FIGURES(X)                                                      \
 *       X(GAUGE, BYTES, pool_free, "bytes that nobody uses")                     \
 *       X(COUNTER, NONE, pool_moves, "objects that were moved")
 *   struct pool_figures {
 *       POOL_FIGURES(FIGURE_MEMBER)
 *   };
 *   #define ROW(...) FIGURE_ROW(struct pool_figures, __VA_ARGS__)
 *   const struct figure pool_figures[] = {POOL_FIGURES(ROW){NULL}};
 *
 * and shown with FIGURES(walk, pool_figures, f, pool_free, pool_moves): those from the first member
 * to the last. What is worked out when somebody asks has no member; it is declared where it is
 * shown: FIGURE(walk, GAUGE, RATIO, pool_share, "used of all", used / size).
 *
 * A figure's scope is whom the walk asks (a server, a node, a client), or what its label says: a
 * segment, a state, a command. */
#ifndef TARN_BASE_FIGURES_H
#define TARN_BASE_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

enum figure_kind {
    FIGURE_COUNTER,  /* only grows, until CONFIG RESETSTAT or the process ends */
    FIGURE_GAUGE,    /* as it is now, or as it was set */
    FIGURE_QUANTILE, /* of a histogram */
    FIGURE_STATE,    /* text */
};

/* With the form in which INFO shows them, which is part of Redis' protocol. */
enum figure_unit {
    FIGURE_NONE, /* a number of something; 0 or 1 for no and yes */
    FIGURE_BYTES,
    FIGURE_SIZE, /* bytes; a line for people follows, "name_human:1.50M" */
    FIGURE_SECONDS,
    FIGURE_MS,
    FIGURE_US,
    /* from here on with a fraction */
    FIGURE_RATIO,      /* 0.50 */
    FIGURE_SHARE,      /* 0.5000 */
    FIGURE_SETTING,    /* 0.5, as it was set */
    FIGURE_PERCENT,    /* 50.00% */
    FIGURE_POINTS,     /* percent, too, but 50.00 */
    FIGURE_KBPS,       /* kibibytes a second */
    FIGURE_MEAN,       /* 138.5 */
    FIGURE_CPU,        /* seconds, 0.000001 */
    FIGURE_US_MEAN,    /* 1.25 */
    FIGURE_US_LATENCY, /* 1.250 */
    /* no number */
    FIGURE_TEXT,
};

struct figure {
    const char *name, *help;
    enum figure_kind kind;
    enum figure_unit unit;
    size_t offset; /* of its uint64_t, for figures_each */
};

union figure_value {
    uint64_t number; /* negative ones in two's complement: -1 is "never" */
    double real;     /* RATIO to US_LATENCY */
    const char *text;
};

/* What a figure is of, such as "segment" and "3"; NULL: of whoever is asked. */
struct figure_label {
    const char *name, *value;
};

/* What shows figures. Its maker fills in the functions, and has its own things around the struct. */
struct figure_walk {
    void (*show)(struct figure_walk *walk, const struct figure *figure, union figure_value value);
    void (*edge)(struct figure_walk *walk, bool begins); /* of a group; NULL: no matter */
    /* What is shown now belongs together, as in "segment3:name=a,size=1", and comes after
     * "segment". NULL: it does not. */
    const char *group;
    struct figure_label group_of, of;
};

/* Those of the table whose members lie from `first` to `last`. */
void figures_each(struct figure_walk *walk, const struct figure *table, const void *base,
                  size_t first, size_t last);
void figures_group(struct figure_walk *walk, const char *group, const char *label,
                   const char *value); /* borrowed until the end */
void figures_group_end(struct figure_walk *walk);
/* Appends the value, in the unit's form. */
void figure_write(enum figure_unit unit, union figure_value value, struct buf *out);

#define FIGURE_MEMBER(kind, unit, name, help) uint64_t name;
#define FIGURE_ROW(type, kind, unit, name, help)                                                   \
    {#name, help, FIGURE_##kind, FIGURE_##unit, offsetof(type, name)},
#define FIGURES(walk, table, base, first, last)                                                    \
    figures_each(walk, table, &(base), offsetof(__typeof__(base), first),                          \
                 offsetof(__typeof__(base), last))

/* One that is worked out here. */
#define FIGURE(walk, kind, unit, name, help, value)                                                \
    do {                                                                                           \
        static const struct figure figure_ = {#name, help, FIGURE_##kind, FIGURE_##unit, 0};       \
        (walk)->show(walk, &figure_, FIGURE_VALUE(value));                                         \
    } while (0)
/* One of several that differ in a label: nodes_ of state "up" is INFO's nodes_up. */
#define FIGURE_OF(walk, kind, unit, name, help, label, label_value, value)                         \
    do {                                                                                           \
        (walk)->of = (struct figure_label){label, label_value};                                    \
        FIGURE(walk, kind, unit, name, help, value);                                               \
        (walk)->of = (struct figure_label){NULL, NULL};                                            \
    } while (0)

static inline union figure_value figure_number(uint64_t v) {
    return (union figure_value){.number = v};
}
static inline union figure_value figure_real(double v) {
    return (union figure_value){.real = v};
}
static inline union figure_value figure_text(const char *v) {
    return (union figure_value){.text = v};
}
#define FIGURE_VALUE(v)                                                                            \
    _Generic((v),                                                                                  \
        char *: figure_text,                                                                       \
        const char *: figure_text,                                                                 \
        double: figure_real,                                                                       \
        default: figure_number)(v)

#endif
