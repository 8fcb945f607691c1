"""Scores by the program itself."""

import math
import tempfile
import unittest
from pathlib import Path

import tandem

from .common import MODEL

PAIR = ("Once upon", [" a time", " no time", " a"])


class Scores(unittest.TestCase):
    def test_every_question_is_scored_once(self):
        questions = [
            PAIR,
            ([5, 9, 11], [[3, 4], [7]]),
            {"custom_id": "own", "prompt": "Twice", "continuations": [" b"]},
            {"prompt": "no", "continuations": []},
        ]
        seen = []
        told = lambda done, total: seen.append((done, total))  # noqa: E731
        found = list(tandem.score(MODEL, questions, tokens=True, top=2, progress=told))
        scored = sorted(found, key=lambda one: one.index)
        self.assertEqual([one.index for one in scored], [0, 1, 2, 3])
        self.assertEqual(seen, [(done, 4) for done in (1, 2, 3, 4)])
        self.assertEqual([len(one.scores) for one in scored], [3, 2, 1, 0])
        self.assertEqual(scored[2].custom_id, "own")
        self.assertIn("continuations", scored[3].error)
        self.assertNotIn("Line", scored[3].error)
        self.assertEqual([score.tokens for score in scored[1].scores], [(3, 4), (7,)])
        for one in scored[:3]:
            self.assertIsNone(one.error)
            for score in one.scores:
                total = sum(score.token_logprobs)
                self.assertTrue(math.isclose(score.logprob, total, rel_tol=1e-6))
                for own, (best, _) in zip(score.token_logprobs, score.top_logprobs):
                    self.assertLessEqual(own, best[1])

    def test_a_score_depends_on_nothing_beside_it(self):
        alone = next(tandem.score(MODEL, [PAIR]))
        beside = list(tandem.score(MODEL, [("Twice", [" b", " c"]), PAIR], slots=2))
        self.assertEqual([one.scores for one in beside if one.index == 1], [alone.scores])
        self.assertIsNone(alone.scores[0].tokens)
        self.assertIsNone(alone.scores[0].top_logprobs)

    def test_a_folder_is_gone_on_with(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder) / "job"
            first = list(tandem.score(MODEL, [PAIR, ("Twice", [" b"])], folder=job))
            again = list(tandem.score(MODEL, [PAIR, ("Twice", [" b"])], folder=job))
            by_index = lambda one: one.index  # noqa: E731
            self.assertEqual(sorted(first, key=by_index), sorted(again, key=by_index))
            with self.assertRaises(tandem.Error):
                list(tandem.score(MODEL, [PAIR], folder=job))

    def test_what_is_no_question_is_said_before_anything_runs(self):
        for wrong in ("a text", ("Once", " a"), 7):
            with self.assertRaisesRegex(TypeError, "question 0"):
                tandem.Scoring(MODEL, [wrong])
        twice = {"custom_id": "x", "prompt": "a", "continuations": ["b"]}
        with self.assertRaisesRegex(ValueError, "'x'"):
            tandem.Scoring(MODEL, [twice, twice])
        with self.assertRaises(TypeError):
            tandem.Scoring(MODEL, [PAIR], output="x")


if __name__ == "__main__":
    unittest.main()
