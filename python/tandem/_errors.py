"""What goes wrong, as exceptions."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """The program ended without doing what it was asked.

    The message is the sentence that it printed, or says how it ended where it printed none.
    """

    exit_code: Optional[int]
    """How it ended: 1 the run failed, 2 the options are wrong, 130 interrupted; below 0 the
    signal that killed it; None where it did not end."""

    folder: Optional[str]
    """Where finished answers are kept. The same call with this ``folder`` goes on from them."""

    def __init__(
        self, sentence: str, exit_code: Optional[int] = None, folder: Optional[str] = None
    ) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
        self.folder = folder
