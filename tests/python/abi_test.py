"""What the package believes about libtarn's structs and numbers, against a C compiler's word on the
headers."""

import ctypes as C
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from harness import ROOT

import tarn
from tarn import _lib, _transfer_lib, client, host, kv_groups, options, queue, transfer

# By the names that their docstrings say.
STRUCTS = {
    struct.__doc__.rstrip("."): struct
    for module in (_lib, _transfer_lib)
    for struct in vars(module).values()
    if isinstance(struct, type) and issubclass(struct, C.Structure)
}
SIZES = {"tarn_item": _lib.ITEM_BYTES, "tarn_key": _lib.KEY_BYTES}
CONSTANTS = {
    **{f"TARN_PIN_{name.upper()}": n for name, n in options.PINS.items() if name},
    **{f"TARN_HIST_{name.upper()}": n for name, n in client._HISTOGRAMS.items()},
    **{f"TARN_FIGURES_{name.upper()}": n for name, n in client._FIGURES.items()},
    **{f"TARN_OP_{name.upper()}": n for n, name in queue._OPS.items()},
    **{f"TARN_KV_{name.upper()}": n for name, n in kv_groups.KINDS.items()},
    **{f"TARN_HOST_{state.name}": int(state) for state in host.HostState},
    **{f"TARN_TRANSFER_{kind.name}": int(kind) for kind in transfer.EventKind},
    **{f"TARN_TRANSFER_{state.name}": int(state) for state in transfer.BatchState},
    "TARN_TRANSFER_READ": transfer.READ,
    "TARN_TRANSFER_WRITE": transfer.WRITE,
}


def header(name):
    with open(os.path.join(ROOT, "src", name), encoding="utf-8") as f:
        return f.read()


def compile_c(source, *arguments):
    """The program's path must be among the arguments, or nothing is linked."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    command = [*shlex.split(os.environ.get("CC", "gcc")), "-I", os.path.join(ROOT, "src")]
    try:
        subprocess.run(
            [*command, "-xc", "-", *arguments], input=source.encode(), check=True, env=env
        )
    except OSError as e:
        raise unittest.SkipTest(f"no C compiler: {e}")
    return env


class Abi(unittest.TestCase):
    def test_examples(self):
        """What the headers open with compiles as it stands there."""
        for name in ("tarn.h", "tarn_transfer.h"):
            comment = header(name).split("*/", 1)[0]
            lines = re.findall(r"^ \*(?:$|     (.*))", comment, re.M)
            self.assertIn(f"#include <{name}>", lines)
            compile_c("\n".join(lines), "-fsyntax-only", "-Wall", "-Wextra", "-Werror")

    def test_structs(self):
        headers = ('"tarn_transfer.h"', "<stdio.h>", "<stddef.h>", "<sys/uio.h>")
        lines = [f"#include {name}" for name in ('"tarn.h"', *headers)] + ["int main(void) {"]
        expected = {}
        for name, struct in STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected[name] = C.sizeof(struct)
            for field in struct._fields_:
                called = f"iov_{field[0]}" if name == "struct iovec" else field[0]
                lines.append(f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {called}));')
                lines.append(
                    f'printf("{name}.{field[0]}: %zu\\n", sizeof((({name} *)0)->{called}));'
                )
                expected[f"{name}.{field[0]}"] = getattr(struct, field[0]).offset
                expected[f"{name}.{field[0]}:"] = getattr(struct, field[0]).size
        for name, size in SIZES.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected[name] = size
        for name, value in CONSTANTS.items():
            lines.append(f'printf("{name} %d\\n", {name});')
            expected[name] = value
        lines.append("return 0; }")
        with tempfile.TemporaryDirectory() as out:
            program = os.path.join(out, "abi")
            env = compile_c("\n".join(lines) + "\n", "-o", program)
            said = subprocess.run(
                [program], stdout=subprocess.PIPE, check=True, env=env
            ).stdout.decode()
        found = {
            name: int(number)
            for name, number in (line.rsplit(" ", 1) for line in said.splitlines())
        }
        self.assertEqual(found, expected)

    def test_statuses(self):
        found = {
            name: int(number)
            for name, number in re.findall(r"TARN_(\w+) = (-?\d+),", header("tarn_status.h"))
        }
        self.assertEqual(found, {s.name: int(s) for s in tarn.Status})

    def test_functions(self):
        """All that the headers have is known, with as many arguments; but for what other modules
        call."""
        text = re.sub(r"/\*.*?\*/", " ", header("tarn.h") + header("tarn_transfer.h"), flags=re.S)
        declared = {
            name: 0 if arguments.strip() == "void" else len(arguments.split(","))
            for name, arguments in re.findall(
                r"^TARN_API [^;]*?\b(tarn_\w+)\(([^;]*)\);", text, re.M
            )
        }
        prototypes = _lib._PROTOTYPES + _transfer_lib._PROTOTYPES
        known = {name: len(arguments) for name, _, arguments in prototypes}
        self.assertEqual({n: declared.get(n) for n in known}, known)
        others = {n for n in declared if n not in known}
        inits = r"\w+_init(_sized)?$"
        elsewhere = r"tarn_(mapping_|set_log|putv|getv|transfer_merge|transfer_run|%s)" % inits
        self.assertEqual({n for n in others if not re.match(elsewhere, n)}, set())


if __name__ == "__main__":
    sys.exit(unittest.main())
