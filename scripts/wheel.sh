#!/bin/sh
# `make wheel`: the Python package with the program in it, as a wheel in dist/. maturin makes it, from
# an environment in $CARGO_TARGET_DIR/wheel. Says which C library it needs, and that it needs no other.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/wheel" dist
folder=$(cd "$target/wheel" && pwd)
if [ ! -x "$folder/venv/bin/maturin" ]; then
    say python3 -m venv "$folder/venv"
    say "$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.7,<2'
fi
PKG_CONFIG_PATH=$(scripts/static_hwloc.sh "$folder/hwloc")
export PKG_CONFIG_PATH
# Named after the oldest C library whose symbols suffice; refused where another library is needed.
dist=$(pwd)/dist
(cd python && say "$folder/venv/bin/maturin" build --release --auditwheel check --out "$dist")
