#!/bin/sh
# Makes DIR ready for the comparisons of `make bench PEERS=DIR`:
#     scripts/peers.sh DIR [--torch] [--ik FOLDER]
# DIR/bin        llama.cpp's server, bench, quantise and perplexity tools, built natively from the source package of
#                llama-cpp-python (no binary, so that both engines are compiled for this very machine)
# DIR/models     the files that both engines load: SmolLM2-135M, a seeded 1.1B LLaMA and two seeded layers of
#                Qwen3-30B-A3B, in bf16 and as llama.cpp's own tool quantises them
#                and, with --ik, ik_llama.cpp's batched bench, built from a copy of a checkout of it at FOLDER
# DIR/torch      with --torch: the Python environment of scripts/fixtures_env.sh, for torch's linears
# What is there already is kept. Needs a C++ compiler and Python with pip and venv; about 25 minutes, 10 GB.
set -eu

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

usage() { echo "usage: $0 DIR [--torch] [--ik FOLDER]" >&2; exit 2; }
[ $# -ge 1 ] || usage
mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
torch='' ik=''
while [ $# -gt 0 ]; do
    case $1 in
        --torch) torch=1 ;;
        --ik) ik=$(cd "${2:?--ik needs the folder of a checkout}" && pwd); shift ;;
        *) usage ;;
    esac
    shift
done
scripts=$(cd "$(dirname "$0")" && pwd)

say() { echo "+ $*"; "$@"; }

if [ ! -x "$dir/venv/bin/gguf-dump" ]; then
    say python3 -m venv "$dir/venv"
    say "$dir/venv/bin/pip" install --quiet --disable-pip-version-check numpy gguf matplotlib
fi
python=$dir/venv/bin/python
for tool in cmake ninja; do
    "$tool" --version >/dev/null 2>&1 || [ -x "$dir/venv/bin/$tool" ] ||
        say "$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$tool"
done
PATH=$PATH:$dir/venv/bin

# pip asks the package's build tool for its name and version before it keeps a source package, and that tool
# would first install itself and a compiler's worth of helpers. A stand-in answers, so that pip only fetches,
# from wherever this machine's pip is told to.
fetch() {
    mkdir -p "$work/stand_in/scikit_build_core" "$work/package"
    cat > "$work/stand_in/scikit_build_core/build.py" <<PYTHON
import pathlib


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder) / "llama_cpp_python-$version.dist-info"
    info.mkdir()
    text = "Metadata-Version: 2.1\\nName: llama_cpp_python\\nVersion: $version\\n"
    (info / "METADATA").write_text(text)
    return info.name
PYTHON
    echo "llama-cpp-python==$version --hash=sha256:$sha256" > "$work/requirements.txt"
    echo "+ pip download llama-cpp-python==$version (75 MB)"
    PYTHONPATH=$work/stand_in "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation --no-binary :all: --dest "$work/package" --requirement "$work/requirements.txt"
}

# With AMX, GCC 12 drops the stores to a tile configuration that only `ldtilecfg` reads, and llama.cpp's 4-bit kernel
# ends with SIGILL. Clang keeps them.
choose_compiler() {
    [ -z "${CC:-}" ] && grep -q amx_tile /proc/cpuinfo || return 0
    for clang in clang clang-19 clang-18 clang-17 clang-16; do
        if command -v "$clang" > /dev/null && command -v "clang++${clang#clang}" > /dev/null; then
            export CC="$clang" CXX="clang++${clang#clang}"
            return
        fi
    done
    echo "llama.cpp's 4-bit kernel for AMX may end with SIGILL as GCC compiles it: install clang and libomp-dev." >&2
}

tools="llama-bench llama-batched-bench llama-perplexity llama-quantize llama-server"
missing=
for tool in $tools; do
    [ -x "$dir/bin/$tool" ] || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    choose_compiler
    work=$(mktemp -d "$dir/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    fetch
    say tar -xzf "$work/package/llama_cpp_python-$version.tar.gz" -C "$work"
    say cmake -S "$work/llama_cpp_python-$version/vendor/llama.cpp" -B "$work/build" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=ON \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF > "$dir/build.log" 2>&1
    # shellcheck disable=SC2086 # A list of words.
    say cmake --build "$work/build" --target $missing \
        >> "$dir/build.log" 2>&1 || { tail -n 20 "$dir/build.log" >&2; exit 1; }
    mkdir -p "$dir/bin"
    for tool in $missing; do
        say cp "$work/build/bin/$tool" "$dir/bin/$tool"
    done
fi

if [ -n "$ik" ] && [ ! -x "$dir/bin/ik-llama-batched-bench" ]; then
    choose_compiler
    work=$(mktemp -d "$dir/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say cp -r "$ik" "$work/ik"
    # Its bench gives every row the same token, so that all rows select the same experts.
    say sed -i 's/common_batch_add(batch, 0,/common_batch_add(batch, 1 + rand() % 30000,/' \
        "$work/ik/examples/batched-bench/batched-bench.cpp"
    say cmake -S "$work/ik" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DGGML_NATIVE=ON -DGGML_IQK_FA_ALL_QUANTS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_SERVER=OFF > "$dir/build.log" 2>&1
    say cmake --build "$work/build" --target llama-batched-bench \
        >> "$dir/build.log" 2>&1 || { tail -n 20 "$dir/build.log" >&2; exit 1; }
    say cp "$work/build/bin/llama-batched-bench" "$dir/bin/ik-llama-batched-bench"
    rm -rf "$work"
fi

mkdir -p "$dir/models"
small=$dir/models/smollm2-135m-q4_1.gguf
if [ ! -f "$small" ]; then
    packaged=$("$scripts/model.sh" | tail -n 1)
    say cp "$packaged" "$small.part"
    say mv "$small.part" "$small"
fi
if [ ! -f "$dir/models/smollm2-135m-bf16.gguf" ]; then
    say "$python" "$scripts/peers/models.py" widen "$small" "$dir/models/smollm2-135m-bf16.gguf"
fi
if [ ! -f "$dir/models/llama-1.1b-bf16.gguf" ]; then
    say "$python" "$scripts/peers/models.py" random "$small" "$dir/models/llama-1.1b-bf16.gguf"
fi
if [ ! -f "$dir/models/qwen3-30b-a3b-2l-bf16.gguf" ]; then
    say "$python" "$scripts/peers/models.py" experts "$small" "$dir/models/qwen3-30b-a3b-2l-bf16.gguf"
fi
# quantise MODEL NAME TYPE [OPTION...]: DIR/models/MODEL-NAME.gguf from the bf16 file.
quantise() {
    from=$dir/models/$1-bf16.gguf to=$dir/models/$1-$2.gguf type=$3
    shift 3
    [ -f "$to" ] && return
    say "$dir/bin/llama-quantize" "$@" "$from" "$to.part" "$type" >> "$dir/build.log" 2>&1
    mv "$to.part" "$to"
}
for model in smollm2-135m llama-1.1b; do
    quantise $model q4_k_m Q4_K_M
    quantise $model q6_k Q6_K
done
for type in q8_0 q4_0 iq4_xs q3_k_m q2_k; do
    quantise llama-1.1b $type "$(echo $type | tr '[:lower:]' '[:upper:]')"
done
if [ ! -f "$dir/models/llama-1.1b-iq2_xs.gguf" ]; then
    say "$python" "$scripts/peers/models.py" iq2_xs "$dir/models/llama-1.1b-q2_k.gguf" "$dir/models/llama-1.1b-iq2_xs.gguf"
fi
quantise qwen3-30b-a3b-2l q4_k_m Q4_K_M
quantise smollm2-135m mxfp4 Q8_0 --tensor-type attn=mxfp4 --tensor-type ffn=mxfp4
if [ -n "$torch" ] && [ ! -x "$dir/torch/bin/python" ]; then
    say "$scripts/fixtures_env.sh" "$dir/torch"
fi
echo "$dir is ready: make bench PEERS=$dir"
