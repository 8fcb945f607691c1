"""Answers, as the program writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple


@dataclass(frozen=True)
class Usage:
    """Tokens of a request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    """What was generated, with a token that ended an answer and the tokens of a stop string."""


@dataclass(frozen=True)
class Choice:
    """One of the answers to a request; there are several where it asks for ``n`` or has several
    prompts."""

    index: int
    text: str
    token_ids: Tuple[int, ...]
    finish_reason: str
    """``stop``, ``length``, or ``error``: then ``error`` says what is wrong with it."""
    error: Optional[str] = None
    logprobs: Optional[Mapping[str, Any]] = None
    """As in OpenAI's API, where the request asks for them."""
    reasoning: Optional[str] = None
    """What the model thought before, where it did."""


@dataclass(frozen=True)
class Answer:
    """What became of a prompt."""

    index: int
    """The prompt's place among the prompts, from 0."""
    custom_id: str
    choices: Tuple[Choice, ...]
    """Empty where there is an error."""
    usage: Optional[Usage]
    error: Optional[str] = None
    """Why the prompt has no answer, or a choice of it is not what was asked for: a sentence."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the prompt's line that are none of a request."""

    @property
    def text(self) -> Optional[str]:
        """The first choice's; None where there is none."""
        return self.choices[0].text if self.choices else None

    @property
    def token_ids(self) -> Optional[Tuple[int, ...]]:
        """The first choice's; None where there is none."""
        return self.choices[0].token_ids if self.choices else None

    @property
    def finish_reason(self) -> str:
        """The first choice's; ``error`` where there is none."""
        return self.choices[0].finish_reason if self.choices else "error"


def of_body(body: Mapping[str, Any], index: int, custom_id: str, **columns: Any) -> Answer:
    """The answer that a completion object holds, of a batch line or a server."""
    choices = tuple(_choice(choice) for choice in body["choices"])
    usage = body["usage"]
    return Answer(
        index=index,
        custom_id=custom_id,
        choices=choices,
        usage=Usage(usage["prompt_tokens"], usage["completion_tokens"]),
        error=next((choice.error for choice in choices if choice.error), None),
        columns=columns,
    )


def refused(sentence: str, index: int, custom_id: str) -> Answer:
    """The answer to a request that has none."""
    return Answer(index=index, custom_id=custom_id, choices=(), usage=None, error=sentence)


def of_line(line: Mapping[str, Any], places: Mapping[str, int]) -> Optional[Answer]:
    """The answer that a line of the output holds; None of a line with a part of one.

    :param places: where among the prompts each ``custom_id`` is.
    """
    custom_id: str = line["custom_id"]
    error: Optional[Dict[str, Any]] = line["error"]
    if error is not None:
        if error["code"] == "unfinished":
            return None
        return refused(sentence_of(error), error["line"] - 1, custom_id)
    columns: Dict[str, Any] = line.get("columns", {})
    return of_body(line["response"]["body"], places[custom_id], custom_id, **columns)


def sentence_of(error: Mapping[str, Any]) -> str:
    """What a line's error says. Lines of the input are counted from 1; which one it is the index
    says here."""
    beginning, sentence = f"Line {error['line']}: ", str(error["message"])
    return sentence[len(beginning) :] if sentence.startswith(beginning) else sentence


def _choice(choice: Mapping[str, Any]) -> Choice:
    message: Optional[Mapping[str, Any]] = choice.get("message")
    text = choice.get("text") if message is None else message["content"]
    token_ids: List[int] = choice["token_ids"]
    return Choice(
        index=choice["index"],
        text=text or "",
        token_ids=tuple(token_ids),
        finish_reason=choice["finish_reason"],
        error=choice.get("error"),
        logprobs=choice.get("logprobs"),
        reasoning=(choice if message is None else message).get("reasoning_content"),
    )
