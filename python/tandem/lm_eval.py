"""lm-eval without a server of one's own: the model ``tandem``.

::

    python -m tandem.lm_eval --model tandem --model_args model=./SmolLM2 --tasks hellaswag

is ``lm_eval`` with that model; ``import tandem.lm_eval`` adds it for ``lm_eval.simple_evaluate``.
It starts a server for as long as it is needed. Contexts and continuations are split as tokens, and
every continuation's log-probability is that of these very tokens. What contexts begin with alike
is computed once.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

# Models are looked up there only while no model is known: this one would hide them.
import lm_eval.models  # noqa: F401
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import (
    get_rolling_token_windows,
    make_disjoint_window,
    simple_parse_args_string,
)

from ._errors import Error
from ._http import Refused
from ._model_card import prefix_token
from ._warm import Ask, WarmServer

COMPLETIONS = "/v1/completions"
MAX_GEN_TOKS = 256
"""New tokens of an answer, at most, where a task does not say."""

NO_PREFIX = (
    "The model's tokenizer names no token for the beginning or the end of a text, so tasks that "
    "score texts without a context fail: add prefix_token_id=N to --model_args."
)

Scored = Tuple[float, bool]
"""The log-probability of a continuation, and whether greedy decoding would say it."""

Encoded = Tuple[Tuple[str, str], List[int], List[int]]
"""A context and a continuation, as texts and as tokens."""


@register_model("tandem")
class Tandem(TemplateLM):
    """A model for lm-eval; see the module."""

    def __init__(
        self,
        model: str,
        prefix_token_id: Optional[int] = None,
        add_bos_token: Optional[bool] = None,
        max_gen_toks: int = MAX_GEN_TOKS,
        **options: Any,
    ) -> None:
        """Starts the server.

        :param model: a directory, a .gguf file, or org/name in the Hugging Face cache.
        :param prefix_token_id: what stands before a text that has no context. None: the
            tokenizer's token for the beginning of a text, else the one for its end.
        :param add_bos_token: whether texts get the tokens that the tokenizer puts before and
            behind them. None: as the tokenizer does.
        :param options: options of ``coordinator serve``: ``slots=8``, ``dtype=f32``, ...
        :raises tandem.Error: the server cannot be started; its sentence.
        """
        super().__init__()
        self._model = model
        self._max_gen_toks = int(max_gen_toks)
        self._adds_special = True if add_bos_token is None else bool(add_bos_token)
        self._server = WarmServer(model, **options)
        card = self._server.model()
        self._bos: Optional[int] = card.get("bos_token_id")
        self._prefix = prefix_token(card) if prefix_token_id is None else int(prefix_token_id)
        if self._prefix is None:
            # Known before anything is computed, though not yet whether a task needs it.
            logging.getLogger(__name__).warning(NO_PREFIX)
        self._known: Dict[Tuple[str, bool], List[int]] = {}
        self._max_length = int(card["max_model_len"])

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Dict[str, Any], additional_config: Optional[Dict[str, Any]] = None
    ) -> Tandem:
        """The model of ``model_args``. What lm-eval adds for every model, a batch size and a device
        of torch's, is left out: the server fills its slots, and finds its device."""
        return cls(**arg_dict)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Optional[Dict[str, Any]] = None
    ) -> Tandem:
        """The same of arguments as a text."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string))

    @property
    def eot_token_id(self) -> int:
        """The token that stands before a text without context."""
        if self._prefix is None:
            raise Error(NO_PREFIX)
        return self._prefix

    @property
    def max_length(self) -> int:
        """Positions of a text and its answer, at most."""
        return self._max_length

    @property
    def tokenizer_name(self) -> str:
        """Under which lm-eval keeps requests that were rendered by this model."""
        return self._model

    def tok_encode(
        self, string: str, add_special_tokens: Optional[bool] = None, **unused: object
    ) -> List[int]:
        """The tokens of a text."""
        special = self._adds_special if add_special_tokens is None else add_special_tokens
        tokens = self._tokens(string, special)
        # A template that was rendered before has the beginning already.
        if special and len(tokens) > 1 and tokens[0] == tokens[1] == self._bos:
            return tokens[1:]
        return tokens

    def apply_chat_template(
        self, chat_history: List[Dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as the text that the model's own template makes of it."""
        if not add_generation_prompt:
            raise NotImplementedError("tandem renders conversations that the model is to go on")
        tokens = self._ask("/tokenize", {"messages": chat_history})["tokens"]
        text: str = self._ask("/detokenize", {"tokens": tokens})["prompt"]
        return text

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> List[str]:
        """The answer to each context, up to the first of its ends."""
        asks = [self._generation(*request.args) for request in requests]
        texts: List[str] = []
        for request, body in zip(requests, self._answers(asks)):
            text: str = body["choices"][0]["text"]
            texts.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> List[Scored]:
        """The log-probability of each continuation behind its context."""
        if any(not request.args[0] for request in requests):
            _ = self.eot_token_id
        texts: Set[str] = set()
        for context, continuation in (request.args for request in requests if request.args[0]):
            # Spaces at a context's end are scored with the continuation.
            texts.update((context.rstrip(), context + continuation))
        self._know(sorted(texts))
        found: List[Scored] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        self._known.clear()
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> List[float]:
        """The log-probability of each text, in windows of the model's context."""
        prefix = self.eot_token_id
        windows: List[Encoded] = []
        owners: List[int] = []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            # One position is kept for the token that a server has room for in any case.
            parts = get_rolling_token_windows(tokens, prefix, self._max_length - 2, 1)
            for context, continuation in map(make_disjoint_window, parts):
                windows.append((("", ""), context, continuation))
                owners.append(index)
        sums = [0.0] * len(requests)
        for owner, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows)):
            sums[owner] += logprob
        for request, logprob in zip(requests, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, logprob)
        return sums

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, **unused: object
    ) -> List[Scored]:
        asks = [self._scoring(context + rest) for _, context, rest in requests]
        found: List[Scored] = []
        for (texts, _, rest), body in zip(requests, self._answers(asks)):
            scored = _scored(body["choices"][0]["logprobs"], len(rest))
            found.append(scored)
            if texts != ("", ""):
                self.cache_hook.add_partial("loglikelihood", texts, scored)
        return found

    def _scoring(self, tokens: List[int]) -> Ask:
        """Asks for the log-probabilities of a prompt, and for no answer."""
        body: Dict[str, Any] = {"prompt": tokens[-(self._max_length - 1) :]}
        body.update(echo=True, logprobs=1, max_tokens=0, temperature=0)
        return COMPLETIONS, body

    def _generation(self, context: str, said: Dict[str, Any]) -> Ask:
        until: Union[str, List[str]] = said.get("until") or []
        stop = [until] if isinstance(until, str) else [end for end in until if end]
        max_tokens = int(said.get("max_gen_toks", self._max_gen_toks))
        samples = said.get("do_sample", float(said.get("temperature") or 0) > 0)
        room = max(1, self._max_length - max_tokens)
        body: Dict[str, Any] = {
            "prompt": self.tok_encode(context)[-room:],
            "max_tokens": max_tokens,
            "stop": stop,
            "seed": said.get("seed", 0),
            "temperature": said.get("temperature", 1.0) if samples else 0,
            "top_p": said.get("top_p", 1),
            "top_k": said.get("top_k", 0),
            "min_p": said.get("min_p", 0),
        }
        return COMPLETIONS, body

    def _know(self, texts: Sequence[str]) -> None:
        """Has the tokens of texts that will be asked for, all at once."""
        special = self._adds_special
        asks: List[Ask] = [("/tokenize", _tokenized(text, special)) for text in texts]
        for text, body in zip(texts, self._answers(asks)):
            self._known[text, special] = body["tokens"]

    def _tokens(self, text: str, special: bool) -> List[int]:
        known = self._known.get((text, special))
        if known is not None:
            return known
        tokens: List[int] = self._ask("/tokenize", _tokenized(text, special))["tokens"]
        return tokens

    def _ask(self, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
        return self._answers([(path, body)])[0]

    def _answers(self, asks: Sequence[Ask]) -> List[Dict[str, Any]]:
        found: List[Dict[str, Any]] = []
        for one in self._server.answers(asks):
            if isinstance(one, Refused):
                raise Error(str(one))
            found.append(one)
        return found


def _tokenized(text: str, special: bool) -> Dict[str, Any]:
    return {"prompt": text, "add_special_tokens": special}


def _scored(logprobs: Dict[str, Any], count: int) -> Scored:
    """Of the last ``count`` tokens of a prompt that was echoed."""
    if count == 0:
        return 0.0, True
    own = logprobs["token_logprobs"][-count:]
    most = [max(likely.values()) for likely in logprobs["top_logprobs"][-count:]]
    return sum(own), all(one >= best for one, best in zip(own, most))


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
