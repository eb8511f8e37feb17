"""A pool for the examples: a tarn-server of their own, and nodes, on this machine and free ports;
all of it ends with the program.

    with LocalPool("256mb", nodes=["decode"]) as pool:
        client = tarn.Client(pool.url)

Programs and library are those of the tree that this file lies in, of $TARN_SERVER, $TARN_NODE and
$TARN_LIB, or of the PATH."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Callable, Iterator, List, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if os.path.isdir(os.path.join(ROOT, "utils", "python", "tarn")):
    sys.path.insert(0, os.path.join(ROOT, "utils", "python"))


def program(name: str) -> str:
    """The path of tarn-server or tarn-node. SystemExit: there is none."""
    given = os.environ.get("TARN_" + name.partition("-")[2].upper())
    for path in (
        [given] if given else [os.path.join(ROOT, d, name) for d in ("build/release", "src")]
    ):
        if os.access(path, os.X_OK):
            return path
    found = None if given else shutil.which(name)
    if found is None:
        raise SystemExit(
            f"{given or name} is not there: build it with make, or give --url of a pool that runs"
        )
    return found


class LocalPool:
    """A server with a segment of `size` ("0": none), and one node per name with a segment of
    node_size. `url` is the server's. Nodes' names get this program's pid, see `names`."""

    def __init__(
        self, size: str = "256mb", *, nodes: Sequence[str] = (), node_size: str = "256mb"
    ) -> None:
        self.names = [f"{name}-{os.getpid()}" for name in nodes]
        self._size, self._node_size = size, node_size
        self._processes: List[subprocess.Popen[bytes]] = []
        self._dir = ""
        self.url = ""

    def _start(self, name: str, argv: List[str], seconds: float = 60) -> int:
        """Starts a program and waits for the file that it writes its port to."""
        port_file, log = os.path.join(self._dir, name + ".port"), os.path.join(
            self._dir, name + ".log"
        )
        with open(log, "wb") as out:
            command = argv + ["--port-file", port_file]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._dir
            )
        self._processes.append(process)
        until = time.monotonic() + seconds
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(OSError, ValueError), open(port_file) as file:
                return int(file.read())
            time.sleep(0.01)
        with open(log, errors="replace") as file:
            raise SystemExit(f"{argv[0]} does not start: {file.read()[-2000:]}")

    def __enter__(self) -> "LocalPool":
        self._dir = tempfile.mkdtemp(prefix="tarn-example.")
        try:
            server = [
                program("tarn-server"),
                "--bind",
                "127.0.0.1",
                "--port",
                "0",
                "--data-port",
                "0",
                "--dir",
                self._dir,
            ]
            self.url = (
                f"tarn://127.0.0.1:{self._start('server', server + ['--pool-size', self._size])}"
            )
            for name in self.names:
                node = [
                    program("tarn-node"),
                    "--master",
                    self.url,
                    "--name",
                    name,
                    "--segment",
                    self._node_size,
                ]
                self._start(name, node + ["--bind", "127.0.0.1"])
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Ends the processes, nodes first. May be called twice."""
        while self._processes:
            process = self._processes.pop()
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._dir, ignore_errors=True)

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextlib.contextmanager
def pool_of(
    url: str, size: str, nodes: Sequence[str] = (), node_size: str = "256mb"
) -> Iterator[LocalPool]:
    """The pool at url, or a local one where that is empty."""
    pool = LocalPool(size, nodes=nodes, node_size=node_size)
    if url:
        pool.url, pool.names = url, []
        yield pool
        return
    with pool:
        yield pool


def run_main(main: Callable[[], int]) -> int:
    """What main returns. A pool that cannot be used, or its URL, is one line instead of a
    traceback."""
    import tarn

    try:
        return main()
    except (tarn.Error, OSError) as e:
        raise SystemExit(f"{os.path.basename(sys.argv[0])}: {e}") from None


def arguments(text: str) -> argparse.ArgumentParser:
    """A parser with the options that all examples have."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--url", default="", help="a pool that runs, tarn://...; without it a local one is started"
    )
    return parser
