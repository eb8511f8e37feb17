/* Figures: the members that a list makes, what a walk is shown of them, and the forms. */
#include "base/figures.h"

#include "base/assert.h"
#include "../test.h"

#define SHELF_FIGURES(X)                                                                           \
    X(BYTES, shelf_free, "bytes that nobody uses")                                                 \
    X(GAUGE, shelf_books, "books that are there")                                                  \
    X(COUNTER, shelf_moves, "books that were moved")

struct shelf {
    const char *owner;
    SHELF_FIGURES(FIGURE_MEMBER)
};
#define ROW(...) FIGURE_ROW(struct shelf, __VA_ARGS__)
static const struct figure shelf_figures[] = {SHELF_FIGURES(ROW){.name = NULL}};

/* Writes all that it is told. */
struct told {
    struct figure_walk walk;
    struct buf text;
};

static void tell(struct figure_walk *walk, const struct figure *f, union figure_value value) {
    struct told *t = CONTAINER_OF(walk, struct told, walk);
    buf_printf(&t->text, "%s", f->name);
    if (walk->group != NULL)
        buf_printf(&t->text, "{%s=%s}", walk->group_of.name, walk->group_of.value);
    if (walk->of.name != NULL) buf_printf(&t->text, "{%s=%s}", walk->of.name, walk->of.value);
    buf_append_char(&t->text, ' ');
    figure_write(f->type, value, &t->text);
    buf_append_char(&t->text, ';');
}

static void edge(struct figure_walk *walk, bool begins) {
    buf_append_str(&CONTAINER_OF(walk, struct told, walk)->text, begins ? "<" : ">");
}

static void check_told(struct told *t, const char *expected) {
    buf_append_char(&t->text, '\0');
    CHECK_STR(t->text.data, expected);
    t->text.len = 0;
}

TEST(a_list_makes_members_and_rows) {
    CHECK_STR(shelf_figures[0].name, "shelf_free");
    CHECK_STR(shelf_figures[2].help, "books that were moved");
    CHECK_EQ(shelf_figures[0].type, FIGURE_BYTES);
    CHECK_STR(figure_types[FIGURE_BYTES].unit, "bytes");
    CHECK_EQ(figure_types[shelf_figures[2].type].kind, FIGURE_KIND_COUNTER);
    CHECK_EQ(shelf_figures[2].offset, offsetof(struct shelf, shelf_moves));
    CHECK(shelf_figures[3].name == NULL);
}

TEST(a_walk_shows_a_range) {
    struct told t = {.walk = {.show = tell}};
    struct shelf s = {.shelf_free = 1, .shelf_books = 22, .shelf_moves = 333};
    FIGURES(&t.walk, shelf_figures, s, shelf_free, shelf_moves);
    check_told(&t, "shelf_free 1;shelf_books 22;shelf_moves 333;");
    FIGURES(&t.walk, shelf_figures, s, shelf_books, shelf_books);
    check_told(&t, "shelf_books 22;");
    buf_free(&t.text);
}

TEST(labels_say_what_a_figure_is_of) {
    struct told t = {.walk = {.show = tell, .edge = edge}};
    struct shelf s = {.shelf_free = 1};
    figures_group(&t.walk, "shelf", "shelf", "3");
    FIGURES(&t.walk, shelf_figures, s, shelf_free, shelf_free);
    FIGURE(&t.walk, TEXT, owner, "whose it is", "me");
    figures_group_end(&t.walk);
    FIGURE_OF(&t.walk, GAUGE, shelves_, "in that state", "state", "full", 7);
    FIGURE(&t.walk, GAUGE, shelves, "all of them", 9u);
    check_told(&t, "<shelf_free{shelf=3} 1;owner{shelf=3} me;>shelves_{state=full} 7;shelves 9;");
    buf_free(&t.text);
}

TEST(forms) {
    struct told t = {.walk = {.show = tell}};
    FIGURE(&t.walk, SECONDS, never, "", -1);
    FIGURE(&t.walk, GAUGE, most, "", (uint64_t)INT64_MAX);
    FIGURE(&t.walk, RATIO, ratio, "", 0.126);
    FIGURE(&t.walk, SHARE, share, "", 0.5);
    FIGURE(&t.walk, SETTING, setting, "", 0.9);
    FIGURE(&t.walk, PERCENT, percent, "", 50.0);
    FIGURE(&t.walk, COUNTER_CPU, cpu, "", 1.5);
    FIGURE(&t.walk, MEAN, mean, "", 138.25);
    FIGURE(&t.walk, QUANTILE, p50, "", 2.0);
    check_told(&t, "never -1;most 9223372036854775807;ratio 0.13;share 0.5000;setting 0.9;"
                   "percent 50.00%;cpu 1.500000;mean 138.2;p50 2.000;");
    buf_free(&t.text);
}

TEST_MAIN()
