/* The one status type of tarn, shared by libtarn's callers and every room of the source tree.
 *
 * Functions return TARN_OK or a negative status. Outputs are written only on TARN_OK, unless a
 * header says otherwise. */
#ifndef TARN_STATUS_H
#define TARN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tarn_status {
    TARN_OK = 0,
    /* anything without a better name; the log or tarn_last_error() says what */
    TARN_ERR = -1,
    TARN_ENOMEM = -2,          /* this process has no memory left */
    TARN_EINVAL = -3,          /* an argument is out of range */
    TARN_EAGAIN = -4,          /* not done yet: call again, or wait for the event */
    TARN_ETIMEOUT = -5,        /* the deadline passed */
    TARN_ECLOSED = -6,         /* the connection or handle is closed */
    TARN_EIO = -7,             /* a system call failed; errno was logged */
    TARN_EPROTO = -8,          /* the peer broke the protocol, or speaks another version */
    TARN_ENOTFOUND = -9,       /* no such key, or its value is gone: a miss */
    TARN_EEXISTS = -10,        /* the key is there already */
    TARN_EBUSY = -11,          /* PUTBUSY: another put of the key is under way */
    TARN_ENOSPACE = -12,       /* NOSPACE: nothing that may be evicted makes room for it */
    TARN_ETOKEN = -13,         /* BADTOKEN: the put is over, or was never this one */
    TARN_ESTALE = -14,         /* STALE: wrong epoch; fetch the location again */
    TARN_EQUOTA = -15,         /* QUOTA: larger than its quota */
    TARN_EPERM = -16,          /* NOAUTH or NOPERM, or a grant that was refused */
    TARN_EGRANT_EXPIRED = -17, /* a grant whose time is over */
    TARN_ECORRUPT = -18,       /* bytes that do not match their checksum */
    TARN_ELEASE = -19,         /* the lease ran out before the bytes were verified */
    /* READONLY: this server is a replica; NOREPLICAS: it has too few of them */
    TARN_EREADONLY = -20,
    TARN_ELOADING = -21,   /* LOADING */
    TARN_EOOM = -22,       /* OOM: the server's books or buffers are full */
    TARN_ENOSEGMENT = -23, /* NOSEGMENT: no such segment */
    TARN_ELIMIT = -24,     /* a bound of this library or server was reached */
    TARN_ECANCELED = -25,  /* given up on request */
    TARN_ENOTSUP = -26,    /* not here: this build, machine or transport cannot do it */
    /* TRYAGAIN: room or readiness will come, and did not within the call's time */
    TARN_ELATER = -27,
    /* MOVED, ASK, CROSSSLOT: another master of the pool has the key */
    TARN_EMOVED = -28,
} tarn_status;

/* A short English text, never NULL, static storage. */
const char *tarn_status_text(tarn_status status);

#ifdef __cplusplus
}
#endif
#endif
