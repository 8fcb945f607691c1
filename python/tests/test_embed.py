"""Embeddings by the program itself."""

import json
import math
import tempfile
import unittest
from pathlib import Path

import tandem

from .common import FIXTURES

MODEL = str(FIXTURES / "qwen3_embedding")
GOLDEN = json.loads((FIXTURES / "qwen3_embedding" / "golden.json").read_text())


class Embeddings(unittest.TestCase):
    def test_vectors_are_those_of_transformers(self):
        seen = []
        told = lambda done, total: seen.append((done, total))  # noqa: E731
        texts = [*GOLDEN["prompts"], []]
        found = list(tandem.embed(MODEL, texts, dtype="f32", progress=told))
        found.sort(key=lambda one: one.index)
        self.assertEqual([one.index for one in found], [0, 1, 2, 3, 4])
        self.assertEqual(seen[-1], (5, 5))
        for one, expected, prompt in zip(found, GOLDEN["last"], GOLDEN["prompts"]):
            self.assertIsNone(one.error)
            self.assertEqual(one.tokens, len(prompt))
            self.assertLess(max(abs(a - b) for a, b in zip(one.vector, expected)), 2e-5)
        self.assertIn("input", found[4].error)

    def test_a_folder_is_gone_on_with(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder) / "job"
            options = {"dtype": "f32", "pooling": "mean", "folder": job}
            (first,) = tandem.embed(MODEL, GOLDEN["prompts"][1:2], **options)
            expected = GOLDEN["mean"][1]
            self.assertLess(max(abs(a - b) for a, b in zip(first.vector, expected)), 2e-5)
            self.assertTrue(math.isclose(sum(x * x for x in first.vector), 1.0, rel_tol=1e-5))
            (again,) = tandem.embed(MODEL, GOLDEN["prompts"][1:2], **options)
            self.assertEqual(first, again)

    def test_vectors_of_lines_in_base64_are_decoded(self):
        body = {"input": GOLDEN["prompts"][1]}
        lines = [
            {"method": "POST", "url": "/v1/embeddings", "body": {**body, "encoding_format": form}}
            for form in ("float", "base64")
        ]
        (one, other) = sorted(tandem.embed(MODEL, lines, dtype="f32"), key=lambda one: one.index)
        self.assertEqual(one.vector, other.vector)
        self.assertEqual(len(one.vector), len(GOLDEN["last"][1]))

    def test_what_is_no_text_is_said_before_anything_runs(self):
        for wrong in (7, [1.5], None):
            with self.assertRaisesRegex(TypeError, "text 0"):
                tandem.Embedding(MODEL, [wrong])
        with self.assertRaises(TypeError):
            tandem.Embedding(MODEL, ["a"], output="x")


if __name__ == "__main__":
    unittest.main()
