/* Asking engines for their /metrics, every so often, all of them in one thread of its own.
 *
 * An engine costs nothing but its own figures, whatever it does: a request is over after
 * timeout_ms, an answer has answer_max_bytes at most and is read as it comes, in the memory of a
 * line (read.h); redirects are not followed, proxies not used, certificates checked. There is one
 * request at a time to each, on a connection that is kept. An answer that nobody has taken gives
 * way to the next.
 *
 * From one thread, but scraper_fd's descriptor may be watched by any. Nothing waits for an engine
 * or a name server, destroy included: who resolves a name then is left to it. */
#ifndef TARN_SCRAPE_SCRAPER_H
#define TARN_SCRAPE_SCRAPER_H

#include "base/figures.h"
#include "scrape/read.h"
#include "tarn_status.h"

#define SCRAPER_URL 512u /* bytes, at most */

struct scraper_config {
    uint32_t every_ms;       /* from the beginning of a request to the next one's; above 0 */
    uint32_t timeout_ms;     /* of a request; above 0 */
    size_t answer_max_bytes; /* above 0 */
    uint32_t sources_max;    /* above 0 */
    const char *ca_file; /* who signs engines' certificates; NULL: those whom the system trusts */
};
/* 1 s, 5 s, 4 MiB, 1,024, NULL */
void scraper_defaults(struct scraper_config *config);

/* Counts of a source. */
#define SCRAPER_FIGURES(X)                                                                         \
    X(COUNTER, scrape_requests, "times that an engine was asked for its /metrics")                 \
    X(COUNTER, scrape_answers, "... that its load was in the answer")                              \
    X(COUNTER, scrape_failures, "... that it was not, or there was none")                          \
    X(COUNTER_BYTES, scrape_bytes, "bytes of answers")                                             \
    X(COUNTER, scrape_refused, "figures in them that cannot be: no numbers, below 0, too large")
struct scraper_figures {
    SCRAPER_FIGURES(FIGURE_MEMBER)
};
extern const struct figure scraper_figures[];

enum scraper_state {
    SCRAPER_PAUSED,
    SCRAPER_ASKING, /* for the first time */
    SCRAPER_UP,
    SCRAPER_FAILING, /* the last request failed */
};
const char *scraper_state_name(enum scraper_state state);

struct scraper_info {
    enum scraper_state state;
    uint64_t answered_ms;         /* when its load came last, by clock_mono_ms; 0: never */
    uint64_t failing_ms;          /* since when it fails; 0: it does not */
    uint32_t took_ms;             /* the last answer */
    char why[SCRAPE_WHY];         /* it fails; "": it does not */
    char why_refused[SCRAPE_WHY]; /* the last figure that was refused; "": none */
    struct scraper_figures figures;
};

/* http:// or https://, a host, and neither a user nor blanks, in less than SCRAPER_URL bytes. */
bool scraper_url_valid(struct span url);

struct scraper;
struct scraper_source;
/* Starts the thread. TARN_ENOMEM, TARN_EIO: no descriptors, no thread. */
tarn_status scraper_create(const struct scraper_config *config, struct scraper **s_p);
/* With all sources. */
void scraper_destroy(struct scraper **s_p);

/* owner: whom scraper_take tells of it. TARN_EINVAL: an URL of another form; TARN_ELIMIT:
 * sources_max. */
tarn_status scraper_add(struct scraper *s, struct span url, void *owner,
                        struct scraper_source **x_p);
/* Nothing of it is taken any more. NULL: nothing. */
void scraper_remove(struct scraper_source **x_p);
/* While it lasts nobody is asked, and nothing is there to take. */
void scraper_pause(struct scraper *s, bool pause);
void scraper_info(const struct scraper_source *x, struct scraper_info *info);

/* The last answer of a source that has one, the longest waiting first. false: there is none, and
 * the descriptor is quiet until there is. */
bool scraper_take(struct scraper *s, void **owner_p, struct scrape_load *load);
/* Readable while there is something to take; it is only watched, not read. */
int scraper_fd(const struct scraper *s);

#endif
