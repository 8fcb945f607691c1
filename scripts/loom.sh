#!/usr/bin/env bash
# Model-checks the waits of shm and of the kernels' thread pool under every interleaving. Fails when a
# crate ran no check: a renamed module must not turn this into nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A folder of its own: other flags would rebuild everything in the usual one.
target=${CARGO_TARGET_DIR:-target}/loom
for crate in shm kernels; do
    echo "+ RUSTFLAGS='--cfg loom' cargo test -p $crate --release --lib loom"
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target" cargo test -p "$crate" --release --lib loom 2>&1 | tee "$log"
    if ! grep -q '^test result: ok\. [1-9]' "$log"; then
        echo "No loom check ran in $crate." >&2
        exit 1
    fi
done
