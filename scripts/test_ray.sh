#!/bin/sh
# `make test-ray`: the Python package on a real Ray cluster of three nodes, all on this machine. Installs Ray
# into $CARGO_TARGET_DIR/ray once (about 1 GB), and runs scripts/ray/check.py with the small real model.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/ray"
folder=$(cd "$target/ray" && pwd)
if [ ! -f "$folder/installed" ]; then
    say python3 -m venv "$folder/venv"
    say "$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'ray[data]'
    : > "$folder/installed"
fi
model=$(scripts/model.sh | tail -n 1)
say cargo build --release --package coordinator
TANDEM_COORDINATOR=$(cd "$target/release" && pwd)/coordinator
export TANDEM_COORDINATOR PYTHONPATH="$PWD/python" PYTHONDONTWRITEBYTECODE=1
# Nothing is told to others, and no metrics are asked for.
export RAY_USAGE_STATS_ENABLED=0 RAY_DISABLE_IMPORT_WARNING=1 RAY_DEDUP_LOGS=0
(cd python && say "$folder/venv/bin/python" -m unittest tests.test_ray)
say "$folder/venv/bin/python" scripts/ray/check.py "$model"
