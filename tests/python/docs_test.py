"""The examples of docs/PYTHON.md, LIBTARN.md and engines/HYBRID.md run; bytes of models."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

from abi_test import compile_c
from harness import ROOT, SLOW, TarnTest

from tarn import _lib
from tarn.keys import hash_text

GUIDE = os.path.join(ROOT, "docs", "PYTHON.md")


class Guide(TarnTest):
    def test_examples(self):
        with open(GUIDE, encoding="utf-8") as f:
            text = f.read()
        blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
        self.assertGreater(len(blocks), 5)
        names = {"URL": self.server.url}
        for block in blocks:
            line = text.count("\n", 0, block.start()) + 1
            exec(compile("\n" * line + block.group(1), GUIDE, "exec"), names)
        names["client"].close()

    def test_every_exception_is_in_the_table(self):
        import tarn
        from tarn import errors

        with open(GUIDE, encoding="utf-8") as f:
            text = f.read()
        found = {n: t for n, t in vars(errors).items() if tarn.Error in getattr(t, "__bases__", ())}
        self.assertGreater(len(found), 15)
        for name, exception in found.items():
            self.assertTrue(f"`{name}`" in text, name)
            self.assertIs(getattr(tarn, name), exception)


class Libtarn(TarnTest):
    """The programs of docs/LIBTARN.md, compiled as they stand there."""

    @unittest.skipIf(SLOW > 1, "programs would have to be linked with the sanitizer")
    def test_programs(self):
        with open(os.path.join(ROOT, "docs", "LIBTARN.md"), encoding="utf-8") as f:
            text = f.read()
        programs = [p for p in re.findall(r"^```c\n(.*?)^```$", text, re.M | re.S) if "main(" in p]
        said = []
        for code in programs:
            code = code.replace("tarn://127.0.0.1:6479", self.server.url)
            with tempfile.TemporaryDirectory() as out:
                program, library = os.path.join(out, "a"), os.path.abspath(_lib.lib._name)
                folder = os.path.dirname(library)
                link = ["-xnone", library, f"-Wl,-rpath,{folder}", "-Wall", "-Wextra", "-Werror"]
                env = compile_c(code, *link, "-o", program)
                run = subprocess.run([program], stdout=subprocess.PIPE, check=True, env=env)
            said.append(run.stdout.decode().strip())
        self.assertEqual(said[0], "0 hits, 0 read, 0 failed puts")
        self.assertIn(f"`{said[1]}`", text)
        self.assertEqual(len(said), 2)


class HybridModels(TarnTest):
    def test_the_example_runs(self):
        with open(os.path.join(ROOT, "docs", "engines", "HYBRID.md"), encoding="utf-8") as f:
            (code,) = re.findall(r"^```python\n(.*?)^```$", f.read(), re.M | re.S)
        hashes = [bytes([i]) * 32 for i in range(16)]
        window = {f"my-model@bf16@window@{hash_text(h.hex())}" for h in hashes[8:]}
        full = {f"my-model@bf16@full@{hash_text(h.hex())}" for h in hashes}
        state = {f"my-model@bf16@state@{hash_text(hashes[15].hex())}"}
        self.client().put_many([(key, b"x") for key in full | window | state])
        read = []
        code = code.replace("tarn://10.0.0.1:6479", self.server.url)
        code = re.sub(r"( +)(keys = .*)", r"\1\2\n\1read.extend(keys)", code)
        names = {"hashes": hashes, "read": read}
        exec(code, names)
        names["client"].close()
        self.assertEqual(names["found"].tokens, 256)
        self.assertEqual(set(read), full | window | state)

    def test_bytes_of_models(self):
        """Against numbers worked out by hand from the models' config.json."""
        path = os.path.join(ROOT, "tools", "hybrid-page.py")
        spec = importlib.util.spec_from_file_location("hybrid_page", path)
        page = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(page)
        for name, full, windows, states in (
            ("Llama-3.1-8B", 32 * 2 * 8 * 128 * 2, 0, 0),
            ("gpt-oss-20b", 12 * 2 * 8 * 64 * 2, 12 * 2 * 8 * 64 * 2 * 128, 0),
            ("Gemma 4 31B", 10 * 2 * 4 * 512 * 2, 50 * 2 * 16 * 256 * 2 * 1024, 0),
            # keys and values of 16, 16 and 32 heads for the convolution; 32 matrices of 128 x 128
            (
                "Qwen3-Next-80B-A3B",
                12 * 2 * 2 * 256 * 2,
                0,
                36 * ((16 + 16 + 32) * 128 * 3 * 2 + 32 * 128 * 128 * 2),
            ),
            ("Jamba-1.5-Mini", 4 * 2 * 8 * 128 * 2, 0, 28 * 8192 * (3 + 16) * 2),
            ("DeepSeek-V3.2", 61 * (576 * 2 + 128 + 4), 0, 0),
        ):
            sizes = page.sizes_of(page.kept_of(page.MODELS[name]))
            self.assertEqual(
                (sizes.full, sizes.windows, sizes.states), (full, windows, states), name
            )


if __name__ == "__main__":
    sys.exit(unittest.main())
