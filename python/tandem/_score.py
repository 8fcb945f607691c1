"""Log-probabilities of continuations, as they are found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence
from typing import Tuple, Union

from . import _lines
from ._answers import sentence_of
from ._flags import flags
from ._job import OURS, Job, Progress

Question = Union[Tuple[Union[str, Sequence[int]], Sequence[Any]], Mapping[str, Any]]
"""A prompt and its continuations, texts or token ids alike, or a whole line of what
``coordinator score`` reads."""


@dataclass(frozen=True)
class Score:
    """What a model makes of a continuation behind its prompt."""

    logprob: float
    """The sum of those of its tokens."""
    token_logprobs: Tuple[float, ...]
    greedy: bool
    """Whether each of its tokens is the most likely one, of equally likely ones the lowest."""
    tokens: Optional[Tuple[int, ...]] = None
    """With ``tokens=True``."""
    top_logprobs: Optional[Tuple[Tuple[Tuple[int, float], ...], ...]] = None
    """With ``top=K``: the K most likely tokens in the place of each, and their
    log-probabilities."""


@dataclass(frozen=True)
class Scored:
    """What became of a question."""

    index: int
    """Its place among the questions, from 0."""
    custom_id: str
    scores: Tuple[Score, ...]
    """One for each continuation, in their order; empty where there is an error."""
    error: Optional[str] = None
    """Why there are none: a sentence."""


class Scoring(Job[Scored]):
    """Questions that are scored while their scores are read; see :func:`score`, which runs it."""

    def __init__(
        self,
        model: str,
        questions: Iterable[Question],
        *,
        folder: Union[str, Path, None] = None,
        progress: Progress = None,
        cpus: Optional[Collection[int]] = None,
        **options: object,
    ) -> None:
        """Prepares it; nothing runs before it is entered with ``with``.

        The arguments are those of :func:`score`.
        """
        lines, places = _lines.lines("question", questions, _fields)
        super().__init__(
            ["score", f"--model={model}", *flags(options, OURS)],
            lines,
            len(places),
            lambda line: _scored(line, places),
            folder=folder,
            progress=progress,
            cpus=cpus,
        )


def score(
    model: str,
    questions: Iterable[Question],
    *,
    folder: Union[str, Path, None] = None,
    progress: Progress = None,
    cpus: Optional[Collection[int]] = None,
    **options: object,
) -> Iterator[Scored]:
    """Scores continuations of prompts, and yields each question's scores as they are found.

    ::

        questions = [("The sky is", [" blue", " green"])]
        for found in tandem.score("./SmolLM2", questions):
            print([score.logprob for score in found.scores])

    What prompts and continuations begin with alike is computed once, and no score depends on what
    else is scored.

    :param model: a directory, a .gguf file, or org/name in the Hugging Face cache.
    :param questions: pairs of a prompt and its continuations, both as texts or both as token ids,
        or lines of ``coordinator score``; a line may name its ``custom_id``.
    :param folder: where the files are kept, so that the same call continues after Ctrl-C, an
        error or a crash. None: a private one.
    :param progress: see :data:`Progress`.
    :param cpus: the CPUs that it may use; None: those of this process.
    :param options: options of ``coordinator score``: ``top=5`` is ``--top 5``.
    :raises TypeError: a question is none, or an option is one that this function gives.
    :raises ValueError: two questions have the same ``custom_id``.
    """
    scoring = Scoring(model, questions, folder=folder, progress=progress, cpus=cpus, **options)
    with scoring:
        yield from scoring


def _fields(question: Question, index: int) -> Mapping[str, Any]:
    if isinstance(question, Mapping):
        return question
    if isinstance(question, (tuple, list)) and len(question) == 2:
        prompt, continuations = question
        if isinstance(continuations, (tuple, list)):
            return {
                "prompt": prompt if isinstance(prompt, str) else list(prompt),
                "continuations": [
                    one if isinstance(one, str) else list(one) for one in continuations
                ],
            }
    raise TypeError(
        f"question {index} is neither a prompt with a list of continuations nor a line's fields: "
        f"{question!r}"
    )


def _scored(line: Mapping[str, Any], places: Mapping[str, int]) -> Scored:
    custom_id: str = line["custom_id"]
    error: Optional[Dict[str, Any]] = line["error"]
    if error is not None:
        return Scored(error["line"] - 1, custom_id, (), sentence_of(error))
    return Scored(places[custom_id], custom_id, tuple(_score(one) for one in line["scores"]))


def _score(said: Mapping[str, Any]) -> Score:
    tokens: Optional[List[int]] = said.get("tokens")
    top: Optional[List[List[Tuple[int, float]]]] = said.get("top_logprobs")
    return Score(
        logprob=said["logprob"],
        token_logprobs=tuple(said["token_logprobs"]),
        greedy=said["greedy"],
        tokens=None if tokens is None else tuple(tokens),
        top_logprobs=None
        if top is None
        else tuple(tuple((token, logprob) for token, logprob in place) for place in top),
    )
