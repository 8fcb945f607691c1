#!/usr/bin/env python3
"""How far Q4_1's next-token distributions lie from those of the same weights in bf16, by llama.cpp.

    scripts/peers/divergence.py DIR TEXT...

DIR is what scripts/peers.sh made; TEXT are files of prose, 5000 tokens at least. llama.cpp judges the second half
of each window of CONTEXT tokens: about 2,000 tokens are judged. Prints the mean KL divergence and its error."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONTEXT, WINDOWS, THREADS = 512, 8, 2
KLD = re.compile(r"Mean\s+KLD:\s+([-\d.e]+)\s+±\s+([-\d.e]+)")


def perplexity(folder, model, text, base, *options):
    command = [folder / "bin" / "llama-perplexity", "-m", folder / "models" / f"{model}.gguf", "-f", text]
    command += ["-t", THREADS, "-c", CONTEXT, "-b", CONTEXT, "--chunks", WINDOWS, "--kl-divergence-base", base]
    done = subprocess.run([*map(str, command), *options], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"llama-perplexity failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(dir=folder) as work:
        text, base = Path(work) / "text", Path(work) / "base"
        text.write_text("\n".join(Path(path).read_text(encoding="utf-8") for path in sys.argv[2:]), encoding="utf-8")
        perplexity(folder, "smollm2-135m-bf16", text, base)
        output = perplexity(folder, "smollm2-135m-q4_1", text, base, "--kl-divergence")
    found = KLD.search(output)
    if not found:
        sys.exit(f"llama-perplexity told no mean KL divergence:\n{output[-2000:]}")
    judged = WINDOWS * (CONTEXT // 2 - 1)
    print(f"llama.cpp, Q4_1 to bf16, {judged} tokens: mean KL divergence {found[1]} +- {found[2]}")


if __name__ == "__main__":
    main()
