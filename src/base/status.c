/* The texts of tarn_status: one switch without a default, so that a new status fails to compile without its
 * text. */
#include "base/status.h"

const char *tarn_status_text(tarn_status status) {
    switch (status) {
    case TARN_OK: return "ok";
    case TARN_ERR: return "error";
    case TARN_ENOMEM: return "out of memory";
    case TARN_EINVAL: return "invalid argument";
    case TARN_EAGAIN: return "not done yet, try again";
    case TARN_ETIMEOUT: return "deadline passed";
    case TARN_ECLOSED: return "closed";
    case TARN_EIO: return "input/output error";
    case TARN_EPROTO: return "protocol error";
    case TARN_ENOTFOUND: return "not found";
    case TARN_EEXISTS: return "already exists";
    case TARN_EBUSY: return "another put of this key is under way";
    case TARN_ENOSPACE: return "no space, and nothing that may be evicted";
    case TARN_ETOKEN: return "not the token of a pending put";
    case TARN_ESTALE: return "stale epoch";
    case TARN_EQUOTA: return "larger than its quota";
    case TARN_EPERM: return "not permitted";
    case TARN_EGRANT_EXPIRED: return "grant expired";
    case TARN_ECORRUPT: return "checksum mismatch";
    case TARN_ELEASE: return "lease ended before the bytes were verified";
    case TARN_EREADONLY: return "this server takes no writes";
    case TARN_ELOADING: return "loading";
    case TARN_EOOM: return "the server's books or buffers are full";
    case TARN_ENOSEGMENT: return "no such segment";
    case TARN_ELIMIT: return "limit reached";
    case TARN_ECANCELED: return "canceled";
    case TARN_ENOTSUP: return "not supported here";
    }
    return "unknown status";
}
