"""The package as one installs it: wheel, sdist, pip without internet, an installed package that
works on its own."""

import base64
import csv
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

from harness import ROOT, TarnTest, environment

PACKAGE = os.path.join(ROOT, "utils", "python")
LIBRARY = os.environ.get("TARN_LIB", os.path.join(ROOT, "build", "release", "libtarn.so"))


def clean_environment():
    """Without what would lead an installed package back to this tree."""
    env = environment()
    for name in ("TARN_LIB", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    env["BUILD"] = os.path.dirname(os.path.abspath(LIBRARY))
    return env


def call(*argv, cwd=None, **more):
    """Output of a program that must succeed."""
    done = subprocess.run(
        argv,
        cwd=cwd,
        env={**clean_environment(), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        raise AssertionError(f"{argv}: status {done.returncode}\n{text}")
    return text


def backend(function, directory):
    """What a front end does: calls the backend in the folder of pyproject.toml; the name of the
    file it made."""
    code = (
        "import sys; sys.dont_write_bytecode = True; import build_backend;"
        f" print(build_backend.{function}({directory!r}))"
    )
    return call(sys.executable, "-c", code, cwd=PACKAGE).split()[-1]


USE = """
import sys, tarn, tarn._lib, os
assert os.path.dirname(tarn.__file__).startswith(sys.argv[2]), tarn.__file__
assert tarn._lib.lib._name.startswith(sys.argv[3]), tarn._lib.lib._name
with tarn.Client(sys.argv[1]) as client:
    assert client.put("installed", b"x" * 1000) or client.get("installed")
    assert client.get("installed") == b"x" * 1000
sys.path.insert(0, tarn.compat_path())
import mooncake.store
assert mooncake.store.MooncakeDistributedStore
print("works", tarn.__version__)
"""


class Files(unittest.TestCase):
    """What is in the files; needs neither pip nor a server."""

    def test_wheel(self):
        with tempfile.TemporaryDirectory() as out:
            name = backend("build_wheel", out)
            self.assertRegex(name, r"^tarn-[0-9.]+-py3-none-linux_[a-z0-9_]+\.whl$")
            version = name.split("-")[1]
            with zipfile.ZipFile(os.path.join(out, name)) as wheel:
                files = wheel.namelist()
                self.assertEqual(len(files), len(set(files)))
                info = f"tarn-{version}.dist-info"
                for wanted in (
                    "tarn/__init__.py",
                    "tarn/py.typed",
                    "tarn/libtarn.so.0",
                    f"{info}/METADATA",
                    f"{info}/LICENSE",
                    f"{info}/entry_points.txt",
                    "tarn/gateway/__main__.py",
                ):
                    self.assertIn(wanted, files)
                self.assertIn("tarn/compat/mooncake/store.py", files)
                self.assertFalse([f for f in files if "__pycache__" in f or f.endswith(".pyc")])
                rows = {
                    r[0]: r for r in csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode()))
                }
                self.assertEqual(sorted(rows), sorted(files))
                for file in files:
                    data = wheel.read(file)
                    if file.endswith("/RECORD"):
                        self.assertEqual(rows[file][1:], ["", ""])
                        continue
                    digest = (
                        base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                    )
                    self.assertEqual(rows[file][1:], ["sha256=" + digest, str(len(data))])
                metadata = wheel.read(f"{info}/METADATA").decode()
                self.assertIn(f"Name: tarn\nVersion: {version}\n", metadata)
                self.assertIn("Requires-Python: >=3.9", metadata)
                self.assertIn("Requires-Dist: aiohttp>=3.8; extra == 'gateway'\n", metadata)
                self.assertNotRegex(metadata, r"Requires-Dist: [^;\n]*\n")
                tags = wheel.read(f"{info}/WHEEL").decode()
                self.assertIn("Root-Is-Purelib: false", tags)
                self.assertIn(f"Tag: {name[:-4].split('-', 2)[2]}", tags)
                with open(os.path.join(PACKAGE, "tarn", "__init__.py")) as f:
                    self.assertIn(f'__version__ = "{version}"', f.read())

    def test_sdist(self):
        with tempfile.TemporaryDirectory() as out:
            name = backend("build_sdist", out)
            with tarfile.open(os.path.join(out, name)) as sdist:
                sdist.extractall(out)
            top = os.path.join(out, name[: -len(".tar.gz")])
            for wanted in (
                "PKG-INFO",
                "pyproject.toml",
                "build_backend.py",
                "README.md",
                "tarn/client.py",
                "native/Makefile",
            ):
                self.assertTrue(os.path.exists(os.path.join(top, wanted)), wanted)
            # All of the library's sources: as many as here, and make knows how to make it of them.
            for folder, folders, files in os.walk(os.path.join(ROOT, "src")):
                inside = os.path.join(top, "native", os.path.relpath(folder, ROOT))
                for file in files:
                    if file.endswith((".c", ".h", ".map")):
                        self.assertTrue(os.path.exists(os.path.join(inside, file)), file)
            build = os.path.join(out, "build")
            native = os.path.join(top, "native")
            plan = call(
                "make",
                "-n",
                "V=1",
                f"BUILD={build}",
                f"{build}/libtarn.so.0",
                f"{build}/modules/rdma.so",
                cwd=native,
            )
            self.assertTrue("-soname,libtarn.so.0" in plan)
            self.assertTrue("-c modules/rdma/module.c" in plan)

    def test_version_is_the_library_s(self):
        with open(os.path.join(ROOT, "Makefile")) as f:
            version = next(line.split()[-1] for line in f if line.startswith("VERSION :="))
        with open(os.path.join(PACKAGE, "pyproject.toml")) as f:
            self.assertIn(f'version = "{version}"', f.read())


@unittest.skipIf(
    os.environ.get("TARN_SANITIZER"), "a library with a sanitizer does not load by itself"
)
class Installed(TarnTest):
    def test_pip_without_internet(self):
        with tempfile.TemporaryDirectory() as out:
            venv = os.path.join(out, "venv")
            call(sys.executable, "-m", "venv", "--without-pip", venv)
            python = os.path.join(venv, "bin", "python")
            # As everybody does it: from the folder, in an environment that pip makes for the build;
            # with Debian's pip, which is quicker than one more in the new environment.
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
            try:
                call(*pip, "--version")
            except AssertionError as e:
                self.skipTest("no pip with --python here (Debian: python3-pip): " + str(e)[-200:])
            call(*pip, "install", "--no-index", ".", cwd=PACKAGE)
            self.assertIn(
                "works", call(python, "-I", "-c", USE, self.server.url, venv, venv, cwd=out)
            )
            self.has_gateway(venv)
            # The folder itself, with a library that is named.
            call(*pip, "install", "--no-index", "-e", ".", cwd=PACKAGE)
            library = os.path.dirname(os.path.abspath(LIBRARY))
            said = call(
                python, "-c", USE, self.server.url, PACKAGE, library, cwd=out, TARN_LIB=LIBRARY
            )
            self.assertIn("works", said)

    def has_gateway(self, venv):
        """With Debian's aiohttp, which is not in the new environment."""
        try:
            import aiohttp

            packages = os.path.dirname(os.path.dirname(aiohttp.__file__))
        except ImportError:
            return
        program = os.path.join(venv, "bin", "tarn-gateway")
        self.assertIn("--conductor", call(program, "--help", PYTHONPATH=packages))


if __name__ == "__main__":
    sys.exit(unittest.main())
