"""Ray Data on one node, where Ray is installed; `make test-ray` has three nodes, and deaths."""

import importlib.util
import unittest

import tandem
from tandem.ray import Generate
from tandem.rows import Rows, columns, plain

from .common import MODEL

WHY_NOT = "Ray is not installed; make test-ray installs it, and deals rows to three nodes"


@unittest.skipUnless(importlib.util.find_spec("ray"), WHY_NOT)
class Dealt(unittest.TestCase):
    def test_rows_have_the_answers_of_a_batch(self):
        import ray

        rows = [{"id": f"r{n:02}", "prompt": [5 + n, 9, 11], "label": n} for n in range(20)]
        rows.append({"id": "refused", "prompt": [100000], "label": -1})
        fields = {"max_tokens": 6, "temperature": 1.0}
        asked = Rows(fields=fields)
        answers = tandem.generate(MODEL, [asked.request(row) for row in rows])
        wanted = {answer.custom_id: columns(answer) for answer in answers}
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
        self.addCleanup(ray.shutdown)
        found = ray.data.from_items(rows, override_num_blocks=5).map_batches(
            Generate,
            fn_constructor_kwargs={"model": MODEL, "fields": fields, "device": "none"},
            batch_size=4,
            compute=ray.data.ActorPoolStrategy(size=2),
        )
        told = {row["id"]: plain(row) for row in found.take_all()}
        self.assertEqual(sorted(told), sorted(wanted))
        for row in rows:
            self.assertEqual(told[row["id"]], {**row, **wanted[row["id"]]})
