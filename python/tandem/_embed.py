"""Embeddings of texts, as they are computed."""

from __future__ import annotations

import struct
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Collection, Dict, Iterable, Iterator, Mapping, Optional, Sequence
from typing import Tuple, Union

from . import _lines
from ._answers import sentence_of
from ._flags import flags
from ._job import OURS, Job, Progress

Text = Union[str, Sequence[int], Mapping[str, Any]]
"""A text or its token ids, or a whole line of a batch file for ``/v1/embeddings``."""


@dataclass(frozen=True)
class Embedded:
    """The embedding of a text."""

    index: int
    """The text's place, from 0."""
    custom_id: str
    vector: Tuple[float, ...]
    """Of length 1; empty if there is an error."""
    tokens: int
    """The number of the text's tokens; 0 if there is an error."""
    error: Optional[str] = None
    """Why there is no vector: a sentence."""


class Embedding(Job[Embedded]):
    """Texts that are embedded while their vectors are read; see :func:`embed`, which runs it."""

    def __init__(
        self,
        model: str,
        texts: Iterable[Text],
        *,
        dimensions: Optional[int] = None,
        folder: Union[str, Path, None] = None,
        progress: Progress = None,
        cpus: Optional[Collection[int]] = None,
        **options: object,
    ) -> None:
        """Prepares it; nothing runs before it is entered with ``with``.

        The arguments are those of :func:`embed`.
        """
        fields = lambda text, index: _fields(text, index, dimensions)  # noqa: E731
        lines, places = _lines.lines("text", texts, fields)
        super().__init__(
            [f"--model={model}", *flags(options, OURS)],
            lines,
            len(places),
            lambda line: _embedded(line, places),
            folder=folder,
            progress=progress,
            cpus=cpus,
        )


def embed(
    model: str,
    texts: Iterable[Text],
    *,
    dimensions: Optional[int] = None,
    folder: Union[str, Path, None] = None,
    progress: Progress = None,
    cpus: Optional[Collection[int]] = None,
    **options: object,
) -> Iterator[Embedded]:
    """Computes embeddings, and yields each as it is finished.

    ::

        for found in tandem.embed("./Qwen3-Embedding-0.6B", ["a text", "another"]):
            print(found.index, found.vector[:4])

    A vector depends on its text alone, not on what else is embedded.

    :param model: a directory, a .gguf file, or org/name in the Hugging Face cache.
    :param texts: texts, lists of token ids, or lines of a batch file for ``/v1/embeddings`` with
        one input each; a line may name its ``custom_id``.
    :param dimensions: the number of elements of a vector, for models that support it; None: all.
    :param folder: where the files are kept, so that the same call continues after Ctrl-C, an
        error or a crash. None: a private one.
    :param progress: see :data:`Progress`.
    :param cpus: the CPUs that it may use; None: those of this process.
    :param options: options of the command line: ``pooling="mean"`` is ``--pooling mean``.
    :raises TypeError: a text is none, or an option is one that this function gives.
    :raises ValueError: two texts have the same ``custom_id``.
    """
    job = Embedding(
        model,
        texts,
        dimensions=dimensions,
        folder=folder,
        progress=progress,
        cpus=cpus,
        **options,
    )
    with job:
        yield from job


def _fields(text: Text, index: int, dimensions: Optional[int]) -> Mapping[str, Any]:
    if isinstance(text, Mapping):
        return text
    is_tokens = isinstance(text, (tuple, list)) and all(isinstance(one, int) for one in text)
    if not isinstance(text, str) and not is_tokens:
        raise TypeError(
            f"text {index} is neither a text nor a list of token ids nor a line's fields: {text!r}"
        )
    body: Dict[str, Any] = {"input": text if isinstance(text, str) else list(text)}
    if dimensions is not None:
        body["dimensions"] = dimensions
    return {"method": "POST", "url": "/v1/embeddings", "body": body}


def _embedded(line: Mapping[str, Any], places: Mapping[str, int]) -> Embedded:
    custom_id: str = line["custom_id"]
    error: Optional[Dict[str, Any]] = line["error"]
    if error is not None:
        return Embedded(error["line"] - 1, custom_id, (), 0, sentence_of(error))
    body = line["response"]["body"]
    found = body["data"][0]["embedding"]
    # Elements are of single precision, however the line has them encoded.
    data = b64decode(found) if isinstance(found, str) else struct.pack(f"<{len(found)}f", *found)
    vector = struct.unpack(f"<{len(data) // 4}f", data)
    tokens = body["usage"]["prompt_tokens"]
    return Embedded(places[custom_id], custom_id, vector, tokens)
