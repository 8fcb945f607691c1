"""Batches of Ray Data through a coordinator that each actor keeps warm.

::

    rows = ray.data.read_json("prompts.jsonl").repartition(target_num_rows_per_block=64)
    answered = rows.map_batches(
        tandem.ray.Generate,
        fn_constructor_kwargs={"model": "./SmolLM2", "fields": {"max_tokens": 64}},
        batch_size=64, compute=ray.data.ActorPoolStrategy(size=3), num_cpus=8)

A row's answer depends on that row alone, so it is the same however rows are dealt to machines.
This module does not import Ray: an actor is a class with a constructor and a call.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from ._answers import Answer, of_body, refused
from ._http import Refused
from ._warm import WarmServer
from .rows import Rows, columns

Columns = Dict[str, Any]
"""A batch of rows, as Ray Data hands it over: a list or an array for each column."""


class Generate:
    """An actor for ``Dataset.map_batches``: adds answers to batches of rows.

    It starts a server when it is made, sends all rows of a batch to it at once, and ends it with
    itself. A server that dies is started again, and rows that it had not answered are asked again.
    The columns that are added: ``text``, ``token_ids``, ``finish_reason``, ``prompt_tokens``,
    ``completion_tokens``, and ``error``, a sentence where a row has no answer, else null.
    """

    def __init__(
        self,
        model: str,
        *,
        prompt: str = "prompt",
        id: Optional[str] = "id",
        seed: Optional[str] = None,
        chat: bool = False,
        fields: Optional[Mapping[str, Any]] = None,
        restarts: int = 3,
        **options: Any,
    ) -> None:
        """Starts the server.

        :param model: where it is on the machine that the actor runs on.
        :param prompt: the column of prompts; it and those that follow are as in
            :class:`tandem.rows.Rows`.
        :param restarts: how often the server may die with no answer in between.
        :param options: those of :func:`tandem.serve`: ``slots``, ``device``, ``cpus``, ...
        :raises tandem.Error: the server cannot be started; its sentence.
        """
        self._rows = Rows(prompt=prompt, id=id, seed=seed, chat=chat, fields=dict(fields or {}))
        self._server = WarmServer(model, restarts=restarts, **options)

    def __call__(self, batch: Columns) -> Columns:
        """The batch with the columns of answers.

        :raises ValueError: a column has the name of one that is added.
        :raises tandem.Error: the server died too often; its sentence.
        """
        names = list(batch)
        taken = sorted(columns(refused("", 0, "")).keys() & set(names))
        if taken:
            raise ValueError(f"rows have columns already that answers add: {', '.join(taken)}")
        count = len(batch[names[0]]) if names else 0
        rows = [{name: batch[name][index] for name in names} for index in range(count)]
        answers = self._answers([self._rows.request(row) for row in rows])
        added = [columns(answer) for answer in answers]
        result: Columns = {name: batch[name] for name in names}
        for name in added[0] if added else ():
            result[name] = [one[name] for one in added]
        return result

    def _answers(self, requests: Sequence[Mapping[str, Any]]) -> List[Answer]:
        found = self._server.answers([(one["url"], one["body"]) for one in requests])
        answers: List[Answer] = []
        for index, (request, one) in enumerate(zip(requests, found)):
            custom_id = request["custom_id"]
            if isinstance(one, Refused):
                answers.append(refused(str(one), index, custom_id))
            else:
                answers.append(of_body(one, index, custom_id))
        return answers


__all__ = ["Generate"]
