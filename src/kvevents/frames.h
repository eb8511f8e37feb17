/* Messages of several frames, as libzmq gives them, and what engines put into them. */
#ifndef TARN_KVEVENTS_FRAMES_H
#define TARN_KVEVENTS_FRAMES_H

#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>
#include "base/buf.h"

#define FRAMES_MAX 5

struct frames {
    zmq_msg_t frame[FRAMES_MAX];
    unsigned n; /* of the message; those above FRAMES_MAX were dropped */
    uint64_t bytes;
};

/* Without waiting. 0, or an errno: EAGAIN, nothing is there. On 0 frames_close is due. */
int frames_receive(void *socket, struct frames *f);
void frames_close(struct frames *f);

/* What the last two frames are: a number and a batch, or the end of a replay, in any of the forms
 * of the engines: [number, batch] after a topic or an empty frame or both; a number of -1, or
 * nothing but empty frames. */
enum frames_what { FRAMES_BATCH, FRAMES_END, FRAMES_BAD };
enum frames_what frames_what(struct frames *f, uint64_t *number_p, struct span *batch_p);

/* Asks for batches from that number on. 0, or an errno. */
int frames_ask(void *socket, uint64_t number);

#endif
