"""What is asked, as the lines of a job."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, Tuple, TypeVar

T = TypeVar("T")


def lines(
    kind: str, asked: Iterable[T], fields: Callable[[T, int], Mapping[str, Any]]
) -> Tuple[bytes, Dict[str, int]]:
    """A line for each of them, and where each ``custom_id`` is among them.

    One that names no ``custom_id`` is called ``KIND-N`` by its place, from 0.

    :param kind: what each is: ``prompt``, for example.
    :param fields: those of a line, of one and its place; raises TypeError for what is none.
    :raises TypeError: a ``custom_id`` is no text.
    :raises ValueError: two have the same ``custom_id``.
    """
    text: List[str] = []
    places: Dict[str, int] = {}
    for index, one in enumerate(asked):
        line = {"custom_id": f"{kind}-{index}", **fields(one, index)}
        custom_id = line["custom_id"]
        if not isinstance(custom_id, str):
            raise TypeError(f"{kind} {index}: custom_id must be a text, not {custom_id!r}")
        if custom_id in places:
            raise ValueError(f"{kind}s {places[custom_id]} and {index} are both {custom_id!r}")
        places[custom_id] = index
        text.append(json.dumps(line, ensure_ascii=False) + "\n")
    # A text may hold half of a surrogate pair, which UTF-8 has no bytes for.
    return "".join(text).encode("utf-8", "replace"), places
