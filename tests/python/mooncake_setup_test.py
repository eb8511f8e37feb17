"""mooncake.store on tarn, set up: all the ways in, and before and after."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from harness import ROOT
from mooncake_helpers import INVALID, MIB, Memory, NOT_SUPPORTED, StoreTest, of

from mooncake.mooncake_config import MooncakeConfig
from mooncake.store import MooncakeDistributedStore

try:
    import numpy
except ImportError:
    numpy = None


class SetupTest(StoreTest):
    """All the ways in."""

    def works(self, store):
        self.addCleanup(store.close)
        self.assertEqual(store.upsert("setup", b"v" * 100), 0)
        self.assertEqual(store.get("setup"), b"v" * 100)
        self.assertEqual(store.health_check(), 0)

    def test_positional_dict_keyword(self):
        store = MooncakeDistributedStore()
        self.assertEqual(
            store.setup("localhost:17001", "http://h/metadata", 0, MIB, "tcp", "", of(self.server)),
            0,
        )
        self.works(store)
        self.assertEqual(store.get_hostname(), "localhost:17001")
        values = {
            "local_hostname": "localhost",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": "0",
            "local_buffer_size": "16 MB",
            "master_server_addr": self.server.url,
        }
        for arguments, named in (((values,), {}), ((), {"config": values})):
            store = MooncakeDistributedStore()
            self.assertEqual(store.setup(*arguments, **named), 0)
            self.works(store)
            host, port = store.get_hostname().split(":")
            self.assertEqual(host, "localhost")
            self.assertTrue(12300 <= int(port) <= 14300)
        store = MooncakeDistributedStore()
        self.assertEqual(store.setup_dummy(MIB, MIB, of(self.server)), 0)
        self.works(store)

    def test_only_the_folder_on_the_path(self):
        """The package tarn need not be installed, and what an installed Mooncake has besides is
        found."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "mooncake"))
            for name in ("__init__", "store", "more"):
                with open(os.path.join(folder, "mooncake", name + ".py"), "w") as file:
                    file.write("real = True\n")
            path = os.pathsep.join([os.path.join(ROOT, "utils", "python", "compat"), folder])
            program = (
                "import mooncake.more, mooncake.store, mooncake.engine as e;"
                "print(e.TransferEngine().get_rpc_port(), dir(mooncake.store).count('real'))"
            )
            done = subprocess.run(
                [sys.executable, "-S", "-c", program],
                env=dict(os.environ, PYTHONPATH=path),
                cwd="/",
                stdout=subprocess.PIPE,
                text=True,
            )
        self.assertEqual((done.returncode, done.stdout), (0, "-1 0\n"))

    def test_configuration_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mooncake.json")
            with open(path, "w") as file:
                json.dump(
                    {
                        "local_hostname": "localhost",
                        "metadata_server": "P2PHANDSHAKE",
                        "global_segment_size": "0.5GB",
                        "local_buffer_size": 1073741824,
                        "master_server_address": of(self.server),
                    },
                    file,
                )
            self.addCleanup(os.environ.pop, "MOONCAKE_CONFIG_PATH", None)
            os.environ["MOONCAKE_CONFIG_PATH"] = path
            config = MooncakeConfig.load_from_env()
        self.assertEqual(
            (config.global_segment_size, config.local_buffer_size), (512 * MIB, 1 << 30)
        )
        self.assertEqual(
            (config.protocol, config.device_name, config.tenant_id), ("tcp", "", "default")
        )
        store = MooncakeDistributedStore()
        code = store.setup(
            config.local_hostname,
            config.metadata_server,
            "0B",
            config.local_buffer_size,
            config.protocol,
            config.device_name,
            config.master_server_address,
        )
        self.assertEqual(code, 0)
        self.works(store)
        with self.assertRaisesRegex(ValueError, "master_server_address"):
            MooncakeConfig._from({"local_hostname": "a", "metadata_server": "b"})
        with self.assertRaisesRegex(ValueError, "enable_ssd_offload"):
            MooncakeConfig._from(dict(vars(config), enable_ssd_offload="perhaps"))

    def test_what_is_refused(self):
        good = ["localhost", "P2PHANDSHAKE", 0, MIB, "tcp", "", of(self.server)]
        for at, value, code in (
            (0, " ", INVALID),
            (1, "", INVALID),
            (2, "50%", INVALID),
            (2, -1, INVALID),
            (2, 100, INVALID),
            (2, "1e400", INVALID),
            (2, "9" * 5000, INVALID),
            (2, (1 << 64) + MIB, INVALID),
            (3, 1 << 63, INVALID),
            (4, "ascend", NOT_SUPPORTED),
            (4, "nvlink", NOT_SUPPORTED),
            (6, "", INVALID),
            (6, "127.0.0.1:1", -900),
        ):
            store = MooncakeDistributedStore()
            with self.assertLogs("mooncake", "ERROR"):
                self.assertEqual(store.setup(*good[:at], value, *good[at + 1 :]), code, (at, value))
            self.assertEqual(store.health_check(), 1)
        for named in (
            {"enable_client_http_server": True},
            {"enable_ssd_offload": True, "ssd_offload_path": "/nowhere"},
        ):
            with self.assertLogs("mooncake", "ERROR"):
                self.assertLess(MooncakeDistributedStore().setup(*good, **named), 0)
        with self.assertRaises(TypeError):
            MooncakeDistributedStore().setup("localhost")
        with self.assertRaises(TypeError):
            MooncakeDistributedStore().setup(*good, engine=object())
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(self.store.setup(*good), INVALID, "it is set up already")

    @unittest.skipIf(
        os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"),
        "there is RDMA here",
    )
    def test_rdma_needs_a_device(self):
        store = MooncakeDistributedStore()
        with self.assertLogs("mooncake", "ERROR") as log:
            self.assertEqual(
                store.setup("h", "m", 0, MIB, "rdma", "mlx5_0", of(self.server)), INVALID
            )
        self.assertIn('use "tcp"', log.output[0])

    def test_before_and_after(self):
        store, memory = MooncakeDistributedStore(), Memory(16)
        for _ in range(2):
            with self.assertLogs("mooncake", "ERROR"):
                self.assertEqual(store.health_check(), 1)
                self.assertEqual(store.put("k", b"v"), INVALID)
                self.assertEqual(store.get("k"), b"")
                self.assertEqual(store.get_batch(["k"]), [b""])
                self.assertIsNone(store.get_buffer("k"))
                self.assertEqual(store.is_exist("k"), INVALID)
                self.assertEqual(store.is_exist(5), INVALID)  # docs/engines/MOONCAKE.md
                self.assertEqual(store.batch_get_into(["k"], [memory.address], [16]), [INVALID])
                self.assertEqual(store.remove_all(), INVALID)
            self.assertEqual(store.setup("localhost", "m", 0, MIB, "tcp", "", of(self.server)), 0)
            self.assertEqual(store.close(), 0)
            self.assertEqual(store.close(), 0)

    def test_no_staging_memory(self):
        store, memory = self.open(local_buffer_size=0), Memory(100, b"x" * 100)
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(store.put("k", b"v"), INVALID)
        self.assertEqual(store.is_exist("k"), 0)
        self.assertEqual(store.put_from("k", memory.address, 100), 0)

    def test_tenants(self):
        one, two = self.open(tenant_id="one"), self.open(tenant_id="two")
        for i, store in enumerate((self.store, one, two)):
            self.assertEqual(store.put("k", b"%d" % i * 100), 0)
        self.assertEqual([s.get("k")[:1] for s in (self.store, one, two)], [b"0", b"1", b"2"])
        self.assertEqual(one.remove_all(), 1)
        self.assertEqual([s.is_exist("k") for s in (self.store, one, two)], [1, 0, 1])
        with self.assertLogs("mooncake", "ERROR"):
            self.assertEqual(two.remove_by_regex("."), NOT_SUPPORTED)


if __name__ == "__main__":
    unittest.main()
