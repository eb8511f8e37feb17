"""upgrade_client.py URL: what the Python packages of 0.1 and of this version can both do. Says the
versions of libtarn and of the package."""

import asyncio
import random
import sys

import tarn

url = sys.argv[1]
noise = random.Random(1)
values = {f"py{i}": noise.randbytes(1 + i * 997) for i in range(60)}
with tarn.Client(url) as client:
    for key, value in values.items():
        client.put(key, value)
    for key, value in values.items():
        assert client.get(key) == value, key
    assert client.get("nothing") is None
    with client.view("py7") as view:
        assert bytes(view.data) == values["py7"]
    assert client.exists("py7") and client.remove("py7") and not client.exists("py7")


async def go() -> None:
    aio = tarn.AsyncClient(url)
    await aio.put("async", b"y" * 5000)
    assert await aio.get("async") == b"y" * 5000


asyncio.run(go())
print(tarn.library_version(), tarn.__version__)
