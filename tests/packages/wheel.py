"""An installed wheel, outside of the checkout: tests/packages/wheel.sh calls this with the URL of a
server and where the package must have come from."""

import importlib
import os
import pkgutil
import sys

import tarn
import tarn._lib

url, place = sys.argv[1:]
assert tarn.__file__.startswith(place), tarn.__file__
assert tarn._lib.lib._name.startswith(place), tarn._lib.lib._name

# Connectors can be imported where their engines are not; what is in them says who is missing.
sys.path.insert(0, tarn.compat_path())
names = [m.name for m in pkgutil.walk_packages(tarn.__path__, "tarn.")] + ["mooncake.store"]
names += ["mooncake.engine"]
for name in names:
    if not name.startswith("tarn.gateway"):  # wants aiohttp, an extra
        importlib.import_module(name)
for name in ("tarn.vllm.connector", "tarn.lmcache.adapter", "tarn.sglang.storage"):
    assert name in names, name

with tarn.Client(url) as client:
    sizes = {b"%d:%d" % (os.getpid(), size): size for size in (256, 1 << 20)}
    values = {key: bytes(range(256)) * (size // 256) for key, size in sizes.items()}
    for key, value in values.items():
        assert client.put(key, value)
    for key, value in values.items():
        assert client.get(key) == value, key
    assert client.get(b"none") is None
print(f"{len(names)} modules")
