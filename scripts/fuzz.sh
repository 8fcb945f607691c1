#!/usr/bin/env bash
# `make fuzz`: hostile model files and job lines, CASES of each (20,000), from SEED on (the clock), and
# orders in which a device runs long lists, a hundredth as many. A failure names its seed; SEED=that
# repeats it. `make test` runs 2,000 and 6 from one seed.
set -euo pipefail
cd "$(dirname "$0")/.."

export TANDEM_FUZZ_CASES=${CASES:-20000} TANDEM_FUZZ_SEED=${SEED:-$(date +%s)}
echo "+ TANDEM_FUZZ_CASES=$TANDEM_FUZZ_CASES TANDEM_FUZZ_SEED=$TANDEM_FUZZ_SEED"
# By cargo test: nextest would end what takes longer than a test may.
cargo test --package coordinator --test end_to_end -- hostile --nocapture
exec cargo test --package cuda_standin --test lanes -- deep --nocapture
