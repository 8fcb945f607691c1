#!/usr/bin/env python3
"""Makes quantizer/tests/fixtures/encoded.bin: values and the blocks to which the `gguf` Python package
quantises them, for the types that it can quantise to.

    DIR/bin/python scripts/fixtures_quantizer.py    # an environment with gguf and numpy

The file is committed; nothing in the build or the tests runs this. Seeded: the same bytes each time.
Layout, little endian: u32 number of values, the values in f32; then for each type u32 GGML's type number,
u32 bytes, the blocks. Last made with gguf 0.19.
"""

import struct
from pathlib import Path

import numpy
from gguf import GGMLQuantizationType
from gguf.quants import quantize

FILE = Path(__file__).resolve().parent.parent / "quantizer" / "tests" / "fixtures" / "encoded.bin"
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
COLUMNS = 1024


def rows(random):
    """Rows like those of weights: of a normal distribution, with heavy tails, on one side of zero, with a single
    outlier in each block, and special blocks."""
    normal = random.normal(0, 0.02, COLUMNS)
    heavy = random.standard_t(3, COLUMNS) * 0.01
    shifted = numpy.abs(random.normal(0.1, 0.05, COLUMNS))
    outliers = random.normal(0, 0.01, COLUMNS)
    outliers[7::32] = 0.3 * numpy.sign(outliers[7::32])
    special = numpy.concatenate(
        [
            numpy.zeros(256),
            numpy.full(256, -0.375),
            random.normal(0, 1e-6, 256),
            random.normal(0, 300.0, 256),
        ]
    )
    return numpy.stack([normal, heavy, shifted, outliers, special]).astype("<f4")


def main():
    values = rows(numpy.random.default_rng(58))
    out = struct.pack("<I", values.size) + values.tobytes()
    for name in TYPES:
        number = GGMLQuantizationType[name]
        blocks = quantize(values, number).tobytes()
        out += struct.pack("<2I", number, len(blocks)) + blocks
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_bytes(out)
    print(f"{FILE}: {len(out)} bytes")


if __name__ == "__main__":
    main()
