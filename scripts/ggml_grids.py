#!/usr/bin/env python3
"""Makes model/src/source/low_bit/grids.bin: the grids of GGUF's IQ types, as the `gguf` Python package has them.

    DIR/bin/python scripts/ggml_grids.py    # an environment with gguf and numpy

The file is committed; nothing in the build or the tests runs this. An entry is a little-endian u16: the places of its
elements in the type's list of values, the first in the lowest bits, two bits for each of eight elements or three for
each of four. The grids stand one after the other in the order of GRIDS. Last made with gguf 0.19.
"""

from pathlib import Path

import numpy
from gguf import quants

FILE = Path(__file__).resolve().parent.parent / "model" / "src" / "source" / "low_bit" / "grids.bin"

# Type, values of the list, bits of a place.
GRIDS = [
    ("IQ2_XXS", [8, 25, 43], 2),
    ("IQ2_XS", [8, 25, 43], 2),
    ("IQ2_S", [8, 25, 43], 2),
    ("IQ3_XXS", [4, 12, 20, 28, 36, 44, 52, 62], 3),
    ("IQ3_S", [1, 3, 5, 7, 9, 11, 13, 15], 3),
    ("IQ1_S", [-1, 0, 1], 2),
]


def main():
    out = bytearray()
    for name, values, bits in GRIDS:
        kind = getattr(quants, name)
        kind.init_grid()
        grid = numpy.asarray(kind.grid).reshape(kind.grid_shape).astype(int)
        places = numpy.vectorize(values.index)(grid)
        entries = (places << (bits * numpy.arange(grid.shape[1]))).sum(axis=1)
        out += entries.astype("<u2").tobytes()
        print(f"{name}: {len(entries)} entries of {grid.shape[1]} elements")
    FILE.write_bytes(out)
    print(f"{FILE}: {len(out)} bytes")


if __name__ == "__main__":
    main()
