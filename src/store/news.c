/* Telling what becomes of objects, in words: why one went, where its replicas are. For those who
 * follow the books without keeping them; replicas of the books get records instead (effect.c). */
#include "store/books.h"

void store_listen(struct store *s, bool on) {
    s->listening = on && s->events.news && !s->following;
}

static void news_send(struct store *s, const struct store_news *news) {
    s->events.news(s->events.arg, news);
}

/* What a flush took is told by the flush, not by the sweep behind it. */
static bool news_untold(const struct store *s, const struct object *o) {
    return s->stale && book_stale(s, o);
}

void news_tell(struct store *s, enum store_news_kind kind, const struct object *o,
               uint32_t segment) {
    if (kind == STORE_NEWS_NONE || (o && news_untold(s, o))) return;
    news_send(s, &(struct store_news){.kind = kind, .object = o, .segment = segment});
}

void news_put_tell(struct store *s, const struct object *o, bool replaced) {
    news_send(s, &(struct store_news){.kind = STORE_NEWS_PUT,
                                      .object = o,
                                      .segment = STORE_SEGMENT_ANY,
                                      .replaced = replaced});
}

static bool lies_in(const struct store *s, const struct places *p, uint32_t segment) {
    const block_id *b = p->block;
    for (uint32_t i = 0; i < p->n_memory; b += p->extents[i++])
        if (replica_segment(s, *b) == segment) return true;
    for (uint32_t i = 0; i < p->n_far; i++)
        if (p->far[i].segment == segment) return true;
    return false;
}

/* Replicas of p that other does not have. */
static void tell_missing(struct store *s, const struct object *o, const struct places *p,
                         const struct places *other, enum store_news_kind kind) {
    const block_id *b = p->block;
    for (uint32_t i = 0; i < p->n_memory; b += p->extents[i++]) {
        uint32_t segment = replica_segment(s, *b);
        if (!lies_in(s, other, segment)) news_tell(s, kind, o, segment);
    }
    for (uint32_t i = 0; i < p->n_far; i++)
        if (!lies_in(s, other, p->far[i].segment)) news_tell(s, kind, o, p->far[i].segment);
}

void news_places_tell(struct store *s, const struct object *o, const struct places *before,
                      const struct places *after) {
    tell_missing(s, o, after, before, STORE_NEWS_REPLICA_ADDED);
    tell_missing(s, o, before, after, STORE_NEWS_REPLICA_GONE);
    if (!before->n_memory && after->n_memory) news_object(s, STORE_NEWS_PROMOTED, o);
    if (before->n_memory && !after->n_memory) news_object(s, STORE_NEWS_DEMOTED, o);
}
