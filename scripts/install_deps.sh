#!/bin/sh
# Installs what building and running need beside the Rust toolchain, by apt, and only what is missing:
# a C linker (cargo calls it), a C++ compiler (tests run the CUDA kernels on the CPU), hwloc with
# pkg-config and udev (it tells cores, caches and NUMA nodes), the certificates with which cargo and pip
# check their downloads, and Python with pip (the model of `make run` is a Python package). Says each
# command before it runs it; silent when all is there.
set -eu

if ! command -v cargo > /dev/null; then
    echo "cargo is missing. Install the Rust toolchain with rustup and try again." >&2
    exit 1
fi

packages=
command -v cc > /dev/null && printf 'int main(void){return 0;}' | cc -x c - -o /dev/null 2> /dev/null ||
    packages="$packages gcc libc6-dev"
command -v "${CXX:-c++}" > /dev/null && printf '#include <utility>\nint main(){}' | "${CXX:-c++}" -x c++ - -o /dev/null 2> /dev/null ||
    packages="$packages g++"
[ -e /etc/ssl/certs/ca-certificates.crt ] || [ -n "${SSL_CERT_FILE:-}" ] || packages="$packages ca-certificates"
command -v pkg-config > /dev/null || packages="$packages pkg-config"
pkg-config --atleast-version=2.8 hwloc 2> /dev/null || packages="$packages libhwloc-dev"
pkg-config --exists libudev 2> /dev/null || packages="$packages libudev-dev"
command -v python3 > /dev/null || packages="$packages python3"
python3 -m pip --version > /dev/null 2>&1 || packages="$packages python3-pip"
[ -n "$packages" ] || exit 0

if ! command -v apt-get > /dev/null; then
    echo "These are missing, or what this system calls them:$packages. Install them and try again." >&2
    exit 1
fi
sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
say() { echo "+ $*"; "$@"; }
say $sudo apt-get update -q
# shellcheck disable=SC2086 # one word a package
say $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
