#!/usr/bin/env python3
"""Makes model/tests/fixtures/gguf_quants.bin: random blocks of every quantised GGUF type that is read,
and what the `gguf` Python package expands them to.

    DIR/bin/python scripts/fixtures_gguf_quants.py    # an environment with gguf and numpy

The file is committed; nothing in the build or the tests runs this. Seeded: the same bytes each time.
Layout, little endian, for each type: u32 GGML's type number, u32 blocks, u32 block bytes, u32 block
elements; the blocks; the f32 values. Last made with gguf 0.19.
"""

import struct
from pathlib import Path

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

FILE = Path(__file__).resolve().parent.parent / "model" / "tests" / "fixtures" / "gguf_quants.bin"

# Type, how many blocks, at which bytes of a block the f16 numbers are. The package quantises to few of
# these, so blocks are random bits, which any type allows, with scales of an ordinary size.
TYPES = [
    ("Q4_0", 24, [0]),
    ("Q4_1", 24, [0, 2]),
    ("Q5_0", 24, [0]),
    ("Q5_1", 24, [0, 2]),
    ("Q8_0", 24, [0]),
    ("Q4_K", 8, [0, 2]),
    ("Q5_K", 8, [0, 2]),
    ("Q6_K", 8, [208]),
    ("Q2_K", 8, [80, 82]),
    ("Q3_K", 8, [108]),
    ("IQ4_NL", 24, [0]),
    ("IQ4_XS", 8, [0]),
    ("MXFP4", 24, []),
    ("IQ2_XXS", 8, [0]),
    ("IQ2_XS", 8, [0]),
    ("IQ2_S", 8, [0]),
    ("IQ3_XXS", 8, [0]),
    ("IQ3_S", 8, [0]),
    ("IQ1_S", 8, [0]),
    ("IQ1_M", 8, []),
    ("TQ1_0", 8, [52]),
    ("TQ2_0", 8, [64]),
]


def main():
    random = numpy.random.default_rng(20)
    out = bytearray()
    for name, count, halves in TYPES:
        number = GGMLQuantizationType[name]
        elements, size = GGML_QUANT_SIZES[number]
        blocks = random.integers(0, 256, (count, size), dtype=numpy.uint8)
        for at in halves:
            # Of either sign, over eight powers of two; the first is subnormal in f16.
            scales = random.normal(size=count) * 2.0 ** -random.integers(0, 8, count)
            scales[0] = 3e-6
            blocks[:, at : at + 2] = scales.astype("<f2").view(numpy.uint8).reshape(count, 2)
        if name == "IQ1_M":
            # Four bits of the scale in each of the last four words; the exponent is an ordinary one.
            blocks[:, 55] = blocks[:, 55] & 0x8F | (random.integers(0, 4, count) << 4).astype(numpy.uint8)
        if name == "MXFP4":
            # Exponents: the subnormal ones, then as of weights, then the largest that stays finite.
            blocks[:, 0] = random.integers(110, 132, count)
            blocks[:3, 0], blocks[-1, 0] = [0, 1, 2], 251
        values = numpy.stack([dequantize(block, number) for block in blocks]).astype("<f4")
        assert values.shape == (count, elements) and numpy.isfinite(values).all()
        out += struct.pack("<4I", number, count, size, elements) + blocks.tobytes() + values.tobytes()
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_bytes(out)
    print(f"{FILE}: {len(out)} bytes")


if __name__ == "__main__":
    main()
