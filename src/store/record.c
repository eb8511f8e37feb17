#include "store/record.h"

#include <string.h>
#include "base/assert.h"

#define RESERVE   ((size_t)32 << 30)
#define KEEP_FREE 16u /* empty pages kept for the next class that needs one */

/* A page holds records of one class. Page 0 is never used, so that reference 0 can mean none. */
struct record_page {
    uint32_t prev, next; /* among the pages of its class with room, or the empty ones */
    uint32_t free;       /* reference of the first freed record */
    uint16_t bump;       /* records handed out from the untouched rest */
    uint16_t live;
    uint16_t slots;
    uint16_t class; /* record size / 8 */
};

static struct record_page *page_at(const struct records *r, uint32_t n) {
    return (struct record_page *)(void *)r->meta.base + n;
}

bool records_init(struct records *r) {
    memset(r, 0, sizeof(*r));
    if (!page_arena_init(&r->arena, RESERVE, PAGES_HUGE | PAGES_AHEAD)) return false;
    if (!page_arena_init(&r->meta, RESERVE / RECORD_PAGE * sizeof(struct record_page),
                         PAGES_HUGE | PAGES_AHEAD) ||
        !page_arena_grow(&r->meta, sizeof(struct record_page)) ||
        !page_arena_grow(&r->arena, RECORD_PAGE)) {
        records_free(r);
        return false;
    }
    r->pages = 1;
    return true;
}

void records_free(struct records *r) {
    page_arena_free(&r->arena);
    page_arena_free(&r->meta);
}

static void partial_add(struct records *r, uint32_t n) {
    struct record_page *p = page_at(r, n);
    uint32_t *head = &r->partial[p->class];
    p->prev = 0;
    p->next = *head;
    if (*head) page_at(r, *head)->prev = n;
    *head = n;
}

static void partial_remove(struct records *r, uint32_t n) {
    struct record_page *p = page_at(r, n);
    if (p->prev)
        page_at(r, p->prev)->next = p->next;
    else
        r->partial[p->class] = p->next;
    if (p->next) page_at(r, p->next)->prev = p->prev;
}

static uint32_t page_new(struct records *r, uint32_t class) {
    uint32_t n = r->free_pages;
    if (n) {
        r->free_pages = page_at(r, n)->next;
        if (r->n_free_pages > 0) r->n_free_pages--;
    } else {
        n = r->pages;
        if (!page_arena_grow(&r->meta, (n + 1) * sizeof(struct record_page)) ||
            !page_arena_grow(&r->arena, (size_t)(n + 1) * RECORD_PAGE))
            return 0;
        r->pages++;
    }
    *page_at(r, n) = (struct record_page){.class = (uint16_t) class,
                                          .slots = (uint16_t)(RECORD_PAGE / (class * 8))};
    r->live_pages++;
    partial_add(r, n);
    return n;
}

struct object *record_alloc(struct records *r, size_t size) {
    uint32_t class = (uint32_t)(record_round(size) / 8);
    TARN_ASSERT(class < ARRAY_LEN(r->partial));
    uint32_t n = r->partial[class];
    if (!n && !(n = page_new(r, class))) return NULL;
    struct record_page *p = page_at(r, n);
    struct object *o;
    if (p->free) {
        o = record_get(r, p->free);
        p->free = o->next;
        __builtin_prefetch(r->arena.base + (size_t)p->free * 8,
                           1); /* the next to be handed out lies anywhere */
    } else {
        o = (struct object *)(void *)(r->arena.base + (size_t)n * RECORD_PAGE +
                                      (size_t)p->bump++ * class * 8);
    }
    if (++p->live == p->slots) partial_remove(r, n);
    r->count++;
    r->bytes += class * 8;
    return o;
}

void record_free(struct records *r, struct object *o, size_t size) {
    uint32_t n = (uint32_t)((size_t)((char *)o - r->arena.base) / RECORD_PAGE);
    struct record_page *p = page_at(r, n);
    TARN_ASSERT(p->class == record_round(size) / 8 && p->live > 0);
    if (p->live == p->slots) partial_add(r, n);
    o->next = p->free;
    o->version_depth = 0; /* whoever remembers it sees that it has gone */
    p->free = record_ref(r, o);
    r->count--;
    r->bytes -= (uint64_t)p->class * 8;
    if (--p->live > 0) return;
    partial_remove(r, n);
    r->live_pages--;
    if (r->n_free_pages >= KEEP_FREE)
        page_arena_discard(&r->arena, (size_t)n * RECORD_PAGE, RECORD_PAGE);
    else
        r->n_free_pages++;
    p->next = r->free_pages;
    r->free_pages = n;
}

uint64_t records_memory(const struct records *r) {
    return r->bytes + (uint64_t)r->pages * sizeof(struct record_page);
}

uint64_t records_spare(const struct records *r) {
    return (uint64_t)(r->live_pages + r->n_free_pages) * RECORD_PAGE - r->bytes;
}
