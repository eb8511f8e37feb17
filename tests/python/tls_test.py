"""The Python client, and memory that it lends, over TLS: what moves, and what somebody on the way
gets to see of it."""

import asyncio
import os
import re
import select
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest

from harness import TarnTest

import tarn
from tarn.host import Host

MIB = 1 << 20


class Relay:
    """Carries bytes between a port of its own and another, and keeps what it has seen."""

    def __init__(self, to=None):
        self.to, self.seen, self.connections = to, bytearray(), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ends = []
        self._accepter = threading.Thread(target=self._accept, daemon=True)
        self._accepter.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self.connections += 1
            self._ends += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near, far):
        other = {near: far, far: near}
        try:
            while other:
                for end in select.select(list(other), [], [])[0]:
                    data = end.recv(1 << 18)
                    if not data:
                        return
                    self.seen += data
                    other[end].sendall(data)
        except (OSError, ValueError):
            pass
        finally:
            near.close()
            far.close()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            end.close()


def openssl(*arguments):
    subprocess.run(
        ["openssl", *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def admin_sets(url, cert):
    with tarn.Client(url) as admin:
        admin.command("CONFIG", "SET", "tls-cert-file", cert)


@unittest.skipIf(shutil.which("openssl") is None, "there is no openssl")
class TlsTest(TarnTest):
    pool = None

    @classmethod
    def setUpClass(cls):
        cls.certs = tempfile.mkdtemp(prefix="tarn-py-certs.", dir=os.environ.get("TMPDIR"))
        cls.addClassCleanup(shutil.rmtree, cls.certs, ignore_errors=True)
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj"]
        for ca in ("ca", "otherca"):
            openssl(
                "req",
                "-x509",
                *curve,
                f"/CN={ca}",
                "-days",
                "2",
                "-keyout",
                cls.pem(ca + ".key"),
                "-out",
                cls.pem(ca + ".crt"),
            )
        openssl("req", *curve, "/CN=own", "-keyout", cls.pem("own.key"), "-out", cls.pem("own.csr"))
        signed = [
            "-CA",
            cls.pem("ca.crt"),
            "-CAkey",
            cls.pem("ca.key"),
            "-CAcreateserial",
            "-days",
            "2",
        ]
        for name, names in (
            ("own", "DNS:localhost,IP:127.0.0.1"),
            ("client", "DNS:client.example"),
        ):
            with open(cls.pem(name + ".ext"), "w", encoding="ascii") as file:
                file.write("subjectAltName=" + names)
            extensions = ["-extfile", cls.pem(name + ".ext"), "-out", cls.pem(name + ".crt")]
            openssl("x509", "-req", "-in", cls.pem("own.csr"), *signed, *extensions)
        files = ["--tls-cert-file", cls.pem("own.crt"), "--tls-key-file", cls.pem("own.key")]
        cls.server_args = ["--tls-port", "auto", *files, "--tls-ca-cert-file", cls.pem("ca.crt")]
        cls.pool = "0"
        super().setUpClass()
        with tarn.Client(cls.server.url) as client:
            cls.tls_port = int(
                re.search(r"tls_port:(\d+)", client.command("INFO", "server")).group(1)
            )

    @classmethod
    def pem(cls, name):
        return os.path.join(cls.certs, name)

    def options(self, ca="ca"):
        own = {"tls_cert_file": self.pem("own.crt"), "tls_key_file": self.pem("own.key")}
        return {"tls_ca_file": self.pem(ca + ".crt"), **own}

    def url(self, port=None):
        options = "&".join(f"{name}={value}" for name, value in self.options().items())
        return f"tarns://127.0.0.1:{port or self.tls_port}?{options}"

    def lend(self, relay, **options):
        """Memory, behind the relay if there is one, on another machine as far as clients know."""
        url = self.url() if options else self.server.url
        host = Host(
            url,
            160 * MIB,
            populate=False,
            bind=["127.0.0.1"],
            announce=relay and f"127.0.0.1:{relay.port}",
            host_name="another-machine",
            shm_socket="",
            **options,
        )
        self.addCleanup(host.close, timeout_ms=0)  # nobody reads any more
        if relay is not None:
            relay.to = host.info()["data_port"]
        return host

    def relay(self, to=None):
        relay = Relay(to)
        self.addCleanup(relay.close)
        return relay

    def test_values_and_who_may_see_them(self):
        marker = os.urandom(32)
        value = marker * (MIB // 32)
        for secure in (False, True):  # plain first: then the relay does see them, so it would
            with self.subTest(secure=secure):
                data, control = self.relay(), self.relay(
                    self.tls_port if secure else self.server.port
                )
                host = self.lend(data, **({"tls_data": True} if secure else {}))
                url = self.url(control.port) if secure else f"tarn://127.0.0.1:{control.port}"
                with tarn.Client(url, host_name="elsewhere") as client:
                    self.assertTrue(client.put("marked", value, replace=True))
                    self.assertEqual(client.get("marked"), value)
                    self.assertEqual(client.stats()["tcp_bytes_read"], MIB)
                    client.put("small", marker[:20], replace=True)  # lives in the books
                    self.assertEqual(client.get("small"), marker[:20])
                    client.command("FLUSHALL")
                self.assertGreater(len(data.seen), 2 * MIB)
                self.assertEqual(marker in data.seen, not secure)
                self.assertEqual(marker[:20] in control.seen, not secure)
                self.assertEqual(b"PUTSTART" in control.seen, not secure)
                host.close(timeout_ms=0)

    def test_large_values_and_other_clients(self):
        self.lend(None, tls_data=True)
        large = os.urandom(MIB) * 64
        plain = f"tarn://127.0.0.1:{self.server.port}"
        with tarn.Client(self.url(), host_name="elsewhere", timeout_ms=60_000) as client:
            self.assertTrue(client.put("large", large))
            self.assertTrue(client.get("large") == large)

            async def twice():
                async with tarn.AsyncClient(
                    self.url(), host_name="elsewhere", timeout_ms=60_000
                ) as other:
                    return [
                        v == large
                        for v in await asyncio.gather(other.get("large"), other.get("large"))
                    ]

            self.assertEqual(asyncio.run(twice()), [True, True])
            with tarn.Client(plain, host_name="elsewhere", timeout_ms=60_000) as other:
                with self.assertRaisesRegex(tarn.PermissionDenied, "reached over TLS only"):
                    other.get("large")
            client.remove("large")

    def test_guarantee_6_the_certificate_of_a_client_does_not_do_for_the_master(self):
        tls = f"tarns://127.0.0.1:{self.tls_port}"
        with tarn.Client(self.server.url) as admin:
            admin.command("CONFIG", "SET", "tls-cert-file", self.pem("client.crt"))
            self.addCleanup(admin_sets, self.server.url, self.pem("own.crt"))
        with self.assertRaisesRegex(tarn.PermissionDenied, 'it is not for "127.0.0.1"'):
            tarn.Client(tls, **self.options())
        with self.assertRaisesRegex(tarn.PermissionDenied, 'it is not for "127.0.0.1"'):
            Host(self.url(), MIB, populate=False, bind=["127.0.0.1"])
        with tarn.Client(tls, tls_server_name="client.example", **self.options()) as client:
            client.ping()
        with tarn.Client(tls, tls_verify_name=False, **self.options()) as client:
            client.ping()

    def test_what_is_wrong(self):
        tls = f"tarns://127.0.0.1:{self.tls_port}"
        with tarn.Client(tls, **self.options()) as client:
            client.ping()
        with self.assertRaisesRegex(tarn.PermissionDenied, "not accepted"):
            tarn.Client(tls, **self.options("otherca"))
        with self.assertRaisesRegex(tarn.PermissionDenied, "it wants a certificate"):
            tarn.Client(tls, tls_ca_file=self.pem("ca.crt"))
        with self.assertRaisesRegex(tarn.PermissionDenied, "hostname mismatch"):
            tarn.Client(tls, tls_server_name="elsewhere", **self.options())
        with self.assertRaisesRegex(tarn.InvalidArgument, "/no/file"):
            tarn.Client(tls, tls_ca_file="/no/file")
        with self.assertRaisesRegex(tarn.InvalidArgument, "tarns://"):
            tarn.Client(self.server.url, **self.options())
        with self.assertRaisesRegex(tarn.ProtocolError, "does not speak TLS"):
            tarn.Client(f"tarns://127.0.0.1:{self.server.port}", **self.options())
        with self.assertRaisesRegex(tarn.ProtocolError, "tarns://"):
            tarn.Client(f"tarn://127.0.0.1:{self.tls_port}")
        with self.assertRaisesRegex(tarn.InvalidArgument, "tls_data"):
            Host(
                self.url(), MIB, tls_cert_file=self.pem("own.crt"), tls_key_file=self.pem("own.key")
            )


if __name__ == "__main__":
    unittest.main()
