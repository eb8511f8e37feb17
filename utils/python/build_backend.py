"""Builds the wheel (PEP 517, PEP 660) with nothing but Python's own library.

A wheel is the package, libtarn.so.0 and, where it can be built, modules/rdma.so beside it, and in
libs/ some of the libraries these need. The library is made by the tree's Makefile, in its build
directory: build/release, or $BUILD. Where $BUILD already holds a libtarn.so.0 it is taken as it is.
ARCH=arm64 cross-builds it in build/arm64; a wheel is for the machine that its library is for.
An sdist holds the sources of the library under native/, so that a wheel can be built from it (it
takes what a build of tarn takes: deps/packages.txt)."""

import base64
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARY, MODULE = "libtarn.so.0", "modules/rdma.so"
# What an engine's container may lack or have another version of goes along, for where the system's
# does not fit. Not OpenSSL: its fixes come with the system.
CARRIED = re.compile(r"lib(event_core|hiredis|sodium|uring)\W")
# e_machine of an ELF file, and what platforms call it.
MACHINES = {62: "x86_64", 183: "aarch64"}
# What the Makefile needs to make the library and the module.
NATIVE = ("Makefile", "LICENSE", "deps", "modules", "src", "tools/rooms.txt")
NATIVE_FILES = re.compile(r"(Makefile|LICENSE|\.c|\.h|\.map|\.in|\.txt|\.sh)$")


# --- what there is to know


def table(name):
    """The text of a table of pyproject.toml; Python 3.9 has no TOML reader."""
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as f:
        return f.read().split(f"[{name}]\n", 1)[1].split("\n[", 1)[0]


def project():
    """The table [project], as far as it is needed here."""
    text = table("project")
    found = dict(re.findall(r'^([a-z-]+) = "(.*)"$', text, re.M))
    found["classifiers"] = re.findall(r'^ +"(.*)",$', text, re.M)
    return found


def extras():
    """What is needed for more than the package itself: (name, requirement)."""
    for name, needed in re.findall(
        r"^([a-z-]+) = \[(.*)\]$", table("project.optional-dependencies"), re.M
    ):
        for requirement in re.findall(r'"([^"]+)"', needed):
            yield name, requirement


def entry_points():
    """The file of that name: programs that are installed with the package."""
    scripts = re.findall(r'^([a-z-]+) = "(.*)"$', table("project.scripts"), re.M)
    return "[console_scripts]\n" + "".join(f"{name} = {what}\n" for name, what in scripts)


def metadata():
    """The file METADATA (PKG-INFO of an sdist)."""
    p = project()
    with open(os.path.join(HERE, p["readme"]), encoding="utf-8") as f:
        readme = f.read()
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {p['name']}",
        f"Version: {p['version']}",
        f"Summary: {p['description']}",
    ]
    lines += [f"Classifier: {c}" for c in p["classifiers"]]
    lines += [f"Requires-Python: {p['requires-python']}"]
    lines += [f"Provides-Extra: {name}" for name in sorted({name for name, _ in extras()})]
    lines += [f"Requires-Dist: {what}; extra == '{name}'" for name, what in extras()]
    lines += ["Description-Content-Type: text/markdown"]
    return "\n".join(lines) + "\n\n" + readme


def base_name():
    """tarn-0.2.0"""
    return f"{project()['name']}-{project()['version']}"


def foreign(library):
    """The machine that a library is for, "" if it is this one."""
    with open(library, "rb") as f:
        machine = MACHINES.get(int.from_bytes(f.read(20)[18:], "little"), "")
    return "" if sysconfig.get_platform().endswith(machine) else machine


def tag(library):
    """Any CPython 3, no ABI of Python's, the library's platform."""
    other = foreign(library)
    platform = f"linux-{other}" if other else sysconfig.get_platform()
    return "py3-none-" + re.sub(r"[-.]", "_", platform)


def tree():
    """Where the Makefile is: native/ of an sdist, or the root of the source tree this folder is
    in."""
    for root in (os.path.join(HERE, "native"), os.path.dirname(os.path.dirname(HERE))):
        if os.path.exists(os.path.join(root, "src", "libtarn.map")):
            return root
    raise SystemExit(
        f"tarn: the source of libtarn is neither in {HERE}/native nor two folders up; build from a "
        "whole tree"
    )


def package_files():
    """(path here, path in the wheel) of all that is Python."""
    for top, prefix in (("tarn", ""), ("compat", "tarn/")):
        for folder, folders, files in os.walk(os.path.join(HERE, top)):
            folders[:] = sorted(f for f in folders if f != "__pycache__" and not f.startswith("."))
            for name in sorted(files):
                path = os.path.join(folder, name)
                if name.endswith((".py", ".typed", ".pyi", ".md", ".json", ".yaml")):
                    yield path, prefix + os.path.relpath(path, HERE)


# --- the library


def build_library():
    """Paths of libtarn.so.0 and of modules/rdma.so (None: it cannot be built here)."""
    given = os.environ.get("BUILD")
    root = tree() if not given or not os.path.isabs(given) else None
    kind = os.environ.get("ARCH") or "release"
    build = os.path.join(root or "", given or os.path.join("build", kind))
    library, module = os.path.join(build, LIBRARY), os.path.join(build, MODULE)
    if not (given and os.path.exists(library)):
        root = root or tree()
        make(root, build, library)
        try:
            make(root, build, module)
        except SystemExit:
            print(
                "tarn: modules/rdma.so was not built: the wheel goes without RDMA", file=sys.stderr
            )
            return library, None
    return library, module if os.path.exists(module) else None


def output(*command):
    """What a program says, "" if it fails or is not there."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def needed(library):
    """(name, path, root of the system it is in) of the libraries that a library needs."""
    other = foreign(library)
    if not other:
        for name, path in re.findall(r"^\s+(\S+) => (/\S+)", output("ldd", library), re.M):
            yield name, path, ""
        return
    sysroot = os.environ.get("SYSROOT") or os.path.join(tree(), "build", "sysroot-arm64")
    for name in re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", library)):
        path = os.path.join(sysroot, "usr", "lib", f"{other}-linux-gnu", name)
        if os.path.exists(path):
            yield name, path, sysroot


def carried(library):
    """(name, path, path of its licence) of the libraries that go along, as far as Debian's files
    say what their licences are."""
    for name, path, root in needed(library):
        file = os.path.realpath(path)
        # dpkg knows no other system's files, but whose this system's of that name are.
        package = output("dpkg", "-S", "*/" + os.path.basename(file) if root else file)
        package = package.partition(":")[0]
        licence = f"{root}/usr/share/doc/{package}/copyright"
        if CARRIED.match(name) and package and os.path.exists(licence):
            yield name, path, licence


def make(root, build, target):
    """Makes a file of the tree. SystemExit says what is missing."""
    jobs = os.environ.get("MAKEFLAGS") and [] or [f"-j{os.cpu_count() or 1}"]
    command = [
        "make",
        "-C",
        root,
        *jobs,
        f"BUILD={os.path.relpath(build, root)}",
        os.path.relpath(target, root),
    ]
    try:
        # What the frontend shows is standard error; its standard output may be a protocol.
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    except OSError as e:
        raise SystemExit(
            f"tarn: make cannot be started ({e}); deps/install.sh installs what a build needs"
        ) from None
    if status != 0:
        raise SystemExit(
            f"tarn: `{' '.join(command)}` failed; deps/install.sh installs what a build needs"
        )


# --- wheels


class Wheel:
    """A zip file with a RECORD of what is in it; the same bytes for the same content."""

    def __init__(self, directory, library):
        self.tag = tag(library)
        self.strip = "-linux-gnu-".join(filter(None, (foreign(library), "strip")))
        self.name = f"{base_name()}-{self.tag}.whl"
        self.info = f"{base_name()}.dist-info"
        self.path = os.path.join(directory, self.name)
        self.zip = zipfile.ZipFile(self.path + ".new", "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, mode=0o644):
        entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        raw = data.encode() if isinstance(data, str) else data
        digest = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(raw)}")

    def add_library(self, name, path):
        """A shared object, without what only a debugger reads, where there is a tool that can take
        it out."""
        with tempfile.TemporaryDirectory() as folder:
            slim = os.path.join(folder, "slim")
            try:
                stripped = (
                    subprocess.call(
                        [self.strip, "--strip-debug", "-o", slim, path], stderr=subprocess.DEVNULL
                    )
                    == 0
                )
            except OSError:
                stripped = False
            self.add_file(name, slim if stripped else path, 0o755)

    def add_file(self, name, path, mode=0o644):
        with open(path, "rb") as f:
            self.add(name, f.read(), mode)

    def finish(self):
        self.add(f"{self.info}/METADATA", metadata())
        wheel = f"Wheel-Version: 1.0\nGenerator: tarn\nRoot-Is-Purelib: false\nTag: {self.tag}\n"
        self.add(f"{self.info}/WHEEL", wheel)
        self.add(f"{self.info}/top_level.txt", "tarn\n")
        self.add(f"{self.info}/entry_points.txt", entry_points())
        for root in (os.path.join(HERE, "native"), os.path.dirname(os.path.dirname(HERE))):
            if os.path.exists(os.path.join(root, "LICENSE")):
                self.add_file(f"{self.info}/LICENSE", os.path.join(root, "LICENSE"))
                break
        name = f"{self.info}/RECORD"
        self.zip.writestr(
            zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "\n".join([*self.record, f"{name},,", ""])
        )
        self.zip.close()
        os.replace(self.path + ".new", self.path)
        return self.name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517."""
    library, module = build_library()
    wheel = Wheel(wheel_directory, library)
    for path, name in package_files():
        wheel.add_file(name, path)
    wheel.add_library(f"tarn/{LIBRARY}", library)
    if module is not None:
        wheel.add_library(f"tarn/{MODULE}", module)
    for name, path, licence in carried(library):
        wheel.add_library(f"tarn/libs/{name}", path)
        wheel.add_file(f"tarn/libs/LICENSE.{name}", licence)
    return wheel.finish()


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 660: this folder on Python's path. The library stays in the build directory of the
    tree."""
    library, _module = build_library()
    wheel = Wheel(wheel_directory, library)
    wheel.add("tarn.pth", HERE + "\n")
    return wheel.finish()


# --- sdists


def native_files(root):
    """(path, path in the sdist) of what the library is built from."""
    for top in NATIVE:
        path = os.path.join(root, top)
        if os.path.isfile(path):
            yield path, "native/" + top
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(folders)
            for name in sorted(files):
                if NATIVE_FILES.search(name):
                    file = os.path.join(folder, name)
                    yield file, "native/" + os.path.relpath(file, root)


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517."""
    name = f"{base_name()}.tar.gz"
    stamp = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    files = [
        (os.path.join(HERE, f), f) for f in ("pyproject.toml", "README.md", "build_backend.py")
    ]
    files += [(path, os.path.relpath(path, HERE)) for path, _ in package_files()]
    files += list(native_files(tree()))

    def member(archive, at, data, mode):
        info = tarfile.TarInfo(f"{base_name()}/{at}")
        info.size, info.mtime, info.mode = len(data), stamp, mode
        archive.addfile(info, io.BytesIO(data))

    with open(os.path.join(sdist_directory, name), "wb") as raw:
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=stamp) as packed:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
                member(archive, "PKG-INFO", metadata().encode(), 0o644)
                for path, at in files:
                    with open(path, "rb") as f:
                        member(archive, at, f.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
    return name


# --- packages of a system, which have the library elsewhere


def install(directory):
    """The package without the library, and what Python wants to know of it."""
    info = f"{base_name()}.dist-info/"
    texts = {info + "METADATA": metadata(), info + "entry_points.txt": entry_points()}
    for path, name in package_files():
        with open(path, encoding="utf-8") as f:
            texts[name] = f.read()
    for name, text in texts.items():
        os.makedirs(os.path.dirname(os.path.join(directory, name)), exist_ok=True)
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            f.write(text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("build_backend.py DIRECTORY: installs the package there, without libtarn")
    install(sys.argv[1])
