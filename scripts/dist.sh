#!/bin/sh
# `make dist`: what a release consists of, into dist/ for Linux on x86-64:
#     tandem_llm-VERSION-*.whl          the Python package with the program in it
#     tandem-VERSION-x86_64-linux.tar.gz  the same program with completions and pages for man
#     tandem-VERSION.spdx.json          the packages that it consists of (scripts/spdx.py)
#     SHA256SUMS
# The wheel is for glibc 2.28, or for another version that MANYLINUX names, as in MANYLINUX=2_34; MANYLINUX= builds for this
# system's. Files of an earlier run are removed.
set -eu
cd "$(dirname "$0")/.."

say() { echo "+ $*"; "$@"; }

rm -rf dist
MANYLINUX=${MANYLINUX-2_28} scripts/wheel.sh
wheel=$(echo dist/tandem_llm-*.whl)
version=$(basename "$wheel" | cut -d - -f 2)
name=tandem-$version-x86_64-linux
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say python3 -m zipfile --extract "$wheel" "$work/wheel"
chmod 755 "$work"/wheel/*.data/scripts/coordinator
PROGRAM=$(echo "$work"/wheel/*.data/scripts/coordinator) DESTDIR="$work/$name" PREFIX=/ scripts/install.sh
install -m 644 README.md CHANGELOG.md LICENSE "$work/$name/"
# The same program gives the same archive.
time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
say tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" \
    --file "$work/$name.tar" "$name"
gzip --no-name --best < "$work/$name.tar" > "dist/$name.tar.gz"
scripts/spdx.py > "dist/tandem-$version.spdx.json"
(cd dist && sha256sum "$name.tar.gz" "tandem-$version.spdx.json" "$(basename "$wheel")" > SHA256SUMS && cat SHA256SUMS)
