#!/bin/sh
# `make bench`, about 20 minutes with everything; each row stands beside its goal.
# 1. The kernels over kernels/cases.txt, each beside what memory and arithmetic allow.
# 2. Four true OPT-30B layers with random weights, all on the CPU and split with the emulated device;
#    appends one JSON line with commit and machine to out/bench.jsonl.
# 3. The same layers under every policy: predicted beside measured, auto beside each.
# 4. The paper's printed tables, and 200 requests to a server, in the real processes, in which instructions only last:
#    measured beside simulated.
# 5. Twenty cells of described machines under every policy, the same way: a steady step emulated beside simulated.
# 6. Prompts that begin alike, computed together and each whole, on a small real model (fetched).
# 7. Workers killed and stopped: until the run has ended or the server goes on, and that no answer is lost.
# 8. With PEERS=DIR (made by scripts/peers.sh): whole models in turn with llama.cpp, and, where DIR/torch
#    is, the linears in turn with oneDNN.
# 9. A long prompt beside streams; with PEERS=DIR `coordinator serve` in turn with llama.cpp's server, with
#    LENGTHS=FILE.csv also at the lengths of the Azure code trace of 2023.
# 10. Servers whose device has the caches of a tenth of their slots: tokens a second beside predicted, answers beside the CPU's.
# 11. Hostile requests within the server's limits: how long they hold up another's next token, and /health.
# 12. Speculative decoding: two servers, with and without drafts, that answer the same requests in turn.
# 13. A batch of 2,000 lines through /v1/batches while eight streams run: time between their tokens, and throughput.
# 14. With ONLY=million alone: a prompt of POSITIONS (1,000,000) over LAYERS (1), prefilled for HOURS (1), resumed by another
#    process and decoded; pages stay in FOLDER, if one is named, and the next run continues after them.
# ONLY=kernels, layers, policies, timed, cells, alike, recovery, peers, serve, owners, hostile, speculation, batch or million runs one. SAMPLES of each kernel case (5), ROUNDS with each peer (2;
# a record takes 9); MODEL, LAYERS, BATCHES, PROMPT_LEN, GEN_LEN and SPLIT change the case of 2.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }
wanted() { [ -z "${ONLY:-}" ] || [ "$ONLY" = "$1" ]; }

say cargo build --release --package coordinator
say cargo build --release --package kernels --example roofline
release=${CARGO_TARGET_DIR:-target}/release
mkdir -p out
layers() {
    name=$1
    shift
    say "$release/coordinator" --model "${MODEL:-opt-30b}" --dummy-weights --layers "${LAYERS:-4}" \
        --batches "${BATCHES:-2x8}" --prompt-len "${PROMPT_LEN:-64}" --gen-len "${GEN_LEN:-8}" \
        --report "out/bench-$name.json" "$@"
}

if wanted kernels; then
    rm -f out/roofline.jsonl
    say "$release/examples/roofline" --samples "${SAMPLES:-5}" --json out/roofline.jsonl
fi
if wanted layers; then
    layers cpu --policy cpu-only
    layers split --device emulated --split "${SPLIT:-scores:ln1}"
    say python3 scripts/bench_rows.py out/bench.jsonl out/bench-cpu.json out/bench-split.json
fi
if wanted policies; then
    rm -f out/policies.jsonl
    say python3 scripts/policies.py --coordinator "$release/coordinator" \
        --roofline "$release/examples/roofline" --rounds "${ROUNDS:-2}" --json out/policies.jsonl
fi
if wanted timed; then
    rm -f out/timed.jsonl
    say python3 scripts/timed_rows.py --coordinator "$release/coordinator" \
        --roofline "$release/examples/roofline" --rounds "${ROUNDS:-3}" --json out/timed.jsonl
    rm -f out/timed-serving.jsonl
    say python3 scripts/timed_serving_rows.py --coordinator "$release/coordinator" --json out/timed-serving.jsonl
fi
if wanted owners; then
    rm -f out/owners.jsonl
    small=$(scripts/model.sh | tail -n 1)
    say python3 scripts/host_attention_rows.py --coordinator "$release/coordinator" --model "$small" \
        ${LENGTHS:+--lengths "$LENGTHS"} --rounds "${ROUNDS:-2}" --json out/owners.jsonl
fi
if wanted cells; then
    rm -f out/cells.jsonl
    say python3 scripts/timed_cells.py --coordinator "$release/coordinator" --json out/cells.jsonl
    rm -f out/drafted-cells.jsonl
    say python3 scripts/drafted_cells.py --coordinator "$release/coordinator" --json out/drafted-cells.jsonl
fi
if wanted alike; then
    rm -f out/alike.jsonl
    small=$(scripts/model.sh | tail -n 1)
    say python3 scripts/alike_rows.py --coordinator "$release/coordinator" --model "$small" \
        --rounds "${ROUNDS:-2}" --json out/alike.jsonl
fi
if wanted recovery; then
    rm -f out/recovery.jsonl
    small=$(scripts/model.sh | tail -n 1)
    say python3 scripts/recovery_rows.py --coordinator "$release/coordinator" --model "$small" \
        --rounds "${ROUNDS:-5}" --json out/recovery.jsonl
    rm -f out/serving-recovery.jsonl
    say python3 scripts/serving_recovery_rows.py --coordinator "$release/coordinator" --model "$small" \
        --rounds "${ROUNDS:-20}" --json out/serving-recovery.jsonl
fi
if wanted hostile; then
    rm -f out/hostile.jsonl
    small=$(scripts/model.sh | tail -n 1)
    say python3 scripts/hostile_rows.py --coordinator "$release/coordinator" --model "$small" \
        --rounds "${ROUNDS:-1}" --json out/hostile.jsonl
fi
if wanted speculation; then
    rm -f out/speculation.jsonl
    small=$(scripts/model.sh | tail -n 1)
    say python3 scripts/speculation_rows.py --coordinator "$release/coordinator" --model "$small" \
        --rounds "${ROUNDS:-3}" --json out/speculation.jsonl
fi
if wanted batch; then
    rm -f out/batch.jsonl
    small=$(scripts/model.sh | tail -n 1)
    say timeout 600 python3 scripts/batch_rows.py --coordinator "$release/coordinator" --model "$small" \
        --lines "${LINES_OF_BATCH:-2000}" --json out/batch.jsonl
fi
if wanted peers; then
    if [ -z "${PEERS:-}" ]; then
        echo "Peers are not compared: make them with scripts/peers.sh DIR, then make bench PEERS=DIR."
    else
        rm -f out/llama.jsonl out/torch.jsonl
        say python3 scripts/peers/llama.py "$PEERS" --coordinator "$release/coordinator" \
            --roofline "$release/examples/roofline" --rounds "${ROUNDS:-2}" --json out/llama.jsonl
        if [ -x "$PEERS/torch/bin/python" ]; then
            say python3 scripts/peers/torch_linear.py --torch "$PEERS/torch/bin/python" \
                --roofline "$release/examples/roofline" --samples "${ROUNDS:-2}" --json out/torch.jsonl
        else
            echo "oneDNN is not compared: scripts/peers.sh $PEERS --torch installs it."
        fi
    fi
fi
if wanted serve; then
    rm -f out/long-prompt.jsonl out/serve.jsonl
    small=$(scripts/model.sh | tail -n 1)
    say python3 scripts/long_prompt_rows.py --coordinator "$release/coordinator" --model "$small" --json out/long-prompt.jsonl
    rm -f out/prompt-cache.jsonl
    say python3 scripts/prompt_cache_rows.py --coordinator "$release/coordinator" --layers 4 --json out/prompt-cache.jsonl
    if [ -n "${PEERS:-}" ]; then
        say python3 scripts/peers/serve.py "$PEERS" --coordinator "$release/coordinator" \
            ${LENGTHS:+--lengths "$LENGTHS"} --rounds "${ROUNDS:-2}" --json out/serve.jsonl
    fi
fi
if [ "${ONLY:-}" = million ]; then
    rm -f out/million.jsonl
    say python3 scripts/million_rows.py --coordinator "$release/coordinator" --roofline "$release/examples/roofline" \
        --positions "${POSITIONS:-1000000}" --layers "${LAYERS:-1}" --hours "${HOURS:-1}" ${FOLDER:+--folder "$FOLDER"} \
        --json out/million.jsonl
fi
