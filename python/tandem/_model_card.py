"""What a server says of its model."""

from __future__ import annotations

from typing import Any, Dict, Optional


def prefix_token(card: Dict[str, Any]) -> Optional[int]:
    """The token that stands before a text without context: the tokenizer's for the beginning of a
    text, else the one for its end, as in lm-eval's own models. None where it names neither."""
    bos = card.get("bos_token_id")
    ends = card.get("eos_token_ids") or []
    found = bos if bos is not None else next(iter(ends), None)
    return None if found is None else int(found)
