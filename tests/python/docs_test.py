"""The examples of docs/PYTHON.md run as they stand there."""

import os
import re
import sys
import unittest

from harness import ROOT, TarnTest

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


if __name__ == "__main__":
    sys.exit(unittest.main())
