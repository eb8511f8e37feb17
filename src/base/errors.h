/* Every status and every error code, once: what is on the wire, what libtarn makes of it, the
 * sentence, and what a client does about it. The server's replies, libtarn's reading of them and
 * tarn_status_text come from here; the tables of docs/COMMANDS.md and docs/LIBTARN.md and the
 * exceptions of utils/python are compared with it (tools/check-docs.tcl). */
#ifndef TARN_BASE_ERRORS_H
#define TARN_BASE_ERRORS_H
#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

enum error_act {
    ERROR_FINAL, /* trying again makes it no better */
    ERROR_ONCE,  /* once more, at once: look again where the bytes are */
    ERROR_PAUSE, /* again after a pause, a few times */
    /* again, after the time that the answer says or a pause, until the call's time is over */
    ERROR_LATER,
    ERROR_ELSEWHERE, /* at the master, as soon as it is known who that is */
    /* in a batch: again when some of it is done, which may be what stood in the way */
    ERROR_TURN,
};

/* status, its code on the wire ("": none, it never leaves a process; the first of a code is what
 * the code means), what to do, the sentence */
#define ERROR_STATUSES(X)                                                                          \
    X(TARN_OK, "", ERROR_FINAL, "ok")                                                              \
    X(TARN_ERR, "ERR", ERROR_FINAL, "error")                                                       \
    X(TARN_ENOMEM, "", ERROR_FINAL, "out of memory")                                               \
    X(TARN_EINVAL, "ERR", ERROR_FINAL, "invalid argument")                                         \
    X(TARN_EAGAIN, "", ERROR_FINAL, "not done yet")                                                \
    X(TARN_ETIMEOUT, "", ERROR_ELSEWHERE, "deadline passed")                                       \
    X(TARN_ECLOSED, "", ERROR_PAUSE, "closed")                                                     \
    X(TARN_EIO, "", ERROR_PAUSE, "input/output error")                                             \
    X(TARN_EPROTO, "", ERROR_FINAL, "protocol error")                                              \
    X(TARN_ENOTFOUND, "ERR", ERROR_FINAL, "no such key")                                           \
    X(TARN_EEXISTS, "ERR", ERROR_FINAL, "it exists already")                                       \
    X(TARN_EBUSY, "PUTBUSY", ERROR_TURN, "another put of this key is under way")                   \
    X(TARN_ENOSPACE, "NOSPACE", ERROR_TURN, "no room, and nothing that may be evicted makes any")  \
    X(TARN_ETOKEN, "BADTOKEN", ERROR_FINAL, "this is not the token of a put under way")            \
    X(TARN_ESTALE, "STALE", ERROR_ONCE, "the epoch is over")                                       \
    X(TARN_EQUOTA, "QUOTA", ERROR_FINAL, "a quota, or the share of hard pins, is full")            \
    X(TARN_EPERM, "NOPERM", ERROR_FINAL, "this is not allowed")                                    \
    X(TARN_EGRANT_EXPIRED, "", ERROR_ONCE, "grant expired")                                        \
    X(TARN_ECORRUPT, "", ERROR_ONCE, "checksum mismatch")                                          \
    X(TARN_ELEASE, "", ERROR_ONCE, "lease ended before the bytes were verified")                   \
    X(TARN_EREADONLY, "READONLY", ERROR_ELSEWHERE, "You can't write against a read only replica.") \
    X(TARN_ELOADING, "LOADING", ERROR_LATER, "books, nodes or memory are not there yet")           \
    X(TARN_EOOM, "OOM", ERROR_TURN, "command not allowed when used memory > 'maxmemory'.")         \
    X(TARN_ENOSEGMENT, "NOSEGMENT", ERROR_ONCE, "no such segment")                                 \
    X(TARN_ELIMIT, "LIMIT", ERROR_TURN, "as many as are allowed are there already")                \
    X(TARN_ECANCELED, "", ERROR_FINAL, "canceled")                                                 \
    X(TARN_ENOTSUP, "", ERROR_FINAL, "not supported here")                                         \
    X(TARN_ELATER, "TRYAGAIN", ERROR_LATER, "not now: again in a moment")                          \
    X(TARN_EMOVED, "MOVED", ERROR_FINAL, "another master of the pool has the key")

/* Codes that the server says in a sentence of their own, and the status that says what to do. */
#define ERROR_CODES(X)                                                                             \
    X("NOAUTH", TARN_EPERM)                                                                        \
    X("WRONGPASS", TARN_EPERM)                                                                     \
    X("DENIED", TARN_EPERM)                                                                        \
    X("NOREPLICAS", TARN_EREADONLY) /* with Sentinels: it may be deposed and not know it */        \
    X("MASTERDOWN", TARN_ELOADING)                                                                 \
    X("BUSY", TARN_EBUSY)                                                                          \
    X("ASK", TARN_EMOVED)                                                                          \
    X("CROSSSLOT", TARN_EMOVED)                                                                    \
    X("CLUSTERDOWN", TARN_ELOADING)

/* The code on the wire; "": none. */
const char *error_code(tarn_status status);
enum error_act error_act(tarn_status status);
/* Of "CODE text", as it stands behind the '-': TARN_ERR when the code is not known. */
tarn_status error_read(const char *line);
/* "TRYAGAIN <ms> text": the ms, at most ERROR_LATER_MAX_MS; 0 for anything else. */
uint64_t error_later_ms(const char *line);
#define ERROR_LATER_MAX_MS 60000u

#endif
