#!/usr/bin/env python3
"""Writes what each CUDA kernel uses on each generation of GPUs, from the log of ptxas.

    kernel_budgets.py LOGS LAUNCHES OUT

LOGS has a file sm_N.log for each generation, the output of `ptxas -v`; LAUNCHES is kernels/cuda/cubin/launch_sizes.tsv. OUT
receives a row for each kernel and generation: registers of a thread, bytes of registers that it spills to memory and loads
again, bytes of its stack frame, blocks that fit on a multiprocessor, and the share of its warps that they are, in percent.
Fails if a linear or an attention kernel spills, or has a frame."""

import re
import sys
from pathlib import Path

# CUDA C++ Programming Guide 13.0, table "Technical Specifications per Compute Capability": warps and blocks of a
# multiprocessor, and KiB of shared memory, of which each block takes one more.
LIMITS = {
    80: (64, 32, 164),
    86: (48, 16, 100),
    89: (48, 24, 100),
    90: (64, 32, 228),
    100: (64, 32, 228),
    120: (48, 24, 100),
}
# Registers of a quarter of a multiprocessor, and those that a warp takes at a time.
QUARTER_REGISTERS = 16384
REGISTERS_STEP = 256
# Nothing of these kinds may leave the registers.
IN_REGISTERS = ("linear_", "expert_", "attention_")

FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def read_log(path):
    """Registers, spilled, reloaded, frame and static shared memory of each kernel."""
    found = {}
    kernel, frame = None, (0, 0, 0)
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := FUNCTION.search(line):
            kernel = match.group(1)
        elif match := FRAME.search(line):
            frame = tuple(int(number) for number in match.groups())
        elif match := USED.search(line):
            shared = SHARED.search(line)
            frame_bytes, stored, loaded = frame
            found[kernel] = (int(match.group(1)), stored, loaded, frame_bytes, int(shared.group(1)) if shared else 0)
    return found


def blocks_of(generation, registers, threads, shared_bytes):
    warps_max, blocks_max, shared_kib = LIMITS[generation]
    warps = (threads + 31) // 32
    of_warp = -(-registers * 32 // REGISTERS_STEP) * REGISTERS_STEP
    by_registers = 4 * (QUARTER_REGISTERS // of_warp) // warps
    by_shared = (shared_kib << 10) // (-(-shared_bytes // 128) * 128 + 1024)
    blocks = min(blocks_max, warps_max // warps, by_registers, by_shared)
    return blocks, round(100 * blocks * warps / warps_max)


def main():
    logs, launches, out = (Path(argument) for argument in sys.argv[1:])
    sizes = {}
    for line in launches.read_text(encoding="utf-8").splitlines()[1:]:
        kernel, threads, shared_bytes = line.split("\t")
        sizes[kernel] = (int(threads), int(shared_bytes))
    lines = ["kernel\tgeneration\tregisters\tspilled_bytes\treloaded_bytes\tframe_bytes\tblocks\toccupancy_percent"]
    outside = []
    paths = sorted(logs.glob("sm_*.log"), key=lambda path: int(path.stem[3:]))
    for path in paths:
        generation = int(path.stem[3:])
        for kernel, (registers, stored, loaded, frame, static) in sorted(read_log(path).items()):
            if kernel not in sizes:
                sys.exit(f"kernel_budgets.py: {launches} has no {kernel}")
            threads, shared_bytes = sizes[kernel]
            blocks, occupancy = blocks_of(generation, registers, threads, shared_bytes + static)
            numbers = (registers, stored, loaded, frame, blocks, occupancy)
            lines.append("\t".join(map(str, (kernel, generation, *numbers))))
            if kernel.startswith(IN_REGISTERS) and (stored or loaded or frame):
                outside.append(f"{kernel} sm_{generation}: {stored} bytes spilled, a frame of {frame}")
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if outside:
        sys.exit("\n".join(["kernel_budgets.py: linears and attention must stay in registers:", *outside]))


if __name__ == "__main__":
    main()
