/* Lists whose elements embed their links. The heads, entries and macros are those of <sys/queue.h>
 * (man 3 queue): SLIST for stacks, STAILQ for what is taken in order, LIST for what leaves from
 * anywhere, TAILQ for both; a head without a type of its own is TAILQ_HEAD(, element). Here is what
 * they lack. Zeroed, a head of a LIST or SLIST is an empty one; the others are initialised. */
#ifndef TARN_BASE_QUEUE_H
#define TARN_BASE_QUEUE_H

#include <stddef.h>
#include <sys/queue.h>

/* Loops in which `elem` may leave the list and be freed; `next` may not. */
#define QUEUE_FOREACH_SAFE(kind, elem, head, link, next)                                           \
    for ((elem) = kind##_FIRST(head); (elem) != NULL && ((next) = kind##_NEXT(elem, link), 1);     \
         (elem) = (next))
#define LIST_FOREACH_SAFE(elem, head, link, next)  QUEUE_FOREACH_SAFE(LIST, elem, head, link, next)
#define SLIST_FOREACH_SAFE(elem, head, link, next) QUEUE_FOREACH_SAFE(SLIST, elem, head, link, next)
#define STAILQ_FOREACH_SAFE(elem, head, link, next)                                                \
    QUEUE_FOREACH_SAFE(STAILQ, elem, head, link, next)
#define TAILQ_FOREACH_SAFE(elem, head, link, next) QUEUE_FOREACH_SAFE(TAILQ, elem, head, link, next)

/* The first element, which leaves the list; NULL: it is empty. */
#define SLIST_TAKE(head, link)  QUEUE_TAKE(SLIST, head, SLIST_REMOVE_HEAD(head, link))
#define STAILQ_TAKE(head, link) QUEUE_TAKE(STAILQ, head, STAILQ_REMOVE_HEAD(head, link))
#define LIST_TAKE(head, link)   QUEUE_TAKE(LIST, head, LIST_REMOVE(first_, link))
#define TAILQ_TAKE(head, link)  QUEUE_TAKE(TAILQ, head, TAILQ_REMOVE(head, first_, link))
#define QUEUE_TAKE(kind, head, remove)                                                             \
    ({                                                                                             \
        __typeof__(kind##_FIRST(head)) first_ = kind##_FIRST(head);                                \
        if (first_ != NULL) remove;                                                                \
        first_;                                                                                    \
    })

/* Elements that may be in no list: zeroed links say so, and are zeroed when they leave by these. */
#define LIST_LINKED(elem, link)  ((elem)->link.le_prev != NULL)
#define TAILQ_LINKED(elem, link) ((elem)->link.tqe_prev != NULL)
#define LIST_UNLINK(elem, link)                                                                    \
    do {                                                                                           \
        if (!LIST_LINKED(elem, link)) break;                                                       \
        LIST_REMOVE(elem, link);                                                                   \
        (elem)->link.le_prev = NULL;                                                               \
    } while (0)
#define TAILQ_UNLINK(head, elem, link)                                                             \
    do {                                                                                           \
        if (!TAILQ_LINKED(elem, link)) break;                                                      \
        TAILQ_REMOVE(head, elem, link);                                                            \
        (elem)->link.tqe_prev = NULL;                                                              \
    } while (0)

#endif
