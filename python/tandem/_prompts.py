"""Prompts as lines of a batch."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple, Union

Prompt = Union[str, Sequence[int], Sequence[Mapping[str, Any]], Mapping[str, Any]]
"""A text, token ids, a conversation as a list of messages, or a whole line of a batch."""


def lines(prompts: Iterable[Prompt]) -> Tuple[bytes, Dict[str, int]]:
    """The input of a batch, a line for each prompt, and where each ``custom_id`` is among them.

    A prompt that names no ``custom_id`` is called ``prompt-N`` by its place, from 0.

    :raises TypeError: a prompt is none.
    :raises ValueError: two prompts have the same ``custom_id``.
    """
    text: List[str] = []
    places: Dict[str, int] = {}
    for index, prompt in enumerate(prompts):
        line = {"custom_id": f"prompt-{index}", **_fields(prompt, index)}
        custom_id = line["custom_id"]
        if not isinstance(custom_id, str):
            raise TypeError(f"prompt {index}: custom_id must be a text, not {custom_id!r}")
        if custom_id in places:
            raise ValueError(f"prompts {places[custom_id]} and {index} are both {custom_id!r}")
        places[custom_id] = index
        text.append(json.dumps(line, ensure_ascii=False) + "\n")
    # A text may hold half of a surrogate pair, which UTF-8 has no bytes for.
    return "".join(text).encode("utf-8", "replace"), places


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
