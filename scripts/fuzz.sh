#!/usr/bin/env bash
# `make fuzz`: hostile model files, job lines, requests and clients, CASES of each (20,000), from SEED on (the clock).
# A failure names its seed; SEED=that repeats it. `make test` runs 2,000 of each from one seed.
set -euo pipefail
cd "$(dirname "$0")/.."

export TANDEM_FUZZ_CASES=${CASES:-20000} TANDEM_FUZZ_SEED=${SEED:-$(date +%s)}
echo "+ TANDEM_FUZZ_CASES=$TANDEM_FUZZ_CASES TANDEM_FUZZ_SEED=$TANDEM_FUZZ_SEED"
# By cargo test: nextest would end what takes longer than a test may.
exec cargo test --package coordinator --test end_to_end -- hostile --nocapture
