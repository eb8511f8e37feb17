#!/usr/bin/env python3
"""One failover, as programs see it: for ha.sh.

    failover.py URL PID

Puts old values through URL, kills process PID with SIGKILL, and says how many milliseconds went by
until the first put of 1 KiB was accepted and until the first old value was read again: "put read".
Each goes on in a thread of its own, as a program does that has a put, or a get, under way."""
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
import tarn  # noqa: E402

OLD = 64


def first(what, times, name, start):
    """Until what() succeeds for the first time after the kill."""
    start.wait()
    while time.monotonic() - times["kill"] < 60:
        began = time.monotonic()
        try:
            done = what()
        except tarn.Error as error:
            times.setdefault(name + "_errors", []).append(str(error))
            continue
        if done and began >= times["kill"]:
            times[name] = time.monotonic()
            return


def main():
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    url, pid = sys.argv[1], int(sys.argv[2])
    value = os.urandom(1024)
    clients = [tarn.Client(url, timeout_ms=30000) for _ in range(2)]
    for i in range(OLD):
        clients[0].put(f"old{i}", value, replace=True)
    assert all(clients[1].get(f"old{i}") == value for i in range(OLD))
    times, start = {}, threading.Event()
    threads = [
        threading.Thread(
            target=first,
            args=(lambda: clients[0].put("new", value, replace=True) or True, times, "put", start),
        ),
        threading.Thread(
            target=first, args=(lambda: clients[1].get("old7") == value, times, "read", start)
        ),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    times["kill"] = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    start.set()
    for thread in threads:
        thread.join()
    if "put" not in times or "read" not in times:
        sys.exit(f"nothing came back within a minute: {times}")
    print(*[f"{(times[name] - times['kill']) * 1000:.0f}" for name in ("put", "read")])


main()
