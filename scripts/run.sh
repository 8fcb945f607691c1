#!/bin/sh
# `make run`: a small real model answers examples/prompts.jsonl, once on the best that this machine has
# and once with part of every layer on the emulated device, and the answers are compared, token by token.
# MODEL=path takes a model of yours and skips the download.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }

say cargo build --release --package coordinator
coordinator=${CARGO_TARGET_DIR:-target}/release/coordinator
if [ -z "${MODEL:-}" ]; then
    output=$(mktemp)
    trap 'rm -f "$output"' EXIT
    echo "+ scripts/model.sh"
    status=0
    scripts/model.sh > "$output" || status=$?
    cat "$output"
    [ $status -eq 0 ] || exit $status
    MODEL=$(tail -n 1 "$output")
fi
mkdir -p out

answer() {
    name=$1
    shift
    say "$coordinator" --model "$MODEL" --batches 4x15 --input examples/prompts.jsonl --chat \
        --output "out/$name.jsonl" --report "out/$name.report.json" --force "$@"
}
answer run
# The op that a split names belongs to the architecture: SmolLM2, like all LLaMA models, has norm1.
answer run-split --device emulated --split "${SPLIT:-scores:norm1}"

say python3 scripts/same_answers.py out/run.jsonl out/run-split.jsonl
