#!/usr/bin/env python3
"""How far the next-token distributions of low-bit files lie from those of the same weights expanded to bf16.

    scripts/peers/divergence.py DIR --tandem FILE TEXT...

DIR is what scripts/peers.sh made, FILE is target/release/examples/divergence, TEXT are files of prose, 5000 tokens
at least. Each engine is compared with itself on the expanded weights. The second half of each window of CONTEXT
tokens is judged, about 2,000 tokens. Prints a line for each file and engine: the mean KL divergence and its error."""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import models

CONTEXT, WINDOWS, THREADS = 512, 8, 2
FILES = [f"smollm2-135m-{kind}" for kind in ("q4_1", "q4_k_m", "q6_k", "mxfp4")]
OURS = re.compile(r"mean KL divergence ([-\d.e]+) \+- ([-\d.e]+)")
PEERS = re.compile(r"Mean\s+KLD:\s+([-\d.e]+)\s+±\s+([-\d.e]+)")


def output(command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def ours(tool, model, expanded, text):
    return OURS.search(output([tool, expanded, model, text]))


def peers(folder, model, expanded, text, logits):
    options = ["-f", text, "-t", THREADS, "-c", CONTEXT, "-b", CONTEXT, "--chunks", WINDOWS]
    options += ["--kl-divergence-base", logits]
    tool = folder / "bin" / "llama-perplexity"
    output([tool, "-m", expanded, *options])
    return PEERS.search(output([tool, "-m", model, *options, "--kl-divergence"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--tandem", type=Path, required=True)
    parser.add_argument("text", type=Path, nargs="+")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as work:
        text, logits, expanded = (Path(work) / name for name in ("text", "logits", "expanded.gguf"))
        text.write_text("\n".join(path.read_text(encoding="utf-8") for path in arguments.text), encoding="utf-8")
        for name in FILES:
            model = arguments.dir / "models" / f"{name}.gguf"
            models.widen(model, expanded)
            for engine, found in (
                ("tandem", ours(arguments.tandem, model, expanded, text)),
                ("llama.cpp", peers(arguments.dir, model, expanded, text, logits)),
            ):
                if not found:
                    sys.exit(f"{engine} told no mean KL divergence of {name}.")
                print(f"{name}: {engine} {float(found[1]):.5f} +- {float(found[2]):.5f}", flush=True)


if __name__ == "__main__":
    main()
