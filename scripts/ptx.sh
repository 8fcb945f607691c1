#!/bin/sh
# Compiles the CUDA kernels to the committed PTX (kernels/cuda/ptx/tandem.ptx) with a pinned NVRTC, and
# checks with a pinned ptxas that every supported generation of GPUs takes it. Neither needs a GPU.
#
#   scripts/ptx.sh             fetches NVRTC if it is missing, compiles and writes the PTX
#   scripts/ptx.sh --offline   the same without fetching; leaves with 77 when NVRTC is missing
#   scripts/ptx.sh --assemble  assembles the committed PTX; fetches ptxas unless --offline is given too
#   OUT=file                   writes the PTX there instead
#
# The compiler is NVIDIA's, out of the Python packages named below; nothing of it is kept but its output.
set -eu

nvrtc='nvidia-cuda-nvrtc-cu12==12.0.140'
ptxas='nvidia-cuda-nvcc==13.5.37'
# All that compute capability 8.0 has and later ones keep. Sums are fused where the source says so, as in
# the build for the CPU.
options='--gpu-architecture=compute_80 --std=c++17 --fmad=false --device-as-default-execution-space'
generations='80 86 89 90 120'

cd "$(dirname "$0")/.."
cache="$(pwd)/.cache/nvidia"
python="${PYTHON:-python3}"
offline=
assemble=
for argument in "$@"; do
    case "$argument" in
        --offline) offline=1 ;;
        --assemble) assemble=1 ;;
        *) echo "ptx.sh: $argument is not an option; see the head of this file" >&2; exit 2 ;;
    esac
done

# fetch REQUIREMENT FILE: unpacks a package into its own folder of the cache, unless its FILE is there.
fetch() {
    folder="$cache/$1"
    found="$(find "$folder" -name "$2" 2> /dev/null | head -n 1)"
    if [ -z "$found" ]; then
        if [ -n "$offline" ]; then
            echo "ptx.sh: $1 is missing; run scripts/ptx.sh${assemble:+ --assemble} once with a network" >&2
            exit 77
        fi
        mkdir -p "$cache"
        work="$(mktemp -d "$cache/fetch.XXXXXX")"
        trap 'rm -rf "$work"' EXIT
        echo "+ $python -m pip download $1"
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
            --only-binary :all: --dest "$work" "$1"
        "$python" -m zipfile -e "$work"/*.whl "$work/unpacked"
        rm -rf "$folder"
        # One rename, so that there is never half a package.
        mv "$work/unpacked" "$folder"
        found="$(find "$folder" -name "$2" | head -n 1)"
        [ -n "$found" ] || { echo "ptx.sh: $1 has no $2" >&2; exit 1; }
    fi
}

if [ -n "$assemble" ]; then
    fetch "$ptxas" ptxas
    chmod +x "$found"
    for generation in $generations; do
        # Not optimised: whether it is taken shows as well, and sooner.
        "$found" --opt-level 0 --gpu-name "sm_$generation" --output-file /dev/null kernels/cuda/ptx/tandem.ptx
        echo "sm_$generation: assembled"
    done
    exit 0
fi

fetch "$nvrtc" 'libnvrtc.so.12'
# The run-time compiler is a library; these are its five calls. Files are found relative to `source`.
# shellcheck disable=SC2086 # one word an option
"$python" - "$found" "${OUT:-$(pwd)/kernels/cuda/ptx/tandem.ptx}" kernels/cuda/source $options << 'PYTHON'
import ctypes, os, sys

library, out, source, *options = sys.argv[1:]
# Its part with the built-in functions is looked for by name.
ctypes.CDLL(os.path.join(os.path.dirname(library), "libnvrtc-builtins.so.12.0"), ctypes.RTLD_GLOBAL)
nvrtc = ctypes.CDLL(library)
out = os.path.abspath(out)
os.chdir(source)
options.append("--include-path=.")
with open("module.cu", "rb") as file:
    text = file.read()
program = ctypes.c_void_p()


def check(code, step):
    if code != 0:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        sys.exit(f"ptx.sh: {step}: error {code} of NVRTC\n{log.value.decode()}")


check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"module.cu", 0, None, None), "create")
words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
check(nvrtc.nvrtcCompileProgram(program, len(options), words), "compile")
size = ctypes.c_size_t()
check(nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size)), "size")
ptx = ctypes.create_string_buffer(size.value)
check(nvrtc.nvrtcGetPTX(program, ptx), "read")
os.makedirs(os.path.dirname(out), exist_ok=True)
with open(out, "wb") as file:
    file.write(ptx.value)
print(f"{os.path.relpath(out)}: {len(ptx.value)} bytes, {ptx.value.count(b'.visible .entry')} kernels")
PYTHON
