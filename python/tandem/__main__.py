"""``python -m tandem ARGUMENTS``, and ``tandem ARGUMENTS``, is the program itself."""

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
    # By its console script, messages name the program as it was called.
    called = os.path.basename(sys.argv[0])
    os.execv(path, [called if called == "tandem" else NAME, *sys.argv[1:]])


if __name__ == "__main__":
    main()
