/* Clients' queue pairs. What a client may do is what its queue pair may: it lives in the protection
 * domain of one segment, and has the right to write or has not. The grant is checked once, here;
 * from then on this process does nothing until it destroys the queue pair. That is what cutting off
 * is. */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/segment_header.h"
#include "rdma/passive.h"

#define PENDING_CONNECTS                                                                           \
    5u /* a peer that was accepted may take so many connect timeouts to come up */

#define COMPLAIN_MS 10000u
#define QUIET_IDLES 3u  /* one that says nothing for so many idle timeouts is dead, */
#define LOOKS       16u /* but only some are looked at each time that there is no room */

/* --- the end --- */

void rdma_peer_destroy(struct rdma_peer *p) {
    struct transport_listener *l = p->listener;
    (void)ibv_destroy_qp(p->qp); /* it fails where the device is gone, and the queue pair with it */
    rdma_destroy_id(p->id);      /* tells the client */
    TAILQ_REMOVE(&l->peers, p, link);
    if (!p->up) TAILQ_REMOVE(&l->pending, p, waiting);
    l->stats.connections--;
    program_drop(&l->programs, p->counted);
    RDMA_TOTAL(connections, -1);
    free(p);
}

void rdma_peers_turn(struct transport_listener *l) {
    uint64_t patience = PENDING_CONNECTS * rdma_options.connect_ms;
    struct rdma_peer *p;
    while ((p = TAILQ_FIRST(&l->pending)) != NULL && l->domain->now_ms >= p->since_ms + patience) {
        log_verbose("An RDMA client of segment %u did not complete its connection",
                    p->memory->config.segment);
        l->stats.timeouts++;
        rdma_peer_destroy(p);
    }
    if (p != NULL) rdma_domain_wake_at(l->domain, p->since_ms + patience);
}

void rdma_peer_event(struct rdma_peer *p, enum rdma_cm_event_type type) {
    switch (type) {
    case RDMA_CM_EVENT_ESTABLISHED:
        if (p->up) return;
        p->up = true;
        TAILQ_REMOVE(&p->listener->pending, p, waiting);
        return;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
    case RDMA_CM_EVENT_ADDR_CHANGE: return; /* its path breaks by itself, if it does */
    case RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_device_lost(p->device); break;
    default: break;
    }
    rdma_peer_destroy(p);
}

/* A client closes connections that are idle. One whose machine has died does not, and nothing
 * tells: has the queue pair heard anything since it was looked at last? */
static bool peer_is_dead(struct rdma_peer *p) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr ignored;
    uint64_t now_ms = p->listener->domain->now_ms;
    if (!p->up || ibv_query_qp(p->qp, &attr, IBV_QP_RQ_PSN, &ignored) != 0) return false;
    if (p->heard_ms == 0 || p->psn != attr.rq_psn) {
        p->psn = attr.rq_psn;
        p->heard_ms = now_ms;
        return false;
    }
    return now_ms - p->heard_ms >= QUIET_IDLES * rdma_options.idle_ms;
}

/* There is no room: looks at some, in turn. */
static bool peers_make_room(struct transport_listener *l) {
    for (unsigned i = 0; i < LOOKS && i < l->stats.connections; i++) {
        struct rdma_peer *p = TAILQ_FIRST(&l->peers);
        if (peer_is_dead(p)) {
            log_verbose(
                "An RDMA client of segment %u has been silent for long, and others want to connect",
                p->memory->config.segment);
            rdma_peer_destroy(p);
            return true;
        }
        TAILQ_REMOVE(&l->peers, p, link);
        TAILQ_INSERT_TAIL(&l->peers, p, link);
    }
    return false;
}

/* --- the beginning --- */

struct request {
    const struct rdma_listening *at;
    struct rdma_request rq;
    bool whole;
    unsigned reads; /* READs the client wants to have under way */
    uint32_t program;
    struct rdma_cm_id *id;
    struct rdma_device *device;
    struct transport_memory *memory;
    struct grant grant;
};

/* The segment's memory, by what the gate says of the grant: ids change hands. */
static unsigned request_find_memory(const struct transport_listener *l, struct request *r) {
    enum grant_op want = r->rq.right == RDMA_WRITE ? GRANT_ATTACH_WRITE : GRANT_ATTACH_READ;
    unsigned refusal = RDMA_REFUSED_SEGMENT;
    struct transport_memory *m;
    LIST_FOREACH(m, &l->domain->memories, link) {
        if (!m->config.remote || m->config.segment != r->rq.segment) continue;
        struct grant_extent whole = {r->rq.segment, r->rq.segment_epoch, 0, m->config.length};
        void *addr = NULL;
        enum grant_verdict v =
            l->gate.check(l->gate.arg, r->rq.grant, &whole, want, 0, 0, &r->grant, &addr);
        if (v == GRANT_OK && addr == m->config.addr) {
            r->memory = m;
            return GRANT_OK;
        }
        if (v != GRANT_OK) refusal = v;
    }
    return refusal;
}

/* May it? GRANT_OK, or an enum rdma_refusal. */
static unsigned request_judge(struct transport_listener *l, struct request *r) {
    if (!r->whole || r->rq.magic != RDMA_WIRE_MAGIC ||
        (r->rq.right != RDMA_READ && r->rq.right != RDMA_WRITE)) {
        l->stats.bad_frames++;
        return RDMA_REFUSED_REQUEST;
    }
    if (r->rq.version < 1) return RDMA_REFUSED_VERSION;
    if (r->device == NULL) return RDMA_REFUSED_DEVICE;
    unsigned refusal = request_find_memory(l, r);
    if (refusal != GRANT_OK) return refusal;
    const struct transport_memory *m = r->memory;
    if (m->generation == 0) return RDMA_REFUSED_NOT_YET;
    if (!m->region[r->device->index].whole)
        return m->job != NULL ? RDMA_REFUSED_NOT_YET : RDMA_REFUSED_DEVICE;
    return GRANT_OK;
}

static bool request_tells(const struct request *r) {
    return (r->rq.replaces & RDMA_PROGRAM) == RDMA_PROGRAM;
}

/* The client's version. Who replaces a queue pair has no room to tell it: then it is that of its
 * session. */
static uint32_t request_program(const struct transport_listener *l, const struct request *r) {
    const struct rdma_peer *p;
    if (request_tells(r)) return r->rq.replaces & PROGRAM_MAX;
    if (r->rq.replaces == 0) return 0;
    TAILQ_FOREACH(p, &l->peers, link)
        if (p->session == r->grant.session) return p->program;
    return PROGRAM_OTHER;
}

/* Numbers of queue pairs are unique per device only, and the client does not say which: all that it
 * could mean. */
static void destroy_replaced(struct transport_listener *l, const struct request *r) {
    if (r->rq.replaces == 0 || request_tells(r)) return;
    struct rdma_peer *p, *next;
    TAILQ_FOREACH_SAFE(p, &l->peers, link, next) {
        if (p->qp->qp_num == r->rq.replaces && p->session == r->grant.session &&
            p->memory == r->memory && p->right == r->rq.right) {
            rdma_peer_destroy(p);
        }
    }
}

static struct ibv_qp *make_qp(const struct request *r, uint8_t reads) {
    struct ibv_qp_init_attr init = {
        .send_cq = r->device->passive_cq,
        .recv_cq = r->device->passive_cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    unsigned access = IBV_ACCESS_REMOTE_READ;
    if (r->rq.right == RDMA_WRITE) access |= IBV_ACCESS_REMOTE_WRITE;
    struct ibv_qp *qp = ibv_create_qp(r->memory->region[r->device->index].pd, &init);
    if (qp == NULL) return NULL;
    if (rdma_qp_move(r->id, qp, IBV_QPS_INIT, access, 0) &&
        rdma_qp_move(r->id, qp, IBV_QPS_RTR, 0, reads) &&
        rdma_qp_move(r->id, qp, IBV_QPS_RTS, 0, 0)) {
        return qp;
    }
    int error = errno;
    ibv_destroy_qp(qp);
    errno = error;
    return NULL;
}

static struct rdma_accept make_answer(const struct request *r) {
    const struct transport_memory *m = r->memory;
    struct rdma_accept a = {
        .magic = RDMA_WIRE_MAGIC,
        .version = (uint8_t)min_u64(r->rq.version, RDMA_WIRE_VERSION),
        .segment_epoch = r->rq.segment_epoch,
        .generation = m->generation,
        .slice_max = __atomic_load_n(&r->device->max_message, __ATOMIC_RELAXED),
        .program = program_own(),
    };
    if (m->config.header_size > 0) {
        const struct segment_header *h = (void *)((char *)m->config.addr - m->config.header_size);
        a.master_epoch = segment_header_master_epoch(h);
        a.instance = segment_header_instance(h);
    }
    return a;
}

static unsigned request_accept(struct transport_listener *l, const struct request *r) {
    uint64_t most =
        r->device->attr.max_qp_rd_atom > 0 ? (uint64_t)r->device->attr.max_qp_rd_atom : 1;
    uint8_t reads = (uint8_t)min_u64(min_u64(max_u64(r->reads, 1), most), 255);
    struct ibv_qp *qp = make_qp(r, reads);
    if (qp == NULL) {
        if (l->told_ms == 0 || l->domain->now_ms >= l->told_ms + COMPLAIN_MS) {
            l->told_ms = l->domain->now_ms;
            log_warning("RDMA device %s: no queue pair for a client of segment %u: %s",
                        r->device->name, r->rq.segment, strerror(errno));
        }
        return RDMA_REFUSED_DEVICE;
    }
    struct rdma_accept answer = make_answer(r);
    struct rdma_conn_param param = {.private_data = &answer,
                                    .private_data_len = sizeof(answer),
                                    .responder_resources = reads,
                                    .flow_control = 1,
                                    .rnr_retry_count = 7,
                                    .qp_num = qp->qp_num};
    struct rdma_peer *p = xcalloc(1, sizeof(*p));
    *p = (struct rdma_peer){.tag.kind = RDMA_TAG_PEER,
                            .listener = l,
                            .at = r->at,
                            .memory = r->memory,
                            .device = r->device,
                            .id = r->id,
                            .qp = qp,
                            .session = r->grant.session,
                            .master_epoch = r->grant.master_epoch,
                            .right = (enum rdma_right)r->rq.right,
                            .program = r->program,
                            .since_ms = l->domain->now_ms};
    r->id->context = &p->tag;
    if (rdma_accept(r->id, &param) != 0) {
        log_verbose("An RDMA client of segment %u was gone before it was accepted: %s",
                    r->rq.segment, strerror(errno));
        ibv_destroy_qp(qp);
        free(p);
        r->id->context = NULL;
        return RDMA_REFUSED_DEVICE;
    }
    TAILQ_INSERT_TAIL(&l->peers, p, link);
    TAILQ_INSERT_TAIL(&l->pending, p, waiting);
    l->stats.connections++;
    p->counted = program_add(&l->programs, p->program, 1);
    l->stats.connections_total++;
    l->stats.attaches_total++;
    RDMA_TOTAL(connections, 1);
    return GRANT_OK;
}

static const char *refusal_name(unsigned refusal) {
    switch (refusal) {
    case GRANT_BAD_MAC: return "its grant is not genuine";
    case GRANT_BAD_OP: return "its grant is for something else";
    case GRANT_BAD_RANGE: return "its grant is for other bytes";
    case GRANT_BAD_EPOCH: return "its grant is of another epoch";
    case GRANT_EXPIRED: return "its grant has expired";
    case GRANT_FENCED: return "its session is cut off";
    case RDMA_REFUSED_VERSION: return "no common version";
    case RDMA_REFUSED_SEGMENT: return "no such segment";
    case RDMA_REFUSED_NOT_YET: return "the segment is being registered";
    case RDMA_REFUSED_TOO_MANY: return "too many connections";
    case RDMA_REFUSED_DEVICE: return "the device cannot";
    default: return "the request makes no sense";
    }
}

static void request_refuse(struct transport_listener *l, const struct request *r,
                           unsigned refusal) {
    struct rdma_reject answer = {RDMA_WIRE_MAGIC, 1, RDMA_WIRE_VERSION, refusal};
    l->stats.connections_refused++;
    if (refusal < GRANT_VERDICTS) l->stats.refused[refusal]++;
    log_verbose("An RDMA connection to segment %u was refused: %s", r->whole ? r->rq.segment : 0,
                refusal_name(refusal));
    (void)rdma_reject(r->id, &answer, sizeof(answer));
    rdma_destroy_id(r->id);
}

void rdma_peer_request(struct rdma_listening *at, struct rdma_cm_event *event) {
    struct transport_listener *l = at->listener;
    const struct rdma_conn_param *param = &event->param.conn;
    struct request r = {.at = at, .id = event->id, .reads = param->responder_resources};
    if (param->private_data != NULL && param->private_data_len >= sizeof(r.rq)) {
        memcpy(&r.rq, param->private_data, sizeof(r.rq));
        r.whole = true;
    }
    rdma_ack_cm_event(event); /* first: no id is destroyed before its events are acknowledged */
    r.device = rdma_device_of(r.id->verbs);
    r.id->context = NULL;
    unsigned refusal = request_judge(l, &r);
    if (refusal == GRANT_OK) {
        r.program = request_program(l, &r);
        destroy_replaced(l, &r);
        bool room = l->stats.connections < l->max_peers || peers_make_room(l);
        refusal = room ? request_accept(l, &r) : RDMA_REFUSED_TOO_MANY;
    }
    if (refusal != GRANT_OK) request_refuse(l, &r, refusal);
}

/* --- report --- */

void rdma_peer_describe(const struct rdma_peer *p, struct buf *out) {
    const struct sockaddr *sa = rdma_get_peer_addr(p->id);
    struct rdma_address address = {.text = "-"};
    char program[PROGRAM_TEXT];
    program_write(p->program, program);
    if (sa != NULL && sa->sa_family != AF_UNSPEC) address = rdma_address_of_sockaddr(sa);
    buf_printf(
        out,
        "peer session=%llu segment=%u right=%s device=%s address=%s state=%s age_s=%llu qp=%u "
        "version=%s\n",
        (unsigned long long)p->session, p->memory->config.segment,
        p->right == RDMA_WRITE ? "write" : "read", p->device->name, address.text,
        p->up ? "up" : "connecting", (unsigned long long)(clock_boot_ms() - p->since_ms) / 1000,
        p->qp->qp_num, program);
}
