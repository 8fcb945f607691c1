"""The example of the README under "Use from Python"."""

import contextlib
import io
import unittest
from pathlib import Path

from .common import MODEL

README = Path(__file__).resolve().parents[2] / "README.md"


class Readme(unittest.TestCase):
    def test_its_lines_answer(self):
        section = README.read_text().split("## Use from Python", 1)[1]
        code = section.split("```python\n", 1)[1].split("```", 1)[0]
        self.assertIn('"SmolLM2.gguf"', code)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code.replace('"SmolLM2.gguf"', repr(MODEL)), str(README), "exec"), {})
        # A text of a model with random weights may have line ends of its own.
        starts = {line[:2] for line in printed.getvalue().splitlines()}
        self.assertLessEqual({"0 ", "1 "}, starts)
