#!/bin/sh
# Compiles the CUDA kernels to the committed PTX (kernels/cuda/ptx/tandem.ptx) with a pinned NVRTC, and
# checks with a pinned ptxas that every supported generation of GPUs takes it. Neither needs a GPU.
#
#   scripts/ptx.sh             fetches NVRTC if it is missing, compiles and writes the PTX
#   scripts/ptx.sh --offline   the same without fetching; leaves with 77 when NVRTC is missing
#   scripts/ptx.sh --assemble  assembles the committed PTX; fetches ptxas unless --offline is given too
#   scripts/ptx.sh --cubins    compiles the committed PTX for each generation (kernels/cuda/cubin), which
#                              takes three minutes and saves every first start half of one, and writes what
#                              each kernel uses of a multiprocessor (budgets.tsv); the same otherwise
#   scripts/ptx.sh --budgets   checks that compiling the committed PTX gives the committed cubins and budgets,
#                              and writes docs/bench/gpu-instructions.md, the instructions of their loops
#   OUT=file                   writes the PTX there instead; a folder, of cubins
#   GENERATIONS='80 90'        compiles cubins for these only
#
# The compilers are NVIDIA's, out of the Python packages named below; nothing of them is kept but their output.
set -eu

nvrtc='nvidia-cuda-nvrtc-cu12==12.0.140'
ptxas='nvidia-cuda-nvcc==13.5.37'
# A driver takes cubins of its own major version of CUDA and of earlier ones. 12.8 is the first that knows
# compute capability 12.0, so what it makes is taken wherever this program runs at all.
cubin_ptxas='nvidia-cuda-nvcc-cu12==12.8.93'
nvdisasm='nvidia-cuda-nvdisasm==13.5.37'
# All that compute capability 8.0 has and later ones keep. Sums are fused where the source says so, as in
# the build for the CPU.
options='--gpu-architecture=compute_80 --std=c++17 --fmad=false --device-as-default-execution-space'
generations='80 86 89 90 120'
cubin_generations="${GENERATIONS:-80 86 89 90 100 120}"

cd "$(dirname "$0")/.."
cache="$(pwd)/.cache/nvidia"
python="${PYTHON:-python3}"
offline=
assemble=
cubins=
budgets=
for argument in "$@"; do
    case "$argument" in
        --offline) offline=1 ;;
        --assemble) assemble=1 ;;
        --cubins) cubins=1 ;;
        --budgets) budgets=1 ;;
        *) echo "ptx.sh: $argument is not an option; see the head of this file" >&2; exit 2 ;;
    esac
done

# fetch REQUIREMENT FILE: unpacks a package into its own folder of the cache, unless its FILE is there.
fetch() {
    folder="$cache/$1"
    found="$(find "$folder" -name "$2" 2> /dev/null | head -n 1)"
    if [ -z "$found" ]; then
        if [ -n "$offline" ]; then
            echo "ptx.sh: $1 is missing; run scripts/ptx.sh${assemble:+ --assemble}${cubins:+ --cubins} once with a network" >&2
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

if [ -n "$budgets" ]; then
    fetch "$nvdisasm" nvdisasm
    chmod +x "$found"
    made="$(mktemp -d)"
    trap 'rm -rf "$made"' EXIT
    OUT="$made" sh scripts/ptx.sh --cubins ${offline:+--offline}
    for file in made_of budgets.tsv; do
        cmp "$made/$file" "kernels/cuda/cubin/$file" ||
            { echo "ptx.sh: run scripts/ptx.sh --cubins and commit kernels/cuda/cubin" >&2; exit 1; }
    done
    "$python" scripts/kernel_loops.py "$found" kernels/cuda/cubin docs/bench/gpu-instructions.md
    exit 0
fi

if [ -n "$cubins" ]; then
    fetch "$cubin_ptxas" ptxas
    chmod +x "$found"
    out="${OUT:-$(pwd)/kernels/cuda/cubin}"
    mkdir -p "$out"
    work="$(mktemp -d)"
    trap 'rm -rf "$work"' EXIT
    # As many at a time as there are processors; each takes half a minute.
    # shellcheck disable=SC2086,SC2016 # one word a generation; the inner shell's arguments
    printf '%s\n' $cubin_generations | xargs -P "$(nproc)" -I '{}' sh -c '"$0" --opt-level 3 --verbose \
        --gpu-name "sm_$2" --output-file "$1/sm_$2.cubin" kernels/cuda/ptx/tandem.ptx 2> "$1/sm_$2.log" ||
        { cat "$1/sm_$2.log" >&2; exit 255; }' "$found" "$work" '{}'
    "$python" scripts/kernel_budgets.py "$work" kernels/cuda/cubin/launch_sizes.tsv "$out/budgets.tsv"
    # Each compressed by itself, and beside them what they were made of: a test compares it with the PTX.
    # shellcheck disable=SC2086 # one word a generation
    "$python" - "$work" "$out" kernels/cuda/ptx/tandem.ptx "$cubin_ptxas" $cubin_generations << 'PYTHON'
import hashlib, lzma, os, sys

work, out, ptx, package, *generations = sys.argv[1:]


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


lines = [f"{digest(ptx)}  tandem.ptx", f"{package}"]
for generation in generations:
    name = f"sm_{generation}.cubin"
    with open(os.path.join(work, name), "rb") as file:
        cubin = file.read()
    filters = [{"id": lzma.FILTER_LZMA1, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 22}]
    compressed = lzma.compress(cubin, lzma.FORMAT_ALONE, filters=filters)
    with open(os.path.join(out, name + ".lzma"), "wb") as file:
        file.write(compressed)
    lines.append(f"{hashlib.sha256(cubin).hexdigest()}  {name}")
    print(f"{name}: {len(cubin)} bytes, {len(compressed)} compressed")
with open(os.path.join(out, "made_of"), "w") as file:
    file.write("\n".join(lines) + "\n")
PYTHON
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
print("run scripts/ptx.sh --cubins too, if the PTX has changed")
PYTHON
