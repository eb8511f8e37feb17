"""tarn_transfer.h and the hosting part of tarn.h as ctypes sees them: structs and functions,
nothing more."""

from __future__ import annotations

import ctypes as C
from typing import Any, List, Tuple

from ._lib import INT, PTR, SIZE, STR, U64, declare, fields


class TransferOptions(C.Structure):
    """tarn_transfer_options."""

    _fields_ = fields(
        """
        size_t size; char *name, *master, **bind; size_t binds; uint16_t port, data_port;
        char *announce, *secret; int unprotected; char *transport, *module_path, *shm_socket;
        unsigned shm_mode, threads, workers, streams, max_peers;
        uint64_t connect_timeout_ms, timeout_ms;
        """
    )


class ReadyOptions(C.Structure):
    """tarn_transfer_ready_options."""

    _fields_ = fields(
        "size_t size; void *info; size_t info_len; unsigned peers; uint64_t keep_ms; int cut;"
    )


class EventStruct(C.Structure):
    """tarn_transfer_event."""

    _fields_ = fields("size_t size; int kind; char peer[41], label[256]; void *data; size_t len;")


class RegionStruct(C.Structure):
    """tarn_transfer_region."""

    _fields_ = fields("uint32_t id; int32_t rights; uint64_t address, length; char name[64];")


class TransferCall(C.Structure):
    """tarn_transfer_call."""

    _fields_ = fields(
        "size_t size; uint64_t timeout_ms; char *done; void *message; size_t message_len;"
    )


class BatchInfo(C.Structure):
    """tarn_transfer_batch_info."""

    _fields_ = fields(
        """
        size_t size; int state; int32_t status; uint64_t tasks, operations, failed, bytes;
        char transport[8];
        """
    )


STATS = """
    regions region_bytes labels events batches peers_in peers_out refused batches_total tasks
    operations failed bytes_read bytes_written shm_bytes tcp_bytes rdma_bytes served_bytes_read
    served_bytes_written
""".split()


class TransferStats(C.Structure):
    """tarn_transfer_stats."""

    _fields_ = fields("size_t size; uint64_t " + ", ".join(STATS))


class HostSegment(C.Structure):
    """tarn_host_segment."""

    _fields_ = fields("uint64_t bytes; int numa_node; char *path; int huge_pages;")


class HostOptions(C.Structure):
    """tarn_host_options."""

    _fields_ = fields(
        """
        size_t size; char *name, *rack; tarn_host_segment *segments; size_t n_segments;
        char **bind; size_t binds; uint16_t data_port; char *announce, *shm_socket;
        unsigned shm_mode, threads, max_connections; int populate; char *ssd_path;
        uint64_t ssd_bytes; char *file_path; uint64_t file_bytes, queue_bytes; unsigned copies;
        int tls_data;
        char *tls_cert_file, *tls_key_file, *tls_ca_file, *tls_ca_dir, *tls_auth_clients;
        int shrink; unsigned file_mode; int ssd_create, file_create;
        uint64_t lend_interval_ms;
        """,
        tarn_host_segment=C.POINTER(HostSegment),
    )


HOST_INFO = """
    segments bytes joins heartbeats heartbeat_failures copies_done copies_failed copy_bytes
    reads writes bytes_read bytes_written stored store_failures store_bytes ssd_used ssd_entries
    ssd_reads file_used file_entries
""".split()


class HostInfo(C.Structure):
    """tarn_host_info."""

    _fields_ = fields(
        f"""
        size_t size; int state; uint16_t data_port; uint64_t {", ".join(HOST_INFO)};
        char last_error[256];
        """
    )


_P = PTR
_PROTOTYPES: List[Tuple[str, Any, List[Any]]] = [
    ("tarn_transfer_options_init", None, [_P]),
    ("tarn_transfer_open", INT, [_P, _P]),
    ("tarn_transfer_close", None, [_P]),
    ("tarn_transfer_endpoint", STR, [_P]),
    ("tarn_transfer_register", INT, [_P, _P, SIZE, INT, STR, _P]),
    ("tarn_transfer_register_dmabuf", INT, [_P, _P, SIZE, INT, U64, INT, STR, _P]),
    ("tarn_transfer_alloc", INT, [_P, SIZE, INT, STR, INT, _P, _P]),
    ("tarn_transfer_unregister", INT, [_P, _P]),
    ("tarn_transfer_ready", INT, [_P, STR, _P]),
    ("tarn_transfer_abort", INT, [_P, STR, STR]),
    ("tarn_transfer_next_event", INT, [_P, U64, _P]),
    ("tarn_transfer_fd", INT, [_P]),
    ("tarn_transfer_connect", INT, [_P, STR, U64, _P]),
    ("tarn_transfer_disconnect", None, [_P]),
    ("tarn_transfer_peer_name", STR, [_P]),
    ("tarn_transfer_peer_regions", INT, [_P, _P, SIZE, _P]),
    ("tarn_transfer_wait_ready", INT, [_P, STR, U64, _P, SIZE, _P]),
    ("tarn_transfer_done", INT, [_P, STR, _P, SIZE, U64]),
    ("tarn_transfer_give_up", INT, [_P, STR, STR, U64]),
    ("tarn_transfer_notify", INT, [_P, _P, SIZE, U64]),
    ("tarn_transfer_submit", INT, [_P, _P, SIZE, _P, _P]),
    ("tarn_transfer_wait", INT, [_P, U64]),
    ("tarn_transfer_cancel", None, [_P]),
    ("tarn_transfer_release", None, [_P]),
    ("tarn_transfer_get_batch", INT, [_P, _P]),
    ("tarn_transfer_get_stats", INT, [_P, _P]),
    ("tarn_host_options_init_sized", None, [_P, C.c_size_t]),
    ("tarn_host_open", INT, [STR, _P, _P, _P]),
    ("tarn_host_get_info", INT, [_P, _P]),
    ("tarn_host_wait", INT, [_P, U64]),
    ("tarn_host_drain", INT, [_P]),
    ("tarn_host_reload_tls", INT, [_P]),
    ("tarn_host_close", INT, [_P, INT, U64]),
]
declare(_PROTOTYPES)
