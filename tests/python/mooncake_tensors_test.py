"""Tensors that ranks share, in mooncake.store on tarn: how they lie, how they are cut, joined and
cut anew."""

import ctypes
import struct
import unittest
from itertools import product
from unittest import mock

import harness  # noqa: F401  (finds mooncake)
from mooncake_helpers import INVALID, Memory, StoreTest

from mooncake import _layout
from mooncake import _parallel as parallel
from mooncake.store import (
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    TensorParallelism,
    _deserialize_tensor,
    _serialize_tensor,
    _tensor_metadata_size,
)

HEADER = 304


class Tensor:
    """What a tensor of torch shows of itself: elements of four bytes in row order."""

    dtype = "torch.float32"

    def __init__(self, shape, data):
        self.shape, self.data = tuple(shape), bytes(data)
        self.memory = ctypes.create_string_buffer(self.data, max(len(self.data), 1))

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def element_size(self):
        return 4

    def detach(self):
        return self

    cpu = contiguous = detach

    def reshape(self, shape):
        return Tensor(shape, self.data)

    def __eq__(self, other):
        return isinstance(other, Tensor) and (self.shape, self.data) == (other.shape, other.data)

    def __repr__(self):
        return f"Tensor{self.shape}{self.data[:16]}"


class Torch:
    """As much of torch as the store uses."""

    float32 = "float32"

    @staticmethod
    def frombuffer(memory, dtype, count, offset):
        assert dtype == "float32"
        return Tensor((count,), bytes(memoryview(memory).cast("B")[offset : offset + 4 * count]))

    @staticmethod
    def empty(shape, dtype):
        return Tensor(shape, b"")


def whole(*shape):
    """Each element is its number."""
    n = 1
    for dimension in shape:
        n *= dimension
    return Tensor(shape, struct.pack(f"<{n}I", *range(n)))


def share(tensor, dimension, rank, size):
    """A rank's share, element by element."""
    extent = tensor.shape[dimension] // size
    data = b""
    for where in product(*map(range, tensor.shape)):
        if not rank * extent <= where[dimension] < (rank + 1) * extent:
            continue
        at = 0
        for index, length in zip(where, tensor.shape):
            at = at * length + index
        data += tensor.data[4 * at : 4 * at + 4]
    shape = list(tensor.shape)
    shape[dimension] = extent
    return Tensor(shape, data)


def axis(kind, rank, size, **more):
    a = ParallelAxis()
    a.kind, a.rank, a.size = kind, rank, size
    for name, value in more.items():
        setattr(a, name, value)
    return a


def axes(*list_of):
    p = TensorParallelism()
    p.axes = list(list_of)
    return p


def tp(rank, size, dimension):
    return axis("tp", rank, size, split_dim=dimension)


def target(mode, parallelism=None):
    t = ReadTarget()
    t.mode, t.parallelism = mode, parallelism
    return t


class Partition:
    def __init__(self, rank, size, split_dim):
        self.rank, self.size, self.split_dim = rank, size, split_dim


class TensorsTest(StoreTest):
    def setUp(self):
        super().setUp()
        patch = mock.patch.object(_layout, "torch_or_none", Torch)
        patch.start()
        self.addCleanup(patch.stop)

    def refused(self, call, *arguments, expected=INVALID, **named):
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(call(*arguments, **named), expected)


class LayoutTest(TensorsTest):
    """What programs that lay out tensors themselves rely on."""

    def test_where_the_numbers_are(self):
        t = whole(3, 4)
        header, address, size, keep = _serialize_tensor(t)
        self.assertEqual((_tensor_metadata_size(), len(header), size), (HEADER, HEADER, 48))
        self.assertIs(keep, t)
        self.assertEqual(ctypes.string_at(address, size), t.data)
        self.assertEqual(struct.unpack_from("<QQ", header, 24), (HEADER, 48))
        self.assertEqual(struct.unpack_from("<8q", header, 40), (3, 4, -1, -1, -1, -1, -1, -1))
        self.assertEqual(struct.unpack_from("<8q", header, 104), (3, 4, -1, -1, -1, -1, -1, -1))
        self.assertEqual(_deserialize_tensor(header + t.data), t)
        self.assertEqual(self.store.put("made", header + t.data), 0)
        self.assertEqual(self.store.get_tensor("made"), t)
        self.assertEqual(self.store.put_tensor("put", t), 0)
        self.assertEqual(self.store.get("put"), header + t.data)

    def test_rows_of_it(self):
        """As Mooncake's structured store cuts rows out: shapes and size are changed in the
        header."""
        t = whole(3, 4)
        header = bytearray(_serialize_tensor(t)[0])
        struct.pack_into("<Q", header, 32, 32)
        for at in (40, 104):
            struct.pack_into("<q", header, at, 2)
        self.assertEqual(
            _deserialize_tensor(bytes(header) + t.data[16:]), Tensor((2, 4), t.data[16:])
        )

    def test_no_dimensions_no_elements(self):
        for t in (Tensor((), b"abcd"), Tensor((2, 0, 3), b"")):
            self.assertEqual(self.store.upsert_tensor("t", t), 0)
            self.assertEqual(self.store.get_tensor("t"), t)

    def test_what_is_no_tensor(self):
        t = whole(3, 4)
        good = _serialize_tensor(t)[0] + t.data
        for at, number in (
            (0, 1),
            (4, 9),
            (6, 9),
            (8, 15),
            (8, 200),
            (12, 9),
            (16, 2),
            (24, 0),
            (32, 47),
            (104, 4),
        ):
            bad = bytearray(good)
            bad[at] = number
            with self.subTest(at=at), self.assertLogs("mooncake", "ERROR"):
                self.assertRaises(ValueError, _deserialize_tensor, bytes(bad))
        huge = (0, 1 << 62, 1 << 62)  # no bytes, but strides that no number holds
        strides = _layout.Head(0, huge, huge).packed()
        for bad in (b"", strides, good[:HEADER], good[:-1], good + b"x"):
            with self.assertLogs("mooncake", "ERROR"):
                self.assertRaises(ValueError, _deserialize_tensor, bad)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertRaises(ValueError, _serialize_tensor, b"bytes")


class SharesTest(TensorsTest):
    """One axis, by the older names."""

    def stored(self, key, tensor, memory):
        """A whole tensor in memory, as get_tensor_into leaves it: bytes."""
        self.assertEqual(self.store.upsert_tensor(key, tensor), 0)
        self.assertEqual(self.store.get_tensor_into(key, memory.address, memory.size), tensor)
        return self.store.get_size(key)

    def test_out_of_memory(self):
        s, t, memory = self.store, whole(4, 6), Memory(4096)
        n = self.stored("t", t, memory)
        for dimension, size in ((0, 2), (1, 3)):
            key = f"d{dimension}"
            put = s.put_tensor_with_tp_from(
                key, memory.address, n, tp_size=size, split_dim=dimension
            )
            self.assertEqual(put, 0)
            for rank in range(size):
                got = s.get_tensor_with_tp(key, rank, size, dimension)
                self.assertEqual(got, share(t, dimension, rank, size))
        self.assertEqual(s.put_tensor_with_tp_from("one", memory.address, n), 0)
        self.assertEqual(s.get_tensor("one"), t)

    def test_out_of_memory_many(self):
        s, t, memory = self.store, whole(4, 6), Memory(4096)
        n = self.stored("t", t, memory)
        put = s.batch_put_tensor_with_tp_from
        codes = put(["a", "b", "c"], [memory.address, 0, memory.address], [n, n, n - 1], tp_size=2)
        self.assertEqual(codes, [0, INVALID, INVALID])
        self.assertEqual(s.batch_get_tensor_with_tp(["a", "b"], 1, 2), [share(t, 0, 1, 2), None])
        self.refused(put, ["a", "b"], [memory.address], [n], expected=[INVALID] * 2, tp_size=2)
        self.assertEqual(put([], [], [], tp_size=2), [])
        # of whole ones all are stored, or none
        codes = s.batch_put_tensor_from(["x", "y"], [memory.address, memory.address], [n, n - 1])
        self.assertEqual(codes, [INVALID] * 2)
        self.assertEqual(s.is_exist("x"), 0)

    def test_what_cannot_be_shared(self):
        s, t, memory = self.store, whole(4, 6), Memory(4096)
        n = self.stored("t", t, memory)
        for size, dimension in ((3, 0), (2, 2), (2, -1)):
            for put, what in (
                (s.put_tensor_with_tp, (t,)),
                (s.put_tensor_with_tp_from, (memory.address, n)),
            ):
                self.refused(put, "no", *what, tp_size=size, split_dim=dimension)
        self.assertEqual(s.is_exist("no_tp_0"), 0)
        self.refused(s.put_tensor_with_tp_from, "no", 0, n, tp_size=2)
        self.refused(s.put_tensor_with_tp_from, "no", memory.address, 100, tp_size=2)

    def test_groups_and_places(self):
        s, t, config = self.store, whole(4, 6), ReplicateConfig()
        config.group_ids = ["g1", "g2"]
        self.assertEqual(s.batch_pub_tensor_with_tp(["a", "b"], [t, t], config, tp_size=2), [0, 0])
        self.assertEqual(s.batch_get_tensor_with_tp(["a", "b"], 1, 2), [share(t, 0, 1, 2)] * 2)
        self.refused(s.pub_tensor_with_tp, "c", t, config, tp_size=2)
        self.assertEqual(s.is_exist("c_tp_0"), 0)

    def test_keys_and_arguments(self):
        s, t = self.store, whole(4, 6)
        self.assertEqual(s.batch_put_tensor(keys=[b"k", "l"], tensors_list=[t, t]), [0, 0])
        self.assertEqual(s.get_tensor(key="k"), t)
        self.assertEqual(
            s.batch_put_tensor_with_tp(base_keys=[b"\xff"], tensors_list=[t], tp_size=2), [0]
        )
        self.assertEqual(s.get_tensor_with_tp(b"\xff", 1, 2), share(t, 0, 1, 2))
        self.assertEqual(s.is_exist(b"\xff_tp_1"), 1)
        for bad in (
            lambda: s.put_tensor(1, t),
            lambda: s.put_tensor("k"),
            lambda: s.get_tensor("k", "l"),
        ):
            self.assertRaises(TypeError, bad)
        self.assertRaises(TypeError, s.batch_get_tensor, "kl")
        self.assertEqual(
            (s.put_tensor.__name__, s.batch_put_tensor.__name__), ("put_tensor", "batch_put_tensor")
        )


class ParallelismTest(TensorsTest):
    """The _with_parallelism family."""

    def store_shares(self, key, tensor, dimension, size, others=()):
        """As the ranks do: with the one axis each puts its share, with more the whole."""
        for rank in range(size):
            given = tensor if others else share(tensor, dimension, rank, size)
            where = axes(*others, tp(rank, size, dimension))
            self.assertEqual(self.store.put_tensor_with_parallelism(key, given, where), 0)

    def check(self, key, tensor, dimension, sizes, others=()):
        """Whole and shares of these numbers of ranks, in memory of their own and in the
        caller's."""
        s, memory = self.store, Memory(HEADER + len(tensor.data))
        full = target("full", axes(*others, tp(0, sizes[0], dimension)))
        self.assertEqual(s.get_tensor_with_parallelism(key, full), tensor)
        self.assertEqual(
            s.get_tensor_with_parallelism_into(key, memory.address, memory.size, full), tensor
        )
        for size in sizes:
            for rank in range(size):
                expected = share(tensor, dimension, rank, size)
                shard = target("shard", axes(*others, tp(rank, size, dimension)))
                self.assertEqual(s.get_tensor_with_parallelism(key, shard), expected)
                got = s.get_tensor_with_parallelism_into(key, memory.address, memory.size, shard)
                self.assertEqual(got, expected)

    def test_one_axis(self):
        t = whole(4, 8, 12)
        for dimension in range(3):
            for stored in (1, 2, 4):
                key = f"d{dimension}n{stored}"
                self.store_shares(key, t, dimension, stored)
                self.check(key, t, dimension, (1, 2, 4))
                self.assertEqual(self.store.is_exist(f"{key}_tp_{stored - 1}"), 1)

    def test_shares_of_the_older_names(self):
        t = whole(8, 4)
        self.assertEqual(self.store.put_tensor_with_tp("t", t, tp_size=4, split_dim=0), 0)
        self.check("t", t, 0, (1, 2, 4, 8))

    def test_more_axes(self):
        cases = {
            "__dp_1of2": axis("dp", 1, 2),
            "__ep_0of2": axis("ep", 0, 2, expert_id=7),
            "__pp_1of3": axis("pp", 1, 3, stage_id=5),
        }
        t = whole(4, 8)
        for name, other in cases.items():
            self.store_shares(name, t, 1, 2, (other,))
            self.check(name, t, 1, (1, 2, 4), (other,))
        self.assertEqual(self.store.is_exist("__dp_1of2__dp_1of2__tp_1of2_sd1"), 1)
        self.assertEqual(self.store.is_exist("__ep_0of2__tp_1of2_sd1__ep_0of2_eid7"), 1)
        turned = target("full", axes(tp(1, 2, 1), axis("dp", 1, 2)))
        self.assertEqual(self.store.get_tensor_with_parallelism("__dp_1of2", turned), t)
        another = target("full", axes(axis("dp", 0, 2), tp(0, 2, 1)))
        self.refused(self.store.get_tensor_with_parallelism, "__dp_1of2", another, expected=None)

    def test_no_cut(self):
        s, t, where = self.store, whole(4, 8), axes(axis("pp", 0, 2, stage_id=3))
        self.assertEqual(s.put_tensor_with_parallelism("t", t, where), 0)
        self.assertEqual(s.get_tensor_with_parallelism("t", target("shard", where)), t)
        self.refused(s.get_tensor_with_parallelism, "t", target("full", where), expected=None)
        self.assertEqual(s.put_tensor_with_parallelism("whole", t), 0)
        for t1 in (None, target("as_stored"), target("full")):
            self.assertEqual(s.get_tensor_with_parallelism("whole", t1), t)
        self.assertIsNone(s.get_tensor_with_parallelism("none"))

    def test_out_of_memory(self):
        s, t, memory = self.store, whole(4, 8), Memory(4096)
        s.put_tensor("t", t)
        s.get_tensor_into("t", memory.address, memory.size)
        n = s.get_size("t")
        put = s.put_tensor_with_parallelism_from
        self.assertEqual(put("m", memory.address, n, axes(tp(0, 2, 1))), 0)
        self.check("m", t, 1, (1, 2, 4))
        self.assertEqual(put("w", memory.address, n), 0)
        self.assertEqual(s.get_tensor("w"), t)
        self.refused(put, "x", memory.address, n - 1, axes(tp(0, 2, 1)))
        self.refused(put, "x", memory.address, n, axes(tp(0, 3, 0)))
        codes = s.batch_put_tensor_with_parallelism_from(
            ["p", "q"], [memory.address, 0], [n, n], [axes(tp(0, 2, 0)), axes(tp(0, 2, 0))]
        )
        self.assertEqual(codes, [0, INVALID])

    def test_writers(self):
        s, t = self.store, whole(4, 8)
        for rank in range(2):
            put = s.put_tensor_with_parallelism("t", t, writer_partition=Partition(rank, 2, 1))
            self.assertEqual(put, 0)
        memory = Memory(HEADER + len(t.data))
        self.assertEqual(s.get_tensor_with_parallelism("t", target("full")), t)
        got = s.get_tensor_with_parallelism_into("t", memory.address, memory.size, target("full"))
        self.assertEqual(got, t)
        got = s.get_tensor_with_parallelism("t", target("shard", axes(tp(1, 2, 1))))
        self.assertEqual(got, share(t, 1, 1, 2))
        self.refused(
            s.put_tensor_with_parallelism,
            "t",
            t,
            axes(tp(0, 2, 1)),
            writer_partition=Partition(0, 2, 1),
        )
        for bad in (
            Partition(2, 2, 1),
            Partition(0, 0, 1),
            Partition(0, 2, -1),
            Partition(0, 3, 1),
            object(),
        ):
            self.refused(s.put_tensor_with_parallelism, "x", t, writer_partition=bad)
        writers = [Partition(0, 2, 0), Partition(1, 2, 0)]
        self.assertEqual(
            s.batch_put_tensor_with_parallelism(["a", "a"], [t, t], writer_partitions=writers),
            [0, 0],
        )
        self.assertEqual(s.get_tensor_with_parallelism("a", target("full")), t)

    def test_replaces(self):
        s, old, new = self.store, whole(4, 8), Tensor((4, 8), bytes(128))
        self.store_shares("t", old, 0, 2)
        self.store_shares("t", new, 0, 2)
        self.check("t", old, 0, (2,))
        for rank in range(2):
            where = axes(tp(rank, 2, 0))
            self.assertEqual(
                s.upsert_tensor_with_parallelism("t", share(new, 0, rank, 2), where), 0
            )
        self.check("t", new, 0, (1, 2))
        self.assertEqual(s.batch_upsert_tensor_with_parallelism(["t"], [old]), [0])
        self.assertEqual(s.get_tensor("t"), old)

    def test_axes_that_make_no_sense(self):
        s, t = self.store, whole(4, 8)
        bad = [
            axes(),
            axes(axis("xp", 0, 2)),
            axes(axis("tp", 0, 2)),
            axes(tp(2, 2, 0)),
            axes(tp(0, 0, 0)),
            axes(tp(0, 2, 0), tp(1, 2, 0)),
            axes(axis("dp", 0, 2, split_dim=0)),
            axes(axis("ep", 0, 2)),
            axes(axis("pp", 0, 2)),
            axes(axis("pp", 0, 2, stage_id=1 << 31)),
            axes(axis("dp", 0, 1 << 31)),
            axes(axis("dp", 0, 1), tp(0, 3, 0)),
            axes(tp(0, 2, 2)),
            object(),
        ]
        for where in bad:
            self.refused(s.put_tensor_with_parallelism, "t", t, where)
            if where is not bad[-3] and where is not bad[-2]:
                self.refused(
                    s.get_tensor_with_parallelism, "t", target("shard", where), expected=None
                )
        self.assertEqual(s.remove_all(), 0)
        with self.assertRaises(RuntimeError):
            target("half")
        self.refused(
            s.get_tensor_with_parallelism,
            "t",
            target("as_stored", axes(tp(0, 2, 0))),
            expected=None,
        )

    def test_shares_that_are_missing(self):
        s, t = self.store, whole(4, 8)
        self.store_shares("t", t, 0, 4)
        self.assertEqual(s.remove("t_tp_2"), 0)
        full = target("full", axes(tp(0, 4, 0)))
        self.refused(s.get_tensor_with_parallelism, "t", full, expected=None)
        self.refused(
            s.get_tensor_with_parallelism, "t", target("full", axes(tp(0, 4, 1))), expected=None
        )
        small = Memory(HEADER + 64)
        self.store_shares("u", t, 0, 2)
        into = s.get_tensor_with_parallelism_into
        self.refused(
            into, "u", small.address, small.size, target("full", axes(tp(0, 2, 0))), expected=None
        )

    def test_lies(self):
        """Headers and manifests that say what is not so cost nothing but the tensor."""
        s, t, full = self.store, whole(4, 8), target("full", axes(tp(0, 2, 0)))
        self.store_shares("t", t, 0, 2)
        manifest, second = s.get("t__parallelism_manifest"), bytearray(s.get("t_tp_1"))
        for at, number in ((12, 9), (16, 9), (20, 0), (20, 1 << 30), (0, 7)):
            lie = bytearray(manifest)
            struct.pack_into("<i", lie, at, number)
            self.assertEqual(s.upsert("t__parallelism_manifest", lie), 0)
            self.assertEqual(
                s.get_tensor_with_parallelism("t", full), t, "the shares themselves tell"
            )
        for at, number in ((40, 1 << 40), (40, 6), (104, 1 << 60), (48, 4), (172, 1)):
            lie = bytearray(second)
            struct.pack_into("<q", lie, at, number)
            self.assertEqual(s.upsert("t_tp_1", lie), 0)
            self.refused(s.get_tensor_with_parallelism, "t", full, expected=None)
        for lie in (b"", b"x" * 96, second[:-4]):
            s.upsert("t_tp_1", lie)
            self.refused(s.get_tensor_with_parallelism, "t", full, expected=None)

    def test_writers_that_lie(self):
        s, t = self.store, whole(4, 8)
        for rank in range(2):
            w = Partition(rank, 2, 0)
            self.assertEqual(s.put_tensor_with_parallelism("t", t, writer_partition=w), 0)
        self.assertEqual(s.get_tensor_with_parallelism("t", target("full")), t)
        lie = bytearray(s.get("t__writer_manifest"))
        struct.pack_into("<i", lie, 20, (1 << 31) - 1)
        self.assertEqual(s.upsert("t__writer_manifest", lie), 0)
        many = AssertionError("a name of each")
        with mock.patch.object(parallel, "writer_key", side_effect=many):
            self.assertIsNone(s.get_tensor_with_parallelism("t", target("full")))

    def test_many_at_once(self):
        s, a, b = self.store, whole(4, 8), whole(8, 4)
        for rank in range(2):
            where = [axes(tp(rank, 2, 0))] * 2
            shares = [share(a, 0, rank, 2), share(b, 0, rank, 2)]
            self.assertEqual(s.batch_put_tensor_with_parallelism(["a", "b"], shares, where), [0, 0])
        full = target("full", axes(tp(0, 2, 0)))
        self.assertEqual(s.batch_get_tensor_with_parallelism(["a", "b"], [full, full]), [a, b])
        self.assertEqual(s.batch_get_tensor_with_parallelism(["a_tp_1"]), [share(a, 0, 1, 2)])
        memory = [Memory(HEADER + 128) for _ in range(2)]
        got = s.batch_get_tensor_with_parallelism_into(
            ["a", "b"], [m.address for m in memory], [m.size for m in memory], [full, full]
        )
        self.assertEqual(got, [a, b])
        get = s.batch_get_tensor_with_parallelism
        self.refused(get, ["a", "b"], [full], expected=[None, None])
        self.refused(s.batch_put_tensor_with_parallelism, ["a", "b"], [a], expected=[INVALID] * 2)


class ClosedTest(TensorsTest):
    """A store that is closed."""

    def test_closed(self):
        s, t, memory = self.store, whole(4), Memory(4096)
        s.close()
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(s.put_tensor("t", t), INVALID)
            self.assertEqual(s.batch_put_tensor_with_tp(["t"], [t], tp_size=2), [INVALID])
            self.assertIsNone(s.get_tensor("t"))
            self.assertEqual(s.batch_get_tensor(["t"]), [None])
            self.assertIsNone(s.get_tensor_into("t", memory.address, memory.size))
            self.assertEqual(
                s.batch_get_tensor_into(["t"], [memory.address], [memory.size]), [INVALID]
            )
            self.assertIsNone(s.get_tensor_with_parallelism("t", target("full")))
            self.assertEqual(s.get_size("t"), INVALID)


del StoreTest

if __name__ == "__main__":
    unittest.main()
