"""Batches on the program itself."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import tandem

from .common import MODEL, SLOW, environment, is_running, wait_until, workers_of

SHORT = {"prompt": [5, 9, 11], "max_tokens": 2, "ignore_eos": True}
LONG = {"prompt": [6, 9, 11], "max_tokens": 120, "ignore_eos": True}


class Generate(unittest.TestCase):
    def test_every_prompt_is_answered_once(self):
        prompts = [
            "Once upon",
            [5, 9, 11],
            [{"role": "user", "content": "Hi"}],
            {"prompt": "Twice", "n": 2, "temperature": 1, "label": "mine", "custom_id": "own"},
            {"prompt": "no", "max_tokens": -1},
        ]
        seen = []
        told = lambda done, total: seen.append((done, total))  # noqa: E731
        found = list(tandem.generate(MODEL, prompts, max_tokens=3, progress=told))
        answers = sorted(found, key=lambda answer: answer.index)
        self.assertEqual([answer.index for answer in answers], [0, 1, 2, 3, 4])
        self.assertEqual(seen, [(done, 5) for done in (1, 2, 3, 4, 5)])
        for answer in answers[:4]:
            self.assertIsNone(answer.error)
            self.assertIn(answer.finish_reason, ("stop", "length"))
            self.assertGreater(answer.usage.prompt_tokens, 0)
            self.assertLessEqual(len(answer.token_ids), 3)
        self.assertEqual(len(answers[3].choices), 2)
        self.assertEqual((answers[3].custom_id, answers[3].columns), ("own", {"label": "mine"}))
        self.assertIn("max_tokens", answers[4].error)
        self.assertNotIn("Line", answers[4].error)
        self.assertEqual((answers[4].text, answers[4].choices), (None, ()))

    def test_no_prompts_are_no_answers(self):
        self.assertEqual(list(tandem.generate(MODEL, [])), [])

    def test_answers_come_while_others_are_computed(self):
        with tandem.Batch(MODEL, [LONG, SHORT], **SLOW) as batch:
            first = next(iter(batch))
            self.assertTrue(batch.is_running)
        self.assertEqual((first.index, batch.answered, batch.total), (1, 1, 2))
        self.assertFalse(batch.folder.exists())

    def test_options_that_are_wrong_are_the_programs_own_error(self):
        for options, said in (({"no_such": 1}, "--no-such"), ({"max_tokens": 0}, "--max-tokens")):
            with self.assertRaises(tandem.Error) as caught:
                list(tandem.generate(MODEL, ["a"], **options))
            self.assertIn(said, str(caught.exception))
            self.assertEqual(caught.exception.exit_code, 2)
        with self.assertRaises(tandem.Error) as caught:
            list(tandem.generate("no/such-model", ["a"]))
        self.assertIn("no/such-model", str(caught.exception))
        self.assertEqual((caught.exception.exit_code, caught.exception.folder), (1, None))


class Endings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "job"

    def answers(self, *prompts, **options):
        found = tandem.generate(MODEL, prompts, folder=self.folder, **options)
        return {answer.index: answer.token_ids for answer in found}

    def test_what_is_left_early_is_gone_on_with(self):
        for answer in tandem.generate(MODEL, [LONG, SHORT], folder=self.folder, **SLOW):
            self.assertEqual(answer.index, 1)
            break
        lines = (self.folder / "output.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["custom_id"] for line in lines], ["prompt-1"])
        whole = self.answers(LONG, SHORT)
        self.assertEqual(sorted(whole), [0, 1])
        undisturbed = {a.index: a.token_ids for a in tandem.generate(MODEL, [LONG, SHORT])}
        self.assertEqual(whole, undisturbed)
        # All are there: they are told again, and none is computed.
        self.assertEqual(self.answers(LONG, SHORT), undisturbed)

    def test_errors_are_told_again_by_a_run_that_goes_on(self):
        refused = {"prompt": "no", "max_tokens": -1}
        for _ in range(2):
            self.assertEqual(self.answers(SHORT, refused)[1], None)

    def test_a_folder_of_another_batch_is_refused(self):
        self.answers(SHORT)
        before = (self.folder / "input.jsonl").read_bytes()
        with self.assertRaisesRegex(tandem.Error, "a batch of other prompts"):
            self.answers(LONG)
        self.assertEqual((self.folder / "input.jsonl").read_bytes(), before)
        with self.assertRaisesRegex(tandem.Error, "cannot be resumed"):
            self.answers(SHORT, seed=5)

    def test_a_killed_worker_is_the_sentence(self):
        with self.assertRaises(tandem.Error) as caught:
            for answer in tandem.generate(MODEL, [LONG, SHORT], folder=self.folder, **SLOW):
                self.assertEqual(answer.index, 1)
                self.kill_a_worker()
        self.assertRegex(str(caught.exception), "worker")
        self.assertRegex(str(caught.exception), "(?i)kill")
        self.assertEqual(caught.exception.exit_code, 1)
        self.assertEqual(caught.exception.folder, str(self.folder))
        self.assertEqual(sorted(self.answers(LONG, SHORT)), [0, 1])

    def code(self):
        """A Python that says which answers it got. Ctrl-C may be ignored where this test runs."""
        return f"""
            import signal, tandem
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for answer in tandem.generate({MODEL!r}, {[LONG, SHORT]!r}, folder={str(self.folder)!r},
                                          **{SLOW!r}):
                print(answer.index, flush=True)
        """

    def kill_a_worker(self):
        (child,) = [pid for pid in children() if workers_of(pid)]
        os.kill(workers_of(child)[0], signal.SIGKILL)

    def test_a_killed_program_is_named(self):
        with self.assertRaises(tandem.Error) as caught:
            with tandem.Batch(MODEL, [LONG, SHORT], **SLOW) as batch:
                for _ in batch:
                    os.kill(batch.pid, signal.SIGKILL)
        self.assertEqual(str(caught.exception), "The program was killed by SIGKILL.")
        # A private folder stays where it holds answers that a later call can go on from.
        folder = caught.exception.folder
        found = list(tandem.generate(MODEL, [LONG, SHORT], folder=folder))
        self.assertEqual(len(found), 2)
        Path(folder, "input.jsonl").unlink()
        Path(folder, "output.jsonl").unlink()
        Path(folder).rmdir()

    def test_control_c_loses_nothing(self):
        child = script(self.code())
        self.assertEqual(child.stdout.readline(), "1\n")
        (program,) = children(child.pid)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=60)[1]
        self.assertIn("KeyboardInterrupt", said)
        self.assertNotEqual(child.returncode, 0)
        self.assertFalse(is_running(program))
        self.assertEqual(sorted(self.answers(LONG, SHORT)), [0, 1])

    def test_nothing_outlives_a_killed_python(self):
        child = script(self.code())
        child.stdout.readline()
        (program,) = children(child.pid)
        workers = workers_of(program)
        self.assertTrue(workers)
        child.kill()
        child.communicate()
        wait_until(lambda: not any(map(is_running, [program, *workers])), "it outlived Python")
        self.assertEqual(sorted(self.answers(LONG, SHORT)), [0, 1])


class Module(unittest.TestCase):
    def test_it_is_the_program(self):
        def run(*arguments):
            command = [sys.executable, "-m", "tandem", *arguments]
            return subprocess.run(command, env=environment(), capture_output=True, text=True)

        self.assertTrue(run("--version").stdout.startswith("coordinator "))
        wrong = run("--no-such")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("--no-such", wrong.stderr)

    def test_its_console_script_is_the_program_by_that_name(self):
        code = "import sys; from tandem.__main__ import main; sys.argv[0] = '/bin/tandem'; main()"

        def run(*arguments):
            command = [sys.executable, "-c", code, *arguments]
            return subprocess.run(command, env=environment(), capture_output=True, text=True)

        self.assertTrue(run("--version").stdout.startswith("coordinator "))
        self.assertIn("Usage: tandem serve", run("serve", "--help").stdout)


def script(code):
    """A Python that runs ``code``."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid=None):
    """The processes that this one, or ``pid``, started."""
    parent = os.getpid() if pid is None else pid
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[1]) == parent and stat[0] != "Z":
                found.append(int(folder.name))
    return found
