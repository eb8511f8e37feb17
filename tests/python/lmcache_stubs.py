"""What LMCache hands to a connector, as far as ours uses it, without torch: memory objects that
count references and object to every mistake, an allocator of one arena, configuration, metadata,
keys."""

import asyncio
import ctypes
import enum
import importlib
import mmap
import threading


class MemoryFormat(enum.Enum):
    UNDEFINED = 0
    KV_2LTD = 1
    KV_T2D = 2
    KV_2TD = 3
    BINARY = 4
    BINARY_BUFFER = 5
    KV_MLA_FMT = 6


class Size(tuple):
    """torch.Size"""

    def numel(self):
        n = 1
        for dim in self:
            n *= dim
        return n


class DType:
    """torch.dtype"""

    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __str__(self):
        return "torch." + self.name


BFLOAT16, FLOAT8, UINT8 = DType("bfloat16", 2), DType("float8_e4m3fn", 1), DType("uint8", 1)


class Meta:
    def __init__(self, shapes, dtypes, fmt, address, size):
        self.shape, self.dtype, self.shapes, self.dtypes = (
            shapes[0],
            dtypes[0],
            list(shapes),
            list(dtypes),
        )
        self.fmt, self.address, self.phy_size, self.ref_count = fmt, address, size, 1


class MemoryObj:
    """A tensor of an arena. `lives` ends when the count gets to 0; any use afterwards is an
    error."""

    def __init__(self, backend, raw, shapes, dtypes, fmt, address):
        self.backend, self._raw, self.lives = backend, raw, True
        self.meta = Meta(shapes, dtypes, fmt, address, len(raw))
        self.group_prefix_sum = [0, len(raw)]
        self.lock = threading.Lock()

    @property
    def raw_data(self):
        self.alive()
        return self._raw

    @raw_data.setter
    def raw_data(self, raw):
        self._raw = raw

    def alive(self):
        if not self.lives:
            raise AssertionError("a memory object is used after it was freed")

    @property
    def metadata(self):
        self.alive()
        return self.meta

    def get_size(self):
        self.alive()
        return self.group_prefix_sum[-1]

    def get_shape(self):
        return self.metadata.shape

    def get_dtype(self):
        return self.metadata.dtype

    def get_memory_format(self):
        return self.metadata.fmt

    @property
    def data_ptr(self):
        self.alive()
        return ctypes.addressof(ctypes.c_char.from_buffer(self._raw))

    @property
    def byte_array(self):
        """As LMCache makes it: a view of a ctypes array, of the format "<B"."""
        self.alive()
        return memoryview((ctypes.c_ubyte * len(self._raw)).from_address(self.data_ptr))

    def ref_count_up(self):
        with self.lock:
            self.alive()
            self.meta.ref_count += 1

    def ref_count_down(self):
        with self.lock:
            self.alive()
            self.meta.ref_count -= 1
            gone = self.meta.ref_count == 0
        if gone:
            self.lives = False
            self.backend.free(self)

    def get_ref_count(self):
        return self.meta.ref_count

    def fill(self, seed):
        self.byte_array.cast("B")[:] = pattern(seed, self.get_size())
        return self


class BytesObj:
    """Compressed chunks: bytes that nobody counts, read-only when the engine made them."""

    def __init__(self, raw):
        self.raw_data = raw
        self.meta = self.metadata = Meta(
            [Size([len(raw), 0, 0, 0])], [None], MemoryFormat.BINARY_BUFFER, 0, len(raw)
        )
        self.meta.shapes = self.meta.dtypes = None

    def get_size(self):
        return len(self.raw_data)

    def get_shape(self):
        return self.meta.shape

    def get_dtype(self):
        return None

    def get_memory_format(self):
        return self.meta.fmt

    @property
    def byte_array(self):
        return self.raw_data

    def ref_count_up(self):
        pass

    def ref_count_down(self):
        pass


def pattern(seed, size):
    """`size` bytes that depend on `seed` and on where they are."""
    block = bytes((seed * 131 + i * 7 + (i >> 8) * 13) & 0xFF for i in range(4099))
    return (block * (size // len(block) + 1))[:size]


class Backend:
    """LocalCPUBackend: `capacity` bytes for objects, all of them accounted for. Threads may share
    it."""

    def __init__(self, capacity=64 << 20, with_batches=True):
        self.capacity, self.used, self.alive, self.most = capacity, 0, 0, 0
        self.lock = threading.Lock()
        if not with_batches:
            self.batched_allocate = None

    def allocate(self, shapes, dtypes, fmt=MemoryFormat.KV_2LTD, eviction=True, busy_loop=True):
        if isinstance(shapes, Size):
            shapes, dtypes = [shapes], [dtypes]
        if fmt in (MemoryFormat.BINARY_BUFFER, MemoryFormat.BINARY):
            return BytesObj(bytearray(shapes[0][0]))
        size = sum(shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes))
        with self.lock:
            if self.used + size > self.capacity:
                if busy_loop:
                    raise AssertionError("a get would wait for memory in a busy loop")
                return None
            self.used += size
            self.alive += 1
            self.most = max(self.most, self.alive)
        return MemoryObj(self, memoryview(mmap.mmap(-1, size)), shapes, dtypes, fmt, 0)

    def batched_allocate(
        self, shapes, dtypes, n, fmt=MemoryFormat.KV_2LTD, eviction=True, busy_loop=True
    ):
        objs = []
        for _ in range(n):
            objs.append(self.allocate(shapes, dtypes, fmt, eviction, busy_loop))
            if objs[-1] is None:
                for obj in objs[:-1]:
                    obj.ref_count_down()
                return None
        return objs

    def free(self, obj):
        with self.lock:
            self.used -= obj.meta.phy_size
            self.alive -= 1
            assert self.alive >= 0


class Metadata:
    """One group: [2, layers, tokens, hidden], or [1, layers, tokens, head] with MLA."""

    def __init__(self, layers=4, tokens=16, hidden=256, dtype=BFLOAT16, use_mla=False, groups=1):
        self.layers, self.chunk_size, self.hidden, self.kv_dtype = layers, tokens, hidden, dtype
        self.use_mla, self.groups = use_mla, groups
        self.model_name = "meta-llama/Llama 3.1"
        self.kv_shape = (layers, 1 if use_mla else 2, tokens, 8, hidden // 8)

    def get_shapes(self, num_tokens=None):
        kv, tokens = 1 if self.use_mla else 2, num_tokens or self.chunk_size
        return [Size([kv, self.layers, tokens, self.hidden >> i]) for i in range(self.groups)]

    def get_dtypes(self):
        return [self.kv_dtype] * self.groups

    def full_bytes(self):
        return sum(shape.numel() * self.kv_dtype.itemsize for shape in self.get_shapes())

    @property
    def format(self):
        return MemoryFormat.KV_MLA_FMT if self.use_mla else MemoryFormat.KV_2LTD

    def chunk(self, backend, seed=0, tokens=None):
        shapes, dtypes = self.get_shapes(tokens), self.get_dtypes()
        if self.groups == 1:
            return backend.allocate(shapes[0], dtypes[0], self.format, busy_loop=False).fill(seed)
        return backend.allocate(shapes, dtypes, self.format, busy_loop=False).fill(seed)


class Config:
    def __init__(self, **extra):
        self.extra_config = extra or None
        self.use_layerwise = self.enable_blending = False
        self.remote_serde = "naive"
        self.remote_url = self.remote_storage_plugins = None


class Context:
    """ConnectorContext"""

    def __init__(self, url, backend=None, config=None, metadata=None, plugin_name=None, loop=None):
        self.url, self.local_cpu_backend, self.config, self.metadata = (
            url,
            backend,
            config,
            metadata,
        )
        self.plugin_name, self.loop = plugin_name, loop


class OldContext:
    """ConnectorContext before 0.4.4"""

    def __init__(self, url, backend=None, config=None, metadata=None):
        self.url, self.local_cpu_backend, self.config, self.metadata, self.loop = (
            url,
            backend,
            config,
            metadata,
            None,
        )


class RemoteBackends:
    """What LMCache makes of a configuration. Adapters come from remote_storage_plugins in all
    versions. Before 0.4.4 there is one backend, of remote_url; later there is one of each plugin
    too, and caching is off while any of them is not well."""

    def __init__(self, config, metadata, later):
        self.config, self.metadata, self.swallowed, self.connections = config, metadata, [], {}
        self.adapters = [self.adapter(name) for name in config.remote_storage_plugins or ()]
        if later:
            for name in config.remote_storage_plugins or ():
                url = f"plugin://{name}"
                self.add(f"RemoteBackend-{name}", Context(url, Backend(), config, metadata, name))
        if config.remote_url is not None:
            context = (Context if later else OldContext)(
                config.remote_url, Backend(), config, metadata
            )
            self.add("RemoteBackend", context)

    def adapter(self, name):
        module, kind = (
            self.config.extra_config[f"remote_storage_plugin.{name}.{n}"]
            for n in ("module_path", "class_name")
        )
        return getattr(importlib.import_module(module), kind)()

    def add(self, name, context):
        self.connections[name] = None
        try:
            adapter = next(a for a in self.adapters if a.can_parse(context.url))
            self.connections[name] = adapter.create_connector(context)
        except Exception as e:
            self.swallowed.append(e)

    def caching(self):
        """What the health check makes of it."""
        found = list(self.connections.values())
        return bool(found) and all(c is not None and asyncio.run(c.ping()) == 0 for c in found)

    def close(self):
        for connector in self.connections.values():
            if connector is not None:
                asyncio.run(connector.close())


class Key:
    """CacheEngineKey, with a layer LayerCacheEngineKey."""

    def __init__(self, n, layer=None, model="meta-llama/Llama 3.1", tag="", configs=None):
        self.text = f"{model}@8@3@{n:x}@bfloat16"
        self.model_name, self.chunk_hash, self.request_configs = model, n, configs
        if layer is not None:
            self.layer_id = layer
            self.text += f"@{layer}"
        self.text += tag

    def to_string(self):
        return self.text


class ObjectKey:
    """Of the multi-process mode."""

    def __init__(self, n, model="meta-llama/Llama 3.1", rank=0x08030803, group=0, salt=""):
        self.chunk_hash, self.model_name, self.kv_rank = n.to_bytes(32, "big"), model, rank
        self.object_group_id, self.cache_salt = group, salt

    def _all(self):
        return (
            self.chunk_hash,
            self.model_name,
            self.kv_rank,
            self.object_group_id,
            self.cache_salt,
        )

    def __eq__(self, other):
        return self._all() == other._all()

    def __hash__(self):
        return hash(self._all())


class Wrapped:
    """LMCache's instrumented wrapper: it drops the caller's reference after a put, also when that
    was given up."""

    def __init__(self, connector):
        self.connector = connector

    async def batched_put(self, keys, objs):
        try:
            await self.connector.batched_put(keys, objs)
        finally:
            for obj in objs:
                obj.ref_count_down()
