"""Rows of a table as requests, and answers as columns.

What a row is asked is said in full, sampling and seed included, so that its answer has the same
tokens in a batch, from a server, and on any machine.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

from ._answers import Answer

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

GREEDY: Mapping[str, Any] = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0}
"""How rows are sampled unless ``fields`` say."""

MAX_TOKENS = 16
MAX_TOKENS_CHAT = 1024
"""New tokens, at most, unless ``fields`` say: those of a batch."""


@dataclass(frozen=True)
class Rows:
    """How rows become requests."""

    prompt: str = "prompt"
    """The column of prompts: texts, token ids, or lists of messages."""

    id: Optional[str] = "id"
    """The column that tells rows apart, or None where there is none. Rows of one id that ask the
    same draw the same answer."""

    seed: Optional[str] = None
    """The column of seeds, whole numbers. None: a hash of the row's id, or of what it asks."""

    chat: bool = False
    """Texts are one message of a user each, in the model's chat template."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request: ``{"max_tokens": 64, "temperature": 0.7}``."""

    def request(self, row: Mapping[str, Any]) -> Dict[str, Any]:
        """The line of a batch that asks what a row asks.

        :raises ValueError: a column is missing.
        """
        for name in (self.prompt, self.id, self.seed):
            if name is not None and name not in row:
                raise ValueError(f"there is no column {name!r}")
        row = {name: plain(value) for name, value in row.items()}
        prompt = row[self.prompt]
        is_chat = self.chat or (isinstance(prompt, list) and any(map(is_message, prompt)))
        body: Dict[str, Any] = {**GREEDY}
        body["max_tokens"] = MAX_TOKENS_CHAT if is_chat else MAX_TOKENS
        body.update(self.fields)
        if not is_chat:
            body["prompt"] = prompt
        elif isinstance(prompt, str):
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["messages"] = prompt
        said = json.dumps(body, sort_keys=True) if self.id is None else str(row[self.id])
        if self.seed is not None:
            body["seed"] = row[self.seed]
        body.setdefault("seed", seed_of(said))
        return {
            "custom_id": said if self.id is not None else hashlib.sha256(said.encode()).hexdigest(),
            "method": "POST",
            "url": CHAT if is_chat else COMPLETIONS,
            "body": body,
        }


def is_message(part: object) -> bool:
    """Whether a part of a prompt is a message."""
    return isinstance(part, Mapping)


def columns(answer: Answer) -> Dict[str, Any]:
    """The columns that an answer adds to its row: those of its first choice."""
    usage = answer.usage
    return {
        "text": answer.text,
        "token_ids": None if answer.token_ids is None else list(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "prompt_tokens": None if usage is None else usage.prompt_tokens,
        "completion_tokens": None if usage is None else usage.completion_tokens,
        "error": answer.error,
    }


def seed_of(text: str) -> int:
    """A seed that depends on a text alone: 63 bits of its SHA-256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def plain(value: Any) -> Any:
    """A value without numpy: arrays as lists, numbers as Python's, also within lists and maps."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value
