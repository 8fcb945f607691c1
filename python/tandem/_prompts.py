"""Prompts as lines of a batch."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Mapping, Sequence, Tuple, Union

from . import _lines

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, Any]], Mapping[str, Any]]
"""A text, token ids, a conversation as a list of messages, or a whole line of a batch."""


def lines(prompts: Iterable[Prompt]) -> Tuple[bytes, Dict[str, int]]:
    """The input of a batch, a line for each prompt, and where each ``custom_id`` is among them.

    A prompt that names no ``custom_id`` is called ``prompt-N`` by its place, from 0.

    :raises TypeError: a prompt is none.
    :raises ValueError: two prompts have the same ``custom_id``.
    """
    return _lines.lines("prompt", prompts, _fields)


def _fields(prompt: Prompt, index: int) -> Mapping[str, Any]:
    if isinstance(prompt, str):
        return {"prompt": prompt}
    if isinstance(prompt, Mapping):
        return prompt
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        parts = list(prompt)
        if parts and all(isinstance(part, Mapping) for part in parts):
            return {"messages": parts}
        if parts and all(isinstance(part, int) for part in parts):
            return {"prompt": parts}
    raise TypeError(
        f"prompt {index} is neither a text, token ids, a list of messages nor a request's fields: "
        f"{prompt!r}"
    )
