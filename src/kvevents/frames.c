#include "kvevents/frames.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "base/assert.h"
#include "kvevents/sequence.h"

int frames_receive(void *socket, struct frames *f) {
    f->n = 0;
    f->bytes = 0;
    for (;;) {
        zmq_msg_t dropped, *frame = f->n < FRAMES_MAX ? &f->frame[f->n] : &dropped;
        zmq_msg_init(frame);
        if (zmq_msg_recv(frame, socket, ZMQ_DONTWAIT) < 0) {
            int error = errno;
            zmq_msg_close(frame);
            if (error == EINTR) continue;
            /* Messages come whole, or not at all. */
            if (error == EAGAIN && f->n > 0) error = EIO;
            frames_close(f);
            return error;
        }
        bool more = zmq_msg_more(frame);
        f->bytes += zmq_msg_size(frame);
        if (frame == &dropped) zmq_msg_close(frame);
        f->n++;
        if (!more) return 0;
    }
}

void frames_close(struct frames *f) {
    for (unsigned i = 0; i < f->n && i < FRAMES_MAX; i++) zmq_msg_close(&f->frame[i]);
    f->n = 0;
}

static struct span frame_span(struct frames *f, unsigned i) {
    return span_of(zmq_msg_data(&f->frame[i]), zmq_msg_size(&f->frame[i]));
}

static bool frame_number(struct span frame, uint64_t *number_p) {
    uint64_t number;
    if (frame.len != sizeof(number)) return false;
    memcpy(&number, frame.data, sizeof(number));
    *number_p = be64toh(number);
    return true;
}

enum frames_what frames_what(struct frames *f, uint64_t *number_p, struct span *batch_p) {
    uint64_t number;
    if (f->n == 0 || f->n > FRAMES_MAX) return FRAMES_BAD;
    if (f->bytes == 0) return FRAMES_END;
    struct span last = frame_span(f, f->n - 1);
    if (frame_number(last, &number) && number == SEQUENCE_END) return FRAMES_END;
    if (f->n < 2 || !frame_number(frame_span(f, f->n - 2), &number)) return FRAMES_BAD;
    if (number == SEQUENCE_END) return FRAMES_END;
    *number_p = number;
    *batch_p = last;
    return FRAMES_BATCH;
}

int frames_ask(void *socket, uint64_t number) {
    uint64_t wire = htobe64(number);
    /* The empty frame is what a REQ socket would put there, and what engines expect. */
    if (zmq_send(socket, "", 0, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) return errno;
    return zmq_send(socket, &wire, sizeof(wire), ZMQ_DONTWAIT) < 0 ? errno : 0;
}
