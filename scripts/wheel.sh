#!/bin/sh
# `make wheel`: the Python package with the program in it, as a wheel in dist/. maturin makes it, from
# an environment in $CARGO_TARGET_DIR/wheel. Says which C library it needs, and that it needs no other.
# With MANYLINUX=2_28 it is built for glibc 2.28 by zig's linker, which comes from PyPI, apart from other builds.
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
dist=$(pwd)/dist
if [ -n "${MANYLINUX:-}" ]; then
    [ -x "$folder/venv/bin/python-zig" ] ||
        say "$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'maturin[zig]>=1.7,<2'
    set -- --zig --compatibility "manylinux_$MANYLINUX"
fi
# Named after the oldest C library whose symbols suffice; refused where another library is needed.
(cd python && say env PATH="$folder/venv/bin:$PATH" maturin build --release --auditwheel check --out "$dist" "$@")
