"""Servers on the program itself."""

import json
import os
import signal
import unittest
import urllib.request

import tandem
from tandem._http import Refused
from tandem._warm import WarmServer
from tandem.ray import Generate
from tandem.rows import Rows, columns

from .common import MODEL, is_running, wait_until, workers_of

OPTIONS = {"slots": 4, "device": "none"}


class Serve(unittest.TestCase):
    def test_it_answers_and_ends(self):
        with tandem.serve(MODEL, **OPTIONS) as server:
            data = json.dumps({"prompt": [5, 9, 11], "max_tokens": 2, "ignore_eos": True}).encode()
            request = urllib.request.Request(
                f"{server.url}/v1/completions", data, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request) as response:
                choice = json.load(response)["choices"][0]
            self.assertEqual(len(choice["token_ids"]), 2)
            self.assertTrue(server.is_alive)
            self.assertIsNone(server.failure())
            processes = [server.pid, *workers_of(server.pid)]
        self.assertFalse(server.is_alive)
        wait_until(lambda: not any(map(is_running, processes)), "it did not end")

    def test_only_a_server_that_has_ended_has_a_failure(self):
        self.assertIsNone(tandem.serve(MODEL).failure())
        with tandem.serve(MODEL, **OPTIONS) as server:
            self.assertIsNone(server.failure())
            os.kill(server.pid, signal.SIGKILL)
            self.assertTrue(server.wait(60))
            self.assertIn("SIGKILL", str(server.failure()))

    def test_what_keeps_it_from_starting_is_its_sentence(self):
        with self.assertRaises(tandem.Error) as caught:
            with tandem.serve("no/such-model"):
                self.fail("it started")
        self.assertIn("no/such-model", str(caught.exception))
        with self.assertRaisesRegex(tandem.Error, "--no-such"):
            with tandem.serve(MODEL, no_such=True):
                self.fail("it started")


class Warm(unittest.TestCase):
    def setUp(self):
        self.server = WarmServer(MODEL, **OPTIONS)
        self.addCleanup(self.server.close)

    def test_a_server_that_dies_is_started_again(self):
        body = {"prompt": [5, 9, 11], "max_tokens": 4, "temperature": 0}
        ask = ("/v1/completions", body)
        first = self.server.answers([ask])
        before = self.server.pid
        os.kill(before, signal.SIGKILL)
        again = self.server.answers([ask] * 3)
        self.assertNotEqual(self.server.pid, before)
        self.assertEqual([one["choices"] for one in again], [first[0]["choices"]] * 3)

    def test_one_that_dies_too_often_is_an_error(self):
        self.server._restarts = 0
        os.kill(self.server.pid, signal.SIGKILL)
        with self.assertRaisesRegex(tandem.Error, "killed by SIGKILL"):
            self.server.answers([("/v1/completions", {"prompt": [5], "max_tokens": 1})])

    def test_a_refusal_is_of_its_request_alone(self):
        good = ("/v1/completions", {"prompt": [5], "max_tokens": 1})
        bad = ("/v1/completions", {"prompt": [5], "max_tokens": -1})
        found = self.server.answers([good, bad, good])
        self.assertIsInstance(found[1], Refused)
        self.assertIn("max_tokens", str(found[1]))
        self.assertEqual([len(found[index]["choices"]) for index in (0, 2)], [1, 1])


class Actor(unittest.TestCase):
    """What an actor answers is what a batch answers, however rows are dealt and sampled."""

    def test_rows_have_the_answers_of_a_batch(self):
        table = [{"id": f"r{n}", "prompt": [5 + n, 9, 11], "label": n} for n in range(10)]
        table.append({"id": "refused", "prompt": [100000], "label": -1})
        fields = {"max_tokens": 6, "temperature": 1.0}
        rows = Rows(fields=fields)
        single = tandem.generate(MODEL, [rows.request(row) for row in table])
        wanted = {answer.custom_id: columns(answer) for answer in single}
        self.assertIn("100000", wanted["refused"]["error"])
        actor = Generate(MODEL, fields=fields, **OPTIONS)
        self.addCleanup(actor._server.close)
        found = {}
        for part in (table[:3], table[3:4], table[4:]):
            if len(part) == 1:
                os.kill(actor._server.pid, signal.SIGKILL)
            batch = {name: [row[name] for row in part] for name in ("id", "prompt", "label")}
            result = actor(batch)
            self.assertEqual(result["label"], batch["label"])
            for index, name in enumerate(result["id"]):
                self.assertNotIn(name, found)
                found[name] = {column: result[column][index] for column in wanted["r0"]}
        self.assertEqual(found, wanted)
