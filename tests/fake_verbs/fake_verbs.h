/* What a test may do to the fake verbs library, and ask it. README.md tells what it is.
 *
 * Everything may be called from any thread, at any time, except fake_configure. */
#ifndef TARN_TESTS_FAKE_VERBS_H
#define TARN_TESTS_FAKE_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

/* Devices and limits anew, from a text as in the environment's FAKE_VERBS; NULL: that one. Nothing
 * is alive but contexts that librdmacm opened; those are gone afterwards. Injections are forgotten.
 *
 *   devices=2                  how many (default 1, 0: none), named fake0, fake1, ...
 *   addresses=A;B              one per device; default 127.0.0.1, 127.0.0.2, ...
 *   max_qp_wr= max_sge= max_inline= max_qp= max_cqe= max_mr= max_pd= max_rd_atom= max_mr_size=
 *   max_msg=
 *   relaxed=0                  IBV_ACCESS_RELAXED_ORDERING is refused
 *   dmabuf=0                   ibv_reg_dmabuf_mr is refused
 *   speed= width= mtu=         as in struct ibv_port_attr
 *   sysfs=DIR                  devices claim to be DIR/NAME there
 *   delay_us=                  completions come so much later
 *   stall_ms=3000              a peer that is there and says nothing is given up after so long, or
 *                              the queue pair's timeout when that is longer (that alone counts for
 *                              peers that are gone)
 *   cm_ms=20000                no answer to a connection request
 *   control=FILE               a line of it is done as soon as it is there: "port NAME up|down",
 *                              "remove NAME", "qp NUMBER error", "qp NUMBER cut", "hold on|off",
 *                              "delay_us N" */
void fake_configure(const char *text);

/* A device that appears. address NULL: the default one of its number. */
void fake_device_add(const char *name, const char *address);
/* One that breaks and disappears: IBV_EVENT_DEVICE_FATAL, RDMA_CM_EVENT_DEVICE_REMOVAL, whatever
 * needs it fails. Its queue pairs are flushed. silent: IBV_EVENT_DEVICE_FATAL, and nothing more is
 * heard of it. */
void fake_device_remove(const char *name, bool silent);
void fake_port(const char *name, bool up);

/* The queue pair of this process with that number: its oldest request fails like that (one without:
 * just an error state). */
void fake_qp_error(uint32_t qp_num, enum ibv_wc_status status);
/* Not a byte gets through any more, and nobody is told. */
void fake_cut(uint32_t qp_num);
/* As if the other side had asked for it. That does nothing to the other side: its queue pair takes
 * what still comes. */
void fake_disconnect(uint32_t qp_num);
/* Completions are held back while true. What they report of has happened. */
void fake_hold(bool hold);
void fake_delay_us(uint64_t us);

enum fake_call {
    FAKE_ALLOC_PD,
    FAKE_REG_MR, /* also by dma-buf */
    FAKE_CREATE_COMP_CHANNEL,
    FAKE_CREATE_CQ,
    FAKE_CREATE_QP,
    FAKE_MODIFY_QP, /* not to ERR or RESET */
    FAKE_POST_SEND,
    FAKE_QUERY_DEVICE,
    FAKE_QUERY_PORT,
    FAKE_CREATE_EVENT_CHANNEL,
    FAKE_CREATE_ID,
    FAKE_BIND_ADDR,
    FAKE_LISTEN,
    FAKE_RESOLVE_ADDR,
    FAKE_RESOLVE_ROUTE,
    FAKE_CONNECT,
    FAKE_ACCEPT,
    FAKE_ESTABLISH,
    FAKE_INIT_QP_ATTR,
    FAKE_CALLS
};
/* The call fails with that errno, `times` times, after it has done well `after` times more. times
 * 0: never again. */
void fake_fail(enum fake_call call, unsigned after, unsigned times, int error);

enum fake_object {
    FAKE_PDS,
    FAKE_MRS,
    FAKE_COMP_CHANNELS,
    FAKE_CQS,
    FAKE_QPS,
    FAKE_EVENT_CHANNELS,
    FAKE_IDS,
    FAKE_OBJECTS
};
/* How many are alive in this process. */
unsigned fake_count(enum fake_object object);
/* All of them together. */
unsigned fake_count_all(void);

/* How many completions wait there to be polled. */
int fake_completions(struct ibv_cq *cq);

/* What the devices of this process have done as responders, since it started. */
struct fake_served {
    uint64_t reads, writes, refused; /* refused: remote access errors */
};
struct fake_served fake_served(void);

#endif
