"""tarn_transfer.h and the hosting part of tarn.h as ctypes sees them: structs and functions,
nothing more."""

from __future__ import annotations

import ctypes as C
from typing import Any, List, Tuple

from ._lib import I32, INT, PTR, SIZE, STR, U32, U64, declare

U16 = C.c_uint16


class TransferOptions(C.Structure):
    """tarn_transfer_options."""

    _fields_ = [
        ("size", SIZE),
        ("name", STR),
        ("master", STR),
        ("bind", C.POINTER(STR)),
        ("binds", SIZE),
        ("port", U16),
        ("data_port", U16),
        ("announce", STR),
        ("secret", STR),
        ("unprotected", INT),
        ("transport", STR),
        ("module_path", STR),
        ("shm_socket", STR),
        ("shm_mode", U32),
        ("threads", U32),
        ("workers", U32),
        ("streams", U32),
        ("max_peers", U32),
        ("connect_timeout_ms", U64),
        ("timeout_ms", U64),
    ]


class ReadyOptions(C.Structure):
    """tarn_transfer_ready_options."""

    _fields_ = [
        ("size", SIZE),
        ("info", PTR),
        ("info_len", SIZE),
        ("peers", U32),
        ("keep_ms", U64),
        ("cut", INT),
    ]


class EventStruct(C.Structure):
    """tarn_transfer_event."""

    _fields_ = [
        ("size", SIZE),
        ("kind", INT),
        ("peer", C.c_char * 41),
        ("label", C.c_char * 256),
        ("data", PTR),
        ("len", SIZE),
    ]


class RegionStruct(C.Structure):
    """tarn_transfer_region."""

    _fields_ = [
        ("id", C.c_uint32),
        ("rights", I32),
        ("address", U64),
        ("length", U64),
        ("name", C.c_char * 64),
    ]


class TransferCall(C.Structure):
    """tarn_transfer_call."""

    _fields_ = [
        ("size", SIZE),
        ("timeout_ms", U64),
        ("done", STR),
        ("message", PTR),
        ("message_len", SIZE),
    ]


class BatchInfo(C.Structure):
    """tarn_transfer_batch_info."""

    _fields_ = [
        ("size", SIZE),
        ("state", INT),
        ("status", I32),
        ("tasks", U64),
        ("operations", U64),
        ("failed", U64),
        ("bytes", U64),
        ("transport", C.c_char * 8),
    ]


STATS = (
    "regions region_bytes labels events batches peers_in peers_out refused batches_total tasks "
    "operations failed bytes_read "
    "bytes_written shm_bytes tcp_bytes rdma_bytes served_bytes_read served_bytes_written"
).split()


class TransferStats(C.Structure):
    """tarn_transfer_stats."""

    _fields_ = [("size", SIZE)] + [(name, U64) for name in STATS]


class HostSegment(C.Structure):
    """tarn_host_segment."""

    _fields_ = [("bytes", U64), ("numa_node", INT), ("path", STR), ("huge_pages", INT)]


class HostOptions(C.Structure):
    """tarn_host_options."""

    _fields_ = [
        ("size", SIZE),
        ("name", STR),
        ("rack", STR),
        ("segments", C.POINTER(HostSegment)),
        ("n_segments", SIZE),
        ("bind", C.POINTER(STR)),
        ("binds", SIZE),
        ("data_port", U16),
        ("announce", STR),
        ("shm_socket", STR),
        ("shm_mode", U32),
        ("threads", U32),
        ("max_connections", U32),
        ("populate", INT),
        ("ssd_path", STR),
        ("ssd_bytes", U64),
        ("file_path", STR),
        ("file_bytes", U64),
        ("queue_bytes", U64),
        ("copies", U32),
        ("tls_data", INT),
        ("tls_cert_file", STR),
        ("tls_key_file", STR),
        ("tls_ca_file", STR),
        ("tls_ca_dir", STR),
        ("tls_auth_clients", STR),
        ("shrink", INT),
        ("file_mode", U32),
        ("ssd_create", INT),
        ("file_create", INT),
    ]


HOST_INFO = (
    "segments bytes joins heartbeats heartbeat_failures copies_done copies_failed copy_bytes reads "
    "writes bytes_read "
    "bytes_written stored store_failures store_bytes ssd_used ssd_entries ssd_reads file_used "
    "file_entries"
).split()


class HostInfo(C.Structure):
    """tarn_host_info."""

    _fields_ = (
        [("size", SIZE), ("state", INT), ("data_port", U16)]
        + [(name, U64) for name in HOST_INFO]
        + [("last_error", C.c_char * 256)]
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
    ("tarn_host_options_init", None, [_P]),
    ("tarn_host_open", INT, [STR, _P, _P, _P]),
    ("tarn_host_get_info", INT, [_P, _P]),
    ("tarn_host_wait", INT, [_P, U64]),
    ("tarn_host_drain", INT, [_P]),
    ("tarn_host_reload_tls", INT, [_P]),
    ("tarn_host_close", INT, [_P, INT, U64]),
]
declare(_PROTOTYPES)
