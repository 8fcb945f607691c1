"""Where the program is."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Iterator

from ._errors import Error

NAME = "coordinator"
VARIABLE = "TANDEM_COORDINATOR"


def binary() -> str:
    """Path of the program: what ``TANDEM_COORDINATOR`` names, else the one that was installed
    with this package, else the first on the ``PATH``.

    :raises Error: there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise Error(f"{VARIABLE} names {named}, which is no program.")
        return named
    for folder in _folders():
        path = folder / NAME
        if os.access(path, os.X_OK) and path.is_file():
            return str(path)
    found = shutil.which(NAME)
    if found is None:
        raise Error(
            f"The program {NAME} is missing. Install the wheel of this package, which has it, or "
            f"set {VARIABLE} to its path."
        )
    return found


def _folders() -> Iterator[Path]:
    """Where installers put the programs of a package."""
    yield Path(sysconfig.get_path("scripts"))
    package = Path(__file__).resolve().parent
    # pip install --target FOLDER: FOLDER/tandem and FOLDER/bin.
    yield package.parent / "bin"
    # pip install --prefix FOLDER or --user: FOLDER/lib/python3.x/site-packages/tandem.
    if len(package.parents) > 3:
        yield package.parents[3] / "bin"
