#!/bin/sh
# `make bench`: four true OPT-30B layers with random weights, all on the CPU and split with the emulated
# device. Prints a row each, and appends one JSON line with commit and machine to out/bench.jsonl.
# MODEL, LAYERS, BATCHES, PROMPT_LEN, GEN_LEN and SPLIT change the case.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }

say cargo build --release --package coordinator
coordinator=${CARGO_TARGET_DIR:-target}/release/coordinator
mkdir -p out
bench() {
    name=$1
    shift
    say "$coordinator" --model "${MODEL:-opt-30b}" --dummy-weights --layers "${LAYERS:-4}" \
        --batches "${BATCHES:-2x8}" --prompt-len "${PROMPT_LEN:-64}" --gen-len "${GEN_LEN:-8}" \
        --report "out/bench-$name.json" "$@"
}
bench cpu --policy cpu-only
bench split --device emulated --split "${SPLIT:-scores:ln1}"
say python3 scripts/bench_rows.py out/bench.jsonl out/bench-cpu.json out/bench-split.json
