#include "scrape/scraper.h"

#include <curl/curl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "base/thread.h"
#include "base/wake.h"

#define SCRAPER_MAGIC UINT32_C(0x73637270)

/* added ─> idle ─ due ─> asking ─ over ─> idle ...; removed ─> gone, when the thread sees it */
struct scraper_source {
    struct scraper *scraper;
    void *owner;
    char url[SCRAPER_URL];
    TAILQ_ENTRY(scraper_source) link;

    /* --- under the lock --- */
    bool removed, waits; /* waits: its answer has not been taken */
    TAILQ_ENTRY(scraper_source) ready;
    struct scraper_info shown;
    struct scrape_load load;

    /* --- the thread's --- */
    CURL *easy; /* NULL: there is none yet */
    bool asking;
    uint64_t due_ms, begun_ms;
    size_t bytes; /* of this answer */
    char error[CURL_ERROR_SIZE], why[SCRAPE_WHY];
    uint64_t news_ms; /* log_is_news */
    struct scrape_reader reader;
};
TAILQ_HEAD(source_list, scraper_source);

struct scraper {
    uint32_t magic;
    struct scraper_config config;
    char *ca_file;
    CURLM *multi;
    struct curl_slist *headers;
    pthread_t thread;
    int ready_fd; /* there is something to take; written and read under the lock */

    pthread_mutex_t lock; /* held for a moment only; nothing else is locked under it */
    bool stop, paused;
    uint32_t count;             /* sources that are not removed */
    struct source_list sources; /* removed ones until the thread sees it */
    struct source_list ready;   /* with something to take, the longest untaken first */
};

#define ROW(...) FIGURE_ROW(struct scraper_figures, __VA_ARGS__)
const struct figure scraper_figures[] = {SCRAPER_FIGURES(ROW){.name = NULL}};

const char *scraper_state_name(enum scraper_state state) {
    static const char *const names[] = {"paused", "asking", "up", "failing"};
    return names[state];
}

void scraper_defaults(struct scraper_config *config) {
    *config = (struct scraper_config){
        .every_ms = 1000, .timeout_ms = 5000, .answer_max_bytes = 4u << 20, .sources_max = 1024};
}

bool scraper_url_valid(struct span url) {
    static const struct span schemes[] = {SPAN("http://"), SPAN("https://")};
    if (url.len >= SCRAPER_URL) return false;
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) {
        if (!span_starts(url, schemes[i])) continue;
        size_t host = schemes[i].len;
        for (size_t k = 0; k < url.len; k++)
            if (url.data[k] <= ' ' || url.data[k] > '~' || url.data[k] == '@') return false;
        return host < url.len && memchr("/:?#", url.data[host], 4) == NULL;
    }
    return false;
}

/* --- one request --- */

static bool count_bytes(struct scraper_source *x, size_t n) {
    size_t most = x->scraper->config.answer_max_bytes;
    x->bytes += n;
    if (x->bytes > most)
        snprintf(x->why, sizeof(x->why), "its answer has more than %zu bytes", most);
    return x->bytes <= most;
}

static size_t on_header(char *data, size_t one, size_t n, void *arg) {
    return count_bytes(arg, n) ? n : 0;
}

static size_t on_piece(char *data, size_t one, size_t n, void *arg) {
    struct scraper_source *x = arg;
    long status = 0;
    if (!count_bytes(x, n)) return 0;
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200) scrape_reader_take(&x->reader, span_of(data, n));
    return n;
}

/* false: there is no memory for it. */
static bool source_open(struct scraper_source *x) {
    const struct scraper *s = x->scraper;
    CURL *e = x->easy = curl_easy_init();
    if (e == NULL) return false;
    curl_easy_setopt(e, CURLOPT_URL, x->url);
    curl_easy_setopt(e, CURLOPT_PRIVATE, x);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, s->headers);
    curl_easy_setopt(e, CURLOPT_USERAGENT, "tarn");
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(e, CURLOPT_PROXY, "");
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)s->config.timeout_ms);
    curl_easy_setopt(e, CURLOPT_QUICK_EXIT, 1L); /* a thread that resolves a name is left to it */
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_piece);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, x->error);
    if (s->ca_file != NULL) curl_easy_setopt(e, CURLOPT_CAINFO, s->ca_file);
    return true;
}

static bool source_ask(struct scraper_source *x, uint64_t now_ms) {
    x->begun_ms = now_ms;
    x->due_ms = now_ms + x->scraper->config.every_ms;
    x->bytes = 0;
    x->error[0] = x->why[0] = '\0';
    scrape_reader_begin(&x->reader);
    x->asking = (x->easy != NULL || source_open(x)) &&
                curl_multi_add_handle(x->scraper->multi, x->easy) == CURLM_OK;
    return x->asking;
}

/* What it says in words. */
static void source_explain(struct scraper_source *x, CURLcode code) {
    long number = 0;
    if (x->why[0] != '\0') return;
    switch (code) {
    case CURLE_OK:
        curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &number);
        snprintf(x->why, sizeof(x->why), "it answers with status %ld", number);
        return;
    case CURLE_OPERATION_TIMEDOUT:
        snprintf(x->why, sizeof(x->why), "no whole answer within %u ms",
                 x->scraper->config.timeout_ms);
        return;
    case CURLE_COULDNT_CONNECT:
        curl_easy_getinfo(x->easy, CURLINFO_OS_ERRNO, &number);
        if (number != 0) {
            snprintf(x->why, sizeof(x->why), "%s", strerror((int)number));
            x->why[0] = ascii_lower(x->why[0]);
            return;
        }
        break;
    default: break;
    }
    const char *error = x->error[0] != '\0' ? x->error : curl_easy_strerror(code);
    span_to_text(span_str(error), x->why, sizeof(x->why));
    for (char *c = x->why; *c != '\0'; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

static bool source_read(struct scraper_source *x, CURLcode code, struct scrape_load *load) {
    long status = 0;
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    return code == CURLE_OK && status == 200 && scrape_reader_end(&x->reader, load, x->why);
}

/* Under the lock. */
static void source_unready(struct scraper_source *x) {
    if (x->waits) TAILQ_REMOVE(&x->scraper->ready, x, ready);
    x->waits = false;
}

static void source_hand_over(struct scraper_source *x, const struct scrape_load *load) {
    struct scraper *s = x->scraper;
    if (x->removed || s->paused) return;
    x->load = *load;
    if (x->waits) return;
    x->waits = true;
    if (TAILQ_EMPTY(&s->ready)) wake_say(s->ready_fd);
    TAILQ_INSERT_TAIL(&s->ready, x, ready);
}

static void source_over(struct scraper_source *x, CURLcode code) {
    struct scrape_load load;
    uint64_t now_ms = clock_mono_ms();
    bool answered = source_read(x, code, &load);
    if (!answered) source_explain(x, code);
    curl_multi_remove_handle(x->scraper->multi, x->easy);
    x->asking = false;

    struct scraper_info *i = &x->shown;
    pthread_mutex_lock(&x->scraper->lock);
    bool began = !answered && i->failing_ms == 0, ended = answered && i->failing_ms != 0;
    i->figures.scrape_requests++;
    i->figures.scrape_bytes += x->bytes;
    i->figures.scrape_answers += answered;
    i->figures.scrape_failures += !answered;
    i->figures.scrape_refused += x->reader.refused;
    if (x->reader.refused > 0) memcpy(i->why_refused, x->reader.why, sizeof(i->why_refused));
    i->state = answered ? SCRAPER_UP : SCRAPER_FAILING;
    i->failing_ms = answered ? 0 : began ? now_ms : i->failing_ms;
    snprintf(i->why, sizeof(i->why), "%s", answered ? "" : x->why);
    if (answered) {
        i->answered_ms = now_ms;
        i->took_ms = (uint32_t)(now_ms - x->begun_ms);
        source_hand_over(x, &load);
    }
    pthread_mutex_unlock(&x->scraper->lock);
    if ((began || ended) && log_is_news(&x->news_ms, now_ms))
        log_notice("metrics of %s: %s", x->url, answered ? "they are there again" : x->why);
}

static void source_destroy(struct scraper_source **x_p) {
    struct scraper_source *x = *x_p;
    *x_p = NULL;
    if (x->asking) curl_multi_remove_handle(x->scraper->multi, x->easy);
    if (x->easy != NULL) curl_easy_cleanup(x->easy);
    free(x);
}

/* --- the thread --- */

/* Those that were removed go; who is due is asked. Returns until when nobody is. */
static uint64_t scraper_serve(struct scraper *s, uint64_t now_ms) {
    struct scraper_source *x, *next;
    struct source_list gone = TAILQ_HEAD_INITIALIZER(gone);
    uint64_t due_ms = now_ms + 60000;
    pthread_mutex_lock(&s->lock);
    bool paused = s->paused;
    QUEUE_FOREACH_SAFE(TAILQ, x, &s->sources, link, next) {
        if (!x->removed) continue;
        TAILQ_REMOVE(&s->sources, x, link);
        TAILQ_INSERT_TAIL(&gone, x, link);
    }
    /* Others add behind the last one, and nobody but this thread takes one out. */
    x = TAILQ_FIRST(&s->sources);
    pthread_mutex_unlock(&s->lock);
    while (x != NULL) {
        if (!x->asking && !paused && x->due_ms <= now_ms && !source_ask(x, now_ms))
            source_over(x, CURLE_OUT_OF_MEMORY);
        if (!x->asking && !paused) due_ms = min_u64(due_ms, x->due_ms);
        pthread_mutex_lock(&s->lock);
        x = TAILQ_NEXT(x, link);
        pthread_mutex_unlock(&s->lock);
    }
    while ((x = TAILQ_TAKE(&gone, link)) != NULL) source_destroy(&x);
    return due_ms;
}

static void *scraper_run(void *arg) {
    struct scraper *s = arg;
    for (;;) {
        int running, left;
        uint64_t now_ms = clock_mono_ms(), due_ms = scraper_serve(s, now_ms);
        curl_multi_perform(s->multi, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(s->multi, &left)) != NULL;) {
            struct scraper_source *x = NULL;
            CURLcode code = m->data.result; /* m is gone with its handle */
            if (m->msg != CURLMSG_DONE) continue;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &x);
            source_over(x, code);
            due_ms = min_u64(due_ms, x->due_ms);
        }
        pthread_mutex_lock(&s->lock);
        bool stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        if (stop) return NULL;
        now_ms = clock_mono_ms();
        /* Where it cannot wait, it has not waited. */
        if (curl_multi_poll(s->multi, NULL, 0, due_ms > now_ms ? (int)(due_ms - now_ms) : 0,
                            NULL) != CURLM_OK)
            usleep(100000);
    }
}

/* --- from outside --- */

static void scraper_free(struct scraper *s) {
    struct scraper_source *x;
    while ((x = TAILQ_TAKE(&s->sources, link)) != NULL) source_destroy(&x);
    if (s->multi != NULL) curl_multi_cleanup(s->multi);
    curl_slist_free_all(s->headers);
    if (s->ready_fd >= 0) close(s->ready_fd);
    pthread_mutex_destroy(&s->lock);
    free(s->ca_file);
    free(s);
}

/* libcurl stays where it is: a thread of its that resolves a name may outlive all else. */
static void curl_pin(void) {
    Dl_info where;
    if (dladdr((void *)(uintptr_t)curl_multi_init, &where) != 0)
        (void)dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

static bool scraper_open(struct scraper *s) {
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return false;
    curl_pin();
    s->multi = curl_multi_init();
    s->headers = curl_slist_append(NULL, "Accept: text/plain;version=0.0.4");
    s->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->multi == NULL || s->headers == NULL || s->ready_fd < 0) return false;
    curl_multi_setopt(s->multi, CURLMOPT_MAXCONNECTS, (long)s->config.sources_max);
    return true;
}

tarn_status scraper_create(const struct scraper_config *config, struct scraper **s_p) {
    TARN_ASSERT(config->every_ms > 0 && config->timeout_ms > 0 && config->answer_max_bytes > 0 &&
                config->sources_max > 0);
    struct scraper *s = xcalloc(1, sizeof(*s));
    s->magic = SCRAPER_MAGIC;
    s->config = *config;
    s->ca_file = xstrdup(config->ca_file);
    s->ready_fd = -1;
    TAILQ_INIT(&s->sources);
    TAILQ_INIT(&s->ready);
    pthread_mutex_init(&s->lock, NULL);
    if (!scraper_open(s)) {
        log_warning("metrics of engines cannot be asked for: no descriptors, or no libcurl");
        scraper_free(s);
        return TARN_EIO;
    }
    int error = thread_start(&s->thread, "scrape", scraper_run, s);
    if (error != 0) {
        log_warning("metrics of engines cannot be asked for: no thread: %s", strerror(error));
        scraper_free(s);
        return TARN_ENOMEM;
    }
    *s_p = s;
    return TARN_OK;
}

void scraper_destroy(struct scraper **s_p) {
    struct scraper *s = *s_p;
    *s_p = NULL;
    if (s == NULL) return;
    MAGIC_CHECK(s, SCRAPER_MAGIC);
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_mutex_unlock(&s->lock);
    curl_multi_wakeup(s->multi);
    pthread_join(s->thread, NULL);
    s->magic = 0;
    scraper_free(s);
}

tarn_status scraper_add(struct scraper *s, struct span url, void *owner,
                        struct scraper_source **x_p) {
    MAGIC_CHECK(s, SCRAPER_MAGIC);
    if (!scraper_url_valid(url)) return TARN_EINVAL;
    if (s->count == s->config.sources_max) return TARN_ELIMIT;
    struct scraper_source *x = xcalloc(1, sizeof(*x));
    x->scraper = s;
    x->owner = owner;
    span_to_text(url, x->url, sizeof(x->url));
    x->shown.state = SCRAPER_ASKING;
    pthread_mutex_lock(&s->lock);
    s->count++;
    TAILQ_INSERT_TAIL(&s->sources, x, link);
    pthread_mutex_unlock(&s->lock);
    curl_multi_wakeup(s->multi);
    *x_p = x;
    return TARN_OK;
}

void scraper_remove(struct scraper_source **x_p) {
    struct scraper_source *x = *x_p;
    *x_p = NULL;
    if (x == NULL) return;
    struct scraper *s = x->scraper;
    pthread_mutex_lock(&s->lock);
    source_unready(x);
    x->removed = true; /* the thread's from here on */
    s->count--;
    pthread_mutex_unlock(&s->lock);
    curl_multi_wakeup(s->multi);
}

void scraper_pause(struct scraper *s, bool pause) {
    MAGIC_CHECK(s, SCRAPER_MAGIC);
    struct scraper_source *x;
    pthread_mutex_lock(&s->lock);
    s->paused = pause;
    while (pause && (x = TAILQ_FIRST(&s->ready)) != NULL) source_unready(x);
    pthread_mutex_unlock(&s->lock);
    curl_multi_wakeup(s->multi);
}

void scraper_info(const struct scraper_source *x, struct scraper_info *info) {
    struct scraper *s = x->scraper;
    pthread_mutex_lock(&s->lock);
    *info = x->shown;
    if (s->paused) info->state = SCRAPER_PAUSED;
    pthread_mutex_unlock(&s->lock);
}

bool scraper_take(struct scraper *s, void **owner_p, struct scrape_load *load) {
    MAGIC_CHECK(s, SCRAPER_MAGIC);
    pthread_mutex_lock(&s->lock);
    struct scraper_source *x = TAILQ_FIRST(&s->ready);
    if (x == NULL) {
        wake_empty(s->ready_fd);
    } else {
        source_unready(x);
        *owner_p = x->owner;
        *load = x->load;
    }
    pthread_mutex_unlock(&s->lock);
    return x != NULL;
}

int scraper_fd(const struct scraper *s) {
    MAGIC_CHECK(s, SCRAPER_MAGIC);
    return s->ready_fd;
}
