"""The model for lm-eval, where lm-eval is installed; scripts/clients.sh compares it too."""

import importlib.util
import json
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import tandem

from .common import MODEL

OPTIONS = {"slots": 4, "device": "none", "dtype": "f32"}


@unittest.skipUnless(importlib.util.find_spec("lm_eval"), "lm-eval is not installed")
class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from tandem.lm_eval import Tandem

        said = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}
        given = ",".join(f"{name}={value}" for name, value in OPTIONS.items())
        cls.model = Tandem.create_from_arg_string(f"model={MODEL},prefix_token_id=1,{given}", said)
        cls.addClassCleanup(cls.model._server.close)

    def instances(self, kind, *arguments):
        from lm_eval.api.instance import Instance

        return [Instance(kind, {}, args, index) for index, args in enumerate(arguments)]

    def test_it_is_found_by_its_name(self):
        from lm_eval.api.registry import get_model

        self.assertIs(get_model("tandem"), type(self.model))

    def test_what_greedy_decoding_says_has_the_log_probability_that_it_told(self):
        prompt = self.model.tok_encode("Once upon a")
        asked = {"prompt": prompt, "max_tokens": 3, "logprobs": 1, "ignore_eos": True}
        (answer,) = tandem.generate(MODEL, [asked], device="none", dtype="f32")
        tokens = list(answer.token_ids)
        told = sum(answer.choices[0].logprobs["token_logprobs"])
        other = [(tokens[0] + 1) % 300, *tokens[1:]]
        said, unsaid = self.model._loglikelihood_tokens(
            [(("a", "b"), prompt, tokens), (("a", "c"), prompt, other)]
        )
        self.assertAlmostEqual(said[0], told, places=4)
        self.assertEqual((said[1], unsaid[1]), (True, False))
        self.assertLess(unsaid[0], said[0])

    def test_contexts_and_continuations_are_split_as_tokens(self):
        pairs = (("Once upon ", "a time"), ("Once upon", " a time"), ("", "Once upon"))
        found = self.model.loglikelihood(self.instances("loglikelihood", *pairs), True)
        self.assertEqual(found[0], found[1])
        whole, context = (
            self.model.tok_encode("Once upon a time"),
            self.model.tok_encode("Once upon"),
        )
        rest = whole[len(context) :]
        alone = [1], self.model.tok_encode("Once upon", add_special_tokens=False)
        by_tokens = [(pairs[0], context, rest), (pairs[2], *alone)]
        self.assertEqual(self.model._loglikelihood_tokens(by_tokens), found[1:])

    def test_a_text_is_the_sum_of_its_windows(self):
        text = "The quick brown fox jumps over the lazy dog. " * 12
        self.assertGreater(len(self.model.tok_encode(text)), self.model.max_length)
        whole, again = self.model.loglikelihood_rolling(
            self.instances("loglikelihood_rolling", (text,), (text,))
        )
        self.assertEqual(whole, again)
        # Every token is counted once: 320 words are about as likely under random weights.
        tokens = self.model.tok_encode(text, add_special_tokens=False)
        self.assertTrue(-9 < whole / len(tokens) < -3, whole / len(tokens))

    def test_a_model_without_a_beginning_scores_texts_behind_its_end(self):
        from tandem.lm_eval import Tandem

        with tempfile.TemporaryDirectory() as folder:
            for file in Path(MODEL).iterdir():
                shutil.copy(file, folder)
            settings = Path(folder) / "tokenizer_config.json"
            config = json.loads(settings.read_text())
            end = config["eos_token"]
            config.pop("bos_token", None)
            settings.write_text(json.dumps(config))
            model = Tandem(folder, **OPTIONS)
            self.addCleanup(model._server.close)
            (end_id,) = model.tok_encode(end, add_special_tokens=False)
            self.assertEqual(model.prefix_token_id, end_id)
            (found,) = model.loglikelihood_rolling(
                self.instances("loglikelihood_rolling", ("Once upon a time",)), True
            )
            self.assertLess(found, 0)

    def test_a_missing_prefix_is_told_before_anything_is_computed(self):
        prefix, self.model._prefix = self.model._prefix, None
        self.addCleanup(setattr, self.model, "_prefix", prefix)
        with mock.patch.object(self.model, "_answers", side_effect=AssertionError):
            for kind, arguments in (
                ("loglikelihood", (("a", " b"), ("", "a"))),
                ("loglikelihood_rolling", (("a",),)),
            ):
                ask = getattr(self.model, kind)
                with self.assertRaisesRegex(tandem.Error, "prefix_token_id"):
                    ask(self.instances(kind, *arguments), True)

    def test_answers_end_where_a_task_says(self):
        free, cut = self.model.generate_until(
            self.instances(
                "generate_until",
                ("Once upon a", {"max_gen_toks": 12, "until": []}),
                ("Once upon a", {"max_gen_toks": 12, "until": []}),
            )
        )
        self.assertEqual(free, cut)
        end = free[len(free) // 2 :][:1]
        (ended,) = self.model.generate_until(
            self.instances("generate_until", ("Once upon a", {"max_gen_toks": 12, "until": [end]}))
        )
        self.assertEqual(ended, free.split(end)[0])

    def test_a_conversation_is_the_models_template(self):
        text = self.model.apply_chat_template([{"role": "user", "content": "Hi"}])
        self.assertIn("Hi", text)
        self.assertGreater(len(text), len("Hi"))
