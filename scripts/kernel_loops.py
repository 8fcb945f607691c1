#!/usr/bin/env python3
"""Writes docs/bench/gpu-instructions.md: instructions of the main loops of linears, as disassembled, beside what cards can issue.

    kernel_loops.py NVDISASM CUBINS OUT

CUBINS is kernels/cuda/cubin. A tile is 16 output columns of 32 inputs. The share is the number of instructions of the tiles
that arrive in a second at the card's full bandwidth, divided by the number of instructions that the card issues in a second."""

import lzma
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Data sheets: generation, multiprocessors, GHz, GB/s. The clock is the one of the peak of the tensor cores.
CARDS = {
    "RTX 3090": (86, 82, 1.70, 936),
    "RTX 4090": (89, 128, 2.52, 1008),
    "RTX 5090": (120, 170, 2.41, 1792),
    "A100 PCIe": (80, 108, 1.41, 1935),
    "L40S": (89, 142, 2.52, 864),
    "H100 SXM": (90, 132, 1.83, 3350),
    "H200 SXM": (90, 132, 1.83, 4800),
}
# Instructions that a multiprocessor issues in a cycle.
ISSUED = 4
# Stored forms: bytes of a tile, with its share of a record's scales, and steps of the tensor cores for it and eight rows.
STORED = [
    ("q4_k", 296, 3),
    ("q5_k", 360, 3),
    ("q6_k", 424, 4),
    ("q5_0", 352, 2),
    ("q5_1", 384, 3),
    ("iq4_nl", 288, 2),
    ("iq4_xs", 280, 2),
    ("mxfp4", 272, 2),
]
# Their scales become floats in a loop around the main one, of 256 inputs and 32 columns. 64 rows of groups of 16 have a loop of
# groups within that of steps.
AROUND_STORED = [16]
AROUND = {"linear_q6_k_64_bf16": [2, 16]}
# Kernel, rows, bytes of a tile of weights, steps of the tensor cores for it (sums of x included).
LINEARS = [
    ("linear_small_8_bf16", 8, 1024, 2),
    ("linear_small_16_bf16", 16, 1024, 4),
    ("linear_small_32_bf16", 32, 1024, 8),
    ("linear_wide_64_bf16", 64, 1024, 16),
    ("linear_wide_128_narrow_bf16", 128, 1024, 32),
    ("linear_wide_128_bf16", 128, 1024, 32),
    ("linear_four_8_bf16", 8, 288, 3),
    ("linear_four_16_bf16", 16, 288, 6),
    ("linear_four_32_bf16", 32, 288, 12),
    ("linear_four_wide_bf16", 64, 288, 20),
    ("linear_eight_8_bf16", 8, 576, 3),
    ("linear_eight_16_bf16", 16, 576, 6),
    ("linear_eight_32_bf16", 32, 576, 12),
    ("linear_expanded_8_bf16", 8, 640, 3),
    ("linear_expanded_16_bf16", 16, 640, 6),
    ("linear_expanded_32_bf16", 32, 640, 12),
    *(
        (f"linear_{form}_{rows}_bf16", rows, size_bytes, steps * rows // 8)
        for form, size_bytes, steps in STORED
        for rows in (8, 16, 32, 64)
    ),
]

FUNCTION = re.compile(r"\.text\.(\w+):")
LABEL = re.compile(r"\.(L_x_\d+):")
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)\s*(.*?);")
TARGET = re.compile(r"\(\.(L_x_\d+)\)")


def functions(text):
    """Instructions of each kernel, as operation and operands, and the places of its labels."""
    found, body, labels = {}, None, None
    for line in text.splitlines():
        if match := FUNCTION.match(line):
            body, labels = [], {}
            found[match.group(1)] = (body, labels)
        elif body is not None:
            if match := LABEL.match(line.strip()):
                labels[match.group(1)] = len(body)
            elif match := INSTRUCTION.match(line):
                body.append(match.groups())
    return found


def loops_of(body, labels):
    """First and last instruction of each loop."""
    loops = set()
    for place, (operation, operands) in enumerate(body):
        match = TARGET.search(operands) if operation.startswith("BRA") else None
        if match and labels.get(match.group(1), place + 1) <= place:
            loops.add((labels[match.group(1)], place))
    return sorted(loops)


def within(inner, outer):
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def main_loop(body, labels):
    """Instructions, steps of the tensor cores, moves, and place of the innermost loop that has the fewest of the first for
    each of the second."""
    loops = loops_of(body, labels)
    best = None
    for first, last in loops:
        if any(within(other, (first, last)) for other in loops):
            continue
        operations = [operation for operation, _ in body[first : last + 1]]
        steps = sum(operation.startswith("HMMA") for operation in operations)
        moves = sum(operation in ("MOV", "IMAD.MOV.U32") for operation in operations)
        if steps and (best is None or len(operations) * best[1] < best[0] * steps):
            best = (len(operations), steps, moves, (first, last))
    return best


def around(body, labels, loop, tiles):
    """Instructions for a tile in the loops around `loop`, inner loops left out. An iteration of each has so many `tiles`."""
    total, loops = 0.0, loops_of(body, labels)
    for count in tiles:
        outer = min((other for other in loops if within(loop, other)), key=lambda other: other[1] - other[0])
        inner = [other for other in loops if within(other, outer)]
        outermost = [one for one in inner if not any(within(one, other) for other in inner)]
        own = outer[1] - outer[0] + 1 - sum(last - first + 1 for first, last in outermost)
        total, loop = total + own / count, outer
    return total


def disassembled(nvdisasm, cubins, generation):
    image = lzma.decompress((cubins / f"sm_{generation}.cubin.lzma").read_bytes())
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        run = subprocess.run([nvdisasm, "-c", file.name], check=True, capture_output=True, text=True)
    return functions(run.stdout)


def main():
    nvdisasm, cubins, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    generations = sorted({card[0] for card in CARDS.values()})
    code = {generation: disassembled(nvdisasm, cubins, generation) for generation in generations}
    stored = {f"linear_{form}_{rows}_bf16" for form, _, _ in STORED for rows in (8, 16, 32, 64)}
    lines = [
        "# Instructions of the GPU's linears",
        "",
        "Written by `scripts/ptx.sh --budgets` from the committed cubins; nothing here was measured on a device.",
        "A tile is 16 output columns of 32 inputs. Of each kernel's main loop: instructions for a tile on",
        "compute capability 9.0, and how many of them only move registers. Then, for each card, the share of",
        "the instructions that it can issue (four a cycle and multiprocessor, at the clock of the tensor",
        "cores' peak) which the loop takes where weights arrive at the data sheet's bandwidth: above 1 the",
        "kernel is bound by instructions. Stored forms, from `q4_k` on, include their share of the loop around,",
        "which converts scales once every 256 inputs. Registers, spills and occupancy are in `kernels/cuda/cubin/budgets.tsv`.",
        "",
        "| kernel | rows | bytes | instructions | moves | " + " | ".join(CARDS) + " |",
        "| --- " * (5 + len(CARDS)) + "|",
    ]
    for kernel, rows, size_bytes, steps_of_tile in LINEARS:
        shares, shown = [], None
        for generation, processors, ghz, gbps in CARDS.values():
            body, labels = code[generation][kernel]
            count, steps, moves, loop = main_loop(body, labels)
            instructions = count * steps_of_tile / steps
            instructions += around(body, labels, loop, AROUND.get(kernel, AROUND_STORED if kernel in stored else []))
            if generation == 90:
                shown = (instructions, moves * steps_of_tile / steps)
            shares.append(gbps / size_bytes * instructions / (ISSUED * processors * ghz))
        cells = [kernel, str(rows), str(size_bytes), f"{shown[0]:.0f}", f"{shown[1]:.0f}"]
        lines.append("| " + " | ".join(cells + [f"{share:.2f}" for share in shares]) + " |")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
