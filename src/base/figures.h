/* Figures: what is counted or measured, each declared once, with all that anybody may want to know
 * of it: (type, name, help). INFO, NODE INFO and whatever shows figures later are walks over
 * these declarations.
 *
 * What is counted is declared beside the struct that holds it. The list makes the members, too:
 *
 *   #define POOL_FIGURES(X)                                                      \
 *       X(BYTES, pool_free, "bytes that nobody uses")                     \
 *       X(COUNTER, pool_moves, "objects that were moved")
 *   struct pool_figures {
 *       POOL_FIGURES(FIGURE_MEMBER)
 *   };
 *   #define ROW(...) FIGURE_ROW(struct pool_figures, __VA_ARGS__)
 *   const struct figure pool_figures[] = {POOL_FIGURES(ROW){.name = NULL}};
 *
 * and shown with FIGURES(walk, pool_figures, f, pool_free, pool_moves): those from the first member
 * to the last. What is worked out when somebody asks has no member; it is declared where it is
 * shown: FIGURE(walk, RATIO, pool_share, "used of all", used / size).
 *
 * A figure's scope is whom the walk asks (a server, a node, a client), or what its label says: a
 * segment, a state, a command. */
#ifndef TARN_BASE_FIGURES_H
#define TARN_BASE_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

/* What a number is, and with that its kind, its unit, and the form in which INFO shows it, which is
 * part of Redis' protocol (figure_types). */
enum figure_type {
    FIGURE_COUNTER, /* only grows, until CONFIG RESETSTAT or the process ends */
    FIGURE_COUNTER_BYTES,
    FIGURE_COUNTER_MS,
    FIGURE_COUNTER_US,
    FIGURE_GAUGE, /* as it is now, or as it was set; 0 or 1 for no and yes */
    FIGURE_BYTES,
    FIGURE_SIZE, /* bytes; a line for people follows, "name_human:1.50M" */
    FIGURE_SECONDS,
    FIGURE_MS,
    FIGURE_US,
    /* from here on with a fraction */
    FIGURE_COUNTER_CPU, /* seconds */
    FIGURE_RATIO,
    FIGURE_SHARE,   /* a finer one */
    FIGURE_SETTING, /* one as it was set */
    FIGURE_PERCENT, /* with its sign */
    FIGURE_POINTS,  /* percent without one */
    FIGURE_KBPS,    /* KiB a second */
    FIGURE_MEAN,
    FIGURE_US_MEAN,
    FIGURE_QUANTILE, /* microseconds, of a histogram */
    FIGURE_TEXT,     /* no number */
    FIGURE_HIST_NS,  /* nanoseconds, counted by size: FIGURE_HIST */
    FIGURE_HIST_MS,  /* milliseconds, up to days */
};

enum figure_kind {
    FIGURE_KIND_COUNTER,
    FIGURE_KIND_GAUGE,
    FIGURE_KIND_SUMMARY,
    FIGURE_KIND_STATE,
    FIGURE_KIND_HISTOGRAM,
};
extern const struct figure_type_info {
    enum figure_kind kind;
    const char *unit; /* in Prometheus' words; "": a number of something */
    const char *form; /* of those with a fraction; NULL */
} figure_types[];

struct hist;

struct figure {
    const char *name, *help;
    enum figure_type type;
    size_t offset; /* of its uint64_t, for figures_each */
};

union figure_value {
    uint64_t number; /* negative ones in two's complement: -1 is "never" */
    double real;     /* COUNTER_CPU to QUANTILE */
    const char *text;
};

/* What a figure is of, such as "segment" and "3"; NULL: of whoever is asked. */
struct figure_label {
    const char *name, *value;
};

/* What shows figures. Its maker fills in the functions, and has its own things around the
 * struct. */
struct figure_walk {
    void (*show)(struct figure_walk *walk, const struct figure *figure, union figure_value value);
    void (*edge)(struct figure_walk *walk, bool begins); /* of a group; NULL: no matter */
    /* NULL: whole histograms are of no interest. */
    void (*hist)(struct figure_walk *walk, const struct figure *figure, const struct hist *hist);
    /* What is shown now belongs together, as in "segment3:name=a,size=1", and comes after
     * "segment". NULL: it does not. */
    const char *group;
    struct figure_label group_of, of;
};

/* Those of the table whose members lie from `first` to `last`. */
void figures_each(struct figure_walk *walk, const struct figure *table, const void *base,
                  size_t first, size_t last);
/* In INFO a group is a line that begins with `group` and the value: "slave0:"; with `group` alone
 * when that ends with a colon. Two groups of one walk differ in label or value. Borrowed until the
 * end. */
void figures_group(struct figure_walk *walk, const char *group, const char *label,
                   const char *value);
void figures_group_end(struct figure_walk *walk);
/* Appends the value, in INFO's form. */
void figure_write(enum figure_type type, union figure_value value, struct buf *out);

#define FIGURE_MEMBER(type, name, help)  uint64_t name;
#define FIGURE_ROW(of, type, name, help) FIGURE_ROW_NAMED(of, type, name, name, help)
#define FIGURE_ROW_NAMED(of, type, member, name, help)                                             \
    {#name, help, FIGURE_##type, offsetof(of, member)},
#define FIGURES(walk, table, base, first, last)                                                    \
    figures_each(walk, table, &(base), offsetof(__typeof__(base), first),                          \
                 offsetof(__typeof__(base), last))

/* One that is worked out here. */
#define FIGURE(walk, type, name, help, value)                                                      \
    do {                                                                                           \
        static const struct figure figure_ = {#name, help, FIGURE_##type, 0};                      \
        (walk)->show(walk, &figure_, FIGURE_VALUE(value));                                         \
    } while (0)
/* One of several that differ in a label: nodes_ of state "up" is INFO's nodes_up. */
#define FIGURE_OF(walk, type, name, help, label, label_value, value)                               \
    do {                                                                                           \
        (walk)->of = (struct figure_label){label, label_value};                                    \
        FIGURE(walk, type, name, help, value);                                                     \
        (walk)->of = (struct figure_label){NULL, NULL};                                            \
    } while (0)

/* A histogram, for those that want it whole. */
#define FIGURE_HIST(walk, type, name, help, value)                                                 \
    do {                                                                                           \
        static const struct figure figure_ = {#name, help, FIGURE_##type, 0};                      \
        if ((walk)->hist != NULL) (walk)->hist(walk, &figure_, value);                             \
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
