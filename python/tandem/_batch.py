"""A batch of prompts, and its answers as they are finished."""

from __future__ import annotations

from pathlib import Path
from typing import Collection, Iterable, Iterator, Optional, Union

from . import _prompts
from ._answers import Answer, of_line
from ._flags import flags
from ._job import OURS, Job, Progress
from ._prompts import Prompt


class Batch(Job[Answer]):
    """A batch of prompts that runs while its answers are read.

    ::

        with tandem.Batch("./SmolLM2", prompts, chat=True, max_tokens=64) as batch:
            for answer in batch:
                print(answer.index, answer.text)

    Answers come in the order in which they are finished, each prompt's once. Those of an earlier
    run in the same folder come first. An answer's ``index`` is its prompt's place.
    """

    def __init__(
        self,
        model: str,
        prompts: Iterable[Prompt],
        *,
        folder: Union[str, Path, None] = None,
        progress: Progress = None,
        cpus: Optional[Collection[int]] = None,
        **options: object,
    ) -> None:
        """Prepares a batch; nothing runs before it is entered with ``with``.

        :param model: a directory, a .gguf file, or org/name in the Hugging Face cache.
        :param prompts: texts, lists of token ids, lists of messages, or whole lines of a batch
            file (``coordinator formats``); a line may name its ``custom_id``.
        :param folder: where the batch's files are kept, so that it can be gone on with; it is made
            where it is missing. None: a private one, which is removed once it is no longer needed.
        :param progress: see :data:`Progress`.
        :param cpus: the CPUs that it may use; None: those of this process.
        :param options: options of the command line: ``max_tokens=64`` is ``--max-tokens 64``.
        :raises TypeError: a prompt is none, or an option is one that this class gives.
        :raises ValueError: two prompts have the same ``custom_id``.
        """
        lines, places = _prompts.lines(prompts)
        super().__init__(
            [f"--model={model}", *flags(options, OURS)],
            lines,
            len(places),
            lambda line: of_line(line, places),
            folder=folder,
            progress=progress,
            cpus=cpus,
        )


def generate(
    model: str,
    prompts: Iterable[Prompt],
    *,
    folder: Union[str, Path, None] = None,
    progress: Progress = None,
    cpus: Optional[Collection[int]] = None,
    **options: object,
) -> Iterator[Answer]:
    """Answers prompts, and yields each answer as it is finished.

    The arguments are those of :class:`Batch`, which this runs. Name a ``folder`` for what must
    survive: after Ctrl-C, an error or a crash the same call goes on where it ended.
    """
    batch = Batch(model, prompts, folder=folder, progress=progress, cpus=cpus, **options)
    with batch:
        yield from batch
