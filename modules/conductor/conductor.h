/* modules/conductor.so: src/route inside tarn-server, which says what engine is to serve a request.
 *
 *   module.c   load, unload, the timer, INFO modules; options.c the words behind the file's name
 *   declare.c  the commands, declared as src/wire declares commands
 *   engines.c  registrations as they are kept, and as the route wants them
 *   enroll.c   what comes of a registration; kept.c what survives a restart and a failover
 *   streams.c  the engines' event streams; feed.c their events, into the index
 *   metrics.c  the engines' /metrics
 *   prompt.c   a prompt as the hashes of its blocks; asked.c what was asked for lately
 *   manage.c   CONDUCTOR.ADD, REMOVE, DRAIN, LIST, INFO, LOAD
 *   keys.c     CONDUCTOR.KEYS; pool_names.c what it says, pool_hash.c a prompt as such keys end,
 *              pool.c what the pool has of it
 *   decide.c   CONDUCTOR.ROUTE, FIRST, DONE, MATCH; why.c CONDUCTOR.EXPLAIN;
 *              doctor.c CONDUCTOR.DOCTOR
 *   http*.c    HTTP as Mooncake's Conductor has it (http.h)
 *   figures.c  INFO conductor and /metrics; rows.c lists for the page of http.so
 *   answer.c   parts of replies
 *
 * All of it runs on the server's loop; src/kvevents and src/scrape have a thread each. */
#ifndef TARN_CONDUCTOR_CONDUCTOR_H
#define TARN_CONDUCTOR_CONDUCTOR_H

#include "base/buf.h"
#include "base/figures.h"
#include "module.h"
#include "route/route.h"

extern const struct tarn_services *conductor_services;
extern struct route *conductor_route;
/* Microseconds of the clock that the route's times are of. */
uint64_t conductor_now_us(void);

#define CONDUCTOR_FIGURES(X)                                                                       \
    X(COUNTER, conductor_requests_bad, "requests that were wrong")                                 \
    X(COUNTER, conductor_requests_unserved, "... that no engine serves, or may serve now")         \
    X(COUNTER, conductor_requests_unknown, "FIRST and DONE of requests that are not there")        \
    X(COUNTER, conductor_requests_unkept,                                                          \
      "reservations that would not survive: there is no room to keep them")                        \
    X(COUNTER, conductor_prompts_cut,                                                              \
      "prompts of which bytes were missing, or not as LENGTH says")                                \
    X(COUNTER, conductor_prompts_misfitting, "hashes of blocks of a size that no engine has")      \
    X(COUNTER, conductor_pool_asked, "requests for which the pool was looked at")                  \
    X(COUNTER, conductor_pool_hits, "... of which it had the beginning")                           \
    X(COUNTER, conductor_pool_prefetched,                                                          \
      "... whose blocks were asked from disks to memory, for the engine that reads them")          \
    X(COUNTER, conductor_pool_untold,                                                              \
      "... for which it could not be: they came without their tokens")                             \
    X(COUNTER, conductor_engines_renewed, "engines that registered again as they are")             \
    X(COUNTER, conductor_engines_differing, "... as others, which was refused")
extern struct conductor_figures { CONDUCTOR_FIGURES(FIGURE_MEMBER) } conductor_figures;

/* Of the hashes of prompts (route/hash.h). */
uint64_t conductor_seed(void);

/* --- options.c --- */

/* What the words say; strings are theirs. */
struct conductor_options {
    struct route_options route;
    uint32_t metrics_ms;    /* between two looks at an engine's /metrics */
    const char *metrics_ca; /* a file of who signs their certificates; NULL: those of the system */
    uint32_t http_port;     /* of the HTTP paths' own, 0: any; or CONDUCTOR_NO_PORT */
    const char *http_bind;  /* NULL: this machine alone */
    bool http_open;         /* there, nobody is asked for the token */
};
#define CONDUCTOR_NO_PORT UINT32_MAX

/* false: error names the word, and says what to do. */
bool conductor_options_parse(size_t argc, const char *const *argv,
                             struct conductor_options *options, char *error, size_t cap);

/* --- declare.c --- */

tarn_status conductor_commands_declare(void);

/* --- decide.c --- */

void conductor_prompt_free(void);

/* --- manage.c --- */

/* As LIST has them: "both", "up". */
const char *conductor_role_name(enum route_role role);
const char *conductor_state_name(const struct route_engine_view *v);

/* --- figures.c --- */

void conductor_show_figures(struct figure_walk *walk);

/* --- rows.c --- */

/* struct tarn_module.rows */
enum tarn_rows conductor_rows(const char *table, uint64_t *from, struct figure_walk *walk);

/* --- answer.c --- */

/* An error, counted as a request that is wrong. */
void conductor_fail(struct tarn_call_context *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* What the route says is wrong. */
void conductor_fail_route(struct tarn_call_context *c, tarn_status status);
struct refusal; /* enroll.h */
void conductor_refuse(struct tarn_call_context *c, const struct refusal *why);
/* It could not be kept. */
void conductor_fail_kept(struct tarn_call_context *c, tarn_status status);
/* Pairs of a map. */
void field_int(struct tarn_call_context *c, const char *name, uint64_t value);
void field_double(struct tarn_call_context *c, const char *name, double value);
void field_text(struct tarn_call_context *c, const char *name, const char *value);

#endif
