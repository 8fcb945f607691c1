#!/bin/sh
# `make run`: a small real model answers examples/prompts.jsonl, once on the best that this machine has
# and once with part of every layer on the emulated device, and the answers are compared, token by token.
# MODEL=path takes a model of yours and skips the download; ARGS adds options, as ARGS=--chat.
set -eu
cd "$(dirname "$0")/.."

step() { printf '\n%s\n' "$*"; }
say() { echo "+ $*"; "$@"; }

step "1/5 Building the one binary, coordinator. The first time this takes some minutes."
say cargo build --release --package coordinator
coordinator=${CARGO_TARGET_DIR:-target}/release/coordinator

if [ -n "${MODEL:-}" ]; then
    step "2/5 The model is yours: $MODEL"
    # Not every model has a chat template, and only these two operations are in every architecture's layer.
    split=scores:out
    chat=
else
    step "2/5 A small real model: SmolLM2-135M-Instruct, kept in .cache/models."
    output=$(mktemp)
    trap 'rm -f "$output"' EXIT
    echo "+ scripts/model.sh"
    status=0
    scripts/model.sh > "$output" || status=$?
    cat "$output"
    [ $status -eq 0 ] || exit $status
    MODEL=$(tail -n 1 "$output")
    # Attention and the projection after it; norm1 is the operation that follows in this model's layer.
    split=scores:norm1
    chat=--chat
fi
split=${SPLIT:-$split}
mkdir -p out

answer() {
    name=$1
    shift
    # shellcheck disable=SC2086 # ARGS is a list of options, and no --chat is no argument
    say "$coordinator" --model "$MODEL" --batches 4x15 --input examples/prompts.jsonl $chat \
        --output "out/$name.jsonl" --report "out/$name.report.json" --force "$@" ${ARGS:-}
}
step "3/5 Sixty prompts, four batches of fifteen in flight, on the best that this machine has."
answer run
step "4/5 The same prompts; in each layer the emulated device runs ${split%:*} to before ${split#*:}, the CPU the rest."
answer run-split --device emulated --split "$split"

step "5/5 Where an operation runs must not change an answer: three of them, then the comparison of all."
python3 scripts/show_answers.py examples/prompts.jsonl out/run.jsonl 3
say python3 scripts/same_answers.py out/run.jsonl out/run-split.jsonl
echo "The answers are in out/run.jsonl, how the runs went in out/run.report.json and out/run-split.report.json."
