/* The table of the rdma transport. */
#include "rdma/rdma.h"

static void *key_map(struct transport_key *k, uint64_t offset, uint64_t length) {
    (void)k, (void)offset, (void)length;
    return NULL;
}

const struct transport_ops rdma_transport = {
    .abi = TRANSPORT_ABI,
    .flags = TRANSPORT_ONE_SIDED | TRANSPORT_REMOTE | TRANSPORT_REGISTERS | TRANSPORT_ANNOUNCES,
    .cost = 20,
    .scheme = "rdma",
    .domain_open = rdma_domain_open,
    .domain_close = rdma_domain_close,
    .memory_register = rdma_memory_register,
    .key_pack = rdma_key_pack,
    .memory_version = rdma_memory_version,
    .key_unpack = rdma_key_unpack,
    .key_map = key_map,
    .key_check = rdma_key_check,
    .key_close = rdma_key_close,
    .memory_deregister = rdma_memory_deregister,
    .listen = rdma_listener_open,
    .listener_port = rdma_listener_port,
    .listener_uri = rdma_listener_uri,
    .listener_stats = rdma_listener_stats,
    .listener_stats_reset = rdma_listener_stats_reset,
    .listener_fence = rdma_listener_fence,
    .listener_lent = rdma_listener_lent,
    .listener_close = rdma_listener_close,
    .connect = rdma_connect_to,
    .endpoint_status = rdma_endpoint_status,
    .endpoint_close = rdma_endpoint_close,
    .submit = rdma_submit,
    .progress = rdma_domain_progress,
    .arm = rdma_domain_arm,
    .describe = rdma_domain_describe,
};
