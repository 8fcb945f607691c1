"""``python -m tandem ARGUMENTS`` is the program itself."""

from __future__ import annotations

import os
import sys

from ._binary import NAME, binary
from ._errors import Error


def main() -> None:
    """Becomes the program; what is written here before it is said first."""
    try:
        path = binary()
    except Error as error:
        sys.exit(f"tandem: {error}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [NAME, *sys.argv[1:]])


if __name__ == "__main__":
    main()
