"""Keyword arguments as options of the command line, one to one."""

from __future__ import annotations

import json
from typing import Iterable, List, Mapping


def flags(options: Mapping[str, object], ours: Iterable[str] = ()) -> List[str]:
    """The options of the program that keyword arguments stand for.

    ``max_tokens=64`` is ``--max-tokens=64``, ``chat=True`` is ``--chat``, ``stop=["a", "b"]`` is
    ``--stop=a --stop=b``; a mapping is written as JSON; ``None`` and ``False`` are left out.
    Whether there is such an option, and such a value, the program says.

    :param ours: options that the caller gives itself.
    :raises TypeError: one of ``ours`` is among ``options``.
    """
    taken = sorted(set(ours) & set(options))
    if taken:
        raise TypeError(f"{', '.join(taken)} cannot be given here: this package chooses it")
    found: List[str] = []
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        for one in values:
            found.extend(_flag(name, one))
    return found


def _flag(name: str, value: object) -> List[str]:
    flag = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, Mapping):
        value = json.dumps(value)
    # Joined, so that a value may begin with a hyphen.
    return [f"{flag}={value}"]
