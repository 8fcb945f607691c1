"""What needs no program: options, prompts, the output as it grows, rows, where the program is."""

import json
import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import tandem
from tandem._answers import of_body, of_line
from tandem._binary import binary
from tandem._flags import flags
from tandem._log import Log
from tandem._model_card import prefix_token
from tandem._prompts import lines
from tandem.rows import Rows, columns


class Flags(unittest.TestCase):
    def test_keywords_are_flags_one_to_one(self):
        options = {"max_tokens": 64, "chat": True, "resume": False, "seed": None, "top_p": 0.5}
        self.assertEqual(flags(options), ["--max-tokens=64", "--chat", "--top-p=0.5"])

    def test_lists_repeat_and_values_may_look_like_flags(self):
        options = {"stop": ["-", "--x"], "verbose": [True, True], "nvme": (Path("a"), Path("b"))}
        wanted = ["--stop=-", "--stop=--x", "--verbose", "--verbose", "--nvme=a", "--nvme=b"]
        self.assertEqual(flags(options), wanted)

    def test_mappings_are_json(self):
        options = {"chat_template_kwargs": {"enable_thinking": False}}
        self.assertEqual(flags(options), ['--chat-template-kwargs={"enable_thinking": false}'])

    def test_what_the_package_chooses_is_refused_by_name(self):
        with self.assertRaisesRegex(TypeError, "input, output cannot be given"):
            flags({"output": "x", "input": "y"}, ["input", "output"])


class ModelCards(unittest.TestCase):
    def test_texts_without_context_stand_behind_a_beginning_or_else_an_end(self):
        self.assertEqual(prefix_token({"bos_token_id": 0, "eos_token_ids": [2, 3]}), 0)
        self.assertEqual(prefix_token({"bos_token_id": None, "eos_token_ids": [2, 3]}), 2)
        self.assertIsNone(prefix_token({"bos_token_id": None, "eos_token_ids": []}))
        self.assertIsNone(prefix_token({}))


class Prompts(unittest.TestCase):
    def test_every_form_is_a_line(self):
        messages = [{"role": "user", "content": "é"}]
        body = {"custom_id": "mine", "method": "POST", "url": "/v1/completions", "body": {}}
        text, places = lines(["a", [1, 2], messages, {"prompt": "b", "n": 2}, body])
        self.assertEqual(
            [json.loads(line) for line in text.decode().splitlines()],
            [
                {"custom_id": "prompt-0", "prompt": "a"},
                {"custom_id": "prompt-1", "prompt": [1, 2]},
                {"custom_id": "prompt-2", "messages": messages},
                {"custom_id": "prompt-3", "prompt": "b", "n": 2},
                body,
            ],
        )
        self.assertEqual(places["mine"], 4)

    def test_what_is_no_prompt_is_named(self):
        for wrong in (5, None, [], ["a", "b"], b"bytes"):
            with self.assertRaisesRegex(TypeError, "prompt 1 is neither"):
                lines(["fine", wrong])
        with self.assertRaisesRegex(ValueError, "prompts 0 and 2 are both 'x'"):
            lines([{"custom_id": "x", "prompt": "a"}, "b", {"custom_id": "x", "prompt": "c"}])


class Output(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "output.jsonl"

    def test_whole_lines_are_told_once(self):
        log = Log(self.path)
        self.addCleanup(log.close)
        self.assertEqual(log.news(), [])
        with self.path.open("ab", buffering=0) as file:
            file.write(b"one\ntw")
            self.assertEqual(log.news(), [(b"one\n", False)])
            self.assertEqual(log.news(), [])
            file.write(b"o\nthree\n")
            self.assertEqual(log.news(), [(b"two\n", False), (b"three\n", False)])

    def test_an_earlier_runs_lines_wait_for_the_first_of_this_one(self):
        self.path.write_bytes(b"one\ntwo\ntor")
        log = Log(self.path)
        self.addCleanup(log.close)
        self.assertEqual(log.news(), [])
        # As a run that goes on does: the torn line is cut, and the next one written in its place.
        with self.path.open("r+b", buffering=0) as file:
            file.truncate(8)
            self.assertEqual(log.news(), [])
            file.seek(8)
            file.write(b"three\n")
        told = [(b"one\n", True), (b"two\n", True), (b"three\n", False)]
        self.assertEqual(log.news(), told)

    def test_a_file_that_takes_its_place_is_not_mixed_with_it(self):
        self.path.write_bytes(b"")
        log = Log(self.path)
        self.addCleanup(log.close)
        with self.path.open("ab", buffering=0) as file:
            file.write(b"b\n")
            self.assertEqual(log.news(), [(b"b\n", False)])
            file.write(b"a\n")
        other = self.path.with_name("other")
        other.write_bytes(b"a\nb\n")
        other.replace(self.path)
        self.assertEqual(log.news(), [(b"a\n", False)])
        self.assertEqual(list(log.settled()), [b"a\n", b"b\n"])


class Answers(unittest.TestCase):
    BODY = {
        "choices": [{"index": 0, "text": "x", "token_ids": [7], "finish_reason": "length"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
    }

    def test_a_line_is_an_answer_a_refusal_or_a_part_of_one(self):
        line = {"custom_id": "b", "response": {"body": self.BODY}, "error": None}
        answer = of_line({**line, "columns": {"label": 3}}, {"a": 0, "b": 1})
        self.assertEqual((answer.index, answer.text, answer.token_ids), (1, "x", (7,)))
        self.assertEqual((answer.finish_reason, answer.error), ("length", None))
        self.assertEqual(answer.columns, {"label": 3})
        error = {"code": "invalid_json", "message": "Line 2: No.", "line": 2}
        answer = of_line({"custom_id": "?", "response": None, "error": error}, {})
        self.assertEqual((answer.index, answer.error, answer.text), (1, "No.", None))
        self.assertEqual((answer.finish_reason, answer.usage), ("error", None))
        part = {"code": "unfinished", "message": "", "line": 1}
        self.assertIsNone(of_line({"custom_id": "a", "response": None, "error": part}, {}))

    def test_a_choice_without_its_form_is_an_error_with_a_text(self):
        choice = {**self.BODY["choices"][0], "finish_reason": "error", "error": "No form."}
        answer = of_body({**self.BODY, "choices": [choice]}, 0, "a")
        self.assertEqual((answer.text, answer.error), ("x", "No form."))

    def test_thoughts_stand_beside_the_text(self):
        message = {"role": "assistant", "reasoning_content": "Hm.", "content": "x"}
        chat = {"index": 0, "message": message, "token_ids": [7], "finish_reason": "stop"}
        text = {**self.BODY["choices"][0], "reasoning_content": "Hm."}
        for choice in (chat, text):
            answer = of_body({**self.BODY, "choices": [choice]}, 0, "a")
            self.assertEqual((answer.text, answer.choices[0].reasoning), ("x", "Hm."))
        self.assertIsNone(of_body(self.BODY, 0, "a").choices[0].reasoning)

    def test_columns_are_those_of_the_first_choice(self):
        self.assertEqual(
            columns(of_body(self.BODY, 0, "a")),
            {
                "text": "x",
                "token_ids": [7],
                "finish_reason": "length",
                "prompt_tokens": 2,
                "completion_tokens": 1,
                "error": None,
            },
        )


class Requests(unittest.TestCase):
    def test_a_row_says_all_that_its_answer_depends_on(self):
        line = Rows(fields={"max_tokens": 5, "temperature": 1}).request({"id": 7, "prompt": "a"})
        self.assertEqual((line["custom_id"], line["url"]), ("7", "/v1/completions"))
        body = line["body"]
        self.assertEqual((body["prompt"], body["max_tokens"], body["temperature"]), ("a", 5, 1))
        self.assertEqual((body["top_p"], body["top_k"], body["min_p"]), (1, 0, 0))
        again = Rows(fields={"temperature": 1}).request({"id": 7, "prompt": "b"})["body"]
        other = Rows(fields={"temperature": 1}).request({"id": 8, "prompt": "a"})["body"]
        self.assertEqual(body["seed"], again["seed"])
        self.assertNotEqual(body["seed"], other["seed"])

    def test_seeds_may_be_given(self):
        of_column = Rows(seed="s").request({"id": 1, "prompt": "a", "s": 9})
        of_fields = Rows(fields={"seed": 4}).request({"id": 1, "prompt": "a"})
        self.assertEqual((of_column["body"]["seed"], of_fields["body"]["seed"]), (9, 4))

    def test_chats_are_messages(self):
        line = Rows(chat=True, id=None).request({"prompt": "Hi"})
        message = {"role": "user", "content": "Hi"}
        self.assertEqual(
            (line["url"], line["body"]["messages"]), ("/v1/chat/completions", [message])
        )
        self.assertEqual(line["body"]["max_tokens"], 1024)
        self.assertEqual(
            Rows(id=None).request({"prompt": [message]})["body"]["messages"], [message]
        )

    def test_a_missing_column_is_named(self):
        with self.assertRaisesRegex(ValueError, "no column 'id'"):
            Rows().request({"prompt": "a"})


class Binary(unittest.TestCase):
    def test_it_is_where_the_variable_says_or_beside_the_package(self):
        with mock.patch.dict(os.environ, {"TANDEM_COORDINATOR": "/nowhere/coordinator"}):
            with self.assertRaisesRegex(tandem.Error, "TANDEM_COORDINATOR names /nowhere"):
                binary()
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "coordinator"
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
                os.environ.pop("TANDEM_COORDINATOR", None)
                with mock.patch("sysconfig.get_path", return_value=folder):
                    self.assertEqual(binary(), str(program))

    def test_a_missing_one_is_a_sentence(self):
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            os.environ.pop("TANDEM_COORDINATOR", None)
            with mock.patch("tandem._binary._folders", return_value=iter([])):
                with self.assertRaisesRegex(tandem.Error, "The program coordinator is missing"):
                    binary()
