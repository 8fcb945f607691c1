#!/usr/bin/env bash
# `make fuzz`: hostile model files, job lines, hubs, requests, stores and kills, CASES of each kind
# (20,000; a fixed fraction of the slower kinds), starting from SEED (the clock). A failure names its
# seed; SEED=that repeats it. `make test` runs fewer of each kind, from a fixed seed, and of some
# other tests a sample, which run completely here.
set -euo pipefail
cd "$(dirname "$0")/.."

export TANDEM_FUZZ_CASES=${CASES:-20000} TANDEM_FUZZ_SEED=${SEED:-$(date +%s)}
echo "+ TANDEM_FUZZ_CASES=$TANDEM_FUZZ_CASES TANDEM_FUZZ_SEED=$TANDEM_FUZZ_SEED"
# By cargo test: nextest would end what takes longer than a test may.
cargo test --package coordinator --test end_to_end -- hostile --nocapture
cargo test --package coordinator --test end_to_end -- death batch_kills drafts prompt_store cublaslt turns profiled_kinds --nocapture
cargo test --package cuda_standin --test lanes -- --nocapture
# Tests of which `make test` runs a sample.
cargo test --package kernels --test operations -- attention_window attention_pages linear
cargo test --package planner --test described --test papers
cargo test --package planner --lib device_capacity
cargo test --package program --test plans -- dropped shared_caches states
cargo test --package workers --test in_process -- compressed placement states
exec cargo test --package coordinator --test storage
