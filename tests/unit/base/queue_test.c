/* What base/queue.h adds to the lists of <sys/queue.h>. */
#include "base/queue.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/buf.h"

#include "../test.h"

struct element {
    int n;
    LIST_ENTRY(element) in_list;
    TAILQ_ENTRY(element) in_tail;
    SLIST_ENTRY(element) in_stack;
    STAILQ_ENTRY(element) in_line;
};

TEST(elements_leave_while_they_are_walked) {
    TAILQ_HEAD(, element) tail = TAILQ_HEAD_INITIALIZER(tail);
    LIST_HEAD(, element) list = {0};
    struct element *e, *next;
    for (int i = 0; i < 6; i++) {
        e = xcalloc(1, sizeof(*e));
        e->n = i;
        TAILQ_INSERT_TAIL(&tail, e, in_tail);
        LIST_INSERT_HEAD(&list, e, in_list);
    }
    int seen = 0;
    LIST_FOREACH_SAFE(e, &list, in_list, next) {
        CHECK_EQ(e->n, 5 - seen++);
        LIST_REMOVE(e, in_list);
    }
    CHECK(LIST_EMPTY(&list) && seen == 6);
    TAILQ_FOREACH_SAFE(e, &tail, in_tail, next) {
        if (e->n % 2 == 0) continue;
        TAILQ_REMOVE(&tail, e, in_tail);
        free(e);
    }
    for (int i = 0; i < 6; i += 2) {
        e = TAILQ_TAKE(&tail, in_tail);
        CHECK(e != NULL && e->n == i);
        free(e);
    }
    CHECK(TAILQ_TAKE(&tail, in_tail) == NULL);
}

TEST(the_first_is_taken_until_there_is_none) {
    struct element es[3] = {{.n = 0}, {.n = 1}, {.n = 2}}, *e;
    SLIST_HEAD(, element) stack = {0};
    STAILQ_HEAD(, element) line = STAILQ_HEAD_INITIALIZER(line);
    LIST_HEAD(, element) list = {0};
    for (int i = 0; i < 3; i++) {
        SLIST_INSERT_HEAD(&stack, &es[i], in_stack);
        STAILQ_INSERT_TAIL(&line, &es[i], in_line);
        LIST_INSERT_HEAD(&list, &es[i], in_list);
    }
    for (int i = 0; i < 3; i++) {
        CHECK((e = SLIST_TAKE(&stack, in_stack)) != NULL && e->n == 2 - i);
        CHECK((e = STAILQ_TAKE(&line, in_line)) != NULL && e->n == i);
        CHECK((e = LIST_TAKE(&list, in_list)) != NULL && e->n == 2 - i);
    }
    CHECK(SLIST_TAKE(&stack, in_stack) == NULL && STAILQ_TAKE(&line, in_line) == NULL &&
          LIST_TAKE(&list, in_list) == NULL);
    STAILQ_INSERT_TAIL(&line, &es[0], in_line);
    CHECK(STAILQ_TAKE(&line, in_line) == &es[0]);
}

TEST(an_element_knows_whether_it_is_in_a_list) {
    TAILQ_HEAD(, element) tail = TAILQ_HEAD_INITIALIZER(tail);
    LIST_HEAD(, element) list = {0};
    struct element e = {0};
    for (int i = 0; i < 2; i++) {
        CHECK(!LIST_LINKED(&e, in_list) && !TAILQ_LINKED(&e, in_tail));
        LIST_UNLINK(&e, in_list); /* nothing */
        TAILQ_UNLINK(&tail, &e, in_tail);
        LIST_INSERT_HEAD(&list, &e, in_list);
        TAILQ_INSERT_TAIL(&tail, &e, in_tail);
        CHECK(LIST_LINKED(&e, in_list) && TAILQ_LINKED(&e, in_tail));
        LIST_UNLINK(&e, in_list);
        TAILQ_UNLINK(&tail, &e, in_tail);
        CHECK(LIST_EMPTY(&list) && TAILQ_EMPTY(&tail));
    }
}

TEST_MAIN()
