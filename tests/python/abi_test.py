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
from tarn import _lib, _transfer_lib

STRUCTS = {
    "tarn_options": _lib.Options,
    "tarn_call": _lib.Call,
    "tarn_put_options": _lib.PutOptions,
    "tarn_columns": _lib.Columns,
    "tarn_completion": _lib.CompletionStruct,
    "tarn_stats": _lib.Stats,
    "tarn_histogram": _lib.Histogram,
    "tarn_host_segment": _transfer_lib.HostSegment,
    "tarn_host_options": _transfer_lib.HostOptions,
    "tarn_host_info": _transfer_lib.HostInfo,
}
SIZES = {"tarn_item": _lib.ITEM_BYTES, "tarn_key": _lib.KEY_BYTES, "struct iovec": _lib.IOVEC_BYTES}


def header(name):
    with open(os.path.join(ROOT, "src", name), encoding="utf-8") as f:
        return f.read()


class Abi(unittest.TestCase):
    def test_structs(self):
        lines = ['#include "tarn.h"', "#include <stdio.h>", "int main(void) {"]
        expected = {}
        for name, struct in STRUCTS.items():
            lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
            expected[name] = C.sizeof(struct)
            for field in struct._fields_:
                lines.append(f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));')
                lines.append(
                    f'printf("{name}.{field[0]}: %zu\\n", sizeof((({name} *)0)->{field[0]}));'
                )
                expected[f"{name}.{field[0]}"] = getattr(struct, field[0]).offset
                expected[f"{name}.{field[0]}:"] = getattr(struct, field[0]).size
        for name, size in SIZES.items():
            lines.append(f'printf("{name.split()[-1]} %zu\\n", sizeof({name}));')
            expected[name.split()[-1]] = size
        lines.append("return 0; }")
        with tempfile.TemporaryDirectory() as out:
            source, program = os.path.join(out, "abi.c"), os.path.join(out, "abi")
            with open(source, "w") as f:
                f.write("\n".join(lines) + "\n")
            compiler = shlex.split(os.environ.get("CC", "gcc"))
            env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
            try:
                subprocess.run(
                    [*compiler, "-I", os.path.join(ROOT, "src"), source, "-o", program],
                    check=True,
                    env=env,
                )
            except OSError as e:
                self.skipTest(f"no C compiler: {e}")
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
        """All that the header has is known, with as many arguments; but for what other modules
        call."""
        text = re.sub(r"/\*.*?\*/", " ", header("tarn.h"), flags=re.S)
        declared = {
            name: 0 if arguments.strip() == "void" else len(arguments.split(","))
            for name, arguments in re.findall(
                r"^TARN_API [^;]*?\b(tarn_\w+)\(([^;]*)\);", text, re.M
            )
        }
        known = {name: len(arguments) for name, _, arguments in _lib._PROTOTYPES}
        self.assertEqual({n: declared.get(n) for n in known}, known)
        others = {n for n in declared if n not in known}
        self.assertEqual(
            {
                n
                for n in others
                if not re.match(r"tarn_(host_|mapping_|set_log|putv|getv|\w+_init$)", n)
            },
            set(),
        )


if __name__ == "__main__":
    sys.exit(unittest.main())
