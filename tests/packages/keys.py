"""Fills a pool with keys, or checks that all are there with the right bytes.

    python3 keys.py URL TRANSPORT put|check FROM TO"""

import hashlib
import sys

import tarn

url, transport, what, first, last = sys.argv[1:4] + [int(n) for n in sys.argv[4:6]]


def value(n):
    """Some inline in the books, most in the pool; each tells its key from any other."""
    size = (n * 7919) % 200_000 if n % 5 else n % 64 + 1
    return (hashlib.sha256(b"%d" % n).digest() * (size // 32 + 1))[: size + 1]


with tarn.Client(url, transport=transport) as client:
    for n in range(first, last):
        if what == "put":
            assert client.put(f"key:{n}", value(n)), f"key:{n} was there"
        else:
            got = client.get(f"key:{n}")
            assert got is not None, f"key:{n} is lost"
            assert got == value(n), f"key:{n} has wrong bytes"
print(f"{last - first} keys: {what}")
