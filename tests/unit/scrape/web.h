/* A stand-in engine's /metrics: a thread that serves one connection at a time, as its mode says. */
#ifndef TARN_TESTS_SCRAPE_WEB_H
#define TARN_TESTS_SCRAPE_WEB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum web_mode {
    WEB_ANSWERS,
    WEB_NOT_FOUND,
    WEB_REDIRECTS, /* to where WEB_ANSWERS would be */
    WEB_CUT,       /* ends before it should */
    WEB_SILENT,
    WEB_DRIPS,   /* a byte now and then */
    WEB_ENDLESS, /* a body without an end */
    WEB_HEADERS, /* a head without an end */
    WEB_GARBAGE, /* no HTTP */
};
struct web {
    int fd;
    uint16_t port;
    pthread_t thread;
    _Atomic enum web_mode mode;
    _Atomic unsigned requests;
    atomic_bool stop;
    char text[1024]; /* the answer; set before it is started */
};

/* port 0: any free one. */
void web_start(struct web *w, enum web_mode mode, uint16_t port, const char *text);
/* Whoever connects is refused from then on. */
void web_stop(struct web *w);

#endif
